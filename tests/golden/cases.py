"""The golden cases: numbers that YOLOv5 produced, found by glob in the committed slice and in
$BOLTBOX_SHARED/golden.

A file dropped into either folder joins the tests of its kind without a change of code.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from made_options import made_detector
from shared import SHARED

from boltbox.detector.model.network import ACTIVATIONS, SIZES, YOLOv5

SLICE = Path(__file__).parent / "data"


def beside(case, name):
    """The arrays of a case that another one names, such as the weights of `tta`."""
    for folder in (case.path.parent, SHARED / "golden", SLICE):
        if (folder / name).is_file():
            with np.load(folder / name) as file:
                return dict(file)
    raise FileNotFoundError(name)


# What is not covered, and why. test_coverage.py fails for any other case that no test takes.
NOT_COVERED = {
    "quad": "quad batches are left out: they trade batch size for image size, which accumulation does without a special loader",
    "state_dict": "the order of YOLOv5's state entries; names and shapes are checked in `forward` and `checkpoint`",
}
BASES_NOT_COVERED = {
    "ghost": "another block family, no published detection weights",
    "transformer": "another block family, no published detection weights",
    "yolov3": "another network",
    "fpn": "a head of another topology, no published weights",
}


@dataclass
class Case:
    path: Path
    kind: str
    meta: dict[str, Any]

    @cached_property
    def arrays(self):
        with np.load(self.path) as file:
            return dict(file)

    def __getitem__(self, key):
        return self.arrays[key]

    def tensor(self, key):
        return torch.from_numpy(self.arrays[key])

    def tensors(self, prefix):
        found = {}
        for name, array in self.arrays.items():
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = torch.from_numpy(array)
        return found

    def numbered(self, key):
        """key_0, key_1, ..."""
        found = []
        while f"{key}_{len(found)}" in self.arrays:
            found.append(self.arrays[f"{key}_{len(found)}"])
        return found

    def network(self):
        """The network that `meta` describes; its weights are still random."""
        return YOLOv5(self.meta["nc"], bn_momentum=0.03, **self.shape)

    @property
    def shape(self):
        return shape_of(self.meta)

    def names(self):
        return [f"class{i}" for i in range(self.meta["nc"])]


def shape_of(meta):
    """The options of the network that an entry describes: what it does not say follows from the
    name of its base model."""
    anchors = meta.get("anchors") or meta.get("na")  # a list of pixels, or a number a level
    return {
        "size": size_of(meta["base"]),
        "depth_multiple": meta.get("depth_multiple"),
        "width_multiple": meta.get("width_multiple"),
        "anchors": round(anchors) if isinstance(anchors, int | float) else anchors,
        "activation": _activation_of(meta),
    }


def size_of(base):
    """YOLOv5's name of a model -> our size, None for what is not covered."""
    size = base.removeprefix("yolov5").lstrip("-")
    size, _, activation = size.partition("-")  # s-LeakyReLU
    size = {"panet": "l"}.get(size, size)
    return (
        size if size in SIZES and (not activation or activation.lower() in _ACTIVATIONS) else None
    )


_ACTIVATIONS = {name.replace("_", ""): name for name in ACTIVATIONS}


def _activation_of(meta):
    """Our name of a case's activation, given as LeakyReLU or nn.LeakyReLU(0.1), or else by the name
    of the base model."""
    given = (
        meta.get("activation")
        or meta["base"].partition("yolov5")[2].lstrip("-").partition("-")[2]
        or "SiLU"
    )
    name, slope = re.fullmatch(
        r"(?:.*\.)?(\w+)(?:\((?:negative_slope=)?([\d.]*).*\))?", given
    ).groups()
    assert name.lower() in _ACTIVATIONS, f"{given}: no network of ours has this activation"
    assert "Leaky" not in name or slope in (None, "0.1"), f"{given}: ours has a slope of 0.1"
    return _ACTIVATIONS[name.lower()]


def read_case(path):
    meta = _read_meta(path)
    kind = meta.get("kind") or path.name.partition(".")[0]
    return Case(path, "state_dict" if kind.startswith("state_dict") else kind, meta)


def _read_meta(path):
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else {"entries": content}
    with np.load(path) as file:
        return json.loads(str(file["meta"]))


def _find():
    files = {}
    for folder in (SLICE, SHARED / "golden"):
        for path in folder.glob("*.[nj][ps][zo]*"):
            files[path.name] = path
    return [read_case(files[name]) for name in sorted(files)]


ALL = _find()
TAKEN = set()  # kinds that some test takes


def uncovered(case):
    """Why this case is not tested, or None."""
    for part, why in BASES_NOT_COVERED.items():
        if part in case.meta.get("base", ""):
            return why
    return NOT_COVERED.get(case.kind)


def each(kind):
    """Parametrise a test with the covered cases of a kind."""
    TAKEN.add(kind)
    cases = [c for c in ALL if c.kind == kind and not uncovered(c)]
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.path.stem)


def close(ours, theirs, atol, rtol=0.0):
    ours = np.asarray(ours, float)  # differences of uint8 would wrap around
    np.testing.assert_allclose(ours, np.asarray(theirs, float), rtol=rtol, atol=atol)


def write_images(root, split, images, labels):
    """Images (BGR) and their labels (n, 5) as a user has them on disk."""
    for kind in ("images", "labels"):
        (root / kind / split).mkdir(parents=True)
    for i, (image, rows) in enumerate(zip(images, labels, strict=True)):
        cv2.imwrite(str(root / f"images/{split}/{i:04d}.png"), image)
        np.savetxt(root / f"labels/{split}/{i:04d}.txt", rows, "%d" + " %.9g" * 4)


def detector(case, **options):
    made = made_detector(case.names(), **case.shape, **options)
    if case.meta.get("sort_obj_iou"):
        made.loss.shared_cell = "best"
    return made
