"""What an exported file says of itself: enough to feed it images and to read its output."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from boltbox.detector.model.origin import Origin
from boltbox.detector.system.errors import InputError

# LAYOUT is raised when a file's output or these fields change their meaning
PROGRAM, LAYOUT = "boltbox", 1
Precision = Literal["float32", "float16", "int8"]


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
    pixels; of a dynamic file that of the training · batch: images a call, as far as it is fixed ·
    dynamic: any batch, any height and width that are multiples of the stride · nms: None, or the
    suppression inside · precision: of the weights · model: the options of the network
    (`--model.network.size` and so on) · origins: source and licence of what its weights started
    from."""

    names: list[str]
    stride: int
    image_size: tuple[int, int]
    batch: int
    dynamic: bool
    nms: Suppression | None
    precision: Precision
    model: dict[str, Any]
    origins: list[dict[str, str]] = field(default_factory=list)

    def to_strings(self) -> dict[str, str]:
        """Keys and values as they stand in the file; each value is JSON, or a plain word."""
        nms = self.nms and self.nms._asdict()
        own = {
            **asdict(self),
            "nms": nms,
            "layout": LAYOUT,
            "box": "xyxy" if self.nms else "cxcywh",
        }
        return {
            "program": PROGRAM,
            "task": "detect",
            **{key: json.dumps(value) for key, value in own.items()},
        }

    @classmethod
    def from_strings(cls, path: object, strings: dict[str, str]) -> "Metadata":
        """The opposite of `to_strings`.

        Raises:
            InputError: the file is not of this program, or of a later one.
        """
        if strings.get("program") != PROGRAM:
            raise InputError(
                f"{path}: not a file of `export` (its metadata lack program = {PROGRAM}); export a"
                " checkpoint anew"
            )
        try:
            layout = json.loads(strings["layout"])
            if layout != LAYOUT:
                raise InputError(
                    f"{path}: exported with layout {layout}, but this version reads {LAYOUT};"
                    " export it anew"
                )
            height, width = (int(side) for side in json.loads(strings["image_size"]))
            nms, model = json.loads(strings["nms"]), json.loads(strings["model"])
            metadata = cls(
                [str(name) for name in json.loads(strings["names"])],
                int(json.loads(strings["stride"])),
                (height, width),
                int(json.loads(strings["batch"])),
                bool(json.loads(strings["dynamic"])),
                nms
                and Suppression(
                    float(nms["conf"]),
                    float(nms["iou"]),
                    int(nms["max_det"]),
                    bool(nms["agnostic"]),
                ),
                json.loads(strings["precision"]),
                {key: model[key] for key in model if key in MODEL_OPTIONS},
                [Origin(**entry)._asdict() for entry in json.loads(strings["origins"])],
            )
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise InputError(
                f"{path}: its metadata are damaged ({type(e).__name__}: {e}); export it anew"
            ) from None
        if min(metadata.batch, metadata.stride, height, width, len(metadata.names)) < 1:
            raise InputError(f"{path}: its metadata are damaged (a size below 1); export it anew")
        return metadata


MODEL_OPTIONS = ("size", "depth_multiple", "width_multiple", "levels", "activation", "backbone")
