"""What the doctor reports: one finding, and the diagnosis of a dataset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from boltbox.detector.system.rank_zero import amount, program

# lost or wrong in training; probably not intended; good to know
SEVERITIES = ("fault", "warning", "note")
WARNINGS = (  # kinds of findings; others are faults
    "box_past_frame",
    "class_without_examples",
    "duplicate_across_splits",
    "duplicate_box",
    "duplicate_image",
    "mostly_unlabelled",
    "orphan_labels",
    "similar_across_splits",
    "tiny_box",
)
NOTES = ("difficult_object", "missing_label_file")
EXAMPLES = 3  # of a kind in the terminal


class Finding(NamedTuple):
    """One thing found in a dataset.

    Attributes:
        kind: name that scripts can filter by, like zero_size_box.
        problem: a sentence.
        file: path, or "".
        split: train, val, test, or "" if it concerns several.
        where: the place in the file, like "line 3" or "object 2 (cat)", or "".
        image: path of the image that it concerns, or "".
        box: xyxy in pixels of that image, or None.
        other: path of the image that it is compared with, or "".
    """

    kind: str
    problem: str
    file: str = ""
    split: str = ""
    where: str = ""
    image: str = ""
    box: Sequence[float] | None = None
    other: str = ""

    @property
    def severity(self) -> str:
        """Fault, warning or note."""
        if self.kind in WARNINGS:
            return "warning"
        return "note" if self.kind in NOTES else "fault"

    def place(self) -> str:
        """The file and the place in it; without a file the split."""
        if not self.file:
            return self.split
        return f"{self.file}, {self.where}" if self.where else self.file

    def __str__(self) -> str:
        return f"{self.place() or 'dataset'}: {self.problem}"


@dataclass
class Diagnosis:
    """All findings of a dataset.

    Attributes:
        source: the dataset's file or folder.
        findings: in any order.
        boxes: number of each class by split; without crowd regions, which training ignores.
    """

    source: str
    findings: list[Finding]
    boxes: Mapping[str, Mapping[str, int]]

    def count(self, severity: str) -> int:
        """Number of findings of a severity.

        Args:
            severity: fault, warning or note.
        """
        return sum(finding.severity == severity for finding in self.findings)

    def content(self) -> dict[str, Any]:
        """What doctor.json holds."""
        content: dict[str, Any] = {"dataset": self.source}
        for severity in SEVERITIES:
            content[f"{severity}s"] = self.count(severity)
        rows = []
        for group in by_kind(self.findings):
            for finding in group:
                rows.append({"severity": finding.severity} | finding._asdict())
        return content | {"findings": rows, "boxes": self.boxes}

    def verdict(self) -> str:
        """One line: whether there are faults, and the number of findings."""
        counts = [amount(self.count(severity), severity) for severity in SEVERITIES]
        verdict = "FAULTS" if self.count("fault") else "OK"
        total = ", ".join(counts) if self.findings else "nothing found"
        return f"{verdict}: {total} ({self.source})"

    def summary(self) -> list[str]:
        """Lines for the terminal: each kind with a few examples."""
        lines = []
        for group in by_kind(self.findings):
            lines.append(f"{group[0].severity}: {group[0].kind} ({len(group)})")
            lines += [f"  {finding}" for finding in group[:EXAMPLES]]
            if len(group) > EXAMPLES:
                lines.append(f"  ... and {len(group) - EXAMPLES} more")
        return lines


def by_kind(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings by kind: the most severe kind first, then the most frequent.

    Args:
        findings: in any order.

    Returns:
        The findings of each kind.
    """
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.kind].append(finding)
    return sorted(groups.values(), key=lambda g: (SEVERITIES.index(g[0].severity), -len(g)))


def brief(findings: Iterable[Finding], source: str) -> list[str]:
    """A line for each kind of fault and warning before a training; none if all is well.

    Args:
        findings: in any order.
        source: the dataset's file or folder.
    """
    lines = []
    for group in by_kind(findings):
        first = group[0]
        more = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        if first.severity != "note":
            lines.append(f"doctor: {first.severity}: {first}{more}")
    if lines:
        command = f"{program()} doctor --data.dataset {source}"
        lines.append(f"doctor: all of it, and a look at the images: {command}")
    return lines
