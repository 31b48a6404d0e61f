"""What a data.yaml gives, or a folder without one, as the fields of a DatasetFile."""

from collections import Counter
from os.path import exists, isdir
from pathlib import Path
from typing import Any

from boltbox.detector.data.formats import FORMATS, VocXml, format_class
from boltbox.detector.system.errors import InputError


def read_content(path: Path, content: dict[str, Any], format: str | None) -> dict[str, Any]:
    """
    Args:
        path: of the data.yaml. content: what it holds. format: instead of the key.

    Raises:
        InputError: naming the file and the key.
    """
    given = Path(str(content.get("path") or "."))
    root = next(filter(isdir, (path.parent / given, given)), None)
    if root is None:
        raise InputError(
            f"{path}: path '{given}' is neither a folder beside this file nor one from here"
        )
    splits = {}
    for split in ("train", "val", "test"):
        # relative to the root, else to the data.yaml, else to the current folder
        places = [(root / e, path.parent / e, Path(e)) for e in _listed(content, split)]
        if places:
            splits[split] = [next(filter(exists, of), of[0]) for of in places]
    if not splits:
        raise InputError(f"{path}: none of the keys train, val, test is given")
    kind = format or str(content.get("format") or _guess_format(root, splits))
    if not format and kind not in FORMATS:
        raise InputError(
            f"{path}: format '{kind}' is not known; choose from {', '.join(FORMATS)}, or for a"
            f" class of your own give --data.format {kind}"
        )
    more = {
        "images": [root / folder for folder in _listed(content, "images")],
        "keep_difficult": bool(content.get("keep_difficult")),
    }
    return _with_names(path, root, kind, splits, _read_names(path, content)) | more


def read_folder(root: Path) -> dict[str, Any]:
    """
    Raises:
        InputError: it is no folder with VOC annotations.
    """
    splits = VocXml.find_splits(root)
    if not splits:
        raise InputError(
            f"data.dataset {root}: this folder holds neither a data.yaml nor images with VOC"
            " annotations (JPEGImages or images with Annotations/*.xml, or xml files beside"
            " the images); for other labels write a data.yaml"
        )
    return _with_names(root, root, "voc", splits, None)


def _with_names(
    source: Path, root: Path, kind: str, splits: dict[str, list[Path]], names: list[str] | None
) -> dict[str, Any]:
    """The fields that say where labels are, with the names in them if none are given."""
    found = format_class(kind).find_names(root, splits) if names is None else names
    if not found:
        raise InputError(
            f"{source}: the key `names` is missing, and no label names an object; give the class"
            " names as a list or a map"
        )
    places = {"root": root, "format": kind, "splits": splits}
    return places | {"names": found, "found_names": names is None}


def _listed(content: dict[str, Any], key: str) -> list[str]:
    """The paths of a key, which may be a single one."""
    value = content.get(key) or []
    return [str(entry) for entry in (value if isinstance(value, list) else [value])]


def _read_names(path: Path, content: dict[str, Any]) -> list[str] | None:
    """The key `names` as a list; a map must have the keys 0 to n - 1. `nc` alone gives numbers.
    None if there is neither.

    Args:
        path: of the data.yaml, for messages. content: what it holds.

    Raises:
        InputError: it cannot be used.
    """
    names, count = content.get("names"), content.get("nc")
    if names is None:
        return [str(number) for number in range(count)] if isinstance(count, int) else None
    if isinstance(names, dict):
        numbered = {str(key): name for key, name in names.items()}
        try:
            names = [numbered[str(number)] for number in range(len(names))]
        except KeyError:
            raise InputError(f"{path}: `names` must have the keys 0 to {len(names) - 1}") from None
    if not isinstance(names, list):
        raise InputError(f"{path}: `names` must be a list or a map of class names, not {names!r}")
    names = [str(name) for name in names]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(
            f"{path}: `names` holds {twice[0]!r} twice; every class needs its own name"
        )
    if count is not None and count != len(names):
        raise InputError(
            f"{path}: nc is {count}, but `names` has {len(names)} entries; leave nc out or"
            " correct it"
        )
    return names


def _guess_format(root: Path, splits: dict[str, list[Path]]) -> str:
    """By the first path of the first split."""
    first = next(iter(splits.values()))[0]
    if first.suffix == ".json":
        return "coco"
    return "voc" if VocXml.recognises(root, first) else "yolo"
