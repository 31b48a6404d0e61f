"""`--ckpt_path`: a checkpoint brings all that it needs, from any folder; YOLOv5's files are taken
too."""

import re
import shutil
from pathlib import Path

import label_layouts
import numpy as np
import pytest
import torch
import yaml
from made_datasets import lay_out
from made_networks import MULTIPLES, same, small, yolov5_converter  # noqa: F401
from made_runs import column, load, read, rows, train, type_line

import boltbox
from boltbox.detector.commands.ckpt_path import MACHINES, find_start
from boltbox.detector.commands.command_line import CommandLine
from boltbox.detector.data.demo import make_demo
from boltbox.detector.evaluation.class_metrics import class_metrics
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.model.network import NetworkOptions, YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.start import load_weights
from boltbox.detector.weights.trained import read_trained

NARROW = {"width_multiple": 0.125, "depth_multiple": 0.1}
NAMES = ["disc", "ring", "star", "triangle", "cross"]
QUIET = "--trainer.enable_progress_bar false --report.enabled false --pictures.enabled false"
DEBUGGED = {  # what a run may have been given, and other commands should not go by
    "limit_train_batches": 1,
    "limit_val_batches": 1,
    "detect_anomaly": True,
    "precision": "32-true",
    "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": ""}},
    "callbacks": [{"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"}],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a data set and a run of one epoch, both by relative paths; the weights it
    started from are gone. Not to be written to."""
    folder = tmp_path_factory.mktemp("work") / "project"
    with pytest.MonkeyPatch.context() as patch:
        folder.mkdir()
        patch.chdir(folder)
        patch.delenv("BOLTBOX_RUN", raising=False)
        make_demo(Path("my/demo"), train=4, val=4)
        start = {}
        for name, tensor in YOLOv5(5, **NARROW).state_dict().items():
            start[f"network.{name}"] = tensor
        torch.save({"state_dict": start, "hyper_parameters": {"names": NAMES}}, "start.ckpt")
        Path("debug.yaml").write_text(yaml.safe_dump({"trainer": DEBUGGED, "ema": {"decay": 0.9}}))
        options = "--data.image_size 64 --data.batch_size 2 --data.workers 0 --trainer.max_epochs 1"
        options += " --model.network.width_multiple 0.125 --model.network.depth_multiple 0.1"
        options += " --model.start.weights start.ckpt --config debug.yaml"
        options += " --autoanchor.enabled false --doctor.enabled false"
        type_line(f"fit --data.dataset my/demo/data.yaml {options} {QUIET}")
        Path("start.ckpt").unlink()
    return folder


@pytest.fixture
def moved(project, here):
    """A copy somewhere else; the current folder is another."""
    shutil.copytree(project, here / "moved")
    return here / "moved"


def test_another_folder_is_as_good(project, here, capsys):
    """Neither the weights that the training started from nor the working folder matter, and the
    run's limits, loggers, callbacks and switches stay its own."""
    run = project / "runs/fit-1"
    type_line(f"validate --ckpt_path {run}/checkpoints/best.ckpt {QUIET}")
    told = capsys.readouterr().out
    assert f"options:   {run}/config.yaml\n" in told
    assert "val:       4 images, " in told
    config = read(here / "runs/validate-1/config.yaml")
    trainer = config["trainer"]
    fresh = {"logger": False, "callbacks": None, "detect_anomaly": False, "precision": "32-true"}
    assert fresh.items() <= trainer.items()
    assert trainer["limit_val_batches"] in (None, 1.0)
    assert config["ema"]["decay"] is None
    assert config["data"]["batch_size"] == 2


def test_a_checkpoint_alone_brings_the_options_of_its_run(project, moved, here, capsys):
    """Copied out of its folder, it trains on as it would there, bit for bit, and its data are found
    from where the run was started."""
    run = moved / "runs/fit-1"
    shutil.copy(run / "checkpoints/last.ckpt", "alone.ckpt")
    type_line("fit --ckpt_path alone.ckpt --run alone --trainer.max_epochs 2")
    assert "resume:    alone.ckpt\noptions:   alone.ckpt\n" in capsys.readouterr().out
    type_line(f"fit --ckpt_path last --run {run} --trainer.max_epochs 2")
    ends = []
    options = []
    for folder, data in ((run, moved), (here / "alone", project)):
        ends.append(load(folder / "checkpoints/last.ckpt")["state_dict"])
        options.append(read(folder / "config.yaml"))
        assert options[-1]["data"].pop("dataset") == str(data / "my/demo/data.yaml")
    assert same(*ends)
    assert options[0] == options[1]
    assert options[0]["model"]["start"]["weights"] == "start.ckpt", "where it comes from"
    assert options[0]["trainer"]["limit_train_batches"] == 1


def test_another_data_set_has_its_own_split(moved, here, refused):
    """What describes the run's data set is not taken over where one is named."""
    file = moved / "runs/fit-1/config.yaml"
    data = moved / "my/demo"
    config = read(file)
    config["data"] |= {"split": 0.5, "format": "yolo"}
    file.write_text(yaml.safe_dump(config))
    line = f"validate --ckpt_path {moved}/runs/fit-1/checkpoints/best.ckpt {QUIET}"
    shutil.copytree(data, here / "other")
    type_line(f"{line} --data.dataset other/data.yaml --run a")
    used = read(here / "a/config.yaml")["data"]
    assert {"split": None, "format": None, "batch_size": 2}.items() <= used.items()
    assert "split 0.5" in refused(f"{line} --data.dataset other --data.split 0.5")


def test_typed_weights_do_not_replace_a_checkpoint(moved, here, refused, capfd):
    """The same line starts a training and continues it."""
    run = moved / "runs/fit-1"
    line = f"fit --run {run} --trainer.max_epochs 1 --model.start.weights nowhere.pt --ckpt_path"
    assert "--model.start.weights: " in refused(f"{line} last")
    type_line(f"{line} auto")
    assert f"resume:    {run}/checkpoints/last.ckpt\n" in capfd.readouterr().out


def test_without_ckpt_path(
    moved,
    here,
    printed,
    refused,
    capfd,
    monkeypatch,
):
    """The last run's best.ckpt, or its last; without a run a sentence, but no hindrance to the
    help."""
    predict = f"predict --source {moved}/my/demo/images/val"
    for line in ("validate", "export", predict):
        assert "no --ckpt_path is given" in refused(line)
    printed("validate --help")
    monkeypatch.chdir(moved)
    type_line(f"validate {QUIET}")
    assert "weights:   runs/fit-1/checkpoints/best.ckpt\n" in capfd.readouterr().out
    Path("runs/fit-1/checkpoints/best.ckpt").unlink()
    Path("runs/fit-1").rename("runs/cats")
    type_line(f"{predict} --device cpu --images false")
    assert "weights:   runs/cats/checkpoints/last.ckpt\n" in capfd.readouterr().out


def test_a_run_folder_is_its_best(
    moved,
    refused,
    capfd,
    monkeypatch,
):
    """For fit, which resumes, its last. Each command says which checkpoint it uses."""
    monkeypatch.chdir(moved)
    run = "runs/fit-1"
    best = f"{run}/checkpoints/best.ckpt"
    predict = "predict --source my/demo/images/val --device cpu"
    for line, said in {
        f"{predict} --ckpt_path {run} --ensemble [{run}]": f"weights:   {best}, {best}\n",
        f"strip {run}": f"weights:   {best}\n",
        f"fit --ckpt_path {run} {QUIET}": f"resume:    {run}/checkpoints/last.ckpt\n",
    }.items():
        type_line(line)
        assert said in capfd.readouterr().out, line
    assert sorted(p.name for p in Path("runs").glob("fit-*")) == ["fit-1"]
    assert list(map(str, Predictor.load(run, device="cpu").files)) == [best]
    assert Detector.load(run, "cpu").names == NAMES
    assert "my: no run folder" in refused("predict --ckpt_path my --source my")
    Path(run).rename("cats_web")
    assert Predictor.load("cats_web", device="cpu").names == NAMES


def test_a_damaged_configuration_is_that_of_the_checkpoint(moved, capsys):
    """machine.json may be damaged too."""
    run = moved / "runs/fit-1"
    for name in ("config.yaml", "machine.json"):
        (run / name).write_bytes(b"\0")
    type_line(f"fit --ckpt_path last --run {run} --trainer.max_epochs 2")
    told = capsys.readouterr().out
    assert f"warning: {run}/config.yaml: " in told
    assert f"resume:    {run}/checkpoints/last.ckpt\noptions:   {run}/checkpoints/" in told
    config = read(run / "config.yaml")
    assert config["data"]["batch_size"] == 2
    assert read(run / "machine.json")["command"] == "fit"


def test_classes_get_names_later(here, refused, capfd):
    """A training on labels without names says so; its checkpoint gets names, in a new file."""
    label_layouts.LAYOUTS["images_and_labels"].write(here / "pets")
    train("pets", "run", "--doctor.enabled true --trainer.max_epochs 1")
    assert "warning: no class names" in capfd.readouterr().out
    type_line("fit --ckpt_path last --run run --trainer.max_epochs 2")
    assert "no class names" not in capfd.readouterr().out, "a resume keeps them"
    lay_out(here, {"few.yaml": "train: pets/images\nnames: [cat]\n"})
    lay_out(here, {"pets.yaml": "train: pets/images\nnames: [cat, dog]\n"})
    best = "run/checkpoints/best.ckpt"
    assert "few.yaml: 1 classes" in refused(f"strip {best} --names few.yaml")
    validate = f"validate --data.dataset pets.yaml {QUIET} --run validated --ckpt_path"
    assert "strip" in refused(f"{validate} {best}")
    type_line(f"strip {best} --names pets.yaml --out named.ckpt")
    type_line(f"{validate} named.ckpt")
    assert read_trained(best).names == ["0", "1"]
    assert boltbox.Predictor.load("named.ckpt").names == ["cat", "dog"]


def test_strip(moved, published, refused, monkeypatch):
    """What is left predicts and is measured as before, and starts a training, but continues none;
    its run does not become the most recent one."""
    monkeypatch.chdir(moved)
    best = Path("runs/fit-1/checkpoints/best.ckpt")
    type_line(f"strip {best}")
    stripped = best.with_name("best_stripped.ckpt")
    assert stripped.stat().st_size < best.stat().st_size / 2
    assert stripped.stat().st_mtime == best.stat().st_mtime
    ours = read_trained(best)
    theirs = read_trained(stripped)
    record = PredictionRecord.load(best.parents[1] / "detections.npz")
    figures = class_metrics(record.true_positives(), record.score, record.kind, record.label_kind)
    assert ours.thresholds == theirs.thresholds == figures.thresholds(5)
    assert ours.arguments() == theirs.arguments()
    assert same(ours.tensors, theirs.tensors)
    found = []
    for file in (best, stripped):
        found += Detector.load(file, "cpu").predict("my/demo/images/val", conf=0)[:1]
    assert np.array_equal(found[0].xyxy, found[1].xyxy)
    started = load_weights(small(5, **NARROW), stripped).line
    assert re.search(r"loaded (\d+) of \1 tensors", started)
    told = refused(f"fit --ckpt_path {stripped}")
    assert "holds no training to continue" in told
    assert f"--model.start.weights {stripped}" in told
    assert "it exists" in refused("strip best")
    assert "nothing to strip" in refused(f"strip {published}")


def test_load_from_checkpoint(project):
    """Lightning's way is as good as ours; with other classes it is refused, not half done, and with
    an activation that its tensors do not show."""
    checkpoint = project / "runs/fit-1/checkpoints/last.ckpt"
    ours = Detector.load(checkpoint, "cpu")
    theirs = Detector.load_from_checkpoint(checkpoint, map_location="cpu")
    assert dict(ours.hparams) == dict(theirs.hparams)
    assert ours.image_size == theirs.image_size
    assert ours.ema is None, "the average is its network"
    assert same(ours.evaluated_network().state_dict(), theirs.evaluated_network().state_dict())
    with pytest.raises(InputError, match=r"does not fit this network \(12 tensors, "):
        Detector.load_from_checkpoint(checkpoint, map_location="cpu", names=["a", "b"])
    trained = read_trained(checkpoint)
    other = Detector(trained.names, NetworkOptions(**NARROW, activation="relu"))
    with pytest.raises(InputError, match="activation is silu, not relu"):
        other.on_load_checkpoint(trained.content)
    with pytest.raises(InputError, match="that differ"):
        trained.fill(other.network, other.names)
    assert "relu, not silu" in load_weights(other.network, checkpoint).line


@pytest.fixture
def published(tmp_path, as_yolov5):
    """A narrow network under YOLOv5's names, loud enough to find something."""
    network = small(5)
    with torch.no_grad():
        for conv in network.head.convs:
            conv.weight.mul_(40)
    path = tmp_path / "theirs.pt"
    names = dict(enumerate(NAMES))
    torch.save({"model": as_yolov5(network, names=names, yaml=MULTIPLES)}, path)
    return path


def test_a_file_of_yolov5(
    published,
    project,
    here,
    refused,
    capfd,
):
    """Its size and names are read from it; what it finds is what the same file finds from
    Python. Data with other classes are refused."""
    data = project / "my/demo"
    image = data / "images/val/0000.jpg"
    options = "--image_size 64 --conf 0.01 --csv true --run out"
    type_line(f"predict --ckpt_path {published} --source {image} {options}")
    found = rows(here / "out", "predictions.csv")
    wanted = Detector.load(published, "cpu").predict(image, image_size=64, conf=0.01)
    assert column(found, "name") == [NAMES[i] for i in wanted.class_id]
    scores = [float(row["confidence"]) for row in found]
    assert scores == pytest.approx(wanted.confidence, abs=1e-4)
    assert found
    common = f"--ckpt_path {published} --data.image_size 64 --data.workers 0 {QUIET}"
    capfd.readouterr()
    type_line(f"validate {common} --data.dataset {data} --run figures")
    told = capfd.readouterr().out
    assert f"weights:   {published}\n" in told
    assert "loaded" not in told
    assert (here / "figures/metrics.json").is_file()
    assert "--model.start.weights" in refused(f"fit {common} --data.dataset {data}")
    content = {"path": str(data), "train": "images/train", "val": "images/val"}
    content["names"] = NAMES + ["another"]
    (here / "six.yaml").write_text(yaml.safe_dump(content))
    told = refused(f"validate --ckpt_path {published} --data.dataset six.yaml")
    assert "6" in told
    assert f"fit --model.start.weights {published}" in told
    network = NetworkOptions(width_multiple=0.25).build(len(NAMES))
    with pytest.raises(InputError, match="leave out the options of the model that differ"):
        read_trained(published).fill(network, NAMES)


@pytest.mark.parametrize("name", MACHINES)
def test_the_first_machine_must_have_the_checkpoint(name, here, monkeypatch):
    """In each of its processes; another one lacks what it has read, where they share no disk."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    line = CommandLine(["fit", "--ckpt_path", "last", "--run", "run"])
    monkeypatch.setenv(name, "0")
    with pytest.raises(InputError):
        find_start(line)
    monkeypatch.setenv(name, "1")
    assert find_start(line).weights is None
