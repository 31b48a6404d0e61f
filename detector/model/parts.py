"""Parts that a user chooses by class_path and init_args: as plain types, so that a checkpoint holds
them, and back.

A class_path that comes from a file is not trusted: nothing of it is called but a subclass of our
own base class, and its module is imported only if the file may name it (`system.trusted`).
"""

import importlib
import inspect
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from boltbox.detector.system.errors import InputError
from boltbox.detector.system.trusted import may_import, refusal

PartConfig = Mapping[str, Any]  # {"class_path": "my_parts.MyHead", "init_args": {...}}
T = TypeVar("T")


def part_config(choice: object, base: type, option: str) -> dict[str, Any] | None:
    """A choice as plain types.

    Args:
        choice: None; a class; functools.partial of a class and keyword arguments; or what this
            function returns.
        base: the class that it must be a subclass of.
        option: for messages, like "model.network.head".

    Returns:
        None, or {"class_path": ..., "init_args": {...}}.

    Raises:
        InputError: something else, a class that cannot be imported again, or arguments that a
            checkpoint cannot hold.
    """
    if choice is None:
        return None
    kind: type
    if isinstance(choice, Mapping):
        kind, init_args = find_part(choice, base, option), dict(choice.get("init_args") or {})
    else:
        kind, init_args = (
            _class_of(choice, base, option),
            dict(choice.keywords) if isinstance(choice, partial) else {},
        )
    if "." in kind.__qualname__:
        raise InputError(
            f"{option}: a checkpoint cannot name {kind.__qualname__}; define the class at the top"
            " level of a file"
        )
    try:
        json.dumps(init_args)
    except (TypeError, ValueError) as e:
        raise InputError(f"{option}.init_args: a checkpoint cannot hold this ({e})") from None
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": init_args}


def find_part(config: PartConfig, base: type[T], option: str) -> type[T]:
    """The class of a choice; nothing is called.

    Raises:
        InputError: there is none where class_path says, it may not be imported (`may_import`), or
            it is no subclass of `base`.
    """
    path = config.get("class_path")
    if not isinstance(path, str) or not isinstance(config.get("init_args") or {}, Mapping):
        raise InputError(
            f"{option}: give class_path, like my_parts.MyClass, and init_args, a map of its"
            " arguments"
        )
    module, _, name = path.rpartition(".")
    message = f"{option} is {path}, which is not found"
    advice = "put the folder of its file into PYTHONPATH, or install the package that it is in"
    if not module:
        raise InputError(f"{message}: the file is missing in it, as in my_parts.{path}")
    if not may_import(path):
        raise InputError(f"{refusal(option, path)} (in a script: import {module} first)")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as e:  # whatever a file of the user's raises
        raise InputError(
            f"{message}: importing {module} fails ({type(e).__name__}: {e}); {advice}"
        ) from e
    if found is None:
        hint = "; define it in a file of its own, not in a script" if module == "__main__" else ""
        raise InputError(f"{message}: {module} has no class {name}{hint}")
    return _check_subclass(found, base, option)


def build_part(config: PartConfig, base: type[T], option: str, *arguments: Any) -> T:
    """Call the class of a choice with these arguments and its init_args.

    Raises:
        InputError: see `find_part`; or the class does not take these arguments.
    """
    kind = find_part(config, base, option)
    try:
        return kind(*arguments, **(config.get("init_args") or {}))
    except (TypeError, ValueError) as e:
        raise InputError(f"{option}: {config['class_path']} cannot be made ({e})") from e


def _class_of(choice: object, base: type[T], option: str) -> type[T]:
    """jsonargparse gives a partial of a function of its own, with the class among its arguments."""
    given = [choice.func, *choice.args] if isinstance(choice, partial) else [choice]
    found = next((kind for kind in given if inspect.isclass(kind)), None)
    if found is None:
        raise InputError(
            f"{option}: give a class, or functools.partial(MyClass, name=value), not"
            f" {type(choice).__name__}"
        )
    return _check_subclass(found, base, option)


def _check_subclass(found: object, base: type[T], option: str) -> type[T]:
    if not inspect.isclass(found) or not issubclass(found, base):
        raise InputError(
            f"{option}: {getattr(found, '__name__', found)} is no subclass of"
            f" {base.__module__}.{base.__name__}"
        )
    return found
