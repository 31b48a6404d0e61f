"""A dataset of the library `datasets` -> an imagefolder, which `--data.dataset` takes."""

import json
from pathlib import Path
from typing import Any, Literal

import yaml

from boltbox.detector.data.formats.format import SPLIT_NAMES
from boltbox.detector.system.atomic_file import write_atomically
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import check_arguments

LABELS = ("category", "categories")


def save_hugging_face(
    dataset: Any, folder: str | Path, bbox_format: Literal["xywh", "xyxy"] = "xywh"
) -> Path:
    """Write a `datasets.Dataset` as images, their bytes unchanged, and a data.yaml.

    Args:
        dataset: a Dataset, or a DatasetDict with train, validation, test. Its columns: `image`;
            `objects` with `bbox` and `category` (or `categories`), lists of an image or a list of
            objects.
        folder: where to write; it must not hold a data.yaml.
        bbox_format: of `bbox`, in pixels: x1, y1, width, height, or x1, y1, x2, y2.

    Returns:
        The data.yaml. Its names are those of the ClassLabel; without one, what the labels hold.

    Raises:
        InputError: a column is missing, a split or bbox_format has another name, an image has no
            bytes, or the folder is in use.
    """
    check_arguments(save_hugging_face, locals())
    target = Path(folder) / "data.yaml"
    if target.exists():
        raise InputError(f"{target}: already exists and is not overwritten; give another folder")
    content: dict[str, Any] = {}
    splits = dataset if isinstance(dataset, dict) and dataset else {"train": dataset}
    for name, rows in splits.items():
        split = {"validation": "val"}.get(name, name)
        columns = getattr(rows, "features", {})
        fields = _element(columns.get("objects", {}))
        label = next((key for key in LABELS if key in fields), "")
        has_columns = "image" in columns and label and "bbox" in fields
        if split not in SPLIT_NAMES or not has_columns:
            raise InputError(
                f"save_hugging_face: the split {name} has the columns {list(columns)}; give a"
                " Dataset with `image` and `objects` (`bbox`, `category`), or a DatasetDict of"
                " train, validation and test"
            )
        _save_split(rows, target.parent / split, label, bbox_format == "xyxy")
        content[split] = f"{split}/metadata.jsonl"
        if names := getattr(_element(fields[label]), "names", None):
            content["names"] = names
    write_atomically(target, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return target


def _element(feature: Any) -> Any:
    """The feature of the elements of a list, or of a list of lists."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return feature


def _save_split(rows: Any, folder: Path, label: str, corners: bool) -> None:
    """Images, each named by the number of its row, and metadata.jsonl."""
    from datasets import Image  # who has a Dataset has it

    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for k, row in enumerate(rows.cast_column("image", Image(decode=False)).with_format(None)):
        path = Path(row["image"]["path"] or "")
        try:
            content = row["image"]["bytes"] or path.read_bytes()
        except OSError as e:
            raise InputError(f"save_hugging_face: {folder.name}, row {k}: {e}") from None
        objects = row["objects"] or []
        if isinstance(objects, list):
            objects = {key: [item[key] for item in objects] for key in ("bbox", label)}
        boxes = objects["bbox"]
        if corners:
            boxes = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in boxes]
        name = f"{k:06}{path.suffix or '.png'}"
        (folder / name).write_bytes(content)
        labels = {"bbox": boxes, "category": objects[label]}
        lines.append(json.dumps({"file_name": name, "objects": labels}) + "\n")
    write_atomically(folder / "metadata.jsonl", "".join(lines))
