"""Custom parts, which users choose by class_path and init_args: to plain types, which a checkpoint
holds, and back.

A class_path from a file is not trusted: only subclasses of our base classes are called, and a
module is imported only if the file may name it (`system.trusted`).
"""

import importlib
import inspect
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from boltbox.detector.system.configuration import plain
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.trusted import may_import, refusal

PartConfig = Mapping[str, Any]  # {"class_path": "my_parts.MyHead", "init_args": {...}}
T = TypeVar("T")


def part_config(choice: object, base: type, option: str) -> dict[str, Any] | None:
    """A custom part as plain types.

    Args:
        choice: None; a class; functools.partial of a class and keyword arguments; or what this
            function returns.
        base: the class must be a subclass of this.
        option: for messages, like "model.network.head".

    Returns:
        None, or {"class_path": ..., "init_args": {...}}.

    Raises:
        InputError: something else, a class that cannot be imported, or arguments that a checkpoint
            cannot hold.
    """
    if choice is None:
        return None
    init_args: dict[str, Any] = {}
    kind = choice
    if isinstance(choice, Mapping):
        kind = find_part(choice, base, option)
        init_args.update(choice.get("init_args") or {})
    elif isinstance(choice, partial):
        # jsonargparse gives a partial of a function of its own, with the class among its arguments
        classes = filter(inspect.isclass, (choice.func, *choice.args))
        kind = next(classes, choice.func)
        init_args.update(choice.keywords)
    checked: type = _check_subclass(kind, base, option)
    if "." in checked.__qualname__:
        raise InputError(
            f"{option}: a checkpoint cannot name {checked.__qualname__}; define the class at the"
            " top level of a file"
        )
    init_args = plain(init_args)
    try:
        json.dumps(init_args)
    except (TypeError, ValueError) as e:
        raise InputError(f"{option}.init_args: a checkpoint cannot hold this ({e})") from None
    return {"class_path": f"{checked.__module__}.{checked.__qualname__}", "init_args": init_args}


def find_part(config: PartConfig, base: type[T], option: str) -> type[T]:
    """Import the class of a part; nothing is called.

    Args:
        config: class_path and init_args.
        base: the class must be a subclass of this.
        option: for messages.

    Raises:
        InputError: there is no such class, it may not be imported (`may_import`), or it is no
            subclass of `base`.
    """
    path = config.get("class_path")
    if not isinstance(path, str) or not isinstance(config.get("init_args") or {}, Mapping):
        raise InputError(
            f"{option}: give class_path, like my_parts.MyClass, and init_args, a map of its"
            " arguments"
        )
    module, _, name = path.rpartition(".")
    message = f"{option} {path} is not found"
    if not module:
        raise InputError(f"{message}: give its module too, as in my_parts.{path}")
    if not may_import(path):
        raise InputError(f"{refusal(option, path)} (in a script: import {module} first)")
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except Exception as e:  # whatever a file of the user's raises
        raise InputError(
            f"{message}: importing {module} fails ({type(e).__name__}: {e}); put the folder of its"
            " file into PYTHONPATH, or install its package"
        ) from e
    if kind is None:
        hint = "; define it in a module, not in a script" if module == "__main__" else ""
        raise InputError(f"{message}: {module} has no class {name}{hint}")
    return _check_subclass(kind, base, option)


def build_part(config: PartConfig, base: type[T], option: str, *arguments: Any) -> T:
    """Make a part.

    Args:
        config: what `part_config` returns.
        base: see `find_part`.
        option: for messages.
        arguments: of the class, before its init_args.

    Raises:
        InputError: see `find_part`; or the class does not take these arguments.
    """
    kind = find_part(config, base, option)
    try:
        return kind(*arguments, **config["init_args"])
    except (TypeError, ValueError) as e:
        raise InputError(f"{option}: {config['class_path']} cannot be made ({e})") from e


def _check_subclass(kind: object, base: type[T], option: str) -> type[T]:
    if not inspect.isclass(kind) or not issubclass(kind, base):
        raise InputError(
            f"{option}: give a class, or functools.partial of one, that is a subclass of"
            f" {base.__module__}.{base.__name__}, not {getattr(kind, '__name__', kind)}"
        )
    return kind
