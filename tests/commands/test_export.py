"""Exported files: written by the command, compared with PyTorch, taken by validate and predict."""

import copy
import dataclasses
import json
import os
import re
import resource
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from core_ml import program_of
from made_exports import compare, graphs, images  # noqa: F401 - a fixture
from made_runs import load, read, train, type_line

from benchmarks.recorded_disk import RecordedDisk
from boltbox.detector.commands.export.check import check
from boltbox.detector.commands.export.graph import Decoded
from boltbox.detector.data.demo import draw_image
from boltbox.detector.data.inputs.tiles import Tiles
from boltbox.detector.inference.exported import (
    Exported,
    Metadata,
    Suppression,
    files_of,
    write_checksum,
)
from boltbox.detector.inference.formats import FORMATS, load_exported
from boltbox.detector.inference.onnx_formats import Onnx
from boltbox.detector.inference.predictor import Predictor
from boltbox.detector.model.layers import set_momentum
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.postprocess import nms
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.trusted import trusting
from boltbox.detector.weights.trained import read_trained

FIXED = "--image_size [64,96] --batch 3"
SUPPRESSED = "--conf 0.05 --iou 0.4 --max_det 15"
QUIET = "--data.workers 0 --trainer.enable_progress_bar false --report.enabled false"


@pytest.fixture(scope="module")
def checkpoint(small_data, tmp_path_factory):
    """Of a narrow network after a batch, its norms set to these images, its head made louder: its
    outputs then differ from place to place, as a trained network's do."""
    run = tmp_path_factory.mktemp("exported") / "run"
    line = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 1"
    line += " --model.network.width_multiple 0.0625 --model.network.levels [4,5]"
    train(small_data, run, line)
    path = run / "checkpoints/best.ckpt"
    network = read_trained(path).network.train()
    set_momentum(network, 1.0)
    with torch.no_grad():
        network(images(8, 64, 64))
        for name, buffer in network.named_buffers():
            if name.endswith("running_var"):  # rounding errors would grow where it is near 0
                buffer.clamp_(min=0.05)
        for conv in network.head.convs:
            conv.weight *= 4
            conv.bias.zero_()
    content = load(path)
    for prefix in ("network", "ema"):
        for name, tensor in network.state_dict().items():
            content["state_dict"][f"{prefix}.{name}"] = tensor
    torch.save(content, path)
    return path


@pytest.fixture
def decoded(checkpoint):
    return Decoded(read_trained(checkpoint).network)


DONE = {}
ENDINGS = [".onnx", "_openvino"]


def export(checkpoint, out, options):
    """A copy of what the command has written; it takes seconds, so it runs once for each kind of
    file."""
    (name,) = [each.name for each in FORMATS.values() if out.name.endswith(each.ending)]
    kind = f"{checkpoint} --format {name} {options}"
    if kind not in DONE:
        DONE[kind] = checkpoint.parent / f"{len(DONE)}" / out.name
        type_line(f"export --ckpt_path {kind} --out {DONE[kind]}")
        assert os.listdir(DONE[kind].parent) == [out.name]
    copy_file = shutil.copytree if DONE[kind].is_dir() else shutil.copyfile
    copy_file(DONE[kind], out)
    return out


def one_weight_flipped(decoded):
    bias = decoded.network.head.convs[0].bias
    bias[4] = 9.0 - bias[4]


def boxes_of_another_decoder(decoded):
    decoded.network.head.box_coder.decode = lambda numbers, anchors: numbers.sigmoid() * 2


@torch.no_grad()
@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda format: format.name)
def test_a_format(format, checkpoint, small_data, decoded, tmp_path, refused):
    """Its file computes what PyTorch does, also with threads that share it; one of another network
    is refused, a damaged one too."""
    for package in format.packages:
        pytest.importorskip(package, reason=f"{package} of [{format.name}] is not installed")
    options = SUPPRESSED if format.is_page else FIXED
    path = export(checkpoint, tmp_path / f"n{format.ending}", options)
    line = f"predict --ckpt_path {path} --source {next(small_data.parent.rglob('*.jpg'))}"
    if format.executes:
        assert "--trust_parts" in refused(line)
    if format.system in ("", sys.platform):
        type_line(f"{line} --trust_parts true --run {tmp_path}/found --conf 0.01")
        with trusting(everything=True):
            exported = load_exported(path)
    else:
        assert "runtime fails" in refused(line)
        metadata = Metadata.from_values(read(path / "metadata.json"))
        exported = Exported(path, metadata, program_of(path / "model.mlpackage"))
    if not format.is_page:  # its file holds the suppression
        compare(exported, decoded, images(3, 64, 96), 2e-3)
    seen = images(5, 64, 96).split(1)
    alone = list(map(exported, seen))
    with ThreadPoolExecutor(4) as pool:
        for k, rows in enumerate(pool.map(exported, seen * 10)):
            assert torch.equal(rows, alone[k % 5])
    drawn = [draw_image(np.random.default_rng(0))[0]]
    check(exported, decoded, drawn)
    for change in (one_weight_flipped, boxes_of_another_decoder):
        other = copy.deepcopy(decoded)
        change(other)
        with pytest.raises(InputError, match="no file is written"):
            check(exported, other, drawn)
    file = max(files_of(path), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    assert "not an intact file" in refused(f"{line} --trust_parts true")


def test_half_precision_and_what_a_file_says(checkpoint, decoded, tmp_path):
    exported = load_exported(export(checkpoint, tmp_path / "n.onnx", f"{FIXED} --half true"))
    metadata = exported.metadata
    assert metadata.names == ["disc", "ring", "star", "triangle", "cross"]
    assert (metadata.stride, metadata.dynamic, metadata.precision) == (32, False, "float16")
    assert metadata.thresholds == load(checkpoint)["thresholds"]
    tiled = dataclasses.replace(metadata, tiles=Tiles(96, 0.5))
    assert Metadata.from_strings(tiled.to_strings()) == tiled
    older = metadata.to_strings()
    del older["tiles"]
    assert Metadata.from_strings(older) == metadata
    compare(exported, decoded, images(3, 64, 96), 2.0)


@torch.no_grad()
def test_a_narrow_image_in_a_dynamic_pt2(checkpoint, decoded, tmp_path, capsys):
    """torch.export takes no side of a single stride. There may be nothing in an image."""
    line = f"export --ckpt_path {checkpoint} --format pt2 --out {tmp_path}/n_pt2"
    type_line(f"{line} --nms true --dynamic true {SUPPRESSED}")
    assert "--trust_parts true\n" in capsys.readouterr().out
    with trusting(everything=True):
        exported = load_exported(tmp_path / "n_pt2")
    seen = images(1, 32, 64)
    padded = torch.nn.functional.pad(seen, (0, 0, 0, 32), value=114 / 255)
    (expected,) = nms(decoded(padded), 0.05, 0.4, 15, multi_label=False)
    assert len(expected.scores) == 15
    torch.testing.assert_close(exported.run(seen)[:, 1:5], expected.boxes, rtol=0, atol=1e-3)
    assert exported.run(torch.full_like(seen, torch.nan)).shape == (0, 7)


def test_a_converter_that_fails(checkpoint, tmp_path, monkeypatch, refused):
    def nonsense(*given):
        print("nonsense")
        raise RuntimeError("no such operator")

    monkeypatch.setattr("boltbox.detector.inference.onnx_formats.onnx_model", nonsense)
    assert "no such operator" in refused(f"export --ckpt_path {checkpoint} --out {tmp_path}/n.onnx")
    assert os.listdir(tmp_path) == ["n.onnx.log"]
    assert "nonsense" in (tmp_path / "n.onnx.log").read_text()
    for options in ("ncnn --nms true", "executorch --half true", "pt2 --int8 true"):
        refused(f"export --ckpt_path {checkpoint} --format {options} --data {tmp_path}")


@pytest.fixture
def made_package(tmp_path):
    """Files of the package's names, one of them large."""
    folder = tmp_path / "package/dist"
    folder.mkdir(parents=True)
    (folder / "ort.wasm.bundle.min.mjs").write_text("export {};")
    (folder / "ort-wasm-simd-threaded.wasm").write_bytes(bytes(4_000_000))
    return folder.parent


def test_the_folder_of_a_page(made_package, checkpoint, tmp_path, refused):
    """A full disk leaves nothing of it, and a page that somebody changed is not replaced."""
    place = tmp_path / "place"
    line = f"export --ckpt_path {checkpoint} --format web {SUPPRESSED} --out {place}/n_web"
    refused(f"{line} --onnxruntime_web {tmp_path}")
    refused(f"{line} --format onnx --onnxruntime_web {made_package}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
    try:
        refused(f"{line} --onnxruntime_web {made_package}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(place) == ["n_web.log"]
    type_line(line)
    index = place / "n_web/index.html"
    page = index.read_text()
    assert "https://" in page
    assert not re.search(r"RUNTIME|HASH", page)
    (place / "n_web/page/.DS_Store").touch()  # by macOS
    for file in ("", "/model.onnx"):
        assert load_exported(f"{place}/n_web{file}").metadata.nms
    index.write_text(page.replace("Object", "Bird"))
    refused(line)


class Transformed(Decoded):
    """Rows of a single operator; a runtime may lack it."""

    def forward(self, images):
        return torch.fft.fft(images[:, :, :2, :10].flatten(1, 2)).real


@pytest.mark.parametrize("name", ["ncnn", "executorch"])
def test_an_operator_that_a_runtime_lacks(checkpoint, tmp_path, monkeypatch, refused, name):
    """Its converter writes the file all the same."""
    pytest.importorskip(name, reason=f"{name} of [{name}] is not installed")
    monkeypatch.setattr("boltbox.detector.commands.export.command.Decoded", Transformed)
    line = f"export --ckpt_path {checkpoint} --format {name} --image_size 32"
    refused(f"{line} --out {tmp_path}/n_{name}")
    assert os.listdir(tmp_path) == [f"n_{name}.log"]
    assert re.search("fft|DFT", (tmp_path / f"n_{name}.log").read_text())


def test_files_beside_an_export_stay(checkpoint, tmp_path, refused):
    """The files of an export are on the disk when the command ends, the first time and later."""
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk/new/n_openvino"
    line = f"export --ckpt_path {checkpoint} --format openvino --out {path} {FIXED}"
    disk = RecordedDisk(tmp_path / "disk")
    with disk.recording():
        type_line(line)
        type_line(line)
    disk.rebuild(tmp_path / "left")
    for file in ("model.xml", "model.bin"):
        left = tmp_path / "left/new/n_openvino" / file
        assert left.read_bytes() == (path / file).read_bytes()
    (path / "mine.txt").write_text("mine")
    refused(line)
    assert (path / "mine.txt").read_text() == "mine"
    assert load_exported(path).names


@pytest.mark.parametrize("ending", ENDINGS)
def test_suppression_in_the_file(checkpoint, decoded, tmp_path, ending):
    options = f"--nms true --dynamic true {SUPPRESSED}"
    exported = load_exported(export(checkpoint, tmp_path / f"n{ending}", options))
    assert exported.metadata.nms == Suppression(0.05, 0.4, 15, False)
    seen = images(2, 64, 64)
    raw = exported.run(seen)
    assert set(raw[:, 0].tolist()) == {0.0, 1.0}
    with torch.no_grad():
        expected = nms(decoded(seen), 0.05, 0.4, 15, multi_label=False)
    # as validate and predict go on with them
    again = nms(exported(seen), 0.05, 0.4, 15, multi_label=False)
    for i, reference in enumerate(expected):
        rows = raw[raw[:, 0] == i]
        assert len(reference.scores) == 15  # max_det is reached, and counts for each image
        torch.testing.assert_close(rows[:, 1:5], reference.boxes, rtol=0, atol=1e-3)
        torch.testing.assert_close(rows[:, 5], reference.scores, rtol=0, atol=1e-5)
        assert rows[:, 6].tolist() == reference.classes.tolist()
        torch.testing.assert_close(again[i].boxes, reference.boxes, rtol=0, atol=1e-3)


def test_a_file_of_one_size_is_fed_that_size(checkpoint, small_data, here, refused):
    """In the run's folder it finds the run's data, as its checkpoint does. In an ensemble all see
    images that it takes."""
    path = export(checkpoint, checkpoint.with_name("best.onnx"), FIXED)
    first = path.stat().st_ino
    type_line(f"export --ckpt_path {checkpoint} {FIXED}")
    assert path.stat().st_ino != first  # an earlier export is replaced
    ensemble = f"validate --ckpt_path {checkpoint} --ensemble [{path}]"
    type_line(f"validate --ckpt_path {path} --run val --report.enabled false")
    type_line(f"{ensemble} --data.image_size 96 --run ensemble {QUIET}")
    for run in ("val", "ensemble"):
        assert read(Path(run, "metrics.json"))["images"] == 8
    config = read("val/config.yaml")
    assert config["data"]["dataset"] == str(small_data)
    assert config["model"]["network"]["width_multiple"] == 0.0625
    classes = {"path": str(small_data.parent), "val": "images/val", "names": list("abcde")}
    Path("coco.yaml").write_text(yaml.safe_dump(classes))
    wrong = {
        f"validate --ckpt_path {path} --data.image_size 128": "64x96",
        ensemble: "64x96",
        f"validate --ckpt_path {path} --data.dataset coco.yaml": "classes",
        f"fit --ckpt_path {path}": "fit takes no exported file",
        f"export --ckpt_path {path}": "the checkpoint that it was made from",
        f"export --ckpt_path {checkpoint} --int8 true": "--data",
    }
    for line, expected in wrong.items():
        assert expected in refused(line)
    coarse = YOLOv5(5, "n6", width_multiple=0.0625)
    with pytest.raises(InputError, match=r"best.onnx takes .*others"):
        Predictor([load_exported(path), coarse], list("abcde")).inputs(96)


def test_a_file_that_computes_something_else_is_not_kept(
    checkpoint, tmp_path, monkeypatch, refused
):
    """As if its runtime computed boxes that are a fifth of a pixel off, with the same scores."""

    def off(self, path):
        metadata, right = run(self, path)

        def wrong(seen):
            rows = right(seen)
            rows[..., :4] += 0.2
            return rows

        return metadata, wrong

    run = Onnx.run
    monkeypatch.setattr(Onnx, "run", off)
    line = f"export --ckpt_path {checkpoint} --out {tmp_path}/n.onnx {FIXED}"
    assert "no file is written" in refused(line)
    assert os.listdir(tmp_path) == []


def test_a_barely_trained_network(checkpoint, tmp_path):
    """Boxes without area; scores of nearly 1, where another runtime has another best class and
    order. Classes in another order are refused all the same."""
    metadata = load_exported(export(checkpoint, tmp_path / "n.onnx", FIXED)).metadata
    seen = [draw_image(np.random.default_rng(0))[0]]
    network = read_trained(checkpoint).network
    decoded = Decoded(network)
    moved = Exported(tmp_path, metadata, lambda x: decoded(x)[..., [0, 1, 2, 3, 4, 6, 7, 8, 9, 5]])
    with pytest.raises(InputError, match="no file is written"):
        check(moved, decoded, seen)
    with torch.no_grad():
        for conv in network.head.convs:
            conv.bias.view(3, -1)[:, 2:4] = -40.0
            conv.bias.view(3, -1)[:, 4:] = 16.0
            conv.weight.unflatten(0, (3, -1))[:, 4:] *= 0.1
    saturated = Decoded(network)

    def rounded(x):
        rows = saturated(x)
        rows[..., 4:] -= 3e-7 * torch.rand_like(rows[..., 4:])
        return rows

    assert (rounded(images(3, 64, 96))[..., 5:].argmax(-1) != 0).any()
    difference = check(Exported(tmp_path, metadata, rounded), saturated, seen)
    found, expected = map(int, re.findall(r"\d+", difference)[:2])
    assert found == expected > 10
    for conv in network.head.convs:
        conv.bias.data.view(3, -1)[:, 4] = -40.0
    blind = Decoded(network)
    assert "--data" in check(Exported(tmp_path, metadata, blind), blind, seen)


def nan_in_weights(model):
    weights = next(i for i in model.graph.initializer if i.data_type == 1 and len(i.dims) == 4)
    values = onnx.numpy_helper.to_array(weights).copy()
    values.flat[0] = np.nan
    weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))


def no_such_element(model):
    """The last operator looks for one."""
    model.graph.node[-1].output[0] = "all"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([99]), "last"))
    model.graph.node.append(onnx.helper.make_node("Gather", ["all", "last"], ["output"], axis=2))
    del model.graph.output[0].type.tensor_type.shape.dim[:]


NMS = json.dumps(Suppression(0.25, 0.45, 300, False)._asdict())
WRONG = {
    "no metadata": (None, "not an intact file"),
    "another layout": ({"layout": "9"}, "not an intact file"),
    "a size that is none": ({"image_size": "[64]"}, "not an intact file"),
    "fewer names": ({"names": '["a", "b"]'}, "its output"),
    "an output of another shape": ({"nms": NMS}, "its output"),
    "a size of another input": ({"image_size": "[128, 128]"}, "its runtime"),
    "a weight that is not finite": (nan_in_weights, "not finite"),
    "an operator that fails": (no_such_element, "its runtime"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_does_not_fit_itself(checkpoint, small_data, here, wrong, refused):
    """With the right checksum: one sentence."""
    change, expected = WRONG[wrong]
    path = export(checkpoint, here / "n.onnx", FIXED)
    model = onnx.load(path)
    if change is None:
        del model.metadata_props[:]
    elif isinstance(change, dict):
        for entry in model.metadata_props:
            entry.value = change.get(entry.key, entry.value)
    else:
        change(model)
    onnx.save(model, path)
    if change is None:  # and what is no export is not replaced
        refused(f"export --ckpt_path {checkpoint} --out {path}")
    else:
        write_checksum(path)
    image = next(small_data.parent.rglob("*.jpg"))
    message = refused(f"predict --ckpt_path {path} --source {image}")
    assert str(path) in message
    assert expected in message


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_changed_file_is_refused(checkpoint, here, ending):
    """A flipped bit anywhere, a file that was cut or got longer, a part of another export."""
    path = export(checkpoint, here / f"n{ending}", FIXED)
    for file in files_of(path):
        whole = file.read_bytes()
        changed = [whole[:-1], whole + b"\0", whole[: len(whole) // 2]]
        for place in np.random.default_rng(0).integers(8 * len(whole), size=10).tolist():
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << place % 8
            changed.append(bytes(flipped))
        for content in changed:
            file.write_bytes(content)
            with pytest.raises(InputError, match="not an intact file of `export`"):
                load_exported(path)
        file.write_bytes(whole)
    load_exported(path)
    if path.is_dir():
        half = export(checkpoint, here / "half_openvino", f"{FIXED} --half true")
        shutil.copy(half / "model.xml", path)
        with pytest.raises(InputError, match="not an intact file"):
            load_exported(path)
