"""A diagnosis in a few lines for the terminal."""

from itertools import groupby

from boltbox.detector.commands.doctor.finding import CONCLUSIONS, SEVERITIES, Diagnosis, Finding


def by_kind(findings: list[Finding]) -> list[list[Finding]]:
    """Findings of a kind together: the most severe kind first, then what explains others, then the
    most frequent."""
    order = sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), f.kind))
    groups = [list(group) for _, group in groupby(order, key=lambda f: (f.severity, f.kind))]

    def rank(group: list[Finding]) -> tuple[int, bool, int]:
        return SEVERITIES.index(group[0].severity), group[0].kind not in CONCLUSIONS, -len(group)

    return sorted(groups, key=rank)


def summary(diagnosis: Diagnosis, most: int = 3) -> list[str]:
    """Each kind with a few examples, and at last how many there are in all."""
    lines = []
    for group in by_kind(diagnosis.findings):
        lines.append(f"{group[0].severity}: {group[0].kind} ({len(group)})")
        lines += [f"  {sentence(finding)}" for finding in group[:most]]
        if len(group) > most:
            lines.append(f"  ... and {len(group) - most} more")
    counts = [_count(diagnosis.count(severity), severity) for severity in SEVERITIES]
    return [
        *lines,
        f"{diagnosis.source}: {', '.join(counts)}"
        if diagnosis.findings
        else f"{diagnosis.source}: nothing found",
    ]


def sentence(finding: Finding) -> str:
    """Where, and what."""
    line = str(finding).removeprefix(f"{finding.severity}: ")
    return line.encode(errors="backslashreplace").decode()  # file names need not be text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
