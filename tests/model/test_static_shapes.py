"""Between a batch and its step nothing waits for the device, and the loss compiles as one graph:
seen on a CPU."""

import traceback
from collections import Counter
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from made_heads import head_of
from made_maps import STRIDES, random_targets, raw_maps, the_anchors
from made_runs import column, small_fit
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

import cli
from boltbox.detector.model.loss import DetectionLoss

OPTIONS = {"fl_gamma": 1.5, "cls_pw": 1.3, "obj_pw": 0.8, "label_smoothing": 0.1}
WAITING_OPERATORS = (
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::nonzero",
    "aten::masked_select",
    "aten::is_nonzero",
)
WAITING_METHODS = (
    "item",
    "tolist",
    "cpu",
    "numpy",
    "nonzero",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "__array__",
)


def case(count, seed):
    """Raw maps that want gradients, and so many objects."""
    rng = torch.Generator().manual_seed(seed)
    return [maps.requires_grad_() for maps in raw_maps(rng)], random_targets(rng, count)


def test_the_loss_is_one_graph():
    """For any number of objects above one: the third batch finds it compiled. Values and gradients
    are those of eager. (backend: the graph is run as it is. Machine code for it takes a minute.)"""
    torch.compiler.reset()
    head = head_of(the_anchors()[:1], STRIDES[:1])
    compiled, eager = (DetectionLoss(4, STRIDES[:1], **OPTIONS) for _ in range(2))
    compiled.compile(fullgraph=True, dynamic=True, backend="eager")
    for k, count in enumerate((30, 7, 111)):
        with torch.compiler.set_stance("fail_on_recompile" if k == 2 else "default"):
            outcomes = []
            for loss in (compiled, eager):
                raw, targets = case(count, k)
                total, terms = loss(raw[:1], targets, head)
                total.backward()
                outcomes.append([total.detach(), *terms.values(), raw[0].grad])
        for ours, reference in zip(*outcomes, strict=True):
            torch.testing.assert_close(ours, reference)


class Waits(TorchFunctionMode):
    """Counts calls that would make the host wait for a GPU, by name and the file of ours that the
    call is from."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in WAITING_METHODS:
            ours = [
                f.filename
                for f in traceback.extract_stack()
                if str(Path(cli.__file__).parent) in f.filename
            ]
            self.calls[name, Path([f for f in ours if f != __file__][-1]).name] += 1
        return func(*args, **(kwargs or {}))


def test_a_batch_waits_at_most_once(small_data, here, monkeypatch):
    """Namely where a NaN must not get into the weights. Of each batch: fetching it, forward, loss,
    backward, step, callbacks. (AMP's scaler waits in its own way.)"""
    batches = []
    advance = _TrainingEpochLoop.advance

    def watched(self, data_fetcher):
        with Waits() as waits:
            advance(self, data_fetcher)
        batches.append(waits.calls)

    monkeypatch.setattr(_TrainingEpochLoop, "advance", watched)
    more = ["--trainer.max_epochs", "1", "--trainer.limit_val_batches", "0"]
    more += ["--model.optim.optimizer", "SGD"]  # AdamW reads its count of steps, on the CPU
    cli.main(small_fit(small_data, here / "run", *more))
    assert len(batches) > 2
    for calls in batches[1:]:
        assert calls == {("tolist", "guard.py"): 1}, batches


@pytest.mark.parametrize("options", [{}, OPTIONS])
def test_the_loss_waits_for_nothing(options):
    head = head_of(the_anchors(), STRIDES)
    loss = DetectionLoss(4, STRIDES, **options)
    raw, targets = case(30, 0)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        loss(raw, targets, head)[0].backward()
    called = Counter(column(seen.events(), "name"))
    assert called["aten::sigmoid"] >= 3, "the loss is in the profile"
    for name in WAITING_OPERATORS:
        assert not called[name], name
