"""The names of public datasets, such as `--data.dataset coco128`."""

from os.path import exists
from pathlib import Path
from typing import Any

from boltbox.detector.system.text_file import load_yaml

# by name, the keys of a data.yaml, `archives` (address: SHA-256) and `licence`
PUBLIC: dict[str, dict[str, Any]] = load_yaml(Path(__file__).with_suffix(".yaml").read_text())


def public_name(source: str) -> str:
    """The public dataset that the user means; "" if none, or if a file or folder has that name.

    Args:
        source: As the user typed it, with or without `.yaml`.

    >>> public_name("coco128.yaml"), public_name("pets")
    ('coco128', '')
    """
    name = source.removesuffix(".yaml")
    return name if name in PUBLIC and not exists(source) else ""
