"""Short runs as a user types them, and what lies in their folders."""

import contextlib
import csv
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import yaml

import cli

ROOT = Path(__file__).parents[2]
SMALL = (
    "--data.image_size 64 --data.workers 0 --model.network.width_multiple 0.125"
    " --model.network.depth_multiple 0.1 --model.network.levels [5] --trainer.accelerator cpu"
    " --trainer.precision 32-true --trainer.enable_progress_bar false --autoanchor.enabled false"
    " --report.enabled false --pictures.enabled false --doctor.enabled false"
)


def small_fit(data, run, *more):
    """The words of the shortest fit there is, for tests that add what they are about."""
    line = f"fit {SMALL} --data.dataset {data} --run {run} --data.batch_size 8"
    return line.split() + list(more)


def train(data, run, options=""):
    cli.main(small_fit(data, run, *options.split()))


def type_line(line):
    cli.main(line.split())


def read(path):
    """The content of a JSON or YAML file."""
    text = Path(path).read_text()
    return json.loads(text) if str(path).endswith(".json") else yaml.safe_load(text)


def code_of(page, language="python"):
    """The blocks of code of a page of docs/."""
    text = (ROOT / f"docs/{page}.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def findings_of(dataset, run, options=""):
    """What the doctor finds in data with faults."""
    line = f"doctor --data.dataset {dataset} --data.image_size 64 --run {run} {options}"
    with pytest.raises(SystemExit, match="1"):
        type_line(line)
    return read(Path(run) / "doctor.json")["findings"]


def rows(run, name="metrics.csv"):
    """Those of a table in a folder, by the names of its columns."""
    with open(run / name, newline="") as file:
        return list(csv.DictReader(file))


def load(path):
    return torch.load(path, weights_only=True)


def column(table, name):
    """What each row of a table says under a name; rows are maps, objects, or sequences, whose names
    are numbers or slices."""
    found = []
    for row in table:
        is_attribute = isinstance(name, str) and not isinstance(row, Mapping)
        found.append(getattr(row, name) if is_attribute else row[name])
    return found


def contents(folder):
    """The files below a folder, by their paths in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def until(found, what="it", code=lambda: None):
    """What it finds, as soon as it finds something.

    Args:
        found: Nothing yet, or what it finds.
        what: For the message.
        code: Of the process that makes it; None while it runs.
    """
    end = time.monotonic() + 240
    while True:
        ended = code()
        if result := found():
            return result
        assert ended is None, f"{what} did not happen, and the process ended with {ended}"
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.02)


def is_running(process):
    """Not one that has ended and that nobody has waited for: /proc has it too, for ever where the
    first process of a container does not wait."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
