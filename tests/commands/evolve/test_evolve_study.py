"""The study of an evolution: what the samplers choose, what is retried, and what is left in the
folder."""

import itertools
import os
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import optuna
import pytest
from made_runs import column, read, until
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from PIL import Image

from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.commands.evolve import study as study_module
from boltbox.detector.commands.evolve import trainings as module
from boltbox.detector.commands.evolve.search import report, write_outputs
from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.commands.evolve.study import Evolution, Outcome, Plan, Study
from boltbox.detector.commands.evolve.trainings import QUIET, Workers, train_all
from boltbox.detector.system.csv_table import read_table

GENES = (YOLOV5_GENES["scale"], YOLOV5_GENES["lr0"]._replace(log=True), YOLOV5_GENES["anchors"])
START = {"scale": 0.1, "lr0": 0.0512345, "anchors": 9}
EVOLUTION = Evolution(population=4, generations=3)
PLAN = Plan(GENES, EVOLUTION, start=(START, START), seed=3)


def fitness(values):
    """1 at (0.6, 0.01, 4)."""
    off = np.array(
        [values["scale"] - 0.6, np.log10(values["lr0"] / 0.01) / 4, (values["anchors"] - 4) / 8]
    )
    return float(np.exp(-(off**2).sum()))


def search(folder, plan=PLAN):
    study = Study(folder, plan)
    while trial := study.ask():
        metrics = {"val/mAP50": 0.625, "val/P": 0.75}
        study.tell(trial.number, Outcome(fitness(trial.params), metrics))
    return study


def individuals(study):
    return [(t.number, t.user_attrs["generation"], t.params, t.value) for t in study.ended()]


def kill_at_write(patch, k):
    """An interrupt before (k odd) or after (k even) the k-th write to the storage."""
    count = itertools.count()

    def killed(write):
        def call(*args, **options):
            at = next(count)
            if at == k and k % 2:
                raise KeyboardInterrupt
            result = write(*args, **options)
            if at == k:
                raise KeyboardInterrupt
            return result

        return call

    writes = [name for name in vars(RDBStorage) if name.startswith(("set_", "create_new_trial"))]
    assert len(writes) >= 6
    for name in writes:
        patch.setattr(RDBStorage, name, killed(getattr(RDBStorage, name)))


def test_what_samplers_choose(tmp_path):
    chosen = []
    for sampler in ("yolov5", "tpe"):
        plan = PLAN._replace(evolve=replace(EVOLUTION, sampler=sampler))
        found = individuals(search(tmp_path / sampler, plan))
        assert column(found, slice(2)) == [(number, number // 4) for number in range(12)]
        assert found[0][2] == START
        assert len({tuple(values.values()) for _, _, values, _ in found}) == 12, "no copies"
        for _, _, values, _ in found:
            for gene in GENES:
                assert gene.low <= values[gene.name] <= gene.high
            assert isinstance(values["anchors"], int)
        chosen.append(found)
    assert chosen[0] != chosen[1]


def test_a_kill_at_any_write_loses_no_individual(tmp_path, monkeypatch):
    """Each of 12 commands is killed at another write. The individuals, their order and their values
    are those of a search without a kill."""
    folder = tmp_path / "killed"
    for k in range(12):
        with monkeypatch.context() as patch:
            kill_at_write(patch, k)
            with pytest.raises(KeyboardInterrupt):
                search(folder)
    assert individuals(search(folder)) == individuals(search(tmp_path / "at_once"))


def test_outputs(tmp_path):
    """The table with YOLOv5's columns first, and the best as an overlay; half of
    the individuals fail, and one is still trained."""
    study = Study(tmp_path, PLAN)
    write_outputs(study)
    assert set(os.listdir(tmp_path)) == {"study.db", "evolve.csv"}
    for k in range(7):
        trial = study.ask()
        outcome = Outcome(fitness(trial.params), {"val/mAP50": 0.625, "val/P": 0.75})
        study.tell(
            trial.number, Outcome(None, reason="the abacus\nis broken") if k % 2 else outcome
        )
    study.ask()
    write_outputs(study)
    assert (tmp_path / "evolve.csv").read_text().splitlines()[0] == (
        "metrics/precision,metrics/recall,metrics/mAP_0.5,metrics/mAP_0.5:0.95,val/box_loss,val/obj_loss,val/cls_loss,"
        "scale,lr0,anchors,generation,trial,state,fitness,seconds,reason"
    )
    table = read_table(tmp_path / "evolve.csv")
    trials = study.ended()
    rates = column(column(trials, "params"), "lr0")
    assert list(map(float, column(table, "lr0"))) == rates
    assert column(table, "state") == ["done", "failed"] * 3 + ["done"]
    assert table[1]["reason"] == "the abacus is broken"
    assert (table[0]["metrics/precision"], table[0]["metrics/recall"]) == ("0.75", "")
    best = max(trials, key=lambda t: t.value or 0)
    options = read(tmp_path / "hyp_evolved.yaml")
    assert options["model"]["optim"]["lr0"] == best.params["lr0"]
    assert options["model"]["network"]["anchors"] == best.params["anchors"]
    assert Image.open(tmp_path / "evolve.png").width == 1650, "however many genes"


def test_what_gives_signs_of_life_is_left_alone(tmp_path, monkeypatch):
    """However long it takes; after GRACE without a sign it waits for another training."""
    clock = SimpleNamespace(time=lambda: 0.0, monotonic=lambda: 0.0)
    monkeypatch.setattr(study_module, "time", clock)
    study = Study(tmp_path, PLAN)
    trial = study.ask()
    states = []
    for sign, seconds in ((1, 500), (2, 1000), (2, 1500), (2, 2000)):
        trial.set_user_attr("worker", ("another", sign))
        clock.monotonic = partial(float, seconds)
        study.beat([])
        states.append(study.trials()[0].state)
    assert states == [TrialState.RUNNING] * 3 + [TrialState.WAITING]


FIT = """
import json, os, signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
run, a = options["--run"], float(options["--data.augment.scale"])
os.makedirs(run + "/checkpoints", exist_ok=True)
open(run + "/starts", "a").write("1")
open(run + "/options.json", "w").write(json.dumps([options, os.environ.get("BOLTBOX_RUN"), os.environ["WORKER"]]))
signal.signal(signal.SIGTERM, lambda *_: (open(run + "/checkpoints/saved", "w"), sys.exit(143)))
if os.path.exists(run + "/in_use"):
    os.remove(run + "/in_use")
    print("error: run %s is in use by process 1" % run, file=sys.stderr)
    sys.exit(2)
if a < 0.1:
    print("error: a is too low", file=sys.stderr)
    sys.exit(2)
if a < 0.2:
    os.kill(os.getpid(), signal.SIGKILL)
open(run + "/checkpoints/best.ckpt", "w")
table = "epoch,val/P,val/mAP50,val/fitness,val/box_loss\\n0,,,0.1,3\\n1,0.5,%s,%s,2\\n" % (a / 2, a)
open(run + "/metrics.csv", "w").write(table)
if a > 0.7 and not os.path.exists(run + "/checkpoints/saved"):
    open(run + "/waits", "w")
    time.sleep(600)
open(run + "/metrics.json", "w").write(json.dumps({"epoch": 1, "fitness": float("nan") if a > 0.6 and a < 0.7 else a}))
"""


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains one generation of individuals with these values, by a script in place of `fit`."""
    monkeypatch.setattr(module, "POLL_INTERVAL", 0.02)
    (tmp_path / "fit.py").write_text(FIT)

    def train(*scales, on_end=lambda trial: None):
        start = tuple({**START, "scale": scale} for scale in scales)
        plan = Plan(GENES, Evolution(population=len(scales), generations=1), start)
        study = Study(tmp_path, plan)
        fit = [sys.executable, str(tmp_path / "fit.py"), *QUIET.split()]
        workers = Workers(fit, [{"WORKER": "0"}, {"WORKER": "1"}])

        def end(trial):
            report(study, [], trial)
            on_end(trial)

        train_all(study, workers, end)
        return study.ended()

    return train


def test_a_training_gets_its_values_and_gives_its_metrics(tmp_path, monkeypatch, trained):
    """One fails, one is killed each time, one has no finite fitness; of one the process of another
    command, which was killed, takes a moment to end."""
    monkeypatch.setenv("BOLTBOX_RUN", "somebody's")
    claim(tmp_path / "trials/0000", "fit")
    (tmp_path / "trials/0000/in_use").touch()
    trials = trained(0.3, 0.5, 0.05, 0.15, 0.4, 0.65)
    assert column(trials, "value") == [0.3, 0.5, None, None, 0.4, None]
    assert trials[0].user_attrs["metrics"] == {
        "val/P": 0.5, "val/mAP50": 0.15, "val/fitness": 0.3, "val/box_loss": 2.0
    }  # fmt: skip
    assert trials[2].user_attrs["reason"] == "a is too low"
    starts = [len((tmp_path / f"trials/{k:04d}/starts").read_text()) for k in range(6)]
    assert starts == [2, 1, 1, 3, 1, 1]
    options, run, worker = read(tmp_path / "trials/0000/options.json")
    expected = {"--data.augment.scale": "0.3", "--model.optim.lr0": "0.0512345"}
    expected |= {"--model.network.anchors": "9", "--ckpt_path": "auto"}
    assert expected.items() <= options.items()
    assert (run, worker in "01") == (None, True)
    kept = list(tmp_path.glob("trials/*/checkpoints/best.ckpt"))
    assert kept == [tmp_path / "trials/0001/checkpoints/best.ckpt"], "the best one's alone"


def test_a_command_that_is_stopped(tmp_path, trained):
    """The training saves a checkpoint, and the same command continues it."""
    run = tmp_path / "trials/0000"

    def stop(trial):
        until((run / "waits").is_file, "its training")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(0.8, 0.3, on_end=stop)
    assert (run / "checkpoints/saved").is_file()
    trials = optuna.load_study(study_name="evolve", storage=f"sqlite:///{tmp_path}/study.db").trials
    assert column(trials, "state") == [TrialState.RUNNING, TrialState.COMPLETE]
    assert column(trained(0.8, 0.3), "value") == [0.8, 0.3]
