"""Detector: the network, its loss and its optimizer as a LightningModule. Wiring only."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim import Optimizer

from boltbox.detector.checkpoint.resume import check_network
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.inputs.pictures import Image
from boltbox.detector.data.sample import Batch, rescaled
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.evaluation.loss_means import LossMeans
from boltbox.detector.evaluation.metrics import DetectionMetrics, Result
from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.exported import Exported
from boltbox.detector.inference.predictor import Predictor, load_ensemble
from boltbox.detector.model.loss_options import LossOptions
from boltbox.detector.model.loss_sums import LossSums
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.network_options import NetworkOptions
from boltbox.detector.model.origin import origins_of, to_plain
from boltbox.detector.model.sharding import is_sharded, shard
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.compilation import Choice, Compilation, compile_for
from boltbox.detector.training.gradient_window import GradientWindow, ends_in_step
from boltbox.detector.training.optimizer import OptimOptions, lr_share
from boltbox.detector.training.recipe import missing
from boltbox.detector.training.schedule import fitting_batch_size
from boltbox.detector.weights.start import StartOptions
from boltbox.detector.weights.torch_file import refused_unless_valid
from boltbox.detector.weights.trained import DETECTOR, read_trained

GROUPS = ("network", "loss", "optim", "start")
T = TypeVar("T")


def as_options(kind: type[T], given: T | Mapping[str, Any]) -> T:
    """A group of options, which a checkpoint holds as a map."""
    return kind(**given) if isinstance(given, Mapping) else given


# of a validation; a box may be a detection of several classes
VALIDATION = {"conf": 0.001, "iou": 0.6, "max_det": 300, "multi_label": True}


class Detector(L.LightningModule):
    """A YOLOv5 detector in training and validation.

    Gradients are sums over images, as in YOLOv5: they do not change with the number of devices, and
    accumulate as they are.

    Args:
        names: Class names; their number is the number of classes.
        network: Which network it is.
        loss: What it is trained on.
        optim: How it is trained.
        start: What it starts from, and which of that stays.
        literal: YOLOv5's accidents, for comparing runs number by number (docs/decisions.md).
        multi_scale: Vary the image size by +- 50 % from batch to batch.
        compile: Train with compiled blocks (torch.compile), which takes minutes at the first start.
            auto: as the run that is resumed, else without. `cli.py benchmark` measures whether it
            pays on a machine.

    Raises:
        InputError: an option that does not fit, or weights that do not.
    """

    def __init__(
        self,
        names: list[str],
        network: NetworkOptions = NetworkOptions(),  # noqa: B008 (never changed)
        loss: LossOptions = LossOptions(),  # noqa: B008
        optim: OptimOptions = OptimOptions(),  # noqa: B008
        start: StartOptions = StartOptions(),  # noqa: B008
        literal: bool = False,
        multi_scale: bool = False,
        compile: Choice = "auto",
    ) -> None:
        super().__init__()
        # those of a checkpoint are maps
        network, loss = as_options(NetworkOptions, network), as_options(LossOptions, loss)
        optim, start = as_options(OptimOptions, optim), as_options(StartOptions, start)
        # logger=False: boltbox.callbacks.Dashboard shows the whole configuration
        self.save_hyperparameters(ignore=GROUPS, logger=False)
        plain = {"network": network.plain(), "loss": loss.plain(), "start": start.plain()}
        self.hparams.update(plain)  # they go into checkpoints
        self.auto_names = optim.auto_names()  # options of `optim` that were left to be chosen
        self.optim = optim.chosen(start.weights, start.backbone_weights)
        if not names:
            raise InputError(
                "no class names: give --data.dataset FILE, or a checkpoint or weights that bring"
                " them"
            )
        self.literal = literal
        self.network = network.build(len(names)).to(memory_format=torch.channels_last)
        # the moving average, once boltbox.callbacks.EMA is in charge
        self.ema: YOLOv5 | None = None
        start.load(self.network, keep_anchors=network.anchors is not None)
        self.loss = loss.build(len(names), self.network.strides, literal)
        self.batch_size, self.seed = 16, 0  # of the data, once they are known
        self.set_image_size(640)
        self.metrics, self.val_losses = DetectionMetrics(len(names)), LossMeans()
        # of all learning rates; boltbox.callbacks.Guard lowers it after a roll-back
        self.lr_scale = 1.0
        self.class_maps = [0.0] * len(names)  # mAP50-95 of the last validation, for image_weights
        self.result: Result | None = None  # of the last validation or test, on the first process
        self.frozen = start.frozen(self.network)
        self.window = GradientWindow(self.network)
        self.compilation = Compilation()  # of the training that is on
        self._compiled_before: bool | None = None  # in the run that is resumed
        self.epoch_losses = LossSums.empty()  # of the epoch so far
        # of the validation or test: its options, an exported file instead of the network, and what
        # predicts
        self.prediction: dict[str, Any] = {}
        self.exported: Exported | None = None
        self.predictor: Predictor | None = None

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device | None = None) -> Detector:
        """A trained detector in evaluation mode, ready for `predict`.

        Args:
            path: a checkpoint of ours (.ckpt; its moving average predicts) or a YOLOv5 file (.pt).
                Nothing in it is executed.
            device: default: the first GPU, if there is one.

        Raises:
            InputError: no such file, or not a detector.
        """
        trained = read_trained(path)
        with refused_unless_valid(path, DETECTOR):
            detector = cls(**trained.arguments())
            detector.set_image_size(trained.image_size)
            trained.fill(detector.network, detector.names)
        return detector.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()

    def predict(
        self,
        images: Image | Sequence[Image],
        image_size: int | None = None,
        tiled: bool = False,
        tile_size: int | None = None,
        tile_overlap: float = 0.2,
        batch_size: int = 16,
        **thresholds: Any,
    ) -> Detections | list[Detections]:
        """The objects in images, see `Predictor.predict`. Each call fuses a copy of the network:
        for many calls, load a Predictor.

        Args:
            thresholds: conf, iou, ...: options of Predictor.
        """
        how = image_size, tiled, tile_size, tile_overlap, batch_size
        return self.make_predictor(**thresholds).predict(images, *how)

    def make_predictor(self, ensemble: Sequence[str] | None = None, **options: Any) -> Predictor:
        """A Predictor of the network, or of its moving average if there is one, or of the exported
        file that is evaluated; together with further files (ensemble)."""
        members: list[YOLOv5 | Exported] = [self.exported or self.evaluated]
        members += load_ensemble(ensemble or (), self.names, self.device)
        own = {"image_size": self.image_size, "rounded": self.literal}
        fuse = not is_sharded(self.evaluated)
        return Predictor(members, self.names, **{**own, "fuse": fuse, **options})

    @property
    def names(self) -> list[str]:
        return self.hparams["names"]

    @property
    def max_stride(self) -> int:
        """Sides of the input are multiples of it."""
        return self.network.max_stride

    @property
    def optim(self) -> OptimOptions:
        """The optimizer and its rates, none of them left open."""
        return self._optim

    @optim.setter
    def optim(self, optim: OptimOptions) -> None:
        self._optim = optim
        self.hparams["optim"] = optim.plain()

    def set_image_size(self, image_size: int) -> None:
        """Longer side of the input in pixels; the gains of the loss go by it."""
        self.image_size = round_up(image_size, self.network.max_stride)
        self.loss.set_image_size(self.image_size)

    def setup(self, stage: str) -> None:
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, DetectionData):
            self.sync_with(data)

    def sync_with(self, data: DetectionData) -> None:
        """Take image size, batch size and seed from the data.

        Raises:
            InputError: the data are of other classes.
        """
        if list(data.names) != self.names:
            raise InputError(
                f"the Detector knows the classes {self.names}, its data have {data.names}: give it"
                " data.names"
            )
        self.set_image_size(data.image_size)
        self.batch_size, self.seed = data.batch_size, data.seed

    def configure_model(self) -> None:
        """Under fsdp2 the parameters of network and average are shared out over the processes."""
        if self.device_mesh is not None:
            for network in (self.network, self.ema):
                if network is not None:
                    shard(network, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Optimizer:
        return self.optim.build(self.network, self.batch_size)

    @property
    def nominal_batch_size(self) -> int:
        """Images that gradients are accumulated to after warm-up, once a training has begun."""
        chosen, trainer = self.optim.nominal_batch_size, self.trainer
        if chosen != "auto":
            return chosen
        batches = int(trainer.num_training_batches) * (trainer.max_epochs or 1)
        return fitting_batch_size(self.batch_size, batches)

    @property
    def lr(self) -> float:
        """lr0, by the name under which Lightning's Tuner.lr_find sets it."""
        assert self.optim.lr0 is not None
        return self.optim.lr0

    @lr.setter
    def lr(self, lr0: float) -> None:
        self.optim = replace(self.optim, lr0=lr0)
        self.auto_names = [name for name in self.auto_names if name != "lr0"]

    def lr_of_epoch(self, epoch: int) -> float:
        """The learning rate of an epoch outside warm-up."""
        epochs = self.trainer.max_epochs
        if not epochs or epochs < 1:
            raise InputError(
                "trainer.max_epochs must be a positive number: the learning rate falls over the"
                " whole run"
            )
        return self.lr_scale * self.optim.lr(epoch, epochs)

    def on_fit_start(self) -> None:
        lacking = missing(self.trainer)
        if lacking:
            rank_zero_print(
                f"not the whole recipe: {'; '.join(lacking)}."
                " L.Trainer(**boltbox.callbacks.recipe(...)) has it all: docs/python.md"
            )

    def on_train_start(self) -> None:
        """A run that is resumed within an epoch does not come by on_train_epoch_start."""
        self._prepare_epoch()
        if self.compilation.shape is None:
            self._compile()

    def _compile(self) -> None:
        h, trainer = self.hparams, self.trainer
        shape = (self.batch_size // trainer.world_size, 3, self.image_size, self.image_size)
        varied = h["multi_scale"] or getattr(getattr(trainer, "datamodule", None), "rect", False)
        self.compilation = compile_for(
            self.network, h["compile"], self._compiled_before, shape, varied
        )

    def on_train_epoch_start(self) -> None:
        self._prepare_epoch()
        self.epoch_losses = LossSums.empty(self.epoch_losses.names)

    def _prepare_epoch(self) -> None:
        lag = int(self.literal)  # from epoch 1 on, the learning rate of the epoch before
        has_scheduler = bool(self.trainer.lr_scheduler_configs)  # in a search for the learning rate
        for group in self.trainer.optimizers[0].param_groups:
            if not has_scheduler:
                group["lr"] = self.lr_of_epoch(max(self.current_epoch - lag, 0)) * lr_share(group)
            if "momentum" in group and self.optim.momentum is not None:
                group["momentum"] = self.optim.momentum
        for layer in self.frozen:  # YOLOv5 lets their batch norm statistics move
            layer.train(self.literal)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        trainer, images = self.trainer, batch.images
        if self.hparams["multi_scale"]:
            iteration = self.current_epoch * int(trainer.num_training_batches) + batch_idx
            stride = max(self.network.max_stride, 32)
            images = rescaled(images, self.image_size, stride, self.seed, iteration)
        with self.compilation.context(images):
            raw = self.network(images)
        total, parts = self.loss(raw, batch.targets, self.network.head)
        self._count_losses(parts)
        total = total * trainer.world_size * trainer.accumulate_grad_batches
        return {"loss": total, "parts": parts}

    def _count_losses(self, parts: dict[str, Tensor]) -> None:
        """The epoch's mean is logged with its last batch. Lightning's own means are not in its
        checkpoints."""
        self.epoch_losses = self.epoch_losses.add(parts)
        if self.trainer.is_last_batch:
            self._log_losses("train", self.epoch_losses, sync=True)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Nothing: gradients are cleared after each step, not before a backward pass (see
        GradientWindow)."""

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        if ends_in_step(self.trainer, batch_idx):
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        else:  # Lightning asks for a step at the end of an epoch; the open window is discarded
            assert optimizer_closure is not None
            optimizer_closure()
        optimizer.zero_grad()

    def _start_evaluation(self) -> None:
        self.predictor = None
        self.metrics.reset()
        self.val_losses.reset()

    @property
    def evaluated(self) -> YOLOv5:
        """The network that is validated and predicts: the moving average if there is one."""
        return self.network if self.ema is None else self.ema

    on_validation_start = on_test_start = _start_evaluation

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, list[np.ndarray]]:
        if self.predictor is None:
            # not earlier: with its first batch DDP brings the first process's batch norm statistics
            # to all
            fitting = self.trainer.state.fn == TrainerFn.FITTING
            options = VALIDATION if fitting else {**VALIDATION, **self.prediction}
            self.predictor = self.make_predictor(**options)
        detections, raw = self.predictor(batch)
        if raw is not None:
            _, parts = self.loss(raw, batch.targets, self.evaluated.head)
            self.val_losses.update(batch.indices[0], parts)
        truths = [truth for truth in batch.truths if truth is not None]
        self.metrics.update(detections, truths, batch.indices)
        return {"detections": detections}

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        self._finish_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._finish_evaluation("test")

    def _finish_evaluation(self, split: str) -> None:
        if self.trainer.state.fn == TrainerFn.FITTING:
            self.predictor = None  # the training needs its memory
        result = self.metrics.compute()
        losses = self.val_losses.compute() if self.val_losses.update_called else {}
        self.metrics.reset()
        self.result = result if self.trainer.is_global_zero else None
        figures = {**losses, **result.summary}
        self.log_dict({f"{split}/{name}": value for name, value in figures.items()})
        if not self.trainer.sanity_checking:
            self.class_maps = result.class_maps(len(self.names)).tolist()

    def _log_losses(self, split: str, losses: LossSums, sync: bool) -> None:
        """The means over batches, as YOLOv5 shows them: every batch counts alike, whatever its
        size."""
        values = {f"{split}/{name}": mean for name, mean in losses.means().items()}
        self.log_dict(values, on_step=False, on_epoch=True, sync_dist=sync, batch_size=1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["image_size"], checkpoint["class_maps"] = self.image_size, self.class_maps
        checkpoint["compiled"] = self.compilation.shape is not None
        checkpoint["window_batches"] = self.window.batches
        checkpoint["origins"] = to_plain(self.network.origins)

    def restore_auto_options(self, checkpoint: Mapping[str, Any]) -> None:
        """Options that were left to be chosen are those of the training that is continued, whatever
        it started from."""
        saved = checkpoint.get("hyper_parameters", {}).get("optim", {})
        chosen = {name: saved[name] for name in self.auto_names if name in saved}
        self.optim = replace(self.optim, **chosen)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_network(self.names, self.state_dict(), checkpoint)
        self.restore_auto_options(checkpoint)
        self._compiled_before = checkpoint.get("compiled", False)
        self.class_maps = checkpoint.get("class_maps", self.class_maps)
        self.window.batches = checkpoint.get("window_batches", 0)
        self.network.origins = origins_of(checkpoint)
        if self.ema is None and any(key.startswith("ema.") for key in checkpoint["state_dict"]):
            self.ema = copy.deepcopy(self.network).requires_grad_(False)
