"""Training on tiles: windows show the file's pixels and the objects in them."""

import numpy as np
from made_runs import read, rows, train

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.sample import IGNORED
from boltbox.detector.data.windows import VISIBLE, Windows
from boltbox.detector.model.boxes import area_xyxy


def test_a_window_is_the_part_of_the_file_that_its_boxes_say(small_data):
    dataset = DatasetFile.read(str(small_data)).open("train")
    windows = Windows(dataset, 96, 96)
    kinds = set()
    for number, i in enumerate(windows.image_of.tolist()):
        sample = windows.sample(number, np.random.default_rng(number))
        if sample.letterbox:
            kinds.add("whole")
            continue
        (patch,) = sample.image.patches
        file = dataset[i]
        part = file.image[-patch.y0 :, -patch.x0 :][:96, :96]
        np.testing.assert_array_equal(sample.image.render(), part)
        boxes = file.boxes + (patch.x0, patch.y0) * 2
        visible = area_xyxy(boxes.clip(0, 96)) / area_xyxy(boxes)
        classes = np.where(visible < VISIBLE, IGNORED, file.classes)
        np.testing.assert_allclose(sample.boxes, boxes.clip(0, 96)[visible > 0], atol=1e-3)
        np.testing.assert_array_equal(sample.classes, classes[visible > 0])
        kinds.update(sample.classes.tolist())
    assert kinds == {"whole", IGNORED, 0, 1, 2, 3, 4}


def test_the_windows_of_an_image_share_its_weight(small_data):
    weights = []
    for tile_size in (0, 96):
        data = DetectionData(str(small_data), tile_size=tile_size, image_weights=True, workers=0)
        data.setup("fit")
        sampler = data.train_dataloader().batch_sampler
        weights.append(np.bincount(data.images["train"].image_of, sampler.weights()))
    np.testing.assert_allclose(*weights)


def test_auto(small_data, tmp_path, monkeypatch):
    """Objects that the network sees at a few pixels; a resume keeps what was chosen."""
    options = "--data.tile_size auto --trainer.limit_train_batches 1 --trainer.max_epochs"
    run = tmp_path / "run"
    monkeypatch.setattr("boltbox.detector.data.windows.SMALL", 24)
    train(small_data, run, f"{options} 1")
    monkeypatch.undo()
    train(small_data, run, f"{options} 2 --ckpt_path last")
    assert read(run / "config.yaml")["data"]["tile_size"] == 128
    assert "val/whole/mAP50-95" in rows(run)[1]
