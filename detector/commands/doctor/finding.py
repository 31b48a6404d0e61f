"""What the doctor reports: one finding, and the whole diagnosis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# lost or wrong in training; probably not intended; good to know
SEVERITIES = ("fault", "warning", "note")


class Finding(NamedTuple):
    """One thing found in a data set.

    severity: fault, warning or note · kind: a slug that scripts can filter by ("zero_size_box") ·
    split: train, val, test, "" where it concerns several · file: path, or "" · where: the place in
    it ("line 3", "object 2 (cat)"), or "" · problem: a sentence · image: path of the image that it
    concerns, or "" · box: xyxy in pixels of that image, or None · other: path of the image that it
    is compared with, or "".
    """

    severity: str
    kind: str
    problem: str
    file: str = ""
    split: str = ""
    where: str = ""
    image: str = ""
    box: Sequence[float] | None = None
    other: str = ""

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.file, self.where))) or self.split or "data set"
        line = f"{place}: {self.problem}"
        return line.encode(errors="backslashreplace").decode()  # file names need not be UTF-8


@dataclass
class Diagnosis:
    """All findings of a data set, and its counts (`statistics.py`), which are plain JSON types."""

    source: str
    findings: list[Finding]
    statistics: dict[str, Any]

    def count(self, severity: str) -> int:
        return sum(f.severity == severity for f in self.findings)

    def content(self) -> dict[str, Any]:
        """What `doctor --json` prints."""
        counts = {f"{severity}s": self.count(severity) for severity in SEVERITIES}
        findings = [f._asdict() for group in by_kind(self.findings) for f in group]
        return {"dataset": self.source, **counts, "findings": findings, **self.statistics}

    def totals(self) -> str:
        """How many there are in all."""
        numbers = [(self.count(severity), severity) for severity in SEVERITIES]
        counts = ", ".join(f"{number} {noun}{'s' * (number != 1)}" for number, noun in numbers)
        return counts if self.findings else "nothing found"

    def verdict(self) -> str:
        """In a line whether there are faults, and the totals."""
        word = "FAULTS" if self.count("fault") else "OK"
        return f"{word}: {self.totals()} ({self.source})"

    def summary(self) -> list[str]:
        """Lines for the terminal: each kind with a few examples."""
        lines = []
        for group in by_kind(self.findings):
            lines.append(f"{group[0].severity}: {group[0].kind} ({len(group)})")
            lines += [f"  {finding}" for finding in group[:3]]
            if len(group) > 3:
                lines.append(f"  ... and {len(group) - 3} more")
        return lines


def by_kind(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings of a kind together: the most severe kind first, then the most frequent."""
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.severity, finding.kind].append(finding)

    return sorted(groups.values(), key=lambda g: (SEVERITIES.index(g[0].severity), -len(g)))
