"""An optimizer of torch by its class."""

from pathlib import Path

import pytest
import torch
from small_fit import small_fit

import cli

ADAGRAD = ["--model.optim.optimizer", "torch.optim.Adagrad"]


def test_a_class_trains_and_resumes_exactly(small_data: Path, here: Path) -> None:
    """Its state is unlike SGD's and Adam's."""
    own = "--trainer.max_epochs 2 --trainer.limit_train_batches 1 --checkpoints.save_period 1"
    more = [*own.split(), "--trainer.limit_val_batches", "0", *ADAGRAD]
    cli.main(small_fit(small_data, here / "whole", *more, "--model.optim.lr0", "0.02"))
    first = here / "whole/checkpoints/epoch0.ckpt"
    cli.main(["fit", "--ckpt_path", str(first), "--run", str(here / "resumed")])
    whole, resumed = (
        torch.load(here / run / "checkpoints/last.ckpt", weights_only=True)
        for run in ("whole", "resumed")
    )
    chosen = whole["hyper_parameters"]["optim"]["optimizer"]
    assert chosen["class_path"].endswith(".Adagrad")
    (state,) = whole["optimizer_states"]
    assert {"step", "sum"} == state["state"][0].keys()
    assert state["param_groups"][0]["lr_decay"] == 0
    assert whole["state_dict"].keys() == resumed["state_dict"].keys()
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(tensor, resumed["state_dict"][name]), name


def test_a_resume_takes_the_options_that_are_typed(small_data: Path, here: Path) -> None:
    """Of the optimizer too, whose own are restored with its state."""
    one = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --model.optim.optimizer AdamW"
    cli.main(small_fit(small_data, here / "run", *one.split()))
    typed = {"momentum": 0.8, "weight_decay": 0.2, "backbone_lr": 0.0005}
    words = [word for name, x in typed.items() for word in (f"--model.optim.{name}", str(x))]
    last = here / "run/checkpoints/last.ckpt"
    resume = ["fit", "--ckpt_path", "last", "--run", str(here / "run")]
    with pytest.raises(SystemExit):  # groups of its own
        cli.main([*resume, "--trainer.max_epochs", "2", *words])
    cli.main([*resume, "--trainer.max_epochs", "2", *words[:-2]])
    content = torch.load(last, weights_only=True)
    (state,) = content["optimizer_states"]
    groups = {group["name"]: group for group in state["param_groups"]}
    assert {group["betas"][0] for group in groups.values()} == {0.8}
    assert [groups[name]["weight_decay"] for name in ("weight", "bias", "norm")] == [0.2, 0, 0]
    assert content["hyper_parameters"]["optim"]["weight_decay"] == 0.2


def test_one_without_groups_is_refused(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(small_fit(small_data, here / "run", *ADAGRAD[:1], "torch.optim.LBFGS"))
    assert "LBFGS cannot be made" in capsys.readouterr().err
