"""Where the loggers of a run write, and how they continue after a checkpoint."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from boltbox.detector.training.trainer_options import as_list


def place_loggers(loggers: Any, run: Path, checkpoint: Mapping[str, Any]) -> None:
    """Fill in options of trainer.logger, before the loggers are made.

    Loggers without a folder write into the run folder. In a training that continues, W&B
    continues in the same run, and TensorBoard drops what was logged after the checkpoint. Without
    an API key W&B would ask for one on the terminal: it writes offline files instead.

    Args:
        loggers: trainer.logger as parsed: a bool, None, or one or several loggers with class_path
            and init_args; changed in place.
        run: Folder of the run.
        checkpoint: Content of the training checkpoint that is continued; empty for a new run.
    """
    for logger in as_list(loggers):
        if isinstance(logger, bool):
            continue
        arguments = logger.init_args
        name = logger.class_path.rpartition(".")[2]
        if arguments.get("save_dir", run) in (None, "", "."):
            arguments.save_dir = str(run)
        if checkpoint and name == "TensorBoardLogger" and arguments.purge_step is None:
            arguments.purge_step = checkpoint["global_step"]
        if name == "WandbLogger":
            if not arguments.name:
                arguments.name = run.resolve().name
            if not arguments.id:
                arguments.id = checkpoint.get("run", {}).get("wandb")
            # a parent's, which takes a killed run for one that is still active
            os.environ.pop("WANDB_SERVICE", None)
            import wandb

            if not wandb.login(verify=False, prompt=False):
                os.environ.setdefault("WANDB_MODE", "offline")
                if wandb.run is None:
                    wandb.teardown()  # `login` has read the environment before
