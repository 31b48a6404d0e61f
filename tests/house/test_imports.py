"""Who may import whom."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from made_runs import column
from rooms import ROOMS

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "detector").rglob("*.py")) + sorted((ROOT / "callbacks").rglob("*.py"))
PURE = (
    "detector/model",
    "detector/evaluation",
    "detector/training/schedule.py",
    "detector/training/optimizer.py",
)

PARTS_OF_A_NETWORK = {
    "boltbox.detector.model.network",
    "boltbox.detector.model.layers",
    "boltbox.detector.model.loss",
    "boltbox.detector.model.postprocess",
    "boltbox.detector.model.sharding",
}
HEAVY = {"albumentations", "wandb", "matplotlib", "tensorboard"}
NAMES_A_CLASS = re.compile(r"(boltbox(?:\.\w+)+):\w+")
# they show what a command finds; the others read the command line's own table of groups
USE_COMMANDS = {"callbacks/configuration.py", "callbacks/doctor.py", "callbacks/recipe.py"}


@cache
def tree(path):
    return ast.parse(path.read_text())


@cache
def imports(path):
    """Full names of the modules that a file imports, or names in a string like `module:Class`."""
    nodes = list(ast.walk(tree(path)))
    found = names_in(nodes)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(NAMES_A_CLASS.findall(node.value))
    return frozenset(found)


def names_in(nodes):
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(column(node.names, "name"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found |= {node.module or ""}
    return found


def below(package, names):
    return {name for name in names if name.startswith(package)}


def parts(names, k):
    """The part number k of each."""
    return {name.split(".")[k] for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports(path):
    found = imports(path)
    packages = parts(found, 0)
    inside = path.relative_to(ROOT).as_posix()
    room = inside.split("/")[1]
    assert not packages & {"detector", "callbacks", "configs", "cli"}, "it is boltbox.detector"
    own = below("boltbox.detector.", found)
    rooms = parts(own, 2)
    if inside.startswith("detector/"):
        assert room == "commands" or not below("boltbox.callbacks", found)
        assert room == "loggers" or "wandb" not in packages
        assert rooms <= set(ROOMS[: ROOMS.index(room) + 1]) if room in ROOMS else not rooms
    elif inside not in USE_COMMANDS:
        assert "commands" not in rooms
    if inside.startswith(PURE):
        assert not packages & {"lightning", "pytorch_lightning"}
    if inside.startswith("detector/data"):
        assert not own & PARTS_OF_A_NETWORK
    allowed = {"torchvision", "torchvision.ops", "torchvision.utils"}
    assert below("torchvision", found) <= allowed, "its image decoding is deprecated"
    at_the_top = parts(names_in(tree(path).body), 0)
    assert not at_the_top & HEAVY, "import it where it is used: it takes seconds"


def test_no_circle():
    """Of files, also where an import stands in a function or is for types alone."""
    names = {}
    for path in FILES:
        place = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        names[f"boltbox.{place}".removesuffix(".__init__")] = path
    graph = {}
    for name, path in names.items():
        found = set(imports(path))
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found.add(f"{node.module}.{alias.name}")
        graph[name] = (found & names.keys()) - {name}
    order = list(TopologicalSorter(graph).static_order())  # CycleError names the circle
    assert set(order) == names.keys()


def test_every_room_is_known():
    entries = {p.relative_to(ROOT / "detector").parts[0] for p in (ROOT / "detector").rglob("*.py")}
    assert entries == set(ROOMS) | {"__init__.py"}
