"""What the class rows of weights are worth where a data set has classes of the same name.

    python -m benchmarks.class_rows coco128_val128 runs/class_rows
    python -m benchmarks.recipes --data runs/class_rows/*/data.yaml --seeds 0 --recipe "default=" \
        --folder runs/rows -- --trainer.max_epochs 30 --data.image_size 320 \
        --model.start.weights yolov5n.pt

Data sets of the same images and the same boxes of eight of COCO's classes: in `named` they have
COCO's names, in `renamed` others, so that their rows start fresh; in `negative` the colours are
inverted, in `turned` images and boxes are turned by 90 degrees.
"""

import sys
from pathlib import Path

import yaml
from PIL import Image, ImageOps

CLASSES = "person", "car", "cup", "chair", "book", "spoon", "bowl", "umbrella"


def write(source: Path, folder: Path, names: list[str]) -> None:
    """A data set of CLASSES under other names; the images are links."""
    known = yaml.safe_load((source / "data.yaml").read_text())["names"]
    place = {str(k): CLASSES.index(name) for k, name in known.items() if name in CLASSES}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "images").symlink_to((source / "images").resolve())
    for split in ("train", "val"):
        labels = folder / "labels" / split
        labels.mkdir(parents=True)
        for image in (source / "images" / split).iterdir():
            file = source / "labels" / split / f"{image.stem}.txt"
            rows = [row.split() for row in file.read_text().splitlines()] if file.exists() else []
            kept = [f"{place[k]} {' '.join(box)}\n" for k, *box in rows if k in place]
            (labels / file.name).write_text("".join(kept))
    content = {"path": ".", "train": "images/train", "val": "images/val", "names": names}
    (folder / "data.yaml").write_text(yaml.safe_dump(content))


def change(named: Path, folder: Path, turned: bool) -> None:
    """The data set with its images turned, or negative."""
    for file in [*named.glob("images/*/*"), *named.glob("labels/*/*"), named / "data.yaml"]:
        copy = folder / file.relative_to(named)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if "images" in file.parts[-3:]:
            image = Image.open(file).convert("RGB")
            changed = (
                image.transpose(Image.Transpose.ROTATE_90) if turned else ImageOps.invert(image)
            )
            changed.save(copy, quality=95)
            continue
        text = file.read_text()
        if turned and file.suffix == ".txt":
            rows = [(k, *map(float, box)) for k, *box in map(str.split, text.splitlines())]
            text = "".join(f"{k} {y} {1 - x} {h} {w}\n" for k, x, y, w, h in rows)
        copy.write_text(text)


if __name__ == "__main__":
    source, folder = map(Path, sys.argv[1:])
    write(source, folder / "named", list(CLASSES))
    change(folder / "named", folder / "turned", turned=True)
    change(folder / "named", folder / "negative", turned=False)
    write(source, folder / "renamed", [f"kind of {name}" for name in CLASSES])
