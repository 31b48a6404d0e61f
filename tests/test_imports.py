"""Who may import whom."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [p for folder in ("detector", "callbacks") for p in sorted((ROOT / folder).rglob("*.py"))]
PURE = {"network", "layers", "loss", "postprocess", "boxes", "schedule", "anchors", "metrics", "optimizer", "weights"}


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
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
    if inside.parts[0] == "detector":
        assert not any(m.split(".")[0] in ("callbacks", "cli", "wandb") for m in found)
    if inside.parent == Path("detector") and path.stem in PURE:
        assert not any(m.split(".")[0] in ("lightning", "pytorch_lightning") for m in found)
    if inside.parts[:2] == ("detector", "data"):
        forbidden = ("network", "loss", "module", "metrics", "postprocess", "weights")
        assert not any(m in {f"detector.{f}" for f in forbidden} for m in found)
    heavy = {"albumentations", "wandb", "matplotlib", "faster_coco_eval", "tensorboard"}
    assert not {m.split(".")[0] for m in top_level_imports(path)} & heavy, "import it where it is used: it takes seconds"
