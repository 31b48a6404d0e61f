"""Classes that a run's config.yaml names, before anything of them is imported or called."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

from jsonargparse import Namespace, set_parsing_settings

# its import policy can be set, but not taken back
from jsonargparse._common import parsing_settings

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.trusted import PACKAGES, package_of, refusal
from boltbox.detector.weights.hyper_parameters import PARTS

# no class of another library is called as a transform is
TRANSFORMS = "boltbox.detector.data.transforms."
_DENIED = re.compile(r"Importing '([\w.]+)' is not allowed")
_WRONG = re.compile(r"Expected '([\w.]+)' to be a|Import path ([\w.]+) does not correspond")


def paths_named(options: Namespace) -> set[str]:
    """The import paths of all classes and functions that options name."""
    return {path for _, path, _ in _named(options, "")}


def foreign_packages(paths: Collection[str]) -> set[str]:
    """The top-level packages of import paths that are not in PACKAGES."""
    return {package_of(path) for path in paths} - set(PACKAGES)


@contextmanager
def only_from(typed: Collection[str], file: str) -> Iterator[None]:
    """While this lasts the parser imports nothing that a value names but from PACKAGES and the
    packages of what the user typed; what `torch.os.system` leads to is not of torch.

    Raises:
        InputError: for a value that names something else; it says which option and what to do.
    """
    before = dict(parsing_settings)
    allowed = [*PACKAGES, *foreign_packages(typed)]
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=allowed)
    try:
        yield
    except (InputError, ImportError) as e:
        keys = [key for key in re.findall(r'Parser key "([\w.]+)"', str(e)) if key != "config"]
        option = keys[0] if keys else "an option"
        if denied := _DENIED.search(str(e)):
            raise InputError(f"{file}: {refusal(option, denied[1])}") from None
        if wrong := _WRONG.search(str(e)):
            problem = "which is not what it takes, so it is not called; correct the file"
            raise InputError(f"{file}: {option} names {wrong[1] or wrong[2]}, {problem}") from None
        raise
    finally:
        parsing_settings.update(before)


def check_classes(options: Namespace, typed: Collection[str], file: str) -> None:
    """Whether all that options name, but what the user typed or what is of the same foreign
    package, is what the option takes. Nothing is called.

    Raises:
        InputError: a function, or a class of another kind.
    """
    trusted = foreign_packages(typed)
    for option, path, found in _named(options, ""):
        if path in typed or package_of(path) in trusted:
            continue
        if package_of(path) not in PACKAGES:
            raise InputError(f"{file}: {refusal(option, path)}")
        try:
            kind = resolve_name(path) if found is None else found
        except (ImportError, AttributeError, ValueError) as e:
            raise InputError(f"{file}: {option} names {path}, which is not found ({e})") from None
        base = PARTS.get(option.removeprefix("model."))
        if not inspect.isclass(kind) or package_of(kind.__module__) not in PACKAGES:
            problem = "is not a class of its own"
        elif base is not None and not issubclass(kind, base):
            problem = f"is no subclass of {base.__module__}.{base.__name__}"
        elif option.startswith("data.augment.after") and not kind.__module__.startswith(TRANSFORMS):
            problem = f"is not a transform ({TRANSFORMS}...)"
        else:
            continue
        raise InputError(
            f"{file}: {option} names {path}, which {problem}, so it is not called; correct the"
            " file, or name it on the command line if it is meant so"
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
    elif callable(value):
        yield (
            option,
            f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}",
            value,
        )
