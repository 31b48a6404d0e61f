"""Which code a file may name. A run folder or a checkpoint may be somebody else's: what it names is
imported only if it belongs to boltbox or to a library that boltbox uses, or if the user trusts
it."""

import os
import sys

PACKAGES = ("boltbox", "lightning", "torch", "timm", "albumentations", "torchvision")
typed_packages: set[str] = set()  # of what the user named on the command line
VARIABLE = "BOLTBOX_TRUST_PARTS"  # set by --trust_parts, for this process and those that it starts


def trust_parts(everything: bool) -> None:
    """Say whether files may name any code from now on (--trust_parts)."""
    os.environ[VARIABLE] = "true" if everything else ""


def trusts_everything() -> bool:
    """What `trust_parts` said last."""
    return bool(os.environ.get(VARIABLE))


def package_of(path: str) -> str:
    """The top-level package of an import path."""
    return path.partition(".")[0]


def may_import(path: str) -> bool:
    """Whether a class that a file names may be looked up: it is of PACKAGES, the command line
    named its package, its module was imported for another reason, or files may name any code."""
    return (
        package_of(path) in {*PACKAGES, *typed_packages}
        or path.rpartition(".")[0] in sys.modules
        or trusts_everything()
    )


def refusal(option: str, path: str) -> str:
    """Of a class that is not imported: what it is, and what to do."""
    return (
        f"{option} names {path}, which is not part of boltbox and is not imported because a file"
        " names it; if you trust that code, name it on the command line too or add --trust_parts"
        " true"
    )
