"""DetectionData: from a dataset's file to batches on the device."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch.distributed as dist
from torch.utils.data import DataLoader

from boltbox.detector.data.cache.images import ResizedImages, cache_images
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, EvaluationSamples
from boltbox.detector.data.inputs.tiles import OVERLAP, Tiles
from boltbox.detector.data.loader import make_loader
from boltbox.detector.data.sample import Batch, collate, finish_on_device
from boltbox.detector.data.sampler import (
    TrainBatches,
    class_weights,
    image_weights,
    position,
    resume_epoch,
)
from boltbox.detector.data.transforms.augment import Augment, TrainSamples
from boltbox.detector.data.transforms.letterbox import rectangular_batches, round_up
from boltbox.detector.data.windows import Windows, choose_tile_size
from boltbox.detector.system.configuration import plain
from boltbox.detector.system.errors import InputError, Unreachable
from boltbox.detector.system.gather import gather
from boltbox.detector.system.ranges import BelowOne, NonNegativeInt, PositiveInt, check_arguments
from boltbox.detector.system.rank_zero import print_fact, rank_zero_print

Cache = Literal["auto", "none", "ram", "disk"]
# by the Trainer's stage; `Trainer.predict` is for users' own data
SPLITS = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}


class DetectionData(L.LightningDataModule):
    """Training, validation and test images.

    Args:
        dataset: A data.yaml, an exported folder or zip file, `demo`, or a public dataset that is
            fetched: coco128, bccd, voc2007, coco2017 (docs/data.md). A fit without one uses the
            demo dataset, by default at 128 px, in batches of 64, for 60 epochs.
        image_size: Longer side of the network's input in pixels. It is rounded up to the network's
            stride.
        batch_size: Images per batch over all devices; default: 16, in a short run 8 or 4
            (docs/recipe.md). auto: the largest power of two that fits the memory of a GPU.
        workers: Maximum loader processes per device; 0: load in the training process.
        seed: Of the order and the augmentation.
        augment: Strengths of the training augmentation.
        single_class: Treat every object as one class.
        rect: Train on rectangular batches, without shuffling and mosaic.
        image_weights: Sample images with rare or poorly detected classes more often; turns rect
            off.
        val_batch_size: Images per validation batch and device; default: batch_size, at most 32.
        tile_size: Train on windows of larger images, and evaluate these as a whole and in
            overlapping tiles; their sides are this many pixels of the image file (docs/predict.md).
            auto: in a fit, if the objects are small in whole images; 0: no tiles.
        tile_overlap: Minimum share of a tile that neighbours have in common in an evaluation.
        cache: Keep the resized images of a fit, if all of them fit. `ram`: in memory that all
            processes share; `disk`: in the cache folder; `auto`: `ram` if they need at most a
            quarter of the free memory.
        split: Share of the training images to validate on, like 0.2, for a dataset that names
            none: always the same images.
        format: Label format, if it is not detected: yolo, voc, coco, metadata, dota, csv, or the
            import path of a custom class (docs/formats.md).

    Raises:
        InputError: the dataset cannot be used; the message says what to do.
    """

    def __init__(
        self,
        dataset: str | Path | None = None,
        image_size: PositiveInt = 640,
        batch_size: PositiveInt | Literal["auto"] | None = None,
        workers: NonNegativeInt = 8,
        seed: NonNegativeInt = 0,
        augment: Augment = Augment(),  # noqa: B008 (frozen)
        single_class: bool = False,
        rect: bool = False,
        image_weights: bool = False,
        val_batch_size: PositiveInt | None = None,
        tile_size: NonNegativeInt | Literal["auto"] = "auto",
        tile_overlap: BelowOne = OVERLAP,
        cache: Cache = "auto",
        split: float | None = None,
        format: str | None = None,
    ) -> None:
        if dataset is None:
            raise InputError("no data: give --data.dataset FILE (a data.yaml, or demo)")
        check_arguments(DetectionData, locals())
        dataset = str(dataset)
        self.options = locals().copy()  # by name
        self.options.pop("self")
        self.options.pop("__class__")  # which `super` below needs
        self.options = plain(self.options)
        super().__init__()
        self.file = DatasetFile.read(dataset, split, format, needs_val=True)
        self.batch_size: int = 16 if batch_size in (None, "auto") else self.options["batch_size"]
        self.workers = workers
        self.seed = seed
        self.cache = cache
        self.augment = augment
        self.single_class = single_class
        self.rect = rect and not image_weights
        self.weighted = image_weights
        self.tile_size: int = 0 if tile_size == "auto" else tile_size
        self.tile_overlap = tile_overlap
        self.names = list(self.file.names)
        if single_class and len(self.names) > 1:
            self.names = ["item"]

        # `setup` asks the Detector for these
        self.literal = False
        self.stride = 32
        self.fixed_shape: tuple[int, int] | None = None  # height, width outside training

        self.datasets: dict[str, DetectionDataset] = {}  # by split
        self.images: dict[str, ResizedImages] = {}  # by split
        self.train_order: np.ndarray | None = None  # None: a new one each epoch
        self.epoch_maps = [0.0] * len(self.names)  # mAP50-95 by class, for this epoch's weights
        self.images_done: int | None = None  # of a resumed epoch, until it starts
        self._passes = 0  # over the training images, without a Trainer

    @property
    def image_size(self) -> int:
        """Longer side of the input in pixels, a multiple of the network's stride."""
        return round_up(self.options["image_size"], self.stride)

    @property
    def val_batch_size(self) -> int:
        """Images per validation batch and device; YOLOv5 takes twice the training's."""
        if self.options["val_batch_size"]:
            return self.options["val_batch_size"]
        return 2 * self.batch_size if self.literal else min(self.batch_size, 32)

    @property
    def tiles(self) -> Tiles | None:
        """Those of large images, if there are any."""
        return Tiles(self.tile_size, self.tile_overlap) if self.tile_size else None

    @property
    def _fitting(self) -> bool:
        return self.trainer is None or self.trainer.state.fn == "fit"

    @property
    def _rank_and_world(self) -> tuple[int, int]:
        if self.trainer is None:
            return 0, 1
        return self.trainer.global_rank, self.trainer.world_size

    @property
    def _module(self) -> Any:
        """The LightningModule: a Detector, another one, or None."""
        return self.trainer.lightning_module if self.trainer else None

    def prepare_data(self) -> None:
        self.file.prepare()

    def _leave_if_replaced(self) -> bool:
        """Whether the Trainer was given loaders this time. Lightning keeps the data module of an
        earlier fit as `trainer.datamodule`; it is taken away."""
        if self.trainer is None or getattr(self.trainer, "datamodule", None) is not self:
            return False
        # holds the data module of this call, or None
        given = self.trainer._data_connector._datahook_selector
        if given is None or given.datamodule is self:
            return False
        self.trainer.datamodule = None  # type: ignore[attr-defined]
        return True

    def setup(self, stage: str) -> None:
        if self._leave_if_replaced():
            return
        if stage == "predict":
            raise InputError(
                "trainer.predict is for loaders of your own; for files there is detector.predict("
                'data.datasets["val"].files), and Predictor'
            )
        module = self._module
        opened_with = (self.image_size, self.literal)
        if hasattr(module, "shape_for"):  # a Detector
            self.stride = max(module.max_stride(), 32)
            self.literal = module.options.literal
            self.fixed_shape = module.shape_for(self.image_size)
        size = self.image_size
        if (size, self.literal) != opened_with:  # the splits that an earlier fit has opened
            self.datasets.clear()
            self.images.clear()
        given = self.options["image_size"]
        if size != given and not self.datasets:  # not said yet
            rank_zero_print(
                f"data.image_size {given} is rounded up to {size}, a multiple of the network's"
                " stride"
            )
        for split in SPLITS[stage]:
            if split not in self.datasets:
                self._open(split)
        if stage == "fit":
            self._set_up_fit()
        if self.tiles:
            number = f"{len(self.train_samples)} windows per epoch; " if stage == "fit" else ""
            print_fact("tiles", f"{self.tiles} ({number}--data.tile_size 0: none)")

    def _open(self, split: str) -> None:
        """Read the labels of a split."""
        dataset = self._read_once(split)
        counts, *left_out = dataset.summary()
        print_fact(split, counts)
        for line in left_out:
            rank_zero_print(line)
        self.datasets[split] = dataset
        size = self.image_size
        if split != "train":
            self.images[split] = ResizedImages(dataset, size, smooth=True)
            return
        if self.options["tile_size"] == "auto":
            self.tile_size, reason = choose_tile_size(dataset.labels, size)
            if self.tile_size:
                print_fact("tile_size", f"{self.tile_size} (auto: {reason})")
        if self.tile_size:
            self.images[split] = Windows(dataset, size, self.tile_size)
        else:
            shrink = not self.literal and self.augment.can_be_lazy(self.rect)
            self.images[split] = ResizedImages(dataset, size, shrink=shrink)

    def _read_once(self, split: str) -> DetectionDataset:
        """A split. The first process of each machine reads it, the others map what it has written
        to the cache, by a stamp. They look for the stamp in the processes' store: a collective
        would time out meanwhile."""
        read = partial(self.file.open, split, single_class=self.single_class)
        if not self.trainer or not dist.is_initialized():
            return read()
        dataset = None
        error = ""
        store = dist.distributed_c10d._get_default_store()
        key = f"labels/{split}/{self.trainer.node_rank}"
        if self.trainer.local_rank == 0:
            stamp = ""
            try:
                dataset = read()
                stamp = dataset.stamp
            except (InputError, Unreachable) as e:
                error = str(e)
            store.set(key, stamp)
        while not store.check([key]):
            time.sleep(0.1)
        stamp = store.get(key).decode()
        errors = gather(error)
        if self.trainer.local_rank == 0:
            store.delete_key(key)  # another training in these processes has answers of its own
        for error in filter(None, errors):
            raise InputError(error)
        return read(stamp=stamp) if dataset is None else dataset

    def _set_up_fit(self) -> None:
        """Batch size, order of the images, augmentation and cache."""
        images = self.images["train"]
        samples = len(images.image_of)
        given = self.options["batch_size"]
        if given in (None, "auto") and hasattr(self._module, "choose_batch_size"):
            fill = given == "auto"
            self.batch_size = self._module.choose_batch_size(self.image_size, samples, fill)
            self.options["batch_size"] = self.batch_size
        _, world = self._rank_and_world
        if rest := self.batch_size % world:
            lower = self.batch_size - rest
            nearest = f"{lower} or {lower + world}" if lower else f"{world}"
            raise InputError(
                f"data.batch_size {self.batch_size} does not divide by {world} devices; nearest:"
                f" {nearest}"
            )
        shapes = None
        if self.rect:
            batches, shapes = rectangular_batches(
                images.sample_sizes,
                self.image_size,
                self.batch_size,
                self.stride,
                pad=0.0,
                stable=not self.literal,
            )
            self.train_order = np.concatenate(batches)
        self.train_samples = self._augmented(shapes)
        if self.cache != "none" and self._fitting and not images.store:
            cached = {"train": images} if self.tiles else self.images  # tiles are cut of the file
            cache_images(self.cache, cached, self.file.source, self.trainer)

    def _augmented(self, shapes: np.ndarray | None) -> TrainSamples:
        """The training samples; shapes: see `Augment.steps`."""
        lazy = not self.literal
        unmixed = replace(self.augment, mosaic=0.0, mixup=0.0)
        epochs = self.trainer.max_epochs if self.trainer else None
        closing_from = math.inf
        if self.augment.close_mosaic and epochs and epochs > 0:
            closing_from = epochs - self.augment.close_mosaic
        return TrainSamples(
            self.images["train"],
            self.augment.steps(self.image_size, shapes, lazy),
            self.seed,
            closing_steps=unmixed.steps(self.image_size, shapes, lazy),
            closing_from=closing_from,
        )

    def train_dataloader(self) -> DataLoader:
        rank, world = self._rank_and_world
        sampler = TrainBatches(
            len(self.train_samples),
            self.batch_size,
            self.seed,
            position=self._position,
            fixed_order=self.train_order,
            weights=self._image_weights if self.weighted else None,
            rank=rank,
            world=world,
        )
        resume_epoch(self.trainer, sampler, self.images_done)
        self.images_done = None
        return self._loader(self.train_samples, sampler)

    def _position(self) -> tuple[int, int]:
        """See `position`; without a Trainer, each pass over the images is an epoch."""
        if self.trainer:
            return position(self.trainer)
        epoch = self._passes
        self._passes += 1
        return epoch, 0

    def _image_weights(self) -> np.ndarray:
        """(n,) weights of an epoch. A validation within the epoch does not change them, nor does a
        resume."""
        _, batches_done = position(self.trainer)
        if batches_done == 0 and hasattr(self._module, "evaluation"):
            self.epoch_maps = list(self._module.evaluation.class_maps)
        dataset = self.datasets["train"]
        weights = class_weights(dataset.class_counts()) * (1 - np.array(self.epoch_maps)) ** 2
        of_images = image_weights(dataset.labels, weights)
        image_of = self.images["train"].image_of
        # the windows of an image share its weight
        return (of_images / np.bincount(image_of))[image_of]

    def val_dataloader(self) -> DataLoader:
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader:
        return self._evaluation_loader("test")

    def _evaluation_loader(self, split: str) -> DataLoader:
        inputs = EvaluationInput(
            self.image_size,
            self.stride,
            pad=0.5,
            fixed=self.fixed_shape,
            tiles=self.tiles,
        )
        sizes = self.datasets[split].labels.sizes
        batches, shapes = inputs.batches(sizes, self.val_batch_size, not self.literal)
        samples = EvaluationSamples(self.images[split], inputs, shapes)
        rank, world = self._rank_and_world
        rank_batches = batches[rank::world]
        if not rank_batches:
            # All processes must reach the same collectives, so a process without a batch repeats
            # the first one. The metrics count an image once.
            rank_batches = batches[:1]
        return self._loader(samples, rank_batches, inputs.ahead)

    def _loader(self, samples: Any, batches: Iterable[Any], ahead: int = 4) -> DataLoader:
        processes = 1  # also for tasks of srun, which have cores of their own, and no LOCAL_RANK
        if self.trainer and "LOCAL_RANK" in os.environ:
            processes = self.trainer.num_devices
        return make_loader(samples, batches, collate, self.workers, processes, ahead)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if isinstance(batch, Batch):
            return finish_on_device(batch, batch.images.device)
        return batch  # of a user's own loader

    def fingerprints(self) -> dict[str, list[int]]:
        """By split, what tells whether its images and labels are the same."""
        return {split: dataset.fingerprint for split, dataset in self.datasets.items()}

    def state_dict(self) -> dict[str, Any]:
        _, batches_done = position(self.trainer)
        samples = len(self.images["train"].image_of) if "train" in self.images else 0
        return {
            "epoch_maps": self.epoch_maps,
            "images_done": batches_done * min(self.batch_size, samples),
            "fingerprints": self.fingerprints(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch_maps = state_dict["epoch_maps"]
        self.images_done = state_dict["images_done"]
        if not self._fitting:
            return
        now = self.fingerprints()
        for split, before in state_dict["fingerprints"].items():
            if now.get(split, before) != before:
                was = f"it had {before[0]} images with {before[1]} objects"
                print_fact("warning", f"{split} has changed since the checkpoint; {was}")

    def path(self, split: str, index: int) -> str:
        """The file of an image."""
        return self.datasets[split].files[self.images[split].image_of[index]]
