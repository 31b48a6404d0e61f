"""The example of an assigner: it trains, and equals a slow loop over objects and candidates,
written from its docstring."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from made_heads import head_of, only_valid
from small_fit import train
from torch.nn.functional import binary_cross_entropy
from torchvision.ops import box_convert, box_iou

from boltbox.detector.model.loss import DetectionLoss
from boltbox.detector.training.module import Detector
from examples.dynamic_assigner import ROUNDS, DynamicAssigner

STRIDES = [8, 16]
ANCHORS = torch.tensor([[[1.5, 2.0], [3.0, 1.5]], [[2.0, 2.0], [4.0, 5.0]]])  # in strides
HEAD = head_of(ANCHORS, STRIDES)


def drawn(seed, objects, classes):
    """Raw predictions for two images of 48 x 64 pixels, and targets."""
    rng = torch.Generator().manual_seed(seed)
    raw = [torch.randn(2, 2, 48 // s, 64 // s, 5 + classes, generator=rng) * 2 for s in STRIDES]
    targets = torch.rand(objects, 6, generator=rng)
    targets[:, :2] = (targets[:, :2] * torch.tensor([2, classes])).long()
    targets[:, 2:4] = targets[:, 2:4].clamp(0.01, 0.99)
    targets[:, 4:] = 0.02 + targets[:, 4:] ** 2 * 0.8
    return raw, targets


def candidates(raw, target, anchor_t):
    """The cost of each candidate of an object, and how many it gets."""
    image, cls = target[:2].long().tolist()
    costs = {}
    overlaps = []
    nearest = []
    for level, maps in enumerate(raw):
        p = maps[image].double()  # (A, H, W, 5 + C)
        grid = torch.tensor(p.shape[2:0:-1])
        cells = torch.stack(torch.meshgrid(*map(torch.arange, grid), indexing="xy"), -1)
        centre = target[2:4] * grid
        size = target[4:] * grid
        anchors = ANCHORS[level][:, None, None]
        predicted = torch.cat(
            (p[..., :2].sigmoid() * 2 - 0.5 + cells, (p[..., 2:4].sigmoid() * 2) ** 2 * anchors), -1
        )
        boxes = box_convert(predicted.view(-1, 4), "cxcywh", "xyxy")
        box = box_convert(torch.cat((centre, size))[None].double(), "cxcywh", "xyxy")
        overlap = box_iou(boxes, box).view(p.shape[:3])
        scores = p[..., 4:5].sigmoid()
        if p.shape[-1] > 6:
            scores = scores * p[..., 5:].sigmoid()
        quality = torch.zeros_like(scores)
        quality[..., cls] = overlap
        by_class = binary_cross_entropy(scores, quality, reduction="none")
        cost = (by_class * (quality - scores) ** 2).sum(-1) - 3 * overlap.clamp(min=1e-7).log()
        cost += 10 ** ((centre - 0.5 - cells).norm(dim=-1) - 3)
        factor = torch.maximum(size / anchors, anchors / size).amax(-1)
        steps = (cells - centre.long()).abs().sum(-1)
        for anchor, row, column in (steps <= 1).expand(p.shape[:3]).nonzero().tolist():
            place = (anchor, row, column)
            triple = (level, image) + place
            if factor[anchor] < anchor_t:
                costs[triple] = float(cost[place])
                overlaps.append(float(overlap[place]))
            if steps[row, column] == 0:
                shape = float(factor[anchor])
                nearest.append((shape, triple, float(cost[place]), float(overlap[place])))
    if not costs:
        _, triple, costs[triple], overlap_of_it = min(nearest)
        overlaps.append(overlap_of_it)
    return costs, max(1, int(sum(sorted(overlaps)[-13:])))


def slowly(raw, targets, anchor_t):
    """What each object gets."""
    costs = []
    wanted = []
    for target in targets:
        cost, count = candidates(raw, target, anchor_t)
        costs.append(cost)
        wanted.append(sorted(cost, key=cost.__getitem__)[:count])
    got = award(wanted, costs)
    for _ in range(ROUNDS):
        awarded = set().union(*got)
        free = []
        for own, cost in zip(got, costs, strict=True):
            left = sorted(cost.keys() - awarded, key=cost.__getitem__)
            free.append([] if own else left[:1])
        got = [a | b for a, b in zip(got, award(free, costs), strict=True)]
    return got


def award(wanted, costs):
    """Each prediction to the object for which it is cheapest."""
    got = [set() for _ in wanted]
    for triple in set().union(*wanted):
        rivals = [k for k, own in enumerate(wanted) if triple in own]
        got[min(rivals, key=lambda k: costs[k][triple])].add(triple)
    return got


@given(
    st.integers(0, 10_000), st.integers(0, 12), st.sampled_from([1, 3]), st.sampled_from([1.2, 4.0])
)
def test_equals_a_slow_loop(seed, objects, classes, anchor_t):
    raw, targets = drawn(seed, objects, classes)
    found = [set() for _ in range(objects)]
    count = 0
    for level, rows in enumerate(DynamicAssigner(anchor_t).assign(raw, targets, HEAD)):
        own = only_valid(rows)
        assert rows.valid is not None
        numbers = rows.valid.nonzero()[:, 0] // max(len(rows.cls) // max(objects, 1), 1)
        cells = torch.stack((own.image, own.anchor, own.row, own.column), 1)
        for k, cell in zip(numbers.tolist(), cells.tolist(), strict=True):
            found[k].add((level, *cell))
        count += len(numbers)
        grid = torch.tensor([raw[level].shape[3], raw[level].shape[2]])
        centres = (own.box[:, :2] + cells[:, [3, 2]]) / grid
        expected = torch.cat((own.image[:, None], own.cls[:, None], centres), 1)
        torch.testing.assert_close(expected, targets[numbers, :4])
        torch.testing.assert_close(own.box[:, 2:] / grid, targets[numbers, 4:])
    assert found == slowly(raw, targets, anchor_t)
    assert len(set().union(*found)) == count, "no prediction twice"


def test_it_is_chosen_by_its_class_path(small_data, here):
    """A training with it takes place, and its checkpoint names it."""
    assigner = "examples.dynamic_assigner.DynamicAssigner"
    options = f"--model.loss.assigner {assigner} --model.loss.assigner.init_args.anchor_t 3"
    options += " --trainer.max_epochs 1 --trainer.limit_train_batches 1"
    options += " --trainer.limit_val_batches 0"
    train(small_data, here / "run", options)
    loss = Detector.load(here / "run/checkpoints/last.ckpt", "cpu").loss
    assert isinstance(loss, DetectionLoss)
    assert isinstance(loss.assigner, DynamicAssigner)
    assert loss.assigner.anchor_t == 3
