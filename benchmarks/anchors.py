"""How long AutoAnchor takes for a million labels, and how much memory.

python -m benchmarks.anchors
"""

import resource
import time

import numpy as np

from boltbox.detector.model.anchors import choose_anchors, default_anchors, measure

LABELS, GENERATIONS = 1_000_000, 1000


def main() -> None:
    rng = np.random.default_rng(0)
    # flat boxes that the default anchors fit badly
    sizes = np.exp(rng.normal((3.5, 2.0), (0.8, 0.9), (LABELS, 2)))
    anchors = np.array(default_anchors((3, 4, 5))).reshape(3, 3, 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    choice = choose_anchors(anchors, (8, 16, 32), sizes, generations=GENERATIONS)
    seconds = time.perf_counter() - start
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    old, new = (measure(a.reshape(-1, 2), sizes) for a in (anchors, choice.anchors))
    print(
        f"{LABELS} labels, {anchors.size // 2} anchors, {GENERATIONS} generations: {seconds:.1f} s,"
        f" {more:.2f} GiB on top"
    )
    print(f"BPR {old.bpr:.4f} -> {new.bpr:.4f}, fitness {old.fitness:.4f} -> {new.fitness:.4f}")


if __name__ == "__main__":
    main()
