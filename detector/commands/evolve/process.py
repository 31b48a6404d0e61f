"""Which process is at work on a trial, and whether it still is."""

import os
import socket
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process among all of all machines.

    Attributes:
        host: name of its machine, for people.
        table: of processes, that its number belongs to: differs between machines, after a restart of one, between containers.
        number: process id.
        begun: clock ticks from the machine's start to the process's; another process with its number has another.
    """

    host: str
    table: str
    number: int
    begun: int

    @classmethod
    def this(cls) -> "Process":
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(socket.gethostname(), f"{boot} {os.readlink('/proc/self/ns/pid')}", os.getpid(), begun(os.getpid()) or 0)

    def gone(self, seen_from: "Process") -> bool:
        """Whether another process can tell that this one has ended; of other machines' processes it cannot."""
        return self.table == seen_from.table and begun(self.number) != self.begun


def begun(number: int) -> int | None:
    """When a process began, or None if there is none of this number, or only what its parent has not yet asked about."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
