"""The machine that figures come from."""

import os
import platform
from pathlib import Path
from typing import Any

import lightning as L
import torch


def host() -> dict[str, Any]:
    """Processor, cores that may be used, memory in GiB, GPUs, threads asked for, load of the last
    minute, versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "load": round(os.getloadavg()[0], 1),
        "torch": str(torch.__version__),
        "lightning": str(L.__version__),
    }


def described(host: dict[str, Any]) -> str:
    """As one line."""
    names = sorted(set(host["gpus"]))
    gpus = ", ".join(f"{host['gpus'].count(name)} x {name}" for name in names) or "no GPU"
    threads = f"OMP_NUM_THREADS={host['OMP_NUM_THREADS']}, " if host["OMP_NUM_THREADS"] else ""
    return (
        f"{host['cores']} cores of {host['processor']}, {host['memory']:g} GiB, {gpus}, torch"
        f" {host['torch']}, lightning {host['lightning']}, {threads}load {host['load']:g} before"
        " the start"
    )
