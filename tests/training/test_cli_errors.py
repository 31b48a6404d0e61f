"""Mistakes in a command line of `fit`: one sentence that names the option or the file, exit code 2,
before anything is trained or written."""

from shlex import split

import pytest
import torch
from made_runs import QUICK, fit
from ranks import together

from boltbox.callbacks import recipe
from boltbox.detector.system.errors import InputError

FSDP2 = "--trainer.strategy fsdp2 --trainer.precision"
SYNC = "--trainer.precision 32-true --trainer.sync_batchnorm true"
ERRORS = {  # the options, and what the message names
    "--trainer.max_epoch 3": "did you mean 'trainer.max_epochs'",
    "--data.batch_size many": "data.batch_size",
    "--config http://127.0.0.1:1/a.yaml": "--config http://127.0.0.1:1/a.yaml",
    "--trainer.accelerator cpu --trainer.devices 0,1": "--trainer.devices 2",
    "--trainer.devices cpu": "--trainer.devices 1",
    "--trainer.callbacks+=EarlyStopping": "trainer.callbacks",
    "--trainer.max_steps 3": "trainer.max_steps 3",
    "--trainer.accumulate_grad_batches 4": "model.optim.nominal_batch_size",
    "--trainer.overfit_batches 2": "trainer.overfit_batches 2",
    "--trainer.val_check_interval 00:00:10:00": "trainer.val_check_interval 00:00:10:00",
    "--trainer.check_val_every_n_epoch null": "trainer.check_val_every_n_epoch None",
    "--trainer.precision 64-true": "trainer.precision 64-true",
    "--trainer.precision bf16-true": "trainer.precision bf16-true",
    "--trainer.strategy fsdp": "did you mean 'fsdp2'?",
    f"{FSDP2} 16": "trainer.strategy fsdp2",
    f"{SYNC} --trainer.accelerator cpu": "trainer.sync_batchnorm",
    f"{SYNC} --trainer.strategy fsdp2": "trainer.sync_batchnorm",
    f"{SYNC} --model.network.backbone timm/test_resnet": "trainer.sync_batchnorm",
    # nothing is wrong with these but the file
    f"{SYNC} --data.dataset empty.yaml": "empty.yaml",
    f"{FSDP2} bf16-mixed --data.dataset empty.yaml": "empty.yaml",
    "--model.optim.optimizer torch.optim.LBFGS": "model.optim.optimizer",
    "--model.optim.optimizer Sgd": "model.optim.optimizer",
}


@pytest.mark.parametrize("line", ERRORS)
def test_errors_are_one_sentence(
    line,
    small_data,
    here,
    refused,
    monkeypatch,
):
    (here / "empty.yaml").touch()
    if SYNC in line:  # as with a GPU
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    given = ["fit", "--data.dataset", str(small_data)] + QUICK
    assert ERRORS[line] in refused(given + split(line))
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    "option",
    [{"max_steps": 3}, {"accumulate_grad_batches": 4}, {"overfit_batches": 1}, {"precision": "64-true"}, {"precision": "16-true"}, {"check_val_every_n_epoch": None}],
)  # fmt: skip
def test_the_recipe_of_a_script_refuses_the_same(option):
    with pytest.raises(InputError, match=f"trainer.{next(iter(option))}"):
        recipe(**option)


def test_an_error_of_all_processes_is_printed_once(small_data, here, capfd):
    line = "--trainer.devices 2 --trainer.accelerator cpu --data.batch_size 3 --run run"
    with pytest.raises(Exception, match="terminated with exit code 2"):
        together(fit, small_data, *line.split())
    assert capfd.readouterr().err.count("error: data.batch_size 3") == 1
    assert not (here / "run").exists()
