"""A Trainer of one's own, as docs/python.md tells it."""

import copy
import gc
import inspect
import json
import os
import pickle
import random
import re
import signal
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LambdaCallback,
    LearningRateMonitor,
    ProgressBar,
    TQDMProgressBar,
)
from lightning.pytorch.profilers import PyTorchProfiler
from made_networks import same
from made_options import made_detector
from made_runs import ROOT, code_of, column, load, rows, type_line
from plain_loop import batches
from torch.utils.data import DataLoader

import boltbox
from boltbox.callbacks import (
    EMA,
    AutoAnchor,
    DoctorCheck,
    EarlyStop,
    EpochTable,
    MetricsFiles,
    Pictures,
    Progress,
    Report,
    RunFolder,
    Warmup,
    recipe,
)
from boltbox.callbacks.configuration import CALLBACKS
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.model.network import NetworkOptions, YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.operating_system import STOP_SIGNALS
from boltbox.detector.training.module import Detector
from boltbox.detector.training.optimizer import OptimOptions, StartingPoint
from boltbox.detector.training.trainer_options import check_trainer

SMALL = {"image_size": 64, "batch_size": 8, "workers": 0}
QUIET = {
    "accelerator": "cpu",
    "precision": "32-true",
    "enable_progress_bar": False,
    "limit_train_batches": 1,
    "limit_val_batches": 1,
}


def options(**given):
    """Of a tiny Trainer by the recipe that draws nothing."""
    off = [Pictures(enabled=False), Report(enabled=False), DoctorCheck(enabled=False)]
    callbacks = off + given.pop("callbacks", [])
    return recipe(**{"max_epochs": 1, **QUIET, **given}, callbacks=callbacks)


def small_detector(data, **given):
    tiny = {"width_multiple": 0.125, "depth_multiple": 0.1, "levels": [5]}
    return made_detector(data.names, **tiny | given)


def plain_fit(*callbacks, **given):
    """A fit on loaders of one's own, by a Trainer without the recipe."""
    detector = made_detector(["a", "b"], width_multiple=0.125, levels=[5], image_size=64)
    plain = {"max_epochs": 1, "logger": False, "enable_model_summary": False, **QUIET}
    loader = DataLoader(batches()[:1], batch_size=None)
    L.Trainer(callbacks=list(callbacks), **plain | given).fit(detector, loader)


def equal(run, other):
    states = [load(f"{each}/checkpoints/last.ckpt")["state_dict"] for each in (run, other)]
    return same(*states)


def paths_in(run):
    return {path.relative_to(run) for path in run.rglob("*")}


def test_the_program_trains_what_the_command_trains(small_data, here, capsys):
    """The one of docs/python.md and the notebook, smaller: bit for bit, with the same files."""
    text = code_of("python")[0]
    cells = json.loads((ROOT / "examples/train.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "\n\n".join(code) == text.rstrip()
    for old, new in {
        '"demo", image_size=128, batch_size=64': f'"{small_data}", image_size=64, batch_size=8, workers=0',
        "max_epochs=60": 'max_epochs=1, accelerator="cpu", precision="32-true", limit_train_batches=1, callbacks=[Report(enabled=False)]',
        "from boltbox import": "from boltbox.callbacks import Report\nfrom boltbox import",
        "conf=0.25": "conf=0.001",
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    exec(compile(text, "docs/python.md", "exec"), {"__name__": "__main__"})
    output = capsys.readouterr().out
    assert "not the whole recipe" not in output
    assert len(re.findall(r"^\S*/images/val/\S+ \['.*'\]$", output, re.M)) == 3

    line = "fit --data.image_size 64 --data.batch_size 8 --data.workers 0 --trainer.max_epochs 1"
    line += " --trainer.accelerator cpu --trainer.precision 32-true --report.enabled false"
    type_line(f"{line} --trainer.limit_train_batches 1 --run command --data.dataset {small_data}")
    assert equal("runs/fit-1", "command")
    script = Path("runs/fit-1")
    command = Path("command")
    assert paths_in(command) - paths_in(script) == {Path("changed.yaml")}
    assert paths_in(script) <= paths_in(command)
    script_rows = rows(script)
    command_rows = rows(command)
    for row in script_rows + command_rows:
        del row["seconds"]
    assert script_rows == command_rows


def test_callbacks_work_alone(small_data, here, capsys):
    """A report without the recipe's other files; a line on what needs boltbox's data, and on what a
    plain Trainer lacks."""
    data = DetectionData(str(small_data), **SMALL)
    trainer = L.Trainer(
        max_epochs=1, callbacks=[Warmup(), EMA(), MetricsFiles(), Report()],
        logger=False, enable_checkpointing=False, default_root_dir=here, **QUIET,
    )  # fmt: skip
    trainer.fit(small_detector(data), data)
    assert "warning" not in capsys.readouterr().out
    assert (here / "report.html").is_file()
    assert not (here / "config.yaml").exists()
    plain_fit(AutoAnchor(), RunFolder(), DoctorCheck(), default_root_dir=here / "own")
    assert capsys.readouterr().out.count("data of your own: ") == 2
    plain_fit(EMA(enabled=False), enable_checkpointing=False)
    assert "not the whole recipe: Warmup, AutoAnchor of" in capsys.readouterr().out


class OwnGroups(Detector):
    def __init__(self, names, network, share=0.5):
        super().__init__(names, network)
        self.save_hyperparameters()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_a_detector_follows_its_data(small_data, here):
    """The gains of the loss and the image size of the checkpoint are theirs."""
    data = DetectionData(small_data, seed=7, **SMALL)
    given = small_detector(data, image_size=64, batch_size=8)
    follows = small_detector(data)
    assert follows.loss.gains != given.loss.gains
    L.Trainer(**options(run="run")).fit(follows, data)
    assert follows.loss.gains == given.loss.gains
    assert (follows.image_size, follows.batch_size, follows._seed) == (64, 8, 7)
    assert pickle.loads(pickle.dumps(data)).names == data.names
    assert Detector.load(here / "run/checkpoints/last.ckpt").image_size == 64

    own = OwnGroups(data.names, NetworkOptions(width_multiple=0.125, levels=[5]))
    own.save_pretrained("folder")
    stranger = made_detector(["a", "b"], width_multiple=0.125)
    half = options(run="half") | {"precision": "bf16-true"}
    compiled = small_detector(data)
    compiled.network = torch.compile(compiled.network)
    windows = GradientAccumulationScheduler({0: 2})
    for detector, given, named in (
        (stranger, options(run="other"), "data.names"),
        (small_detector(data), options(run="run"), "checkpoints/last.ckpt"),
        (small_detector(data), half, "precision bf16-true"),
        (own, options(run="own"), "OptimOptions"),
        (compiled, options(run="compiled"), "torch.compile"),
        (small_detector(data), options(run="two", callbacks=[windows]), "GradientAccum"),
    ):
        with pytest.raises(InputError, match=named):
            L.Trainer(**given).fit(detector, data)
    assert not (here / "other").exists()
    path = "run/checkpoints/last.ckpt"
    finder = BatchSizeFinder(max_trials=1, steps_per_trial=1)
    resumed = L.Trainer(**options(run="run", callbacks=[finder]))
    with pytest.raises(InputError, match="of a resume"):
        resumed.fit(small_detector(data), data, ckpt_path=path)
    given = OptimOptions(optimizer="SGD", lr_schedule="cosine")
    network = NetworkOptions(width_multiple=0.125, depth_multiple=0.1, levels=[5])
    loaded = Detector.load_from_checkpoint(path, optim=given, network=network)
    assert loaded.options.optim == given.resolve(StartingPoint.SCRATCH)
    with pytest.raises(InputError, match="list"):
        Detector({0: "a", 1: "b"})
    assert own.hparams["network"] == own.options.network.to_dict()


def test_options_of_numpy(small_data, here):
    """As np.logspace and a table of classes give them: checkpoint and config.yaml hold Python's.
    Anchors in a tuple are kept like those in a list."""
    data = DetectionData(str(small_data), **SMALL | {"batch_size": np.int64(4)})
    network = {"width_multiple": 0.125, "levels": (5,), "anchors": ((300, 300),)}
    detector = made_detector(np.array(data.names), lr0=np.float32(0.5), **network)
    detector.lr = np.float64(0.25)
    data.augment = boltbox.Augment(mosaic=0.75)
    L.Trainer(**options(run="run")).fit(detector, data)
    loaded = Detector.load("run")
    assert (loaded.names, loaded.hparams["optim"]["lr0"]) == (data.names, 0.25)
    assert loaded.network.head.anchors_px.tolist() == [[[300, 300]]]
    written = Path("run/config.yaml").read_text()
    assert "batch_size: 4" in written
    assert "mosaic: 0.75" in written


def recipe_with(kind, **options):
    return recipe(callbacks=kind(**options))


def test_what_does_not_fit(here):
    """Numbers out of their range and values of another kind are refused where they are given."""
    data = partial(DetectionData, "demo")
    groups = [getattr(boltbox, name) for name in boltbox.PLACES if name.endswith("Options")]
    cases = [
        (OptimOptions, "lr0", "0.1"),
        (OptimOptions, "lr0", np.True_),
        (OptimOptions, "nominal_batch_size", 64.0),
        (NetworkOptions, "levels", "345"),
        (NetworkOptions, "levels", np.array(["a"])),
        (YOLOv5, "num_classes", 0),
        (Detector, "names", ["a", 1]),
        (recipe, "callbacks", [EMA]),
    ]
    predictor = partial(boltbox.Predictor, [], [])
    for function in (*groups, boltbox.Augment, boltbox.export, data, predictor):
        cases += [(function, name, -1.5) for name in inspect.signature(function).parameters]
    for kind in CALLBACKS.values():
        cases += [
            (partial(recipe_with, kind), name, -1.5) for name in inspect.signature(kind).parameters
        ]
    for function, name, value in cases:
        with pytest.raises(InputError, match=rf"{name} is {re.escape(repr(value))}; it "):
            function(**{name: value})
    assert not Path("runs").exists()
    with pytest.raises(InputError, match="'n' is not NetworkOptions"):
        Detector(["a"], "n")


def test_what_fits(here):
    """Beside the values of the command line, what Python has for them."""
    anchors = np.ones((3, 2, 2))
    detector = Detector(
        {"a": 0}.keys(), NetworkOptions(width_multiple=0.125, anchors=anchors), literal=1
    )
    boltbox.Predictor(torch.nn.ModuleList([detector.network]), detector.names)
    recipe("run", callbacks=[pytorch_lightning.callbacks.Timer()])
    for option in ("weights", "backbone_weights"):
        boltbox.StartOptions(**{option: Path("file")})
    with pytest.raises(InputError, match="path gone"):
        boltbox.export(Path("gone.ckpt"), out=Path("a.onnx"))
    fields = [("mine", "NameForTypeCheckers", 1)]
    assert make_dataclass("Mine", fields, bases=(OptimOptions,), frozen=True)(lr0=0.1).mine == 1


class Trouble(L.Callback):
    def on_train_batch_end(self, *_):
        raise RuntimeError


def test_a_detector_trains_again(small_data, here, capsys):
    """In a notebook: after a fit that ended within an accumulation window, and after `load`, from
    which on its weights are pretrained ones."""
    data = DetectionData(str(small_data), **SMALL)
    warmup = Warmup(warmup_epochs=0)
    fits = {"limit_train_batches": 3, "max_epochs": 1}
    L.seed_everything(0)  # by chance, the trained weights may fit the data less
    fresh = small_detector(data, nominal_batch_size=16)
    weights = copy.deepcopy(fresh.state_dict())
    detector = small_detector(data, nominal_batch_size=16)
    handlers = list(map(signal.getsignal, STOP_SIGNALS))
    failed = L.Trainer(**options(run="part", callbacks=[warmup, Trouble()], **fits))
    with pytest.raises(RuntimeError):
        failed.fit(detector, data)
    assert not failed.min_epochs
    detector.drop_average()
    detector.load_state_dict(weights)
    L.Trainer(**options(run="again", callbacks=[warmup], **fits)).fit(detector, data)
    L.Trainer(**options(run="fresh", callbacks=[Warmup(warmup_epochs=0)], **fits)).fit(fresh, data)
    assert equal("again", "fresh")
    gc.collect()
    assert list(map(signal.getsignal, STOP_SIGNALS)) == handlers

    loaded = Detector.load("fresh", "cpu")
    assert (loaded.lr, loaded.hparams["optim"]["optimizer"]) == (0.001, "Muon")
    capsys.readouterr()
    trainer = L.Trainer(**options(run="loaded"))
    trainer.validate(loaded, data, ckpt_path="fresh/checkpoints/last.ckpt", verbose=False)
    trainer.fit(loaded, data)
    assert re.search(r"> 0\.8\)\n.*optimizer: AdamW", capsys.readouterr().out, re.S)
    assert loaded.network.training
    assert not trainer.min_epochs
    assert loaded.ema is not None
    with pytest.raises(InputError, match=r"uint8.* datamodule=data"):
        trainer.validate(loaded, data.val_dataloader())
    with pytest.raises(InputError, match=r"detector\.predict\("):
        trainer.predict(loaded, data)

    # an average that a training does not keep is not evaluated
    plain = L.Trainer(
        max_epochs=2, callbacks=[Warmup()], logger=False, default_root_dir="plain", **QUIET
    )
    with pytest.raises(InputError, match=r"uint8.* datamodule=data"):
        plain.fit(loaded, data.train_dataloader())
    plain.fit(loaded, data, ckpt_path="loaded/checkpoints/last.ckpt")
    assert loaded.ema is None
    assert loaded.network.backbone.stem.bn.momentum == 0.1


def test_a_script_resumes(small_data, here, capsys):
    """An interrupted run ends with the weights of one that was not. Lightning's words for
    checkpoints are those of the run; validation has a folder of its own, whichever comes first."""
    data = DetectionData(str(small_data), **SMALL)
    for run, steps in (("whole", -1), ("part", 1)):
        L.seed_everything(0)
        trainer = L.Trainer(**options(run=run, max_epochs=2) | {"max_steps": steps})
        detector = small_detector(data, lrf=0.5)
        if run == "part":
            state = torch.get_rng_state()
            trainer.validate(detector, data, verbose=False)
            torch.set_rng_state(state)
            assert os.listdir(Path("part")) == ["machine.json"]
        trainer.fit(detector, data)
    best = trainer.checkpoint_callback
    assert best.best_model_path == "part/checkpoints/best.ckpt"
    compiled = torch.compile(detector, backend="eager")
    (found,) = trainer.validate(compiled, data, ckpt_path="best", verbose=False)
    (row,) = rows(here / "part")
    assert found["val/box_loss"] == pytest.approx(float(row["val/box_loss"]), rel=1e-4)
    files = sorted(map(str, column(Path().rglob("metrics.json"), "parent")))
    assert files == ["part", "runs/validate-1", "runs/validate-2", "whole"]
    call = 'trainer.fit(detector, data, ckpt_path="part/checkpoints/last.ckpt")'
    assert capsys.readouterr().out.count(call) == 1
    loaded = Detector.load("part", "cpu")  # its open options are those of the checkpoint
    L.Trainer(**options(run="part", max_epochs=2)).fit(loaded, data, ckpt_path="last")
    assert equal("whole", "part")


def test_a_new_run_knows_nothing_of_others(small_data, here):
    """Neither of one that the same callbacks have seen, nor of a checkpoint that was validated."""
    data = DetectionData(str(small_data), **SMALL)
    own = [EMA(), EarlyStop(patience=1)]
    detectors = []
    for run in ("one", "two"):
        L.seed_everything(0)
        detectors.append(small_detector(data))
        trainer = L.Trainer(**options(run=run, callbacks=own))
        if run == "two":
            again = L.Trainer(**options(run="one"))
            again.validate(small_detector(data), data, ckpt_path="best", verbose=False)
            random.seed(5)
            state = random.getstate()
            path = "one/checkpoints/best.ckpt"
            trainer.validate(copy.deepcopy(detectors[0]), data, ckpt_path=path, verbose=False)
            assert random.getstate() == state
        trainer.fit(detectors[-1], data)
    assert own[0].updates == 1
    assert own[1].wait_count == 0
    pictures = Pictures(enabled=False)
    pictures.images = ["of an earlier validation"]
    plain_fit(pictures)
    assert not pictures.images
    assert equal("one", "two")
    assert column(rows(here / "two"), "epoch") == ["0"]


def test_own_callbacks_take_the_place_of_the_recipes(here):
    warmup = Warmup(warmup_epochs=1)
    own = [LambdaCallback(), LambdaCallback(), warmup, LearningRateMonitor()]
    given = recipe(max_epochs=7, callbacks=own, precision="bf16-mixed")
    assert (given["max_epochs"], given["precision"]) == (7, "bf16-mixed")
    assert given["default_root_dir"] == "runs/fit-1"
    kinds = list(map(type, given["callbacks"]))
    assert len(kinds) == len(set(kinds)) + 1
    assert set(CALLBACKS.values()) | {Progress} <= set(kinds)
    assert warmup in given["callbacks"]
    assert kinds[-1] is LearningRateMonitor
    assert Progress not in map(type, recipe(enable_progress_bar=False)["callbacks"])
    with pytest.raises(InputError, match="EpochTable is in the recipe already"):
        recipe(callbacks=[EpochTable()])
    profiled = L.Trainer(profiler=PyTorchProfiler(), logger=False)
    with pytest.raises(InputError, match="record_module_names"):
        check_trainer(profiled)
    bar = TQDMProgressBar()
    callbacks = recipe(callbacks=(bar,))["callbacks"]
    assert [callback for callback in callbacks if isinstance(callback, ProgressBar)] == [bar]
