"""From files on disk to tensors, label checks, batch shapes, sampling weights, published
checkpoints."""

import cv2
import numpy as np
import pytest
import torch
from golden.cases import ALL, close, each, write_images
from made_datasets import parsed, read_yolo
from made_labels import labels_of, table_of
from made_runs import column
from weight_files import read_yolov5

from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.images import image_sizes
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, EvaluationSamples
from boltbox.detector.data.sample import collate
from boltbox.detector.data.sampler import (
    Key,
    class_weights,
    image_weights,
)
from boltbox.detector.data.transforms.augment import Augment, TrainSamples
from boltbox.detector.data.transforms.letterbox import rectangular_batches
from boltbox.detector.weights.yolov5 import by_our_names, key_map


@each("valset")
def test_dataset(case, tmp_path):
    """Resize, letterbox, label transform, flips, for square and rectangular batches."""
    m = case.meta
    write_images(tmp_path, "train", case.numbered("in_image"), case.numbered("in_labels"))
    is_single = bool(m.get("single_cls"))
    dataset = read_yolo(tmp_path / "images/train", list("abcde"), tmp_path, is_single)
    if is_single:
        assert dataset.names == ["item"]

    sizes = dataset.labels.sizes
    shapes = np.full((len(dataset), 2), m["imgsz"])
    theirs = case["out_order"]
    if m["rect"]:
        batches, shapes = rectangular_batches(
            sizes, m["imgsz"], m["batch_size"], m["stride"], m["pad"]
        )
        close([shapes[b[0]] for b in batches], case["out_batch_shapes_hw"], 0)
        # images of equal ratio may change places; below, file is compared with file
        ratio = sizes[:, 0] / sizes[:, 1]
        close(ratio[np.concatenate(batches)], ratio[theirs], 0)
    else:
        assert theirs.tolist() == list(range(len(dataset)))
    images = ResizedImages(dataset, m["imgsz"], smooth=not m["augment"])
    if m["augment"]:
        hyp = Augment(**m["hyp"])
        steps = hyp.steps(m["imgsz"], shapes if m["rect"] else None, lazy=False)
        train = TrainSamples(images, steps, seed=0)
        samples = [train[Key(0, int(i), 0)] for i in theirs]
    else:
        val = EvaluationSamples(images, EvaluationInput(m["imgsz"], m["stride"]), shapes)
        samples = [val[int(i)] for i in theirs]
    for k, s in enumerate(samples):
        batch = collate([s])
        close(batch.images[0], case[f"out_tensor_{k}"], 1)
        close(batch.targets, case[f"out_targets_{k}"], 1e-5)
        if not m["augment"] and f"out_shapes_{k}" in case.arrays:
            h0, w0, gain_h, gain_w, pad_w, pad_h = case[f"out_shapes_{k}"]
            close(s.letterbox, (h0, w0, gain_w, gain_h, pad_w, pad_h), 1e-6)


@each("rectshapes")
def test_rectangular_shapes(case):
    m = case.meta
    shapes = case["in_shapes_wh"][:, ::-1]
    theirs = case["out_order"]
    batches, per_image = rectangular_batches(
        shapes, m["imgsz"], m["batch_size"], m["stride"], m["pad"]
    )
    ratio = shapes[:, 0] / shapes[:, 1]
    close(ratio[np.concatenate(batches)], ratio[theirs], 0)  # equal ratios may change places
    close([per_image[b[0]] for b in batches], case["out_batch_shapes_hw"], 0)


@each("weights")
def test_sampling_weights(case):
    m = case.meta
    labels = case["in_labels"]
    counts = np.bincount(labels[:, 0].astype(int), minlength=m["nc"])
    weights = class_weights(counts)
    close(weights, case["out_class_weights_normalised"], 1e-6)
    close(weights * m["nc"], case["out_class_weights_attached"], 1e-6)
    sampling = weights * (1 - case["in_maps"]) ** 2
    close(sampling, case["out_class_weights_for_sampling"], 1e-6)
    images = []
    for i in range(m["n_images"]):
        classes = labels[case["in_label_image"] == i][:, 0]
        images.append(labels_of(np.zeros((len(classes), 4)), classes, 9, 9))
    table = table_of(images)
    objects = np.diff(table.starts) > 0
    wanted = case["out_image_weights"]
    drawn = image_weights(table, sampling)[objects]
    close(drawn / drawn.sum(), wanted[objects] / wanted.sum(), 1e-6)


# Kinds of problems for which we have the same words; for another kind there must be some problem.
SAME_WORDS = {
    "wrong column count": "wrong column count",
    "negative value": "negative value",
    "coordinate above 1": "coordinate above 1",
    "duplicates removed": "duplicate",
    "image too small": "image too small",
}


@pytest.mark.parametrize(
    "case", [case for case in ALL if case.kind == "labels"], ids=lambda case: case.path.stem
)
def test_label_files(case, tmp_path):
    """YOLOv5 drops the whole image for one bad line; we drop the line, so an accepted file must
    agree exactly and a refused one must name the same fault. Duplicates make YOLOv5 sort the rows;
    we keep the file's order."""
    for given, wanted in zip(case.meta["cases"], case.meta["results"], strict=True):
        file = tmp_path / "image.png"
        cv2.imwrite(str(file), np.zeros((given["h"], given["w"], 3), np.uint8))
        (size,) = image_sizes([file])
        rows, polygons, faults = parsed(given["text"] or "")
        problems = [size] if isinstance(size, str) else column(faults, 1)
        kind = wanted["message_kind"]
        assert bool(problems) == bool(kind), given
        for problem in problems:
            assert SAME_WORDS.get(kind, "") in problem, given
        if wanted["accepted"]:
            theirs = np.array(wanted["labels"], np.float32).reshape(-1, 5)
            ours = rows[np.lexsort(rows.T[::-1])] if kind == "duplicates removed" else rows
            assert np.array_equal(ours, theirs), given
            assert size == tuple(wanted["shape_wh"][::-1])
            assert sum(map(bool, polygons)) == wanted["n_segments"]


@each("checkpoint")
def test_checkpoint(case):
    """Real files, read without the original's classes, key by key; then the forward pass."""
    network = case.network()
    names = key_map(network)
    for file, prefix in (
        (case.meta["full"], "out_ema::"),
        (case.meta["stripped"], "out_stripped::"),
    ):
        weights = read_yolov5(case.path.parent / file)
        theirs = case.tensors(prefix)
        assert weights.names == [case.meta["names"][k] for k in sorted(case.meta["names"])]
        assert set(weights.state) == set(theirs) == set(names)
        for k, v in theirs.items():
            assert torch.equal(weights.state[k], v.to(weights.state[k].dtype))
        network.load_state_dict(by_our_names(network, weights.state))
    fused = network.fused()
    with torch.no_grad():
        raw = fused(case.tensor("in_images_u8").float() / 255)
    close(fused.head.decode(raw), case["out_loaded_fused_decoded"], 2e-2)
