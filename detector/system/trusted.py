"""Which code a file may name. A run folder or a checkpoint may be somebody else's: what it names is
imported only if it belongs to boltbox or to a library that boltbox uses, or if the user trusts
it."""

import inspect
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pkgutil import resolve_name
from typing import Any

from jsonargparse import Namespace, set_parsing_settings

# its import policy can be set, but not taken back
from jsonargparse._common import parsing_settings

from boltbox.detector.system.errors import InputError

PACKAGES = ("boltbox", "lightning", "torch", "timm", "albumentations", "torchvision")
ALL = "*"
trusted = {*PACKAGES}  # in this process

# no class of another library is called as a transform is
TRANSFORMS = "boltbox.detector.data.transforms."
TAKE_CLASSES = ("model.", "trainer.", "data ", "data.augment.", "data.format")
IMPORT_PATH = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?![\w./-])")


@contextmanager
def trusting(packages: Iterable[str] = (), everything: bool = False) -> Iterator[None]:
    """While this lasts, trust, besides PACKAGES, those that the user named on the command line, or
    files with whatever they name (--trust_parts)."""
    before = set(trusted)
    trusted.clear()
    trusted.update(PACKAGES, packages, [ALL] if everything else [])
    try:
        yield
    finally:
        trusted.clear()
        trusted.update(before)


def package_of(path: str) -> str:
    """The top-level package of an import path."""
    return path.partition(".")[0]


def may_import(path: str) -> bool:
    """Whether a class that a file names may be looked up: it is trusted, or its module was imported
    for another reason."""
    return bool({package_of(path), ALL} & trusted) or path.rpartition(".")[0] in sys.modules


def refusal(option: str, path: str) -> str:
    """Of a class that is not imported: what it is, and what to do."""
    return (
        f"{option} names {path}, which is not part of boltbox and is not used because a file"
        " names it; if you trust that code, name it on the command line too or add --trust_parts"
        " true"
    )


def paths_in(options: Mapping[str, Any]) -> set[str]:
    """What looks like the import path of a class or function among options as they are typed; to
    type it is to trust it."""
    texts = (str(v) for name, v in options.items() if f"{name} ".startswith(TAKE_CLASSES))
    found = {path for text in texts for path in IMPORT_PATH.findall(text)}
    return {path for path in found if not os.path.exists(path)}


@contextmanager
def only_from_trusted() -> Iterator[None]:
    """While this lasts the parser imports nothing that a value names but from trusted packages;
    what `torch.os.system` leads to is not of torch."""
    before = dict(parsing_settings)
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=[*trusted])
    try:
        yield
    finally:
        parsing_settings.update(before)


def needs_trust(options: Namespace) -> bool:
    """Whether a resume of a run with these options has to be trusted with code of others."""
    return any(package_of(path) not in PACKAGES for _, path in _named(options, ""))


def check_classes(options: Namespace, typed: Collection[str], file: str) -> None:
    """Whether all that options name, but what the user typed or what is of the same foreign
    package, is a class of a trusted package; that it is one of the kind which the option takes, the
    parser has checked, but for transforms. Nothing is called.

    Raises:
        InputError: it is not.
    """
    for option, path in _named(options, ""):
        package = package_of(path)
        if path in typed or package in trusted - {*PACKAGES}:
            continue
        kind: Any = None
        if package in PACKAGES:
            with suppress(ImportError, AttributeError, ValueError):
                kind = resolve_name(path)
        room = kind.__module__ if inspect.isclass(kind) else ""
        is_transform = room.startswith(TRANSFORMS) or not option.startswith("data.augment.after")
        if package_of(room) not in PACKAGES or not is_transform:
            raise InputError(f"{file}: {refusal(option, path)}")


def _named(value: Any, option: str) -> Iterator[tuple[str, str]]:
    """Option and import path of each class and function among options."""
    if isinstance(value, Namespace | Mapping):
        for key, inner in (vars(value) if isinstance(value, Namespace) else value).items():
            if key == "__path__" or (key == "config" and not option):
                continue  # files that options were read from
            if key == "class_path":
                yield option, str(inner)
            else:
                yield from _named(inner, f"{option}.{key}" if option else str(key))
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _named(inner, option)
    elif option == "data.format" and value and "." in value:
        yield option, value
    elif callable(value):
        yield option, f"{value.__module__}.{getattr(value, '__qualname__', '')}"
