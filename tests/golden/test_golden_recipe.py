"""Schedule, warm-up, accumulation, moving average, early stopping, and whole training runs."""

from functools import partial
from types import SimpleNamespace

import lightning as L
import numpy as np
import torch
from golden.cases import close, detector, each, write_images
from made_options import made_detector
from made_runs import column
from original_recipe import MODEL, yolov5_average
from plain_loop import spawn
from torch import nn
from torch.utils.data import DataLoader

from boltbox.callbacks import EMA, EarlyStop, Warmup
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import collate
from boltbox.detector.model.network import NetworkOptions
from boltbox.detector.training.module import Detector
from boltbox.detector.training.schedule import effective_weight_decay, ema_decay
from boltbox.detector.training.trainer_options import ends_in_step
from boltbox.detector.weights.yolov5 import by_our_names, key_map


class Recorder(L.Callback):
    """What the optimizer is told in every iteration. Comes after Warmup."""

    def __init__(self):
        self.rows = []
        self.epochs = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        groups = trainer.optimizers[0].param_groups
        betas = groups[0].get("betas", [None])
        row = {
            "lr": column(groups, "lr"),
            "momentum": groups[0].get("momentum", betas[0]),
            "stepped": ends_in_step(trainer, batch_idx),
            "epoch": trainer.current_epoch,
            "batch": batch,
        }
        self.rows.append(row)

    def on_train_batch_end(self, trainer, pl_module, outputs, *_):
        self.rows[-1]["loss"] = outputs["loss"].item()

    def on_train_epoch_end(self, trainer, pl_module):
        self.epochs.append({k: float(v) for k, v in trainer.callback_metrics.items()})

    def column(self, name):
        return np.array([row[name] for row in self.rows])


def options(case):
    """A Detector's and Warmup's options from the hyper-parameters of a case."""
    meta = case.meta
    hyp = meta["hyp_full"]
    freeze = meta.get("freeze", 0)
    # one number: so many first layers; several: these layers
    if isinstance(freeze, list) and len(freeze) == 1:
        (freeze,) = freeze
    names = "lr0 lrf momentum weight_decay box obj cls cls_pw obj_pw anchor_t fl_gamma"
    return MODEL | {
        "batch_size": meta["batch_size"],
        "optimizer": meta.get("optimizer", "SGD"),
        "lr_schedule": "cosine" if meta["cos_lr"] else "linear",
        "nominal_batch_size": meta.get("nbs", 64),
        "freeze": freeze,
        "literal": True,
        **{name: hyp[name] for name in names.split()},
    }


def literal_warmup(case):
    hyp = case.meta["hyp_full"]
    return Warmup(hyp["warmup_epochs"], hyp["warmup_momentum"], hyp["warmup_bias_lr"])


def trainer(epochs, callbacks):
    afresh = {"reload_dataloaders_every_n_epochs": 1, "precision": "32-true"}
    return spawn(1, max_epochs=epochs, gradient_clip_val=10.0, callbacks=callbacks, **afresh)


class Featherweight(Detector):
    """A Detector whose training step costs nothing: schedules of thousands of iterations run in
    seconds."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch

    def training_step(self, batch, batch_idx):
        parameters = self.network.head.convs[0].parameters()
        return {
            "loss": sum(p.sum() for p in parameters) * 0.0 * self.trainer.accumulate_grad_batches
        }


@each("schedule")
def test_schedule(case):
    meta = case.meta
    module = made_detector(["a"], width_multiple=0.0625, kind=Featherweight, **options(case))
    for layer in (module.network.backbone, module.network.neck):
        layer.requires_grad_(False)
    recorder = Recorder()
    trainer(meta["epochs"], [literal_warmup(case), recorder]).fit(
        module,
        DataLoader(range(meta["nb"] * meta["batch_size"]), meta["batch_size"]),
    )
    close(recorder.column("lr"), case["out_lr"], 0, 1e-12)
    close(recorder.column("momentum"), case["out_momentum"], 0, 1e-12)
    assert recorder.column("stepped").tolist() == case["out_stepped"].astype(bool).tolist()
    assert recorder.column("epoch").tolist() == case["out_epoch"].tolist()
    decay = effective_weight_decay(
        meta["hyp_full"]["weight_decay"], meta.get("nbs", 64), meta["batch_size"]
    )
    close(decay, case["out_effective_weight_decay"], 0, 1e-12)
    groups = module.trainer.optimizers[0].param_groups
    close(column(groups, "weight_decay"), case["out_group_weight_decay"], 0, 1e-12)


AVERAGED = {
    "0.weight": "weight",
    "0.bias": "bias",
    "1.running_mean": "running_mean",
    "1.num_batches_tracked": "num_batches",
}


@each("ema")
def test_ema(case, monkeypatch):
    start = case.meta.get("start_updates", 0)
    decay = case.meta.get("decay", 0.9999)
    tau = case.meta.get("tau", 2000)
    decays = [ema_decay(n, decay, tau) for n in case.meta["updates_list"]]
    close(decays, case["out_decay_at"], 1e-12)

    module = Detector(["a"], network=NetworkOptions(width_multiple=0.0625))
    network = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
    network[0].weight = nn.Parameter(case.tensor("in_weight_seq")[0])
    module.network = network

    def become(step):
        for name, key in AVERAGED.items():
            network.state_dict()[name].copy_(case.tensor(f"in_{key}_seq")[step])

    become(0)
    monkeypatch.setattr("boltbox.callbacks.ema.ema_decay", partial(ema_decay, tau=tau))
    ema = EMA(decay)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    stub = SimpleNamespace(optimizers=[optimizer])
    ema.setup(stub, module, "fit")
    ema.on_train_start(stub, module)
    ema.updates = start
    for k in range(len(case["out_updates"])):
        become(k + 1)
        optimizer.step()
        average = module.ema.state_dict()
        for name, key in AVERAGED.items():
            close(average[name], case[f"out_ema_{key}"][k], 1e-5)
        assert ema.updates == int(case["out_updates"][k])


@each("earlystop")
def test_early_stopping(case):
    patience = case.meta["patience"]
    stopper = EarlyStop(patience=patience)
    best = -1
    strategy = SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision)
    stub = SimpleNamespace(fast_dev_run=False, strategy=strategy, world_size=1)
    for epoch, fitness in enumerate(case["in_fitness"]):
        stub.callback_metrics = {"val/fitness": torch.tensor(fitness)}
        stub.current_epoch = epoch
        stub.should_stop = False
        before = stopper.best_score.clone()
        stopper._run_early_stopping_check(stub)
        if stopper.best_score > before:
            best = epoch
        assert stub.should_stop == bool(case["out_stop"][epoch]), epoch
        is_near = patience > 0 and stopper.wait_count >= patience - 1
        assert is_near == bool(case["out_possible_stop"][epoch])
        assert best == int(case["out_best_epoch"][epoch])


class RecordedOrder(DetectionData):
    """The data of a case, in the order in which the original saw it, unaugmented."""

    recorded: np.ndarray

    def train_dataloader(self):
        trainer = self.trainer
        epoch = trainer.current_epoch
        rows = np.split(self.recorded, trainer.max_epochs)[epoch]
        batches = [row[row >= 0].tolist() for row in rows]
        return DataLoader(self.datasets["train"], batch_sampler=batches, collate_fn=collate)


@each("e2e")
def test_training_trace(case, tmp_path, monkeypatch):
    """Some epochs from the same weights on the same batches give the same losses, weights, averages
    and figures."""
    meta = case.meta
    for split in ("train", "val"):
        image_of = case[f"in_{split}_label_image"]
        images = case[f"in_{split}_images"]
        labels = [case[f"in_{split}_labels"][image_of == i] for i in range(len(images))]
        write_images(tmp_path, split, images, labels)
    file = tmp_path / "data.yaml"
    file.write_text(f"train: images/train\nval: images/val\nnames: {case.names()}\n")
    data = RecordedOrder(str(file), meta["imgsz"], meta["batch_size"], workers=0)
    data.recorded = case["out_order"]
    given = options(case) | {"label_smoothing": meta["label_smoothing"]}
    module = detector(case, image_size=meta["imgsz"], **given)
    # in channels-last memory torch's batch norm is off by up to 4e-4 on a CPU
    module.network.to(memory_format=torch.contiguous_format)
    module.network.load_state_dict(by_our_names(module.network, case.tensors("in_w::")))
    recorder = Recorder()
    ema = yolov5_average()
    training = trainer(meta["epochs"], [literal_warmup(case), ema, recorder])
    training.fit(module, data)
    for i, row in enumerate(recorder.rows):
        theirs = case["out_batch_targets_iter_img_cls_xywh"]
        close(row["batch"].targets, theirs[theirs[:, 0] == i][:, 1:], 1e-5)
    close(recorder.column("lr"), case["out_lr"], 0, 1e-12)
    assert recorder.column("stepped").tolist() == case["out_stepped"].astype(bool).tolist()
    close(recorder.column("loss"), case["out_loss"], 0, 1e-4)
    assert ema.updates == int(case["out_ema_updates"])
    ours = key_map(module.network)
    for prefix, network in (("out_model::", module.network), ("out_ema::", module.ema)):
        state = network.state_dict()
        for name, theirs in case.tensors(prefix).items():
            if "num_batches_tracked" not in name:
                close(state[ours[name]], theirs, 5e-4)
    theirs = case["out_epoch_results_P_R_m50_map_box_obj_cls"]
    parts = ("box_loss", "obj_loss", "cls_loss")
    for epoch, metrics in enumerate(recorder.epochs):
        figures = [metrics[f"val/{name}"] for name in ("P", "R", "mAP50", "mAP50-95")]
        close(figures, theirs[epoch, :4], 0.02)
        close([metrics[f"val/{part}"] for part in parts], theirs[epoch, 4:], 1e-3)
        close(metrics["val/fitness"], case["out_epoch_fitness"].ravel()[epoch], 0.02)
        means = [metrics[f"train/{part}"] for part in parts]
        close(means, case["out_epoch_mean_losses"][epoch], 1e-7, 1e-4)
