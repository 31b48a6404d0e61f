"""Eight images of noise, opened with and without the image cache, whose folder is the test's
own."""

from pathlib import Path

import pytest
import torch
from made_datasets import PAIR, lay_out, picture, save

from boltbox.detector.data import datasets
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import Batch

SIZE = 64
# smaller, as large, larger
SHAPES = [(30, 64), (64, 64), (48, 40), (20, 60), (90, 33), (50, 100), (128, 128), (300, 165)]


@pytest.fixture(name="cache", autouse=True)
def store_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stores."""
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images"


@pytest.fixture(name="data")
def noise_data(tmp_path: Path) -> Path:
    """Eight images of noise, with two boxes each, one of them a polygon."""
    for k, (h, w) in enumerate(SHAPES):
        save(tmp_path / f"images/{k}.{'jpg' if k > 6 else 'png'}", picture(h, w, k))
        lay_out(
            tmp_path, {f"labels/{k}.txt": f"{k % 2} .3 .4 .3 .5\n{(k + 1) % 2} .6 .2 .9 .3 .9 .7\n"}
        )
    lay_out(tmp_path, {"data.yaml": "train: images\nval: images\n" + PAIR})
    return tmp_path / "data.yaml"


@pytest.fixture(name="decoded")
def decoded_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that this process has read."""
    read: list[str] = []
    whole = datasets.read_image
    monkeypatch.setattr(
        datasets, "read_image", lambda p, *shrink: read.append(str(p)) or whole(p, *shrink)
    )
    return read


def opened(data: Path, cache: str = "none", workers: int = 0, **options: object) -> DetectionData:
    module = DetectionData(str(data), SIZE, 3, workers, cache=cache, **options)  # type: ignore[arg-type]
    module.setup("fit")
    return module


def batches(module: DetectionData) -> list[Batch]:
    return [*module.train_dataloader(), *module.val_dataloader()]


def assert_equal(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.targets, b.targets)
        assert (a.indices, a.letterboxes) == (b.indices, b.letterboxes)
