"""Shared by the tests: one thread each (they run side by side), a small data set, a place of their
own to write to; in which order they come, and which are quick."""

import contextlib
import gc
import importlib
import os
import random
import shutil
import signal
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # also for the processes that tests start
os.environ["no_proxy"] = "*"  # the servers of tests are on this machine
os.environ["COLUMNS"] = "80"  # of the terminal

import pytest
import torch
from forked import forks
from hypothesis import HealthCheck, settings
from lightning.fabric.utilities import registry
from made_runs import train
from ranks import free_port
from refusal import alarm, printed_line, refused_line  # noqa: F401 - fixtures

from boltbox.detector.commands import lightning_cli
from boltbox.detector.data.demo import make_demo
from boltbox.detector.system.operating_system import available_cores

pytest.register_assert_rewrite("agreement", "made_samples", "made_datasets")
torch.set_num_threads(1)
# were the first one after a torch.export, forked processes could make none
torch.zeros(1, requires_grad=True).backward()
settings.register_profile(  # neither luck nor load may fail a test
    "steady",
    max_examples=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")
# no test waits for the disk; test_power_loss.py and test_failing_disk.py look at what is flushed
os.fsync = lambda file: None
# a job in the background is started with it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)

# seconds and name of tests that are not quick, of all their parameters together
SLOW = Path(__file__).with_name("slow.tsv")
QUICK = 0.4  # seconds up to which a test is


def pytest_addoption(parser):
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="files, and the tests of each, in a random order",
    )
    parser.addoption(
        "--write-slow",
        action="store_true",
        help=f"write {SLOW.name} anew from this run of all tests",
    )


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config, items):
    """Files that take long come first, or a worker would be left alone with the last of them. The
    tests of a file run in one worker: they share fixtures. What slow.tsv does not name is quick, so
    a new test is."""
    slow = set()
    seconds = defaultdict(float)  # of each file
    for line in SLOW.read_text().splitlines():
        time, name = line.split("\t")
        slow.add(name)
        seconds[place(name)[0]] += float(time)
    files = defaultdict(list)
    for item in items:
        file, name = place(item.nodeid)
        files[file].append(item)
        item.add_marker("slow" if name in slow else "quick")
    order = sorted(files, key=lambda file: -seconds[file])
    shuffle = config.getoption("shuffle")
    if shuffle is not None:
        rng = random.Random(shuffle)
        for each in (order, *files.values()):
            rng.shuffle(each)
    items.clear()
    for file in order:
        items += files[file]


def pytest_xdist_auto_num_workers():
    """One more than cores: some tests wait. Each takes memory and seconds to start."""
    return min(available_cores() + 1, 5)


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session):
    """pytest-xdist starts its workers here: as forks of this process, in which everything that
    takes long is imported, and the tests: what one of them raises, its worker tells."""
    if session.config.getoption("dist", "no") == "no":
        return (yield)
    modules = ["onnxscript", "s3fs"]
    for argument in session.config.args:
        path = Path(place(argument)[0]).resolve()
        files = [path] if path.is_file() else list(path.rglob("test_*.py"))
        sys.path += {str(file.parent) for file in files}
        modules += [file.stem for file in files]
    for name in modules:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)
    with forks():
        return (yield)


def pytest_collection_finish():
    """What is there now stays: the collector, which trainings call often, need not look at it again
    and again; nor, each time, at all that the tests have imported since."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 60)  # of Python, but 60 for 10


def pytest_unconfigure():
    gc.unfreeze()  # or libraries would tell of leaks at the end


def place(test):
    """The file of a test, and its name without parameters."""
    name = test.partition("[")[0]
    return name.partition("::")[0], name


class SlowTests:
    """Writes slow.tsv in the end. A fixture's time is that of the test that came first, so look at
    the list."""

    def __init__(self):
        self.seconds = defaultdict(float)

    def pytest_runtest_logreport(self, report):
        self.seconds[place(report.nodeid)[1]] += report.duration

    def pytest_sessionfinish(self):
        lines = ""
        for name, time in sorted(self.seconds.items()):
            if time > QUICK:
                lines += f"{time:.1f}\t{name}\n"
        SLOW.write_text(lines)


def pytest_configure(config):
    if config.getoption("write_slow") and "PYTEST_XDIST_WORKER" not in os.environ:
        # as in a fresh clone, where mypy takes long
        shutil.rmtree(config.rootpath / ".mypy_cache", ignore_errors=True)
        config.pluginmanager.register(SlowTests())


@pytest.fixture(autouse=True)
def environment():
    """No test changes the environment or the current folder of the next."""
    before = dict(os.environ)
    folder = os.getcwd()
    yield
    current = os.environ.get("PYTEST_CURRENT_TEST")
    os.environ.clear()
    os.environ.update(before)
    if current is not None:
        os.environ["PYTEST_CURRENT_TEST"] = current
    os.chdir(folder)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """The caches of the tests are not in the user's home."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["BOLTBOX_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def parsers():
    """The parser of a command is built once, its defaults are copies, and packages are searched
    for callbacks once: that takes a third of a small `fit`. Another parser for the help, which
    changes it, and where options come from a class of the user's. No other program takes the port
    of a training between Lightning's choice and its use."""
    built = {}
    build = lightning_cli.make_parser

    def once(definition, line):
        kept = {} if line.typed == ["--help"] or line.data_class else built
        if line.command not in kept:
            parser = build(definition, line)
            defaults = cache(parser.get_defaults)
            parser.get_defaults = lambda **options: defaults(**options).clone()
            kept[line.command] = parser
        return kept[line.command]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lightning_cli, "make_parser", once)
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        patch.setattr(
            "lightning.fabric.plugins.environments.lightning.find_free_network_port", free_port
        )
        yield


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """The data.yaml of 24 training and 8 validation images of the demo data set."""
    return make_demo(tmp_path_factory.mktemp("data") / "demo", train=24, val=8)


@pytest.fixture(scope="session")
def trained(small_data, tmp_path_factory):
    """The run folder of one epoch of one batch, not to be written to."""
    run = tmp_path_factory.mktemp("trained") / "run"
    one = "--trainer.max_epochs 1 --trainer.limit_train_batches 1"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BOLTBOX_RUN", raising=False)
        train(small_data, run, one)
    return run


@pytest.fixture(scope="module")
def quick_starts():
    """Commands that a module's tests start come from a process that has imported everything."""
    with forks():
        yield


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, where `runs/` may appear."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BOLTBOX_RUN", raising=False)
    return tmp_path
