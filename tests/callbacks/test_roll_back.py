"""Non-finite numbers in real trainings, and the policy `roll_back`: from the last checkpoint, with
a lower rate."""

import os
import signal
from pathlib import Path
from shlex import split
from typing import Any

import lightning as L
import pytest
import torch
from made_trouble import Poison, data_of, detector_of_the_data, finite, reports, trainer_in
from plain_loop import Steps
from small_fit import small_fit

import cli
from benchmarks.resume_fuzz import difference
from boltbox.callbacks.ema import EMA
from boltbox.callbacks.guard import Guard, Incident
from boltbox.callbacks.warmup import Warmup
from boltbox.detector.commands.fit import fit
from boltbox.detector.system.errors import InputError


class LastCheckpoint(L.Callback):
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / "checkpoints/last.ckpt")


class UsedRates(L.Callback):
    """Epoch and learning rate of every batch that was trained on."""

    def __init__(self) -> None:
        self.used: list[tuple[int, float]] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.used.append((trainer.current_epoch, trainer.optimizers[0].param_groups[0]["lr"]))


def test_roll_back_goes_on_from_the_checkpoint_with_a_lower_rate(
    small_data: Path, tmp_path: Path
) -> None:
    guard = Guard("roll_back")
    rates = UsedRates()
    steps = Steps()
    callbacks = [
        Warmup(warmup_epochs=0),
        EMA(),
        Poison((1, 1), once=True),
        guard,
        rates,
        steps,
        LastCheckpoint(),
    ]
    trainer = trainer_in(tmp_path, *callbacks, max_epochs=3)
    module = detector_of_the_data()
    fit(trainer, module, data_of(small_data))
    lr = [0.01 * ((1 - epoch / 3) * 0.99 + 0.01) for epoch in range(3)]
    wanted = [(0, lr[0])] * 3 + [(1, lr[1])] + [(1, 0.5 * lr[1])] * 3 + [(2, 0.5 * lr[2])] * 3
    assert rates.used == [(epoch, pytest.approx(rate)) for epoch, rate in wanted]
    assert trainer.global_step == 9
    assert finite(module)
    assert guard.roll_backs == 1
    assert [r["done"] for r in reports(tmp_path).values()] == ["roll-back 1 of 3"]


class Fault(L.Callback):
    """NaN in one batch, once in all processes of a run; `kills`: the process dies where the batch
    comes again."""

    kills = False

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if (trainer.current_epoch, batch_idx) != (1, 1):
            return
        seen = Path(trainer.default_root_dir) / "seen"
        if not seen.exists():
            seen.touch()
            batch.images.fill_(torch.nan)
        elif self.kills:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_before_the_next_checkpoint_loses_no_roll_back(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = split(
        "--trainer.max_epochs 2 --trainer.limit_val_batches 0 --trainer.limit_train_batches 2 --checkpoints.every_minutes 1e-9 --guard.policy roll_back --trainer.callbacks test_roll_back.Fault"
    )
    cli.main(small_fit(small_data, tmp_path / "alone", *more))
    line = small_fit(small_data, tmp_path / "run", *more)
    monkeypatch.setattr(Fault, "kills", True)
    pid = os.fork()
    if pid == 0:
        try:
            cli.main(line)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    monkeypatch.setattr(Fault, "kills", False)
    cli.main([*line, "--ckpt_path", "auto"])
    assert not difference(tmp_path / "run", tmp_path / "alone")
    last = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert last["callbacks"]["Guard"]["roll_backs"] == 1


DAMAGED = (b"", b"[1]", b"\xff\0", b"{", b'{"roll_backs": "2", "lr0": 0.01}', b'{"lr0": []}', None)


def test_a_damaged_record_of_roll_backs(
    small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those in the checkpoint count. None: a folder."""
    one = split("--trainer.limit_train_batches 1 --trainer.limit_val_batches 0")
    run = tmp_path / "run"
    epochs = 1
    cli.main(small_fit(small_data, run, *one, "--trainer.max_epochs", "1"))
    record = run / "checkpoints/roll_backs.json"
    for content in DAMAGED:
        if content is None:
            record.unlink()
            record.mkdir()
        else:
            record.write_bytes(content)
        epochs += 1
        line = ["fit", "--ckpt_path", "last", "--run", str(run)]
        capsys.readouterr()
        cli.main([*line, "--trainer.max_epochs", str(epochs)])
        is_told = f"warning: {record} is damaged" in capsys.readouterr().out
        assert is_told == (content is not None)
    last = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert last["epoch"] == epochs - 1
    assert last["callbacks"]["Guard"]["roll_backs"] == 0


def test_a_fresh_start_forgets_the_roll_backs_of_another(small_data: Path, tmp_path: Path) -> None:
    """Of one that came to no checkpoint."""
    record = tmp_path / "checkpoints/roll_backs.json"
    record.parent.mkdir()
    record.write_text('{"roll_backs": 2, "lr0": 0.01}')
    rates = UsedRates()
    trainer_in(tmp_path, Warmup(warmup_epochs=0), Guard("roll_back"), rates, max_epochs=1).fit(
        detector_of_the_data(), data_of(small_data)
    )
    assert rates.used == [(0, pytest.approx(0.01))] * 3
    assert not record.exists()


def test_roll_backs_are_counted(small_data: Path, tmp_path: Path) -> None:
    callbacks = [
        EMA(),
        Poison((1, 1)),
        Guard("roll_back"),
        LastCheckpoint(),
    ]
    with pytest.raises(Incident, match="stopped after 3 roll-backs") as told:
        fit(
            trainer_in(tmp_path, Warmup(warmup_epochs=0), *callbacks),
            detector_of_the_data(),
            data_of(small_data),
        )
    assert type(told.value) is Incident
    report = reports(tmp_path)["incident-1-1.json"]
    assert report["roll_backs"] == 3
    assert report["learning_rates"]["weight"] == pytest.approx(0.01 * 0.505 * 0.125)


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(
    small_data: Path, tmp_path: Path
) -> None:
    trainer = trainer_in(
        tmp_path, Warmup(warmup_epochs=0), EMA(), Poison((0, 1)), Guard("roll_back")
    )
    with pytest.raises(
        InputError,
        match=r"non-finite loss in epoch 0, batch 1.*there is no checkpoint to go back to",
    ):
        fit(trainer, detector_of_the_data(), data_of(small_data))


@pytest.mark.parametrize(
    ("lr0", "scale"), [(0.01, 0.5), (0.02, 1.0)], ids=["same lr0", "another lr0"]
)
def test_a_lowered_rate_outlives_the_process(
    lr0: float, scale: float, small_data: Path, tmp_path: Path
) -> None:
    guard = Guard("roll_back")
    data = data_of(small_data)
    guard.roll_backs = 1
    guard.lr0 = 0.01  # as after one
    trainer_in(tmp_path, Warmup(), guard, LastCheckpoint(), max_epochs=1).fit(
        detector_of_the_data(), data
    )
    rates = UsedRates()
    trainer = trainer_in(tmp_path, Warmup(warmup_epochs=0), Guard("roll_back"), rates)
    last = tmp_path / "checkpoints/last.ckpt"
    trainer.fit(detector_of_the_data(lr0=lr0), datamodule=data, ckpt_path=last, weights_only=True)
    assert rates.used == [(1, pytest.approx(lr0 * 0.505 * scale))] * 3
