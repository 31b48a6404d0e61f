"""Which code a file may name. A run folder or a checkpoint may be somebody else's: what it names is
imported only if it belongs to boltbox or to a library that boltbox uses, or if the user trusts
it."""

import sys
from collections.abc import Iterable

PACKAGES = ("boltbox", "lightning", "torch", "timm", "albumentations", "torchvision")
ALL = "*"
trusted = {*PACKAGES}  # in this process


def trust(packages: Iterable[str] = (), everything: bool = False) -> None:
    """Trust, besides PACKAGES, those that the user named on the command line, or files with
    whatever they name (--trust_parts)."""
    trusted.clear()
    trusted.update(PACKAGES, packages, [ALL] if everything else [])


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
        f"{option} names {path}, which is not part of boltbox and is not imported because a file"
        " names it; if you trust that code, name it on the command line too or add --trust_parts"
        " true"
    )
