"""What a data.yaml says, or a folder without one."""

from collections import Counter
from pathlib import Path
from typing import Any

from boltbox.detector.data.formats import FORMATS, format_class
from boltbox.detector.data.formats.format import Format
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.text_file import exists, is_dir


def read_content(path: Path, content: dict[str, Any], format: str | None) -> dict[str, Any]:
    """The fields of a DatasetFile but its source. path: of the data.yaml. content: what it holds.
    format: instead of the key.

    Raises:
        InputError: naming the file and the key.
    """
    root = Path(str(content.get("path") or "."))
    root = next((p for p in (path.parent / root, root) if is_dir(p)), None) or path.parent / root
    if not is_dir(root):
        raise InputError(
            f"{path}: path '{content['path']}' is neither a folder beside this file nor one"
            " from here"
        )
    splits = {}
    for split in ("train", "val", "test"):
        entries = content.get(split) or []
        entries = entries if isinstance(entries, list) else [entries]
        splits[split] = [_resolve(root, path.parent, str(entry)) for entry in entries]
    splits = {split: paths for split, paths in splits.items() if paths}
    if not splits:
        raise InputError(f"{path}: none of the keys train, val, test is given")
    kind = format or str(content.get("format") or _guess_format(root, splits))
    if not format and kind not in FORMATS:
        way = (
            f"; it is code of your own, which no data file can load: give --data.format {kind}"
            if "." in kind
            else ""
        )
        raise InputError(
            f"{path}: format '{kind}' is not known; choose from {', '.join(FORMATS)}{way}"
        )
    folders = content.get("images") or []
    folders = [root / str(f) for f in (folders if isinstance(folders, list) else [folders])]
    given = _read_names(path, content)
    names = _found_names(format_class(kind), root, splits) if given is None else given
    if not names:
        raise InputError(
            f"{path}: the key `names` is missing; give the class names as a list or a"
            f" map{_hint(root, kind)}"
        )
    keep = {key: bool(content.get(key, False)) for key in ("keep_difficult", "keep_emptied")}
    return keep | {
        "root": root,
        "format": kind,
        "names": names,
        "splits": splits,
        "images": folders,
        "found_names": given is None and not format_class(kind).lists_names,
    }


def read_folder(root: Path, format: str | None) -> dict[str, Any]:
    """The fields of a DatasetFile, of a folder without a data.yaml."""
    kinds = [format] if format else FORMATS
    kind, splits = next(
        ((k, found) for k in kinds if (found := format_class(k).find_splits(root))), ("", {})
    )
    if not splits:
        raise InputError(
            f"data.dataset {root}: this folder holds neither a data.yaml nor images with VOC"
            " annotations (JPEGImages or images with Annotations/*.xml, or xml files beside"
            " the images); for other labels write a data.yaml"
        )
    names = _found_names(format_class(kind), root, splits)
    if not names:
        raise InputError(
            f"data.dataset {root}: none of its annotations can be read and names an object"
        )
    return {
        "root": root,
        "format": kind,
        "names": names,
        "splits": splits,
        "found_names": not format_class(kind).lists_names,
    }


def _read_names(path: Path, content: dict[str, Any]) -> list[str] | None:
    """The key `names` as a list; a map must have the keys 0 to n - 1. `nc` alone gives numbers.
    None if there is neither.

    Args:
        path: of the data.yaml, for messages. content: what it holds.

    Raises:
        InputError: it cannot be used.
    """
    names, count = content.get("names"), content.get("nc")
    if isinstance(names, dict):
        try:
            numbered = {int(k): v for k, v in names.items()}
        except (TypeError, ValueError, OverflowError):
            numbered = {}
        if sorted(numbered) != list(range(len(names))):
            raise InputError(f"{path}: `names` must have the keys 0 to {len(names) - 1}")
        names = [numbered[k] for k in range(len(numbered))]
    if names is None and isinstance(count, int):
        names = list(range(count))
    if names is None:
        return None
    if not isinstance(names, list):
        raise InputError(f"{path}: `names` must be a list or a map of class names, not {names!r}")
    names = [str(n) for n in names]
    if len(set(names)) != len(names):
        twice = next(n for n, times in Counter(names).items() if times > 1)
        raise InputError(f"{path}: `names` holds '{twice}' twice; every class needs its own name")
    if count is not None and count != len(names):
        raise InputError(
            f"{path}: nc is {count}, but `names` has {len(names)} entries; leave nc out or"
            " correct it"
        )
    return names


def _resolve(root: Path, beside: Path, entry: str) -> Path:
    """A split's path: relative to the root, else to the description file, else to the current
    folder."""
    return next((p for p in (root / entry, beside / entry, Path(entry)) if exists(p)), root / entry)


def _guess_format(root: Path, splits: dict[str, list[Path]]) -> str:
    first = next(iter(splits.values()))[0]
    return next(name for name, form in reversed(FORMATS.items()) if form.recognises(root, first))


def _found_names(form: type[Format], root: Path, splits: dict[str, list[Path]]) -> list[str]:
    names = form.find_names(root, splits)
    return names if form.lists_names else sorted(names)


def _hint(root: Path, kind: str) -> str:
    """What a reader of the labels as YOLO text should know."""
    xml = next(root.rglob("*.xml"), None) if kind == "yolo" else None
    return (
        f" (or, if the xml files here are the labels, like {xml}, set `format: voc`, which finds"
        " the names)"
        if xml
        else ""
    )
