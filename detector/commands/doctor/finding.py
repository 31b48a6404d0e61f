"""What the doctor says: one finding, and the whole diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

# lost or wrong in training; probably not what you want; good to know
SEVERITIES = ("fault", "warning", "note")
CONCLUSIONS = ("other_image_size",)  # kinds that explain others, said before them


class Finding(NamedTuple):
    """One thing found in a data set.

    severity: fault, warning or note · kind: a slug that scripts can filter by ("zero_size_box") ·
    split: train, val, test, "" where it concerns several · file: path, or "" · where: the place in
    it ("line 3", "object 2"), or "" · problem: a sentence.
    """

    severity: str
    kind: str
    split: str
    file: str
    where: str
    problem: str

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.file, self.where))) or self.split or "data set"
        return f"{self.severity}: {place}: {self.problem}"


@dataclass
class Diagnosis:
    """All findings of a data set, and the figures behind the histograms (`statistics.py`), which
    are plain JSON types."""

    source: str
    findings: list[Finding] = field(default_factory=list)
    statistics: dict[str, Any] = field(default_factory=dict)

    def count(self, severity: str) -> int:
        return sum(f.severity == severity for f in self.findings)

    def content(self) -> dict[str, Any]:
        """What `doctor --json` prints."""
        counts = {f"{severity}s": self.count(severity) for severity in SEVERITIES}
        return {
            "dataset": self.source,
            **counts,
            "findings": [f._asdict() for f in self.findings],
            **self.statistics,
        }
