"""From a data set with errors to a repaired one: review by folds, which goes on after a kill; a
decision on each suspect in Chromium; apply, fit and compare."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from chromium import chromium
from forked import forks
from made_datasets import load
from made_runs import SMALL, read, train, type_line

import cli
from boltbox.detector.commands.review import folds

SPLITS = ("train", "val")


def objects(data):
    """Boxes and classes of the images, by split and name of the file."""
    found = {}
    for split in SPLITS:
        dataset = load(data, split)
        for file, labels in zip(dataset.files, dataset.labels, strict=True):
            found[split, Path(file).name] = (labels.boxes.copy(), labels.classes.copy())
    return found


@pytest.fixture(scope="module")
def wrong(small_data, tmp_path_factory):
    """The data.yaml of the demo images, of which each fourth has a first object of another class."""
    folder = tmp_path_factory.mktemp("wrong") / "data"
    shutil.copytree(small_data.parent, folder)
    names = load(small_data).names
    for file in sorted(folder.glob("labels/*/*.txt"))[::4]:
        number, space, rest = file.read_text().partition(" ")
        if space:
            file.write_text(f"{(int(number) + 1) % len(names)} {rest}")
    return folder / "data.yaml"


@pytest.fixture(scope="module")
def line(wrong):
    """A command line that reviews it by two folds, all but the folder of the run."""
    options = ["--trainer.max_epochs", "1", "--review.folds", "2", "--run"]
    return ["review", "--data.dataset", str(wrong)] + SMALL.split() + options


@pytest.fixture(scope="module")
def reviewed(line, tmp_path_factory):
    """The folder of a review that was killed after the first of two folds and went on, not to be
    written to."""
    run = tmp_path_factory.mktemp("reviewed") / "run"
    first = run / "folds/0/predictions.json"
    write = folds.write_atomically

    def write_and_die(path, text):
        write(path, text)
        if path == first:
            os.kill(os.getpid(), signal.SIGKILL)

    with forks():
        words = [sys.executable, cli.__file__] + line + [str(run)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(folds, "write_atomically", write_and_die)
            command = subprocess.run(words, stdout=subprocess.DEVNULL)
        assert command.returncode == -signal.SIGKILL
        done = first.stat().st_mtime_ns
        cli.main(line + [str(run)])
    assert first.stat().st_mtime_ns == done
    return run


def test_a_review_goes_on_after_a_kill(line, reviewed, here, refused):
    """It finds what a review with its detectors finds."""
    before = (reviewed / "review.json").read_bytes()
    assert len(read(reviewed / "review.json")["images"]) <= 32
    for page in ("review.html", "review.csv", "reliability.png"):
        assert (reviewed / page).stat().st_size
    left_out = shutil.ignore_patterns("fit", "review.json")
    shutil.copytree(reviewed, "same", ignore=left_out)
    cli.main(line + ["same"])
    assert Path("same/review.json").read_bytes() == before
    assert "--run" in refused(line + ["same", "--model.optim.lr0", "0.5"])


def test_a_trained_detector_reviews_what_it_was_not_trained_on(wrong, reviewed, here):
    both = wrong.with_name("both.yaml")
    both.write_text(wrong.read_text().replace("val: ", "val: [images/train, images/val] #"))
    line = f"review --data.dataset {both} {SMALL} --ckpt_path {reviewed}/folds/0/fit"
    with forks():
        for devices in (1, 2):
            type_line(f"{line} --trainer.devices {devices} --run ranks{devices}")
    one, two = (read(f"ranks{devices}/review.json") for devices in (1, 2))
    assert one == two
    folders = {Path(image["file"]).parent.name for image in one["images"]}
    assert folders == {"val"}


def decide(browser, review, truth, names):
    """Decide on each suspect of a page: who does so knows the right classes and lets the other
    labels be.

    Returns:
        Boxes and classes, by split and name of the file, of the images with a changed label.
    """
    changed = {}
    for suspect in review["suspects"]:
        image = review["images"][suspect["image"]]
        place = (image["split"], Path(image["file"]).name)
        label = suspect["label"]
        right = truth[place][1]
        if label is None or image["labels"][label]["class"] == right[label]:
            browser.press("r")
            continue
        labels = image["labels"]
        given = ([e["box"] for e in labels], [e["class"] for e in labels])
        boxes, classes = changed.setdefault(place, given)
        if suggestion := suspect["suggestion"]:
            browser.press("a")
            boxes[label] = suggestion["box"]
            classes[label] = suggestion["class"]
        else:  # names begin with different letters
            browser.press("c", names[right[label]][0], "Enter", "j")
            classes[label] = right[label]
    return changed


def test_the_loop(small_data, wrong, reviewed, here):
    """Each label that was made wrong is a suspect; the copy has what was decided, and trains."""
    truth = objects(small_data)
    expected = objects(wrong)
    with chromium("chromium") as browser:
        browser.open(reviewed / "review.html")
        review = read(reviewed / "review.json")
        changed = decide(browser, review, truth, load(small_data).names)
        browser.press("s")
        decisions = browser.downloaded("decisions.json")
        assert browser.errors == []
    errors = {
        place for place, (_, classes) in expected.items() if (classes != truth[place][1]).any()
    }
    assert len(errors) > 5
    assert changed.keys() == errors
    type_line(f"review --apply {decisions} --out copy")
    for place, (boxes, classes) in objects("copy/data.yaml").items():
        expected_boxes, expected_classes = changed.get(place, expected[place])
        np.testing.assert_allclose(boxes, expected_boxes, atol=0.01)
        np.testing.assert_array_equal(classes, expected_classes)
    one = "--trainer.max_epochs 1 --trainer.limit_train_batches 1"
    train(wrong, "runs/before", one)
    train("copy/data.yaml", "runs/after", one)
    type_line("compare runs/before runs/after")
