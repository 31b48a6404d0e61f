"""What `pip install .` installs, run from a folder whose own modules are called like ours."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from made_runs import ROOT, read

PACKAGES = ("detector", "callbacks", "configs")
# Libraries that only some commands, options and loggers need. Not matplotlib: torchmetrics imports
# it.
ON_DEMAND = {"albumentations", "onnx", "onnxruntime", "onnxscript", "openvino", "optuna", "pandas"}
ON_DEMAND |= {"plotly", "tensorboard", "tensorboardX", "wandb"}
WHERE = """
import importlib.util
for name in ("detector.commands.main", "callbacks", "detector.data.formats.format"):
    print(importlib.util.find_spec(f"boltbox.{name}").origin)
"""


def files(root):
    """Modules, configurations and templates below a folder."""
    kinds = (".py", ".yaml", ".html", ".js", ".css", ".jinja", ".json", ".typed")
    found = set()
    for folder in ("",) + PACKAGES:
        paths = [path for path in (root / "boltbox" / folder).rglob("*") if path.suffix in kinds]
        found.update(path.relative_to(root).as_posix() for path in paths)
    return found


@pytest.fixture
def hostile(here):
    """The current folder holds modules of the user's own that have our names."""
    for name in ("callbacks.py", "cli.py", "configs.py", "detector/__init__.py"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("raise RuntimeError('a module of the user was imported')\n")
    return here


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
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


def install(source, *options, python=sys.executable):
    fixed = "--quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation"
    pip = [sys.executable, "-m", "pip", "--python", python, "install"]
    run(*pip, *fixed.split(), *options, source)


def environment(*paths):
    return dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, paths)))


def run(*line, code=0, **options):
    """A process that ends with this exit code."""
    done = subprocess.run(line, capture_output=True, text=True, **options)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def installed(checkout, tmp_path_factory):
    """By `pip install .`, which builds a wheel."""
    target = tmp_path_factory.mktemp("installed")
    install(checkout, "--no-compile", "--target", str(target))
    return target


def test_everything_is_installed_under_one_name(installed):
    assert files(installed) == files(ROOT)
    assert {p.name.partition("-")[0] for p in installed.iterdir()} == {"boltbox", "bin"}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {Path(name).parent.as_posix().replace("/", ".") for name in files(ROOT)}
    assert sorted(listed) == sorted(folders)


def test_an_sdist_holds_what_is_installed(checkout, tmp_path):
    build = "import sys, setuptools.build_meta as build; build.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, tmp_path, cwd=checkout)
    (archive,) = tmp_path.glob("*.tar.gz")
    install(archive, "--no-compile", "--target", str(tmp_path / "installed"))
    assert files(tmp_path / "installed") == files(ROOT)


def test_an_editable_install(checkout, hostile, tmp_path):
    """In an environment of its own, which sees the packages of this one."""
    home = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", home)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    install(checkout, "--editable", python=str(home / "bin/python"))
    places = run(home / "bin/python", "-c", WHERE, env=environment()).stdout.split()
    for place in places:
        assert Path(place).is_relative_to(checkout)
    line = [home / "bin/boltbox", "fit", "--config", "yolo", "--data.dataset", "no.yaml"]
    assert "no.yaml" in run(*line, code=2, env=environment()).stderr


def test_a_training_from_another_folder(installed, small_data, hostile):
    """With a shipped overlay, pictures and a report; what is imported is what was installed, and
    nothing that only other commands and loggers need."""
    with (installed / "boltbox/callbacks/__init__.py").open("a") as file:
        file.write("import atexit, sys\nprint('imported:', __file__)\n")
        file.write("atexit.register(lambda: print('modules:', *sys.modules))\n")
    line = "fit --config configs/hyp/med.yaml --config debug --trainer.max_epochs 1"
    line += " --trainer.limit_train_batches 1 --autoanchor.enabled false --doctor.enabled false"
    line += f" --model.network.width_multiple 0.125 --data.dataset {small_data}"
    program = [sys.executable, installed / "bin/boltbox"]
    done = run(*program, *line.split(), env=environment(".", installed))
    assert f"imported: {installed / 'boltbox/callbacks/__init__.py'}" in done.stdout
    modules = done.stdout.rpartition("modules: ")[2].split()
    assert "lightning" in modules
    assert not ON_DEMAND & set(modules)
    assert (hostile / "runs/fit-1/report.html").is_file()
    config = read(hostile / "runs/fit-1/config.yaml")
    assert config["model"]["loss"]["cls"] == 0.3
    assert config["data"]["image_size"] == 64


@pytest.mark.parametrize("where", ["wheel", "checkout", "checkout without links"])
def test_one_name_outside(where, installed, checkout, hostile):
    """Beside modules of our folders' names, the current folder first in the path."""
    place = {"wheel": installed, "checkout": ROOT, "checkout without links": checkout}[where]
    output = run(sys.executable, "-c", WHERE, env=environment(".", place)).stdout
    for file in output.split():
        assert Path(file).is_relative_to(place)
    if where == "checkout without links":
        run(sys.executable, "cli.py", "--help", env=environment(), cwd=checkout)


@pytest.mark.parametrize("broken", [False, True])
def test_another_projects_folders_in_site_packages(installed, hostile, broken):
    """They lie beside boltbox there; of a broken installation they do not take the place of ours."""
    packages = hostile / "site-packages"
    shutil.copytree(installed, packages)
    for name in ("cli.py", "pyproject.toml", "callbacks.py", "detector/__init__.py"):
        (packages / name).parent.mkdir(exist_ok=True)
        shutil.copy(hostile / "callbacks.py", packages / name)
    if broken:
        shutil.rmtree(packages / "boltbox/detector")
    # -S: without the .pth files of this environment, one of which may lead to boltbox
    line = [sys.executable, "-S", "-P", "-m", "boltbox", "--version"]
    paths = environment(packages, sysconfig.get_path("purelib"))
    error = run(*line, code=int(broken), env=paths).stderr
    assert "a module of the user" not in error
    assert ("No module named 'boltbox.detector'" in error) == broken
