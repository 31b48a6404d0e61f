"""Commands that torchrun has started: how many processes there are, and restarts after a crash."""

import os

from boltbox.detector.system.errors import InputError


def is_torchrun() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def processes_and_machines() -> tuple[int, int] | None:
    """Processes on this machine and number of machines, as torchrun has them; None in a process
    that it has not started."""
    if not is_torchrun() or "LOCAL_WORLD_SIZE" not in os.environ:
        return None
    processes = int(os.environ["LOCAL_WORLD_SIZE"])
    return processes, int(os.environ["WORLD_SIZE"]) // processes


def is_restart(run: str | None) -> bool:
    """Whether `torchrun --max-restarts` has started this process again after a crash: it is to
    continue from the last checkpoint of the run.

    The store of torchrun's agent still holds the addresses of the processes that have died, and a
    process that reads one before it is written anew cannot connect. So after a restart the process
    group gets a store of its own, at another port.

    Args:
        run: --run, the folder of the run.

    Raises:
        InputError: restarts are asked for, but a restart would not find the checkpoints of the run.
    """
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) and not run:
        raise InputError(
            "torchrun --max-restarts needs --run DIR, so that a restart finds the checkpoints of"
            " the run"
        )
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + restarts)
    return restarts > 0
