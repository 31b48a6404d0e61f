"""Detector: the network, its loss and its optimizer as a LightningModule."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, examples
from boltbox.detector.data.sample import Batch, rescaled
from boltbox.detector.model.loss import LossOptions, add_losses, mean_losses
from boltbox.detector.model.network_options import NetworkOptions
from boltbox.detector.model.origin import origins_of, to_plain
from boltbox.detector.model.sharding import shard
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.rank_zero import print_fact, program
from boltbox.detector.training.batch_size import choose_batch_size
from boltbox.detector.training.compilation import compiled, eager_unless
from boltbox.detector.training.evaluation import EvaluationModule
from boltbox.detector.training.gradient_window import GradientWindow, ends_in_step
from boltbox.detector.training.known_objects import known_objects
from boltbox.detector.training.optimizer import OptimOptions, set_rates
from boltbox.detector.training.recipe import global_batch_size, print_missing
from boltbox.detector.training.trainer_options import check_recipe
from boltbox.detector.weights.start import StartOptions
from boltbox.detector.weights.torch_file import as_input_error, shapes
from boltbox.detector.weights.trained import DETECTOR

ADVICE = (
    "leave out the options that differ from its own, or start from its weights with"
    " --model.start.weights"
)
# images that are looked at before a training from weights; their objectness from which on AdamW
# keeps what they know, their mAP50 from which on it does so at a lower rate, and that rate
# (benchmarks/optimizers.md)
EXAMPLES, SURE, KNOWN, GENTLE = 64, 0.1, 0.2, 0.0003
T = TypeVar("T")


def as_options(kind: type[T], given: T | Mapping[str, Any]) -> T:
    """A group of options, which a checkpoint holds as a map."""
    return kind(**given) if isinstance(given, Mapping) else given


class Detector(EvaluationModule):
    """A YOLOv5 detector in training; what it does besides is `EvaluationModule`'s.

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
            The command `benchmark` measures whether it pays on a machine.

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
        compile: bool = False,
    ) -> None:
        super().__init__(len(names))
        network, loss = as_options(NetworkOptions, network), as_options(LossOptions, loss)
        optim, start = as_options(OptimOptions, optim), as_options(StartOptions, start)
        # logger=False: boltbox.callbacks.Dashboard shows the whole configuration
        self.save_hyperparameters(ignore=["network", "loss", "optim", "start"], logger=False)
        plain = {"network": network.to_dict(), "loss": loss.to_dict(), "start": start.to_dict()}
        self.hparams.update(plain)  # they go into checkpoints
        self.auto_names = optim.auto_names()  # options of `optim` that were left to be chosen
        self.optim = optim.resolve(start.weights, start.backbone_weights)
        if not names:
            raise InputError(
                "no class names: give --data.dataset FILE, or a checkpoint or weights that bring"
                " them"
            )
        self.literal = literal
        self.network = network.build(len(names)).to(memory_format=torch.channels_last)
        self.loaded = start.load(self.network, names, keep_anchors=network.anchors is not None)
        # AdamW or Muon, until the data are known; a rate that is given was meant for AdamW
        self.undecided = self.loaded.has_head and {"optimizer", "lr0"} <= {*self.auto_names}
        self.frozen = start.frozen(self.network)
        self.loss = loss.build(len(names), self.network.strides, literal)
        self.batch_size, self.seed = 16, 0  # of the data, once they are known
        self.set_image_size(640)
        # of all learning rates; boltbox.callbacks.Guard lowers it after a roll-back
        self.lr_scale = 1.0
        self.window = GradientWindow(self.network)
        self.compiled_shape: tuple[int, ...] = ()  # of the batches that go through compiled code
        self.epoch_losses: dict[str, Tensor] = {}  # of the epoch so far

    @property
    def optim(self) -> OptimOptions:
        """The optimizer and its rates, none of them left open."""
        return self._optim

    @optim.setter
    def optim(self, optim: OptimOptions) -> None:
        self._optim = optim
        self.hparams["optim"] = optim.to_dict()

    @property
    def lr(self) -> float:
        """lr0, by the name under which Lightning's Tuner.lr_find sets it."""
        assert self.optim.lr0 is not None
        return self.optim.lr0

    @lr.setter
    def lr(self, lr0: float) -> None:
        self.optim = replace(self.optim, lr0=lr0)

    def lr_of_epoch(self, epoch: int) -> float:
        """The learning rate of an epoch outside warm-up."""
        return self.lr_scale * self.optim.lr(epoch, self.trainer.max_epochs)

    def setup(self, stage: str) -> None:
        """Take image size, batch size and seed from the data; of a data module of one's own its
        `names` and `image_size`, if it has them.

        Raises:
            InputError: the data are of other classes, or a training has weights of half precision.
        """
        if stage == "fit":
            check_recipe({"precision": self.trainer.precision})
        data: Any = getattr(self.trainer, "datamodule", None)
        if list(getattr(data, "names", self.names)) != self.names:
            raise InputError(
                f"the Detector knows the classes {self.names}, its data have {data.names}: give it"
                " data.names"
            )
        self.knows_size = hasattr(data, "image_size")
        if self.knows_size:
            self.set_image_size(data.image_size)
        if isinstance(data, DetectionData):
            self.batch_size, self.seed = data.batch_size, data.seed

    def choose_batch_size(self, image_size: int, images: int) -> int:
        """See `boltbox.detector.training.batch_size`; data.batch_size auto asks for it."""
        side = image_size * 3 // 2 if self.hparams["multi_scale"] else image_size
        return choose_batch_size(self.trainer, self.network, self.loss, self.optim, side, images)

    def configure_model(self) -> None:
        """Under fsdp2 the parameters of network and average are shared out over the processes."""
        if self.device_mesh is not None:
            for network in (self.network, self.ema):
                if network is not None:
                    shard(network, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Optimizer:
        data: Any = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, DetectionData):
            self.batch_size = global_batch_size(self.trainer) or self.batch_size
        elif self.undecided and not self.trainer.ckpt_path:
            self._choose_by_examples(data)
        return self.optim.build(self.network, self.batch_size)

    def _choose_by_examples(self, data: DetectionData) -> None:
        """Muon if the weights see no objects, a lower rate if they know these classes."""
        self.undecided = False
        inputs = EvaluationInput(data.image_size, data.stride)
        looked_at = examples(data.images["train"], inputs, EXAMPLES)
        known = known_objects(self.network, looked_at, self.loaded.known_classes)
        known = self.trainer.strategy.broadcast(known)
        for_adamw = {"momentum", "weight_decay"} - {*self.auto_names}  # that are given
        if known.objectness < SURE and not for_adamw:
            left_open: dict[str, Any] = dict.fromkeys(self.auto_names) | {"optimizer": "auto"}
            self.optim = replace(self.optim, **left_open).resolve(None, None)
            self.loaded = self.loaded._replace(has_head=False)  # for AutoAnchor, which comes later
            print_fact(
                "weights",
                f"they do not recognise these objects (objectness {known.objectness:.3f}, below"
                f" {SURE:g}): training as from scratch",
            )
        elif known.map50 >= KNOWN:
            self.optim = replace(self.optim, lr0=GENTLE)
            print_fact(
                "weights",
                f"they already recognise these objects (mAP50 {known.map50:.2f}): lower learning"
                f" rate, lr0 {GENTLE:g}",
            )

    def on_fit_start(self) -> None:
        print_missing(self.trainer)

    def on_train_start(self) -> None:
        """A run that is resumed within an epoch does not come by on_train_epoch_start."""
        self.optim.take_over(self.trainer.optimizers[0], self.network, self.batch_size)
        self._prepare_epoch()
        if self.hparams["compile"] and not self.compiled_shape:
            varied = self.hparams["multi_scale"] or getattr(self.trainer.datamodule, "rect", True)  # type: ignore[attr-defined]
            if compiled(self.network, varied):
                images = self.batch_size // self.trainer.world_size
                self.compiled_shape = images, 3, self.image_size, self.image_size

    def on_train_epoch_start(self) -> None:
        self._prepare_epoch()
        self.epoch_losses = {}

    def _prepare_epoch(self) -> None:
        self.fitness = None
        epoch = max(self.current_epoch - int(self.literal), 0)  # in YOLOv5 rates come an epoch late
        is_search = bool(self.trainer.lr_scheduler_configs)  # Lightning's, for the learning rate
        lr = None if is_search else self.lr_of_epoch(epoch)
        set_rates(self.trainer.optimizers[0], lr, self.optim.momentum)
        for layer in self.frozen:  # YOLOv5 lets their batch norm statistics move
            layer.train(self.literal)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        images = self._images(batch, batch_idx)
        with eager_unless(self.compiled_shape, images):
            raw = self.network(images)
        total, parts = self.loss(raw, batch.targets, self.network.head)
        self._log_losses(parts)
        scale = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return {"loss": total * scale, "parts": parts}

    def _images(self, batch: Batch, batch_idx: int) -> Tensor:
        if not self.hparams["multi_scale"]:
            return batch.images
        iteration = self.current_epoch * int(self.trainer.num_training_batches) + batch_idx
        stride = max(self.max_stride, 32)
        return rescaled(batch.images, self.image_size, stride, self.seed, iteration)

    def _log_losses(self, parts: Mapping[str, Tensor]) -> None:
        """The epoch's means over batches, with its last batch: as YOLOv5 shows them, every batch
        counts alike, whatever its size. Lightning's own means are not in its checkpoints."""
        self.epoch_losses = add_losses(self.epoch_losses, parts)
        if self.trainer.is_last_batch:
            means = {f"train/{name}": mean for name, mean in mean_losses(self.epoch_losses).items()}
            self.log_dict(means, on_step=False, on_epoch=True, sync_dist=True, batch_size=1)

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

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["image_size"], checkpoint["class_maps"] = self.image_size, self.class_maps
        checkpoint["thresholds"], checkpoint["fitness"] = self.thresholds, self.fitness
        checkpoint["window_batches"] = self.window.batches
        checkpoint["origins"] = to_plain(self.network.origins)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raises InputError if its classes or tensors are others; `optim`'s options that were left
        to be chosen are those of the training that is continued, whatever it started from."""
        saved = checkpoint["state_dict"]
        if self.ema is None and any(key.startswith("ema.") for key in saved):
            self.ema = copy.deepcopy(self.network).requires_grad_(False)
        with as_input_error("the checkpoint", DETECTOR):
            options = checkpoint["hyper_parameters"]
            wrong = shapes(saved).items() ^ shapes(self.state_dict()).items()
            names = options["names"]
        if names != self.names:
            rename = ""
            if len(names) == len(self.names):
                command = f"{program()} strip CHECKPOINT --names data.yaml"
                rename = f"; if these are other names of the same classes: {command}"
            raise InputError(
                f"the checkpoint knows the classes {names}, but here they are {self.names}: to"
                f" train on these, start from its weights with --model.start.weights{rename}"
            )
        if wrong:
            raise InputError(
                f"the checkpoint does not fit this network ({len(dict(wrong))} tensors, like"
                f" {min(wrong)[0]}): {ADVICE}"
            )
        known = options.get("optim", {})
        chosen = {name: known[name] for name in self.auto_names if name in known}
        self.optim = replace(self.optim, **chosen)
        self.class_maps = checkpoint.get("class_maps", self.class_maps)
        self.thresholds = checkpoint.get("thresholds")
        if not self.knows_size and "image_size" in checkpoint:
            self.set_image_size(checkpoint["image_size"])
            self.knows_size = True
        self.window.batches = checkpoint.get("window_batches", 0)
        self.network.origins = origins_of(checkpoint)
