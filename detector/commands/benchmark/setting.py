"""What a benchmark varies."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")  # most exact first


@dataclass(frozen=True)
class Setting:
    """One row: precision, strategy, devices, loader processes of each device."""

    precision: str
    strategy: str
    devices: int
    workers: int

    def options(self) -> list[str]:
        """For the command line of `fit`."""
        values = {"precision": self.precision, "strategy": self.strategy, "devices": str(self.devices)}
        return [*(x for k, v in values.items() for x in (f"--trainer.{k}", v)), "--data.workers", str(self.workers)]

    def __str__(self) -> str:
        devices = "1 device" if self.devices == 1 else f"{self.devices} devices ({self.strategy})"
        return f"{self.precision}, {devices}, {self.workers} worker{'' if self.workers == 1 else 's'}"


def settings(precisions: Sequence[str], strategy: str, devices: Sequence[int], cores: int, workers: int) -> list[Setting]:
    """All combinations, those that tell most first: the plain one (first precision and number of devices, most workers), those
    that differ from it in one thing, in two, in all.

    Args:
        strategy: Of several devices.
        devices: Numbers of devices.
        cores: The processor's; the devices share them.
        workers: Most workers a device.
    """
    ranked = []
    for (p, precision), (d, count) in product(enumerate(precisions), enumerate(devices)):
        ladder = worker_counts(min(workers, max(cores // count, 1)))
        for w, number in enumerate(ladder):
            setting = Setting(precision, strategy if count > 1 else "auto", count, number)
            ranked.append(((p > 0) + (d > 0) + (w > 0), setting))
    return [setting for _, setting in sorted(ranked, key=lambda r: r[0])]


def worker_counts(most: int) -> list[int]:
    """`most`, then 0, 2, 4, 8, ... below it.

    >>> worker_counts(6), worker_counts(1), worker_counts(0)
    ([6, 0, 2, 4], [1, 0], [0])
    """
    doubled = [0, *(2**k for k in range(1, most.bit_length()))]
    return [most, *(n for n in doubled if n < most)]
