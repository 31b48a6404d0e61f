"""`--ckpt_path`: a checkpoint brings all that it needs, from any folder; YOLOv5's files are taken
too."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import label_layouts
import numpy as np
import pytest
import torch
import yaml
from made_datasets import lay_out
from made_networks import small, yolov5_converter  # noqa: F401
from small_fit import small_fit

import boltbox
import cli
from boltbox.detector.checkpoint.runs import path_from, start_of
from boltbox.detector.data.demo import make_demo
from boltbox.detector.evaluation.class_metrics import class_metrics
from boltbox.detector.evaluation.prediction_record import PredictionRecord
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.model.network import NetworkOptions, YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector
from boltbox.detector.weights.start import StartOptions, load_weights
from boltbox.detector.weights.trained import read_trained

NARROW: dict[str, Any] = {"width_multiple": 0.125, "depth_multiple": 0.1}
NAMES = ["disc", "ring", "star", "triangle", "cross"]
QUIET = [
    "--trainer.enable_progress_bar",
    "false",
    "--report.enabled",
    "false",
    "--pictures.enabled",
    "false",
]
DEBUGGED = {  # what a run may have been given, and other commands should not go by
    "limit_train_batches": 1,
    "limit_val_batches": 1,
    "detect_anomaly": True,
    "precision": "32-true",
    "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": ""}},
    "callbacks": [{"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"}],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set and a run of one epoch, both by relative paths; the weights it
    started from are gone. Not to be written to."""
    folder = tmp_path_factory.mktemp("work") / "project"
    with pytest.MonkeyPatch.context() as patch:
        folder.mkdir()
        patch.chdir(folder)
        patch.delenv("BOLTBOX_RUN", raising=False)
        make_demo(Path("my/demo"), train=4, val=4)
        start = {
            f"network.{name}": tensor for name, tensor in YOLOv5(5, **NARROW).state_dict().items()
        }
        torch.save({"state_dict": start, "hyper_parameters": {"names": NAMES}}, "start.ckpt")
        Path("debug.yaml").write_text(yaml.safe_dump({"trainer": DEBUGGED, "ema": {"decay": 0.9}}))
        options = "--data.image_size 64 --data.batch_size 2 --data.workers 0 --trainer.max_epochs 1"
        options += " --model.network.width_multiple 0.125 --model.network.depth_multiple 0.1"
        options += (
            " --model.start.weights start.ckpt --config debug.yaml --autoanchor.enabled false"
        )
        line = ["fit", "--data.dataset", "my/demo/data.yaml", *options.split()]
        cli.main([*line, "--doctor.enabled", "false", *QUIET])
        Path("start.ckpt").unlink()
    return folder


@pytest.fixture
def moved(project: Path, here: Path) -> Path:
    """A copy somewhere else; the current folder is another."""
    shutil.copytree(project, here / "moved")
    return here / "moved"


def error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    told = capsys.readouterr().err.strip()
    assert leaving.value.code == 2
    assert told.startswith("error: ")
    assert len(told.splitlines()) == 1
    return told


def test_another_folder_is_as_good(
    project: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the weights that the training started from nor the working folder matter, and the
    run's limits, loggers, callbacks and switches stay its own."""
    checkpoint = project / "runs/fit-1/checkpoints/best.ckpt"
    cli.main(["validate", "--ckpt_path", str(checkpoint), *QUIET])
    told = capsys.readouterr().out
    assert f"options:   {project / 'runs/fit-1/config.yaml'}\n" in told
    assert "val:       4 images, " in told
    config = yaml.safe_load((here / "runs/validate-1/config.yaml").read_text())
    fresh = {"logger": False, "callbacks": None, "detect_anomaly": False, "precision": "32-true"}
    assert {key: config["trainer"][key] for key in fresh} == fresh
    assert config["trainer"]["limit_val_batches"] in (None, 1.0)
    assert config["ema"]["decay"] is None
    assert config["data"]["batch_size"] == 2


def test_a_checkpoint_alone_brings_the_options_of_its_run(
    project: Path, moved: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copied out of its folder, it trains on as it would there, bit for bit, and its data are found
    from where the run was started."""
    run = moved / "runs/fit-1"
    to_two = ["--trainer.max_epochs", "2"]
    shutil.copy(run / "checkpoints/last.ckpt", "alone.ckpt")
    cli.main(["validate", "--ckpt_path", "alone.ckpt"])
    assert "weights:   alone.ckpt\noptions:   alone.ckpt\n" in capsys.readouterr().out
    cli.main(["fit", "--ckpt_path", "alone.ckpt", "--run", "alone", *to_two])
    cli.main(["fit", "--ckpt_path", "last", "--run", str(run), *to_two])
    ends = []
    options = []
    for folder, data in ((run, moved), (here / "alone", project)):
        content = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
        ends.append(content["state_dict"])
        options.append(yaml.safe_load((folder / "config.yaml").read_text()))
        assert options[-1]["data"].pop("dataset") == str(data / "my/demo/data.yaml")
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
    assert options[0] == options[1]
    assert options[0]["model"]["start"]["weights"] == "start.ckpt", "where it comes from"
    assert options[0]["trainer"]["limit_train_batches"] == 1


def test_another_data_set_has_its_own_split(
    moved: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What describes the run's data set is not taken over where one is named."""
    file = moved / "runs/fit-1/config.yaml"
    data = moved / "my/demo"
    config = yaml.safe_load(file.read_text())
    config["data"] |= {"split": 0.5, "format": "yolo"}
    file.write_text(yaml.safe_dump(config))
    line = ["validate", "--ckpt_path", str(moved / "runs/fit-1/checkpoints/best.ckpt"), *QUIET]
    shutil.copytree(data, here / "other")
    cli.main([*line, "--data.dataset", str(here / "other/data.yaml"), "--run", "a"])
    taken = yaml.safe_load((here / "a/config.yaml").read_text())["data"]
    assert (taken["split"], taken["format"], taken["batch_size"]) == (None, None, 2)
    assert "split 0.5" in error(
        [*line, "--data.dataset", str(here / "other"), "--data.split", "0.5"], capsys
    )
    description = yaml.safe_load((data / "data.yaml").read_text())
    del description["val"]
    (data / "data.yaml").write_text(yaml.safe_dump(description))
    cli.main([*line, "--run", "same"])
    assert yaml.safe_load((here / "same/config.yaml").read_text())["data"]["split"] == 0.5


def test_typed_weights_do_not_replace_a_checkpoint(
    moved: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = moved / "runs/fit-1/checkpoints/last.ckpt"
    run = str(moved / "runs/fit-1")
    line = ["fit", "--ckpt_path", "last", "--run", run, "--trainer.max_epochs", "1"]
    given = ["--model.start.weights", "nowhere.pt"]
    assert "model.start.weights nowhere.pt: the weights come from --ckpt_path last" in error(
        [*line, *given], capsys
    )
    line[line.index("last")] = "auto"  # the same line starts a training and continues it
    cli.main([*line, *given])
    assert f"resume:    {last}\n" in capsys.readouterr().out


def test_relative_paths_start_where_the_run_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved together with the run; else here."""
    for folder in ("now", "here"):
        (tmp_path / folder / "runs/a").mkdir(parents=True)
        (tmp_path / folder / "data.yaml").touch()
    monkeypatch.chdir(tmp_path / "here")
    run = tmp_path / "now/runs/a"
    then = tmp_path / "then"
    machine = {"command": "fit", "started": "", "run": f"{then}/runs/a", "folder": str(then)}
    (run / "machine.json").write_text(json.dumps(machine))
    assert path_from(start_of(run), "data.yaml") == str(tmp_path / "now/data.yaml")
    (tmp_path / "now/data.yaml").unlink()
    assert path_from(start_of(run), "data.yaml") == "data.yaml"
    (run / "machine.json").unlink()
    assert path_from(start_of(run), "/nowhere/data.yaml") == "/nowhere/data.yaml"


def test_a_fit_from_our_checkpoint_on_data_with_other_classes(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the head starts from random values; custom anchors stay too."""
    checkpoint = project / "runs/fit-1/checkpoints/last.ckpt"
    start = torch.load(checkpoint, weights_only=True)["state_dict"]
    names = [*NAMES, "another"]
    wide = NetworkOptions()
    with pytest.raises(InputError, match=r"do not fit the network.* --model.network.size n"):
        Detector(names, network=wide, start=StartOptions(weights=str(checkpoint)))
    torch.manual_seed(0)
    fresh = Detector(names, network=NetworkOptions(**NARROW)).network.state_dict()
    torch.manual_seed(0)
    options = StartOptions(weights=str(checkpoint), reuse_head=False)
    network = Detector(names, network=NetworkOptions(**NARROW), start=options).network.state_dict()
    for name, tensor in network.items():
        wanted = fresh[name] if name.startswith("head.convs.") else start[f"ema.{name}"]
        assert torch.equal(tensor, wanted), name
    anchors = [[10.0, 20.0] * 2, [30.0, 40.0] * 2, [64.0, 96.0] * 2]
    own = NetworkOptions(**NARROW, anchors=anchors)
    other = Detector(names, network=own, start=StartOptions(weights=str(checkpoint))).network
    assert "the head starts from random values" in capsys.readouterr().out
    assert other.head.anchors_px.flatten(1).tolist() == anchors
    assert torch.equal(other.backbone.stem.conv.weight, start["ema.backbone.stem.conv.weight"])


def test_thresholds_of_the_best_epoch(project: Path) -> None:
    run = project / "runs/fit-1"
    record = PredictionRecord.load(run / "detections.npz")
    wanted = class_metrics(
        record.true_positives(), record.score, record.kind, record.label_kind
    ).thresholds(5)
    assert read_trained(run / "checkpoints/best.ckpt").thresholds == wanted


def test_without_ckpt_path(
    moved: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last run's best.ckpt, or its last; without a run a sentence, but no hindrance to the
    help."""
    source = ["--source", str(moved / "my/demo/images/val")]
    for line in (["validate"], ["export"], ["predict", *source]):
        assert "no --ckpt_path is given" in error(line, capsys)
    with pytest.raises(SystemExit) as leaving:
        cli.main(["validate", "--help"])
    assert leaving.value.code == 0
    monkeypatch.chdir(moved)
    cli.main(["validate", *QUIET])
    assert "weights:   runs/fit-1/checkpoints/best.ckpt\n" in capsys.readouterr().out
    Path("runs/fit-1/checkpoints/best.ckpt").unlink()
    cli.main(["predict", *source, "--device", "cpu", "--images", "false"])
    assert "weights:   runs/fit-1/checkpoints/last.ckpt\n" in capsys.readouterr().out


def test_a_run_folder_is_its_best(
    moved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For fit, which resumes, its last. Each command says which checkpoint it uses."""
    monkeypatch.chdir(moved)
    run = "runs/fit-1"
    best = "runs/fit-1/checkpoints/best.ckpt"
    predict = "predict --source my/demo/images/val --device cpu --ckpt_path"
    for line, said in (
        (f"{predict} {run} --ensemble [{run}]", f"weights:   {best}, {best}\n"),
        (f"strip {run}", f"weights:   {best}\n"),
        (f"validate --ckpt_path {run} --ensemble [{run}]", f"weights:   {best}\n"),
        (f"fit --ckpt_path {run}", f"resume:    {run}/checkpoints/last.ckpt\n"),
    ):
        quiet = [] if line.startswith(("predict", "strip")) else QUIET
        cli.main([*line.split(), *quiet])
        told = capsys.readouterr().out
        assert said in told, line
        assert told.count(best) >= 1 or line.startswith("fit")
    assert sorted(p.name for p in Path("runs").glob("fit-*")) == ["fit-1"]
    assert [str(file) for file in Predictor.load(run, device="cpu").files] == [best]
    assert Detector.load(run, "cpu").names == NAMES
    assert "my: no run folder" in error(["predict", "--ckpt_path", "my", "--source", "my"], capsys)


def test_a_damaged_configuration_is_that_of_the_checkpoint(
    moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """machine.json may be damaged too."""
    run = moved / "runs/fit-1"
    (run / "config.yaml").write_bytes(b"\0")
    (run / "machine.json").write_bytes(b"\0")
    cli.main(["fit", "--ckpt_path", "last", "--run", str(run), "--trainer.max_epochs", "2"])
    told = capsys.readouterr().out
    assert f"warning: {run}/config.yaml: " in told
    assert f"resume:    {run}/checkpoints/last.ckpt\noptions:   {run}/checkpoints/" in told
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"]["batch_size"] == 2
    assert json.loads((run / "machine.json").read_text())["command"] == "fit"


def test_classes_get_names_later(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training on labels without names says so; its checkpoint gets names, in a new file."""
    label_layouts.images_and_labels(here / "pets")
    fit = small_fit(Path("pets"), Path("run"), "--doctor.enabled", "true")
    cli.main([*fit, "--trainer.max_epochs", "1"])
    told = capsys.readouterr().out
    assert "warning: no class names" in told
    cli.main([*fit, "--trainer.max_epochs", "2", "--ckpt_path", "last"])
    assert "no class names" not in capsys.readouterr().out, "a resume keeps them"
    lay_out(here, {"few.yaml": "train: pets/images\nnames: [cat]\n"})
    lay_out(here, {"pets.yaml": "train: pets/images\nnames: [cat, dog]\n"})
    best = "run/checkpoints/best.ckpt"
    assert "few.yaml: 1 classes" in error(["strip", best, "--names", "few.yaml"], capsys)
    again = ["--data.dataset", "pets.yaml", *QUIET]
    validate = ["validate", *again, "--run", "validated", "--ckpt_path"]
    assert "strip" in error([*validate, best], capsys)
    cli.main(["strip", best, "--names", "pets.yaml", "--out", "named.ckpt"])
    cli.main([*validate, "named.ckpt"])
    assert read_trained("named.ckpt").names == ["cat", "dog"]
    assert read_trained(best).names == ["0", "1"]
    assert boltbox.Predictor.load("named.ckpt").names == ["cat", "dog"]


def test_strip(
    moved: Path,
    published: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is left predicts and is measured as before, and starts a training, but continues none;
    its run does not become the most recent one."""
    monkeypatch.chdir(moved)
    best = Path("runs/fit-1/checkpoints/best.ckpt")
    cli.main(["strip", str(best)])
    stripped = best.with_name("best_stripped.ckpt")
    assert stripped.stat().st_size < best.stat().st_size / 2
    assert stripped.stat().st_mtime == best.stat().st_mtime
    ours, theirs = (read_trained(file) for file in (best, stripped))
    assert ours.thresholds == theirs.thresholds
    assert ours.arguments() == theirs.arguments()
    assert all(torch.equal(tensor, theirs.tensors[name]) for name, tensor in ours.tensors.items())
    found = [
        Detector.load(f, "cpu").predict("my/demo/images/val", conf=0) for f in (best, stripped)
    ]
    assert np.array_equal(found[0][0].xyxy, found[1][0].xyxy)
    started = load_weights(small(5, **NARROW), stripped).line
    assert re.search(r"loaded (\d+) of \1 tensors", started)
    told = error(["fit", "--ckpt_path", str(stripped)], capsys)
    assert "holds no training to continue" in told
    assert f"--model.start.weights {stripped}" in told
    assert "it exists" in error(["strip", "best"], capsys)
    assert "nothing to strip" in error(["strip", str(published)], capsys)


def test_load_from_checkpoint(project: Path) -> None:
    """Lightning's way is as good as ours; with other classes it is refused, not half done."""
    checkpoint = project / "runs/fit-1/checkpoints/last.ckpt"
    ours = Detector.load(checkpoint, "cpu")
    theirs = Detector.load_from_checkpoint(checkpoint, map_location="cpu")
    assert dict(ours.hparams) == dict(theirs.hparams)
    assert theirs.ema is not None
    assert ours.ema is None, "the average is its network"
    saved = ours.evaluated_network().state_dict()
    loaded = theirs.evaluated_network().state_dict()
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in saved.items())
    with pytest.raises(
        InputError, match=r"does not fit this network \(12 tensors, .* with --model.start.weights$"
    ):
        Detector.load_from_checkpoint(checkpoint, map_location="cpu", names=["a", "b"])


@pytest.fixture
def published(tmp_path: Path, as_yolov5: Callable[..., Any]) -> Path:
    """A narrow network under YOLOv5's names, loud enough to find something."""
    network = small(5)
    with torch.no_grad():
        for conv in network.head.convs:
            conv.weight.mul_(40)
    path = tmp_path / "theirs.pt"
    multiples = {"depth_multiple": 0.33, "width_multiple": 0.125}
    torch.save({"model": as_yolov5(network, names=dict(enumerate(NAMES)), yaml=multiples)}, path)
    return path


def test_predict_and_validate_take_a_file_of_yolov5(
    published: Path, project: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its size and names are read from it; what it finds is what the same file finds from
    Python."""
    image = project / "my/demo/images/val/0000.jpg"
    found_in = ["--source", str(image), "--image_size", "64", "--conf", "0.01", "--csv", "true"]
    cli.main(["predict", "--ckpt_path", str(published), *found_in, "--run", "out"])
    common = ["--ckpt_path", str(published), "--data.image_size", "64", "--data.workers", "0"]
    common += QUIET[:2]
    with open(here / "out/predictions.csv", newline="") as file:
        found = [(row["name"], float(row["confidence"])) for row in csv.DictReader(file)]
    wanted = Detector.load(published, "cpu").predict(image, image_size=64, conf=0.01)
    assert [name for name, _ in found] == [NAMES[i] for i in wanted.class_id]
    assert [score for _, score in found] == pytest.approx(wanted.confidence, abs=1e-4)
    assert found
    data = ["--data.dataset", str(project / "my/demo/data.yaml")]
    capsys.readouterr()
    cli.main(["validate", *common, *data, *QUIET[2:], "--run", "figures"])
    told = capsys.readouterr().out
    assert f"weights:   {published}\n" in told
    assert "loaded" not in told
    assert (here / "figures/metrics.json").is_file()
    assert "--model.start.weights" in error(["fit", *common, *data], capsys)


def test_a_file_of_yolov5_on_data_with_other_classes(
    published: Path, project: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = project / "my/demo"
    content = {
        "path": str(data),
        "train": "images/train",
        "val": "images/val",
        "names": [*NAMES, "another"],
    }
    (here / "six.yaml").write_text(yaml.safe_dump(content))
    told = error(["validate", "--ckpt_path", str(published), "--data.dataset", "six.yaml"], capsys)
    assert "6" in told
    assert f"fit --model.start.weights {published}" in told
    network = NetworkOptions(width_multiple=0.25).build(len(NAMES))
    with pytest.raises(InputError, match="leave out the options of the model that differ"):
        read_trained(published).fill(network, NAMES)


@pytest.mark.parametrize("options", [{"levels": [2, 3, 4, 5]}, {"size": "n6"}])
def test_a_file_of_yolov5_says_what_it_is(
    options: dict[str, Any], tmp_path: Path, as_yolov5: Any
) -> None:
    network = small(3, **options)
    given = {"depth_multiple": 0.33, "width_multiple": 0.125, **options}
    multiples = {key: given[key] for key in ("depth_multiple", "width_multiple")}
    torch.save(
        {"model": as_yolov5(network, names=["a", "b", "c"], yaml=multiples)}, tmp_path / "theirs.pt"
    )
    trained = read_trained(tmp_path / "theirs.pt")
    assert trained.network.levels == network.levels
    assert trained.image_size == (1280 if "size" in options else 640)
    detector = Detector.load(tmp_path / "theirs.pt", "cpu")
    assert all(
        torch.equal(t, detector.network.state_dict()[name])
        for name, t in network.state_dict().items()
    )
