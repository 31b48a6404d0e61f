"""The study of an evolution: what the samplers choose, what is retried, and what is left in the
folder."""

import csv
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

import cli
from boltbox.detector.checkpoint.runs import claim
from boltbox.detector.commands.evolve import search as search_module
from boltbox.detector.commands.evolve.plan import Evolution, Plan
from boltbox.detector.commands.evolve.search import report, write_outputs
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
    study = Study(folder, plan, {})
    size = plan.evolve.size if stop is None else stop
    while len(study.ended()) < size:
        trial = study.ask()
        metrics = {"val/mAP50": 0.625, "val/P": 0.75}
        study.tell(trial, Outcome(fitness(trial.params), metrics))
    return study


def individuals(study: Study) -> list[tuple[int, int, dict[str, float], float | None]]:
    return [(t.number, t.user_attrs["generation"], t.params, t.value) for t in study.ended()]


def test_the_genetic_algorithm_continues_as_if_it_had_not_been_interrupted(tmp_path: Path) -> None:
    expected = individuals(search(tmp_path / "at_once"))
    assert [g for _, g, _, _ in expected] == [0] * 4 + [1] * 4 + [2] * 4
    assert expected[0][2] == START
    assert len({tuple(values.values()) for _, _, values, _ in expected}) == 12, "no copies"
    search(tmp_path / "parts", stop=5)
    assert individuals(search(tmp_path / "parts")) == expected


def test_the_sampler_of_optuna(tmp_path: Path) -> None:
    """Individuals differ, within the bounds, integers where they should be; the first are set."""
    plan = PLAN._replace(evolve=replace(EVOLUTION, sampler="tpe"))
    rows = individuals(search(tmp_path, plan))
    assert rows[0][2] == START
    assert len({tuple(values.values()) for _, _, values, _ in rows}) >= 11
    for _, _, values, _ in rows:
        assert all(gene.low <= values[gene.name] <= gene.high for gene in GENES)
        assert isinstance(values["anchors"], int)


def kill_at_write(patch: pytest.MonkeyPatch, k: int) -> None:
    """An interrupt before (k odd) or after (k even) the k-th write to the storage."""
    count = itertools.count()

    def killed(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
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


@pytest.mark.parametrize("sampler", ["yolov5", "tpe"])
def test_a_kill_at_any_write_loses_no_individual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: Any
) -> None:
    """Each of 20 commands is killed at another write. The individuals, their order and their values
    are those of a search without a kill."""
    plan = PLAN._replace(evolve=replace(EVOLUTION, sampler=sampler, generations=10))
    expected = individuals(search(tmp_path / "at_once", plan))
    folder = tmp_path / "killed"
    for k in range(20):
        with monkeypatch.context() as patch:
            kill_at_write(patch, k)
            with pytest.raises(KeyboardInterrupt):
                search(folder, plan)
    assert individuals(search(folder, plan)) == expected
    write_outputs(Study(folder, plan, {}))
    assert [row["state"] for row in rows(folder)] == ["done"] * plan.evolve.size


def test_failed_individuals_rank_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them fail; the others' values are those that live on."""
    monkeypatch.setattr(search_module, "_pictures", lambda study: {})
    study = Study(tmp_path, PLAN, {})
    for k in range(EVOLUTION.size):
        trial = study.ask()
        failed = Outcome(None, reason="the abacus\nis broken")
        study.tell(trial, failed if k % 2 else Outcome(fitness(trial.params)))
    assert [t.state for t in study.ended()] == [TrialState.COMPLETE, TrialState.FAIL] * 6
    write_outputs(study)
    assert rows(tmp_path)[1]["reason"] == "the abacus is broken"
    assert [row["state"] for row in rows(tmp_path)] == ["done", "failed"] * 6


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "evolve.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table with YOLOv5's columns first, and the best as an overlay that `fit` takes."""
    plan = PLAN._replace(fixed={"model.loss.obj": 0.7, "early_stop.patience": 12})
    study = search(tmp_path, plan, stop=7)
    study.ask()  # one that is being trained
    write_outputs(study)
    lines = (tmp_path / "evolve.csv").read_text().splitlines()
    assert lines[0] == (
        "metrics/precision,metrics/recall,metrics/mAP_0.5,metrics/mAP_0.5:0.95,val/box_loss,val/obj_loss,val/cls_loss,"
        "scale,lr0,anchors,generation,trial,state,fitness,seconds,reason"
    )
    assert len(lines) == 8
    table = rows(tmp_path)
    trials = study.ended()
    assert [float(row["lr0"]) for row in table] == [t.params["lr0"] for t in trials], (
        "to the last bit"
    )
    assert all(row["anchors"].isdigit() for row in table)
    assert (table[0]["metrics/precision"], table[0]["metrics/recall"], table[0]["state"]) == (
        "0.75",
        "",
        "done",
    )
    best: FrozenTrial = max(trials, key=lambda t: t.value or 0)
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
    study = Study(tmp_path, PLAN, {})
    for count in (0, 1, 3):
        while len(study.ended()) < count:
            study.tell(study.ask(), Outcome(0.5))
        write_outputs(study)
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
    on_end: Callable[[int], None] = lambda number: None,
) -> list[FrozenTrial]:
    """One generation of individuals with these values, by a script in place of `fit`."""
    folder.mkdir(exist_ok=True)
    (folder / "fit.py").write_text(FIT)
    start = tuple({**START, "scale": scale} for scale in scales)
    plan = Plan(GENES, Evolution(population=len(scales), generations=1), start)
    study = Study(folder, plan, {})
    workers = [{"WORKER": "0"}, {"WORKER": "1"}]
    fit = [sys.executable, str(folder / "fit.py")]

    def end(number: int) -> None:
        report(study, [], number)
        on_end(number)

    train_all(study, fit, workers, lambda training: None, end)
    return study.ended()


def test_a_training_gets_its_values_and_gives_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOLTBOX_RUN", "somebody's")
    trials = trained(tmp_path, 0.3, 0.5, 0.05, 0.15, 0.4)
    assert [t.value for t in trials] == [0.3, 0.5, None, None, 0.4]
    assert trials[0].user_attrs["metrics"] == {
        "val/P": 0.5, "val/mAP50": 0.15, "val/fitness": 0.3, "val/box_loss": 2.0
    }  # fmt: skip
    assert trials[2].user_attrs["reason"] == "a is too low"
    assert trials[3].user_attrs["reason"].startswith("killed by the system")
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
    """That command was killed; its training takes a moment to end."""
    claim(tmp_path / "trials/0000", "fit")
    (tmp_path / "trials/0000/in_use").touch()
    assert [t.value for t in trained(tmp_path, 0.3)] == [0.3]


def test_a_command_that_is_stopped(tmp_path: Path) -> None:
    """The training saves a checkpoint, and the same command continues it."""
    run = tmp_path / "trials/0000"

    def stop(number: int) -> None:
        while not (run / "metrics.csv").is_file():  # the other one waits for its signal from now on
            time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, 0.8, 0.3, on_end=stop)
    assert (run / "checkpoints/saved").is_file()
    trials = optuna.load_study(study_name="evolve", storage=f"sqlite:///{tmp_path}/study.db").trials
    assert [t.value for t in trials] == [None, 0.3]
    assert [t.value for t in trained(tmp_path, 0.8, 0.3)] == [0.8, 0.3]
