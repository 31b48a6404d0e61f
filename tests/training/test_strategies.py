"""Sharded training equals DDP; machines without a common folder."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from agreement import apart
from ranks import ROOT, free_port, run_all
from small_fit import small_fit

import cli
from benchmarks.resume_fuzz import difference


def fit(data: Path, run: Path | str, *more: str) -> list[str]:
    """Two epochs of three batches; windows of three batches; frozen layers."""
    own = "--model.optim.nominal_batch_size 24 --model.start.freeze 2 --warmup.warmup_epochs 1"
    own += " --trainer.max_epochs 2 --trainer.check_val_every_n_epoch 2"
    return [str(ROOT / "cli.py"), *small_fit(data, Path(run), *own.split(), *more)]


def test_sharded_training_equals_ddp(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stops in the middle of a window and resumes bit for bit; DDP trains the same from the same
    checkpoint; and one process validates it."""
    two = [sys.executable], ["--trainer.devices", "2", "--trainer.strategy"]
    fsdp2 = ["fsdp2", "--trainer.callbacks", "benchmarks.resume_fuzz.Kill"]
    ddp = ["ddp", "--trainer.callbacks", "agreement.Contiguous"]
    resume = ["--ckpt_path", "last", "--trust_parts", "true"]
    whole, cut, elsewhere = (tmp_path / name for name in ("whole", "cut", "elsewhere"))

    def line(run: Path, *more: str) -> list[str]:
        return two[0] + fit(small_data, run, *two[1], *more)

    ((code, log),) = run_all((line(whole, *fsdp2), tmp_path / "1"), BOLTBOX_KILL="")
    assert code == 0, log
    ((code, log),) = run_all((line(cut, *fsdp2), tmp_path / "2"), BOLTBOX_KILL="batch:1:SIGTERM")
    assert code == 143, log
    content = torch.load(cut / "checkpoints/last.ckpt", weights_only=True)
    gradients = content["processes"][0]["gradients"].values()
    assert any(gradient.abs().max() > 0 for gradient in gradients), "no open window"
    shutil.copytree(cut, elsewhere)
    for code, log in run_all(
        (line(cut, *fsdp2, *resume), tmp_path / "3"),
        (line(elsewhere, *ddp, *resume), tmp_path / "4"),
        BOLTBOX_KILL="",
    ):
        assert code == 0, log
    assert difference(cut, whole) == ""
    assert apart(elsewhere, whole) < 1e-4

    validated = ["--run", str(tmp_path / "validated"), "--trainer.devices", "1"]
    last = str(whole / "checkpoints/last.ckpt")
    cli.main(["validate", "--ckpt_path", last, *validated, "--report.enabled", "false"])
    assert "mAP50" in capsys.readouterr().out


def test_a_checkpoint_without_average_is_validated(small_data: Path, here: Path) -> None:
    short = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --ema.enabled false"
    cli.main(small_fit(small_data, here / "run", *short.split()))
    line = "validate --ckpt_path run/checkpoints/last.ckpt --run validated"
    cli.main([*line.split(), "--trainer.accelerator", "cpu", "--report.enabled", "false"])
    trained, validated = (
        json.loads(Path(run, "metrics.json").read_text()) for run in ("run", "validated")
    )
    assert validated["coco/AP"] == pytest.approx(trained["coco/AP"], abs=1e-3)


def test_two_machines_without_a_common_folder(small_data: Path, tmp_path: Path) -> None:
    """Two torchrun agents in folders of their own: the second writes nothing; a checkpoint or
    options that differ end both."""
    short = "--trainer.max_epochs 1 --trainer.limit_train_batches 2 --trainer.limit_val_batches 0"

    def machines(names: tuple[str, str], *more: str, second: tuple[str, ...] = ()) -> list[Any]:
        port = str(free_port())
        jobs = []
        for machine, name in enumerate(names):
            torchrun = (
                f"-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank {machine}"
            )
            place = ["--master-addr", "localhost", "--master-port", port, "--"]
            line = fit(small_data, "run", *short.split(), *more, *(second if machine else ()))
            jobs.append(([sys.executable, *torchrun.split(), *place, *line], tmp_path / name))
        return run_all(*jobs)

    assert [code for code, _ in machines(("first", "second"))] == [0, 0]
    assert (tmp_path / "first/run/checkpoints/last.ckpt").is_file()
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["log.txt"]
    resume = ["--trainer.max_epochs", "2", "--ckpt_path", "auto"]
    for logs, message in (
        (machines(("first", "second"), *resume), "error: the checkpoint is not the same"),
        (
            machines(("third", "fourth"), second=("--model.optim.lrf", "0.02")),
            "error: model.optim.lrf is not the same in all processes (0.01, 0.02)",
        ),
    ):
        assert [code for code, _ in logs] == [1, 1]
        assert message in "".join(log for _, log in logs)  # of whichever process is first
    assert not (tmp_path / "third/run").exists()
