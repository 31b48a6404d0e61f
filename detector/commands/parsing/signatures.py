"""The options that a class or function takes, read from its source: importing what takes torch
takes seconds."""

import ast
from collections.abc import Iterator
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from docstring_parser import parse

OF_THE_TRAINER = {
    "self",
    "trainer",
    "model",
    "datamodule",
    "dataloaders",
    "train_dataloaders",
    "val_dataloaders",
}


class Option(NamedTuple):
    """default: as it is typed, "" for None or where there is none · choices: of a Literal · help:
    from the docstring · required: has no default."""

    name: str
    default: str
    choices: tuple[str, ...]
    help: str
    required: bool = False


def load(place: str) -> Any:
    """Import what stands at `package.module:Class`, `...:Class.method` or `...:function`."""
    module, _, path = place.partition(":")
    return reduce(getattr, path.split("."), import_module(module))


@cache
def options_of(place: str) -> tuple[Option, ...]:
    """The parameters of `package.module:Class` (of its __init__, or its fields), `...:Class.method`
    or `...:function`. Those of a dataclass among them follow as `name.field`.

    >>> [o.name for o in options_of("boltbox.detector.system.ranges:check_ranges")]
    ['options', 'group']
    """
    module, _, path = place.partition(":")
    node: ast.AST = _tree(module)
    for name in path.split("."):
        node = next(n for n in ast.iter_child_nodes(node) if getattr(n, "name", None) == name)
    return tuple(_options(module, node))


@cache
def _tree(module: str) -> ast.Module:
    """Of a module's file, without importing the module."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    assert spec is not None, module
    assert spec.submodule_search_locations, module
    paths = (Path(folder).joinpath(*rest) for folder in spec.submodule_search_locations)
    path = next(p for p in paths if p.is_dir() or p.with_suffix(".py").is_file())
    return ast.parse(
        (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(
            encoding="utf-8"
        )
    )


def _options(module: str, node: ast.AST) -> Iterator[Option]:
    if isinstance(node, ast.ClassDef):
        init = next(
            (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None
        )
        helps = _docstring_help(node) | (_docstring_help(init) if init else {})
        given = _parameters(init) if init else _fields(node)
    else:
        assert isinstance(node, ast.FunctionDef)
        helps, given = _docstring_help(node), _parameters(node)
    for name, annotation, default in given:
        if name in OF_THE_TRAINER:
            continue
        yield Option(
            name,
            _value(default),
            _choices(module, annotation),
            helps.get(name, ""),
            default is None,
        )
        group = _dataclass(module, annotation)
        if group:
            yield from (o._replace(name=f"{name}.{o.name}") for o in _options(*group))


def _parameters(
    function: ast.FunctionDef,
) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    positional, defaults = function.args.args, function.args.defaults
    padded = (
        [None] * (len(positional) - len(defaults))
        + list(defaults)
        + list(function.args.kw_defaults)
    )
    for argument, default in zip([*positional, *function.args.kwonlyargs], padded, strict=True):
        yield argument.arg, argument.annotation, default


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id, line.annotation, line.value


def _docstring_help(node: ast.ClassDef | ast.FunctionDef) -> dict[str, str]:
    docstring = parse(ast.get_docstring(node) or "")
    return {p.arg_name: " ".join((p.description or "").split()) for p in docstring.params}


def _value(default: ast.expr | None) -> str:
    try:
        value = None if default is None else ast.literal_eval(default)
    except ValueError:  # made by a call
        return ""
    return typed(value)


def typed(value: object) -> str:
    """As people type it; "" for None."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _choices(module: str, annotation: ast.expr | None) -> tuple[str, ...]:
    if isinstance(annotation, ast.Name):
        annotation = _assigned(module, annotation.id)
    if (
        isinstance(annotation, ast.Subscript)
        and isinstance(annotation.value, ast.Name)
        and annotation.value.id == "Literal"
    ):
        return tuple(str(value) for value in _constants(annotation.slice))
    return ("true", "false") if isinstance(annotation, ast.Name) and annotation.id == "bool" else ()


def _constants(node: ast.expr) -> Iterator[object]:
    for part in node.elts if isinstance(node, ast.Tuple) else [node]:
        if isinstance(part, ast.Constant):
            yield part.value


def _assigned(module: str, name: str) -> ast.expr | None:
    """What a module of ours gives a name, itself or where it imports it from."""
    found, home = _found(module, name)
    if isinstance(found, ast.Assign):
        return found.value
    return ast.Name(name) if home == module else None


def _dataclass(module: str, annotation: ast.expr | None) -> tuple[str, ast.ClassDef] | None:
    if not isinstance(annotation, ast.Name):
        return None
    found, home = _found(module, annotation.id)
    is_data = isinstance(found, ast.ClassDef) and any(
        "dataclass" in ast.dump(d) for d in found.decorator_list
    )
    return (home, found) if is_data and isinstance(found, ast.ClassDef) else None


def _found(module: str, name: str) -> tuple[ast.stmt | None, str]:
    """The statement that defines a name, and the module where it stands."""
    for line in _tree(module).body:
        if isinstance(line, ast.ClassDef) and line.name == name:
            return line, module
        if isinstance(line, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in line.targets
        ):
            return line, module
        ours = isinstance(line, ast.ImportFrom) and (line.module or "").startswith(
            f"{module.split('.')[0]}."
        )
        if (
            ours
            and isinstance(line, ast.ImportFrom)
            and any(alias.name == name for alias in line.names)
        ):
            return _found(line.module or "", name)
    return None, module
