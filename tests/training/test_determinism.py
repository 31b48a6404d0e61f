"""The same command gives the same weights, whatever loads the data."""

from pathlib import Path

import pytest
import torch

import cli

ROOT = Path(__file__).parents[2]

CONFIGS = ROOT / "configs"
SMALL = """--trainer.enable_progress_bar false --report.enabled false --pictures.enabled false --doctor.enabled false
--model.network.width_multiple 0.125 --model.network.depth_multiple 0.1 --model.network.levels [5] --autoanchor.enabled false
--trainer.limit_train_batches 2 --trainer.limit_val_batches 1"""
ONE_EPOCH = ["--trainer.max_epochs", "1"]


def train(data: Path, run: Path, *options: str) -> dict[str, torch.Tensor]:
    """By the recipe in two short epochs: weights, average, momentum."""
    configs = [
        word for name in ("yolo", "debug") for word in ("--config", f"{CONFIGS}/{name}.yaml")
    ]
    line = ["fit", *configs, "--run", str(run), "--data.dataset", str(data), *SMALL.split()]
    cli.main([*line, *options])
    content = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    states = content["optimizer_states"][0]["state"]
    momentum = {
        f"{name} {k}": tensor for k, state in states.items() for name, tensor in state.items()
    }
    return content["state_dict"] | momentum


def test_workers_do_not_matter_but_the_seed_does(small_data: Path, tmp_path: Path) -> None:
    more = ["--data.augment.mixup", "0.5", "--data.batch_size", "5"]
    alone = train(small_data, tmp_path / "alone", *more)
    workers = train(small_data, tmp_path / "workers", *more, "--data.workers", "2")
    assert alone.keys() == workers.keys()
    assert all(torch.equal(tensor, workers[name]) for name, tensor in alone.items())
    other = train(small_data, tmp_path / "other", *more, "--seed_everything", "1", *ONE_EPOCH)
    stem = "network.backbone.stem.conv.weight"
    assert not torch.equal(alone[stem], other[stem])


@pytest.mark.parametrize(
    "options",
    [
        """--data.rect true --model.optim.optimizer AdamW --model.optim.lr_schedule cosine
        --model.start.freeze 10 --data.single_class true""",
        f"""--config {CONFIGS}/albumentations.yaml --model.multi_scale true --data.image_weights true
        --model.loss.fl_gamma 1.5""",
        f"--config {CONFIGS}/literal.yaml --config {CONFIGS}/hyp/high.yaml",
    ],
    ids=["rect, frozen, one class", "all kinds of randomness", "literal"],
)
def test_options_train_and_repeat(options: str, small_data: Path, tmp_path: Path) -> None:
    """Each option runs, changes nothing of what it shouldn't, and gives the same weights twice."""
    first, second = (
        train(small_data, tmp_path / name, *options.split(), *ONE_EPOCH) for name in "ab"
    )
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert all(tensor.isfinite().all() for tensor in first.values())


def test_frozen_layers_do_not_move(small_data: Path, tmp_path: Path) -> None:
    """Weights and, by default, the statistics of their batch norms; YOLOv5 lets the statistics
    move."""
    given = "--model.start.freeze 10 --warmup.warmup_epochs 0 --trainer.limit_val_batches 0"
    more = [*given.split(), *ONE_EPOCH]
    start = train(small_data, tmp_path / "start", *more, "--model.optim.lr0", "0")
    trained = train(small_data, tmp_path / "frozen", *more)
    moving = train(small_data, tmp_path / "moving", *more, "--model.literal", "true")
    backbone = [k for k in start if k.startswith("network.backbone.")]
    assert all(torch.equal(start[k], trained[k]) for k in backbone)
    head = "network.head.convs.0.weight"
    stem = "network.backbone.stem"
    assert not torch.equal(start[head], trained[head])
    assert torch.equal(start[f"{stem}.conv.weight"], moving[f"{stem}.conv.weight"])
    mean = f"{stem}.bn.running_mean"
    assert not torch.equal(start[mean], moving[mean])
