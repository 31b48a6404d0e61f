"""The command `evolve`: a small search from start to end, kills, and what it refuses."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from forked import forks
from made_runs import column, is_running, read, type_line, until
from optuna import load_study
from optuna.trial import TrialState

import cli
from boltbox.detector.commands.evolve import search
from boltbox.detector.commands.evolve.space import EVOLVED
from boltbox.detector.commands.evolve.study import Evolution, planned
from boltbox.detector.commands.evolve.trainings import environments
from boltbox.detector.system.csv_table import read_table

TINY = "--model.network.width_multiple 0.125 --model.network.depth_multiple 0.1 --model.network.levels [5] --data.image_size 64 --data.batch_size 6 --data.workers 0 --trainer.accelerator cpu --trainer.precision 32-true"
SHORT = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 1 --autoanchor.enabled false"
SCRIPT = Path(cli.__file__)
SPACE = ("scale", "mosaic")
HOLD = """
import os, time
from pathlib import Path
import lightning as L

class Hold(L.Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 1:
            Path(f"held-{os.getpid()}").touch()
            while not Path("go").exists():
                time.sleep(0.05)
"""


def trials(folder):
    return load_study(study_name="evolve", storage=f"sqlite:///{folder}/study.db").trials


@pytest.fixture
def _no_pictures(monkeypatch):
    """They would be drawn after each individual; test_evolve_study.py has them."""
    monkeypatch.setattr(search, "_draw", lambda *_: None)


@pytest.mark.usefixtures("_no_pictures")
def test_a_generation_of_two(small_data, here, capfd, refused):
    """Each worker trains one, of which one has the configuration's own values. The same command
    then has nothing left to do, and with other options it is refused."""
    Path("space.yaml").write_text("".join(f"{name}:\n" for name in SPACE))
    line = f"evolve --config {SCRIPT.parent}/configs/tensorboard.yaml --data.dataset {small_data}"
    line += f" {TINY} {SHORT} --evolve.generations 1 --evolve.population 2 --evolve.workers 2"
    line += " --evolve.space space.yaml --run found"
    with forks():
        type_line(line)
    printed = capfd.readouterr().out
    keys = re.findall(r"^[^:\n]*", printed, re.MULTILINE)
    assert keys.index("runs") < keys.index("expected") < keys.index("trial 0")
    assert re.search(r"expected: +over \d+:\d\d:\d\d", printed)
    assert re.findall(r"left: +(.*)", printed)[-1] == "0, ETA 0:00:00"
    individuals = trials("found")[:2]
    assert column(individuals, "state") == [TrialState.COMPLETE] * 2
    scales = column(column(individuals, "params"), "scale")
    assert scales == [0.5, 0.9], "as it stands; med.yaml"
    for trial in individuals:
        run = Path(f"found/trials/{trial.number:04d}")
        config = read(run / "config.yaml")
        assert {name: config["data"]["augment"][name] for name in SPACE} == trial.params
        assert config["data"]["cache"] == "none", "two would each take a quarter of the memory"
        assert config["trainer"]["devices"] == "1", "GPUs are numbered from 0"
        assert trial.value == read(run / "metrics.json")["fitness"]
        assert not (run / "plots").exists()
    best = max(individuals, key=lambda t: (t.value or 0, -t.number))
    (file,) = Path("found").glob("trials/*/checkpoints/best.ckpt")
    assert file.parts[2] == f"{best.number:04d}"
    assert column(read_table(Path("found/evolve.csv")), "trial") == list("01")
    evolved = read("found/hyp_evolved.yaml")["data"]["augment"]
    assert evolved == best.params
    steps, values = zip(*logged(Path("found")), strict=True)
    assert list(steps) == column(individuals, "number")
    assert list(values) == pytest.approx(column(individuals, "value"))

    type_line(line)
    assert "2 done" in capfd.readouterr().out
    assert len(read_table(Path("found/evolve.csv"))) == 2
    assert "model.optim.lr0" in refused(f"{line} --model.optim.lr0 0.02")
    assert sorted(column(here.iterdir(), "name")) == ["found", "space.yaml"]

    (proposed,) = re.findall(r"next: +python cli.py (.*)", printed)
    with pytest.raises(SystemExit):
        type_line(f"{proposed} --print_config")
    final = yaml.safe_load(capfd.readouterr().out)
    assert {name: final["data"]["augment"][name] for name in SPACE} == evolved
    assert final["data"]["dataset"] == str(small_data)


def logged(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = folder.rglob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(events)).Reload()
    return sorted((e.step, e.value) for e in accumulator.Scalars("evolve/fitness"))


@pytest.mark.usefixtures("_no_pictures")
def test_kill_9_of_a_training_and_of_the_command(
    small_data, here, monkeypatch, request, quick_starts, refused
):
    """A training that is killed continues from its own checkpoint; so it does with the next command
    after the command was killed, with which it ends."""
    Path("hold.py").write_text(HOLD)
    Path("space.yaml").write_text("scale:\n")
    Path("hold.yaml").write_text("trainer: {callbacks: [{class_path: hold.Hold}]}\n")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    monkeypatch.syspath_prepend(here)
    line = f"evolve --config hold.yaml --data.dataset {small_data} {TINY} {SHORT} --run found"
    line += " --trainer.max_epochs 2 --evolve.generations 1 --evolve.population 2"
    line += " --evolve.space space.yaml"
    program = [sys.executable, str(SCRIPT)] + line.split()
    command = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    request.addfinalizer(command.kill)
    run = Path("found/trials/0000")

    def held():
        (mark,) = until(lambda: list(here.glob("held-*")), "its second epoch", command.poll)
        mark.unlink()
        return int(mark.name.removeprefix("held-"))

    first = held()
    until((run / "checkpoints/last.ckpt").is_file, "its checkpoint", command.poll)
    refused(line)  # one command at a time
    os.kill(first, signal.SIGKILL)
    second = held()
    assert "last.ckpt" in (run / "log.txt").read_text(), "it continues from it"
    before = (run / "metrics.csv").read_text()
    command.kill()
    assert command.wait() == -signal.SIGKILL
    until(lambda: not is_running(second), "its end with the command")
    (trial,) = [trial for trial in trials("found") if trial.state != TrialState.WAITING]
    assert trial.state == TrialState.RUNNING, "nobody could say that it ended"

    Path("go").touch()
    type_line(line)
    assert "last.ckpt" in (run / "log.txt").read_text()
    assert (run / "metrics.csv").read_text().startswith(before)
    individuals = trials("found")[:2]
    assert column(individuals, "state") == [TrialState.COMPLETE] * 2
    assert individuals[0].params == trial.params


def test_what_a_study_is_about(here, capsys):
    """Its seed and its genes; workers may differ."""

    def printed(line):
        with pytest.raises(SystemExit):
            type_line(f"{line} --print_config")
        return yaml.safe_load(capsys.readouterr().out)

    line = "evolve --data.dataset demo --trainer.max_epochs 40"
    plan = planned(Evolution(), printed(f"{line} --seed_everything 7"))
    assert column(plan.genes, "name") == EVOLVED
    assert (plan.seed, plan.evolve.size) == (7, 120)

    workers = planned(Evolution(), printed(f"{line} --evolve.workers 3")).settings
    assert {k for k in workers if workers[k] != plan.settings[k]} == {"seed_everything"}


def test_gpus_are_handed_out(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5,7,8")
    assert column(environments(None, 2), "CUDA_VISIBLE_DEVICES") == ["2,3", "5,7"]
    assert column(environments(3, 1), "CUDA_VISIBLE_DEVICES") == ["2", "3", "5"]
    assert column(environments(None, 1, [1, 3]), "CUDA_VISIBLE_DEVICES") == ["3", "7"]
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert list(map(list, environments(3, 0))) == [["OMP_NUM_THREADS"]] * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert column(environments(3, 0), "OMP_NUM_THREADS") == ["7"] * 3
