"""Memory of processes that belong together."""

import contextlib
import os
import re
from pathlib import Path


def session_memory(session: int) -> int:
    """Bytes of main memory that the processes of a session have, by the kernel's count: a page that k processes share is 1 / k
    in each, so that the sum is what they take together."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if os.getsid(int(folder.name)) == session:
                found = re.search(r"^Pss:\s+(\d+) kB", (folder / "smaps_rollup").read_text(), re.MULTILINE)
                total += int(found[1]) * 1024 if found else 0
    return total
