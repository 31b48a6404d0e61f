"""data.cache auto: whether the images of a training are kept in memory."""

from collections.abc import Iterable

import numpy as np

from boltbox.detector.data.cache.budget import free_memory
from boltbox.detector.data.cache.node import Node
from boltbox.detector.data.cache.store import Layout
from boltbox.detector.system.rank_zero import rank_zero_print

# the images take no more than this part of the memory that is free: the loader's workers and other
# work need some
SHARE = 4


def fits_in_memory(sizes: Iterable[np.ndarray], size: int, budget: int | None, node: Node) -> bool:
    """Whether all images have room, on every machine; prints a line where they have not.

    Args:
        sizes: (n, 2) height and width of the images of each split.
        size: their longer side in the store, in pixels.
        budget: most bytes on a machine, of which never more than four fifths of what is free are
            used; None: a quarter of that.
        node: its processes; all of them must ask alike.
    """
    needed = sum(Layout.within(2**62, of_split, size).most_bytes for of_split in sizes)
    free, limit = free_memory(), "a quarter of the memory that is free"
    most = free // SHARE
    if budget is not None:
        most, limit = min(
            (budget, "data.cache_budget"), (free * 4 // 5, "four fifths of the memory that is free")
        )
    fits = node.agree(needed <= most)
    if not fits:
        rank_zero_print(
            f"images are not cached: they would take {needed / 1e9:.3g} GB, more than {limit}"
            f" ({most / 1e9:.3g} GB); --data.cache ram or disk keeps as many as there is room for"
        )
    return fits
