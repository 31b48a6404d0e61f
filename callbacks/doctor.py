"""A short check of the dataset before a training."""

import lightning as L

from boltbox.detector.commands.doctor.finding import brief
from boltbox.detector.commands.doctor.labels import examine_labels
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.trainer_data import data_of


class DoctorCheck(L.Callback):
    """Before a training: boxes past the frame, labels without images, classes without examples, ...
    in a few lines. No image is opened; the command `doctor` checks everything.

    Args:
        enabled: Off: no check.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.enabled or not trainer.is_global_zero:
            return
        data = data_of(trainer, "the doctor does not check them")
        if data is None:
            return
        findings = examine_labels(data.file, data.datasets, data.image_size, data.tile_size)
        lines = brief(findings, data.file.source)
        if not trainer.ckpt_path and not data.single_class:
            lines = data.file.without_names() + lines
        for line in lines:
            rank_zero_print(line)
