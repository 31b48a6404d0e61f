"""The training of an individual, with a script in its place: what it gets, what it gives, when it ends."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_evolution import GENES, PLAN

from detector.commands.evolve.study import Study
from detector.commands.evolve.trial import Training
from detector.commands.evolve.worker import work

SCRIPT = """
import json, os, signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
run, a = options["--run"], float(options["--model.a"])
os.makedirs(run + "/checkpoints", exist_ok=True)
open(run + "/options.json", "w").write(json.dumps([options, os.environ.get("BOLTBOX_RUN"), os.getsid(0) == os.getpid()]))
signal.signal(signal.SIGTERM, lambda *_: (open(run + "/checkpoints/saved", "w"), sys.exit(143)))
if a < 0.1:
    print("error: a is too low", file=sys.stderr)
    sys.exit(2)
open(run + "/checkpoints/best.ckpt", "w")
open(run + "/metrics.csv", "w").write(f"epoch,val/fitness,val/box_loss\\n0,0.1,3\\n1,{a},2\\n")
if a > 0.9 and not os.path.exists(run + "/checkpoints/saved"):
    time.sleep(60)
metrics = {"P": 0.5, "R": 0.25, "mAP50": a / 2, "mAP50-95": a / 4, "fitness": a + int(options["--seed_everything"])}
open(run + "/metrics.json", "w").write(json.dumps({"epoch": 1, **metrics}))
"""


def training(folder: Path, **options: Any) -> Training:
    script = folder / "script.py"
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPT)
    return Training([sys.executable, str(script)], folder / "trials", GENES, **options)


def study_of(folder: Path, *rows: float) -> Study:
    start = tuple({"a": a, "rate": 0.5, "n": 3.4} for a in rows)
    return Study(folder, begin=(replace(PLAN, start=start, population=len(rows), literal=True, generations=1), {}))


def test_a_training_gets_its_values_and_gives_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLTBOX_RUN", "somebody's")
    study, train = study_of(tmp_path, 0.3, 0.5, 0.05, 0.4), training(tmp_path)
    work(study, train, lambda: train.clean(study.individuals()), bool)
    individuals = study.individuals()
    assert [i.fitness for i in individuals] == [0.3, 0.5, None, 0.4]
    assert individuals[0].metrics == {
        "P": 0.5, "R": 0.25, "mAP50": 0.15, "mAP50-95": 0.075, "fitness": 0.3, "val/box_loss": 2.0
    }  # fmt: skip
    assert (individuals[2].state, individuals[2].reason) == ("failed", "a is too low")
    options, run, leads = json.loads((tmp_path / "trials/0000/options.json").read_text())
    assert (options["--model.a"], options["--model.rate"], options["--model.n"]) == ("0.3", "0.5", "3")
    assert (options["--ckpt_path"], options["--doctor.enabled"], options["--pictures.enabled"]) == ("auto", "false", "false")
    assert (run, leads) == (None, True)
    kept = [p.parent.parent.name for p in tmp_path.glob("trials/*/checkpoints/best.ckpt")]
    assert kept == ["0001"], "the best one's checkpoint alone"


def test_mean_over_seeds_and_literal_fitness(tmp_path: Path) -> None:
    study, train = study_of(tmp_path, 0.3, 0.2), training(tmp_path, seeds=(5, 6))
    work(study, train, lambda: None, bool)
    assert study.individuals()[0].fitness == pytest.approx(5.8)
    assert (tmp_path / "trials/0000/seed-6/metrics.json").is_file()
    literal = training(tmp_path / "literal", literal=True)
    study = study_of(tmp_path / "literal", 0.3, 0.2)
    work(study, literal, lambda: None, bool)
    assert [i.fitness for i in study.individuals()] == [0.15, 0.1]


def test_deadline_and_stop(tmp_path: Path) -> None:
    """A training beyond its deadline fails; one whose worker is stopped saves, and goes on from there."""
    study, train = study_of(tmp_path, 0.95, 0.3), training(tmp_path)
    run = tmp_path / "trials/0000"
    work(study, train, lambda: None, (run / "metrics.csv").is_file)
    assert (run / "checkpoints/saved").is_file()
    assert study.individuals() == []
    work(study, train, lambda: None, bool)
    assert study.individuals()[0].fitness == 0.95
    study = study_of(tmp_path / "late", 0.95, 0.3)
    work(study, training(tmp_path / "late", deadline=0.7), lambda: None, bool)
    assert [(i.fitness, i.reason) for i in study.individuals()] == [(None, "not done within 0.7 s"), (0.3, "")]
