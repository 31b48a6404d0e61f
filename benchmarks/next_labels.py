"""Whether the images that `review --source` chooses teach more than random ones.

    python -m benchmarks.next_labels --data BCCD playing_cards/data.yaml aquarium/data.yaml \\
        --folder runs/next_labels --seeds 0 1 2 -- --model.start.weights yolov5n.pt

For each dataset and seed: 25 random images, then twice 25 more, chosen by the last detector or at
random. Each training has the same steps. A row per training is printed and written to
next_labels.csv; a repeated command goes on where it stopped.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import yaml

from benchmarks.recipes import Training
from boltbox.detector.commands.review.next_labels import CONF, choose, look_at, uncertainty
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.system.csv_table import write_table

IMAGES = 25  # per round
STEPS = 160  # batches of 8
OPTIONS = "--data.batch_size 8 --data.image_size 320 --data.workers 0 --report.enabled false"
OPTIONS += " --pictures.enabled false --doctor.enabled false --trainer.logger false"


def write_data(file: DatasetFile, images: list[str], folder: Path) -> str:
    """A data.yaml with these training images, and the other splits as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [Path(image).stem if file.format == "voc" else image for image in images]
    (folder / "train.txt").write_text("\n".join(names))
    content = {"path": str(file.root), "format": file.format, "names": file.names}
    for split, paths in file.splits.items():
        content[split] = [str(path) for path in paths]
    content["train"] = str((folder / "train.txt").resolve())
    (folder / "data.yaml").write_text(yaml.safe_dump(content))
    return str(folder / "data.yaml")


def train(
    name: str, file: DatasetFile, images: list[str], seed: int, folder: Path, more: list[str]
):
    """AP of the best epoch, by `Training`."""
    data = write_data(file, images, folder)
    epochs = round(STEPS * 8 / len(images))
    options = ["--data.dataset", data, *OPTIONS.split(), "--trainer.max_epochs", str(epochs)]
    options += ["--trainer.check_val_every_n_epoch", str(epochs // 4), *more]
    training = Training(data, name, str(len(images)), options, seed, folder / "run")
    if not training.is_done():
        training.run(1)
    return json.loads(training.figures_file.read_text())["score"]


def more_images(strategy: str, file: DatasetFile, images: list[str], folder: Path, seed: int):
    """The images with IMAGES more."""
    part = file.open("train")
    left = sorted(set(part.files) - set(images))
    if strategy == "random":
        order = np.random.default_rng([seed, len(images)]).permutation(len(left))
        return images + [left[i] for i in order[:IMAGES]]
    best = folder / "run/checkpoints/best.ckpt"
    predictor = Predictor.load(best, device="cpu", conf=CONF, multi_label=True, iou=0.6)
    features, _ = look_at(predictor, images)
    others, rows = look_at(predictor, left)
    counts = np.zeros(len(file.names))
    for path, labels in zip(part.files, part.labels, strict=True):
        if path in images:
            np.add.at(counts, labels.classes, 1)
    chosen = choose(features, others, uncertainty(rows, counts), IMAGES)
    return images + [left[i] for i in chosen]


def main(words: list[str]) -> None:
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args(words[:end])
    rows = []
    for seed in given.seeds:
        for source in given.data:
            file = DatasetFile.read(source)
            name = file.root.name
            files = sorted(file.open("train").files)
            first = np.random.default_rng(seed).permutation(len(files))[:IMAGES]
            start = [files[i] for i in first]
            for strategy in ("random", "chosen"):
                images = start
                folder = given.folder / f"{name}-{seed}-start"
                for more in range(3):
                    if more:
                        images = more_images(strategy, file, images, folder, seed)
                        folder = given.folder / f"{name}-{seed}-{strategy}-{len(images)}"
                    score = train(name, file, images, seed, folder, words[end + 1 :])
                    row = {"data": name, "seed": seed, "strategy": strategy}
                    rows.append(row | {"images": len(images), "AP": round(100 * score, 2)})
                    print(rows[-1], flush=True)
                    write_table(given.folder / "next_labels.csv", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
