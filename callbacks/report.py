"""The report at the end of a run."""

from pathlib import Path

import lightning as L

from boltbox.detector.report.charts import draw_labels
from boltbox.detector.report.page import write_report
from boltbox.detector.system.rank_zero import print_fact, program, rank_zero_print
from boltbox.detector.training.trainer_data import data_of


class Report(L.Callback):
    """After fit, validate and test: report.html in the run folder, one page that needs no network,
    and its pictures in plots/. It is made from the files in the folder, in seconds; the command
    `report` writes it again. An error in it is printed as a warning.

    Args:
        enabled: Write the report.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit":
            self.on_fit_end(trainer, pl_module)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """As for test."""
        run = Path(trainer.default_root_dir)
        if not self.enabled or not trainer.is_global_zero:
            return
        try:
            data = data_of(trainer, "the report shows neither images nor statistics of the labels")
            if data:
                draw_labels(data.datasets, run / "plots/labels.png")
            page = write_report(run)
        except Exception as e:  # the training is done and must not fail because of its report
            why = " ".join(f"{type(e).__name__}: {e}".split())
            rank_zero_print(f"warning: no report ({why}); try again with: {program()} report {run}")
        else:
            print_fact("report", page)

    on_test_end = on_fit_end
