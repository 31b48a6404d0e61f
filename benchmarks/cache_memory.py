"""What the caches cost in memory: one copy of the images, whatever the number of processes, and no
growth by reading labels.

    python -m benchmarks.cache_memory --data ../shared/data/bccd/BCCD --size 320

Trains with two processes of two workers each and, after the first epoch, when every worker has read
its share of the images, adds up the proportional set sizes (PSS: a page that k processes have
counts 1/k in each) of all of them: of everything, and of the mapped stores of images. Then forks a
worker that reads 100,000 objects' labels and tells what became its own.
"""

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np

import cli
from boltbox.detector.data.label_table import LabelTable
from boltbox.detector.model.boxes import area_xyxy

RANKS, WORKERS = 2, 2
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
                "stored": sum(os.fstat(s.file.fileno()).st_size for s in stores),
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
    pss, store, maps, is_store = 0, 0, 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_store = " ".join(line.split()[3:5]) in files
            maps += is_store
        elif line.startswith("Pss:"):
            size = int(line.split()[1]) * 1024
            pss, store = pss + size, store + size * is_store
    return {"pid": pid, "pss": pss, "store": store, "maps": maps}


def train(data: str, folder: Path, *options: str) -> dict[str, Any]:
    """The report of a training of two epochs with RANKS processes of WORKERS workers each."""
    report = folder / "report.json"
    line = [sys.executable, "-m", "benchmarks.cache_memory", "fit", "--data.dataset", data, "--run", str(folder / "run"),
            "--data.workers", str(WORKERS), "--trainer.devices", str(RANKS), "--trainer.accelerator", "cpu",
            "--trainer.precision", "32-true", "--trainer.max_epochs", "2", "--trainer.enable_progress_bar", "false",
            "--autoanchor.enabled", "false", "--model.network.width_multiple", "0.125", *options]  # fmt: skip
    root = Path(cli.__file__).parent
    done = subprocess.run(
        line,
        cwd=root,
        env={**os.environ, REPORT: str(report)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {**json.loads(report.read_text()), "output": done.stdout}


def growth(labels: Any) -> int:
    """Bytes that become a forked worker's own while it reads the labels of all images."""

    def read(connection: Any) -> None:
        before = _private()
        for _ in range(3):
            for k in range(len(labels)):
                assert labels[k].boxes.shape[1] == 4
        connection.send(_private() - before)

    ours, theirs = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("fork").Process(target=read, args=(theirs,))
    worker.start()
    found = ours.recv()
    worker.join()
    return found


def _private() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(n) * 1024 for n in re.findall(r"^Private_\w+:\s*(\d+) kB", text, re.MULTILINE))


def many_labels(images: int, objects: int) -> LabelTable:
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 400, (images, objects, 2))
    boxes = np.concatenate((low, low + rng.uniform(5, 200, low.shape)), 2, dtype=np.float32)
    boxes, total = boxes.reshape(-1, 4), images * objects
    classes, crowd = rng.integers(0, 80, total), np.zeros(total, bool)
    numbers, none = np.arange(0, total + 1, objects), np.zeros(total + 1, np.int64)
    sizes = np.full((images, 2), 640)
    points = np.zeros((0, 2), np.float32)
    return LabelTable(
        sizes, numbers, boxes, classes, crowd, area_xyxy(boxes), none, none[:1], points
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--size", type=int, default=320)
    options = parser.parse_args()
    print(
        "| cache | images stored | size of the store | processes | PSS of the store, all together |"
        " PSS of everything |"
    )
    print("|---|---|---|---|---|---|")
    for cache in ("none", "ram", "disk"):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["BOLTBOX_CACHE"] = folder
            found = train(
                options.data,
                Path(folder),
                "--data.image_size",
                str(options.size),
                "--data.cache",
                cache,
            )
        rows = found["processes"]
        store, everything = (sum(r[k] for r in rows) / 1e6 for k in ("store", "pss"))
        sizes_ = (
            f"{found['images']} | {found['stored'] / 1e6:.1f} MB | {len(rows)} | {store:.1f} MB |"
            f" {everything:.0f} MB"
        )
        print(f"| {cache} | {sizes_} |", flush=True)
    table = many_labels(12_500, 8)
    print("\n| 100,000 objects of 12,500 images | a worker's own memory grows by |\n|---|---|")
    print(f"| flat arrays | {growth(table) / 1e6:.1f} MB |")
    print(f"| a list of Labels | {growth(list(table)) / 1e6:.1f} MB |")


if __name__ == "__main__":
    if REPORT in os.environ:  # one of the processes that train
        # the loaders' limit, on a machine with fewer cores
        os.sched_getaffinity = lambda pid: set(range(RANKS * WORKERS))
        cli.main([*sys.argv[1:], "--trainer.callbacks+=benchmarks.cache_memory.Measure"])
    else:
        main()
