"""Options of Lightning's Trainer as its users type them."""

import csv
import logging
from pathlib import Path

from made_runs import QUICK, read, type_line


def test_logger_profiler_and_folder(small_data, here, caplog):
    """The folder is that of the run, with Lightning's lightning_logs in it."""
    lightning = logging.getLogger("lightning.pytorch")
    lightning.addHandler(caplog.handler)
    common = "--trainer.logger CSVLogger --trainer.profiler simple --trainer.devices 1"
    common += " --trainer.default_root_dir mine"
    fit = "--trainer.log_every_n_steps 1 --trainer.limit_train_batches 2 --trainer.max_epochs 1"
    fit += f" --trainer.max_time 00:01:00:00 --data.dataset {small_data} {' '.join(QUICK)}"
    try:
        type_line(f"fit {common} {fit}")
        assert "FIT Profiler Report" in caplog.text
        type_line(f"validate --ckpt_path last {common}")
        assert "VALIDATE Profiler Report" in caplog.text
    finally:
        lightning.removeHandler(caplog.handler)
    assert Path("mine/checkpoints/last.ckpt").is_file()
    logs = Path("mine/lightning_logs/version_0")
    with open(logs / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert len([row for row in table if row["lr/bias"]]) == 2
    assert len([row for row in table if row["val/mAP50"]]) == 1
    options = read(logs / "hparams.yaml")
    assert options["data"]["image_size"] == 64
    assert Path("runs/validate-1/lightning_logs/version_0/metrics.csv").is_file()
