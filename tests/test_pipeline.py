"""The network in two halves against the same network in one piece."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from made_pipeline import CASES, LR, STEPS, Case, batch, cut_networks, main, network_and_loss
from ranks import together

import cli
from detector.commands.pipeline.halves import cut, micro_batches
from detector.model.network import YOLOv5
from detector.training.optimizer import build_optimizer

DEADLINE = 240  # seconds; a rank that waits for ever fails the test instead of holding it up


@pytest.fixture(scope="module", params=[2, 4], ids=["pipeline", "data x pipeline"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """Per rank what each case told."""
    folder = tmp_path_factory.mktemp("ranks")
    together(main, folder, cut_networks(request.param), ranks=request.param, deadline=DEADLINE)
    return [torch.load(folder / f"{rank}.pt") for rank in range(request.param)]


def in_one_piece(case: Case, replicas: int) -> dict[str, Any]:
    """The oracle: the whole network, its micro-batches one after the other, a plain loop."""
    network, loss = network_and_loss(case)
    network.to(memory_format=torch.contiguous_format)  # as in a pipeline; channels_last rounds otherwise
    images, targets = batch(4 * replicas)
    parts = micro_batches(images.contiguous(), targets, case.count * replicas)
    optimizer = build_optimizer(network, "SGD", LR, 0.9, 0.0005)

    def step() -> torch.Tensor:
        losses = []
        for images, targets in parts:
            losses.append(loss(network(images), targets, network.head)[0])
            losses[-1].backward()
        return torch.stack(losses).detach()

    result: dict[str, Any] = {"losses": step()}
    result["gradients"] = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    result["statistics"] = {n: b.clone() for n, b in network.named_buffers() if n != "head.anchors"}
    for _ in range(STEPS):
        optimizer.step()
        optimizer.zero_grad()
        step()
    result["weights"] = {n: p.detach() for n, p in network.named_parameters()}
    return result


def largest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """In proportion to the largest value of each tensor."""
    return max(float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max().clamp(min=1e-9)) for n in ours)


def test_halves_equal_the_whole(told: list[list[dict[str, Any]]]) -> None:
    replicas = len(told) // 2
    for number, case in enumerate(CASES[len(told)]):
        whole = in_one_piece(case, replicas)
        losses = whole["losses"].view(replicas, -1).sum(1)
        for rank, cases in enumerate(told):
            half = cases[number]
            assert (half["loss"] is None) == (rank % 2 == 0), "only the rank where the network ends knows the loss"
            if half["loss"] is not None:
                assert half["loss"] == pytest.approx(float(losses[rank // 2]), rel=1e-5)
            assert half["gradients"].keys() <= whole["gradients"].keys()
            if half["gradients"]:
                assert largest_difference(half["gradients"], whole["gradients"]) < 1e-5
            for name, weights in half["weights"].items():
                torch.testing.assert_close(weights, whole["weights"][name], rtol=0, atol=1e-4)
            if replicas == 1:  # several replicas have statistics of their own
                assert largest_difference(half["statistics"], whole["statistics"]) < 1e-5
        first, second = told[0][number], told[1][number]
        assert first["gradients"].keys() | second["gradients"].keys() == whole["gradients"].keys()
        assert not first["gradients"].keys() & second["gradients"].keys()


def test_a_cut_leaves_the_network_whole() -> None:
    torch.manual_seed(0)
    network, images = YOLOv5(2, width_multiple=0.125, depth_multiple=0.1).eval(), torch.rand(1, 3, 64, 64)
    before = network(images)
    for at in ("backbone.down.4", "neck.bottom_up.5"):
        first, second = cut(network, at, images)
        names = [n for half in (first, second) for n, _ in half.named_parameters()]
        own = dict(network.named_parameters())
        assert sorted(names) == sorted(own), "each parameter is in one half"
        assert all(p is own[n] for half in (first, second) for n, p in half.named_parameters())
        for a, b, c in zip(before, network(images), second(*as_tuple(first(images))), strict=True):
            assert torch.equal(a, b)
            assert torch.equal(a, c)


def as_tuple(maps: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return maps if isinstance(maps, tuple) else (maps,)


def test_micro_batches_take_their_targets_along() -> None:
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 2, 2)
    targets = torch.tensor([[0, 5], [3, 6], [2, 7], [3, 8.0]])
    (first, labels), (second, others) = micro_batches(images, targets, 2)
    assert first[:, 0, 0, 0].tolist() == [0, 1]
    assert labels.tolist() == [[0, 5]]
    assert second[:, 0, 0, 0].tolist() == [2, 3]
    assert others.tolist() == [[1, 6], [0, 7], [1, 8]]
    assert targets[1, 0] == 3, "the batch itself stays as it was"


@pytest.fixture
def alarm() -> Iterator[None]:
    """The deadline of what runs in this process; the ranks that it started end with it."""

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_study(here: Path, alarm: None, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    cli.main(["pipeline", "--splits", "2", "--batch", "2", "--image_size", "64", "--repeats", "3"])
    assert signal.getsignal(signal.SIGINT) == before
    content = json.loads((here / "runs/pipeline-1/pipeline.json").read_text())
    ways = [(t["how"], t["micro_batches"]) for t in content["timings"]]
    assert ways == [("one device", 1), ("one device", 2), ("gpipe", 1), ("gpipe", 2), ("1f1b", 2)]
    assert all(len(t["seconds"]) == 3 and min(t["seconds"]) > 0 for t in content["timings"])
    assert (here / "runs/pipeline-1/pipeline.png").read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    assert output.count("\n| ") == 1 + len(ways)
    assert "cores of" in output or "GPUs" in output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            "--splits 2,3",
            "16 images cannot be divided into 3 micro-batches; the nearest numbers that do are 2 and 4",
        ),
        ("--splits 1;2", "splits '1;2': give numbers of micro-batches with commas between"),
        ("--splits 0", "into 0 micro-batches"),
        ("--at neck.latral.4", "did you mean 'neck.lateral.4'?"),
        ("--at backbone.stem", "the network cannot be cut at 'backbone.stem'"),
        ("--size nn", "model.size 'nn' is not known"),
        ("--batch 0", "must be at least 1"),
        ("--split 2", "did you mean 'splits'?"),
    ],
)
def test_what_the_user_can_put_right(options: str, told: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["pipeline", *options.split()])
    assert left.value.code == 2
    assert told in capsys.readouterr().err
    assert not list(here.iterdir())
