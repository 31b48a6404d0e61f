"""The study of an evolution: what the samplers choose, what is retried, and what is left in the
folder."""

import csv
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

import cli
from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.commands.evolve import search as search_module
from boltbox.detector.commands.evolve import study as study_module
from boltbox.detector.commands.evolve.plan import Evolution, Plan
from boltbox.detector.commands.evolve.sampler import ended, number
from boltbox.detector.commands.evolve.search import write_outputs
from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.commands.evolve.study import Outcome, Study
from boltbox.detector.commands.evolve.training import train_all

GENES = (YOLOV5_GENES["scale"], YOLOV5_GENES["lr0"]._replace(log=True), YOLOV5_GENES["anchors"])
START = {"scale": 0.1, "lr0": 0.05, "anchors": 9}
EVOLUTION = Evolution(population=4, generations=3)
PLAN = Plan(GENES, EVOLUTION, start=(START,), seed=3)
ROOT = Path(cli.__file__).parent


def fitness(values: dict[str, float]) -> float:
    """1 at (0.6, 0.01, 4)."""
    off = np.array(
        [values["scale"] - 0.6, np.log10(values["lr0"] / 0.01) / 4, (values["anchors"] - 4) / 8]
    )
    return float(np.exp(-(off**2).sum()))


def search(folder: Path, plan: Plan = PLAN, stop: int | None = None) -> Study:
    study = Study(folder)
    study.begin({})
    while len(ended(study.individuals())) < (stop or plan.evolve.size):
        trial = study.ask(plan)
        study.tell(
            trial, Outcome(fitness(trial.params), metrics={"val/mAP50": 0.625, "val/P": 0.75})
        )
    return study


def found(study: Study) -> list[tuple[int, int, dict[str, float], float | None]]:
    return [(number(t), t.user_attrs["generation"], t.params, t.value) for t in study.individuals()]


def test_the_genetic_algorithm_continues_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    whole = found(search(tmp_path / "whole"))
    assert [g for _, g, _, _ in whole] == [0] * 4 + [1] * 4 + [2] * 4
    assert whole[0][2] == START
    assert len({tuple(values.values()) for _, _, values, _ in whole}) == 12, "no copies"
    search(tmp_path / "parts", stop=5)
    assert found(search(tmp_path / "parts")) == whole


def test_the_sampler_of_optuna(tmp_path: Path) -> None:
    """Individuals differ, within the bounds, whole where they should be; the first are given."""
    individuals = found(search(tmp_path, PLAN._replace(evolve=replace(EVOLUTION, sampler="tpe"))))
    assert individuals[0][2] == START
    assert len({tuple(values.values()) for _, _, values, _ in individuals}) >= 11
    for _, _, values, _ in individuals:
        assert all(gene.low <= values[gene.name] <= gene.high for gene in GENES)
        assert isinstance(values["anchors"], int)


def test_an_individual_of_a_dead_command_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its number and its values. If that command lives after all, it learns that the
    individual is another's."""
    seemed_dead = search(tmp_path, stop=5)
    trial = seemed_dead.ask(PLAN)
    monkeypatch.setattr(study_module, "GRACE_PERIOD", 1)
    study = Study(tmp_path)
    time.sleep(2.1)  # without a heartbeat
    assert seemed_dead.frozen(trial).state == TrialState.RUNNING
    study.heartbeat([])
    assert seemed_dead.frozen(trial).state == TrialState.FAIL
    again = study.ask(PLAN)
    assert again.params == trial.params
    assert number(study.frozen(again)) == trial.number
    study.tell(again, Outcome(0.5))
    with pytest.raises(study_module.optuna.exceptions.UpdateFinishedTrialError):
        seemed_dead.tell(trial, Outcome(0.1))
    assert [(number(t), t.value) for t in study.individuals()][5:] == [(5, 0.5)]


def test_an_individual_of_a_command_that_died_before_its_first_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_module, "GRACE_PERIOD", 1)
    killed, study = Study(tmp_path), Study(tmp_path)
    monkeypatch.setattr(killed, "heartbeat", lambda trials: [][0])
    for _ in range(2):  # a new individual and a retried one
        with pytest.raises(IndexError):
            killed.ask(PLAN)
        study.heartbeat([])
        time.sleep(2.1)
        study.heartbeat([])
    trial = study.ask(PLAN)
    assert (trial.params, number(study.frozen(trial))) == (START, 0)
    assert study.ask(PLAN).params != START


def test_a_kill_between_the_failure_and_the_queue_loses_no_individual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command dies as it lets the trials of a dead one fail, one as it releases its own."""
    fail = RDBStorage.set_trial_state_values

    def killed(storage: RDBStorage, *given: Any, **named: Any) -> bool:
        done = fail(storage, *given, **named)
        if TrialState.FAIL in [*given, *named.values()]:
            raise KeyboardInterrupt
        return done

    dead, study = Study(tmp_path), Study(tmp_path)
    for _ in range(2):
        dead.ask(PLAN)
    released = study.ask(PLAN)
    monkeypatch.setattr(study_module, "GRACE_PERIOD", 1)
    late = Study(tmp_path)
    time.sleep(2.1)  # without a heartbeat
    with monkeypatch.context() as patch:
        patch.setattr(RDBStorage, "set_trial_state_values", killed)
        with pytest.raises(KeyboardInterrupt):
            study.release(released)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                late.heartbeat([])
    assert not ended(study.individuals())
    search(tmp_path)
    write_outputs(Study(tmp_path), PLAN)
    table = rows(tmp_path)
    assert [row["trial"] for row in table[:3]] == ["0", "1", "2"]
    assert [row["state"] for row in table] == ["done"] * EVOLUTION.size


def test_failed_individuals_rank_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them fail; the others' values are those that live on."""
    monkeypatch.setattr(search_module, "_pictures", lambda study: {})
    study = Study(tmp_path)
    study.begin({})
    for k in range(EVOLUTION.size):
        trial = study.ask(PLAN)
        failed = Outcome(None, reason="the abacus\nis broken")
        study.tell(trial, failed if k % 2 else Outcome(fitness(trial.params)))
    individuals = study.individuals()
    assert [t.state for t in individuals] == [TrialState.COMPLETE, TrialState.FAIL] * 6
    write_outputs(study, PLAN)
    assert rows(tmp_path)[1]["reason"] == "the abacus is broken"
    assert [row["state"] for row in rows(tmp_path)] == ["done", "failed"] * 6


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "evolve.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table with YOLOv5's columns first, and the best as an overlay that `fit` takes."""
    plan = PLAN._replace(fixed={"model.loss.obj": 0.7, "early_stop.patience": 12})
    study = search(tmp_path, plan, stop=7)
    study.ask(plan)  # one that is being trained
    write_outputs(study, plan)
    lines = (tmp_path / "evolve.csv").read_text().splitlines()
    assert lines[0] == (
        "metrics/precision,metrics/recall,metrics/mAP_0.5,metrics/mAP_0.5:0.95,val/box_loss,val/obj_loss,val/cls_loss,"
        "scale,lr0,anchors,generation,trial,state,fitness,seconds,reason"
    )
    assert len(lines) == 8
    table, individuals = rows(tmp_path), study.individuals()[:7]
    assert [float(row["lr0"]) for row in table] == [t.params["lr0"] for t in individuals], (
        "to the last bit"
    )
    assert all(row["anchors"].isdigit() for row in table)
    assert (table[0]["metrics/precision"], table[0]["metrics/recall"], table[0]["state"]) == (
        "0.75",
        "",
        "done",
    )
    best: FrozenTrial = max(individuals, key=lambda t: t.value or 0)
    overlay = tmp_path / "hyp_evolved.yaml"
    assert f"The best of 7 individuals: trial {best.number}, fitness" in overlay.read_text()
    with pytest.raises(SystemExit):
        cli.main(
            [
                "fit",
                "--config",
                str(ROOT / "configs/yolo.yaml"),
                "--config",
                str(overlay),
                "--print_config",
            ]
        )
    options = yaml.safe_load(capsys.readouterr().out)
    assert options["model"]["optim"]["lr0"] == pytest.approx(best.params["lr0"], rel=1e-4)
    assert options["model"]["network"]["anchors"] == best.params["anchors"]
    assert options["data"]["augment"]["scale"] == pytest.approx(best.params["scale"], rel=1e-4)
    assert (options["model"]["loss"]["obj"], options["early_stop"]["patience"]) == (0.7, 12)
    assert all(
        (tmp_path / name).stat().st_size > 5000
        for name in ("evolve.png", "fitness.png", "importances.png")
    )


def test_outputs_of_few_and_of_equal_individuals(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.begin({})
    for count in (0, 1, 3):
        while len(ended(study.individuals())) < count:
            study.tell(study.ask(PLAN), Outcome(0.5))
        write_outputs(study, PLAN)
        assert len(rows(tmp_path)) == count
        assert (tmp_path / "hyp_evolved.yaml").is_file() == bool(count)
        assert (tmp_path / "fitness.png").is_file() == bool(count)


FIT = """
import json, os, signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
run, a = options["--run"], float(options["--data.augment.scale"])
os.makedirs(run + "/checkpoints", exist_ok=True)
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
open(run + "/metrics.tmp", "w").write(table)
os.replace(run + "/metrics.tmp", run + "/metrics.csv")
if a > 0.7 and not os.path.exists(run + "/checkpoints/saved"):
    time.sleep(600)
open(run + "/metrics.json", "w").write(json.dumps({"epoch": 1, "fitness": a}))
"""


def trained(
    folder: Path,
    *scales: float,
    on_end: Callable[[FrozenTrial], None] = lambda trial: None,
    places: int = 2,
    **options: Any,
) -> Study:
    """One generation of individuals with these values, by a script in place of `fit`."""
    folder.mkdir(exist_ok=True)
    (folder / "fit.py").write_text(FIT)
    start = tuple({**START, "scale": scale} for scale in scales)
    made = Plan(GENES, Evolution(population=len(scales), generations=1, **options), start)
    study = Study(folder)
    study.begin({})
    workers = [{"WORKER": str(k)} for k in range(places)]
    train_all(study, made, [sys.executable, str(folder / "fit.py")], workers, on_end)
    return study


def test_an_individual_that_is_another_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has reported its end already; the worker trains the next."""
    tell, reported = Study.tell, list[int]()

    def told_before(study: Study, trial: Any, outcome: Outcome) -> None:
        tell(study, trial, outcome)
        if trial.number == 0:
            tell(study, trial, outcome)

    monkeypatch.setattr(Study, "tell", told_before)
    study = trained(tmp_path, 0.3, 0.5, 0.4, on_end=lambda t: reported.append(t.number), places=1)
    assert [t.value for t in study.individuals()] == [0.3, 0.5, 0.4]
    assert reported == [1, 2]


def test_a_training_gets_its_values_and_gives_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOLTBOX_RUN", "somebody's")
    individuals = trained(tmp_path, 0.3, 0.5, 0.05, 0.15, 0.4).individuals()
    assert [t.value for t in individuals] == [0.3, 0.5, None, None, 0.4]
    assert individuals[0].user_attrs["metrics"] == {
        "val/P": 0.5, "val/mAP50": 0.15, "val/fitness": 0.3, "val/box_loss": 2.0
    }  # fmt: skip
    assert individuals[2].user_attrs["reason"] == "a is too low"
    assert individuals[3].user_attrs["reason"].startswith("killed by the system")
    options, run, worker = json.loads((tmp_path / "trials/0000/options.json").read_text())
    assert (
        options["--data.augment.scale"],
        options["--model.optim.lr0"],
        options["--model.network.anchors"],
    ) == ("0.3", "0.05", "9")
    assert (options["--ckpt_path"], options["--doctor.enabled"], options["--pictures.enabled"]) == (
        "auto",
        "false",
        "false",
    )
    assert (run, worker in "01") == (None, True)
    kept = [p.parent.parent.name for p in tmp_path.glob("trials/*/checkpoints/best.ckpt")]
    assert kept == ["0001"], "the best one's checkpoint alone"


def test_a_run_that_another_command_still_trains(tmp_path: Path) -> None:
    """That command stood still and seemed dead; its training ends first."""
    claim(tmp_path / "trials/0000", "fit")
    (tmp_path / "trials/0000/in_use").touch()
    assert [t.value for t in trained(tmp_path, 0.3).individuals()] == [0.3]


def test_a_command_that_is_stopped(tmp_path: Path) -> None:
    """The training saves a checkpoint, its individual goes back into the queue, and the same
    command continues it."""
    run = tmp_path / "trials/0000"

    def stop(trial: FrozenTrial) -> None:
        while not (run / "metrics.csv").is_file():  # the other one waits for its signal from now on
            time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, 0.8, 0.3, on_end=stop)
    assert (run / "checkpoints/saved").is_file()
    assert [t.value for t in Study(tmp_path).individuals()] == [0.3]
    individuals = trained(tmp_path, 0.8, 0.3).individuals()
    assert [(number(t), t.value) for t in individuals] == [(0, 0.8), (1, 0.3)]
