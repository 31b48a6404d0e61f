"""What `pip install .` installs, run from a folder whose own modules are called like ours."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import cli

ROOT = Path(cli.__file__).parent
PACKAGES = ("detector", "callbacks", "configs")
# Libraries that only some commands, options and loggers need. Not matplotlib: torchmetrics imports
# it.
ASKED_FOR = {
    *("albumentations", "onnx", "onnxruntime", "onnxscript", "openvino", "optuna", "pandas"),
    *("plotly", "tensorboard", "tensorboardX", "wandb"),
}


def files(root: Path) -> set[str]:
    """Modules, configurations and templates below a folder."""
    kinds = (".py", ".yaml", ".html", ".svg")
    folders = (root / "boltbox", *((root / "boltbox" / name) for name in PACKAGES))
    found = {p for folder in folders for p in folder.rglob("*") if p.suffix in kinds}
    return {p.relative_to(root).as_posix() for p in found}


@pytest.fixture
def hostile(here: Path) -> Path:
    """The current folder holds modules of the user's own that have our names."""
    for name in ("callbacks.py", "cli.py", "configs.py", "detector/__init__.py"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(
            "raise RuntimeError('the module of the current folder was imported')\n"
        )
    return here


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in (*PACKAGES, "boltbox"):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = (
        "--quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation --no-compile"
    )
    line = f"{sys.executable} -m pip install {options} --target {target} {source}".split()
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_everything_is_installed_under_one_name(installed: Path) -> None:
    assert files(installed) == files(ROOT)
    assert {p.name.partition("-")[0] for p in installed.iterdir()} == {"boltbox", "bin"}


def environment(*paths: Path | str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("BOLTBOX_RUN")}
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


def test_a_training_from_another_folder(installed: Path, small_data: Path, hostile: Path) -> None:
    """With a shipped overlay, pictures and a report; what is imported is what was installed, and
    nothing that only other commands and loggers need."""
    with (installed / "boltbox/callbacks/__init__.py").open("a") as file:
        file.write("import atexit, sys\nprint('imported:', __file__)\n")
        file.write(
            "atexit.register(lambda: print('modules:', *(name for name in sys.modules if '.' not in name)))\n"
        )
    line = [sys.executable, str(installed / "bin/boltbox"), "fit", "--config", "configs/hyp/med.yaml", "--config", "debug",
            "--data.dataset", str(small_data), "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1",
            "--model.network.width_multiple", "0.125", "--model.network.depth_multiple", "0.1", "--model.network.levels", "[5]",
            "--autoanchor.enabled", "false", "--doctor.enabled", "false"]  # fmt: skip
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, env=environment(".", installed)
    )
    assert done.returncode == 0, done.stderr
    assert f"imported: {installed / 'boltbox/callbacks/__init__.py'}" in done.stdout
    modules = done.stdout.rpartition("modules: ")[2].split()
    assert "lightning" in modules
    assert not ASKED_FOR & set(modules)
    assert (hostile / "runs/fit-1/report.html").is_file()
    config = yaml.safe_load((hostile / "runs/fit-1/config.yaml").read_text())
    assert (
        config["model"]["loss"]["cls"],
        config["data"]["augment"]["mixup"],
        config["data"]["image_size"],
    ) == (0.3, 0.1, 64)


@pytest.mark.parametrize("where", ["wheel", "checkout"])
def test_one_name_outside(where: str, installed: Path, hostile: Path) -> None:
    """Beside modules of our folders' names, the current folder first in the path."""
    paths = environment(".", installed if where == "wheel" else ROOT)
    code = """
import importlib.util
import boltbox.detector.commands.main as program
print(importlib.util.find_spec("boltbox.callbacks").origin)
program.main(["--help"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=paths
    )
    assert done.returncode == 0, done.stderr
    places, _, told = done.stdout.partition("\n")
    assert all(str(hostile) not in place for place in places.split())
    assert "boltbox/callbacks/__init__.py" in places
    assert "Train a detector" in told


def test_a_checkout_without_symbolic_links(tmp_path: Path) -> None:
    """Where git writes a link as a file with the other's path in it."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "boltbox").mkdir()
    for path in (ROOT / "boltbox").iterdir():
        target = tmp_path / "boltbox" / path.name
        if path.is_symlink():
            target.write_text(os.readlink(path))
        elif path.is_file():
            shutil.copy(path, target)
    line = [sys.executable, "-m", "boltbox", "fit", "--model.lr00", "1"]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, env=environment(tmp_path), cwd=tmp_path
    )
    assert "did you mean 'model.optim.lr0'?" in done.stderr


def test_a_file_that_is_here_counts_more_than_a_shipped_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "med.yaml").write_text("model:\n  optim:\n    lr0: 0.5\n")
    here_first, last = "med.yaml --config hyp/voc.yaml", "hyp/none --config med.yaml"
    for files, wanted in ((here_first, (0.00334, 0.21638)), (last, (0.5, 0.3))):
        with pytest.raises(SystemExit):
            cli.main(f"fit --config {files} --data.workers 1 --print_config".split())
        found = yaml.safe_load(capsys.readouterr().out)
        assert (found["model"]["optim"]["lr0"], found["model"]["loss"]["cls"]) == wanted
        assert found["data"]["workers"] == 1
