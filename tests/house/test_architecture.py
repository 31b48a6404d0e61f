"""docs/architecture.md: its files are there, its picture shows the rooms, its examples work."""

import re

from made_runs import ROOT, train, type_line
from rooms import ROOMS

from boltbox.detector.commands.command_line import COMMANDS, Command
from boltbox.detector.training.optimizer import DEFAULTS

PAGE = (ROOT / "docs/architecture.md").read_text()


def example(heading, number=0):
    """A block of code below a heading."""
    below = PAGE.partition(f"\n### {heading}\n")[2]
    return re.findall(r"```python\n(.*?)```", below, re.DOTALL)[number]


def test_what_it_names_is_there():
    named = re.findall(r"`((?:detector|callbacks|tests)/[\w./]*)`", PAGE)
    assert len(set(named)) > 20
    named += [f"docs/{page}" for page in re.findall(r"\]\((\S+?)\)", PAGE)]
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_picture_shows_all_rooms_in_their_order():
    picture = (ROOT / "docs/pictures/architecture.svg").read_text()
    names = re.findall(r'font-weight="600" fill="#111111">([^<]+)<', picture)
    assert names == ["cli.py", "callbacks/"] + list(reversed(ROOMS))


def test_a_command(
    tmp_path,
    small_data,
    monkeypatch,
    printed,
    refused,
    capfd,
):
    (tmp_path / "own_commands").mkdir()
    (tmp_path / "own_commands/count.py").write_text(example("A command"))
    (tmp_path / "own_commands/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    row = eval(example("A command", 1), {"Command": Command})
    # not where the page says
    command = row["count"]._replace(function_path="own_commands.count:count")
    monkeypatch.setitem(COMMANDS, "count", command)
    type_line(f"count {small_data} --split val")
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 5
    for line in lines:
        assert re.fullmatch(r"[\w ]+: \d+", line)
    assert "did you mean 'split'?" in refused(f"count {small_data} --splitt val")
    assert "train, val or test" in printed("count --help")


def test_a_callback(here, small_data, monkeypatch):
    (here / "my_callbacks.py").write_text(example("A callback"))
    monkeypatch.syspath_prepend(str(here))
    options = re.findall(r"--trainer\.callbacks\S* \S+", PAGE.partition("### A callback\n")[2])
    limits = "--trainer.max_epochs 2 --trainer.limit_train_batches 1 --trainer.limit_val_batches 0"
    train(small_data, here / "run", " ".join(options + [limits]))
    rates = list(map(float, (here / "run/lr.txt").read_text().splitlines()))
    assert len(rates) == 2
    assert rates == sorted(rates)  # the warm-up, from 0
    assert 0 < rates[1] <= DEFAULTS["Muon"].lr0
