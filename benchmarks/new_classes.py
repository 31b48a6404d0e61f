"""Old and new classes by an ensemble: AP on the val splits of two data sets, of a network that knows
the old classes, of one that was trained on the new ones, and of both together.

    python -m benchmarks.new_classes --old yolov5n.pt --new runs/fit-1/checkpoints/best.ckpt \\
        --data coco128/data.yaml playing_cards/data.yaml --size 256
"""

import argparse

import numpy as np

from benchmarks.tables import markdown
from boltbox.detector.data.class_names import same_names
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.evaluation.class_metrics import class_metrics, match
from boltbox.detector.inference.predictor import Predictor


def average_precision(predictor: Predictor, data: str) -> float | None:
    """mAP50-95 on val of the classes that both know by name; None: there is none."""
    dataset = DatasetFile.read(data).open("val")
    pairs = same_names(predictor.names, dataset.names)
    if not pairs:
        return None
    here = np.full(len(predictor.names), -1)
    here[[*pairs.values()]] = [*pairs]
    matches, scores, classes, true_classes = [], [], [], []
    for file, labels in zip(dataset.files, dataset.labels, strict=True):
        truth, found = labels.keep(~labels.crowd), predictor.predict(file)
        own = here[found.class_id]
        kept = own >= 0
        matches.append(match(found.xyxy[kept], own[kept], truth.boxes, truth.classes))
        scores.append(found.confidence[kept])
        classes.append(own[kept])
        true_classes.append(truth.classes)
    columns = map(np.concatenate, (matches, scores, classes, true_classes))
    return float(class_metrics(*columns).ap.mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", required=True)
    parser.add_argument("--new", required=True)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--size", type=int, default=640, help="pixels of the longer side")
    given = parser.parse_args()
    options = {"conf": 0.001, "iou": 0.6, "max_det": 300, "multi_label": True}
    rows: list[list[str]] = [["", *given.data]]
    files = {"old": (given.old, ()), "new": (given.new, ()), "both": (given.new, (given.old,))}
    for name, (file, ensemble) in files.items():
        predictor = Predictor.load(file, ensemble, image_size=given.size, **options)
        scores = [average_precision(predictor, data) for data in given.data]
        rows.append([name, *("none" if x is None else f"{100 * x:.2f}" for x in scores)])
    print(*markdown(rows), sep="\n")


if __name__ == "__main__":
    main()
