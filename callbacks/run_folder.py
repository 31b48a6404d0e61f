"""The run's folder, made when all that could fail early has gone well: data, network, checkpoint."""

from pathlib import Path

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

from detector.errors import InputError
from detector.files import write_atomically


class RunFolder(L.Callback):
    """Makes the Trainer's default_root_dir and writes there config.yaml, and dropped.txt if labels or images were left out.

    Args:
        config: text of config.yaml.
        fresh: the folder must not hold a run yet.
    """

    def __init__(self, config: str, fresh: bool) -> None:
        self.config, self.fresh = config, fresh

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        folder = Path(trainer.default_root_dir)
        if trainer.is_global_zero and self.fresh and (folder / "config.yaml").exists():
            raise InputError(f"{folder} already holds a run: continue it with --ckpt_path last, or name another folder")

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._make(trainer, "config.yaml")

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """As for test and predict: the config.yaml of a fit stays."""
        if trainer.state.fn and trainer.state.fn != TrainerFn.FITTING:
            first = not (Path(trainer.default_root_dir) / "config.yaml").exists()
            self._make(trainer, "config.yaml" if first else f"config.{trainer.state.fn.value}.yaml")

    on_test_start = on_predict_start = on_validation_start

    def _make(self, trainer: L.Trainer, name: str) -> None:
        self.fresh = False  # a roll-back comes by again
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / name, self.config)
        datasets = trainer.datamodule.datasets  # type: ignore[attr-defined]
        dropped = [f"{split}: {fault}\n" for split, data in datasets.items() for fault in data.report.left_out]
        if dropped:
            _write(folder / "dropped.txt", "".join(dropped))


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))
