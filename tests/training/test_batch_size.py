"""`--data.batch_size auto`: what is found is trained with, and a resume repeats it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from made_runs import load
from small_fit import small_fit

import cli
from boltbox.detector.model.network import YOLOv5


def trained(data: Path, run: str, batch_size: str, *more: str) -> dict[str, torch.Tensor]:
    options = ["--data.batch_size", batch_size, "--trainer.max_epochs", "1", *more]
    cli.main(small_fit(data, Path(run), *options))
    return load(Path(run) / "checkpoints/last.ckpt")["state_dict"]


def give_memory(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    """The processor takes the part of a GPU whose memory holds so many images in training."""

    @contextmanager
    def limited(device: torch.device) -> Iterator[bool]:
        yield True

    def forward(self: YOLOv5, batch: torch.Tensor, *given: Any) -> Any:
        if self.training and len(batch) > images:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, batch, *given)

    whole = YOLOv5.forward
    monkeypatch.setattr(YOLOv5, "forward", forward)
    monkeypatch.setattr("boltbox.detector.training.batch_size.limited_memory", limited)


@pytest.mark.parametrize(
    ("memory", "found", "reason"),
    [(None, 16, "without a GPU"), (15, 8, "what fits the GPU's memory")],
    ids=["cpu", "gpu"],
)
def test_weights_are_those_of_the_number(
    memory: int | None,
    found: int,
    reason: str,
    small_data: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        if memory:
            give_memory(patch, memory)
        ours = trained(small_data, "auto", "auto")
    assert f"data.batch_size {found} (auto: {reason})" in capsys.readouterr().out
    given = trained(small_data, "given", str(found))
    assert ours.keys() == given.keys()
    assert all(torch.equal(value, given[name]) for name, value in ours.items())
    config, changed = (
        yaml.safe_load(Path("auto", name).read_text()) for name in ("config.yaml", "changed.yaml")
    )
    assert config["data"]["batch_size"] == found
    assert changed.get("data.batch_size", 16) == found
    if memory:  # a resume by the same words, on another machine
        trained(small_data, "auto", "auto", "--trainer.max_epochs", "2", "--ckpt_path", "last")
        assert "data.batch_size:" not in capsys.readouterr().out
        config = yaml.safe_load(Path("auto/config.yaml").read_text())
        assert config["data"]["batch_size"] == found


def test_no_larger_than_the_data_set(
    small_data: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 images."""
    give_memory(monkeypatch, 1000)
    trained(small_data, "run", "auto")
    assert yaml.safe_load(Path("run/config.yaml").read_text())["data"]["batch_size"] == 16
