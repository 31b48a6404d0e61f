"""Who may import whom."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from rooms import ROOMS

ROOT = Path(__file__).parents[2]
FILES = [p for folder in ("detector", "callbacks") for p in sorted((ROOT / folder).rglob("*.py"))]
PURE = (
    "detector/model",
    "detector/evaluation",
    "detector/training/schedule.py",
    "detector/training/optimizer.py",
)

NAMES_A_CLASS = re.compile(r"(boltbox(?:\.\w+)+):\w+")
# they show what a command finds; the others read the command line's own table of groups
USE_COMMANDS = {f"callbacks/{name}.py" for name in ("configuration", "doctor", "recipe")}


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, or names in a string like `module:Class`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(NAMES_A_CLASS.findall(node.value))
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""}
    return found


def top_level_imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names} | {
        n.module or "" for n in tree.body if isinstance(n, ast.ImportFrom)
    }


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports(path: Path) -> None:
    found = imports(path)
    inside = path.relative_to(ROOT)
    assert not {m.split(".")[0] for m in found} & {"detector", "callbacks", "configs", "cli"}, (
        "it is boltbox.detector"
    )
    own = {m for m in found if m.startswith("boltbox.detector.")}
    if inside.parts[0] == "detector":
        from_above = {m for m in found if m.startswith("boltbox.callbacks")}
        assert inside.parts[1] == "commands" or not from_above
        assert "loggers" in inside.parts or not any(m.split(".")[0] == "wandb" for m in found)
        room = inside.parts[1]
        allowed = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ()
        upward = {m for m in own if m.split(".")[2] not in allowed}
        assert not upward
    elif str(inside) not in USE_COMMANDS:
        assert not any(m.startswith("boltbox.detector.commands") for m in own)
    if str(inside).startswith(PURE):
        assert not any(m.split(".")[0] in ("lightning", "pytorch_lightning") for m in found)
    if inside.parts[:2] == ("detector", "data"):
        assert not own & {
            f"boltbox.detector.model.{f}"
            for f in ("network", "layers", "loss", "postprocess", "sharding")
        }
    vision = {m for m in found if m.split(".")[0] == "torchvision"}
    assert vision <= {"torchvision", "torchvision.ops", "torchvision.utils"}, (
        "its image decoding is deprecated"
    )
    heavy = {"albumentations", "wandb", "matplotlib", "faster_coco_eval", "tensorboard"}
    assert not {m.split(".")[0] for m in top_level_imports(path)} & heavy, (
        "import it where it is used: it takes seconds"
    )


def test_no_circle() -> None:
    """Of files, also where an import stands in a function or is for types alone."""
    places = {
        path: "boltbox." + ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES
    }
    names = {place.removesuffix(".__init__"): path for path, place in places.items()}
    graph = {}
    for name, path in names.items():
        from_imports = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
        ]
        found = imports(path) | {
            f"{node.module}.{alias.name}" for node in from_imports for alias in node.names
        }
        graph[name] = (found & names.keys()) - {name}
    order = list(TopologicalSorter(graph).static_order())  # CycleError names the circle
    assert set(order) == names.keys()


def test_every_room_is_known() -> None:
    entries = {p.relative_to(ROOT / "detector").parts[0] for p in (ROOT / "detector").rglob("*.py")}
    assert entries == {*ROOMS, "__init__.py"}
