"""How many bytes there may be, and how many there are."""

import re
from contextlib import suppress
from pathlib import Path

from boltbox.detector.system.errors import InputError

_UNITS = {
    "": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_CGROUPS = Path("/sys/fs/cgroup")


def bytes_of(option: str, value: int | str) -> int:
    """A number of bytes, or one with a unit: 500MB, 7.5 GB (powers of 1000), 8GiB (powers of 1024);
    else InputError."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]I?B|)", str(value).strip().upper())
    if not found or not float(found[1]):
        raise InputError(
            f"{option} is {value!r}; give a number of bytes, or one with a unit like 500MB or 8GB"
        )
    return int(float(found[1]) * _UNITS[found[2]])


def free_memory() -> int:
    """Bytes that can still be used: of the machine's memory or, if less, of what the container is
    allowed."""
    available = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    assert available is not None
    found = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    own = _CGROUPS / (found[1] if found else "")
    groups = [
        _left(p, "memory.max", "memory.current")
        for p in (own, *own.parents)
        if p.is_relative_to(_CGROUPS)
    ]
    # an older kernel's
    groups.append(_left(_CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))
    return min(int(available[1]) * 1024, *(left for left in groups if left is not None), 2**62)


def _left(group: Path, limit: str, used: str) -> int | None:
    """What a control group leaves; files that the kernel has in memory make way."""
    with suppress(OSError, ValueError):  # "max" is no number
        files = re.search(
            r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE
        )
        taken = int((group / used).read_text()) - int(files[1] if files else 0)
        return max(int((group / limit).read_text()) - taken, 0)
    return None
