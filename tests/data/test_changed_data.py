"""A data set that changes between a kill and the resume: epochs are trained whole."""

import os
import re
import shutil

import cv2
import pytest
from made_runs import load

import cli
from benchmarks.resume_fuzz import command, start
from boltbox.detector.data.demo import make_demo

pytestmark = pytest.mark.usefixtures("quick_starts")


def line(data, run, *more):
    """No checkpoint within epochs but that of a signal, no validation, no search for anchors."""
    quick = ("--autoanchor.enabled", "false", "--doctor.enabled", "false")
    quick += ("--trainer.check_val_every_n_epoch", "9", "--model.optim.nominal_batch_size", "4")
    return command(data, run, workers=0, ranks=1, within_epochs=False, more=quick + more)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder with a data set of 24 images and a run on it that was told to stop in epoch 1 when 8
    images of it were trained on."""
    folder = tmp_path_factory.mktemp("killed")
    data = make_demo(folder / "data", train=24, val=8)
    assert start(line(data, folder / "run"), "batch:7:SIGTERM") == 143
    return folder


def images(folder):
    return sorted((folder / "data/images/train").iterdir())


def label_of(image):
    return image.parents[2] / "labels/train" / f"{image.stem}.txt"


def keep(count):
    def remove(folder):
        for image in images(folder)[count:]:
            image.unlink()
            label_of(image).unlink()

    return remove


def edit(folder):
    """Other labels, another picture under the same name, a new name, one image less to validate
    on."""
    first, second, third, *_ = images(folder)
    label_of(first).write_text(label_of(first).read_text() + "0 0.5 0.5 0.25 0.25\n")
    cv2.imwrite(str(second), cv2.imread(str(second))[:, ::-1])
    name = os.fsdecode(b"renam\xe9")
    third.rename(third.with_stem(name))
    label_of(third).rename(label_of(third).with_stem(name))
    sorted((folder / "data/images/val").iterdir())[0].unlink()


@pytest.mark.parametrize(
    ("change", "batch_size", "splits", "batches"),
    [
        # nothing is left of epoch 1 but its last batch, the only one
        (keep(4), 4, ["train"], [6, 3, 1]),
        (edit, 4, ["train", "val"], [6, 6, 6]),
        # the epoch goes on at the image, not at the batch: 8 of 24 images are done
        (keep(24), 8, [], [6, 2 + 2, 3]),
    ],
    ids=["nearly all removed", "edited", "another batch size"],
)
def test_epochs_are_whole(change, batch_size, splits, batches, killed, tmp_path, capsys):
    """The optimizer does not wait until iterations of fewer images, whose numbers are lower, have
    caught up."""
    folder = shutil.copytree(killed, tmp_path / "copy")
    change(folder)
    resume = line(folder / "data/data.yaml", folder / "run", "--ckpt_path", "last")
    cli.main(resume[2:] + ["--data.batch_size", str(batch_size)])
    assert re.findall(r"^warning: +(\w+) has changed", capsys.readouterr().out, re.M) == splits
    ended = load(folder / "run/checkpoints/last.ckpt")
    loop = ended["loops"]["fit_loop"]
    assert loop["epoch_progress"]["current"]["processed"] == 3
    assert loop["epoch_loop.batch_progress"]["total"]["processed"] == sum(batches)
    assert ended["global_step"] == sum(batches)
