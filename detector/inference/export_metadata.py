"""The metadata in an exported file: enough to feed it images and to read its output."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from boltbox.detector.model.origin import Origin

# LAYOUT is raised when a file's output or these fields change their meaning
PROGRAM, LAYOUT = "boltbox", 1
Precision = Literal["float32", "float16", "int8"]
MODEL_OPTIONS = ("size", "depth_multiple", "width_multiple", "levels", "activation", "backbone")


class Suppression(NamedTuple):
    """Non-maximum suppression within a file: see `boltbox.detector.model.postprocess.nms`; each box
    has its best class only."""

    conf: float
    iou: float
    max_det: int
    agnostic: bool


@dataclass(frozen=True)
class Metadata:
    """names: class names · stride: of height and width, in pixels · image_size: (height, width) in
    pixels; of a dynamic file that of the training · batch: images a call, unless dynamic ·
    dynamic: any batch, any height and width that are multiples of the stride · nms: None, or the
    suppression inside · precision: of the weights · model: the options of the network
    (MODEL_OPTIONS) · origins: source and licence of what its weights started from."""

    names: list[str]
    stride: int
    image_size: tuple[int, int]
    batch: int
    dynamic: bool
    nms: Suppression | None
    precision: Precision
    model: dict[str, Any]
    origins: list[Origin] = field(default_factory=list)

    def to_strings(self) -> dict[str, str]:
        """Keys and values as they stand in the file; each value is JSON, or a plain word."""
        values = vars(self) | {"layout": LAYOUT, "box": "xyxy" if self.nms else "cxcywh"}
        values["nms"] = self.nms and self.nms._asdict()
        values["origins"] = [origin._asdict() for origin in self.origins]
        strings = {key: json.dumps(value) for key, value in values.items()}
        return {"program": PROGRAM, "task": "detect", **strings}

    @classmethod
    def from_strings(cls, strings: Mapping[str, str]) -> "Metadata":
        """The opposite of `to_strings`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: the file is not of this program and
                version, or damaged.
        """
        if strings.get("program") != PROGRAM or json.loads(strings["layout"]) != LAYOUT:
            raise ValueError("not written by this version of `export`")
        values = {key: json.loads(strings[key]) for key in cls.__dataclass_fields__}
        height, width = values["image_size"]
        values["image_size"] = height, width
        values["nms"] = values["nms"] and Suppression(**values["nms"])
        values["model"] = {k: v for k, v in values["model"].items() if k in MODEL_OPTIONS}
        values["origins"] = [Origin(**entry) for entry in values["origins"]]
        metadata = cls(**values)
        if min(metadata.batch, metadata.stride, height, width, len(metadata.names)) < 1:
            raise ValueError("a size below 1")
        return metadata
