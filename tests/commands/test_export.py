"""Exported files: written by the command, compared with PyTorch, taken by validate and predict."""

import copy
import dataclasses
import json
import random
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shlex import split
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from shared import SHARED, shared

import boltbox
import cli
from benchmarks.recorded_disk import RecordedDisk
from boltbox.detector.commands.export.check import check
from boltbox.detector.commands.export.graph import Decoded
from boltbox.detector.commands.export.write import onnx_model
from boltbox.detector.data.demo import draw_image
from boltbox.detector.data.images import read_image
from boltbox.detector.data.transforms.letterbox import letterbox
from boltbox.detector.inference.exported import (
    ENDINGS,
    Exported,
    Metadata,
    Suppression,
    load_exported,
    write_checksum,
)
from boltbox.detector.inference.predictor import Predictor, in_classes
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.model.postprocess import nms
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights.trained import read_trained

ROOT = Path(__file__).parents[2]
QUICK = split("--data.workers 0 --trainer.enable_progress_bar false --report.enabled false")
SMALL = split(
    "--data.image_size 64 --data.batch_size 4 --model.network.width_multiple 0.0625"
    " --model.network.depth_multiple 0.1 --model.network.levels [4,5] --trainer.max_epochs 1"
    " --trainer.limit_train_batches 1 --trainer.limit_val_batches 1 --trainer.precision 32-true"
    " --autoanchor.enabled false --pictures.enabled false --doctor.enabled false"
)
FIXED = ["--image_size", "[64,96]", "--batch", "3"]
# test_validate_and_predict_take_the_file sees to it where the weights are
DYNAMIC = [] if (SHARED / "weights/yolov5n.pt").is_file() else [("onnx", ["--dynamic", "true"])]


@pytest.fixture(scope="module")
def checkpoint(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a narrow network after a batch, its norms set to these images, its head made louder: what
    it says then differs from place to place, as a trained network's words do."""
    run = tmp_path_factory.mktemp("exported") / "run"
    line = ["fit", "--config", str(ROOT / "configs/yolo.yaml"), "--run", str(run)]
    cli.main([*line, "--data.dataset", str(small_data), *QUICK, *SMALL])
    path = run / "checkpoints" / "best.ckpt"
    network = read_trained(str(path)).network.train()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        network(images(8, 64, 64))
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                # or rounding errors would grow where a channel says nothing
                module.running_var.clamp_(min=0.05)
        for conv in network.head.convs:
            conv.weight *= 4
            conv.bias.zero_()
    content = torch.load(path, weights_only=True)
    for prefix in ("network", "ema"):
        content["state_dict"] |= {
            f"{prefix}.{name}": tensor for name, tensor in network.state_dict().items()
        }
    torch.save(content, path)
    return path


@pytest.fixture(scope="module", autouse=True)
def graphs() -> Iterator[None]:
    """torch.export takes seconds: a graph is made once, whatever it is written as."""
    made: dict[str, Any] = {}

    def once(graph: torch.nn.Module, metadata: Metadata, opset: int | None) -> Any:
        shape = None if metadata.dynamic else (metadata.batch, metadata.image_size)
        weights = [(p.dtype, float(p.double().abs().sum())) for p in graph.parameters()]
        key = str((type(graph), metadata.nms, shape, opset, weights))
        if key not in made:
            made[key] = onnx_model(graph, metadata, opset)
        return copy.deepcopy(made[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("boltbox.detector.commands.export.write.onnx_model", once)
        yield


DONE: dict[tuple[str, ...], Path] = {}


def export(checkpoint: Path, out: Path, format: str, *options: str) -> Path:
    """A copy of what the command has written; it takes seconds, so it is asked once for each kind
    of file."""
    kind = (str(checkpoint), format, *options)
    if kind not in DONE:
        DONE[kind] = checkpoint.parent / f"{len(DONE)}" / out.name
        line = ["export", "--ckpt_path", str(checkpoint), "--format", format]
        cli.main([*line, "--out", str(DONE[kind]), *options])
        assert [p.name for p in DONE[kind].parent.iterdir()] == [out.name]  # nothing else is left
    (shutil.copytree if DONE[kind].is_dir() else shutil.copyfile)(DONE[kind], out)
    return out


def images(batch: int, height: int, width: int) -> torch.Tensor:
    """Other images than the command has looked at."""
    drawn = [
        letterbox(draw_image(np.random.default_rng(50 + i))[0], (height, width))[0]
        for i in range(batch)
    ]
    return torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2).float() / 255


def error(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0, told
    return told


SHAPES = [(3, 64, 96), (1, 96, 64), (2, 128, 128)]


def says_the_same(
    exported: Exported, network: Decoded, shapes: list[tuple[int, ...]], tolerance: float
) -> None:
    for batch, height, width in shapes:
        seen = images(batch, height, width)
        with torch.no_grad():
            wanted = network(seen)
        assert wanted[..., 4].std() > 0.03  # the network does not say the same everywhere
        torch.testing.assert_close(exported(seen), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("format", "options"),
    [("onnx", FIXED), ("openvino", FIXED), ("onnx", ["--half", "true"]), *DYNAMIC],
)
def test_each_format_says_what_pytorch_says(
    checkpoint: Path, tmp_path: Path, format: str, options: list[str]
) -> None:
    path = export(checkpoint, tmp_path / f"n{ENDINGS[format]}", format, *options)
    exported = load_exported(path)
    told = exported.metadata
    assert told.names == ["disc", "ring", "star", "triangle", "cross"]
    assert told.stride == 32
    half = "--half" in options
    assert told.image_size == (64, 96 if options == FIXED else 64)
    assert told.dynamic == ("--dynamic" in options)
    assert told.precision == ("float16" if half else "float32")
    assert told.strides == [16, 32]
    assert told.thresholds == torch.load(checkpoint, weights_only=True)["thresholds"]
    assert len(told.thresholds) == 5
    network = Decoded(read_trained(str(checkpoint)).network)
    # three images for a file that takes one at a time
    shapes = SHAPES if told.dynamic else [(3, *told.image_size)]
    says_the_same(exported, network, shapes, 2.0 if half else 1e-3)
    if not told.dynamic:
        with pytest.raises(InputError, match="takes images of 64x"):
            exported(images(1, 128, 128))


@pytest.mark.parametrize("format", ENDINGS)
def test_threads_share_a_file(checkpoint: Path, tmp_path: Path, format: str) -> None:
    exported = load_exported(export(checkpoint, tmp_path / f"n{ENDINGS[format]}", format))
    seen = images(8, 64, 64).split(1)
    alone = [exported(image) for image in seen]
    with ThreadPoolExecutor(4) as pool:
        for k, rows in enumerate(pool.map(exported, seen * 20)):
            assert torch.equal(rows, alone[k % 8])


def test_files_beside_an_export_stay(checkpoint: Path, tmp_path: Path) -> None:
    """The files of an export are on the disk when the command ends, the first time and later."""
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk/new/n_openvino"
    left = tmp_path / "left"
    line = f"export --ckpt_path {checkpoint} --format openvino --out {path}".split()
    disk = RecordedDisk(tmp_path / "disk")
    with disk.recording():
        cli.main(line)
        cli.main(line)
    disk.rebuild(left)
    for file in ("model.xml", "model.bin"):
        assert (left / "new/n_openvino" / file).read_bytes() == (path / file).read_bytes()
    (path / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit):
        cli.main(line)
    assert (path / "mine.txt").read_text() == "mine"
    assert load_exported(path).names


@pytest.mark.parametrize("format", ENDINGS)
def test_suppression_in_the_file(checkpoint: Path, tmp_path: Path, format: str) -> None:
    options = split("--nms true --conf 0.05 --iou 0.4 --max_det 15 --batch 2")
    exported = load_exported(export(checkpoint, tmp_path / f"n{ENDINGS[format]}", format, *options))
    assert exported.metadata.nms == Suppression(0.05, 0.4, 15, False)
    seen = images(2, 64, 64)
    raw = exported.run(seen)
    assert raw.shape[1] == 7
    assert set(raw[:, 0].tolist()) == {0.0, 1.0}
    with torch.no_grad():
        wanted = nms(
            Decoded(read_trained(str(checkpoint)).network)(seen), 0.05, 0.4, 15, multi_label=False
        )
    for i, theirs in enumerate(wanted):
        rows = raw[raw[:, 0] == i]
        assert len(theirs.scores) == 15  # max_det is reached, and counts for each image
        torch.testing.assert_close(rows[:, 1:5], theirs.boxes, rtol=0, atol=1e-3)
        torch.testing.assert_close(rows[:, 5], theirs.scores, rtol=0, atol=1e-5)
        assert rows[:, 6].tolist() == theirs.classes.tolist()
    # as validate and predict go on with them
    again = nms(exported(seen), 0.05, 0.4, 15, multi_label=False)
    for ours, theirs in zip(again, wanted, strict=True):
        torch.testing.assert_close(ours.boxes, theirs.boxes, rtol=0, atol=1e-3)
    # a single class stays the score's in an ensemble that knows more
    file = dataclasses.replace(
        exported, metadata=dataclasses.replace(exported.metadata, names=["a"])
    )
    file = dataclasses.replace(file, run=lambda _: torch.tensor([[0.0, 0, 0, 9, 9, 0.25, 0]]))
    rows = in_classes(file, ["a"], ["b", "a"])(seen[:1])
    assert (rows[..., 4:5] * rows[..., 5:]).tolist() == [[[0, 0.25]]]


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """The data.yaml of sixteen real images to train on, four of them to validate on."""
    data = shared("data/coco128_val128")
    files = sorted((data / "images/val").iterdir())[:16]
    lists = {"train": files, "val": files[:4]}
    for name, of_it in lists.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{f}\n" for f in of_it))
    content = yaml.safe_load((data / "data.yaml").read_text())
    content |= {"path": str(data), **{name: str(tmp_path / f"{name}.txt") for name in lists}}
    (tmp_path / "coco.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "coco.yaml"


def test_validate_and_predict_take_the_file(coco: Path, tmp_path: Path, here: Path) -> None:
    """YOLOv5's weights on four real images, at their own shapes: the figures are PyTorch's."""
    weights = shared("weights/yolov5n.pt")
    files = sorted((shared("data/coco128_val128") / "images/val").iterdir())[:4]
    path = tmp_path / "n.onnx"
    line = ["export", "--ckpt_path", str(weights), "--out", str(path)]
    cli.main([*line, "--dynamic", "true", "--image_size", "256"])
    says_the_same(load_exported(path), Decoded(read_trained(weights).network), SHAPES, 5e-3)
    options = ["--data.dataset", str(coco), "--data.image_size", "256", *QUICK]
    cli.main(["validate", "--model.start.weights", str(weights), *options, "--run", "torch"])
    cli.main(["validate", "--ckpt_path", str(path), *options, "--run", "file"])
    ours, theirs = (json.loads(Path(run, "metrics.json").read_text()) for run in ("torch", "file"))
    assert ours["mAP50"] > 0.3
    for name in ("P", "R", "mAP50", "mAP50-95", "coco/AP"):
        assert theirs[name] == pytest.approx(ours[name], abs=1e-3), name
    found, wanted = (
        Predictor.load(file, device="cpu").predict(files[0], image_size=256)
        for file in (path, weights)
    )
    assert len(wanted)
    np.testing.assert_allclose(found.xyxy, wanted.xyxy, rtol=0, atol=1e-2)
    np.testing.assert_allclose(found.confidence, wanted.confidence, rtol=0, atol=1e-4)


def test_a_file_of_one_size_is_fed_that_size(
    checkpoint: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    """In the run's folder it finds the run's data, as its checkpoint does."""
    path = checkpoint.with_name("best.onnx")
    export(checkpoint, path, "onnx", *FIXED)
    first = path.stat().st_ino
    cli.main(["export", "--ckpt_path", str(checkpoint), *FIXED])
    assert "largest difference" in capsys.readouterr().out
    assert path.stat().st_ino != first  # an earlier export is replaced
    cli.main(["validate", "--ckpt_path", str(path), "--run", "val", "--report.enabled", "false"])
    assert json.loads(Path("val/metrics.json").read_text())["images"] == 8
    config = yaml.safe_load(Path("val/config.yaml").read_text())
    assert config["data"]["dataset"] == str(small_data)
    assert config["model"]["network"]["width_multiple"] == 0.0625
    assert "takes images of 64x96 px, not of 128 px" in error(
        ["validate", "--ckpt_path", str(path), "--data.image_size", "128"], capsys
    )
    assert "fit takes no exported file" in error(["fit", "--ckpt_path", str(path)], capsys)
    wrong = ["validate", "--ckpt_path", str(path), "--data.dataset", "coco.yaml"]
    (here / "coco.yaml").write_text(
        yaml.safe_dump(
            {"path": str(small_data.parent), "val": "images/val", "names": list("abcde")}
        )
    )
    assert "it has other classes" in error(wrong, capsys)


def test_an_ensemble_sees_images_that_all_of_them_take(
    checkpoint: Path, small_data: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    """A file of one size, and a network with a larger stride."""
    fixed = export(checkpoint, here / "fixed.onnx", "onnx", *FIXED)
    line = ["validate", "--ckpt_path", str(checkpoint), *QUICK, "--ensemble"]
    assert "fixed.onnx takes images of 64x96 px, not of 64 px" in error(
        [*line, f"[{fixed}]"], capsys
    )
    to_96 = ["--data.image_size", "96"]
    cli.main([*line, f"[{fixed}]", *to_96, "--run", "a"])
    content = torch.load(checkpoint, weights_only=True)
    options = content["hyper_parameters"]["network"]
    options["levels"] = [4, 5, 6]
    network = NetworkOptions(**options).build(len(content["hyper_parameters"]["names"]))
    content["state_dict"] = {
        f"network.{name}": tensor for name, tensor in network.state_dict().items()
    }
    torch.save(content, "coarse.ckpt")
    cli.main([*line, "[coarse.ckpt]", *to_96, "--run", "b"])
    assert "96 is rounded up to 128" in capsys.readouterr().out
    for run in "ab":
        assert json.loads(Path(run, "metrics.json").read_text())["images"] == 8


def test_int8_by_onnx_runtime(coco: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """YOLOv5's weights on real images: a network that is trained well loses little."""
    weights = str(shared("weights/yolov5n.pt"))
    assert "give --data" in error(["export", "--ckpt_path", weights, "--int8", "true"], capsys)
    path = tmp_path / "n.onnx"
    options = ["--data", str(coco), "--out", str(path)]
    options += split("--int8 true --dynamic true --image_size 256")
    cli.main(["export", "--ckpt_path", weights, *options])
    model = onnx.load(path)
    eight_bit = [
        i
        for i in model.graph.initializer
        if i.data_type == onnx.TensorProto.INT8 and len(i.dims) == 4
    ]
    assert len(eight_bit) == sum(node.op_type == "Conv" for node in model.graph.node) > 30
    exported = load_exported(path)
    assert exported.metadata.precision == "int8"
    shown = [
        read_image(file)
        for file in sorted((shared("data/coco128_val128") / "images/val").iterdir())[16:32]
    ]
    difference = check(exported, Decoded(read_trained(weights).network), shown)
    found, wanted = map(int, re.findall(r"\d+", difference)[:2])
    assert found > 0.8 * wanted > 20  # still the same network
    assert float(re.findall(r"[\d.e-]+ in a score", difference)[0].split()[0]) > 0.001


def test_a_file_that_says_something_else_is_not_kept(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """As if its runtime computed a pixel off."""

    def off(path: Path) -> Exported:
        exported = load_exported(path)
        return dataclasses.replace(exported, run=lambda seen: exported.run(seen) + 1)

    monkeypatch.setattr("boltbox.detector.commands.export.command.load_exported", off)
    arguments = ["export", "--ckpt_path", str(checkpoint), "--out", str(tmp_path / "n.onnx")]
    assert "no file is written" in error([*arguments, *FIXED], capsys)
    assert list(tmp_path.iterdir()) == []


def test_boxes_without_area_are_found_again(checkpoint: Path, tmp_path: Path) -> None:
    """A network that has learned little has some."""
    network = read_trained(str(checkpoint)).network
    with torch.no_grad():
        for conv in network.head.convs:
            conv.bias.view(3, -1)[:, 2:4] = -40.0
    decoded = Decoded(network)
    metadata = load_exported(export(checkpoint, tmp_path / "n.onnx", "onnx", *FIXED)).metadata
    exported = Exported(tmp_path / "n.onnx", metadata, decoded)
    said = check(exported, decoded, [draw_image(np.random.default_rng(0))[0]])
    found, wanted = map(int, re.findall(r"\d+", said)[:2])
    assert found == wanted > 10


def test_rounding_chooses_no_class(checkpoint: Path, tmp_path: Path) -> None:
    """Where all scores are nearly 1, another runtime has another best class, and another order.
    Classes in another order are refused all the same."""
    metadata = load_exported(export(checkpoint, tmp_path / "n.onnx", "onnx", *FIXED)).metadata
    seen = [draw_image(np.random.default_rng(0))[0]]
    network = read_trained(str(checkpoint)).network
    decoded = Decoded(network)
    moved = Exported(tmp_path, metadata, lambda x: decoded(x)[..., [0, 1, 2, 3, 4, 6, 7, 8, 9, 5]])
    with pytest.raises(InputError, match="train the network longer"):
        check(moved, decoded, seen)
    with torch.no_grad():
        for conv in network.head.convs:
            conv.bias.view(3, -1)[:, 4:] = 16.0
            conv.weight.unflatten(0, (3, -1))[:, 4:] *= 0.1
    saturated = Decoded(network)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        rows = saturated(x)
        rows[..., 4:] -= 3e-7 * torch.rand_like(rows[..., 4:])
        return rows

    assert (rounded(images(3, 64, 96))[..., 5:].argmax(-1) != 0).any()
    said = check(Exported(tmp_path, metadata, rounded), saturated, seen)
    found, wanted = map(int, re.findall(r"\d+", said)[:2])
    assert found == wanted > 10


def test_files_that_are_none(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """One sentence each; what is no export is not replaced."""
    path = export(checkpoint, tmp_path / "n.onnx", "onnx", *FIXED)
    content = path.read_bytes()
    model = onnx.load(path)

    def said(path: Path = path) -> str:
        return error(["validate", "--ckpt_path", str(path)], capsys)

    assert "missing.onnx: no such file" in said(tmp_path / "missing.onnx")
    path.write_bytes(content[: len(content) // 2])
    assert "not an intact file of `export`" in said()
    (tmp_path / "n_openvino").mkdir()
    assert "not an intact file of `export`" in said(tmp_path / "n_openvino")
    damaged = {"stride": "0", "names": "3", "image_size": "[64]", "layout": "9", "origins": '["x"]'}
    damaged |= {"strides": "[16, 0]", "batch": "1000000000"}
    for key, value in damaged.items():
        broken = onnx.load_from_string(content)
        next(entry for entry in broken.metadata_props if entry.key == key).value = value
        onnx.save(broken, path)
        write_checksum([path])
        assert "not an intact file of `export`" in said(), key
        assert "checksum" not in said(), key
    del model.metadata_props[:]
    onnx.save(model, path)
    assert "not an intact file of `export`" in said()
    foreign = path.read_bytes()
    taken = ["export", "--ckpt_path", str(checkpoint), "--out", str(path)]
    assert "is no export" in error(taken, capsys)
    assert path.read_bytes() == foreign


def set_metadata(model: onnx.ModelProto, key: str, value: str) -> None:
    next(entry for entry in model.metadata_props if entry.key == key).value = value


def nan_in_weights(model: onnx.ModelProto) -> None:
    weights = next(i for i in model.graph.initializer if i.data_type == 1 and len(i.dims) == 4)
    values = onnx.numpy_helper.to_array(weights).copy()
    values.flat[0] = np.nan
    weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))


def no_such_element(model: onnx.ModelProto) -> None:
    """The last operator looks for one."""
    model.graph.node[-1].output[0] = "all"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([99]), "last"))
    model.graph.node.append(onnx.helper.make_node("Gather", ["all", "last"], ["output"], axis=2))
    del model.graph.output[0].type.tensor_type.shape.dim[:]


NMS = json.dumps(Suppression(0.25, 0.45, 300, False)._asdict())
WRONG: dict[str, tuple[list[str], Any, str]] = {
    "fewer names": ([], {"names": '["a", "b"]'}, "its output"),
    "more names": ([], {"names": '["a", "b", "c", "d", "e", "f"]'}, "its output"),
    "an output of another shape": ([], {"nms": NMS}, "its output"),
    "a class beyond the names": (["--nms", "true"], {"names": '["a", "b"]'}, "its output"),
    "a size of another input": ([], {"image_size": "[128, 128]"}, "its input"),
    "an input of any size": ([], {"dynamic": "true", "image_size": "[128, 128]"}, "its runtime"),
    "a side of 10^6": ([], {"dynamic": "true", "image_size": "[1000000, 1000000]"}, "1000000"),
    "a weight that is not finite": ([], nan_in_weights, "not finite"),
    "an operator that fails": ([], no_such_element, "its runtime"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_does_not_fit_itself(
    checkpoint: Path, small_data: Path, here: Path, wrong: str, capfd: pytest.CaptureFixture
) -> None:
    """With the right checksum: one sentence, and nothing from the runtime beside it."""
    options, change, told = WRONG[wrong]
    path = export(checkpoint, here / "n.onnx", "onnx", *options)
    model = onnx.load(path)
    if isinstance(change, dict):
        for key, value in change.items():
            set_metadata(model, key, value)
    else:
        change(model)
    onnx.save(model, path)
    write_checksum([path])
    image = next(small_data.parent.rglob("*.jpg"))
    line = ["predict", "--ckpt_path", str(path), "--source", str(image), "--run", "out"]
    message = error(line, capfd)
    assert str(path) in message
    assert told in message


@pytest.mark.parametrize("format", ENDINGS)
def test_a_changed_file_is_refused(
    checkpoint: Path, small_data: Path, here: Path, format: str, capsys: pytest.CaptureFixture
) -> None:
    """A flipped bit anywhere, a file that was cut or got longer, a part of another export."""
    path = export(checkpoint, here / f"n{ENDINGS[format]}", format)
    image = next(small_data.parent.rglob("*.jpg"))
    line = ["predict", "--ckpt_path", str(path), "--source", str(image), "--run", "out"]
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    cli.main(line)
    rng = random.Random(0)
    for file in files:
        whole = file.read_bytes()
        changed = [whole[:-1], whole + b"\0", whole[: len(whole) // 2]]
        for _ in range(15):
            flipped = bytearray(whole)
            flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
            changed.append(bytes(flipped))
        for content in changed:
            file.write_bytes(content)
            assert f"{path}: not an intact file of `export`" in error(line, capsys)
        file.write_bytes(whole)
    if path.is_dir():
        half = export(checkpoint, here / "half_openvino", format, "--half", "true")
        shutil.copy(half / "model.xml", path)
        assert "not an intact file" in error(line, capsys)
    else:
        cli.main([*line, "--run", "again"])  # whole again


@pytest.mark.parametrize("format", ["engine", "tflite"])
def test_formats_of_other_tools(format: str, capsys: pytest.CaptureFixture) -> None:
    told = error(["export", "--format", format, "--ckpt_path", "best"], capsys)
    assert f"format {format}" in told
    assert "docs/deploy.md" in told
    with pytest.raises(InputError, match=r"docs/deploy\.md"):
        boltbox.export("nowhere.ckpt", format=format)


def test_options_that_yolov5_calls_otherwise(capsys: pytest.CaptureFixture) -> None:
    assert "export --format onnx" in error(["export", "--include", "onnx"], capsys)
    assert "export --ckpt_path yolov5n.pt" in error(["export", "--weights", "yolov5n.pt"], capsys)
    assert "exclude each other" in error(["export", "--half", "true", "--int8", "true"], capsys)
