"""Classes that a run's config.yaml names, before anything of them is imported or called."""

import inspect
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

from jsonargparse import Namespace, set_parsing_settings

# its import policy can be set, but not taken back
from jsonargparse._common import parsing_settings

from boltbox.detector.model.assigner import Assigner
from boltbox.detector.model.box_coder import BoxCoder
from boltbox.detector.model.head import Head
from boltbox.detector.model.loss import Loss
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.trusted import PACKAGES, package_of, refusal, typed_packages

PARTS: dict[str, type] = {  # chosen by class_path
    "network.head": Head,
    "network.box_coder": BoxCoder,
    "loss.assigner": Assigner,
    "loss.function": Loss,
}
# no class of another library is called as a transform is
TRANSFORMS = "boltbox.detector.data.transforms."
TAKE_CLASSES = ("model.", "trainer.", "data.augment.", "data.format")
IMPORT_PATH = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?![\w./-])")


def paths_in(options: Mapping[str, Any]) -> set[str]:
    """What looks like the import path of a class or function among options as they are typed; to
    type it is to trust it."""
    texts = [str(value) for name, value in options.items() if name.startswith(TAKE_CLASSES)]
    found = {path for text in texts for path in IMPORT_PATH.findall(text)}
    return {path for path in found if not os.path.exists(path)}


def paths_named(options: Namespace) -> set[str]:
    """The import paths of all classes and functions that parsed options name."""
    return {path for _, path, _ in _named(options, "")}


def foreign_packages(paths: Collection[str]) -> set[str]:
    """The top-level packages of import paths that are not in PACKAGES."""
    return {package_of(path) for path in paths} - set(PACKAGES)


@contextmanager
def only_from_trusted() -> Iterator[None]:
    """While this lasts the parser imports nothing that a value names but from PACKAGES and the
    packages of what the user typed; what `torch.os.system` leads to is not of torch."""
    before = dict(parsing_settings)
    allowed = [*PACKAGES, *typed_packages]
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=allowed)
    try:
        yield
    finally:
        parsing_settings.update(before)


def check_classes(options: Namespace, typed: Collection[str], file: str) -> None:
    """Whether all that options name, but what the user typed or what is of the same foreign
    package, is what the option takes. Nothing is called.

    Raises:
        InputError: a function, or a class of another kind.
    """
    for option, path, found in _named(options, ""):
        package = package_of(path)
        if path in typed or package in typed_packages - set(PACKAGES):
            continue
        if package not in PACKAGES:
            raise InputError(f"{file}: {refusal(option, path)}")
        try:
            kind = resolve_name(path) if found is None else found
        except (ImportError, AttributeError, ValueError) as e:
            raise InputError(f"{file}: {option} names {path}, which is not found ({e})") from None
        base = PARTS.get(option.rpartition(".")[2], object)
        fits = inspect.isclass(kind) and package_of(kind.__module__) in PACKAGES
        if option.startswith("data.augment.after"):
            fits = fits and kind.__module__.startswith(TRANSFORMS)
        if not fits or not issubclass(kind, base):
            raise InputError(
                f"{file}: {option} names {path}, which is not what it takes, so it is not called;"
                " correct the file, or name it on the command line if it is meant so"
            )


def _named(value: Any, option: str) -> Iterator[tuple[str, str, Any]]:
    """Option, import path and, if the parser has it already, the object of each class and function
    among options."""
    if isinstance(value, Namespace | Mapping):
        for key, inner in (vars(value) if isinstance(value, Namespace) else value).items():
            if key == "__path__" or (key == "config" and not option):
                continue  # files that options were read from
            if key == "class_path":
                yield option, str(inner), None
            else:
                yield from _named(inner, f"{option}.{key}" if option else str(key))
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _named(inner, option)
    elif option == "data.format" and value and "." in value:
        yield option, value, None
    elif callable(value):
        name = getattr(value, "__qualname__", type(value).__qualname__)
        yield option, f"{value.__module__}.{name}", value
