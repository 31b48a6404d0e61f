"""Conversions, letterbox, warps, mosaic, colour, blending."""

import numpy as np
import pytest
import torch
from golden.cases import close, each

from boltbox.detector.data.sample import LetterboxInfo, Sample
from boltbox.detector.data.transforms.colour import adjust_hsv
from boltbox.detector.data.transforms.letterbox import letterbox, round_up
from boltbox.detector.data.transforms.mixing import copy_paste, mixup, mosaic
from boltbox.detector.data.transforms.perspective import (
    RandomPerspective,
    is_candidate,
    perspective_matrix,
    warp_boxes,
    warp_sample,
)
from boltbox.detector.model.boxes import (
    clip_xyxy,
    cxcywh_to_xyxy,
    cxcywhn_to_xyxy,
    xyxy_to_cxcywh,
    xyxy_to_cxcywhn,
)


def sample(image, labels, polygons=None):
    """labels (n, 5): class, xyxy pixels."""
    boxes = labels[:, 1:].astype(np.float32)
    classes = labels[:, 0].astype(np.int64)
    return Sample(image, boxes, classes, polygons or [[] for _ in labels])


def rows(sample):
    """(n, 5): class, xyxy pixels."""
    return np.column_stack((sample.classes, sample.boxes))


def polygons_of(case, n):
    if "in_segment_id" not in case.arrays:
        return [[] for _ in range(n)]
    return [[case["in_segment_points"][case["in_segment_id"] == i]] for i in range(n)]


@each("coords")
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_conversions(case, kind):
    m = case.meta
    fractions = kind(case["in_xywhn"])
    corners = kind(case["in_xyxy"])
    pad = kind([m["padw"], m["padh"]] * 2)
    close(cxcywhn_to_xyxy(fractions, m["w"], m["h"]) + pad, case["out_xywhn2xyxy"], 1e-4)
    close(cxcywh_to_xyxy(xyxy_to_cxcywh(corners)), case["in_xyxy"], 1e-4)
    close(cxcywh_to_xyxy(corners), case["out_xywh2xyxy"], 1e-4)
    close(xyxy_to_cxcywh(corners), case["out_xyxy2xywh"], 1e-4)
    close(xyxy_to_cxcywhn(corners, m["w"], m["h"]), case["out_xyxy2xywhn_noclip"], 1e-4)
    clipped = clip_xyxy(corners, m["w"] - 1e-3, m["h"] - 1e-3)
    close(xyxy_to_cxcywhn(clipped, m["w"], m["h"]), case["out_xyxy2xywhn_clip_eps1e3"], 1e-4)


@each("letterbox")
def test_letterbox(case):
    for k, c in enumerate(case.meta["cases"]):
        shape = (c["new_shape"],) * 2 if isinstance(c["new_shape"], int) else tuple(c["new_shape"])
        if c["auto"] or c["scale_fill"]:
            continue  # modes that nothing of ours uses
        given = case.arrays.get(f"in_image_{k}", np.zeros((c["h"], c["w"], 3), np.uint8))
        image, gain, pad = letterbox(given, shape, c["scaleup"])
        close([*image.shape[:2], *gain, *pad], case["out_shape_ratio_pad"][k], 1e-12)
        if c.get("image"):
            close(image, case[f"out_result_{k}"], 1)


@each("scale_boxes")
def test_scale_boxes(case):
    for k, c in enumerate(case.meta["cases"]):
        (height, width), (net_height, net_width) = c["img0"], c["img1"]
        if c["ratio_pad"]:
            gain, (pad_x, pad_y) = c["ratio_pad"]
        else:
            gain = min(net_height / height, net_width / width)
            pad_x = (net_width - width * gain) / 2
            pad_y = (net_height - height * gain) / 2
        frame = LetterboxInfo(height, width, gain, gain, pad_x, pad_y)
        close(frame.to_file(case[f"in_boxes_{k}"]), case[f"out_scaled_{k}"], 1e-3)


@each("perspective")
def test_perspective(case):
    m = case.meta
    image = case["in_image"]
    targets = case["in_targets"]
    ranges = {k: m[k] for k in ("degrees", "translate", "scale", "shear", "perspective")}
    shape = image.shape[:2]
    out_shape = (shape[0] + 2 * m["border"][0], shape[1] + 2 * m["border"][1])
    matrix, scale = perspective_matrix(shape, out_shape, case["in_draws_unit"], **ranges)
    close(matrix, case["out_M"], 1e-9)
    close(scale, case["out_scale_used"], 1e-12)
    polygons = polygons_of(case, len(targets))
    boxes = warp_boxes(targets[:, 1:], polygons, matrix, out_shape)
    close(boxes, case["out_boxes_all"], 1e-3)
    keep = is_candidate(targets[:, 1:] * scale, boxes, 0.01 if any(polygons) else 0.1)
    assert np.array_equal(keep, case["out_keep"])
    warped = warp_sample(sample(image, targets, polygons), matrix, scale, out_shape)
    close(warped.image, case["out_image"], 1)
    close(rows(warped), case["out_targets"], 1e-3)


@each("candidates")
def test_candidates(case):
    assert np.array_equal(
        is_candidate(case["in_before"], case["in_after"], case.meta["area_thr"]), case["out_keep"]
    )


@each("mosaic")
def test_mosaic(case):
    m = case.meta
    images = case.numbered("in_image")
    size = m["img_size"]
    tiles = []
    for image, labels in zip(images, case.numbered("in_labels"), strict=True):
        h, w = image.shape[:2]
        boxes = cxcywhn_to_xyxy(labels[:, 1:], w, h)
        tiles.append(sample(image, np.column_stack((labels[:, 0], boxes))))
    mixed = mosaic(tiles, size, m["xc"], m["yc"])
    assert np.array_equal(mixed.image, case["out_canvas"])
    close(rows(mixed), case["out_canvas_labels"], 1e-4)
    warp = RandomPerspective(size, translate=0.0, scale=0.0)
    cropped = warp(mixed, np.random.default_rng(0))
    assert np.array_equal(cropped.image, case["out_result_image"])
    close(rows(cropped), case["out_result_labels"], 1e-4)


@each("hsv")
def test_hsv(case):
    """The original works in BGR; hue, saturation and value are the same."""
    for k, unit in enumerate(case["in_unit_draws"]):
        gains = 1 + (2 * unit - 1) * np.array(case.meta["gains"])
        close(gains, case[f"out_gains_{k}"], 1e-12)
        ours = adjust_hsv(np.ascontiguousarray(case["in_image"][..., ::-1]), gains)
        close(ours[..., ::-1], case[f"out_image_{k}"], 1)


@each("mixup")
def test_mixup(case):
    a, b = (sample(case[f"in_image{i}"], case[f"in_labels{i}"]) for i in (1, 2))
    blend = mixup(a, b, case.meta["ratio"])
    assert np.array_equal(blend.image, case["out_image"])
    assert np.array_equal(rows(blend), case["out_labels"])


@each("copypaste")
def test_copy_paste(case):
    labels = case["in_labels"]
    order = case.meta["order"][: round(case.meta["p"] * len(labels))]
    pasted = copy_paste(sample(case["in_image"], labels, polygons_of(case, len(labels))), order)
    assert np.array_equal(pasted.image, case["out_image"])
    close(rows(pasted), case["out_labels"], 1e-5)
    assert len(pasted.polygons) == int(case["out_n_segments"])


@each("imgsz")
def test_image_size_check(case):
    for c, result in zip(case.meta["cases"], case.meta["results"], strict=True):
        assert c["floor"] == 2 * c["stride"]
        assert round_up(c["imgsz"], c["stride"]) == result
