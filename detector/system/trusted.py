"""Which code a file may name. A run folder or a checkpoint may be somebody else's: a class that it
names is imported only if it belongs to boltbox or a library that boltbox uses, or if the user
trusts it."""

import inspect
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

from jsonargparse import Namespace, set_parsing_settings

# its import policy can be set, but not taken back
from jsonargparse._common import parsing_settings

from boltbox.detector.system.errors import InputError

PACKAGES = ("boltbox", "lightning", "torch", "timm", "albumentations", "torchvision")
ALL = "*"
trusted = set(PACKAGES)  # in this process

# groups of options whose values may be classes
TAKE_CLASSES = ("model.", "trainer.", "data ", "data.augment.", "data.format")
IMPORT_PATH = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?![\w./-])")
TRANSFORMS = "boltbox.detector.data.transforms."


@contextmanager
def trusting(packages: Iterable[str] = (), everything: bool = False) -> Iterator[None]:
    """While this lasts, also trust other packages than PACKAGES.

    Args:
        packages: Those that the user named on the command line.
        everything: All packages (--trust_parts true).
    """
    before = set(trusted)
    trusted.clear()
    trusted.update(PACKAGES, packages)
    if everything:
        trusted.add(ALL)
    try:
        yield
    finally:
        trusted.clear()
        trusted.update(before)


def package_of(path: str) -> str:
    """The top-level package of an import path."""
    return path.partition(".")[0]


def may_import(path: str) -> bool:
    """Whether a class that a file names may be imported: its package is trusted, or its module is
    already imported."""
    if ALL in trusted or package_of(path) in trusted:
        return True
    return path.rpartition(".")[0] in sys.modules


def refusal(option: str, path: str) -> str:
    """The message for a class that is not imported."""
    return (
        f"{option} names {path}, which is not part of boltbox and is not used because a file"
        " names it; if you trust that code, name it on the command line too or add --trust_parts"
        " true"
    )


def paths_in(options: Mapping[str, Any]) -> set[str]:
    """The import paths of classes and functions among typed options; to type one is to trust it."""
    paths: set[str] = set()
    for name, value in options.items():
        if f"{name} ".startswith(TAKE_CLASSES):
            paths.update(IMPORT_PATH.findall(str(value)))
    return {path for path in paths if not os.path.exists(path)}


@contextmanager
def only_from_trusted() -> Iterator[None]:
    """While this lasts, the parser imports classes from trusted packages only. `torch.os.system` is
    none of torch."""
    before = dict(parsing_settings)
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=list(trusted))
    try:
        yield
    finally:
        parsing_settings.update(before)


def needs_trust(options: Namespace) -> bool:
    """Whether options name a class of another package than PACKAGES, so that resuming the run takes
    --trust_parts true."""
    return any(package_of(path) not in PACKAGES for _, path in _named(options, ""))


def check_classes(options: Namespace, typed: Collection[str], file: str) -> None:
    """Check that each class among options was typed or belongs to a trusted package. Nothing is
    called.

    Args:
        options: The parsed options. The parser has checked that a class is of the kind that its
            option takes, except for transforms.
        typed: Import paths that the user typed.
        file: That the options are from, for the message.

    Raises:
        InputError: One is neither.
    """
    for option, path in _named(options, ""):
        by_user = path in typed or package_of(path) in trusted.difference(PACKAGES)
        if not by_user and not _is_known_class(path, option):
            raise InputError(f"{file}: {refusal(option, path)}")


def _is_known_class(path: str, option: str) -> bool:
    """Whether it is a class, no function, that one of PACKAGES defines."""
    if package_of(path) not in PACKAGES:
        return False
    try:
        found = resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return False
    if not inspect.isclass(found):
        return False
    if option.startswith("data.augment.after"):  # any class can be called like a transform
        return found.__module__.startswith(TRANSFORMS)
    return package_of(found.__module__) in PACKAGES


def _named(value: Any, option: str) -> Iterator[tuple[str, str]]:
    """Option and import path of each class and function among options."""
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = f"{option}.{key}" if option else str(key)
            if key == "class_path":
                yield option, str(inner)
            elif key != "__path__" and name != "config":  # files that options were read from
                yield from _named(inner, name)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _named(inner, option)
    elif option == "data.format" and value and "." in value:
        yield option, value
    elif callable(value):
        yield option, f"{value.__module__}.{getattr(value, '__qualname__', '')}"
