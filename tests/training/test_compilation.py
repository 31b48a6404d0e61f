"""model.compile: what it computes, and that it stays with a run."""

import copy
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from forked import forks
from small_fit import small_fit
from torch import nn

import cli
from benchmarks.resume_fuzz import command, difference, start
from boltbox.detector.model.layers import Bottleneck, Conv
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.training import compilation
from boltbox.detector.training.compilation import blocks, compile_blocks, compiled

SHORT = [
    "--model.multi_scale",
    "false",
    "--trainer.max_epochs",
    "1",
    "--trainer.limit_train_batches",
    "3",
    "--trainer.limit_val_batches",
    "0",
    "--autoanchor.enabled",
    "false",
    "--doctor.enabled",
    "false",
]
COMPILED = [*SHORT, "--model.compile", "true"]


@pytest.fixture
def graphs_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.compile makes graphs and runs them as they are, also in processes that are started:
    machine code takes minutes."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch.compiler.reset()
    with forks():
        yield
    torch.compiler.reset()


def test_compiled_blocks_compute_the_same() -> None:
    """By the real compiler: output, gradients, batch norm's statistics."""
    torch.manual_seed(0)
    eager = nn.Sequential(Conv(8, 8)).to(memory_format=torch.channels_last).train()
    compiled = copy.deepcopy(eager)
    compile_blocks(compiled)
    images = torch.rand(4, 8, 16, 16).to(memory_format=torch.channels_last)
    for network in (eager, compiled):
        network(images).square().mean().backward()
    for (name, ours), (_, wanted) in zip(
        compiled.named_parameters(), eager.named_parameters(), strict=True
    ):
        torch.testing.assert_close(ours.grad, wanted.grad, msg=name)
    torch.testing.assert_close(compiled.state_dict(), eager.state_dict())
    # a copy, like the moving average, is not compiled
    assert copy.deepcopy(compiled)[0]._compiled_call_impl is None


def test_blocks_are_all_convolutions_but_the_heads() -> None:
    """Bottlenecks as a whole; none twice."""
    network = YOLOv5(3)
    found = list(blocks(network))
    of_blocks = [id(m) for block in found for m in block.modules() if isinstance(m, nn.Conv2d)]
    assert len(of_blocks) == len(set(of_blocks))
    outside = [
        name
        for name, m in network.named_modules()
        if isinstance(m, nn.Conv2d) and id(m) not in of_blocks
    ]
    assert outside == ["head.convs.0", "head.convs.1", "head.convs.2"]
    assert sum(isinstance(block, Bottleneck) for block in found) == 1 + 2 + 3 + 1 + 4


def test_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    network = YOLOv5(3, width_multiple=0.125)
    assert not compiled(network, False)
    assert "not compiled: there is no C++ compiler no-such-compiler" in capsys.readouterr().out
    assert network.backbone.stem._compiled_call_impl is None


def test_images_of_several_sizes(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 0"
    options += " --data.rect true --model.compile true"
    cli.main(small_fit(small_data, here / "run", *options.split()))
    assert "not compiled: the images' size changes" in capsys.readouterr().out


def test_a_killed_compiled_run_ends_the_same(
    small_data: Path, tmp_path: Path, graphs_only: None
) -> None:
    """It is compiled again when it resumes."""
    reference = tmp_path / "reference"
    run = tmp_path / "run"
    assert start(command(small_data, reference, 0, 1, within_epochs=False, more=COMPILED)) == 0
    assert start(command(small_data, run, 0, 1, more=COMPILED), "batch:2") == -signal.SIGKILL
    resumed = [*command(small_data, run, 0, 1, more=SHORT), "--ckpt_path", "last"]
    environment = os.environ | {"BOLTBOX_KILL": "", "PYTHONPATH": str(Path(cli.__file__).parent)}
    done = subprocess.run(resumed, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the network is compiled" in done.stdout
    assert not difference(run, reference)
