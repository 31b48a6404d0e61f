"""How many wrong labels `review` finds, and what it brings to mend them.

    python -m benchmarks.review find pets runs/pets_15 --rate 0.15 --options "--trainer.max_epochs 25"
    python -m benchmarks.review mend pets runs/pets_15 --rate 0.15 --options "--trainer.max_epochs 25"

The labels of train are spoilt by seed as people err. `find` reviews them and prints average
precision over the errors, and the share of N errors among the first N and 2N suspects. `mend`
prints the AP on val, which is never spoilt, of trainings on the spoilt labels, after as many looks
as there are errors at random places and at suspects, and on the clean labels. A look at an error
mends it. A repeated command continues.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from jsonargparse import auto_cli

from benchmarks.tables import print_header, print_row
from boltbox.detector.commands.doctor.repair import write_coco
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.sample import Labels
from boltbox.detector.model.boxes import clip_xyxy, iou_xyxy

KINDS = {
    "badly_placed": 0.45, "missing": 0.25, "wrong_class": 0.15, "no_object": 0.1, "duplicate": 0.05
}  # fmt: skip
ALIKE = {"badly_placed", "missing", "no_object", "duplicate"}  # one may be found as another


class Thing(NamedTuple):
    """A label: class, xyxy box, and the number of its error, -1: it is right."""

    kind: int
    box: np.ndarray
    error: int = -1


class Error(NamedTuple):
    """An error: image, kind, box of the wrong or the lost label, and what is right."""

    image: int
    kind: str
    box: np.ndarray
    right: Thing | None


def shifted(box: np.ndarray, size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The box moved, or with other edges, to an IoU of 0.35 to 0.72; small shifts are the most
    frequent."""
    side = np.tile(box[2:] - box[:2], 2)
    goal = 0.72 - 0.37 * (1 - np.sqrt(1 - rng.random()))
    while True:
        moves = rng.normal(0, 0.35, 4) * (rng.random(4) < 0.6)
        if rng.random() < 0.5:
            moves[2:] = moves[:2]
        new = clip_xyxy(box + moves * side, *size)
        if (new[2:] - new[:2] > 0.2 * side[:2]).all() and abs(iou_xyxy(box, new) - goal) < 0.05:
            return new


def spoil(
    images: list[Labels], classes: int, rate: float, rng: np.random.Generator
) -> tuple[list[list[Thing]], list[Error]]:
    """Spoil a share of the labels.

    Args:
        images: labels of each image.
        classes: number of classes.
        rate: share of the labels.
        rng: of the errors.

    Returns:
        The labels of each image, and the errors.
    """
    lists: list[list[Thing | None]] = []
    for labels in images:
        rows = zip(labels.classes.tolist(), labels.boxes.astype(float), strict=True)
        lists.append([Thing(kind, box) for kind, box in rows])
    places = [(i, k) for i, things in enumerate(lists) for k in range(len(things))]
    order = rng.permutation(len(places))[: round(rate * len(places))]
    weights = np.array([w * (classes > 1 or k != "wrong_class") for k, w in KINDS.items()])
    errors: list[Error] = []
    for place, kind in zip(
        order, rng.choice(list(KINDS), len(order), p=weights / weights.sum()), strict=True
    ):
        image, k = places[place]
        right = lists[image][k]
        assert right is not None
        size = np.array((images[image].width, images[image].height), float)
        side = right.box[2:] - right.box[:2]
        box = right.box
        number = len(errors)
        meant: Thing | None = right
        if kind == "missing":
            lists[image][k] = None
        elif kind == "wrong_class":
            near = [n for n in (right.kind - 1, right.kind + 1) if 0 <= n < classes]
            lists[image][k] = Thing(int(rng.choice(near)), box, number)
        elif kind == "badly_placed":
            box = shifted(box, size, rng)
            lists[image][k] = Thing(right.kind, box, number)
        else:
            meant = None
            if kind == "no_object":
                low = rng.random(2) * (size - side).clip(0)
                box = np.concatenate((low, low + side))
                if any(t and iou_xyxy(box, t.box) >= 0.1 for t in lists[image]):
                    continue
            else:
                box = clip_xyxy(box + rng.normal(0, 0.05, 4) * np.tile(side, 2), *size)
            lists[image].append(Thing(right.kind, box, number))
        errors.append(Error(image, str(kind), box, meant))
    return [list(filter(None, things)) for things in lists], errors


def write(folder: Path, file: DatasetFile, lists: list[list[Thing]], splits: list[str]) -> Path:
    """Write splits of a dataset, train with these labels; its data.yaml."""
    content: dict[str, Any] = {"names": file.names}
    for split in splits:
        dataset = file.open(split)
        images = []
        for i, (path, labels) in enumerate(zip(dataset.files, dataset.labels, strict=True)):
            if split == "train":
                boxes = np.array([thing.box for thing in lists[i]], np.float32).reshape(-1, 4)
                kinds = np.array([thing.kind for thing in lists[i]], np.int64)
                n = len(kinds)
                no = np.zeros(n, bool)
                area = np.full(n, np.inf, np.float32)
                labels = Labels(boxes, kinds, [[]] * n, no, area, labels.height, labels.width)
            images.append((str(Path(path).absolute()), labels))
        content[split] = f"{split}.json"
        write_coco(folder / content[split], images, {f: f for f, _ in images}, file.names)
    (folder / "data.yaml").write_text(yaml.safe_dump(content))
    return folder / "data.yaml"


def ranking(review: Path, files: list[str], errors: list[Error]) -> list[int]:
    """Of each suspect the number of the error that it finds, -1: none; without those that find one
    again."""
    content = json.loads(review.read_text())
    ranks: list[int] = []
    for suspect in content["suspects"]:
        image = files.index(content["images"][suspect["image"]]["file"])
        hits = []
        for number, error in enumerate(errors):
            is_near = error.image == image and iou_xyxy(np.array(suspect["box"]), error.box) > 0.3
            if is_near and (
                error.kind == suspect["kind"] or {error.kind, suspect["kind"]} <= ALIKE
            ):
                hits.append((error.kind != suspect["kind"], number))
        new = [number for _, number in sorted(hits) if number not in ranks]
        if new or not hits:
            ranks.append(new[0] if new else -1)
    return ranks


def run(command: str, data: Path, folder: Path, options: list[str]) -> None:
    """A command of boltbox in a run folder."""
    line = [sys.executable, "-m", "boltbox", command, "--data.dataset", str(data), *options]
    if command == "fit":
        line += ["--ckpt_path", "auto"]
    subprocess.run([*line, "--run", str(folder)], check=True)


def main(
    part: str, data: str, folder: Path, rate: float = 0.15, seed: int = 0, options: str = ""
) -> None:
    """Spoil the labels of train and review them.

    Args:
        part: find or mend.
        data: A dataset.
        folder: For all that is written.
        rate: Share of the labels that is spoilt.
        seed: Of the errors.
        options: Of `fit`.
    """
    file = DatasetFile.read(data, needs_val=True)
    file.prepare()
    dataset = file.open("train")
    rng = np.random.default_rng(seed)
    spoilt, errors = spoil(list(dataset.labels), len(file.names), rate, rng)
    given = shlex.split(options)
    run("review", write(folder / "spoilt", file, spoilt, ["train"]), folder / "review", given)
    files = [str(Path(path).absolute()) for path in dataset.files]
    ranks = ranking(folder / "review/review.json", files, errors)
    n = len(errors)
    if part == "find":
        hits = np.array(ranks) >= 0
        precision = hits.cumsum() / np.arange(1, len(hits) + 1)
        shares = (hits @ precision, hits[:n].sum(), hits[: 2 * n].sum(), hits.sum())
        print_header("labels", "errors", "AP", "in the first N", "2N", "found")
        print_row(sum(map(len, spoilt)), n, *(f"{share / n:.3f}" for share in shares))
        return
    places = sum(map(len, spoilt)) + sum(error.kind == "missing" for error in errors)
    looks: dict[str, set[int]] = {
        "spoilt": set(),
        "random": set(rng.permutation(places)[:n].tolist()),
        "suspects": set(ranks[:n]),
        "clean": set(range(n)),
    }
    print_header("looks", "errors mended", "AP", "AP50")
    for name, seen in looks.items():
        lists = []
        for image, things in enumerate(spoilt):
            lists.append([thing for thing in things if thing.error not in seen - {-1}])
            for number, error in enumerate(errors):
                if number in seen and error.image == image and error.right:
                    lists[-1].append(error.right)
        run(
            "fit",
            write(folder / name, file, lists, ["train", "val"]),
            folder / f"fit_{name}",
            given,
        )
        metrics = json.loads((folder / f"fit_{name}/metrics.json").read_text())
        figures = [f"{metrics[key]:.3f}" for key in ("coco/AP", "coco/AP50")]
        print_row(name, f"{len(seen & set(range(n)))} of {n}", *figures)


if __name__ == "__main__":
    auto_cli(main)
