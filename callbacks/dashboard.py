"""Weights & Biases and TensorBoard: what they show of a training beyond the metrics that Lightning
logs."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.trainer.states import TrainerFn

from boltbox.callbacks.iterations import step_settings
from boltbox.detector.data.sample import Batch
from boltbox.detector.loggers.board import Board, Ending, Evaluation, Picture
from boltbox.detector.loggers.tensorboard_board import TensorBoard
from boltbox.detector.loggers.wandb_board import WandbBoard
from boltbox.detector.report.batch_pictures import label_rows, pixels, prediction_rows
from boltbox.detector.report.folder import best_epoch
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.yaml_text import load_yaml
from boltbox.detector.training.module import Detector

BOXES = 100  # an image, the surest
FOR_PLOTS = 0.1  # of the megabytes, which epochs leave to the plots at the end


class Dashboard(L.Callback):
    """Does nothing without a W&B or a TensorBoard logger. docs/dashboards.md has the names and
    steps of all that is shown.

    A dashboard that fails is printed as a warning and gets nothing more; training goes on.

    Args:
        images: Images of the first validation batch that are shown with their boxes; 0 is off.
        conf: Least confidence of a detection to show; W&B has a slider to raise it.
        every: Tables, curves and images every so many epochs, and after the last.
        megabytes: Most of tables, curves, images and plots together, in a run, on each dashboard.
        artifacts: Checkpoints that W&B gets at the end: none, best, last, or all: both, and those
            of checkpoints.save_period.

    Raises:
        InputError: an option out of its range.
    """

    def __init__(
        self,
        images: int = 8,
        conf: float = 0.25,
        every: int = 1,
        megabytes: float = 200.0,
        artifacts: Literal["none", "best", "last", "all"] = "none",
    ) -> None:
        for name, value, least in (
            ("images", images, 0),
            ("every", every, 1),
            ("megabytes", megabytes, 0),
        ):
            if value < least:
                raise InputError(f"dashboard.{name} is {value}; it must be at least {least}")
        self.images, self.conf, self.every, self.megabytes, self.artifacts = (
            images,
            conf,
            every,
            megabytes,
            artifacts,
        )
        # metrics of the best epoch so far, by the names that are shown
        self.best: dict[str, float] = {}
        self.sent: dict[str, int] = {}  # bytes by dashboard
        self._boards: list[Board] = []
        self._pictures: list[Picture] = []  # of the current validation
        self._step = -1  # the last optimizer step
        self._losses: tuple[str, ...] = ()  # what the boards know of their names

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After RunFolder has written config.yaml, and a checkpoint is restored."""
        assert isinstance(pl_module, Detector)
        self._boards, self._losses = [], ()
        for logger in trainer.loggers if trainer.is_global_zero else []:
            if isinstance(logger, WandbLogger):
                self._boards.append(WandbBoard(logger))
            elif isinstance(logger, TensorBoardLogger):
                self._boards.append(TensorBoard(logger))
        if self._boards:
            # without RunFolder there may be none
            config = Path(trainer.default_root_dir) / "config.yaml"
            options = (
                load_yaml(config.read_text())
                if config.is_file()
                else {"model": dict(pl_module.hparams)}
            )
            options["names"] = list(pl_module.names)
            self._tell(lambda board: board.start(options, self.best))

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = trainer.global_step - 1

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """After an optimizer step: its learning rates, momentum and accumulation."""
        if self._boards and not self._losses:
            self._losses = tuple(outputs["parts"])
            self._tell(lambda board: board.losses(self._losses))
        if not self._boards or trainer.global_step - 1 == self._step:
            return
        step = self._step = trainer.global_step - 1
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if not every or step % every:
            return
        assert isinstance(pl_module, Detector)
        metrics = step_settings(trainer, pl_module)
        self._tell(lambda board: board.metrics(metrics, step))

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        *_: Any,
    ) -> None:
        if batch_idx or not self._is_due(trainer):
            return
        labels, predictions = (
            label_rows(batch),
            prediction_rows(batch, outputs["detections"], self.conf),
        )
        images = zip(pixels(batch, self.images), labels, predictions, strict=False)
        self._pictures = [Picture(image, old, new[:BOXES]).shrunk() for image, old, new in images]

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Detector)
        result, pictures, self._pictures = pl_module.result, self._pictures, []
        if not self._boards or not _trains(trainer) or result is None:
            return
        epoch, step = trainer.current_epoch, max(trainer.global_step - 1, 0)
        if result.summary["fitness"] > self.best.get("best/fitness", -1):
            metrics = {
                name: float(value) for name, value in result.summary.items() if math.isfinite(value)
            }
            self.best = {
                "best/epoch": epoch,
                **{f"best/{name}": value for name, value in metrics.items()},
            }
            self._tell(lambda board: board.best(self.best, step))
        if self._is_due(trainer):
            evaluation = Evaluation(result, pl_module.names, epoch, step, pictures)
            self._tell(lambda board: self._show(board, evaluation))

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """When all callbacks have written their files, and before loggers close theirs. Not after
        an exception."""
        if stage != "fit" or not self._boards:
            return
        assert isinstance(pl_module, Detector)
        run, best = Path(trainer.default_root_dir), best_epoch(Path(trainer.default_root_dir))
        plots = sorted(p for p in (run / "plots").glob("*") if p.suffix in (".png", ".jpg"))
        epoch = max(trainer.current_epoch - 1, 0)  # Lightning has already counted the next one
        self._tell(
            lambda board: board.ending(
                Ending(epoch, trainer.global_step, best, self._within_limit(board, plots))
            )
        )
        for path in self._chosen(run / "checkpoints"):
            metadata = {
                **(best if path.stem == "best" else {}),
                "names": list(pl_module.names),
                "run": run.name,
            }

            def send(board: Board, path: Path = path, metadata: dict[str, Any] = metadata) -> None:
                board.artifact(path, path.stem, metadata)

            self._tell(send)
        self._boards = []

    def _is_due(self, trainer: L.Trainer) -> bool:
        """Whether this validation is shown with tables, curves and images."""
        if not self._boards or not _trains(trainer):
            return False
        return (
            trainer.current_epoch % self.every == 0
            or trainer.current_epoch + 1 == trainer.max_epochs
        )

    def _show(self, board: Board, evaluation: Evaluation) -> None:
        most, sent = self.megabytes * 1e6 * (1 - FOR_PLOTS), self.sent.get(board.title, 0)
        if sent >= most:
            return
        self.sent[board.title] = sent + board.evaluation(evaluation)
        if self.sent[board.title] >= most:
            rank_zero_print(
                f"{board.title} has got {self.sent[board.title] / 1e6:.3g} MB of tables, curves and"
                f" images, and gets no more (dashboard.megabytes is {self.megabytes:g}); figures"
                " go on"
            )

    def _within_limit(self, board: Board, plots: list[Path]) -> list[Path]:
        """The plots that fit into the limit; the names of the others are printed."""
        fitting, left_out = [], []
        for path in plots:
            size = self.sent.get(board.title, 0) + path.stat().st_size
            if size <= self.megabytes * 1e6:
                self.sent[board.title] = size
                fitting.append(path)
            else:
                left_out.append(path.name)
        if left_out:
            rank_zero_print(
                f"{board.title} does not get {', '.join(left_out)}: dashboard.megabytes is"
                f" {self.megabytes:g}"
            )
        return fitting

    def _chosen(self, folder: Path) -> list[Path]:
        """Checkpoints that W&B gets: those of certain epochs, then last and best, so that its alias
        `latest` is the best."""
        epochs = (
            sorted(folder.glob("epoch*.ckpt"), key=lambda p: p.stat().st_mtime)
            if self.artifacts == "all"
            else []
        )
        names = [name for name in ("last", "best") if self.artifacts in (name, "all")]
        return [*epochs, *(p for p in (folder / f"{name}.ckpt" for name in names) if p.is_file())]

    def _tell(self, what: Callable[[Board], None]) -> None:
        """Tell every dashboard; one that fails gets no more."""
        for board in list(self._boards):
            try:
                what(board)
            except Exception as e:  # a service, a network or a full disk may raise anything
                self._boards.remove(board)
                told = f"{type(e).__name__}: {' '.join(str(e).split())}"
                rank_zero_print(
                    f"warning: {board.title} failed ({told}); training goes on without its tables"
                    " and images"
                )

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "spent": self.sent}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.sent = dict(state_dict["best"]), dict(state_dict["spent"])


def _trains(trainer: L.Trainer) -> bool:
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
