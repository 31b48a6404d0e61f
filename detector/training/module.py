"""Detector: the network, its loss and its optimizer as a LightningModule. Wiring only."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.nn.functional import interpolate
from torch.optim import Optimizer

from boltbox.detector.checkpoint.compatibility import check_network
from boltbox.detector.checkpoint.hyper_parameters import NOT_SAVED, PARTS
from boltbox.detector.checkpoint.origins import origins_of, to_plain
from boltbox.detector.checkpoint.starting_weights import start
from boltbox.detector.checkpoint.trained import read_trained
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import Batch
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.evaluation.metrics import Result
from boltbox.detector.inference.api import Images, predict
from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.ensemble import load_member
from boltbox.detector.inference.inference_network import InferenceNetwork
from boltbox.detector.inference.rows import (
    Decoded,
    NMSThresholds,
    class_numbers,
    rows_of_tiles,
    to_rows,
)
from boltbox.detector.model.assigner import Assigner, YOLOv5Assigner
from boltbox.detector.model.batch_norm import set_momentum
from boltbox.detector.model.box_coder import BoxCoder
from boltbox.detector.model.head import Head
from boltbox.detector.model.loss import DetectionLoss, Loss
from boltbox.detector.model.loss_sums import LossSums
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.model.parts import PartConfig, build_part, part_config
from boltbox.detector.model.sharding import is_sharded, shard
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import check_ranges
from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.compilation import Choice, Compilation, compile_for
from boltbox.detector.training.evaluation import Evaluation
from boltbox.detector.training.freezing import FrozenLayers
from boltbox.detector.training.gradient_window import GradientWindow, ends_in_step
from boltbox.detector.training.optimizer import (
    OptimizerName,
    build_optimizer,
    choose_open,
    lr_share,
)
from boltbox.detector.training.recipe import UNLESS_GIVEN, follow, missing
from boltbox.detector.training.schedule import (
    LrSchedule,
    effective_weight_decay,
    fitting_batch_size,
    lr_factor,
)


class Detector(L.LightningModule):
    """A YOLOv5 detector in training, validation and prediction.

    Gradients are sums over images, as in YOLOv5: they do not change with the number of devices, and
    accumulate as they are.

    Args:
        names: Class names; their number is the number of classes.
        size: Network size: n, s, m, l, x, n6, s6, m6, l6, x6, p2, p34, p6, p7.
        weights: Weights to start from: a YOLOv5 .pt file, a YOLOX .pth file or a checkpoint of
            ours.
        backbone: yolov5; yolox, for YOLOX's weights; or timm/NAME, an image backbone of timm
            (docs/backbones.md).
        backbone_weights: Weights of image classification for a timm backbone: a file (.safetensors,
            .pth), or pretrained: timm fetches its own.
        reuse_head: Where weights are for other classes, take their head's boxes and objectness too;
            false: the whole head starts fresh, as in YOLOv5.
        image_size: Longer side of the input in pixels, for the scale of the objectness loss;
            default: the training data's.
        batch_size: Images a batch over all devices, for accumulation and weight decay; default: the
            training data's.
        seed: Of the random image sizes (multi_scale); default: the training data's.
        depth_multiple: Instead of that of the size.
        width_multiple: Instead of that of the size.
        levels: Detection levels, level k has stride 2**k; instead of those of the size.
        anchors: A row a level of pixels w, h, w, h, ...; or a number: AutoAnchor makes so many a
            level; default: the size's.
        activation: silu, relu, leaky_relu or hardswish.
        class_prior: Starting bias of the classes: all alike, or by their frequency in the training
            labels.
        box: Gain of the box loss.
        obj: Gain of the objectness loss, for 640 px.
        cls: Gain of the class loss, for 80 classes.
        cls_pw: Weight of positives in the class loss.
        obj_pw: Weight of positives in the objectness loss.
        label_smoothing: Epsilon of the class targets.
        fl_gamma: Exponent of the focal loss; 0 is off.
        anchor_t: Anchors whose sides differ from the object's by less than this factor are trained
            on it.
        autobalance: Adapt the weights of the levels' objectness losses.
        shared_cell: Objectness target where objects share cell and anchor: best overlap, or the
            last one (YOLOv5 on a CPU).
        optimizer: SGD (Nesterov), Adam, AdamW or Muon. auto: AdamW where model.weights are given,
            else Muon.
        lr0: Learning rate of the first epoch; default: SGD 0.01, Adam and AdamW 0.001, Muon 0.008,
            with backbone_weights 0.016.
        lrf: The learning rate falls towards lr0 * lrf.
        momentum: SGD and Muon momentum, Adam beta1; default: SGD 0.937, Adam and AdamW 0.9, Muon
            0.95.
        weight_decay: For nominal_batch_size images a step, on weights that are neither biases nor
            of norms; default: SGD and Adam 0.0005, AdamW and Muon 0.05.
        backbone_lr: As lr0, for the backbone, which Muon then leaves to AdamW; default: lr0, but
            with Muon and backbone_weights 0.001.
        backbone_weight_decay: As weight_decay, for the backbone; default: weight_decay.
        nominal_batch_size: Gradients are accumulated to about so many images. auto: to 64, or fewer
            in a run that would have few steps (docs/recipe.md).
        lr_schedule: linear, cosine or cosine_restarts.
        t_0: Epochs of the first cosine before a restart.
        t_mult: Each further cosine is so many times as long.
        schedule_lag: YOLOv5's way: from epoch 1 on, the learning rate of the epoch before.
        freeze: Number of first YOLOv5 layers to freeze (10: the backbone), or a list of layer
            numbers.
        freeze_epochs: First epochs that freeze holds for; default: all.
        freeze_bn: Statistics of frozen layers stay too; YOLOv5 lets them move.
        bn_momentum: Share of the newest batch in batch norm's running statistics. Default: 1 where
            boltbox.callbacks.EMA averages them as it averages the weights, else 0.1.
        freeze_backbone_bn: Batch norm of the backbone stays as it was loaded, statistics and all;
            the rest of it is trained.
        multi_scale: Vary the image size by +- 50 % from batch to batch.
        compile: Train with compiled blocks (torch.compile), which takes minutes at the first start.
            auto: as the run that is resumed, else without. `cli.py benchmark` measures whether it
            pays on a machine.
        conf: Least confidence of a detection.
        iou: Overlap above which the less confident of two detections of a class is dropped.
        max_det: Most detections an image.
        agnostic: Suppress across classes.
        rounded_nms: Suppress as YOLOv5 does, which rounds the boxes it compares, those of higher
            classes more: up to 1/16 px.
        classes: Only detections of these classes, by name or number (predict).
        tta: Predict three times on each image, at several sizes and mirrored (YOLOv5's --augment;
            not during a training).
        ensemble: Further checkpoints (.ckpt, or YOLOv5's .pt) that predict too, with the same
            classes (not during a training).
        head: A head of your own instead of YOLOv5's, by class_path and init_args (docs/parts.md);
            here and below, what it does not take of the options above has no effect.
        box_coder: A box coder of your own instead of the head's.
        assigner: An assigner of your own instead of YOLOv5's, which has anchor_t.
        loss: A loss of your own instead of YOLOv5's, which has the gains and so on.

    In Python head, box_coder, assigner and loss are a class, or functools.partial of a class and
    its arguments.

    Raises:
        InputError: an option that does not fit, or weights that do not.
    """

    def __init__(
        self,
        names: list[str],
        size: str = "n",
        weights: str | None = None,
        backbone: str = "yolov5",
        backbone_weights: str | None = None,
        reuse_head: bool = True,
        image_size: int | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        depth_multiple: float | None = None,
        width_multiple: float | None = None,
        levels: list[int] | None = None,
        anchors: list[list[float]] | int | None = None,
        activation: str = "silu",
        class_prior: Literal["uniform", "frequency"] = "uniform",
        box: float = 0.05,
        obj: float = 1.0,
        cls: float = 0.5,
        cls_pw: float = 1.0,
        obj_pw: float = 1.0,
        label_smoothing: float = 0.0,
        fl_gamma: float = 0.0,
        anchor_t: float = 4.0,
        autobalance: bool = False,
        shared_cell: Literal["best", "last"] = "best",
        optimizer: OptimizerName | Literal["auto"] = "auto",
        lr0: float | None = None,
        lrf: float = 0.01,
        momentum: float | None = None,
        weight_decay: float | None = None,
        backbone_lr: float | None = None,
        backbone_weight_decay: float | None = None,
        nominal_batch_size: int | Literal["auto"] = "auto",
        lr_schedule: LrSchedule = "linear",
        t_0: int = 10,
        t_mult: int = 1,
        schedule_lag: bool = False,
        freeze: int | list[int] = 0,
        freeze_epochs: int | None = None,
        freeze_bn: bool = True,
        freeze_backbone_bn: bool = False,
        bn_momentum: float | None = None,
        multi_scale: bool = False,
        compile: Choice = "auto",
        conf: float = 0.001,
        iou: float = 0.6,
        max_det: int = 300,
        agnostic: bool = False,
        rounded_nms: bool = False,
        classes: list[int | str] | None = None,
        tta: bool = False,
        ensemble: list[str] | None = None,
        head: Callable[[Sequence[int], Sequence[int], int], Head] | None = None,
        box_coder: Callable[[], BoxCoder] | None = None,
        assigner: Callable[[], Assigner] | None = None,
        loss: Callable[[int, Sequence[int], Assigner], Loss] | None = None,
    ) -> None:
        super().__init__()
        # logger=False: boltbox.callbacks.Dashboard shows the whole configuration
        self.save_hyperparameters(ignore=[*NOT_SAVED, *PARTS], logger=False)
        parts = {"head": head, "box_coder": box_coder, "assigner": assigner, "loss": loss}
        chosen = {
            name: part_config(part, PARTS[name], f"model.{name}") for name, part in parts.items()
        }
        self.hparams.update(chosen)  # plain types: they go into checkpoints
        self.not_given = [name for name in UNLESS_GIVEN if self.hparams[name] is None]
        self.hparams.update({name: UNLESS_GIVEN[name] for name in self.not_given})
        self.left_open = choose_open(self.hparams, weights, backbone_weights)
        check_ranges(self.hparams, "model")
        if not names:
            raise InputError(
                "no class names: give --data.dataset FILE, or a checkpoint or weights that bring"
                " them"
            )
        self.network = YOLOv5(
            len(names),
            size,
            depth_multiple,
            width_multiple,
            levels,
            anchors,
            activation,
            head=chosen["head"],
            box_coder=chosen["box_coder"],
            backbone=backbone,
        )
        set_momentum(self.network, 0.1 if bn_momentum is None else bn_momentum)
        self.network.to(memory_format=torch.channels_last)
        # the moving average, once boltbox.callbacks.EMA is in charge
        self.ema: YOLOv5 | None = None
        for line in start(self.network, weights, backbone_weights, anchors is not None, reuse_head):
            rank_zero_print(line)
        self.loss = self._build_loss(chosen["assigner"], chosen["loss"])
        self.set_image_size(self.hparams["image_size"])
        self.evaluation = Evaluation(len(names))
        # of all learning rates; boltbox.callbacks.TrainingGuard lowers it after a roll-back
        self.lr_scale = 1.0
        self.result: Result | None = None  # of the last validation or test, on the first process
        self.frozen = FrozenLayers(
            self.network, freeze, freeze_epochs, freeze_bn, freeze_backbone_bn
        )
        self.window = GradientWindow(self.network)
        self.compilation = Compilation()  # of the training that is on
        self._compiled_before: bool | None = None  # in the run that is resumed
        self.epoch_losses = LossSums.empty()  # of the epoch so far
        self.inference = InferenceNetwork([load_member(path, names) for path in ensemble or []])
        self.wanted = class_numbers(classes, names)

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
        trained = read_trained(path, cls)
        detector = cls(**trained.arguments(cls))
        trained.fill(detector)
        return detector.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()

    def predict(self, images: Images, **options: Any) -> Detections | list[Detections]:
        """The objects in images: files, arrays or PIL images. See
        `boltbox.detector.inference.api.predict` for the options."""
        return predict(self, images, **options)

    @property
    def names(self) -> list[str]:
        return self.hparams["names"]

    @property
    def max_stride(self) -> int:
        """Sides of the input are multiples of it, for all networks that predict."""
        return max(network.max_stride for network in (self.network, *self.inference.members))

    def _build_loss(self, assigner: PartConfig | None, loss: PartConfig | None) -> Loss:
        """The chosen assigner and loss, or YOLOv5's with the options of this detector."""
        h, options = self.hparams, (len(self.names), self.network.strides)
        the_assigner: Assigner = YOLOv5Assigner(h["anchor_t"])
        if assigner is not None:
            the_assigner = build_part(assigner, Assigner, "model.assigner")  # type: ignore[type-abstract]
        if loss is not None:
            return build_part(loss, Loss, "model.loss", *options, the_assigner)  # type: ignore[type-abstract]
        own = [
            "box",
            "obj",
            "cls",
            "cls_pw",
            "obj_pw",
            "label_smoothing",
            "fl_gamma",
            "autobalance",
            "shared_cell",
        ]
        return DetectionLoss(*options, the_assigner, **{name: h[name] for name in own})

    def set_image_size(self, image_size: int) -> None:
        """Longer side of the input in pixels; the gains of the loss go by it."""
        self.image_size = round_up(image_size, self.network.max_stride)
        self.loss.set_image_size(self.image_size)

    def setup(self, stage: str) -> None:
        data = getattr(self.trainer, "datamodule", None)
        if stage == "fit" and isinstance(data, DetectionData):
            follow(self, data)
        if (
            stage == "fit"
            and self.hparams["class_prior"] == "frequency"
            and not is_sharded(self.network)
        ):
            self.network.head.set_class_prior(self._class_counts())

    def _class_counts(self) -> Tensor:
        """(C,) training labels of each class."""
        return torch.from_numpy(self.trainer.datamodule.datasets["train"].class_counts())  # type: ignore[attr-defined]

    def configure_model(self) -> None:
        """Under fsdp2 the parameters of network and average are shared out over the processes."""
        if self.device_mesh is not None:
            for network in (self.network, self.ema):
                if network is not None:
                    shard(network, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Optimizer:
        h = self.hparams
        decays = [h["weight_decay"], h["backbone_weight_decay"]]
        if h["nominal_batch_size"] != "auto":  # with it, a step sees just as many images
            sizes = h["nominal_batch_size"], h["batch_size"]
            decays = [
                None if decay is None else effective_weight_decay(decay, *sizes) for decay in decays
            ]
        rates = h["lr0"], h["momentum"], decays[0], h["backbone_lr"], decays[1]
        return build_optimizer(self.network, h["optimizer"], *rates)

    @property
    def nominal_batch_size(self) -> int:
        """Images that gradients are accumulated to after warm-up, once a training has begun."""
        chosen, trainer = self.hparams["nominal_batch_size"], self.trainer
        if chosen != "auto":
            return chosen
        return fitting_batch_size(
            self.hparams["batch_size"],
            int(trainer.num_training_batches) * (trainer.max_epochs or 1),
        )

    @property
    def lr(self) -> float:
        """lr0, by the name under which Lightning's Tuner.lr_find sets it."""
        return self.hparams["lr0"]

    @lr.setter
    def lr(self, lr0: float) -> None:
        self.hparams["lr0"] = lr0
        self.left_open = [name for name in self.left_open if name != "lr0"]

    def lr_of_epoch(self, epoch: int) -> float:
        """The learning rate of an epoch outside warm-up."""
        h = self.hparams
        epochs = self.trainer.max_epochs
        if not epochs or epochs < 1:
            raise InputError(
                "trainer.max_epochs must be a positive number: the learning rate falls over the"
                " whole run"
            )
        return (
            self.lr_scale
            * h["lr0"]
            * lr_factor(epoch, epochs, h["lrf"], h["lr_schedule"], h["t_0"], h["t_mult"])
        )

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
        shape = (h["batch_size"] // trainer.world_size, 3, self.image_size, self.image_size)
        varied = h["multi_scale"] or getattr(getattr(trainer, "datamodule", None), "rect", False)
        self.compilation = compile_for(
            self.network, h["compile"], self._compiled_before, shape, varied
        )

    def on_train_epoch_start(self) -> None:
        self._prepare_epoch()
        self.epoch_losses = LossSums.empty(self.epoch_losses.names)

    def _prepare_epoch(self) -> None:
        lag = int(self.hparams["schedule_lag"])
        has_scheduler = bool(self.trainer.lr_scheduler_configs)  # in a search for the learning rate
        for group in self.trainer.optimizers[0].param_groups:
            if not has_scheduler:
                group["lr"] = self.lr_of_epoch(max(self.current_epoch - lag, 0)) * lr_share(group)
            if "momentum" in group:
                group["momentum"] = self.hparams["momentum"]
        self.frozen.start_epoch(self.current_epoch)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        images = self._rescale(batch.images, batch_idx)
        with self.compilation.context(images):
            raw = self.network(images)
        total, parts = self.loss(raw, batch.targets, self.network.head)
        self._count_losses(parts)
        return {
            "loss": total * self.trainer.world_size * self.trainer.accumulate_grad_batches,
            "parts": parts,
        }

    def _count_losses(self, parts: dict[str, Tensor]) -> None:
        """The epoch's mean is logged with its last batch. Lightning's own means are not in its
        checkpoints."""
        self.epoch_losses = self.epoch_losses.add(parts)
        if self.trainer.is_last_batch:
            self._log_losses("train", self.epoch_losses, sync=True)

    def _rescale(self, images: Tensor, batch_idx: int) -> Tensor:
        """(B, 3, H, W) resized by multi_scale; the size depends on seed and iteration alone."""
        if not self.hparams["multi_scale"]:
            return images
        stride, size = max(self.network.max_stride, 32), self.image_size
        iteration = self.current_epoch * int(self.trainer.num_training_batches) + batch_idx
        rng = np.random.default_rng(np.random.SeedSequence((self.hparams["seed"], 2, iteration)))
        size = max(int(rng.integers(size // 2, size * 3 // 2 + stride)) // stride, 1) * stride
        sides = [
            math.ceil(s * size / max(images.shape[2:]) / stride) * stride for s in images.shape[2:]
        ]
        return interpolate(images, sides, mode="bilinear", align_corners=False)

    def on_after_backward(self) -> None:
        self.frozen.drop_gradients(self.current_epoch)

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
        self.inference.clear()
        if self.trainer.state.fn != TrainerFn.FITTING:
            self.prepare(self.hparams["tta"])
        self.evaluation.start()

    @property
    def evaluated(self) -> YOLOv5:
        """The network that is validated and predicts: the moving average if there is one."""
        return self.network if self.ema is None else self.ema

    def prepare(self, tta: bool) -> None:
        """Make ready for inference: fused, with the ensemble and test-time augmentation if wanted.
        What is ready stays."""
        self.inference.prepare(self.evaluated, tta)

    on_validation_start = on_test_start = on_predict_start = _start_evaluation

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, list[np.ndarray]]:
        return {"detections": self._evaluate(batch, "val")}

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, list[np.ndarray]]:
        return {"detections": self._evaluate(batch, "test")}

    def _evaluate(self, batch: Batch, split: str) -> list[np.ndarray]:
        if self.inference.fused is None and not is_sharded(self.evaluated):
            # In a fit, not before its first batch: with that one DDP brings the first process's
            # batch norm statistics to all.
            self.inference.fuse(self.evaluated)
        detections, raw = self.predict_batch(
            batch, self.nms_thresholds()._replace(multi_label=True)
        )
        loader = self.trainer.val_dataloaders if split == "val" else self.trainer.test_dataloaders
        parts = None
        if raw is not None and not getattr(
            getattr(loader, "batch_sampler", None), "padding_only", False
        ):
            _, parts = self.loss(raw, batch.targets, self.evaluated.head)
        self.evaluation.add(batch, detections, parts)
        return detections

    def nms_thresholds(self) -> NMSThresholds:
        """Which detections count."""
        h = self.hparams
        return NMSThresholds(
            h["conf"], h["iou"], h["max_det"], h["agnostic"], rounded=h["rounded_nms"]
        )

    def predict_batch(
        self, batch: Batch, thresholds: NMSThresholds, at_once: int | None = None
    ) -> tuple[list[np.ndarray], list[Tensor] | None]:
        """Per image (n, 6) float32: x1, y1, x2, y2 in pixels of the image file, score, class, best
        first; and the raw prediction if it is that of the network itself, in one pass. at_once:
        most tiles that go through it together; default: batch_size, at most 32."""

        def decoded(images: Tensor) -> Decoded:
            return self.inference.predict(self.evaluated, images, thresholds.conf)[0]

        if batch.windows is not None:
            at_once = at_once or min(self.hparams["batch_size"], 32)
            return [rows_of_tiles(decoded, batch, thresholds, at_once)], None
        rows, raw = self.inference.predict(self.evaluated, batch.images, thresholds.conf)
        return to_rows(rows, batch.letterboxes, thresholds), raw

    def on_validation_epoch_end(self) -> None:
        self._finish_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._finish_evaluation("test")

    def _finish_evaluation(self, split: str) -> None:
        if self.trainer.state.fn == TrainerFn.FITTING:
            self.inference.clear()  # the training needs its memory
        summary, class_maps, losses, self.result = self.evaluation.finish(self.trainer.strategy)
        if losses.sums[-1]:
            self._log_losses(split, losses, sync=False)
        self.log_dict({f"{split}/{name}": value for name, value in summary.items()})
        datamodule: Any = getattr(self.trainer, "datamodule", None)
        if hasattr(datamodule, "class_maps") and not self.trainer.sanity_checking:
            datamodule.class_maps = class_maps

    def predict_step(
        self, batch: Batch, batch_idx: int, dataloader_idx: int = 0
    ) -> list[np.ndarray]:
        """See `predict_batch`; one array an image of the batch. Each box gets its best class
        only."""
        if not batch.letterboxes:
            return []
        return self.predict_batch(batch, self.nms_thresholds()._replace(classes=self.wanted))[0]

    def _log_losses(self, split: str, losses: LossSums, sync: bool) -> None:
        """The means over batches, as YOLOv5 shows them: every batch counts alike, whatever its
        size."""
        values = {f"{split}/{name}": mean for name, mean in losses.means().items()}
        self.log_dict(values, on_step=False, on_epoch=True, sync_dist=sync, batch_size=1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["compiled"] = self.compilation.shape is not None
        checkpoint["window_batches"] = self.window.batches
        checkpoint["origins"] = to_plain(self.network.origins)

    def settle(self, checkpoint: Mapping[str, Any]) -> None:
        """Options that were left to be chosen are those of the training that is continued, whatever
        it started from."""
        theirs = checkpoint.get("hyper_parameters", {})
        self.hparams.update({name: theirs[name] for name in self.left_open if name in theirs})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_network(self, checkpoint)
        self.settle(checkpoint)
        self._compiled_before = checkpoint.get("compiled", False)
        self.window.batches = checkpoint.get("window_batches", 0)
        self.network.origins = origins_of(checkpoint)
        if self.ema is None and any(key.startswith("ema.") for key in checkpoint["state_dict"]):
            self.ema = copy.deepcopy(self.network).requires_grad_(False)
