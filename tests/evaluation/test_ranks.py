"""The figures of several processes are those of one, to the bit."""

import os
import pickle

import numpy as np
import torch
import torch.distributed as dist
from made_detections import random_set
from ranks import together

from boltbox.detector.evaluation.metrics import DetectionMetrics

IMAGES = 21


def evaluate(folder, rank, ranks):
    """Two images a batch; the last ones are evaluated twice, as by a sampler that fills shares."""
    detections, truths = random_set(np.random.default_rng(5), IMAGES, crowds=0.2, ties=True)
    metrics = DetectionMetrics(3)
    for start in range(2 * rank, IMAGES, 2 * ranks):
        batch = slice(start, start + 2)
        losses = {"box": torch.tensor(start / 7)}
        metrics.update(detections[batch], truths[batch], range(IMAGES)[batch], losses)
    metrics.update(detections[-2:], truths[-2:], range(IMAGES)[-2:], {"box": torch.tensor(9.0)})
    metrics.gather()
    if rank == 0:
        result = metrics.compute()
        content = [result.summary, result.coco_by_class, result.indices, result.losses]
        content += list(vars(result.by_class).values()) + list(vars(result.record).values())
        (folder / f"{ranks}.pickle").write_bytes(pickle.dumps(content))


def in_a_group(folder, ranks):
    dist.init_process_group(
        "gloo", init_method="env://", rank=int(os.environ["LOCAL_RANK"]), world_size=ranks
    )
    evaluate(folder, dist.get_rank(), ranks)
    dist.destroy_process_group()


def test_ranks(tmp_path):
    evaluate(tmp_path, 0, 1)
    together(in_a_group, tmp_path, 8, ranks=8)
    one = pickle.loads((tmp_path / "1.pickle").read_bytes())
    many = pickle.loads((tmp_path / "8.pickle").read_bytes())
    for a, b in zip(one, many, strict=True):
        assert pickle.dumps(a) == pickle.dumps(b)
