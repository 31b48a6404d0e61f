"""The doctor's page of given findings, and what is read from it."""

import base64
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np

from boltbox.detector.commands.doctor.finding import Diagnosis, Finding
from boltbox.detector.commands.doctor.page import write_diagnosis
from boltbox.detector.commands.doctor.statistics import statistics
from boltbox.detector.data.datasets import DetectionDataset

VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Every tag with its attributes, the text, and whether all that was opened is closed in
    order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = self.style = ""
        self.feed(html)
        self.close()
        assert self.open == [], "not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open[-1:] == ["style"]:
            self.style += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page(tmp_path: Path, findings: list[Finding], datasets: dict[str, DetectionDataset]) -> Reader:
    figures, more = statistics(datasets, 640)
    write_diagnosis(
        tmp_path / "out/doctor.html",
        Diagnosis(str(tmp_path), [*findings, *more], figures),
        datasets,
    )
    html = (tmp_path / "out/doctor.html").read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    return Reader(html)


def fault(
    kind: str,
    file: object,
    where: str = "",
    problem: str = "it is wrong",
    severity: str = "fault",
    split: str = "train",
    image: object = "",
    box: tuple[float, ...] | None = None,
    other: object = "",
) -> Finding:
    return Finding(severity, kind, problem, str(file), split, where, str(image), box, str(other))


def jpegs(read: Reader) -> list[np.ndarray]:
    """(H, W, 3) uint8 RGB of each picture of the page, without the charts, which are PNG."""
    found = [(a["src"] or "").partition(",") for tag, a in read.tags if tag == "img"]
    content = [
        np.frombuffer(base64.b64decode(data), np.uint8)
        for kind, _, data in found
        if kind == "data:image/jpeg;base64"
    ]
    return [cv2.imdecode(c, cv2.IMREAD_COLOR_RGB) for c in content]
