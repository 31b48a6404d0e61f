"""Two tools beside each other on the same data, turn about (A B, B A, ...): whole trainings by their
command lines, then their exported ONNX files by boltbox's metrics. See beside.md.

    python -m benchmarks.beside --data $PWD/pets/data.yaml --folder $PWD/runs/beside
        --tool A "TRAINING" "EXPORT" --tool B "TRAINING" "EXPORT"

In the two commands of a tool, {data} stands for the data.yaml, {seed} for the seed and {folder} for
a folder, below which the export leaves one .onnx file. Each command runs in a folder of its own, so
paths are absolute. --folder is new. A table is printed after each round.
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

import onnx

from benchmarks.speed import ROOT, timed, turn_about
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.inference.exported import Metadata, write_checksum

# (B, 4 + C, R) -> (B, R, 5 + C), with an objectness of 1
TAIL = """
    <ir_version: %d, opset_import: ["": %d]>
    tail (float[B, N, R] x) => (float[B, R, M] decoded) {
        rows = Transpose <perm = [0, 2, 1]> (x)
        parts = Constant <value_ints = [4, %d]> ()
        boxes, scores = Split <axis = 2> (rows, parts)
        pads = Constant <value_ints = [0, 0, 0, 0, 0, 1]> ()
        one = Constant <value_float = 1.0> ()
        sure = Pad (boxes, pads, one)
        decoded = Concat <axis = 2> (sure, scores)
    }
"""


def readable(path: Path, names: list[str]) -> Path:
    """An ONNX file that `validate` reads: this one of boltbox, or a copy of another tool's.

    Args:
        path: The file; it takes float32 (B, 3, H, W) and gives (B, R, 5 + C) or (B, 4 + C, R).
        names: Of the classes.
    """
    model = onnx.load(path)
    if any(entry.key == "layout" for entry in model.metadata_props):
        return path
    output = model.graph.output[0]
    if output.type.tensor_type.shape.dim[1].dim_value == 4 + len(names):
        opset = model.opset_import[0].version
        tail = onnx.parser.parse_model(TAIL % (model.ir_version, opset, len(names)))
        model = onnx.compose.merge_models(model, tail, [(output.name, "x")])
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    batch, _, height, width = (size.dim_value for size in sizes)
    metadata = Metadata(names, 32, (height, width), batch, False, None, "float32")
    onnx.helper.set_model_props(model, metadata.to_strings())
    copy = path.with_name("readable.onnx")
    onnx.save(model, copy)
    write_checksum([copy])
    return copy


def measured(commands: list[str], data: str, folder: Path, seed: int) -> dict[str, float]:
    """The figures of one training."""
    train, export = (line.format(data=data, folder=folder, seed=seed) for line in commands)
    seconds, memory = timed(shlex.split(train), folder / "train", os.environ)
    timed(shlex.split(export), folder / "export", os.environ)
    file = readable(next(folder.rglob("*.onnx")), DatasetFile.read(data).names)
    line = f"{sys.executable} {ROOT}/cli.py validate --data.dataset {data} --ckpt_path {file}"
    timed(shlex.split(f"{line} --run {folder}/figures"), folder / "validate", os.environ)
    metrics = json.loads((folder / "figures/metrics.json").read_text())
    return {
        "seconds": seconds,
        "memory of the first process, GB": memory / 1e9,
        "COCO AP": metrics["coco/AP"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--tool", action="append", nargs=3, required=True)
    given = parser.parse_args()
    tools = {name: commands for name, *commands in given.tool}

    def measure(name: str, seed: int) -> dict[str, float]:
        return measured(tools[name], given.data, given.folder / name / str(seed), seed)

    turn_about(*tools, given.seeds, measure)


if __name__ == "__main__":
    main()
