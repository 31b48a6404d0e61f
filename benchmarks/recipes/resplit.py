"""A VOC data set whose images are divided anew, at random, into splits of the same sizes.

    python -m benchmarks.recipes.resplit BCCD runs/splits 6

makes runs/splits/split1 to split6. Images and annotations are links to the set's own.
"""

import random
import sys
from pathlib import Path

SPLITS = ("train", "val", "test")
LISTS = "ImageSets/Main"


def resplit(source: Path, folder: Path, seed: int) -> Path:
    """One division, decided by the seed: the same names in each split for the same seed."""
    given = {name: (source / LISTS / f"{name}.txt").read_text().split() for name in SPLITS}
    images = sorted(image for split in given.values() for image in split)
    shuffled = iter(random.Random(seed).sample(images, len(images)))
    new = folder / f"split{seed}"
    (new / LISTS).mkdir(parents=True)
    for part in ("JPEGImages", "Annotations"):
        (new / part).symlink_to((source / part).resolve())
    for name, split in given.items():
        chosen = sorted(next(shuffled) for _ in split)
        (new / LISTS / f"{name}.txt").write_text("\n".join(chosen) + "\n")
    return new


if __name__ == "__main__":
    for seed in range(1, int(sys.argv[3]) + 1):
        print(resplit(Path(sys.argv[1]), Path(sys.argv[2]), seed))
