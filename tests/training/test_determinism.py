"""The same command gives the same weights, whatever loads the data."""

from pathlib import Path

import pytest
import torch

import cli

ROOT = Path(__file__).parents[2]

QUIET = [
    "--trainer.enable_progress_bar",
    "false",
    "--report.enabled",
    "false",
    "--pictures.enabled",
    "false",
]
SMALL = ["--model.network.width_multiple", "0.125", "--model.network.depth_multiple", "0.1"]
SMALL += ["--model.network.levels", "[5]", "--autoanchor.enabled", "false"]


def train(data: Path, run: Path, *options: str) -> dict[str, torch.Tensor]:
    cli.main(
        ["fit", "--config", str(ROOT / "configs/yolo.yaml"), "--config", str(ROOT / "configs/debug.yaml"), "--run", str(run),
         "--data.dataset", str(data), "--data.augment.mixup", "0.5", "--data.batch_size", "5",
         "--trainer.limit_train_batches", "1.0", *QUIET, *SMALL, *options]
    )  # fmt: skip
    content = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    states = content["optimizer_states"][0]["state"]
    momentum = {
        f"{name} {k}": tensor for k, state in states.items() for name, tensor in state.items()
    }
    return content["state_dict"] | momentum


@pytest.fixture(scope="module")
def reference(
    small_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    return train(small_data, tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("workers", ["0", "2"])
def test_same_weights(
    workers: str, reference: dict[str, torch.Tensor], small_data: Path, tmp_path: Path
) -> None:
    again = train(small_data, tmp_path / "run", "--data.workers", workers)
    assert again.keys() == reference.keys()
    assert all(torch.equal(v, reference[k]) for k, v in again.items())


def test_another_seed_gives_other_weights(
    reference: dict[str, torch.Tensor], small_data: Path, tmp_path: Path
) -> None:
    other = train(small_data, tmp_path / "run", "--seed_everything", "1")
    assert not torch.equal(
        other["network.backbone.stem.conv.weight"], reference["network.backbone.stem.conv.weight"]
    )


@pytest.mark.parametrize(
    "options",
    [
        [
            "--data.rect",
            "true",
            "--model.optim.optimizer",
            "AdamW",
            "--model.optim.lr_schedule",
            "cosine",
            "--model.start.freeze",
            "10",
            "--data.single_class",
            "true",
        ],
        [
            "--config",
            str(ROOT / "configs/albumentations.yaml"),
            "--model.multi_scale",
            "true",
            "--data.image_weights",
            "true",
            "--model.loss.fl_gamma",
            "1.5",
            "--model.loss.autobalance",
            "true",
        ],
        [
            "--config",
            str(ROOT / "configs/literal.yaml"),
            "--config",
            str(ROOT / "configs/hyp/high.yaml"),
        ],
    ],
    ids=lambda o: " ".join(Path(x).name for x in o),
)
def test_options_train_and_repeat(options: list[str], small_data: Path, tmp_path: Path) -> None:
    """Each option runs, changes nothing of what it shouldn't, and gives the same weights twice."""
    optimizer_state = ["--trainer.max_epochs", "1"]
    first = cli_weights(small_data, tmp_path / "a", *options, *optimizer_state)
    second = cli_weights(small_data, tmp_path / "b", *options, *optimizer_state)
    assert all(torch.equal(v, second[k]) for k, v in first.items())
    assert all(v.isfinite().all() for v in first.values())


def cli_weights(data: Path, run: Path, *options: str) -> dict[str, torch.Tensor]:
    base = [
        "--config",
        str(ROOT / "configs/yolo.yaml"),
        "--config",
        str(ROOT / "configs/debug.yaml"),
    ]
    cli.main(
        ["fit", *base, "--run", str(run), "--data.dataset", str(data), *QUIET, *SMALL, *options]
    )
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def test_frozen_layers_do_not_move(small_data: Path, tmp_path: Path) -> None:
    """Weights and, by default, the statistics of their batch norms; YOLOv5 lets the statistics
    move."""
    still = [
        "--trainer.max_epochs",
        "1",
        "--model.optim.lr0",
        "0",
        "--warmup.warmup_epochs",
        "0",
        "--model.start.freeze",
        "10",
    ]
    start = cli_weights(small_data, tmp_path / "start", *still)
    trained = cli_weights(small_data, tmp_path / "frozen", "--model.start.freeze", "10")
    moving = cli_weights(
        small_data, tmp_path / "moving", "--model.start.freeze", "10", "--model.literal", "true"
    )
    backbone = [k for k in start if k.startswith("network.backbone.")]
    assert all(torch.equal(start[k], trained[k]) for k in backbone)
    assert not torch.equal(
        start["network.head.convs.0.weight"], trained["network.head.convs.0.weight"]
    )
    assert torch.equal(
        start["network.backbone.stem.conv.weight"], moving["network.backbone.stem.conv.weight"]
    )
    assert not torch.equal(
        start["network.backbone.stem.bn.running_mean"],
        moving["network.backbone.stem.bn.running_mean"],
    )
