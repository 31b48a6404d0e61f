"""The house rules: linters, types, and a README whose options exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import cli

ROOT = Path(cli.__file__).parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_linters_are_content(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_options_in_the_readme_exist(capsys: pytest.CaptureFixture[str]) -> None:
    used = set(re.findall(r"(?:`|python cli.py[^\n]*)--([a-z_]+[\w.]*)", README))
    used |= set(re.findall(r"--([a-z_]+\.[\w.]+|config|run|ckpt_path)", README))
    assert len(used) > 8
    known = set()
    for command in ("fit", "predict", "doctor", "evolve"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help", "all"])
        known |= set(re.findall(r"--([\w.]+)", capsys.readouterr().out))
    assert used - known == set()


def test_files_that_the_readme_names_are_there() -> None:
    named = set(
        re.findall(
            r"(?:configs|docs|benchmarks|tests|detector|callbacks)/[\w./-]*|[A-Z]+\.md", README
        )
    )
    assert len(named) > 10
    assert {n for n in named if not (ROOT / n).exists()} == set()


def test_figures_of_the_readme_are_measured() -> None:
    """The mean AP of each recipe, as benchmarks/recipes.md has it under these headings."""
    sections = (ROOT / "benchmarks/recipes.md").read_text().split("\n## ")
    studies = {
        "from `yolov5n.pt`, 30 epochs": "From yolov5n.pt, 30 epochs, seeds 0, 1, 2\n",
        "the same, 100 training images": "100 training images, from yolov5n.pt, 30 epochs",
        "the same, 50 training images": "50 training images, from yolov5n.pt, 30 epochs",
        "from scratch, 60 epochs": "From scratch, 60 epochs, seeds 0, 1, 2\n",
    }
    for row, heading in studies.items():
        (section,) = [text for text in sections if text.startswith(heading)]
        means = re.findall(r"^\| (?:yolov5|default) \|.*\| ([\d.]+) \| [\d,]+ \|$", section, re.M)
        shown = re.search(
            rf"^\| {re.escape(row)} \| ([\d.]+) \| \*\*([\d.]+)\*\* \|$", README, re.M
        )
        assert shown, row
        assert [f"{float(mean):.1f}" for mean in means] == list(shown.groups())
