"""The recipe as a plain loop without Lightning, and a small training under Lightning to compare
with it."""

import copy

import lightning as L
import numpy as np
import torch
from made_options import made_detector
from original_recipe import MODEL
from torch import nn

from boltbox.detector.data.sample import Batch
from boltbox.detector.training.optimizer import OptimOptions
from boltbox.detector.training.schedule import (
    accumulation,
    effective_weight_decay,
    ema_decay,
)

# warm-up of 7 iterations, a third of all, then windows of 4; 7 does not divide by 4
BATCH = 16
BATCHES = 7
EPOCHS = 3
CLIP = 0.5


def batches():
    rng = torch.Generator().manual_seed(0)
    made = []
    for _ in range(BATCHES):
        images = torch.rand(BATCH, 3, 32, 32, generator=rng)
        targets = torch.rand(20, 6, generator=rng)
        targets[:, 0] = torch.arange(20) % BATCH
        targets[:, 1] = torch.arange(20) % 2
        targets[:, 4:] = targets[:, 4:] * 0.3 + 0.1
        made.append(Batch(images, targets, list(range(BATCH)), [None] * BATCH, [None] * BATCH))
    return made


def small_detector(**options):
    torch.manual_seed(0)
    small = {"width_multiple": 0.01, "depth_multiple": 0.1}
    return made_detector(["a", "b"], image_size=64, batch_size=BATCH, **small | MODEL | options)


def plain_loop(module, scaler, literal):
    """The recipe as spec 3 tells it, without Lightning: weights, average, iterations that
    stepped."""
    network = module.network
    h = module.hparams["optim"]
    decay = effective_weight_decay(h["weight_decay"], 64, BATCH)
    optimizer = OptimOptions("SGD", h["lr0"], 0.01, h["momentum"], decay).build(network, BATCH)
    average = copy.deepcopy(network)
    updates = 0
    stepped = []
    last_step = -1
    last = 100 if literal else BATCHES * EPOCHS // 3

    def lr_of(epoch):
        return h["lr0"] * ((1 - epoch / EPOCHS) * (1 - h["lrf"]) + h["lrf"])

    network.train()
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        lr = lr_of(epoch)
        late = lr_of(max(epoch - literal, 0))
        for group in optimizer.param_groups:
            group["lr"] = late
            group["momentum"] = h["momentum"]
        for i, batch in enumerate(batches()):
            iteration = epoch * BATCHES + i
            accumulate = accumulation(64, BATCH)
            if iteration <= last:
                done = iteration / last
                accumulate = max(1, round(1 + done * (64 / BATCH - 1)))
                for group in optimizer.param_groups:
                    start = 0.1 if group["name"] == "bias" else 0.0
                    group["lr"] = float(np.interp(iteration, (0, last), (start, lr)))
                    group["momentum"] = float(np.interp(iteration, (0, last), (0.8, h["momentum"])))
            with torch.autocast("cpu", torch.half, enabled=scaler is not None, cache_enabled=False):
                total, _ = module.loss(network(batch.images), batch.targets, network.head)
            (scaler.scale(total) if scaler else total).backward()
            if iteration - last_step >= accumulate or (i == BATCHES - 1 and not literal):
                if scaler:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(network.parameters(), CLIP)
                if scaler:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                optimizer.zero_grad()
                stepped.append(iteration)
                last_step = iteration
                updates = updates + 1
                with torch.no_grad():
                    for a, w in zip(
                        average.state_dict().values(), network.state_dict().values(), strict=True
                    ):
                        if a.is_floating_point():
                            a.lerp_(w, 1 - ema_decay(updates))
    return network.state_dict(), average.state_dict(), stepped


class Steps(L.Callback):
    """Which iterations ended in a real optimizer step."""

    def __init__(self):
        self.taken = []

    def on_train_start(self, trainer, pl_module):
        trainer.optimizers[0].register_step_post_hook(
            lambda *_: self.taken.append(trainer.fit_loop.total_batch_idx)
        )


def spawn(processes, **options):
    return L.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp_fork" if processes > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
