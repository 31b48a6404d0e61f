"""YOLOv5's loss against its definition in a loop; shared cells, precision, the sums over batches."""

import pytest
import torch
from made_heads import head_of, losses
from made_maps import STRIDES, random_targets, raw_maps, the_anchors

from boltbox.detector.model.assigner import YOLOv5Assigner
from boltbox.detector.model.loss import DetectionLoss, add_losses, mean_losses
from boltbox.detector.system.errors import InputError


@pytest.mark.parametrize("fl_gamma", [0.5, 1.5])
@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("objects", [0, 20])
def test_gradients_are_where_something_is_to_learn(classes, objects, fl_gamma):
    """Also under autocast, in the precision of the maps; with logits whose exponential a float16
    does not hold the loss is computed in float32. Sure predictions have a gradient of 0."""
    rng = torch.Generator().manual_seed(5)
    raw = [(r * 6).half() for r in raw_maps(rng, classes=classes)]
    raw[0][0, 0, 0, 0, 4] = -30
    for r in raw:
        r.requires_grad_()
    targets = random_targets(rng, objects, classes=classes)
    loss = DetectionLoss(classes, STRIDES, fl_gamma=fl_gamma)
    with torch.autocast("cpu", dtype=torch.float16):
        total, parts = losses(loss, raw, targets, the_anchors())
    total.backward()
    single, expected = losses(loss, [r.detach().float() for r in raw], targets, the_anchors())
    assert total.item() == single.item()
    assert torch.equal(parts, expected)
    for r in raw:
        assert r.grad.isfinite().all()
        assert r.grad[..., 4].any()
        assert bool(r.grad[..., :4].any()) == (objects > 0)
        assert bool(r.grad[..., 5:].any()) == (objects > 0 and classes > 1)


@pytest.mark.parametrize("image", [0, 1])
def test_ignored_cells_train_no_objectness(image):
    """Unless an object is there too; every other gradient stays."""
    raw = [maps.requires_grad_() for maps in raw_maps(torch.Generator())]
    rows = torch.tensor([[1, 0, 0.375, 0.75, 0.24, 0.48]])
    arguments = (raw, rows - torch.eye(1, 6) * (1 - image), head_of(the_anchors(), STRIDES))
    loss = DetectionLoss(4, STRIDES)
    plain = torch.autograd.grad(loss(*arguments)[0], raw)
    found = torch.autograd.grad(loss(*arguments, rows)[0], raw)
    for before, after in zip(plain, found, strict=True):
        height, width = before.shape[2:4]
        before[1, :, height // 2 :, width // 4 : width // 2, 4] *= image
        assert torch.equal(before, after)


def test_the_cells_beside_a_small_object_are_no_ignored_ones():
    raw = [maps.requires_grad_() for maps in raw_maps(torch.Generator())]
    height, width = raw[0].shape[2:4]
    small = torch.tensor([[0, 0, 1.4 / width, 1.4 / height, 0.3 / width, 0.3 / height]])
    everything = torch.tensor([[0, 0, 0.5, 0.5, 1, 1]])
    loss = DetectionLoss(4, STRIDES, YOLOv5Assigner(99))
    head = head_of(the_anchors(), STRIDES)
    found = torch.autograd.grad(loss(raw, small, head, everything)[0], raw)[0]
    boxes = found[0, ..., :4].any(-1)
    objectness = found[0, ..., 4] != 0
    assert boxes.sum() == 3 * 3
    assert objectness[boxes].all()
    assert objectness.sum() < objectness.numel() / 2


def test_scaled_gains():
    usual = DetectionLoss(80, STRIDES)
    other = DetectionLoss(20, [8, 16, 32, 64])
    usual.set_image_size(640)
    other.set_image_size(1280)
    assert usual.gains == pytest.approx((0.05, 1.0, 0.5))
    assert other.gains == pytest.approx((0.0375, 3.0, 0.09375))  # 3/4; 4 * 3/4; 1/4 * 3/4
    assert len(DetectionLoss(1, [8] * 7).balance) == 7


@pytest.mark.parametrize(("shared_cell", "target"), [("best", 0.75), ("last", 0.25)])
def test_the_objectness_target_of_a_shared_cell(shared_cell, target):
    loss = DetectionLoss(1, STRIDES[:1], shared_cell=shared_cell)
    cell = (torch.zeros(3, dtype=torch.long),) * 4
    valid = torch.tensor([True, True, False])
    overlap = torch.tensor([0.75, 0.25, 1])
    found = loss._overlap_map(torch.zeros(1, 1, 1, 1, 6), cell, overlap, valid)
    assert found.item() == target


def test_means_over_batches():
    sums = add_losses({}, {"box_loss": torch.tensor(1.0)})
    sums = add_losses(sums, {"box_loss": torch.tensor(4.0)})
    assert mean_losses(sums) == {"box_loss": torch.tensor(2.5)}
    for terms in (
        {},
        {"a b": torch.ones(())},
        {"batches": torch.ones(())},
        {"other": torch.ones(())},
    ):
        with pytest.raises(InputError, match="the loss has the terms"):
            add_losses(sums, terms)
