"""What a benchmark varies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")  # most exact first


@dataclass(frozen=True)
class Setting:
    """One row: precision, strategy, devices, loader processes of each device, whether the network
    is compiled, data.cache."""

    precision: str
    strategy: str
    devices: int
    workers: int
    compiled: bool = False
    cache: str = "auto"

    def options(self) -> list[str]:
        """For the command line of `fit`."""
        values = {
            "precision": self.precision,
            "strategy": self.strategy,
            "devices": str(self.devices),
        }
        given = [x for k, v in values.items() for x in (f"--trainer.{k}", v)]
        given += [
            "--model.compile",
            "true" if self.compiled else "false",
            "--data.cache",
            self.cache,
        ]
        return [*given, "--data.workers", str(self.workers)]

    def __str__(self) -> str:
        devices = "1 device" if self.devices == 1 else f"{self.devices} devices ({self.strategy})"
        compiled = ", compiled" if self.compiled else ""
        extras = compiled + ("" if self.cache == "auto" else f", cache {self.cache}")
        return (
            f"{self.precision}, {devices}, {self.workers}"
            f" worker{'' if self.workers == 1 else 's'}{extras}"
        )


def settings(
    precisions: Sequence[str],
    strategy: str,
    devices: Sequence[int],
    cores: int,
    workers: int,
    compilable: bool = False,
    cache: str = "auto",
) -> list[Setting]:
    """All combinations of the first three, and on the first number of devices with most workers
    those with compilation and without a cache. Those that tell most come first: the plain one
    (first precision and number of devices, most workers), those that differ from it in one thing,
    in two, in all.

    Args:
        strategy: Of several devices.
        devices: Numbers of devices.
        cores: The processor's; the devices share them.
        workers: Most workers a device.
        compilable: Compilation is tried too.
        cache: The user's data.cache; where it is auto, none is tried too.
    """
    ranked: list[tuple[float, Setting]] = []
    for (p, precision), (d, count) in product(enumerate(precisions), enumerate(devices)):
        ladder = worker_counts(min(workers, max(cores // count, 1)))
        for w, number in enumerate(ladder):
            setting = Setting(
                precision, strategy if count > 1 else "auto", count, number, cache=cache
            )
            ranked.append(((p > 0) + (d > 0) + (w > 0), setting))
            if compilable and d == w == 0:
                # it may take minutes
                ranked.append(((p > 0) + 1.5, replace(setting, compiled=True)))
            if cache == "auto" and p == d == w == 0:
                ranked.append((1.2, replace(setting, cache="none")))
    return [setting for _, setting in sorted(ranked, key=lambda r: r[0])]


def worker_counts(most: int) -> list[int]:
    """`most`, then 0, 2, 4, 8, ... below it.

    >>> worker_counts(6), worker_counts(1), worker_counts(0)
    ([6, 0, 2, 4], [1, 0], [0])
    """
    doubled = [0, *(2**k for k in range(1, most.bit_length()))]
    return [most, *(n for n in doubled if n < most)]
