"""Sharded training equals DDP; what does not combine is refused at the start; machines without a
common folder."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from agreement import apart
from forked import forks

import cli
from benchmarks.resume_fuzz import difference

CLI = Path(cli.__file__)
ROOT = CLI.parent
DEADLINE = 150  # seconds for all processes of a test, on a busy machine


class Started:
    """A command in a session of its own, which is cleared away when the `with` block ends."""

    def __init__(self, line: list[Any], folder: Path, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log.txt"
        kept = {
            k: v for k, v in os.environ.items() if k not in ("BOLTBOX_RUN", "PYTEST_XDIST_WORKER")
        }
        environment = {
            **kept,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/helpers'}",
            "OMP_NUM_THREADS": "1",
            "MASTER_PORT": str(free_port()),  # torchrun has its own
            **environment,
        }
        how = {"stdout": self.log.open("w"), "stderr": subprocess.STDOUT, "start_new_session": True}
        with forks():
            self.process = subprocess.Popen(
                [str(x) for x in line], cwd=folder, env=environment, **how
            )
        self.until = time.monotonic() + DEADLINE

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()

    def ends(self, code: int) -> str:
        """What it printed; it must end in time with this exit code."""
        found = self.process.wait(max(self.until - time.monotonic(), 1))
        text = self.log.read_text(errors="replace")
        assert found == code, text[-3000:]
        return text


def options(data: Path, **more: Any) -> list[Any]:
    """Two epochs of three batches; windows of three batches; everything that the average and the
    optimizer can hold."""
    given = {
        "data.dataset": data, "data.image_size": 64, "data.batch_size": 8, "data.workers": 0,
        "model.network.width_multiple": 0.125, "model.network.depth_multiple": 0.1, "model.network.levels": "[5]",
        "model.optim.nominal_batch_size": 24, "model.start.freeze": 2,
        "warmup.warmup_epochs": 1, "autoanchor.enabled": "false",
        "trainer.max_epochs": 2, "trainer.accelerator": "cpu", "trainer.precision": "32-true",
        "trainer.enable_progress_bar": "false", "report.enabled": "false", "pictures.enabled": "false", "doctor.enabled": "false", **more,
    }  # fmt: skip
    return [x for k, v in given.items() for x in (f"--{k}", v)]


def fit(*line: Any) -> list[Any]:
    return [sys.executable, CLI, "fit", *line]


def torchrun(machine: int, port: int, *line: Any) -> list[Any]:
    place = f"--nnodes 2 --node-rank {machine} --nproc-per-node 1 --master-addr localhost"
    place = [*place.split(), "--master-port", port]
    return [sys.executable, "-m", "torch.distributed.run", *place, "--", CLI, "fit", *line]


def free_port() -> int:
    """One that no socket gets by itself: those of other processes would be in the way."""
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("localhost", port))
            return port
    raise OSError("no free port")


def test_sharded_training_equals_ddp(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stops in the middle of a window and goes on bit for bit; what DDP makes of the same
    checkpoint, all steps that is, is the same; and one process validates it."""
    two = options(small_data, **{"trainer.devices": 2, "trainer.check_val_every_n_epoch": 2})
    whole, cut = (tmp_path / name for name in ("whole", "cut"))
    fsdp2 = [*two, "--trainer.strategy", "fsdp2"]
    fsdp2 += ["--trainer.callbacks", "benchmarks.resume_fuzz.Kill"]
    contiguous = [*two, "--trainer.strategy", "ddp", "--trainer.callbacks", "agreement.Contiguous"]
    with (
        Started(fit(*fsdp2, "--run", whole), tmp_path / "2") as b,
        Started(fit(*fsdp2, "--run", cut), tmp_path / "3", BOLTBOX_KILL="batch:1:SIGTERM") as c,
    ):
        b.ends(0), c.ends(143)
    gradients = torch.load(cut / "checkpoints/last.ckpt", weights_only=True)["processes"][0][
        "gradients"
    ]
    assert any(g.abs().max() > 0 for g in gradients.values()), "no open window"

    elsewhere = shutil.copytree(cut, tmp_path / "elsewhere")
    resumed = ["--ckpt_path", "last", "--trust_parts", "true"]
    with (
        Started(fit(*fsdp2, "--run", cut, *resumed), tmp_path / "4") as d,
        Started(fit(*contiguous, "--run", elsewhere, *resumed), tmp_path / "5") as e,
    ):
        d.ends(0), e.ends(0)
    assert difference(cut, whole) == ""
    assert apart(elsewhere, whole) < 1e-4

    validated = ["--run", str(tmp_path / "validated"), "--trainer.devices", "1"]
    last = str(whole / "checkpoints/last.ckpt")
    cli.main(["validate", "--ckpt_path", last, *validated, "--report.enabled", "false"])
    assert "mAP50" in capsys.readouterr().out


def test_a_checkpoint_without_average_is_validated(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"trainer.max_epochs": 1, "trainer.limit_train_batches": 1, "ema.enabled": "false"}
    cli.main(["fit", "--run", "run", *map(str, options(small_data, **short))])
    trained = json.loads(Path("run/metrics.json").read_text())
    line = "validate --ckpt_path run/checkpoints/last.ckpt --run validated"
    cli.main([*line.split(), "--trainer.accelerator", "cpu", "--report.enabled", "false"])
    validated = json.loads(Path("validated/metrics.json").read_text())
    assert validated["coco/AP"] == pytest.approx(trained["coco/AP"], abs=1e-3)


def refusal(capsys: pytest.CaptureFixture[str], *line: str) -> str:
    """The one sentence that a fit ends in, before it has read the data set."""
    Path("empty.yaml").touch()
    with pytest.raises(SystemExit) as end:
        cli.main(["fit", "--data.dataset", "empty.yaml", "--trainer.accelerator", "cpu", *line])
    told = capsys.readouterr().err
    assert end.value.code == 2
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    return told


def test_what_does_not_combine_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sharded = ["--trainer.strategy", "fsdp2", "--trainer.precision"]
    assert "give 16-mixed or bf16-mixed" in refusal(capsys, "--trainer.precision", "bf16-true")
    told = refusal(capsys, *sharded, "16")
    assert "trainer.precision 32-true and bf16-mixed only: losses cannot be scaled" in told
    told = refusal(capsys, *sharded, "32-true", "--trainer.sync_batchnorm", "true")
    assert "trainer.sync_batchnorm does not go together with fsdp2" in told
    told = refusal(capsys, *sharded, "32-true")
    assert "go together" not in told
    assert "empty.yaml" in told


def test_other_strategies_are_refused_by_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did you mean 'fsdp2'?" in refusal(capsys, "--trainer.strategy", "fsdp")
    assert "runs with auto, ddp" in refusal(capsys, "--trainer.strategy", "deepspeed_stage_3")


def test_two_machines_without_a_common_folder(small_data: Path, tmp_path: Path) -> None:
    """Two torchrun agents in folders of their own: the second writes nothing; a resume or options
    that differ end both."""
    line = options(
        small_data,
        **{
            "trainer.max_epochs": 1,
            "trainer.limit_train_batches": 2,
            "trainer.limit_val_batches": 0,
            "run": "run",
        },
    )
    first = tmp_path / "first"
    second = tmp_path / "second"
    port = free_port()
    with (
        Started(torchrun(0, port, *line), first) as a,
        Started(torchrun(1, port, *line), second) as b,
    ):
        a.ends(0), b.ends(0)
    assert (first / "run/checkpoints/last.ckpt").is_file()
    assert [p.name for p in second.iterdir()] == ["log.txt"]

    longer = [*line, "--trainer.max_epochs", "2"]
    ports = (free_port(), free_port())
    with (
        Started(torchrun(0, ports[0], *longer, "--ckpt_path", "auto"), first) as a,
        Started(torchrun(1, ports[0], *longer, "--ckpt_path", "auto"), second) as b,
        Started(torchrun(0, ports[1], *line), tmp_path / "third") as c,
        Started(
            torchrun(1, ports[1], *line, "--model.optim.lrf", "0.02"), tmp_path / "fourth"
        ) as d,
    ):
        told = a.ends(1) + b.ends(1)  # said once, by whoever is first
        assert "error: the checkpoint is not the same" in told
        assert "a copy of the first machine's" in told
        told = c.ends(1) + d.ends(1)
        assert "error: model.optim.lrf is not the same in all processes (0.01, 0.02)" in told
    assert not (tmp_path / "third/run").exists()
