"""Callbacks of the recipe: they read the Trainer's state, call a pure function of `detector`, write the result."""

from callbacks.early_stop import EarlyStop
from callbacks.ema import EMA
from callbacks.warmup import Warmup

__all__ = ["EMA", "EarlyStop", "Warmup"]
