"""How many bytes of memory can still be used."""

import re
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Bytes that are free on this machine or, if less, in the container's control groups (v2)."""
    available = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    group = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    assert available is not None
    own = _CGROUPS / (group[1] if group else "")
    groups = [path for path in (own, *own.parents) if path.is_relative_to(_CGROUPS)]
    return min(int(available[1]) * 1024, *map(_free_in, groups))


def _free_in(group: Path) -> int:
    """What a control group leaves; the kernel gives up the files that it has in memory."""
    with suppress(OSError, ValueError):  # "max" is no number
        statistics = (group / "memory.stat").read_text()
        files = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
        used = int((group / "memory.current").read_text()) - int(files[1] if files else 0)
        return max(int((group / "memory.max").read_text()) - used, 0)
    return 2**62
