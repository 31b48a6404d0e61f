"""What `pip install .` installs, run from a folder whose own modules are called like ours."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

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
    kinds = (".py", ".yaml", ".html", ".json", ".typed")
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
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout without symbolic links: git writes each as a file with the path in it."""
    target = tmp_path_factory.mktemp("checkout")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "cli.py"):
        shutil.copy(ROOT / name, target)
    (target / "boltbox").mkdir()
    for path in (ROOT / "boltbox").iterdir():
        copy = target / "boltbox" / path.name
        if path.is_symlink():
            copy.write_text(os.readlink(path))
        elif path.is_file():
            shutil.copy(path, copy)
    return target


def install(source: Path, *options: str, python: str = sys.executable) -> None:
    fixed = "--quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", *fixed.split(), *options, source
    )


def run(*line: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """A process that ends well."""
    done = subprocess.run(line, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def installed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By `pip install .`, which builds a wheel."""
    target = tmp_path_factory.mktemp("installed")
    install(checkout, "--no-compile", "--target", str(target))
    return target


def test_everything_is_installed_under_one_name(installed: Path) -> None:
    assert files(installed) == files(ROOT)
    assert {p.name.partition("-")[0] for p in installed.iterdir()} == {"boltbox", "bin"}


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        path.parent.relative_to(ROOT) for name in PACKAGES for path in (ROOT / name).rglob("*.*")
    }
    there = {
        "boltbox." + ".".join(folder.parts)
        for folder in folders
        if "__pycache__" not in folder.parts
    }
    assert sorted(listed) == sorted({"boltbox"} | there)


def test_an_sdist_holds_what_is_installed(checkout: Path, tmp_path: Path) -> None:
    build = "import sys, setuptools.build_meta as build; build.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, tmp_path, cwd=checkout)
    (archive,) = tmp_path.glob("*.tar.gz")
    install(archive, "--no-compile", "--target", str(tmp_path / "installed"))
    assert files(tmp_path / "installed") == files(ROOT)
    shutil.unpack_archive(archive, tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    assert "boltbox 0." in run(sys.executable, "cli.py", "--version", cwd=unpacked).stdout


def test_an_editable_install(
    checkout: Path, hostile: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In an environment of its own, which sees the packages of this one."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    install(checkout, "--editable", python=str(home / "bin/python"))
    code = """
import importlib.util
for name in ("detector.commands.main", "callbacks", "detector.data.formats.format"):
    print(importlib.util.find_spec(f"boltbox.{name}").origin)
"""
    places = run(home / "bin/python", "-c", code, env=environment()).stdout.split()
    assert all(Path(place).is_relative_to(checkout) for place in places)
    line = [home / "bin/boltbox", "fit", "--config", "yolo", "--data.dataset", "no.yaml"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 2
    assert "no.yaml" in done.stderr


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
    done = run(*line, env=environment(".", installed))
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


@pytest.mark.parametrize("where", ["wheel", "checkout", "checkout without links"])
def test_one_name_outside(where: str, installed: Path, checkout: Path, hostile: Path) -> None:
    """Beside modules of our folders' names, the current folder first in the path."""
    places = {"wheel": installed, "checkout": ROOT, "checkout without links": checkout}
    paths = environment(".", places[where])
    code = """
import importlib.util
import boltbox.detector.commands.main as program
print(importlib.util.find_spec("boltbox.callbacks").origin)
program.main(["--help"])
"""
    output = run(sys.executable, "-c", code, env=paths).stdout
    place, _, listing = output.partition("\n")
    assert Path(place).is_relative_to(places[where])
    assert "Train a detector" in listing


def test_a_checkout_without_symbolic_links(
    checkout: Path, small_data: Path, tmp_path: Path
) -> None:
    limits = (
        "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --data.workers 1 --config debug"
    )
    size = "--model.network.width_multiple 0.125 --model.network.depth_multiple 0.1"
    options = [
        *limits.split(),
        *size.split(),
        "--data.dataset",
        str(small_data),
        "--run",
        str(tmp_path),
    ]
    run(sys.executable, "cli.py", "fit", *options, env=environment(), cwd=checkout)
    assert (tmp_path / "checkpoints/last.ckpt").is_file()


@pytest.mark.parametrize("broken", [False, True])
def test_another_projects_folders_in_site_packages(
    installed: Path, hostile: Path, broken: bool
) -> None:
    """They lie beside boltbox there; of a broken installation they do not take the place of ours."""
    packages = hostile / "site-packages"
    shutil.copytree(installed, packages)
    for name in ("cli.py", "pyproject.toml", "callbacks.py"):
        shutil.copy(hostile / "callbacks.py", packages / name)
    (packages / "detector").mkdir()
    shutil.copy(hostile / "callbacks.py", packages / "detector/__init__.py")
    if broken:
        shutil.rmtree(packages / "boltbox/detector")
    # -S: without the .pth files of this environment, one of which may lead to boltbox
    line = [sys.executable, "-S", "-P", "-m", "boltbox", "--version"]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        env=environment(packages, sysconfig.get_path("purelib")),
    )
    assert done.returncode == int(broken)
    assert "of the current folder" not in done.stderr
    assert ("No module named 'boltbox.detector'" in done.stderr) == broken


def test_a_file_that_is_here_counts_more_than_a_shipped_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "med.yaml").write_text("model:\n  optim:\n    lr0: 0.5\n")
    expected = {
        "med.yaml --config hyp/voc.yaml": (0.00334, 0.21638),
        "hyp/none --config med.yaml": (0.5, 0.3),
    }
    for files, (lr0, cls) in expected.items():
        with pytest.raises(SystemExit):
            cli.main(f"fit --config {files} --data.workers 1 --print_config".split())
        config = yaml.safe_load(capsys.readouterr().out)
        assert config["model"]["optim"]["lr0"] == lr0
        assert config["model"]["loss"]["cls"] == cls
        assert config["data"]["workers"] == 1
