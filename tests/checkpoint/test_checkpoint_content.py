"""Checkpoints that are whole and harmless, and hold something else than they should."""

import copy
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_networks import small, yolov5_converter  # noqa: F401
from torch import Tensor

import boltbox.callbacks
import cli
from boltbox.detector.checkpoint.compatibility import check_network, check_resume
from boltbox.detector.checkpoint.content import check_checkpoint, check_detector
from boltbox.detector.checkpoint.file import validate, validate_file
from boltbox.detector.checkpoint.recipe_state import CALLBACKS
from boltbox.detector.checkpoint.restricted import is_plain
from boltbox.detector.checkpoint.starting_weights import load_weights
from boltbox.detector.checkpoint.trained import read_trained
from boltbox.detector.checkpoint.validators import InvalidContent
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.demo import make_demo
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

OWN = (boltbox.callbacks.Warmup, boltbox.callbacks.EMA, boltbox.callbacks.EarlyStop, boltbox.callbacks.Guard, boltbox.callbacks.Dashboard,
       boltbox.callbacks.Iterations, boltbox.callbacks.MetricsFiles, boltbox.callbacks.Checkpoints)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, not to be written to: `previous.ckpt` is from before its last batch, with
    a window of gradients open."""
    folder = tmp_path_factory.mktemp("whole")
    data = make_demo(folder / "demo", train=8, val=2)
    options = [
        "--data.image_size",
        "64",
        "--data.batch_size",
        "2",
        "--data.workers",
        "0",
        "--model.network.width_multiple",
        "0.125",
    ]
    options += [
        "--trainer.max_epochs",
        "1",
        "--trainer.enable_progress_bar",
        "false",
        "--report.enabled",
        "false",
    ]
    options += [
        "--pictures.enabled",
        "false",
        "--warmup.warmup_epochs",
        "0",
        "--checkpoints.every_batches",
        "1",
    ]
    options += ["--model.optim.nominal_batch_size", "4"]  # two batches a step, of four batches
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BOLTBOX_RUN", raising=False)
        cli.main(["fit", "--data.dataset", str(data), *options, "--run", str(folder / "run")])
    return folder / "run"


@pytest.fixture(scope="module")
def whole(run: Path) -> dict[str, Any]:
    return torch.load(run / "checkpoints/previous.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def detector(whole: dict[str, Any]) -> Detector:
    """Made like the run's."""
    return Detector(
        **{**whole["hyper_parameters"], "names": list(whole["hyper_parameters"]["names"])}
    )


def test_real_checkpoints_pass(run: Path, whole: dict[str, Any], detector: Detector) -> None:
    """In the middle of an epoch and after it; and every callback of ours that keeps something is
    looked at."""
    assert whole["processes"][0]["gradients"]
    assert whole["optimizer_states"][0]["state"]
    for name in ("previous", "last", "best"):
        assert not validate(run / f"checkpoints/{name}.ckpt", Detector)
    check_resume(detector, whole, 1)
    kept = {key.partition("{")[0] for key, state in whole["callbacks"].items() if state}
    assert kept <= CALLBACKS.keys()


def values() -> list[Any]:
    """What may stand where something else belongs."""
    three = torch.arange(3.0)
    return [None, True, -1, 0, 7, 10**40, 0.5, float("nan"), "x", "\ud800", b"x", [], {}, (), [1], ["a"], {"a": 1}, {1: "a"},
            three, torch.zeros(()), torch.zeros(4, dtype=torch.uint8), three.to(torch.complex64), three.to_sparse(),
            torch.zeros(1).expand(10**9), torch.empty(2, device="meta"), [[[]]], {"ready": "x"}]  # fmt: skip


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything in a checkpoint; of many alike only the first and the last."""
    if path:
        yield path
    entries = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list | tuple)
        else ()
    )
    entries = list(entries)
    alike = len(entries) > 50
    for key, value in [entries[0], entries[-1]] if alike else entries:
        yield from places(value, (*path, key))


def swapped(content: Any, path: tuple[Any, ...], value: Any, drop: bool = False) -> Any:
    """A copy with another value, or none, in one place; the rest is shared."""
    key, *rest = path
    changed = list(content) if isinstance(content, tuple) else copy.copy(content)
    if rest:
        changed[key] = swapped(content[key], tuple(rest), value, drop)
    elif drop:
        del changed[key]
    else:
        changed[key] = value
    return tuple(changed) if isinstance(content, tuple) else changed


def consume(content: dict[str, Any], detector: Detector, base: dict[str, Any]) -> None:
    """What Lightning and we do with a checkpoint on a resume and to predict, after the checks."""
    if content["hyper_parameters"] is not base["hyper_parameters"]:
        detector = Detector(
            **{
                k: v
                for k, v in content["hyper_parameters"].items()
                if k not in ("weights", "ensemble")
            }
        )
    check_network(detector, content)
    check_resume(detector, content, None)
    fresh = copy.deepcopy(detector)
    fresh.on_load_checkpoint(content)
    fresh.load_state_dict(content["state_dict"])
    optimizer = fresh.configure_optimizers()
    optimizer.load_state_dict(content["optimizer_states"][0])
    for parameter in fresh.network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        max_epochs=5,
        enable_progress_bar=False,
    )
    loops = content["loops"]
    for loop, name in (
        (trainer.fit_loop, "fit"),
        (trainer.validate_loop, "validate"),
        (trainer.predict_loop, "predict"),
    ):
        loop.load_state_dict(loops[f"{name}_loop"])
    assert trainer.current_epoch + trainer.global_step >= 0
    trainer.fit_loop.epoch_progress.reset_on_restart()
    trainer.fit_loop.epoch_loop.batch_progress.reset_on_restart()
    for kind in OWN:
        callback = kind()
        state = content["callbacks"].get(
            next((k for k in base["callbacks"] if k.partition("{")[0] == kind.__name__), "")
        )
        if state:
            callback.load_state_dict(copy.deepcopy(state))
    data = DetectionData.__new__(DetectionData)
    data.trainer = None
    if "DetectionData" in content:
        data.load_state_dict(content["DetectionData"])
        assert len(content["class_maps"]) == len(data.epoch_maps) == len(fresh.names)
    state = boltbox.callbacks.RunState("")
    trainer.strategy.connect(fresh)
    state.on_load_checkpoint(trainer, fresh, content)
    state.on_train_start(trainer, fresh)
    assert ((content.get("run") or {}).get("config") or "").encode() is not None


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_passes_can_be_used(
    data: st.DataObject, whole: dict[str, Any], detector: Detector
) -> None:
    """One value of a real checkpoint is swapped for one of another type, or left out: either that
    is said, or nothing that reads the checkpoint stumbles."""
    top = data.draw(st.sampled_from(sorted(whole)))
    path = data.draw(st.sampled_from(list(places({top: whole[top]}))))
    value = data.draw(st.sampled_from([("drop", None), *(("swap", v) for v in values())]))
    content = swapped(whole, path, value[1], drop=value[0] == "drop")
    random_states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        check_checkpoint(content, Detector)
        consume(content, detector, whole)
    except (InvalidContent, InputError) as e:
        told = str(e)
        assert len(told.splitlines()) == 1
        assert len(told) < 700
        told.encode()
    finally:
        random.setstate(random_states[0])
        np.random.set_state(random_states[1])  # noqa: NPY002
        torch.set_rng_state(random_states[2])


def test_most_swaps_are_noticed(whole: dict[str, Any]) -> None:
    """Bytes in every place that is read, one after the other: none is overlooked. What nobody reads
    may hold anything."""
    read = ("callbacks", "loops", "optimizer_states", "state_dict", "hyper_parameters", "processes", "epoch", "global_step",
            "pytorch-lightning_version", "DetectionData", "lr_schedulers", "window_batches")  # fmt: skip
    paths = [path for top in read for path in places({top: whole[top]})]
    passed = []
    for path in paths:
        try:
            check_checkpoint(swapped(whole, path, b"odd"), Detector)
        except InvalidContent:
            continue
        # see check_resume, which knows the optimizer
        if path[:3] != ("optimizer_states", 0, "param_groups"):
            passed.append(path)
    assert not passed


def other_optimizer(content: dict[str, Any]) -> None:
    for values in content["optimizer_states"][0]["state"].values():
        values |= {
            name: value[..., :1]
            for name, value in values.items()
            if name in ("exp_avg", "momentum_buffer")
        }


CRAFTED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "fit": (
        lambda c: c["loops"]["fit_loop"].update(epoch_progress={"total": []}),
        "loops.fit_loop.epoch_progress.total",
    ),
    "fit optimizer": (other_optimizer, "optimizer state is not one of Muon"),
    "fit run": (lambda c: c.update(run={"loggers": "x"}), "run.loggers is a str"),
    "fit weights": (
        lambda c: c.update(state_dict={"network.a": 1}),
        "state_dict.network.a is 1, not a tensor",
    ),
    "validate": (
        lambda c: c["hyper_parameters"].update(names={"a": 1}),
        "hyper_parameters.names is a dict",
    ),
    "predict": (lambda c: c["state_dict"].pop("ema.anchors"), "1 tensors, like ema.anchors"),
    "ensemble": (
        lambda c: c["hyper_parameters"]["network"].update(levels="345"),
        "hyper_parameters.network.levels is a str",
    ),
    "export": (
        lambda c: c["hyper_parameters"]["network"].update(depth_multiple=1e9),
        "hyper_parameters.network.depth_multiple is 1000000000.0",
    ),
    "doctor": (
        lambda c: c["state_dict"].update({"network.anchors": torch.zeros(2)}),
        "1 tensors, like network.anchors",
    ),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_one_sentence_and_nothing_half_done(
    case: str, run: Path, whole: dict[str, Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    craft, wanted = CRAFTED[case]
    content = copy.deepcopy(whole)
    craft(content)
    shutil.copytree(run, here / "run")
    crafted, good = here / "run/checkpoints/best.ckpt", str(here / "run/checkpoints/last.ckpt")
    torch.save(content, crafted)
    assert not validate_file(crafted), "the file itself is whole"
    data, logger = (
        str(run.parent / "demo/data.yaml"),
        {"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}},
    )
    image = str(run.parent / "demo/images/val/0000.jpg")
    line = {
        "fit": ["fit", "--ckpt_path", "best", "--run", "run", "--trainer.logger", str(logger)],
        "fit weights": [
            "fit",
            "--model.start.weights",
            str(crafted),
            "--data.dataset",
            data,
            "--model.network.width_multiple",
            "0.125",
        ],
        "validate": ["validate", "--ckpt_path", str(crafted), "--data.dataset", data],
        "predict": ["predict", "--ckpt_path", str(crafted), "--data.source", image],
        "ensemble": [
            "predict",
            "--ckpt_path",
            good,
            "--model.ensemble",
            f"[{crafted}]",
            "--data.source",
            image,
        ],
        "export": ["export", "--ckpt_path", str(crafted)],
        "doctor": ["doctor", "--ckpt_path", str(crafted), "--data.dataset", data],
    }
    before = written(here)
    with pytest.raises(SystemExit) as leaving:
        cli.main(line.get(case) or line[case.split()[0]])
    told = capsys.readouterr().err.strip()
    assert leaving.value.code == 2
    assert told.startswith("error: ")
    assert len(told.splitlines()) == 1
    assert wanted in told
    assert written(here) == before


def written(folder: Path) -> dict[Path, int]:
    """When each file was; the lock of a run comes and goes."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def cyclic(model: Any) -> None:
    model._modules["model"]._modules["0"] = model


YOLOV5: dict[str, Callable[[Any], object]] = {
    "names are a number": lambda m: setattr(m, "names", 3),
    "names are lists": lambda m: setattr(m, "names", [[1], [2], [3]]),
    "names with odd keys": lambda m: setattr(m, "names", {"a": "b", 1: "c"}),
    "nc is a word": lambda m: setattr(m, "nc", "three"),
    "nc is huge": lambda m: setattr(m, "nc", 10**12),
    "buffers are a list": lambda m: m.__dict__.update(_buffers=[1]),
    "parameters with numbers as names": lambda m: m.__dict__.update(
        _parameters={1: torch.zeros(3)}
    ),
    "modules are a word": lambda m: m.__dict__.update(_modules="x"),
    "a module holds itself": cyclic,
    "anchors are a number": lambda m: m.get_submodule("model.24")._buffers.update(
        anchors=torch.zeros(())
    ),
    "anchors are many": lambda m: m.get_submodule("model.24")._buffers.update(
        anchors=torch.zeros(3, 1, 2).expand(3, 10**8, 2)
    ),
    "a sparse tensor": lambda m: m.get_submodule("model.24")._buffers.update(
        anchors=torch.eye(3).to_sparse()
    ),
    "complex numbers": lambda m: m.get_submodule("model.24")._buffers.update(
        anchors=torch.ones(3, 3, 2, dtype=torch.cfloat)
    ),
    "multiples are huge": lambda m: setattr(
        m, "yaml", {"depth_multiple": 1e12, "width_multiple": 1e12}
    ),
    "multiples are not numbers": lambda m: setattr(
        m, "yaml", {"depth_multiple": float("nan"), "width_multiple": True}
    ),
    "yaml is a list": lambda m: setattr(m, "yaml", [1]),
}


@pytest.mark.parametrize("case", YOLOV5)
def test_crafted_files_of_yolov5(case: str, tmp_path: Path, as_yolov5: Callable[..., Any]) -> None:
    """One sentence, from `predict`, `export` and an ensemble, which read it alike, and as weights
    to start from."""
    model = as_yolov5(small(3), yaml={"depth_multiple": 0.33, "width_multiple": 0.125})
    if "nc" not in case:
        model.names = ["a", "b", "c"]
    YOLOV5[case](model)
    torch.save({"model": model}, tmp_path / "crafted.pt")
    with pytest.raises(InputError, match=r"crafted.pt: ") as told:
        read_trained(tmp_path / "crafted.pt")
    assert len(str(told.value).splitlines()) == 1
    network = YOLOv5(4, depth_multiple=0.33, width_multiple=0.25)
    with pytest.raises(InputError, match=r"crafted.pt: "):
        load_weights(network, tmp_path / "crafted.pt")


def test_a_tensor_is_no_larger_than_its_file(whole: dict[str, Any]) -> None:
    """A number that claims to be gigabytes is not filled out."""
    tensors: dict[str, Tensor] = {
        **whole["state_dict"],
        "network.anchors": torch.zeros(1).expand(10**11),
    }
    with pytest.raises(InvalidContent, match=r"network\.anchors is an unusual tensor"):
        check_detector({**whole, "state_dict": tensors})


def test_plain_files_are_those_that_load(whole: dict[str, Any], tmp_path: Path) -> None:
    """The quick look at what was just written passes nothing that the restricted reading
    refuses."""
    contents = {
        "whole": (whole, True, ""),
        "sixteen bits": (
            {
                "a": torch.ones(2, dtype=torch.bfloat16),
                "b": torch.ones(2).half(),
                "c": torch.ones(1) > 0,
            },
            True,
            "",
        ),
        "parameter": ({"a": torch.nn.Parameter(torch.ones(2))}, False, ""),
        "path": ({"a": Path("b")}, False, "refused, because it holds"),
        "list": ([1], False, "not a checkpoint"),
    }
    for name, (content, plain, problem) in contents.items():
        path = tmp_path / f"{name}.ckpt"
        torch.save(content, path)
        with open(path, "rb") as file:
            assert is_plain(file) == plain, name
        assert problem in validate_file(path), name
        assert bool(validate_file(path)) == bool(problem), name
    with (
        zipfile.ZipFile(tmp_path / "whole.ckpt") as old,
        zipfile.ZipFile(tmp_path / "short.ckpt", "w") as new,
    ):
        for name in old.namelist()[:-3]:  # the last tensor's record is not there
            new.writestr(name, old.read(name))
    with open(tmp_path / "short.ckpt", "rb") as file:
        assert not is_plain(file)
    assert validate_file(tmp_path / "short.ckpt")
