"""Runs side by side: options first, the best run first, one picture."""

import json
import os
import re
import shutil

import cv2
import yaml
from made_runs import type_line

from boltbox.detector.checkpoint.runs import claim


def make_run(folder, lr0, fitness, epochs, images=8, **config):
    """A run's files as fit writes them."""
    claim(folder, "fit")
    options = {
        "data": {"dataset": "demo"},
        "model": {"optim": {"lr0": None}, "network": {"size": "n"}},
        "trainer": {"max_epochs": epochs},
        **config,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    metrics = {"fitness": fitness, "mAP50-95": fitness, "mAP50": 0.9 - fitness, "P": 0.5, "R": None}
    metrics |= {"coco/AP": 0.1, "command": "fit", "split": "val", "epoch": epochs - 1}
    metrics |= {"images": images, "objects": 20, "optim": {"lr0": lr0}}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    if epochs:
        rows = [f"{k},{fitness * k / epochs},0.{k},1.5,{'' if k else 'nan'}" for k in range(epochs)]
        text = "\n".join(["epoch,val/mAP50-95,train/box_loss,seconds,val/P", *rows])
        (folder / "metrics.csv").write_text(text + "\n")
    return folder


def test_two_runs(here, capsys):
    make_run(here / "runs/fit-1", 0.01, 0.2, 3)
    make_run(here / "runs/fit-2", 0.02, 0.4, 5, extra="<b>")
    type_line("compare runs/fit-1 runs/fit-2")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["option", "fit-2", "fit-1"]
    expected = ["extra <b> None", "model.optim.lr0 0.02 0.01", "trainer.max_epochs 5 3"]
    assert sorted(" ".join(line.split()) for line in lines[2:5]) == expected
    best = lines.index("Metrics") + 3
    assert " ".join(lines[best].split()) == "fit-2 5 8 0.400 0.500 0.500 - 0.100 8 s"
    assert " ".join(lines[best + 1].split()).startswith("fit-1 3 8 0.200 0.700 ")
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "page:      runs/compare-1/compare.html"
    for line in lines:
        assert "warning" not in line
    page = (here / "runs/compare-1/compare.html").read_text()
    assert page.index("Options that differ") < page.index("Metrics") < page.index("Curves")
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert cv2.imread(str(here / "runs/compare-1/compare.png")).std() > 10
    for run, lr0 in (("fit-1", 0.01), ("fit-2", 0.03)):  # typed, fit-2's after its best epoch
        (here / f"runs/{run}/changed.yaml").write_text(f"model.optim.lr0: {lr0}\n")
    type_line("compare runs/fit-1 runs/fit-2")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[2:4]] == [["model.optim.lr0", "0.03", "0.01"], []]
    assert (here / "runs/compare-2/compare.html").is_file(), "the next number"


def test_the_last_runs(here, capfd, refused):
    """Where none are named; of fits that are, too."""
    for command in ("report", "compare"):
        assert refused(command).startswith(f"error: {command}")
    for number, name in enumerate(("fit-9", "fit-10", "cats")):
        run = make_run(here / f"runs/{name}", 0.01 * number, 0.2, 2)
        os.utime(run / "machine.json", (number, number))
    shutil.copytree(run, here / "runs/copy")
    type_line("compare")
    assert capfd.readouterr().out.splitlines()[1].split() == ["option", "fit-10", "cats"]
    for run in ("runs/fit-10", "runs/cats"):
        (here / f"{run}/metrics.json").unlink()
    type_line("report")
    assert "report:    runs/cats/report.html (" in capfd.readouterr().out
    type_line("report runs/fit-10 runs/cats")
    assert capfd.readouterr().out.count("report: ") == 2


def test_what_cannot_be_compared(here, capfd, refused):
    """Different images; runs without curves, as of validate, have no picture."""
    make_run(here / "a/run", 0.01, 0.2, 0)
    make_run(here / "b/run", 0.02, 0.1, 0, images=9)
    type_line("compare a/run b/run --run out")
    told = capfd.readouterr().out
    assert re.search("\nmodel.optim.lr0 +0.01 +0.02\n", told), "as they chose it"
    assert "warning: not evaluated on the same images" in told
    assert re.search("\na/run .* -\n", told), "no time"
    assert not (here / "out/compare.png").exists()
    (here / "bare").mkdir()
    (here / "bare/config.yaml").write_text("data: {}\n")
    claim(here / "half", "fit")
    (here / "half/metrics.json").write_text('{"command": "fi')
    for line, named in {
        "compare a/run": "compare",
        "compare a/run ./a/run": "compare",
        "compare a/run nothing": "nothing: ",
        "compare a/run bare": "bare: ",
        "report nothing": "nothing",
        "report bare": "bare",
        "report half": "half",
    }.items():
        assert named in refused(line)
    assert not (here / "runs").exists()
