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

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.trusted import PACKAGES, package_of, refusal, trusted

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
    return any(package_of(path) not in PACKAGES for _, path, _ in _named(options, ""))


def check_classes(options: Namespace, typed: Collection[str], file: str) -> None:
    """Whether all that options name, but what the user typed or what is of the same foreign
    package, is a class of a trusted package; that it is one of the kind which the option takes, the
    parser has checked, but for transforms. Nothing is called.

    Raises:
        InputError: it is not.
    """
    for option, path, found in _named(options, ""):
        if path in typed or package_of(path) in trusted - {*PACKAGES}:
            continue
        if package_of(path) not in PACKAGES:
            raise InputError(f"{file}: {refusal(option, path)}")
        try:
            kind = resolve_name(path) if found is None else found
        except (ImportError, AttributeError, ValueError):
            kind = None
        is_ours = inspect.isclass(kind) and package_of(kind.__module__) in PACKAGES
        if option.startswith("data.augment.after"):
            is_ours = is_ours and kind.__module__.startswith(TRANSFORMS)
        if not is_ours:
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
