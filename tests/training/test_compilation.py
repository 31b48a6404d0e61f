"""model.compile: what it computes, and that it stays with a run."""

import copy
import signal
from itertools import chain
from shlex import split

import pytest
import torch
from forked import forks
from torch import nn

from benchmarks.resume_fuzz import command, difference, start
from boltbox.detector.model.layers import Bottleneck, Conv
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.training import compilation
from boltbox.detector.training.compilation import blocks, compile_blocks, compile_network

SHORT = split(
    """--model.multi_scale false --trainer.max_epochs 1 --trainer.limit_train_batches 3
    --trainer.limit_val_batches 0 --autoanchor.enabled false --doctor.enabled false"""
)


@pytest.fixture
def graphs_only(monkeypatch):
    """torch.compile makes graphs and runs them as they are, also in processes that are started:
    machine code takes minutes."""
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch.compiler.reset()
    with forks():
        yield
    torch.compiler.reset()


def test_compiled_blocks_compute_the_same(graphs_only, monkeypatch):
    """Gradients, and the statistics of batch norm, in graphs of the compiler's operators."""
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    torch.manual_seed(0)
    eager = nn.Sequential(Conv(8, 8)).to(memory_format=torch.channels_last).train()
    compiled = copy.deepcopy(eager)
    compile_blocks(compiled)
    images = torch.rand(4, 8, 16, 16).to(memory_format=torch.channels_last)
    for network in (eager, compiled):
        network(images).square().mean().backward()
    for ours, expected in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)
    torch.testing.assert_close(compiled.state_dict(), eager.state_dict())
    # a copy, like the moving average, is not compiled
    assert copy.deepcopy(compiled)[0]._compiled_call_impl is None


def test_blocks_are_all_convolutions_but_the_heads():
    """Bottlenecks as a whole; none twice."""
    network = YOLOv5(3)
    chosen = list(blocks(network))
    modules = chain(*map(nn.Module.modules, chosen))
    inside = [module for module in modules if isinstance(module, nn.Conv2d)]
    assert len(inside) == len(set(inside))
    every = {m: name for name, m in network.named_modules() if isinstance(m, nn.Conv2d)}
    outside = [name for m, name in every.items() if m not in inside]
    assert outside == ["head.convs.0", "head.convs.1", "head.convs.2"]
    assert sum(isinstance(block, Bottleneck) for block in chosen) == 1 + 2 + 3 + 1 + 4


def test_what_is_not_compiled(monkeypatch):
    """Images of several sizes; without a compiler nothing."""
    network = YOLOv5(3, width_multiple=0.125)
    assert not compile_network(network, varied=True)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not compile_network(network, varied=False)
    assert network.backbone.stem._compiled_call_impl is None


def test_a_killed_compiled_run_ends_the_same(small_data, tmp_path, graphs_only):
    """It is compiled again when it resumes."""
    reference = tmp_path / "reference"
    run = tmp_path / "run"
    more = SHORT + ["--model.compile", "true"]
    assert start(command(small_data, reference, 0, 1, within_epochs=False, more=more)) == 0
    assert start(command(small_data, run, 0, 1, more=more), "batch:2") == -signal.SIGKILL
    resume = SHORT + ["--ckpt_path", "last"]
    assert start(command(small_data, run, 0, 1, more=resume)) == 0
    assert not difference(run, reference)
    assert "compile: true" in (run / "config.yaml").read_text()
