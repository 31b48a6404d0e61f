"""The run's folder, made when all that could fail early has gone well."""

from pathlib import Path

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn

from detector.errors import InputError


class RunFolder(L.Callback):
    """Makes the Trainer's default_root_dir and writes there config.yaml, and dropped.txt if labels or images were left out.

    Args:
        config: text of config.yaml.
        fresh: the folder must not hold a run yet.
    """

    def __init__(self, config: str, fresh: bool) -> None:
        self.config, self.fresh = config, fresh

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if trainer.is_global_zero:
            folder = Path(trainer.default_root_dir)
            if self.fresh and (folder / "config.yaml").exists():
                raise InputError(f"{folder} already holds a run: continue it with --ckpt_path last, or name another folder")
            folder.mkdir(parents=True, exist_ok=True)
            config = folder / "config.yaml"
            if config.exists() and stage != TrainerFn.FITTING:  # that of the fit stays
                config = folder / f"config.{TrainerFn(stage).value}.yaml"
            config.write_text(self.config)
            datasets = trainer.datamodule.datasets  # type: ignore[attr-defined]
            dropped = [f"{split}: {fault}\n" for split, data in datasets.items() for fault in data.report.left_out]
            if dropped:
                (folder / "dropped.txt").write_text("".join(dropped))
