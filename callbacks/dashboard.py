"""What loggers show of a training beyond the metrics that Lightning logs."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
from lightning.pytorch.loggers import Logger, WandbLogger

from boltbox.callbacks.pictures import Pictures
from boltbox.detector.data.images import read_image
from boltbox.detector.loggers.media import Time, show_classes, show_image, show_images
from boltbox.detector.report.drawing import BatchImage
from boltbox.detector.report.folder import best_epoch
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.text_file import load_yaml
from boltbox.detector.training.module import Detector
from boltbox.detector.training.trainer_options import ends_in_step

IMAGES = 8  # of the first validation batch, shown with their boxes


class Dashboard(L.Callback):
    """Does nothing without a logger. docs/dashboards.md has the names and steps of all that is
    shown.

    Tables and images are shown about 20 times in a run, and after its last epoch. A logger
    that fails here is printed as a warning and gets nothing more; training continues.
    """

    def __init__(self) -> None:
        self._loggers: list[Logger] = []

    def on_fit_start(self, trainer: L.Trainer, pl_module: Detector) -> None:
        """After RunFolder has written config.yaml."""
        if trainer.is_global_zero:
            self._loggers = list(trainer.loggers)
        options: dict[str, Any] = dict(pl_module.hparams)
        config = Path(trainer.default_root_dir) / "config.yaml"  # without RunFolder there is none
        if config.is_file():
            options = load_yaml(config.read_text("utf-8"))
        options["names"] = list(pl_module.names)

        def start(logger: Logger) -> None:
            if isinstance(logger, WandbLogger):
                for names in ("train/*", "val/*"):
                    logger.experiment.define_metric(names, step_metric="epoch")
            logger.log_hyperparams(options)

        self._show(start)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Detector, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]
        is_step = ends_in_step(trainer, batch_idx)
        if not self._loggers or not every or not is_step or trainer.global_step % every:
            return
        groups = trainer.optimizers[0].param_groups
        rates = {f"lr/{group['name']}": float(group["lr"]) for group in groups}
        step = trainer.global_step - 1
        self._show(lambda logger: logger.log_metrics(rates, step))

    def on_validation_end(self, trainer: L.Trainer, pl_module: Detector) -> None:
        result = pl_module.evaluation.result
        names = pl_module.names
        epoch = trainer.current_epoch
        if trainer.state.fn != "fit" or trainer.sanity_checking or not self._loggers:
            return
        if result is None or not is_due(epoch, trainer.max_epochs or 1):
            return
        time = Time(epoch, max(trainer.global_step - 1, 0))
        content = result.to_json(names)
        images: list[BatchImage] = []
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Pictures):
                images += callback.images[:IMAGES]

        def show(logger: Logger) -> None:
            show_classes(logger, "val/per_class", content, time)
            if images:
                show_images(logger, "val/images", images, names, time)

        self._show(show)

    def teardown(self, trainer: L.Trainer, pl_module: Detector, stage: str) -> None:
        """When all callbacks have written their files, and before loggers close theirs. Not after
        an exception."""
        if stage != "fit" or not self._loggers:
            return
        run = Path(trainer.default_root_dir)
        # Lightning has already counted the next epoch
        time = Time(max(trainer.current_epoch - 1, 0), trainer.global_step)
        best = best_epoch(run)
        metrics = {}
        for name, value in best.items():
            if isinstance(value, float) or name == "epoch":
                metrics[f"best/{name}"] = value
        # what Lightning's ModelCheckpoint tells a logger, which uploads as its log_model says
        saved: Any = SimpleNamespace(
            save_top_k=1,
            monitor="val/fitness",
            best_model_path=str(run / "checkpoints/best.ckpt"),
            best_model_score=best.get("fitness"),
        )

        def finish(logger: Logger) -> None:
            if metrics:
                logger.log_metrics(metrics, time.step)
            for path in sorted((run / "plots").glob("*.[jp]*g")):
                show_image(logger, f"plots/{path.name}", read_image(path), time)
            logger.after_save_checkpoint(saved)

        self._show(finish)
        self._loggers = []

    def _show(self, show: Callable[[Logger], None]) -> None:
        """Call `show` with every logger; one that fails gets no more."""
        for logger in list(self._loggers):
            try:
                show(logger)
            except Exception as e:  # a service, a network or a full disk may raise anything
                self._loggers.remove(logger)
                rank_zero_print(
                    f"warning: {type(logger).__name__} failed ({type(e).__name__}: {e}); training"
                    " continues without its tables and images"
                )


def is_due(epoch: int, epochs: int) -> bool:
    """Whether tables and images of an epoch are shown, if it was validated.

    Args:
        epoch: From 0.
        epochs: Of the training.
    """
    period = max(epochs // 20, 1)
    if epoch + 1 == epochs:
        return True
    return (epoch + 1) % period == 0
