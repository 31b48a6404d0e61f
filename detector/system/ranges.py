"""Types of options that are numbers within bounds, which the command line checks. Values stay int
and float, as checkpoints hold them."""

from functools import partial
from typing import Any

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
    register_type,
    restricted_number_type,
)

AboveZero = restricted_number_type("AboveZero", float, [(">", 0), ("<=", 1)])
BelowOne = restricted_number_type("BelowOne", float, [(">=", 0), ("<", 1)])
Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**32)])  # that NumPy takes


def _plain(kind: Any, value: Any) -> int | float:
    try:
        return kind._type(kind(value))
    except (TypeError, ValueError):
        raise ValueError(f"Got value: {value}") from None


for _kind in (
    AboveZero,
    BelowOne,
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
    Seed,
):
    register_type(_kind, _kind._type, partial(_plain, _kind))
