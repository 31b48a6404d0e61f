"""The study of an evolution: who is trained does not depend on who trains; nothing is lost when a worker is."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import toy_evolution
from toy_evolution import GENES, PLAN

from detector.commands.evolve import lease as lease_module
from detector.commands.evolve.individual import Individual
from detector.commands.evolve.lease import Lease, Lost, Outcome
from detector.commands.evolve.process import Process
from detector.commands.evolve.sampler import GeneticSampler
from detector.commands.evolve.study import ATTEMPTS, Study
from detector.commands.evolve.worker import work
from detector.system.errors import InputError


def at_once(lease: Lease) -> Outcome:
    return Outcome(toy_evolution.fitness(lease.individual.values), {"mAP50": 0.5})


def alone(folder: Path, plan: Any = PLAN, objective: Callable[[Lease], Outcome] = at_once) -> list[Individual]:
    """What one worker that nobody disturbs finds."""
    study = Study(folder, begin=(plan, {}))
    work(study, objective, lambda: None, bool)
    return study.individuals()


def found(individuals: list[Individual]) -> list[tuple[int, int, int, dict[str, float], float | None]]:
    return [(i.number, i.generation, i.index, i.values, i.fitness) for i in individuals]


def test_survivors_are_not_trained_again_and_the_best_never_falls(tmp_path: Path) -> None:
    individuals = alone(tmp_path)
    assert Counter(i.generation for i in individuals) == {0: 6, 1: 5, 2: 5, 3: 5}
    assert individuals[0].values == PLAN.start[0]
    assert max(i.fitness or 0 for i in individuals[6:]) > max(i.fitness or 0 for i in individuals[:6])
    literal = alone(tmp_path / "literal", replace(PLAN, literal=True))
    assert Counter(i.generation for i in literal) == {0: 6, 1: 6, 2: 6, 3: 6}


def test_as_a_sampler_of_optuna(tmp_path: Path) -> None:
    """In Optuna's own loop the sampler draws what it draws in a study here."""
    plain = optuna.create_study(direction="maximize", sampler=GeneticSampler(PLAN))

    def objective(trial: optuna.Trial) -> float:
        return toy_evolution.fitness({g.name: trial.suggest_float(g.name, g.low, g.high, log=g.log) for g in GENES})

    plain.optimize(objective, n_trials=PLAN.trials)
    assert [t.params for t in plain.trials] == [i.values for i in alone(tmp_path)]


def test_killed_and_restarted_workers_train_the_same_individuals(tmp_path: Path) -> None:
    """Three workers, one is killed with SIGKILL in mid-trial, the others are stopped, then all start again: the individuals are
    those of one worker alone. Only what was cut off is begun again."""
    Study(tmp_path, begin=(PLAN, {}))
    line = [sys.executable, toy_evolution.__file__, str(tmp_path), "60"]
    places = {"cwd": Path(__file__).parents[1], "env": {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": ""}}
    begun, workers = tmp_path / "begun.txt", [subprocess.Popen(line, **places) for _ in range(3)]
    try:
        until(lambda: len(list(tmp_path.glob("*.ready"))) == 3)
        (tmp_path / "go").touch()
        until(lambda: begun.is_file() and begun.read_text().split().count(str(workers[0].pid)) >= 3)
        until(lambda: caught_in_mid_trial(workers[0], tmp_path))
        mine = trained_by(tmp_path)[workers[0].pid]
        workers[0].kill()
        until(lambda: cut(tmp_path))  # the others notice
        for worker in workers[1:]:
            worker.terminate()
        assert [worker.wait(20) for worker in workers] == [-signal.SIGKILL, 0, 0]
        assert 1 <= len(cut(tmp_path)) <= 3
        workers = [subprocess.Popen(line, **places) for _ in range(3)]
        assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert found(Study(tmp_path).individuals()) == found(alone(tmp_path / "alone"))
    times = Counter(int(line.split()[0]) for line in begun.read_text().splitlines())
    assert sorted(times) == list(range(PLAN.trials))
    interrupted = {t.user_attrs["slot"] for t in cut(tmp_path)}
    assert mine in interrupted
    assert {number for number, count in times.items() if count > 1} <= interrupted
    assert all(count <= sum(t.user_attrs["slot"] == number for t in all_trials(tmp_path)) for number, count in times.items())


def until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def all_trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    return Study(folder)._study.get_trials()


def cut(folder: Path) -> list[optuna.trial.FrozenTrial]:
    return [t for t in all_trials(folder) if t.state == optuna.trial.TrialState.FAIL]


def caught_in_mid_trial(worker: subprocess.Popen, folder: Path) -> bool:
    """Whether a worker, which is held up now, trains something; else it goes on."""
    worker.send_signal(signal.SIGSTOP)
    if worker.pid in trained_by(folder):
        return True
    worker.send_signal(signal.SIGCONT)
    return False


def trained_by(folder: Path) -> dict[int, int]:
    """Process id of a worker -> number of the individual that it trains."""
    at_work = [t.user_attrs for t in all_trials(folder) if t.state == optuna.trial.TrialState.RUNNING]
    return {attributes["owner"][2]: attributes["slot"] for attributes in at_work if "owner" in attributes}


def test_two_claim_at_once_and_a_generation_waits(tmp_path: Path) -> None:
    """Whatever a second process has seen, it never gets what the first one has."""
    first, second = Study(tmp_path, begin=(PLAN, {})), Study(tmp_path)
    second._add(0, None)
    first._add(0, None)  # as if both had looked at the same time
    leases = [s.lease() for s in (first, second) * 3]
    assert [c.individual.number for c in leases if c] == list(range(6))
    assert first.lease() is None, "generation 1 waits for generation 0"
    for lease in leases[1:]:
        assert lease
        lease.end(Outcome(0.5))
    assert second.lease() is None
    assert leases[0]
    leases[0].end(Outcome(0.9))
    later = second.lease()
    assert later
    assert (later.individual.generation, later.individual.index) == (1, 0)
    with pytest.raises(Lost):
        leases[0].end(Outcome(0.1))
    assert Study(tmp_path).individuals()[0].fitness == 0.9


def test_a_worker_elsewhere_is_dead_when_its_heart_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another machine's process nothing is known but its signs of life. What it says later comes too late."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(lease_module.time, "monotonic", lambda: clock.now)
    there = Study(tmp_path, begin=(replace(PLAN, population=2, generations=1), {}))
    there.me = Process("elsewhere", "another table", 1, 1)
    lease = there.lease()
    assert lease
    here = Study(tmp_path)
    other = here.lease()
    assert other
    for clock.now in (0.0, 60.0, 120.0, 180.0, 240.0):
        lease.heartbeat()
        assert here.lease() is None, "its heart beats"
    for clock.now in (300.0, 330.0):
        assert here.lease() is None
    clock.now = 335.0
    again = here.lease()
    assert again
    assert again.individual == lease.individual
    for late in (lease.heartbeat, lambda: lease.end(Outcome(0.3)), lambda: lease.report(0, 0.1)):
        clock.now += 30
        with pytest.raises(Lost):
            late()
    again.end(Outcome(0.4))
    assert Study(tmp_path).individuals()[0].fitness == 0.4


def test_an_individual_that_kills_its_workers_fails(tmp_path: Path) -> None:
    study = Study(tmp_path, begin=(replace(PLAN, population=2, generations=1), {}))
    for _ in range(ATTEMPTS):
        study.me = Process.this()._replace(number=2**22 + 1)  # no process has this number
        assert study.lease()
    study.me = Process.this()
    lease = study.lease()
    assert lease
    assert lease.individual.number == 1
    assert study.individuals()[0].reason == "its worker died 5 times"


def test_stopped_workers_are_no_attempts(tmp_path: Path) -> None:
    study = Study(tmp_path, begin=(PLAN, {}))
    for _ in range(2 * ATTEMPTS):
        lease = study.lease()
        assert lease
        assert lease.individual.number == 0
        lease.release()


@pytest.mark.parametrize("tail", [b'{"op_code":5,"work', b"\0" * 5000, b"x"])
def test_a_journal_cut_off_in_a_line(tail: bytes, tmp_path: Path) -> None:
    """As a power cut leaves it: what was written whole counts, and the study goes on."""
    study = Study(tmp_path / "cut", begin=(PLAN, {}))
    work(study, at_once, lambda: None, bool, limit=8)
    with open(tmp_path / "cut" / "journal.log", "ab") as file:
        file.write(tail)
    assert found(alone(tmp_path / "cut")) == found(alone(tmp_path / "whole"))


def test_cut_off_before_its_values_were_there(tmp_path: Path) -> None:
    """A worker killed just after it took the first individual: that still starts where it should."""
    study = Study(tmp_path, begin=(replace(PLAN, sampler="tpe"), {}))
    study._add(0, None)
    assert study._take(study.slots()[0])
    study._storage.set_trial_state_values(study.slots()[0]._trial_id, optuna.trial.TrialState.FAIL)
    lease = study.lease()
    assert lease
    assert lease.individual.values == PLAN.start[0]


def test_tpe_in_a_database(tmp_path: Path) -> None:
    """Its first values are given ones, which Optuna does not look for in the storage."""
    study = Study(tmp_path, f"sqlite:///{tmp_path / 'study.db'}", begin=(replace(PLAN, sampler="tpe"), {}))
    work(study, at_once, lambda: None, bool, limit=2)
    assert study.individuals()[0].values == PLAN.start[0]


def test_in_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    first, second = (Study(tmp_path / "study", url, begin=(PLAN, {})) for _ in range(2))
    leases = [s.lease() for s in (first, second)]
    assert [c.individual.number for c in leases if c] == [0, 1]
    for lease in leases:
        assert lease
        lease.release()
    work(second, at_once, lambda: None, bool, limit=8)
    assert found(first.individuals()) == found(alone(tmp_path / "journal"))[:8]
    with pytest.raises(InputError, match="no study"):
        Study(tmp_path / "another", url)


def test_failures_are_recorded_and_rank_last(tmp_path: Path) -> None:
    def objective(lease: Lease) -> Outcome:
        if lease.individual.number % 2:
            raise RuntimeError("the abacus\nis broken")
        return at_once(lease)

    individuals = alone(tmp_path, objective=objective)
    assert len(individuals) == PLAN.trials
    failed = [i for i in individuals if i.number % 2]
    assert {(i.state, i.fitness, i.reason) for i in failed} == {("failed", None, "RuntimeError: the abacus is broken")}
    assert all(i.state == "done" for i in individuals if i not in failed)


def test_budgets(tmp_path: Path) -> None:
    study = Study(tmp_path, begin=(PLAN, {}))
    work(study, at_once, lambda: None, bool, hours=0.0)
    assert study.individuals() == []
    work(study, at_once, lambda: None, bool, limit=3)
    assert [i.number for i in study.individuals()] == [0, 1, 2]
    assert study.finished(3)
    assert not study.finished()


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsgaii"])
def test_samplers_of_optuna(sampler: str, tmp_path: Path) -> None:
    """One individual differs from the next, within the bounds, whole where it should be; what is taken up again is the same."""
    study = Study(tmp_path, begin=(replace(PLAN, sampler=sampler), {}))
    work(study, at_once, lambda: None, bool, limit=14)
    lease = study.lease()
    assert lease
    lease.release()
    again = Study(tmp_path).lease()
    assert again
    assert again.individual == lease.individual
    individuals = study.individuals()[:14]
    assert len({tuple(i.values.values()) for i in individuals}) >= 12
    assert individuals[0].values == PLAN.start[0]
    assert {i.generation for i in individuals} == {0}
    for gene in GENES:
        assert all(gene.low <= i.values[gene.name] <= gene.high for i in individuals)
    assert all(i.values["n"] % 1 == 0 for i in individuals)


def test_halving_ends_the_hopeless(tmp_path: Path) -> None:
    """Four of them, each worse than the one before: all but the first end after two of eight epochs, as they are then."""

    def objective(lease: Lease) -> Outcome:
        for epoch in range(1, 9):
            level = (1 - 0.2 * lease.individual.number) * epoch / 8
            if lease.report(epoch, level):
                return Outcome(level, reason="hopeless", pruned=True)
        return Outcome(level)

    plan = replace(PLAN, prune=2, population=4, generations=1)
    individuals = alone(tmp_path, plan, objective)
    assert [i.state for i in individuals] == ["done", "pruned", "pruned", "pruned"]
    assert individuals[1].fitness is not None
    assert individuals[1].fitness == pytest.approx(0.8 * 2 / 8)
    assert individuals[1].reason == "hopeless"
