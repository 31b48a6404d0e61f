"""The same command gives the same weights, whatever loads the data."""

import made_runs
import torch
from made_networks import same
from made_runs import load

FEW = "--data.batch_size 4 --trainer.limit_train_batches 2 --trainer.limit_val_batches 1"
ONE_EPOCH = "--trainer.max_epochs 1"


def train(data, run, options):
    """Weights, average, momentum."""
    made_runs.train(data, run, f"{FEW} {options}")
    content = load(run / "checkpoints/last.ckpt")
    tensors = content["state_dict"]
    for number, state in content["optimizer_states"][0]["state"].items():
        tensors |= {f"{number} {name}": tensor for name, tensor in state.items()}
    return tensors


def test_frozen_layers_do_not_move(small_data, tmp_path, capfd):
    """Weights and, by default, the statistics of their batch norms; YOLOv5 lets the statistics
    move."""
    more = f"--model.start.freeze 10 --warmup.warmup_epochs 0 --trainer.limit_val_batches 0 {ONE_EPOCH}"
    start = train(small_data, tmp_path / "start", f"{more} --model.optim.lr0 0")
    frozen = train(small_data, tmp_path / "frozen", more)
    assert "model.start.freeze 10\n" in capfd.readouterr().out
    moving = train(small_data, tmp_path / "moving", f"{more} --model.literal true")
    backbone = [name for name in start if name.startswith("network.backbone.")]
    for name in backbone:
        assert torch.equal(start[name], frozen[name])
    head = "network.head.convs.0.weight"
    assert not torch.equal(start[head], frozen[head])
    weight = "network.backbone.stem.conv.weight"
    assert torch.equal(start[weight], moving[weight])
    mean = "network.backbone.stem.bn.running_mean"
    assert not torch.equal(start[mean], moving[mean])


RANDOM = """--config albumentations --data.augment.mixup 0.5 --data.batch_size 5
--model.multi_scale true --data.image_weights true --model.loss.fl_gamma 1.5
--data.tile_size 128"""


def test_workers_do_not_matter_but_the_seed_does(small_data, tmp_path):
    options = f"{RANDOM} {ONE_EPOCH}"
    alone = train(small_data, tmp_path / "alone", options)
    workers = train(small_data, tmp_path / "workers", f"{options} --data.workers 2")
    assert same(alone, workers)
    assert all(tensor.isfinite().all() for tensor in alone.values())
    other = train(small_data, tmp_path / "other", f"{options} --seed_everything 1")
    stem = "network.backbone.stem.conv.weight"
    assert not torch.equal(alone[stem], other[stem])
