"""Sharded training equals DDP; machines without a common folder."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from agreement import assert_close
from made_runs import load, read, small_fit, train, type_line
from ranks import ROOT, free_port, run_all

from benchmarks.resume_fuzz import difference
from boltbox.detector.distributed.process_group import processes_and_machines
from boltbox.detector.system.errors import InputError


def fit(data, run, more):
    """An epoch of three batches; windows of three batches; frozen layers."""
    own = "--model.optim.nominal_batch_size 24 --model.start.freeze 2 --warmup.warmup_epochs 1"
    own += f" --trainer.max_epochs 1 {more}"
    return [str(ROOT / "cli.py")] + small_fit(data, Path(run), *own.split())


def validate(checkpoint, more=""):
    line = f"validate --ckpt_path {checkpoint} --run validated --report.enabled false {more}"
    type_line(line)
    return read("validated/metrics.json")["coco/AP"]


def test_sharded_training_equals_ddp(small_data, here):
    """It stops in the middle of a window and resumes bit for bit; DDP trains the same from the same
    checkpoint; and one process validates it."""
    whole = here / "whole"
    cut = here / "cut"
    elsewhere = here / "elsewhere"

    def job(run, more):
        line = [sys.executable] + fit(
            small_data, run, f"--trainer.devices 2 --trainer.strategy {more}"
        )
        return line, here / f"log of {more} {run.name}"

    kill = "fsdp2 --trainer.callbacks benchmarks.resume_fuzz.Kill"
    slurm = {"SLURM_NTASKS": "1"}  # a job that starts its processes itself
    ends = run_all(job(whole, "fsdp2"), job(cut, kill), BOLTBOX_KILL="batch:1:SIGTERM", **slurm)
    assert next(zip(*ends, strict=True)) == (0, 143), ends
    content = load(cut / "checkpoints/last.ckpt")
    gradients = content["processes"][0]["gradients"].values()
    assert any(gradient.abs().max() > 0 for gradient in gradients), "no open window"
    shutil.copytree(cut, elsewhere)
    resume = "--ckpt_path last --trust_parts true"
    ddp = f"ddp --trainer.callbacks agreement.Contiguous {resume}"
    ends = run_all(job(cut, f"{kill} {resume}"), job(elsewhere, ddp), BOLTBOX_KILL="")
    assert next(zip(*ends, strict=True)) == (0, 0), ends
    assert difference(cut, whole) == ""
    assert_close(elsewhere, whole)
    assert validate(whole / "checkpoints/last.ckpt", "--trainer.devices 1") >= 0


def test_a_checkpoint_without_average_is_validated(small_data, here):
    short = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --ema.enabled false"
    train(small_data, here / "run", short)
    trained = read("run/metrics.json")["coco/AP"]
    assert validate(here / "run/checkpoints/last.ckpt") == pytest.approx(trained, abs=1e-3)


def test_two_machines_without_a_common_folder(small_data, here):
    """Two torchrun agents in folders of their own, tasks of Slurm in another order: the second
    writes nothing; a checkpoint or options that differ end both, also two tasks of srun."""
    short = "--trainer.max_epochs 1 --trainer.limit_train_batches 2 --trainer.limit_val_batches 0"

    def machines(first, second, more="", of_second="", srun=False):
        """Their exit codes, and what they print."""
        port = free_port()
        jobs = []
        for machine, folder in enumerate((first, second)):
            torchrun = f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1"
            torchrun += f" --master-port {port} --master-addr localhost --node-rank {machine} --"
            task = f"env SLURM_PROCID={1 - machine} {torchrun}"
            if srun:
                task = f"env MASTER_ADDR=localhost MASTER_PORT={port} SLURM_JOB_NAME=interactive"
                task += " SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2"
                task += f" SLURM_PROCID={machine} SLURM_NODEID={machine} SLURM_LOCALID=0"
                task += f" {sys.executable}"
            line = fit(small_data, "run", f"{short} {more} {of_second if machine else ''}")
            jobs.append((task.split() + line, here / folder))
        (code, log), (other_code, other_log) = run_all(*jobs)
        return (code, other_code), log + other_log

    codes, log = machines("first", "second")
    assert codes == (0, 0)
    assert "saved: " in log
    assert (here / "first/run/checkpoints/last.ckpt").is_file()
    assert os.listdir("second") == ["log.txt"]
    codes, log = machines("first", "second", "--trainer.max_epochs 2 --ckpt_path auto")
    assert codes == (1, 1)
    assert "error: the checkpoint is not the same" in log
    codes, log = machines("third", "fourth", of_second="--model.optim.lrf 0.02", srun=True)
    assert codes == (2, 2)
    assert "error: model.optim.lrf is not the same in all processes (0.01, 0.02)" in log
    relabelled = shutil.copytree(small_data.parent, here / "relabelled")
    next(relabelled.glob("labels/train/*.txt")).write_text("")
    codes, log = machines("third", "fourth", of_second=f"--data.dataset {relabelled}")
    assert codes == (1, 1)
    assert "error: train is not the same in all processes" in log
    assert not Path("third/run").exists()


def test_tasks_of_srun(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "3,1")
    with pytest.raises(InputError, match="same number of tasks"):
        processes_and_machines()
    monkeypatch.setenv("SLURM_JOB_NAME", "bash")  # of `srun --ntasks 4 --pty bash`
    assert processes_and_machines() is None
