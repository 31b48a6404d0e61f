"""A data set with unlabelled images, and a network that finds the same boxes in every image."""

from pathlib import Path

import lightning as L
import torch
from made_datasets import picture, save, yolo_line
from made_options import made_detector

from boltbox.detector.checkpoint.writer import AtomicCheckpointIO

SIZE, LARGE, SMALL = 64, 20, 6  # pixels: of the images, and of two anchors
CENTRES = [(x, y) for y in (16, 48) for x in (16, 48)]  # of the cells
ANCHORS = [[LARGE, LARGE, SMALL, SMALL, 60, 60]]
SURE, UNSURE = 0.9, 0.4  # about the confidences of the large boxes and of the small ones
NAMES = ["spot", "dot"]


def box(centre: tuple[int, int], side: int) -> tuple[float, float, float, float]:
    x, y = centre
    return x - side / 2, y - side / 2, x + side / 2, y + side / 2


def line(c: int, centre: tuple[int, int], side: int) -> str:
    return yolo_line(c, *box(centre, side), SIZE, SIZE)


def make_data(root: Path, names: list[str] = NAMES) -> Path:
    """8 training and 4 validation images, each with a large spot in each cell and a small one in
    two; 12 images without labels in `more`. Returns the data.yaml."""
    objects = [line(0, c, LARGE) for c in CENTRES] + [line(0, c, SMALL) for c in CENTRES[:2]]
    for split, first, count in (("train", 0, 8), ("val", 100, 4)):
        for k in range(first, first + count):
            save(root / f"images/{split}/{k}.png", picture(SIZE, SIZE, k))
            label = root / f"labels/{split}/{k}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            label.write_text("\n".join(objects))
    for k in range(200, 212):
        save(root / f"more/{k}.png", picture(SIZE, SIZE, k))
    (root / "data.yaml").write_text(
        f"path: {root}\ntrain: images/train\nval: images/val\nnames: {names}\n"
    )
    return root / "data.yaml"


def make_teacher(path: Path, names: list[str] = NAMES) -> Path:
    """A checkpoint that finds, in each cell of every image, a large object of class 0 with
    confidence SURE and a small one with UNSURE."""
    options = {"width_multiple": 0.125, "depth_multiple": 0.1, "levels": [5], "anchors": ANCHORS}
    detector = made_detector(names, **options, image_size=SIZE)
    (conv,) = detector.network.head.convs
    with torch.no_grad():
        conv.weight.zero_()
        bias = conv.bias.view(3, 5 + len(names)).fill_(-20)
        bias[:, :4] = 0  # the box is the anchor, in the middle of the cell
        bias[:, 5] = 20
        bias[:2, 4] = torch.logit(torch.tensor([SURE, UNSURE]))
    trainer = L.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, plugins=[AtomicCheckpointIO()]
    )
    trainer.strategy.connect(detector)
    trainer.save_checkpoint(path)
    return path
