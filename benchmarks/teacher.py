"""Photographs that a detector has labelled: what they add to a few labelled images.

    python -m benchmarks.teacher --data bccd aquarium/data.yaml --images 25 50 --seeds 0 1 --jobs 2 \\
        --folder runs/teacher -- --model.start.weights yolov5n.pt --data.workers 0

labels: some training images alone · all: every training image · self: the others labelled by the
best checkpoint of `labels` · teacher: by that of `all`, which stands for a detector that somebody
else has trained. All trainings have about as many steps. Options after -- are for all of them. AP as in
benchmarks.recipes; the command can be given again.
"""

import argparse
import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from benchmarks.recipes.study import run_all
from benchmarks.recipes.training import ROOT, Training
from benchmarks.tables import markdown
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.model.boxes import xyxy_to_cxcywhn

BATCH, VALIDATIONS = 8, 10


def link(dataset: DetectionDataset, chosen: Sequence[int], folder: Path, labels: bool) -> str:
    """Images of a data set as links in folder/images, with YOLO labels beside if asked for."""
    for name in ("images", "labels") if labels else ("images",):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i in chosen:
        file, own = Path(dataset.files[i]).resolve(), dataset.labels[i]
        place = folder / "images" / file.name
        if not place.is_symlink():
            place.symlink_to(file)
        if labels:
            table = np.column_stack(
                (own.classes, xyxy_to_cxcywhn(own.boxes, own.width, own.height))
            )
            path = folder / "labels" / f"{file.stem}.txt"
            np.savetxt(path, table[~own.crowd], "%d" + " %.6g" * 4)
    return str((folder / "images").resolve())


class Study:
    """A data set, some of whose training images have labels.

    folder: of the data and of all trainings · common: options of all trainings.
    """

    def __init__(self, source: str, folder: Path, steps: int, common: Sequence[str]) -> None:
        self.file, self.steps, self.common = DatasetFile.read(source), steps, tuple(common)
        path = Path(source)
        self.name = path.parent.name if path.suffix == ".yaml" else path.name
        self.folder, self.train = folder / self.name, self.file.open("train")
        self.rest = {
            split: link(own := self.file.open(split), range(len(own)), self.folder / split, True)
            for split in self.file.splits
            if split != "train"
        }

    def training(self, way: str, seed: int, train: Sequence[str], images: int) -> Training:
        """On folders of images, which are so many."""
        place = self.folder / way
        place.mkdir(parents=True, exist_ok=True)
        content = {"names": self.file.names, "train": list(train), **self.rest}
        (place / f"{seed}.yaml").write_text(yaml.safe_dump(content))
        epochs = self.steps / math.ceil(images / BATCH)
        every = max(round(epochs / VALIDATIONS), 1)
        words = {
            "data.batch_size": BATCH,
            "trainer.max_epochs": max(round(epochs / every), 1) * every,
            "trainer.check_val_every_n_epoch": every,
        }
        line = tuple(word for name, x in words.items() for word in (f"--{name}", str(x)))
        data = str((place / f"{seed}.yaml").resolve())
        return Training(data, self.name, way, line, self.common, seed, place / str(seed))

    def label(self, teacher: Training, way: str, others: Sequence[int]) -> str:
        """The images that have no labels, as `predict` has labelled them."""
        photos = self.folder / f"photos-{way}" / str(teacher.seed)
        images = link(self.train, others, photos, False)
        if not (photos / "labels").is_dir():
            best = str(teacher.folder / "checkpoints/best.ckpt")
            line = [sys.executable, str(ROOT / "cli.py"), "predict", "--ckpt_path", best]
            line += ["--source", images, "--labels", str(photos / "labels")]
            line += [
                "--names",
                teacher.dataset,
                "--thresholds",
                "own",
                "--confidences",
                "false",
                "--images",
                "false",
            ]
            with (photos / "predict.log").open("w") as log:
                subprocess.run(line, stdout=log, stderr=log, check=True)
        return images


def main() -> None:
    words = sys.argv[1:]
    common = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--images", nargs="+", type=int, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", type=int, default=640)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    studies = [Study(source, given.folder, given.steps, common) for source in given.data]
    os.environ["OMP_NUM_THREADS"] = str(max(len(os.sched_getaffinity(0)) // given.jobs, 1))
    done: list[Training] = []

    def train(trainings: Sequence[Training]) -> None:
        run_all(trainings, given.jobs, lambda t: print(f"{t}: {100 * t.figures().score:.1f}"))
        done.extend(trainings)

    for seed in given.seeds:
        first, parts = [], []
        for study in studies:
            files = study.train.files
            order = sorted(range(len(files)), key=lambda i: _hash(files[i]))
            everything = link(study.train, order, study.folder / "all", True)
            whole = study.training("all", seed, [everything], len(order))
            first.append(whole)
            for n in given.images:
                some = link(study.train, order[:n], study.folder / f"labelled-{n}", True)
                alone = study.training(f"labels-{n}", seed, [some], n)
                first.append(alone)
                parts.append((study, n, some, order[n:], {"self": alone, "teacher": whole}))
        train(first)
        train(
            [
                study.training(
                    f"{way}-{n}",
                    seed,
                    [some, study.label(by, f"{way}-{n}", others)],
                    n + len(others),
                )
                for study, n, some, others, teachers in parts
                for way, by in teachers.items()
            ]
        )
    scores: dict[tuple[str, str], list[str]] = {}
    for t in sorted(done, key=lambda t: (t.name, t.recipe, t.seed)):
        scores.setdefault((t.name, t.recipe), []).append(f"{100 * t.figures().score:.1f}")
    rows = [["data set", "trained on", *(f"seed {seed}" for seed in given.seeds)]]
    print("", *markdown(rows + [[*key, *values] for key, values in scores.items()]), sep="\n")


def _hash(file: str) -> bytes:
    return hashlib.sha256(Path(file).name.encode()).digest()


if __name__ == "__main__":
    main()
