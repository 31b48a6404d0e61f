"""The example of an assigner: it trains, and equals a slow loop over objects and candidates,
written from its docstring."""

import math
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_heads import head_of, only_valid
from small_fit import small_fit
from torch import Tensor

import cli
from boltbox.detector.model.head import AnchorHead
from boltbox.detector.model.loss import DetectionLoss
from boltbox.detector.training.module import Detector
from examples.dynamic_assigner import ROUNDS, DynamicAssigner

STRIDES = [8, 16]
ANCHORS = torch.tensor([[[1.5, 2.0], [3.0, 1.5]], [[2.0, 2.0], [4.0, 5.0]]])  # in strides
Triple = tuple[int, int, int, int, int]  # level, image, anchor, row, column


def drawn(seed: int, objects: int, classes: int, images: int = 2) -> tuple[list[Tensor], Tensor]:
    rng = torch.Generator().manual_seed(seed)
    raw = [
        torch.randn(images, 2, 48 // s, 64 // s, 5 + classes, generator=rng) * 2 for s in STRIDES
    ]
    targets = torch.rand(objects, 6, generator=rng)
    targets[:, 0] = (targets[:, 0] * images).long()
    targets[:, 1] = (targets[:, 1] * classes).long()
    targets[:, 2:4] = targets[:, 2:4].clamp(0.01, 0.99)
    targets[:, 4:] = 0.02 + targets[:, 4:] ** 2 * 0.8
    return raw, targets


def overlap_of(a: Tensor, b: Tensor) -> float:
    """Of two boxes cx, cy, w, h."""
    sides = [
        min(a[k] + a[k + 2] / 2, b[k] + b[k + 2] / 2)
        - max(a[k] - a[k + 2] / 2, b[k] - b[k + 2] / 2)
        for k in (0, 1)
    ]
    shared = max(float(sides[0]), 0) * max(float(sides[1]), 0)
    return shared / float(a[2] * a[3] + b[2] * b[3] - shared + 1e-7)


def slowly(
    raw: list[Tensor], targets: Tensor, head: AnchorHead, anchor_t: float = 4.0
) -> list[set[Triple]]:
    """What each object gets."""
    classes = raw[0].shape[-1] - 5
    costs: list[dict[Triple, float]] = []
    counts = []
    for image, cls, cx, cy, w, h in targets.tolist():
        shapes = {}
        candidates = []
        for level, maps in enumerate(raw):
            rows, columns = maps.shape[2:4]
            for anchor, (aw, ah) in enumerate(ANCHORS[level].tolist()):
                factor = max(w * columns / aw, aw / (w * columns), h * rows / ah, ah / (h * rows))
                shapes[level, anchor] = factor
                own = int(cx * columns), int(cy * rows)
                for dx, dy in ((0, 0), (-1, 0), (0, -1), (1, 0), (0, 1)):
                    if factor < anchor_t and 0 <= own[0] + dx < columns and 0 <= own[1] + dy < rows:
                        candidates.append((level, int(image), anchor, own[1] + dy, own[0] + dx))
        if not candidates:
            level, anchor = min(shapes, key=lambda k: shapes[k])
            rows, columns = raw[level].shape[2:4]
            candidates = [(level, int(image), anchor, int(cy * rows), int(cx * columns))]
        cost = {}
        overlaps = []
        for level, i, anchor, row, column in candidates:
            p = raw[level][i, anchor, row, column].double()
            grid = raw[level].shape[3], raw[level].shape[2]
            box = torch.tensor(
                [cx * grid[0] - column, cy * grid[1] - row, w * grid[0], h * grid[1]]
            )
            aw, ah = ANCHORS[level, anchor].tolist()
            found = torch.cat(
                (p[:2].sigmoid() * 2 - 0.5, (p[2:4].sigmoid() * 2) ** 2 * torch.tensor([aw, ah]))
            )
            iou = overlap_of(found, box)
            scores = p[4].sigmoid() * (p[5:].sigmoid() if classes > 1 else torch.ones(1))
            by_class = 0.0
            for c, score in enumerate(scores.tolist()):
                y = iou if c == int(cls) else 0.0
                by_class -= (y * math.log(score) + (1 - y) * math.log(1 - score)) * (y - score) ** 2
            distance = math.hypot(float(box[0]) - 0.5, float(box[1]) - 0.5)
            cost[level, i, anchor, row, column] = (
                by_class - 3 * math.log(max(iou, 1e-7)) + 10 ** (distance - 3)
            )
            overlaps.append(iou)
        costs.append(cost)
        counts.append(max(1, int(sum(sorted(overlaps)[-13:]))))
    wanted = [
        sorted(cost, key=lambda k: cost[k])[:count]
        for cost, count in zip(costs, counts, strict=True)
    ]
    got = award(wanted, costs)
    for _ in range(ROUNDS):
        taken = set().union(*got)
        free = [
            [] if own else sorted(cost.keys() - taken, key=lambda k: cost[k])[:1]
            for own, cost in zip(got, costs, strict=True)
        ]
        got = [a | b for a, b in zip(got, award(free, costs), strict=True)]
    return got


def award(wanted: list[list[Triple]], costs: list[dict[Triple, float]]) -> list[set[Triple]]:
    """Each prediction to the object for which it is cheapest."""
    got: list[set[Triple]] = [set() for _ in wanted]
    for triple in set().union(*wanted):
        got[
            min(
                (k for k, own in enumerate(wanted) if triple in own), key=lambda k: costs[k][triple]
            )
        ].add(triple)
    return got


@settings(max_examples=60)
@given(
    st.integers(0, 10_000), st.integers(0, 12), st.sampled_from([1, 3]), st.sampled_from([1.2, 4.0])
)
def test_equals_a_slow_loop(seed: int, objects: int, classes: int, anchor_t: float) -> None:
    raw, targets = drawn(seed, objects, classes)
    head = head_of(ANCHORS, STRIDES)
    wanted: set[tuple[int, Triple]] = {
        (k, t) for k, own in enumerate(slowly(raw, targets, head, anchor_t)) for t in own
    }
    found = set()
    for level, rows in enumerate(DynamicAssigner(anchor_t).assign(raw, targets, head)):
        per_object = len(rows.cls) // max(objects, 1)
        own = only_valid(rows)
        assert rows.valid is not None
        numbers = rows.valid.nonzero()[:, 0] // max(per_object, 1)
        for k, *cell in zip(numbers.tolist(), *(x.tolist() for x in own[:4]), strict=True):
            found.add((k, (level, *cell)))
        grid = torch.tensor([raw[level].shape[3], raw[level].shape[2]])
        cells = torch.stack((own.column, own.row), 1)
        torch.testing.assert_close((own.box[:, :2] + cells) / grid, targets[numbers, 2:4])
        torch.testing.assert_close(own.box[:, 2:] / grid, targets[numbers, 4:])
        assert own.cls.tolist() == targets[numbers, 1].long().tolist()
        assert own.image.tolist() == targets[numbers, 0].long().tolist()
    assert found == wanted
    assert len({triple for _, triple in found}) == len(found), "no prediction twice"


def test_it_is_chosen_by_its_class_path(small_data: Path, here: Path) -> None:
    """A training with it takes place, and its checkpoint names it."""
    options = {
        "model.loss.assigner": "examples.dynamic_assigner.DynamicAssigner",
        "model.loss.assigner.init_args.anchor_t": "3",
        "trainer.max_epochs": "1",
        "trainer.limit_train_batches": "1",
        "trainer.limit_val_batches": "0",
    }
    words = [word for option, value in options.items() for word in (f"--{option}", value)]
    cli.main(small_fit(small_data, here / "run", *words))
    loss = Detector.load(here / "run/checkpoints/last.ckpt", "cpu").loss
    assert isinstance(loss, DetectionLoss)
    assert isinstance(loss.assigner, DynamicAssigner)
    assert loss.assigner.anchor_t == 3
