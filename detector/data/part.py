"""A data set that names no validation images: a share of its training images is set aside, always
the same."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """One of the two parts of a list of images.

    Images are ranked by the SHA-256 of their path below `root`; the first ones are for validation.
    So the parts do not depend on the order of the list, on the machine or on where the folder lies,
    and a new image moves at most one other.

    share: of the images that is for validation · val: whether this is that part · root: folder of
    the data set.
    """

    share: float
    val: bool
    root: Path

    def of(self, paths: Sequence[str]) -> list[str]:
        """Those of the paths that belong to this part, in their order; each part has one at least,
        if there are two."""
        names = {path: os.path.relpath(path, self.root).replace(os.sep, "/") for path in paths}
        ranked = sorted(
            names, key=lambda path: sha256(names[path].encode(errors="surrogateescape")).digest()
        )
        count = min(max(round(len(ranked) * self.share), 1), len(ranked) - 1)
        chosen = set(ranked[: max(count, 0)])
        return [path for path in paths if (path in chosen) == self.val]
