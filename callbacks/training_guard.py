"""What happens when a training goes wrong: a report, and then it stops or rolls back."""

import contextlib
import json
import traceback
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NoReturn

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from boltbox.detector.data.sample import Batch
from boltbox.detector.distributed.process_group import lost_contact
from boltbox.detector.report.progress_line import loss_label
from boltbox.detector.system.atomic_file import not_fatal, remove, write_atomically
from boltbox.detector.system.damaged_file import read_or_set_aside
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.finite import not_finite, not_finite_names
from boltbox.detector.training.gradient_window import ends_in_step
from boltbox.detector.training.incident import (
    ADVICE,
    Incident,
    Kind,
    Place,
    RollBack,
    kind_of,
    place_between_batches,
    sentence,
    write_report,
)
from boltbox.detector.training.module import Detector

LossOutput = tuple[Tensor, dict[str, Tensor]]  # total, parts by name
Policy = Literal["stop", "roll_back", "off"]


class TrainingGuard(L.Callback):
    """Writes `checkpoints/incident-<epoch>-<batch>.json` (see `write_report`) when a loss or a
    gradient is not finite, memory runs out, the data loader fails, or anything else crashes a fit.
    The first process writes; of a crash, the one that crashed.

    Losses and gradients are checked in on_after_backward: by then the device has the backward pass
    to work on while this process waits; unscaling, clipping (which spreads a NaN to all parameters)
    and the step are still to come. One small tensor is read per batch, for all processes together.
    Gradients are checked where an accumulation window ends, but not with a GradScaler, which drops
    such steps by itself. A crash is raised unchanged; `incident` is then its one-sentence form.

    Args:
        policy: What follows on a non-finite loss or gradient. stop. roll_back: go on from the
            last checkpoint, with a lower learning rate; checkpoints/roll_backs.json counts them, so
            that a kill before the next checkpoint loses none. off: no check; crashes are reported.
        most_roll_backs: In a run; then it stops.
        lr_factor: Learning rates are multiplied by this at each roll-back, for the rest of the run,
            or until it is resumed with another model.optim.lr0.

    Attributes:
        roll_backs: how many there were. incident: after a fit that crashed because memory ran out
            or the data loader failed.

    Raises:
        InputError: an option out of its range; Incident, RollBack while training.
    """

    def __init__(
        self, policy: Policy = "stop", most_roll_backs: int = 3, lr_factor: float = 0.5
    ) -> None:
        if most_roll_backs < 0:
            raise InputError(
                f"flight_recorder.most_roll_backs is {most_roll_backs}; it must be at least 0"
            )
        if not 0 < lr_factor <= 1:
            raise InputError(
                f"flight_recorder.lr_factor is {lr_factor}; it must be above 0 and at most 1"
            )
        self.policy, self.most_roll_backs, self.lr_factor = policy, most_roll_backs, lr_factor
        self.roll_backs, self.lr0 = 0, 0.0
        self.incident: Incident | None = None
        self._restored: dict[str, Any] = {}
        self._fitting = False
        self._hook: Any = None
        self._place: Place | None = None  # the batch at work
        self._window: list[int] = []  # images of the accumulation window before this batch
        self._loss = torch.zeros(())  # as it went into the backward pass
        self._parts: dict[str, Tensor] | None = None  # of the loss, by name

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._fitting, self.incident, self._place = False, None, None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._fitting = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        self.lr0 = pl_module.lr
        for known in (self._restored, self._recorded(trainer)):
            if known.get("lr0") == self.lr0:
                self.roll_backs = max(self.roll_backs, known["roll_backs"])
        pl_module.lr_scale = self.lr_factor**self.roll_backs
        self._window = []
        self._hook = pl_module.loss.register_forward_hook(
            lambda module, _, output: self._see(pl_module, output)
        )

    def _recorded(self, trainer: L.Trainer) -> dict[str, Any]:
        """What roll_backs.json says, in all processes the same; a run that starts afresh has no
        such file."""
        known: dict[str, Any] = {}
        if trainer.is_global_zero and trainer.ckpt_path:
            known = read_or_set_aside(_record(trainer), _read_record, dict)
        elif trainer.is_global_zero:
            remove(_record(trainer))
        return trainer.strategy.broadcast(known)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self._place, self._parts = Place("train", batch_idx, list(batch.indices)), None

    def _see(self, module: Detector, output: LossOutput) -> None:
        """Keeps the parts of a training loss for the report."""
        if module.loss.training:
            self._parts = output[1]

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        self._loss = loss.detach()

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        assert self._place is not None
        if self.policy == "off":
            return
        steps = ends_in_step(trainer, self._place.batch)
        checked = _parameters(trainer) if steps and _scaler(trainer) is None else []
        bad_loss, bad_gradients = not_finite(self._loss, checked, trainer.world_size)
        if bad_loss:
            self._handle(trainer, pl_module, "non-finite loss", own=not self._loss.isfinite())
        if bad_gradients:
            self._handle(trainer, pl_module, "non-finite gradient", own=True)

    def _handle(self, trainer: L.Trainer, module: Detector, kind: Kind, own: bool) -> NoReturn:
        """Report a loss or gradients that are not finite, and raise, in all processes at once.

        Args:
            own: they are not finite in this process.
        """
        assert self._place is not None
        bad = not_finite_names(module)
        facts = (
            own,
            trainer.global_rank,
            self._place.indices,
            self._window,
            _losses(self._parts),
            bad,
        )
        everyone: list[Any] = [facts]
        if trainer.world_size > 1:
            everyone = [None] * trainer.world_size
            dist.all_gather_object(everyone, facts)
        _, ranks, indices, windows, losses, names = zip(*(f for f in everyone if f[0]), strict=True)
        place = self._place._replace(indices=list(chain(*indices)))

        error: type[Incident] = Incident
        if self.policy == "roll_back" and self.roll_backs < self.most_roll_backs:
            self.roll_backs += 1
            error, done = RollBack, f"roll-back {self.roll_backs} of {self.most_roll_backs}"
        else:
            done = (
                f"stopped, after {self.roll_backs} roll-backs"
                if self.policy == "roll_back"
                else "stopped"
            )
        report = None
        if trainer.is_global_zero:
            extra = {
                "window": list(chain(*windows)),
                "losses": losses[0],
                "parameters": names[0],
                "processes": list(ranks),
            }
            report = write_report(trainer, kind, place, **extra, **self._settings(), done=done)
            if error is RollBack:
                with not_fatal(_record(trainer)):
                    text = json.dumps(self.state_dict())
                    write_atomically(_record(trainer), lambda file: file.write(text.encode()))
        # all processes wait for it: one that exits may kill the one that writes
        report = trainer.strategy.broadcast(report)
        message = sentence(trainer, kind, place, report, done=done)
        raise error(f"{message}; {ADVICE[kind]}", report)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert self._place is not None
        self._window = (
            [] if ends_in_step(trainer, batch_idx) else self._window + self._place.indices
        )
        self._place = None

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._place, self._parts = Place("val", batch_idx, list(batch.indices)), None

    def on_validation_batch_end(self, *_: Any) -> None:
        self._place = None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._remove_hook()

    def _remove_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Report a crash with what this process knows, without asking the others. One that has only
        lost contact with a crashed process reports nothing."""
        self._remove_hook()
        if (
            not self._fitting
            or trainer.state.fn != TrainerFn.FITTING
            or isinstance(exception, Incident)
        ):
            return
        if lost_contact(exception):
            return
        kind = kind_of(exception)
        is_user_error = kind == "other" and isinstance(
            exception, InputError | MisconfigurationException
        )
        if is_user_error or not isinstance(exception, Exception):
            return
        place = self._place or place_between_batches(trainer, upcoming=kind != "other")
        extra = {
            "window": self._window,
            "losses": _losses(self._parts) if self._place else None,
            "exception": "".join(traceback.format_exception_only(exception)).strip(),
            "traceback": "".join(traceback.format_exception(exception)),
        }
        report = write_report(trainer, kind, place, **extra, **self._settings(), done="stopped")
        exception.add_note(f"report: {report}")
        if kind != "other":
            self.incident = Incident(
                f"{sentence(trainer, kind, place, report, crash=exception)}; {ADVICE[kind]}", report
            )

    def _settings(self) -> dict[str, Any]:
        return {"policy": self.policy, "roll_backs": self.roll_backs}

    def state_dict(self) -> dict[str, Any]:
        return {"roll_backs": self.roll_backs, "lr0": self.lr0}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict


def _record(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "checkpoints" / "roll_backs.json"


def _read_record(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return {"roll_backs": int(content["roll_backs"]), "lr0": float(content["lr0"])}


def _parameters(trainer: L.Trainer) -> list[nn.Parameter]:
    return [p for group in trainer.optimizers[0].param_groups for p in group["params"]]


def _scaler(trainer: L.Trainer) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)


def _losses(parts: dict[str, Tensor] | None) -> dict[str, float] | None:
    with contextlib.suppress(RuntimeError):  # the device has crashed
        return (
            None
            if parts is None
            else {loss_label(name): float(value) for name, value in parts.items()}
        )
    return None
