"""Training on tiles: windows show the file's pixels and the objects in them."""

import numpy as np
import pytest
from made_runs import read, rows
from small_fit import train

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.sample import IGNORED
from boltbox.detector.data.windows import VISIBLE, Windows


@pytest.mark.parametrize("gain", [1, 2])
def test_a_window_is_the_part_of_the_file_that_its_boxes_say(gain, small_data):
    dataset = DatasetFile.read(str(small_data)).open("train")
    windows = Windows(dataset, 96 * gain, 96)
    areas = dataset.labels.sizes.prod(1) / 96**2
    assert np.bincount(windows.image_of).tolist() == areas.round().tolist()
    kinds = set()
    corners = set()
    for number, i in enumerate(windows.image_of.tolist()):
        sample = windows.sample(number, np.random.default_rng(number))
        pixels = sample.image.render()
        if sample.letterbox:
            kinds.add("whole")
            continue
        file = dataset[i]
        y, x = (-sample.image.patches[0].y0, -sample.image.patches[0].x0)
        corners.add((x == 0, y == 0))
        if gain == 1:
            np.testing.assert_array_equal(pixels, file.image[y : y + 96, x : x + 96])
        expected = []
        for box, c in zip(file.boxes.astype(float) * gain, file.classes.tolist(), strict=True):
            low = np.maximum(box[:2] - (x, y), 0)
            high = np.minimum(box[2:] - (x, y), 96 * gain)
            if (high > low).all():
                share = (high - low).prod() / (box[2:] - box[:2]).prod()
                kinds.add(share >= VISIBLE)
                expected.append([*low, *high, c if share >= VISIBLE else IGNORED])
        found = np.column_stack((sample.boxes, sample.classes))
        np.testing.assert_allclose(found, np.reshape(expected, (-1, 5)), atol=1e-3)
    assert kinds == {"whole", True, False}
    assert len(corners) == 4


def test_auto(small_data, tmp_path):
    """Objects that the network sees at a few pixels; a resume keeps what was chosen."""
    options = "--data.tile_size auto --data.image_size 64 --trainer.limit_train_batches 1"
    train(small_data, tmp_path / "run", f"{options} --trainer.max_epochs 1")
    chosen = read(tmp_path / "run/config.yaml")["data"]["tile_size"]
    assert chosen == 128
    assert "val/whole/mAP50-95" in rows(tmp_path / "run")[0]
    train(small_data, tmp_path / "run", f"{options} --trainer.max_epochs 2 --ckpt_path last")
    assert read(tmp_path / "run/config.yaml")["data"]["tile_size"] == chosen
    train(small_data, tmp_path / "large", options.replace("64", "256") + " --trainer.max_epochs 1")
    assert read(tmp_path / "large/config.yaml")["data"]["tile_size"] is None
