"""What `pip install .` installs, run from a folder whose own modules are called like ours."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import cli
from detector.commands.doctor.decoder import Decoder

ROOT = Path(cli.__file__).parent
PACKAGES = ("detector", "callbacks", "configs")


def files(root: Path) -> set[str]:
    """Modules, configurations and templates below a folder."""
    kinds = (".py", ".yaml", ".html", ".svg")
    found = [root / "cli.py", *(p for name in PACKAGES for p in (root / name).rglob("*") if p.suffix in kinds)]
    return {p.relative_to(root).as_posix() for p in found}


@pytest.fixture
def hostile(here: Path) -> Path:
    """The current folder holds modules of the user's own that have our names."""
    for name in ("detector", "callbacks", "cli"):
        (here / f"{name}.py").write_text("raise RuntimeError('the module of the current folder was imported')\n")
    return here


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("cli.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    line += ["--no-build-isolation", "--no-compile", "--target", str(target), str(source)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_everything_is_installed(installed: Path) -> None:
    assert files(installed) == files(ROOT)


def test_a_training_from_another_folder(installed: Path, small_data: Path, hostile: Path) -> None:
    """With a shipped overlay; what is imported is what was installed, and nothing that only other commands and loggers need."""
    with (installed / "callbacks/__init__.py").open("a") as file:
        file.write("import atexit, sys\nprint('imported:', __file__)\n")
        file.write("atexit.register(lambda: print('modules:', *(name for name in sys.modules if '.' not in name)))\n")
    line = [sys.executable, str(installed / "bin/boltbox"), "fit", "--config", "configs/hyp/med.yaml", "--config", "debug",
            "--data.dataset", str(small_data), "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1",
            "--model.width_multiple", "0.125", "--report.enabled", "false", "--pictures.enabled", "false",
            "--autoanchor.enabled", "false"]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BOLTBOX_RUN")} | {"PYTHONPATH": str(installed)}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"imported: {installed / 'callbacks/__init__.py'}" in done.stdout
    modules = done.stdout.rpartition("modules: ")[2].split()
    assert "lightning" in modules
    assert not {"optuna", "openvino", "onnx", "onnxruntime", "wandb", "tensorboard"} & set(modules)
    config = yaml.safe_load((hostile / "runs/fit-1/config.yaml").read_text())
    assert (config["model"]["cls"], config["data"]["augment"]["mixup"], config["data"]["image_size"]) == (0.3, 0.1, 64)


def test_the_decoder_is_ours(small_data: Path, hostile: Path) -> None:
    with Decoder() as decoder:
        assert decoder.look_at(str(small_data.parent / "images/val/0000.jpg")).remarks == []


def test_a_file_that_is_here_counts_more_than_a_shipped_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "med.yaml").write_text("model:\n  lr0: 0.5\n")
    with pytest.raises(SystemExit):
        cli.main(
            ["fit", "--config", "med.yaml", "--config", "hyp/voc.yaml", "--config", "{data: {workers: 1}}", "--print_config"]
        )
    found = yaml.safe_load(capsys.readouterr().out)
    assert (found["model"]["lr0"], found["model"]["cls"], found["data"]["workers"]) == (0.00334, 0.21638, 1)
    with pytest.raises(SystemExit):
        cli.main(["fit", "--config", "none", "--config", "med.yaml", "--config", "{data: {workers: 1}}", "--print_config"])
    found = yaml.safe_load(capsys.readouterr().out)
    assert (found["model"]["lr0"], found["model"]["cls"], found["data"]["workers"]) == (0.5, 0.3, 1)
