"""How much memory processes share, by the kernel's count."""

import json
import os
import re
from pathlib import Path

import lightning as L

RANKS = 2
WORKERS = 2
REPORT = "CACHE_MEMORY_REPORT"


class Measure(L.Callback):
    """Writes the sizes, in bytes, of the first process and all that came from it."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.strategy.barrier()  # all have read their images of the first epoch
        if trainer.is_global_zero and trainer.current_epoch == 1:
            stores = [i.store for i in trainer.datamodule.images.values() if i.store]  # type: ignore[attr-defined]
            files = {file_at(store.checks.ctypes.data) for store in stores}
            rows = [sizes(pid, files) for pid in family(os.getpid())]
            report = {
                "stored": sum(os.stat(s.path).st_size for s in stores),
                "images": sum(int((s.checks > 0).sum()) for s in stores),
                "processes": rows,
            }
            Path(os.environ[REPORT]).write_text(json.dumps(report))
        trainer.strategy.barrier()


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(p for child in children for p in family(int(child)))]


def file_at(address: int) -> str:
    """Device and inode of the file that this process has mapped there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, _, _, device, inode = line.split()[:5]
        first, last = (int(end, 16) for end in place.split("-"))
        if first <= address < last:
            return f"{device} {inode}"
    raise ValueError(f"nothing is mapped at {address:#x}")


def sizes(pid: int, files: set[str]) -> dict[str, int]:
    """Of a process: PSS of all it has, and of what it has mapped of these files, with the number of
    such mappings."""
    pss = 0
    store = 0
    maps = 0
    is_store = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_store = " ".join(line.split()[3:5]) in files
            maps += is_store
        elif line.startswith("Pss:"):
            size = int(line.split()[1]) * 1024
            pss += size
            if is_store:
                store += size
    return {"pid": pid, "pss": pss, "store": store, "maps": maps}
