"""Short runs as a user types them, and what lies in their folders."""

import csv
import json
import time
from collections.abc import Mapping
from pathlib import Path
from shlex import split

import torch
import yaml

import cli

ROOT = Path(__file__).parents[2]
QUICK = split(
    """--data.image_size 64 --data.batch_size 8 --data.workers 0 --report.enabled false
    --trainer.enable_progress_bar false --pictures.enabled false --trainer.precision 32-true
    --model.network.width_multiple 0.125 --model.network.depth_multiple 0.1
    --model.network.levels [5] --autoanchor.enabled false --doctor.enabled false"""
)


def fit(data, *options):
    given = ["--config", str(ROOT / "configs/yolo.yaml"), "--data.dataset", str(data)]
    cli.main(["fit"] + given + QUICK + list(options))


def type_line(line):
    cli.main(line.split())


def read(path):
    """The content of a JSON or YAML file."""
    text = Path(path).read_text()
    return json.loads(text) if str(path).endswith(".json") else yaml.safe_load(text)


def rows(run):
    with open(run / "metrics.csv", newline="") as file:
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


def until(found):
    """What it finds, as soon as it finds something."""
    end = time.monotonic() + 240
    while not (result := found()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return result
