"""Pictures of what boltbox prints and writes: reports, doctor, compare, a recorded terminal.

    python -m benchmarks.screenshots --bccd BCCD

writes PNG and SVG files into docs/pictures; docs/pictures/README.md lists them. It needs Chromium
(`apt-get install chromium`) and a copy of BCCD. Every training, diagnosis and comparison is a
command in a folder of its own below `--folder`, and is skipped if that folder has its page already:
delete the folder to do it again. All of it takes about a quarter of an hour on two CPU cores, with
the trainings there a few minutes.
"""

import argparse
import base64
import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

import cv2
import numpy as np

from boltbox.detector.data.demo import make_demo

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/pictures"
BROWSER = "chromium --headless --no-sandbox --disable-gpu --hide-scrollbars"
WIDTH = 1000  # pixels of a page
COLOURS = 256  # of a picture of a page
CUT_OUTS = 6  # of a section
SHOWN = {  # by picture: the page, and how the titles of its sections begin
    "report-demo": ("demo/report.html", "Metrics", "Curves"),
    "report-cells": ("cells/report.html", "Metrics", "Errors", "Largest missed"),
    "compare": ("compare/compare.html", "Options", "Curves"),
    "doctor": (
        "doctor/doctor.html",
        "Findings",
        "fault: damaged",
        "fault: zero_size",
        "warning: box_past",
    ),
}
FAULTY_LINES = (
    "0 0.4 0.4 0 0",  # no size
    "0 0.9 0.9 0.4 0.3",  # past the frame
    "7 0.5 0.5 0.1 0.1",  # unknown class
    "1 160 120 40 30",  # in pixels
    "0.5 0.5 0.1 0.1",  # without a class
)
# of the doctor's findings, with a cut-out each
KINDS = ("damaged_image", "zero_size_box", "unknown_class", "box_past_frame", "duplicate_box")

# The terminal
ROWS = 26
COLUMNS = 80
FRAMES = 80  # of a recorded command
SECONDS = 12  # that they are shown
LINE = 18
CHARACTER = 8.4  # px
PAPER = "#0d1117"
INK = "#e6edf3"
PROMPT = "#fb923c"


def boltbox(words: str, folder: Path) -> int:
    """Run a command of boltbox in a folder; returns its exit status."""
    print(f"python cli.py {words}", flush=True)
    line = [sys.executable, str(ROOT / "cli.py"), *shlex.split(words)]
    return subprocess.run(line, cwd=folder, env=environment(), check=False).returncode


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def plant_faults(demo: Path) -> None:
    """Common faults in labels and images of a fresh demo dataset, three of each."""
    labels = demo / "labels/train"
    images = demo / "images/train"
    spare = iter(sorted(labels.glob("*.txt")))
    for _ in range(3):
        for line in FAULTY_LINES:
            with next(spare).open("a") as file:
                file.write(f"{line}\n")
        doubled = next(spare)
        doubled.write_text(2 * doubled.read_text())
        next(spare).unlink()
        orphan = next(spare)
        orphan.rename(orphan.with_stem(f"photo_{orphan.stem}"))
        damaged = images / f"{next(spare).stem}.jpg"
        content = damaged.read_bytes()
        damaged.write_bytes(content[: len(content) // 2])
        copied = next(spare)
        shutil.copy(images / f"{copied.stem}.jpg", demo / f"images/val/copy_{copied.stem}.jpg")
        shutil.copy(copied, demo / f"labels/val/copy_{copied.name}")


def cut_outs(page: Path, kinds: Sequence[str]) -> None:
    """Save the first cut-out that the doctor's page shows of each kind, as doctor-KIND.jpg."""
    for section in re.findall(r"<section>.*?</section>", page.read_text(), re.DOTALL):
        kind = re.search(r"<h2.*?: (\w+) \(", section)
        picture = re.search(r'src="data:image/jpeg;base64,(.*?)"', section)
        if kind is not None and picture is not None and kind[1] in kinds:
            target = PICTURES / f"doctor-{kind[1]}.jpg"
            target.write_bytes(base64.b64decode(picture[1]))


def screenshot(page: Path, sections: Sequence[str], picture: Path) -> None:
    """Show the top of a page and the sections whose titles begin with these words, as PNG."""
    text = page.read_text()
    for section in re.findall(r"<section>.*?</section>", text, re.DOTALL):
        title = re.search(r"<h2.*?>(.*?)</h2>", section)
        if title is None or not title[1].startswith(tuple(sections)):
            text = text.replace(section, "")
            continue
        for figure in re.findall(r"<figure>.*?</figure>", section, re.DOTALL)[CUT_OUTS:]:
            text = text.replace(figure, "")
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder, "page.html")
        shown.write_text(text)
        shot = Path(folder, "page.png")
        size = f"--window-size={WIDTH},6000 --screenshot={shot}"
        line = [*BROWSER.split(), *size.split(), shown.as_uri()]
        subprocess.run(line, check=True, stderr=subprocess.DEVNULL)  # it misses a desktop
        pixels = cv2.imread(str(shot))
    used = np.flatnonzero((pixels != pixels[-1, -1]).any((1, 2)))
    save_png(pixels[: used[-1] + 16], picture)


def save_png(pixels: np.ndarray, picture: Path) -> None:
    from PIL import Image

    image = Image.fromarray(pixels[:, :, ::-1])
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)


class Screen:
    """A terminal's characters, as far as boltbox uses one: line feed, carriage return, cursor up."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = 0
        self.column = 0

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[A|\x1b\[[\d;?]*[A-Za-z]|[\r\n]|[^\r\n\x1b]+", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.down()
            elif part == "\x1b[A":
                self.row -= 1
            elif not part.startswith("\x1b"):
                for character in part:
                    self.put(character)

    def put(self, character: str) -> None:
        if self.column == COLUMNS:
            self.column = 0
            self.down()
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1

    def down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def shown(self) -> tuple[str, ...]:
        lines = [line.rstrip() for line in self.lines[-ROWS:]]
        return tuple(lines + [""] * (ROWS - len(lines)))


def record(commands: Sequence[str], folder: Path) -> list[tuple[str, ...]]:
    """Run commands of boltbox in a terminal; returns what it shows at equal times of each."""
    screen = Screen()
    frames = []
    for words in commands:
        screen.write(f"$ python cli.py {words}")
        frames += [screen.shown()] * 4
        screen.write("\r\n")
        seen = [(time.monotonic(), screen.shown())]
        terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        line = [sys.executable, str(ROOT / "cli.py"), *shlex.split(words)]
        process = subprocess.Popen(
            line, stdin=end, stdout=end, stderr=end, cwd=folder, env=environment()
        )
        os.close(end)
        rest = b""
        while content := read(terminal):
            *whole, rest = re.split(rb"(?<=[\r\n])", rest + content)
            screen.write(b"".join(whole).decode())
            seen.append((time.monotonic(), screen.shown()))
        screen.write(rest.decode())
        process.wait()
        seen.append((time.monotonic(), screen.shown()))
        moments = np.linspace(seen[1][0], seen[-1][0], FRAMES)  # from the first word on
        times = [at for at, _ in seen]
        places = np.searchsorted(times, moments, side="right") - 1
        frames += [seen[place][1] for place in places]
        frames += [screen.shown()] * 8
    return frames


def read(terminal: int) -> bytes:
    """What the command has printed; empty at its end."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's word for the end of a terminal
        return b""


def film(frames: Sequence[tuple[str, ...]], title: str) -> str:
    """An SVG that shows frames one after the other; the last one where nothing is animated."""
    width = CHARACTER * COLUMNS + 24
    height = LINE * ROWS + 24
    rows = dict.fromkeys(row for frame in frames for row in frame if row)
    names = {row: f"r{number}" for number, row in enumerate(rows)}
    defined = "".join(
        f'<text id="{name}" fill="{PROMPT if row.startswith("$") else INK}"'
        f' textLength="{len(row) * CHARACTER:.1f}">{escape(row)}</text>\n'
        for row, name in names.items()
    )
    screens = []
    stops = []
    shown: tuple[str, ...] = ()
    for number, frame in enumerate(frames):
        if frame == shown:
            continue
        shown = frame
        top = len(screens) * height
        uses = "".join(
            f'<use href="#{names[row]}" y="{(line + 1) * LINE}"/>'
            for line, row in enumerate(frame)
            if row
        )
        screens.append(f'<g transform="translate(12 {top})">{uses}</g>\n')
        stops.append(f"{100 * number / len(frames):.2f}% {{transform: translateY({-top}px)}}\n")
    last = (len(screens) - 1) * height
    seconds = SECONDS * len(frames) / FRAMES
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">
<title>{escape(title)}</title>
<style>
text {{font: 14px 'DejaVu Sans Mono', Menlo, Consolas, monospace; white-space: pre}}
#film {{transform: translateY({-last}px); animation: play {seconds:.0f}s step-end infinite}}
@media (prefers-reduced-motion: reduce) {{#film {{animation: none}}}}
@keyframes play {{
{"".join(stops)}}}
</style>
<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>
<defs>
{defined}</defs>
<g id="film">
{"".join(screens)}</g>
</svg>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bccd", required=True, type=Path, help="folder of the BCCD dataset")
    parser.add_argument("--folder", type=Path, default=Path("runs/pictures"))
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    faulty = folder / "pets"
    if not faulty.exists():
        make_demo(faulty, train=120, val=24)
        plant_faults(faulty)
    cells = f"--data.dataset {options.bccd.resolve()} --data.image_size 320"
    pages = {
        "runs/demo/report.html": "fit",
        "runs/demo-yolov5/report.html": "fit --config configs/yolov5.yaml",
        "runs/cells/report.html": f"fit {cells} --trainer.max_epochs 12",
        "runs/doctor/doctor.html": "doctor --data.dataset pets",
        "runs/compare/compare.html": "compare runs/demo runs/demo-yolov5",
    }
    for page, words in pages.items():
        if not (folder / page).exists():
            boltbox(f"{words} --run {Path(page).parent}", folder)
    for name, (page, *sections) in SHOWN.items():
        screenshot(folder / "runs" / page, sections, PICTURES / f"{name}.png")
    cut_outs(folder / "runs/doctor/doctor.html", KINDS)
    fit = "fit --trainer.max_epochs 8"
    predict = "predict --source datasets/demo/images/val"
    with tempfile.TemporaryDirectory() as empty:
        frames = record([fit, predict], Path(empty))
    (PICTURES / "terminal.svg").write_text(film(frames, f"{fit}, then {predict}"))


if __name__ == "__main__":
    main()
