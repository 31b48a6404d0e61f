"""The machine and the code that results come from."""

import functools
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


@functools.cache  # each checkpoint has them
def versions() -> dict[str, str]:
    """Of Python and the libraries that numbers depend on."""
    names = ("torch", "torchvision", "lightning", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def host() -> dict[str, Any]:
    """Processor, cores that may be used, memory in GiB, GPUs, threads asked for, load of the last
    minute, versions, and the commit of this source tree, with a + if it was changed; None outside
    git."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    try:
        commit = subprocess.check_output(git, text=True, stderr=subprocess.DEVNULL, timeout=10)
    except (OSError, subprocess.SubprocessError):
        commit = ""
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "load": round(os.getloadavg()[0], 1),
        "versions": versions(),
        "git": commit.strip() or None,
    }


def described(host: dict[str, Any]) -> str:
    """As one line."""
    names = sorted(set(host["gpus"]))
    gpus = ", ".join(f"{host['gpus'].count(name)} x {name}" for name in names) or "no GPU"
    known = host["versions"]
    return (
        f"{host['cores']} cores of {host['processor']}, {host['memory']:g} GiB, {gpus}, torch"
        f" {known['torch']}, lightning {known['lightning']}, OMP_NUM_THREADS"
        f" {host['OMP_NUM_THREADS']}, load {host['load']:g} before the start"
    )
