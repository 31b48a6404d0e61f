"""Detector: the network, its loss, its optimizer and its evaluation as a LightningModule."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from boltbox.detector.data.class_names import list_of_names
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.detection_batch import detection_batch
from boltbox.detector.data.inputs.sources import Image
from boltbox.detector.data.sample import Batch, check_floats, rescaled
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.exported import Exported
from boltbox.detector.inference.predictor import Predictor, device_of, shape_for
from boltbox.detector.model.layers import set_momentum
from boltbox.detector.model.loss import LossOptions, add_losses, mean_losses
from boltbox.detector.model.network import NetworkOptions, YOLOv5
from boltbox.detector.model.sharding import is_sharded, shard
from boltbox.detector.system.configuration import as_group, plain_groups
from boltbox.detector.system.ranges import check_arguments
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.system.torch_file import as_input_error
from boltbox.detector.training.batch_size import choose_batch_size
from boltbox.detector.training.compilation import compile_network, eager_unless
from boltbox.detector.training.hub_folder import from_pretrained, push_to_hub, save_pretrained
from boltbox.detector.training.optimizer import AUTO, OptimOptions, StartingPoint
from boltbox.detector.training.pretrained_score import choose_starting_point
from boltbox.detector.training.trainer_data import check_names, data_of, global_batch_size
from boltbox.detector.training.trainer_options import check_trainer, ends_in_step
from boltbox.detector.training.validation import Evaluation, in_evaluation_mode
from boltbox.detector.weights.start import LoadedWeights, StartOptions
from boltbox.detector.weights.trained import DETECTOR, check_network, origins_of, read_trained


class Options(NamedTuple):
    """The options of a Detector; see there."""

    network: NetworkOptions
    loss: LossOptions
    optim: OptimOptions
    start: StartOptions
    literal: bool
    multi_scale: bool
    compile: bool


class Detector(L.LightningModule):
    """A YOLOv5 detector: trains, validates and predicts.

    A batch's loss is a mean times its number of images; gradients of a step are sums (YOLOv5).

    Args:
        names: Class names; their number is the number of classes.
        network: Which network it is.
        loss: The loss it is trained with.
        optim: How it is trained.
        start: The weights it starts from, and which layers stay frozen.
        literal: Also reproduce the quirks of YOLOv5, to compare numbers (docs/decisions.md).
        multi_scale: Vary the image size by +- 50 % from batch to batch.
        compile: Train with compiled blocks (torch.compile); `benchmark` measures whether it pays.

    Attributes:
        names: Class names.
        network: The network that is trained.
        ema: The moving average of the network, if boltbox.callbacks.EMA keeps one.
        loss: The loss.
        options: All options; optimizer and rates that were left open are chosen.
        lr: options.optim.lr0, by the name under which Lightning's Tuner sets it.
        loaded: What of the network is loaded from pretrained weights.
        image_size: Longer side of the input in pixels.
        batch_size: Images per batch, over all devices, once the data are known.
        evaluation: Validation and test, with their last results.

    Raises:
        InputError: An option that does not fit, or weights that do not.
    """

    def __init__(
        self,
        names: list[str],
        network: NetworkOptions = NetworkOptions(),  # noqa: B008 (frozen)
        loss: LossOptions = LossOptions(),  # noqa: B008
        optim: OptimOptions = OptimOptions(),  # noqa: B008
        start: StartOptions = StartOptions(),  # noqa: B008
        literal: bool = False,
        multi_scale: bool = False,
        compile: bool = False,
    ) -> None:
        super().__init__()
        # a checkpoint holds each group of options as a map
        network = as_group(NetworkOptions, network)
        loss = as_group(LossOptions, loss)
        optim = as_group(OptimOptions, optim)
        start = as_group(StartOptions, start)
        check_arguments(Detector, locals())
        names = list_of_names(names)
        # for checkpoints; _resolve_optim adds the groups. logger=False: boltbox's Dashboard logs it
        self.save_hyperparameters(ignore=["network", "loss", "optim", "start"], logger=False)
        self.options = Options(network, loss, optim, start, literal, multi_scale, compile)
        self._groups_as_given = plain_groups({"network": network, "loss": loss, "start": start})
        self.names = names
        # as given: what it leaves open, like lr0, is chosen by what the training starts from
        self._given_optim = optim
        self._starting_point = StartingPoint.of(start.weights, start.backbone_weights)
        self._has_scored_weights = False
        self._resolve_optim()  # sets options.optim and hparams
        self.network = network.build(len(names)).to(memory_format=torch.channels_last)
        self.ema: YOLOv5 | None = None
        self.loaded = start.load(self.network, names, given_anchors=network.anchors)
        self._frozen_layers = start.freeze_layers(self.network)
        self.loss = loss.build(len(names), self.network.strides, literal)
        self.evaluation = Evaluation(len(names))
        self.batch_size = 16
        self._seed = 0
        self.set_image_size(640)
        self._knows_image_size = False  # until data, their first batch or a checkpoint has told it
        self._is_compiled = False
        self._forward_context: Callable[[Tensor], Any] = nullcontext  # around a batch, see _compile
        self._loss_sums: dict[str, Tensor] = {}
        self._predictor: Predictor | None = None  # of trainer.predict

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device | None = None) -> Self:
        """A trained detector in evaluation mode, ready for `predict`, and for a fit as from
        pretrained weights; exported files are `Predictor.load`'s.

        Args:
            path: A checkpoint (its moving average), a run folder (its best checkpoint), or a YOLOv5
                file (.pt). Nothing in it is executed.
            device: Default: the first GPU, if there is one.

        Raises:
            InputError: There is no such file, or it is not a detector.
        """
        file = read_trained(path)
        with as_input_error(path, DETECTOR):
            detector = cls(**file.arguments())  # without weights to start from
            file.fill(detector.network, detector.names)
        detector.set_image_size(file.image_size)
        detector.evaluation.thresholds = file.thresholds
        detector.evaluation.tiles = file.tiles
        # A fit of it starts from a detector's weights, and chooses anew all that can be left open
        # (AUTO). hparams stay those of the file's training: no _resolve_optim, which sets them.
        detector.loaded = LoadedWeights(has_head=True, known_classes=range(len(file.names)))
        detector._starting_point = StartingPoint.PRETRAINED
        detector._given_optim = replace(detector._given_optim, **AUTO)
        optim = detector._given_optim.resolve(StartingPoint.PRETRAINED)
        detector.options = detector.options._replace(optim=optim)
        return detector.to(device_of(device)).eval()

    # functions of hub_folder.py
    from_pretrained = classmethod(from_pretrained)
    save_pretrained = save_pretrained
    push_to_hub = push_to_hub
    choose_batch_size = choose_batch_size  # of batch_size.py

    @property
    def lr(self) -> float:
        assert self.options.optim.lr0 is not None
        return self.options.optim.lr0

    @lr.setter
    def lr(self, lr0: float) -> None:
        self._given_optim = replace(self._given_optim, lr0=float(lr0))  # it may be of NumPy
        self._resolve_optim(vars(self.options.optim))  # what was chosen stays

    def _resolve_optim(self, saved: Mapping[str, Any] | None = None) -> None:
        """Choose what is left open: as in a checkpoint (`saved`), or by the starting point."""
        optim = self._given_optim.resolve(self._starting_point, saved)
        self.options = self.options._replace(optim=optim)
        # all groups: save_hyperparameters of a subclass may have put its own arguments there
        self.hparams.update(self._groups_as_given | {"optim": optim.to_dict()})

    def is_auto(self, name: str) -> bool:
        """Whether the user left this option of `optim` open."""
        return name in self._given_optim.auto_names()

    def evaluated_network(self) -> YOLOv5:
        """The moving average of the network, if there is one; else the network."""
        return self.network if self.ema is None else self.ema

    def start_average(self) -> None:
        """Add a moving average, equal to the network, if there is none."""
        if self.ema is None:
            self.ema = copy.deepcopy(self.network).requires_grad_(False)

    def drop_average(self) -> None:
        """Evaluate the network itself, and undo the batch norm momentum that callback EMA set."""
        self.ema = None
        set_momentum(self.network, self.options.network.bn_momentum)

    def members(self) -> list[YOLOv5 | Exported]:
        """What predicts: network or exported file, and the ensemble of a validation."""
        return [self.evaluation.exported or self.evaluated_network(), *self.evaluation.ensemble]

    def max_stride(self) -> int:
        """Sides of the input are multiples of it: 32, as in YOLOv5, or more."""
        return max(member.max_stride for member in self.members())

    def shape_for(self, image_size: int) -> tuple[int, int] | None:
        """The fixed (height, width) of an exported file; None: all multiples of `max_stride`."""
        return shape_for(self.members(), image_size, self.max_stride())

    def set_image_size(self, image_size: int) -> None:
        """Set the longer side of the input in pixels; the gains of the loss depend on it."""
        self.image_size = round_up(image_size, self.max_stride())
        self.loss.set_image_size(self.image_size)

    def use_exported(self, file: Exported) -> None:
        """Evaluate an exported file instead of the network."""
        self.evaluation.exported = file
        self.network.origins = file.metadata.origins  # sources and licences of its weights

    def forward(self, images: Tensor) -> Tensor:
        """The decoded prediction before suppression, in evaluation mode. `predict` suppresses.

        Args:
            images: (B, 3, H, W) float32 RGB in 0..1, sides multiples of `max_stride`.

        Returns:
            (B, R, 5 + C) float32, a row per box: cx, cy, w, h in pixels of `images`, objectness,
            class scores. The confidence of a class is objectness * class score.
        """
        network = self.evaluated_network()
        with in_evaluation_mode(network):
            return network.head.decode(network(images))

    def make_predictor(self, **options: Any) -> Predictor:
        """A Predictor of what is evaluated, with these options of Predictor."""
        defaults = {
            "image_size": self.image_size,
            "rounded": self.options.literal,  # suppress boxes with the rounding errors of YOLOv5
            "tiles": self.evaluation.tiles,
            "fuse": not is_sharded(self.evaluated_network()),
        }
        return Predictor(self.members(), self.names, **(defaults | options))

    def predict(
        self, images: Image | Sequence[Image], **options: Any
    ) -> Detections | list[Detections]:
        """The objects in images. For many calls `Predictor.load` is faster: it fuses layers once.

        Args:
            images: One, or several, in any form that `Predictor.predict` takes.
            options: Of Predictor (conf, iou, ...) and of its method `predict` (tile_size, ...).
        """
        of_method = inspect.signature(Predictor.predict).parameters
        arguments = {name: options.pop(name) for name in of_method if name in options}
        return self.make_predictor(**options).predict(images, **arguments)

    def setup(self, stage: str) -> None:
        """Take image size, batch size and seed from the data; from a custom data module only
        `image_size`, if it has it. A fit also chooses its optimizer, by the data."""
        missing_callbacks = check_trainer(self.trainer) if stage == "fit" else []
        if "EMA" in missing_callbacks:
            self.drop_average()  # the average of an earlier fit would not be updated
        data: Any = getattr(self.trainer, "datamodule", None)  # DetectionData or custom
        check_names(data, self.names)
        self._knows_image_size = hasattr(data, "image_size")
        if self._knows_image_size:
            self.set_image_size(data.image_size)
        if isinstance(data, DetectionData):
            self.batch_size = data.batch_size
            self._seed = data.seed
            if stage == "fit":
                self.evaluation.tiles = data.tiles  # other stages keep the checkpoint's
                self._score_weights(data)
        if stage == "fit":
            self._resolve_optim()  # forget what an earlier fit or a validated checkpoint chose

    def _score_weights(self, data: DetectionData) -> None:
        """Where optimizer and lr0 are left open, score pretrained weights on the data, once."""
        is_open = self.is_auto("optimizer") and self.is_auto("lr0")
        if self._has_scored_weights or not self.loaded.has_head or not is_open:
            return
        self._has_scored_weights = True
        # may_be_new: weights that fit badly may be trained as if new, by Muon
        may_be_new = self.is_auto("momentum") and self.is_auto("weight_decay")
        self._starting_point = choose_starting_point(
            self.trainer, self.network, data, self.loaded.known_classes, may_be_new
        )
        if self._starting_point is StartingPoint.SCRATCH:
            self.loaded = self.loaded._replace(has_head=False)  # as if new, for AutoAnchor

    def configure_model(self) -> None:
        """Under fsdp2 the parameters of network and average are sharded over the processes."""
        if self.device_mesh is None:
            return
        for network in (self.network, self.ema):
            if network is not None:
                shard(network, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Optimizer:
        if data_of(self.trainer) is None:  # custom data, whose loaders are known only now
            self.batch_size = global_batch_size(self.trainer, default=self.batch_size)
        return self.options.optim.build(self.network, self.batch_size)  # batch_size scales decay

    def on_train_start(self) -> None:
        self.network.train()  # Lightning leaves it as `load` returned it: in evaluation mode
        # a restored optimizer has the weight decay of its checkpoint; set this run's
        self.options.optim.apply_to(self.trainer.optimizers[0], self.network, self.batch_size)
        self._start_epoch()  # a run resumed within an epoch has no on_train_epoch_start
        if self.options.compile:
            self._compile()

    def _compile(self) -> None:
        """Compile the network, unless an earlier fit has done it or the images vary in shape."""
        if not self._is_compiled:
            data = data_of(self.trainer)
            shapes_vary = self.options.multi_scale or data is None or bool(data.rect)
            self._is_compiled = compile_network(self.network, shapes_vary)
        if self._is_compiled:
            batch_size = self.batch_size // self.trainer.world_size
            shape = (batch_size, 3, self.image_size, self.image_size)
            self._forward_context = partial(eager_unless, shape)  # other shapes run eager

    def on_train_epoch_start(self) -> None:
        self._start_epoch()
        self._loss_sums = {}  # not in _start_epoch: a resume within the epoch keeps them

    def _start_epoch(self) -> None:
        self.evaluation.fitness = None  # until the epoch is validated
        for layer in self._frozen_layers:  # in YOLOv5 (literal) their batch norm statistics move
            layer.train(self.options.literal)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Custom data become a Batch; the first batch of a training sets the image size."""
        if isinstance(batch, Batch):
            return batch
        trainer = self.trainer
        classes = len(self.names)
        batch = detection_batch(batch, classes, self.max_stride(), labelled=not trainer.predicting)
        if trainer.training and not self._knows_image_size:
            size = trainer.strategy.broadcast(max(batch.images.shape[2:]))
            rank_zero_print(f"image size: {size} px, the longer side of the first batch")
            self.set_image_size(size)
            self._knows_image_size = True
        # only validations use indices: image k of rank r is number k * world_size + r of the data
        seen = self.evaluation.metrics.seen  # images, by this process
        indices = [(seen + i) * trainer.world_size + trainer.global_rank for i in batch.indices]
        return batch._replace(indices=indices)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        images = batch.images
        check_floats(images)
        if self.options.multi_scale:
            iteration = self.current_epoch * int(self.trainer.num_training_batches) + batch_idx
            images = rescaled(images, self.image_size, self.max_stride(), self._seed, iteration)
        with self._forward_context(images):
            raw = self.network(images)
        total, terms = self.loss(raw, batch.targets, self.network.head, batch.ignored)
        self._log_losses(terms)
        # undoes DDP's mean and Lightning's division by accumulate_grad_batches: gradients stay sums
        scale = self.trainer.world_size * self.trainer.accumulate_grad_batches
        return {"loss": total * scale, "terms": terms}  # terms: for callbacks

    def _log_losses(self, terms: Mapping[str, Tensor]) -> None:
        """Log the epoch's means in its last batch. Own sums: Lightning's are not in checkpoints."""
        self._loss_sums = add_losses(self._loss_sums, terms)
        if self.trainer.is_last_batch:
            named = {f"train/{name}": m for name, m in mean_losses(self._loss_sums).items()}
            self.log_dict(named, on_step=False, on_epoch=True, sync_dist=True, batch_size=1)

    def loss_sums(self) -> dict[str, Tensor]:
        """Sums of the loss terms over the epoch's batches so far (`add_losses`)."""
        return self._loss_sums

    def restore_loss_sums(self, sums: dict[str, Tensor]) -> None:
        """Continue an epoch with what `loss_sums` returned."""
        self._loss_sums = sums

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Nothing: optimizer_step does it. Warmup sets accumulate_grad_batches to 1 for a step's
        last batch; Lightning takes it for the step's only one, and would clear gradients before."""

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        if ends_in_step(self.trainer, batch_idx):
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        else:  # Lightning steps in the epoch's last batch, within a window (only model.literal)
            optimizer_closure()  # forward and backward; YOLOv5 drops these gradients
        optimizer.zero_grad()

    def on_validation_start(self) -> None:
        self.evaluation.start(self.trainer)

    @torch.compiler.disable  # NumPy in it fails in torch.compile(detector)
    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, list[np.ndarray]]:
        head = self.evaluated_network().head
        return {"detections": self.evaluation.step(batch, self.make_predictor, self.loss, head)}

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.evaluation.finish(self.trainer))

    on_test_start = on_validation_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    def on_predict_start(self) -> None:
        self._predictor = self.make_predictor(**self.evaluation.predictor_options)

    @torch.compiler.disable
    def predict_step(self, batch: Batch, batch_idx: int) -> list[Detections]:
        """The objects in each image of custom data (see `on_before_batch_transfer`)."""
        assert self._predictor is not None
        detections, _ = self._predictor.detect(batch)
        return [Detections.of(rows, self.names) for rows in detections]

    def on_predict_end(self) -> None:
        self._predictor = None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["image_size"] = self.image_size
        checkpoint.update(self.evaluation.results())
        checkpoint["origins"] = [origin._asdict() for origin in self.network.origins]
        checkpoint["hyper_parameters"] = plain_groups(self.hparams)  # a subclass may save objects

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Its optim options replace those left open. InputError: its classes or tensors differ."""
        average = [name for name in checkpoint["state_dict"] if name.startswith("ema.")]
        is_fit = self._trainer is not None and self._trainer.state.fn == "fit"
        if is_fit and self.ema is None:  # no callback EMA, whose setup starts an average
            for name in average:
                del checkpoint["state_dict"][name]
        elif average:
            self.start_average()
        elif self._trainer and not is_fit:
            self.drop_average()  # of an earlier fit; check_network refuses a fit with EMA
        check_network(checkpoint, self.names, self.state_dict(), self.network.activation)
        self._resolve_optim(checkpoint["hyper_parameters"].get("optim"))
        self.evaluation.restore(checkpoint)
        if not self._knows_image_size and "image_size" in checkpoint:
            self.set_image_size(checkpoint["image_size"])
            self._knows_image_size = True
        self.network.origins = origins_of(checkpoint)
