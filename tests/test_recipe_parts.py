"""What a better recipe than YOLOv5's is made of: each part alone, and all together killed, on two processes, exported."""

import csv
import json
import signal
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from agreement import diaries_that_agree
from made_heads import head_of
from ranks import together
from shared import shared
from small_fit import small_fit

import cli
from benchmarks.resume_fuzz import command, start, trial, unlike
from callbacks import EMA
from detector.checkpoint.starting_weights import load_weights
from detector.data.dataset_file import DatasetFile
from detector.data.loading.sampler import Key
from detector.data.loading.train_samples import TrainSamples
from detector.data.splits import open_split
from detector.data.transforms.augment import Augment
from detector.model.assigner import YOLOv5Assigner
from detector.model.loss import DetectionLoss
from detector.model.network import YOLOv5
from detector.training.module import Detector
from detector.training.schedule import ema_exponent, lr_factor, power_decay

EVERYTHING = {
    "model.nominal_batch_size": "auto", "model.optimizer": "AdamW", "model.lr0": 0.001, "model.lr_schedule": "flat_cosine",
    "model.decoupled_head": "true", "model.assigner": "detector.model.dynamic_assigner.DynamicAssigner",
    "model.quality_targets": "true", "model.class_weights": "frequency", "model.start_size": 0.5,
    "data.augment.close_mosaic": 1, "ema.width": 0.1,
}  # fmt: skip
ALL_ON = [str(word) for name, value in EVERYTHING.items() for word in (f"--{name}", value)]


class Sides(L.Callback):
    """The height of the network's input in each batch, in sides.json of the run folder."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        pl_module.network.backbone.stem.register_forward_pre_hook(self._note)

    def _note(self, module: Any, given: tuple[torch.Tensor]) -> None:
        if module.training:
            self.seen.append(given[0].shape[2])

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        (Path(trainer.default_root_dir) / "sides.json").write_text(json.dumps(self.seen))


def test_the_average_has_its_width() -> None:
    """Unrolled, the weights that steps 1 to n have in the average: their standard deviation is that share of n."""
    for width in (0.05, 0.1, 0.25):
        n, weights = 2000, np.zeros(2000)
        for u in range(1, n + 1):
            kept = power_decay(u, ema_exponent(width))
            weights *= kept
            weights[u - 1] = 1 - kept
        steps = np.arange(1, n + 1)
        mean = (weights * steps).sum()
        assert weights.sum() == pytest.approx(1)
        assert np.sqrt((weights * (steps - mean) ** 2).sum()) / n == pytest.approx(width, rel=0.02)


def test_a_callback_with_a_width_averages_so() -> None:
    callback = EMA(width=0.1)
    kept = []
    for _ in range(3):
        callback.updates += 1
        kept.append(callback._kept())
    assert kept == pytest.approx([0, 0.5 ** (ema_exponent(0.1) + 1), (2 / 3) ** (ema_exponent(0.1) + 1)])


def test_flat_then_cosine() -> None:
    factors = [lr_factor(epoch, 20, 0.05, "flat_cosine") for epoch in range(21)]
    assert factors[:11] == [1.0] * 11
    assert factors[15] == pytest.approx((1 + 0.05) / 2)
    assert factors[20] == pytest.approx(0.05)
    assert factors == sorted(factors, reverse=True)


def test_steps_that_fit_the_run(small_data: Path, here: Path) -> None:
    """24 images in batches of 8: a step takes 16 images after the warm-up, as the run is short; at a nominal 64 it takes 24,
    all that an epoch has."""
    steps = {}
    for nominal in ("auto", "64"):
        options = ["--model.nominal_batch_size", nominal, "--warmup.warmup_epochs", "0", "--trainer.max_epochs", "2"]
        cli.main(small_fit(small_data, here / nominal, *options))
        saved = torch.load(here / nominal / "checkpoints/last.ckpt", weights_only=True)
        steps[nominal] = saved["global_step"]
    assert steps == {"auto": 4, "64": 2}


def test_images_grow(small_data: Path, here: Path) -> None:
    cli.main(
        small_fit(small_data, here / "run", "--data.image_size", "96", "--model.start_size", "0.34",
                  "--trainer.max_epochs", "5", "--trainer.callbacks", "test_recipe_parts.Sides",
                  "--trainer.limit_train_batches", "1")
    )  # fmt: skip
    assert json.loads((here / "run/sides.json").read_text()) == [32, 64, 64, 96, 96]
    with open(here / "run/metrics.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 5


def test_the_last_epochs_have_no_mosaic(small_data: Path) -> None:
    """Their samples are those of an augmentation without mosaic and MixUp, those before are as ever."""
    augment = Augment(mixup=0.5)
    dataset = open_split(DatasetFile.read(str(small_data)), "train", False)
    made = TrainSamples(dataset, augment.steps(64), 3, augment.without_mixing().steps(64), last_from=2)
    mixed, plain = (TrainSamples(dataset, a.steps(64), 3) for a in (augment, augment.without_mixing()))
    for epoch in range(4):
        for index in range(4):
            key = Key(epoch, index, 0)
            wanted = (mixed if epoch < 2 else plain)[key]
            assert np.array_equal(made[key].image, wanted.image)
            assert np.array_equal(made[key].boxes, wanted.boxes)
            assert len(plain[key].boxes) <= len(dataset.labels[index].classes), "one image"


@pytest.fixture
def published() -> Path:
    return shared("weights/yolov5n.pt")


def test_a_decoupled_head_starts_as_the_plain_one(published: Path) -> None:
    torch.manual_seed(0)
    plain, decoupled = YOLOv5(80).eval(), YOLOv5(80, decoupled_head=True).eval()
    for network in (plain, decoupled):
        assert "not" not in load_weights(network, published)
    images = torch.rand(2, 3, 64, 96)
    for a, b in zip(plain(images), decoupled(images), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)  # its convolutions are cut in two
    count = [sum(p.numel() for p in network.parameters()) for network in (plain, decoupled)]
    assert 1.0 < count[1] / count[0] < 1.05


def test_box_and_class_rows_see_maps_of_their_own() -> None:
    torch.manual_seed(0)
    network, images = YOLOv5(3, width_multiple=0.125, decoupled_head=True).eval(), torch.rand(1, 3, 64, 64)
    before = network(images)
    torch.nn.init.normal_(network.head.get_submodule("for_classes.0.cv3.bn").weight)
    for level, (a, b) in enumerate(zip(before, network(images), strict=True)):
        assert torch.equal(a[..., :5], b[..., :5])
        assert torch.equal(a[..., 5:], b[..., 5:]) == (level > 0)
    torch.nn.init.normal_(network.head.get_submodule("for_boxes.0.cv3.bn").weight)
    assert not torch.equal(before[0][..., :5], network(images)[0][..., :5])
    for a, b in zip(network(images), network.fused()(images), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_head_for_other_classes_is_reused(published: Path) -> None:
    """Boxes and objectness predict as the file's; the classes are those of a fresh head."""
    torch.manual_seed(0)
    theirs, fresh = YOLOv5(80).eval(), YOLOv5(3).eval()
    ours = YOLOv5(3).eval()
    ours.load_state_dict(fresh.state_dict())
    load_weights(theirs, published)
    assert "boxes and objectness, its 3 classes start fresh" in load_weights(ours, published, reuse_head=True)
    assert "not the head (80 classes there, 3 here), which starts fresh" in load_weights(YOLOv5(3), published)
    images = torch.rand(1, 3, 64, 64)
    for a, b in zip(theirs(images), ours(images), strict=True):
        torch.testing.assert_close(a[..., :5], b[..., :5], rtol=1e-5, atol=1e-5)
    for a, b in zip(fresh.head.convs, ours.head.convs, strict=True):
        assert torch.equal(a.bias.view(3, 8)[:, 5:], b.bias.view(3, 8)[:, 5:])


def test_a_decoupled_head_for_other_classes_is_reused(small_data: Path, here: Path) -> None:
    """With the maps that boxes and objectness see."""
    cli.main(small_fit(small_data, here / "run", "--model.decoupled_head", "true", "--trainer.max_epochs", "1"))
    first = Detector.load(here / "run/checkpoints/best.ckpt", "cpu")
    options = {"width_multiple": 0.125, "depth_multiple": 0.1, "decoupled_head": True}
    second = Detector(["a", "b"], weights=str(here / "run/checkpoints/best.ckpt"), **options).eval()
    images = torch.rand(1, 3, 64, 64)
    for a, b in zip(first.network(images), second.network(images), strict=True):
        torch.testing.assert_close(a[..., :5], b[..., :5], rtol=1e-4, atol=1e-4)


def test_quality_targets_make_the_score_the_overlap() -> None:
    """Trained on one object alone, objectness times class goes to the overlap of a box that cannot move; without, to the same
    overlap by objectness alone, class to 1."""
    anchors = torch.full((1, 1, 2), 2.0)
    head, targets = head_of(anchors, [8]), torch.tensor([[0, 1, 0.5, 0.5, 0.5, 0.5]])
    for quality in (True, False):
        raw = torch.zeros(1, 1, 4, 4, 8, requires_grad=True)
        with torch.no_grad():
            raw[..., 2] = -0.4  # a narrower box
        loss = DetectionLoss(3, [8], YOLOv5Assigner(4.0), box=0.0, obj=1.0, cls=1.0, quality_targets=quality)
        optimizer = torch.optim.Adam([raw], 0.2)
        for _ in range(300):
            loss([raw], targets, head)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
        rows = loss.assigner.assign([raw], targets, head)[0].only_valid()
        cell = rows.image[0], rows.anchor[0], rows.row[0], rows.column[0]
        scores = raw[cell].detach()[4:].sigmoid()
        overlap = float(loss._overlap_map(raw, tuple(x[:1] for x in rows[:4]), torch.ones(1), torch.ones(1).bool()).sum())
        assert overlap == 1
        product, alone = float(scores[0] * scores[2]), float(scores[0])
        if quality:
            assert scores[2] == pytest.approx(alone, abs=0.02)
            narrow = product
        else:
            assert scores[2] > 0.99
            assert product == pytest.approx(narrow, abs=0.03)


def test_rare_classes_weigh_more() -> None:
    loss = DetectionLoss(3, [8])
    counts = torch.tensor([900, 100, 0])
    loss.set_class_weights(counts)
    weights = loss.class_weights
    assert float((weights * counts).sum()) == pytest.approx(1000)
    assert weights[1] / weights[0] == pytest.approx(3)
    assert weights[2] == 4, "at most"


@pytest.fixture(scope="module")
def reference(small_data: Path, tmp_path_factory: pytest.TempPathFactory, quick_starts: None) -> Path:
    """A run with everything on that was never interrupted: three epochs of 32, 64 and 64 px, the last without mosaic."""
    run = tmp_path_factory.mktemp("reference") / "run"
    assert start(command(small_data, run, workers=0, ranks=1, more=ALL_ON)) == 0
    return run


@pytest.mark.parametrize("kills", [["batch:3", "batch:14"], ["validation:1", "moving:6"]], ids=str)
def test_killed_runs_end_the_same(kills: list[str], small_data: Path, tmp_path: Path, reference: Path) -> None:
    """Before and after the change of size, and in the epoch without mosaic."""
    hits, unlike = trial(tmp_path / "run", small_data, kills, 2, 1, reference, ALL_ON)
    assert hits == len(kills)
    assert not unlike


def test_a_fork_is_the_run_that_had_been_so_from_the_start(small_data: Path, tmp_path: Path, reference: Path) -> None:
    """docs/recipe.md: from one checkpoint the last epoch with mosaic and, in another folder, without; that one is killed."""
    mosaic, fork = tmp_path / "mosaic", tmp_path / "fork"
    more = [*ALL_ON, "--data.augment.close_mosaic", "0", "--checkpoints.save_period", "1"]
    assert start(command(small_data, mosaic, workers=0, ranks=1, more=more)) == 0
    line = command(small_data, fork, workers=0, ranks=1, more=ALL_ON)
    assert start([*line, "--ckpt_path", str(mosaic / "checkpoints/epoch1.ckpt")], "batch:3") == -signal.SIGKILL
    assert start([*line, "--ckpt_path", "auto"]) == 0
    ends = [torch.load(run / "checkpoints/last.ckpt", weights_only=True) for run in (fork, reference, mosaic)]
    for key in ("state_dict", "optimizer_states", "processes", "global_step", "epoch"):
        assert not unlike(ends[0][key], ends[1][key], key)
    assert unlike(ends[0]["state_dict"], ends[2]["state_dict"], "state_dict")


def test_two_processes_train_as_one(small_data: Path, here: Path) -> None:
    """Rates, windows and images of each batch; and both processes have the same weights in the end."""
    more = [*ALL_ON, "--trainer.callbacks", "agreement.Diary", "--trainer.max_epochs", "3"]
    cli.main(small_fit(small_data, here / "one", *more))
    together(cli.main, small_fit(small_data, here / "two", *more, "--trainer.devices", "2"))
    two = diaries_that_agree(here)
    for kind in ("network", "ema"):
        for name, value in two[0][kind].items():
            if "running" not in name and "num_batches" not in name:
                torch.testing.assert_close(value, two[1][kind][name], msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(scope="module")
def decoupled(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a training with everything on, whose decoupled head says something of its own."""
    run = tmp_path_factory.mktemp("decoupled") / "run"
    cli.main(small_fit(small_data, run, *ALL_ON, "--trainer.max_epochs", "1"))
    best = run / "checkpoints/best.ckpt"
    content = torch.load(best, weights_only=True)
    refined = [name for name in content["state_dict"] if "head.for_" in name and "cv3.bn.weight" in name]
    assert len(refined) == 2 * 2 * 3
    for name in refined:
        torch.nn.init.normal_(content["state_dict"][name])
    torch.save(content, best)
    return best


@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_a_network_with_a_decoupled_head_is_exported(format: str, decoupled: Path, small_data: Path, here: Path) -> None:
    """The command compares the file with the network."""
    out = here / ("model.onnx" if format == "onnx" else "model_openvino")
    cli.main(["export", "--ckpt_path", str(decoupled), "--format", format, "--out", str(out)])
    picture = str(next((small_data.parent / "images/val").glob("*.jpg")))
    cli.main(["predict", "--ckpt_path", str(out), "--data.source", picture, "--run", str(here / "predicted")])
