"""The machine and the code that results come from."""

import functools
import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from boltbox.detector.system.operating_system import available_cores, total_memory


@functools.cache  # each checkpoint has them
def versions() -> dict[str, str]:
    """Of Python and the libraries that numbers depend on."""
    names = ("torch", "torchvision", "lightning", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def host() -> dict[str, Any]:
    """What measured times depend on.

    Returns:
        processor; cores: that may be used; memory: GiB, None if it is not known; gpus: their
        names; OMP_NUM_THREADS; versions.
    """
    memory = total_memory()
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "memory": None if memory is None else round(memory / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "versions": versions(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    model = re.search(r"model name\s*: (.*)", text)
    return model[1] if model else platform.machine()


def described(host: dict[str, Any]) -> str:
    """The facts of `host` as one line."""
    versions = host["versions"]
    facts = [f"{host['cores']} cores of {host['processor']}"]
    if host["memory"] is not None:
        facts.append(f"{host['memory']:g} GiB")
    for name in sorted(set(host["gpus"])):
        facts.append(f"{host['gpus'].count(name)} x {name}")
    if not host["gpus"]:
        facts.append("no GPU")
    facts.append(f"torch {versions['torch']}, lightning {versions['lightning']}")
    facts.append(f"OMP_NUM_THREADS {host['OMP_NUM_THREADS']}")
    return ", ".join(facts)
