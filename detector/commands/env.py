"""The command `env`."""

import platform
from importlib.metadata import version

from boltbox.detector.system.host import described, host
from boltbox.detector.system.rank_zero import print_fact


def env() -> None:
    """Print what a report of a problem needs: versions, operating system, processor, GPUs."""
    print_fact("boltbox", version("boltbox"))
    print_fact("system", platform.platform())
    print_fact("machine", described(host()))
    for name, number in host()["versions"].items():
        print_fact(name, number)
