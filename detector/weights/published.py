"""Weights by the name of their file, fetched from who published them when there is no such file.

Checksums are the publishers' own; where none is known, those within the file are compared when it
is read. docs/weights.md has sizes and accuracies.
"""

import re
import sys
from collections.abc import Sequence
from os.path import isfile
from pathlib import Path
from typing import NamedTuple
from zipfile import is_zipfile

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print

AGPL = "AGPL-3.0"  # of YOLOv5's weights, https://www.ultralytics.com/license
AGPL_IN_PRODUCTS = (
    "Ultralytics holds that AGPL-3.0 extends to models trained from its weights: a product or"
    " service with such a model has to publish its whole source under that licence, or needs"
    " Ultralytics' enterprise licence (this is no legal advice)"
)


class Publication(NamedTuple):
    """A file that somebody publishes.

    Attributes:
        address: Where it is.
        sha256: Of the whole file; None: not known.
        licence: As its authors name it.
    """

    address: str
    sha256: str | None
    licence: str


_YOLOV5 = "https://github.com/ultralytics/yolov5/releases/download/v7.0"
_YOLOX = "https://github.com/Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0"
_SHA256 = {
    "yolov5n": "4f180cf23ba0717ada0badd6c685026d73d48f184d00fc159c2641284b2ac0a3",
    "yolov5s": "8b3b748c1e592ddd8868022e8732fde20025197328490623cc16c6f24d0782ee",
    "yolov5m": "61d933360ba5a7733a36764996c800287d973889d875227f5beedd2473a97a56",
    "yolov5l": "2f603b7354c25454d1270663a14d8ddc1eea98e5eebc1d84ce0c6e3150fa155f",
    "yolov5x": None,
    "yolov5n6": "496c05a2b991da15acc6c4408c63da287f2513a46c6756618776d4dd71170781",
    "yolov5s6": "95bda9019ada63f37338308d0c81a66047a6fbaba061abaff271ba9334cf2a6f",
    "yolov5m6": "7afe7fa0f29a8351467200a2a5a33c7996d1155ed6636c7edd8ca70b14951c64",
    "yolov5l6": "b357b77f646b0190912985937c44e2923441369d5fda69ba86da2aa919212618",
    "yolov5x6": None,
}
PUBLISHED: dict[str, Publication] = {}  # by the name of the file
for _name, _sha256 in _SHA256.items():
    PUBLISHED[f"{_name}.pt"] = Publication(f"{_YOLOV5}/{_name}.pt", _sha256, AGPL)
for _size in ("nano", "tiny", "s", "m", "l", "x"):
    _name = f"yolox_{_size}.pth"
    PUBLISHED[_name] = Publication(f"{_YOLOX}/{_name}", None, "Apache-2.0")

# later networks, and YOLOv5's other tasks and heads
_OTHERS = re.compile(r"(yolov?(?!5)\d.*|yolov5[nsmlx]6?(u|-seg|-cls)|rtdetr.*)\.(pt|yaml)")


def unfit(name: str) -> str:
    """Why published weights of this name do not fit this network, "" if they may.

    Args:
        name: Of the file.

    >>> unfit("yolo11n.pt")[:38], unfit("yolov5n.pt")
    ('yolo11n.pt does not fit this network; ', '')
    """
    if isfile(name) or not _OTHERS.fullmatch(name):
        return ""
    return (
        f"{name} does not fit this network; yolov5n.pt does, and in a fit yolox_nano.pth too"
        " (docs/weights.md)"
    )


def local_file(path: str | Path) -> Path:
    """Find a file of weights; one of PUBLISHED is fetched into torch.hub's cache (TORCH_HOME) if it
    is neither here nor there.

    Args:
        path: The file, or a name in PUBLISHED.

    Returns:
        The path itself, or that of the file in the cache.

    Raises:
        InputError: it cannot be fetched, is another file than was published, or see `unfit`.
    """
    name = str(path)
    why = unfit(name)
    if why:
        raise InputError(why)
    if isfile(path) or name not in PUBLISHED:
        return Path(path)
    import torch  # takes seconds, and a command line asks for the names before it

    address, sha256, licence = PUBLISHED[name]
    file = Path(torch.hub.get_dir(), "checkpoints", name)
    if file.is_file():
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(address, str(file), sha256, progress=sys.stderr.isatty())
        if not is_zipfile(file):  # the end of a zip file is its table of contents
            file.unlink()
            raise OSError("the file is incomplete")
    except (OSError, RuntimeError) as e:  # no network; another checksum
        raise InputError(
            f"{name}: no such file here, and it could not be fetched from {address} ({e});"
            " download it and give its path"
        ) from None
    rank_zero_print(f"{name}: fetched from {address} ({licence}) to {file}")
    return file


def describe_origins(origins: Sequence[tuple[str, str]]) -> str:
    """One line on the weights of a trained network.

    Args:
        origins: Source and licence of what they started from.

    >>> describe_origins([])
    'trained from scratch'
    >>> describe_origins([("best.ckpt", "unknown"), ("timm/resnet18.a1_in1k", "apache-2.0")])
    'started from best.ckpt (licence: unknown) and timm/resnet18.a1_in1k (licence: apache-2.0)'
    >>> describe_origins([("yolov5n.pt", AGPL)])[:47]
    'started from yolov5n.pt (licence: AGPL-3.0). Ul'
    """
    if not origins:
        return "trained from scratch"
    sources = [f"{source} (licence: {licence})" for source, licence in origins]
    line = f"started from {' and '.join(sources)}"
    licences = [licence for _, licence in origins]
    return f"{line}. {AGPL_IN_PRODUCTS}" if AGPL in licences else line
