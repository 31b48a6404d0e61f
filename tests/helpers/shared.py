"""Data sets and weights too large for the repository, in the folder that BOLTBOX_SHARED names."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("BOLTBOX_SHARED", Path(__file__).parents[3] / "shared"))


def shared(name):
    """A file or folder in it, like `data/bccd`; without it the test is skipped."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set BOLTBOX_SHARED to the folder that holds {name}")
    return path


@pytest.fixture(name="published")
def published_file():
    """YOLOv5's weights of size n."""
    return shared("weights/yolov5n.pt")
