"""Telling the user something, once, whatever the number of processes."""

from lightning.fabric.utilities import rank_zero_only

say = rank_zero_only(print)
