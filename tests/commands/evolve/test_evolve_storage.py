"""A study in PostgreSQL: several machines, which are processes here with a folder each, kills of them and
of the server, and what is refused."""

import multiprocessing
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from jsonargparse.typing import SecretStr
from made_runs import ROOT, column, contents, type_line, until
from optuna import load_study
from optuna.storages import RDBStorage
from postgres import PASSWORD, Server

from boltbox.detector.commands.evolve import search, trainings
from boltbox.detector.commands.evolve import study as study_module
from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.commands.evolve.study import Evolution, Plan, Study
from boltbox.detector.commands.evolve.trainings import Workers, train_all
from boltbox.detector.system.errors import InputError

GENES = (YOLOV5_GENES["scale"], YOLOV5_GENES["mosaic"])
NEVER = 1000.0  # seconds
# Writes to `log` when it begins and ends. In between it waits while there is a file hold-NUMBER.
FIT = """
import ctypes, json, os, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the machine
here = os.path.dirname(__file__)
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
run = options["--run"]
number = os.path.basename(run)
def log(what):
    with open(here + "/log", "a") as file:
        file.write(f"{int(number)} {what} {run}\\n")
def save(*_):
    os.makedirs(run + "/checkpoints", exist_ok=True)
    open(run + "/checkpoints/last.ckpt", "w").close()
    os._exit(143)
signal.signal(signal.SIGTERM, save)
log("begins")
while os.path.exists(here + "/hold-" + number):
    time.sleep(0.02)
open(run + "/metrics.csv", "w").write("epoch,val/P\\n0,0.5\\n")
open(run + "/metrics.json", "w").write(json.dumps({"epoch": 0, "fitness": float(options["--data.augment.scale"])}))
log("ends")
"""


@pytest.fixture(scope="module")
def server():
    server = Server()
    server.start()
    RDBStorage("sqlite://")  # imports what each machine would have to
    yield server
    server.remove()


@pytest.fixture
def address(server, request):
    """Of a database, which is empty at the start of each test but `test_refused`."""
    name = request.node.originalname
    for case in ("newer", "within"):
        if case in request.node.name:
            name += f"_{case}"
    if name not in server.databases:
        server.execute("postgres", f"CREATE DATABASE {name}")
        server.databases.add(name)
    return server.address(name)


@pytest.fixture
def machines(tmp_path, address, request):
    return Machines(tmp_path, address, request)


def plan(address, **settings):
    start = ({"scale": 0.3, "mosaic": 0.5},)
    evolution = Evolution(population=4, generations=2, storage=SecretStr(address), study="shapes")
    return Plan(GENES, evolution, start, settings=settings)


class Machines:
    """Each is a process, started with `go`, which has a folder of its own."""

    def __init__(self, folder, address, request):
        self.folder = folder
        self.plan = plan(address)
        self.request = request
        (folder / "fit.py").write_text(FIT)

    def go(self, name, grace=NEVER, patience=NEVER, workers=1):
        context = multiprocessing.get_context("fork")
        process = context.Process(target=self._work, args=(name, grace, patience, workers))
        process.start()
        self.request.addfinalizer(process.kill)
        return process

    def _work(self, name, grace, patience, workers):
        requeue = Study._requeue

        def once(study, trial):
            """Whoever trains it next may be slow."""
            requeue(study, trial)
            study_module.GRACE = NEVER

        Study._requeue = once
        os.chdir(self.folder)
        sys.stdout = sys.stderr = open(f"{name}.txt", "a")  # noqa: SIM115
        study_module.BEAT = 0.1
        study_module.GRACE = grace
        trainings.POLL_INTERVAL = 0.02
        trainings.PATIENCE = patience
        try:
            study = Study(Path(name), self.plan)
            fit = [sys.executable, "-I", str(self.folder / "fit.py")]
            train_all(study, Workers(fit, [{}] * workers), lambda trial: None)
        except InputError as e:
            print(f"error: {e}", flush=True)
            os._exit(2)

    def hold(self, *numbers):
        for number in numbers:
            (self.folder / f"hold-{number:04d}").touch()

    def release(self, number):
        (self.folder / f"hold-{number:04d}").unlink()

    def log(self):
        path = self.folder / "log"
        found = []
        if path.exists():
            for line in path.read_text().splitlines():
                number, what, run = line.split()
                found.append((int(number), what, run))
        return found

    def begun(self, number, times=1):
        """The machine on which an individual is begun; waits until it is."""

        def runs():
            found = [run for n, what, run in self.log() if (n, what) == (number, "begins")]
            return found[times - 1 :]

        return Path(until(runs)[0]).parts[-3]

    def await_end(self, number, machine):
        """Of the training of an individual."""
        until(
            lambda: (number, "ends") in column(self.log(), slice(2)),
            "the end",
            lambda: machine.exitcode,
        )

    def check(self):
        """Each individual was trained to its end once; how often it was begun."""
        trials = individuals(self.plan)
        numbers = list(range(self.plan.evolve.size))
        assert column(trials, "number") == numbers
        for trial in trials:
            assert trial.value == trial.params["scale"]
        assert len({tuple(trial.params.values()) for trial in trials}) == len(numbers)
        begun = Counter()
        ended = Counter()
        for number, what, _ in self.log():
            if what == "begins":
                begun[number] += 1
            if what == "ends":
                ended[number] += 1
        assert ended == Counter(numbers)
        return begun


def individuals(plan):
    return load_study(study_name="shapes", storage=plan.evolve.storage.get_secret_value()).trials


def ended(process):
    """Its exit code, when it has ended."""
    process.join(240)
    return process.exitcode


def test_kill_9_of_machines(machines, tmp_path):
    """Two machines begin together and are killed in individuals 4 and 5. One of them starts again and
    continues its own at once; a third one, which does not reach the other's folder, takes over its
    individual, for itself or for the one that waits."""
    machines.hold(4, 5)
    running = {name: machines.go(name) for name in ("one", "two")}
    dead, again = machines.begun(4), machines.begun(5)
    assert {dead, again} == {"one", "two"}
    for process in running.values():
        process.kill()
        ended(process)
    machines.release(5)
    second = machines.go(again)
    assert machines.begun(5, 2) == again
    machines.await_end(7, second)
    machines.release(4)
    (tmp_path / dead).rename(tmp_path / "away")
    third = machines.go("three", grace=0.5)
    assert (ended(third), ended(second)) == (0, 0)
    taker = machines.begun(4, 2)
    assert taker != dead
    assert "trial 4" in (tmp_path / f"{taker}.txt").read_text()
    assert machines.check() == Counter(range(8)) + Counter((4, 5))


def test_the_server_goes_away(server, machines, tmp_path):
    """A training ends while it is away for a while. When it is away for long, the command ends with one
    sentence, after its training has saved, and goes on later."""
    machines.hold(1, 3)
    machine = machines.go("one")
    machines.begun(1)
    server.stop()
    try:
        machines.release(1)
        machines.await_end(1, machine)
        server.start()
        machines.begun(3)
        machine.kill()
        ended(machine)
        machine = machines.go("one", patience=0.5)
        machines.begun(3, 2)
        server.stop()
        assert ended(machine) == 2
    finally:
        server.start()
    (line,) = (tmp_path / "one.txt").read_text().splitlines()
    assert line.startswith("error: ")
    assert (tmp_path / "one/trials/0003/checkpoints/last.ckpt").exists()
    machines.release(3)
    assert ended(machines.go("one")) == 0
    assert machines.check() == Counter(list(range(8)) + [3, 3])


@pytest.mark.parametrize(
    ("owner", "method", "losers"),
    [(trainings.Training, "poll", ["one"]), (Study, "_sign", ["one", "two"])],
    ids=["between", "within"],
)
def test_a_machine_that_slept(owner, method, losers, server, machines, tmp_path):
    """Its individual was taken over: when it wakes up, it ends the training. If it slept within a
    sign of life, while the others waited for it, it still gives the sign: one of the two ends."""
    function = getattr(owner, method)

    def sleep(*args):
        if Path("sleep").exists():
            Path("sleep").unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        return function(*args)

    machines.hold(*range(8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, sleep)
        sleeper = machines.go("one")
    assert machines.begun(0) == "one"
    (tmp_path / "sleep").touch()
    os.waitpid(sleeper.pid, os.WUNTRACED)
    server.execute(  # as it does itself after a minute
        "postgres",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'",
    )
    other = machines.go("two", grace=0.5, workers=8)
    assert machines.begun(0, 2) == "one", "the folder is reached"
    assert set(map(machines.begun, range(1, 8))) == {"two"}
    os.kill(sleeper.pid, signal.SIGCONT)
    files = [tmp_path / f"{name}.txt" for name in losers]
    until(lambda: "trial 0" in "".join(map(Path.read_text, files)), f"a line of {losers}")
    for number in range(8):
        machines.release(number)
    assert (ended(sleeper), ended(other)) == (0, 0)
    assert machines.check() == Counter([0, *range(8)])
    with Study(tmp_path / "one", machines.plan).storage.engine.connect() as connection:
        timeout = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout")
        assert timeout.scalar() == "1min"


REFUSED = {  # and what the message names
    "{password}": "evolve.storage",
    "postgresql://owner:x@{password}@host/name": "evolve.storage",
    "sqlite:///study.db": "evolve.storage",
    "oracle://owner:{password}@host/name": "oracle",  # its driver is not installed
    "postgresql://owner:{password}@/{name}?host=/nowhere": "owner@/",
    "postgresql://guest:{password}@/{name}?host={folder}": "guest@/",  # without rights
    "postgresql://owner:{password}@/atlantis?host={folder}": "atlantis",
    "postgresql://owner:{password}8@/{name}?host={folder}": "owner@/",
    "newer": "optuna",
    "other options": "lr0",
    "folder of another study": "evolve.storage",
}


@pytest.mark.parametrize("bad", REFUSED)
def test_refused(server, address, tmp_path, bad):
    """With one sentence, without the password; nothing is left in the folder."""
    name = urlsplit(address).path[1:]
    folder = tmp_path / "run"
    if "guest" in bad:
        server.execute("postgres", f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
    if bad in ("newer", "other options"):
        Study(tmp_path / "first", plan(address, lr0=0.01))
    if bad == "newer":
        server.execute(name, "UPDATE alembic_version SET version_num = 'v99'")
    lr0 = 0.02 if "other" in bad else 0.01
    if bad == "folder of another study":
        Study(folder, Plan(GENES, Evolution()))
    if ":" in bad or "{" in bad:
        address = bad.format(password=PASSWORD, name=name, folder=server.folder)
    with pytest.raises(InputError) as e:
        Study(folder, plan(address, lr0=lr0))
    assert REFUSED[bad] in str(e.value)
    assert PASSWORD not in str(e.value)
    assert "\n" not in str(e.value)
    left = column(folder.glob("*"), "name")
    assert left == (["study.db"] if bad == "folder of another study" else [])


def test_the_password_is_nowhere(
    address,
    small_data,
    here,
    capfd,
    monkeypatch,
    refused,
):
    """Neither on the terminal nor in a file. Without its storage the folder is refused."""
    (here / "fit.py").write_text(FIT)
    fit = [sys.executable, "-I", str(here / "fit.py")]
    monkeypatch.setattr(search, "workers_of", lambda *_: Workers(fit, [{}]))
    monkeypatch.setattr(search, "_draw", lambda *_: None)
    line = f"evolve --config {ROOT}/configs/tensorboard.yaml --data.dataset {small_data}"
    line += " --data.image_size 64 --model.network.width_multiple 0.125 --data.batch_size 6 --data.workers 0"
    line += " --trainer.accelerator cpu --evolve.generations 1 --evolve.population 2 --run found --evolve.study shapes"
    stored = f"{line} --evolve.storage {address}"
    type_line(stored)
    for more in ("--print_config", "--epochs 3"):
        with pytest.raises(SystemExit):
            type_line(f"{stored} {more}")
    printed = capfd.readouterr()
    assert PASSWORD not in printed.out + printed.err
    files = contents(here)
    for name in ("evolve.csv", "hyp_evolved.yaml", "config.yaml", "study.id"):
        assert f"found/{name}" in files
    assert PASSWORD.encode() not in b"".join(files.values())
    refused(line)
    assert not (here / "found/study.db").exists()
