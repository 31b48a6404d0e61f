"""Predictor: trained networks or exported files that predict together, and which of their
detections count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from os.path import isfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from boltbox.detector.data.class_names import same_names
from boltbox.detector.data.file_list import find_images
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput
from boltbox.detector.data.inputs.sources import Image, PredictionSamples
from boltbox.detector.data.inputs.tiles import Tiles
from boltbox.detector.data.sample import Batch, check_floats, finish_on_device
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.inference.detections import Detections, class_numbers, rows_of_tiles, to_rows
from boltbox.detector.inference.exported import Exported
from boltbox.detector.inference.formats import load_member
from boltbox.detector.inference.tta import Forward, augmented
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.addresses import is_address
from boltbox.detector.system.errors import InputError, in_one_line
from boltbox.detector.system.ranges import (
    ClosedUnitInterval,
    NonNegativeInt,
    PositiveInt,
    check_arguments,
)
from boltbox.detector.system.torch_file import not_finite

Precision = Literal["16-mixed", "16-true", "32-true"]


class Predictor:
    """Finds objects in images.

    Args:
        members: Networks, of which fused copies predict, or exported files. Suppression chooses
            among the rows of all of them.
        names: Class names.
        known: Class names of each member; default: `names`.
        image_size: Longer side of the input in pixels, unless `predict` is given another.
        conf: Minimum confidence of a detection: one number, or one per class.
        iou: Overlap above which the less confident of two detections of a class is dropped.
        max_det: Maximum detections per image.
        agnostic: Suppress across classes.
        classes: Only detections of these classes, by name or number.
        tta: Predict three times on each image, at several sizes and mirrored.
        multi_label: A box may be a detection of several classes, as in validation.
        rounded: Suppress as YOLOv5 does; see `boltbox.detector.model.postprocess.nms`.
        precision: Of `predict_batches` and `predict`: 16-mixed (float32 without a GPU), 32-true, or
            16-true, which halves the weights.
        fuse: False: predict with the networks themselves.
        finite: An output that is not finite is an error; else it counts as no detection.
        tiles: On larger images, unless `predict` is given others.

    Raises:
        InputError: There is no such class or precision, or `conf` has not one number per class.

    Attributes:
        names: Class names of the detections.
        files: Files that the members were loaded from.
        image_size: Longer side of the input in pixels.
        tiles: That the first member was trained on.
        stride: Sides of the input are multiples of it.
        thresholds: Arguments of `nms`.
    """

    files: Sequence[Path] = ()

    def __init__(
        self,
        members: Sequence[YOLOv5 | Exported],
        names: Sequence[str],
        known: Sequence[Sequence[str]] | None = None,
        image_size: PositiveInt = 640,
        conf: ClosedUnitInterval | Sequence[float] = 0.25,
        iou: ClosedUnitInterval = 0.45,
        max_det: PositiveInt = 1000,
        agnostic: bool = False,
        classes: Sequence[int | str] | None = None,
        tta: bool = False,
        multi_label: bool = False,
        rounded: bool = False,
        precision: Precision = "16-mixed",
        fuse: bool = True,
        finite: bool = True,
        tiles: Tiles | None = None,
    ) -> None:
        check_arguments(Predictor, locals())
        if np.ndim(conf) and len(conf) != len(names):
            raise InputError(f"conf has {len(conf)} numbers, but there are {len(names)} classes")
        self.thresholds: dict[str, Any] = {
            "conf": conf,
            "iou": iou,
            "max_det": int(max_det),  # it may be of NumPy
            "agnostic": agnostic,
            "classes": class_numbers(classes, names),
            "multi_label": multi_label,
            "rounded": rounded,
        }
        self.names = list(names)
        # by the class of a prediction, its index in `names`; they differ after `rename` only
        self.numbers = np.arange(len(names), dtype=np.float32)
        self.image_size = image_size
        self.tiles = tiles
        self.precision = precision
        self.finite = finite
        self.stride = max(32, *(member.max_stride for member in members))
        self.exported = [member for member in members if isinstance(member, Exported)]
        self.networks: list[YOLOv5] = []
        self._members: list[Forward] = []
        device, dtype = _device_and_dtype(members)
        if precision == "16-true":
            dtype = torch.float16
        self.device = device
        if known is None:
            known = [names] * len(members)
        for member, member_names in zip(members, known, strict=True):
            forward: Forward = member
            if isinstance(member, YOLOv5):
                network = member.fused().to(device, dtype) if fuse else member
                self.networks.append(network)
                forward = partial(decoded_rows, network)
                if tta:
                    of_levels = network.head.rows_per_level
                    forward = partial(augmented, forward, of_levels, member.max_stride)
            elif tta:
                raise InputError(f"tta: {member.path} is an exported file. Give a checkpoint")
            if list(member_names) != list(names):
                forward = partial(in_classes, forward, member_names, names)
            self._members.append(forward)
        self.network: YOLOv5 | None = None  # if a single network predicts, in a single pass
        if len(members) == len(self.networks) == 1 and not tta:
            self.network = self.networks[0]

    @classmethod
    def load(
        cls,
        path: str | Path,
        ensemble: Sequence[str | Path] = (),
        device: str | torch.device | None = None,
        run: Path | None = None,
        thresholds: Literal["own"] | None = None,
        **options: Any,
    ) -> Predictor:
        """A Predictor of files. Nothing in them is executed.

        Args:
            path: A checkpoint of boltbox (its moving average predicts), a run folder (its best),
                YOLOv5's weights (.pt), an exported file, or `last` or `best`.
            ensemble: Further such files. Classes are merged by name.
            device: Of networks; default: the first GPU, if there is one.
            run: Folder of `last` and `best`; default: the most recent fit.
            thresholds: own: instead of `conf`, the confidence per class that had the best F1 in the
                validation of the training.
            options: Of Predictor.

        Raises:
            InputError: There is no such file, it is no detector, or holds no thresholds.
        """
        check_arguments(Predictor.load, {"path": path})
        device = device_of(device)
        names: list[str] = []
        known: list[list[str]] = []
        best_f1: list[float] = []
        members: list[YOLOv5 | Exported] = []
        files: list[Path] = []
        for file in chain([path], ensemble):
            loaded, member = load_member(file, device, run)
            if not members:
                options.setdefault("image_size", loaded.image_size)
                options.setdefault("tiles", loaded.tiles)
                options.setdefault("rounded", loaded.arguments().get("literal", False))
            shared = same_names(names, loaded.names)
            new = [k for k in range(len(loaded.names)) if k not in shared]
            if thresholds and new and not loaded.thresholds:
                raise InputError(
                    f"thresholds own: {file} holds none; the validation of a training chooses them."
                    " Give --conf"
                )
            names += [loaded.names[k] for k in new]
            if loaded.thresholds:
                best_f1 += [value for k, value in enumerate(loaded.thresholds) if k in new]
            members.append(member)
            known.append(loaded.names)
            files.append(loaded.path)
        if thresholds:
            options["conf"] = best_f1
        predictor = cls(members, names, known, **options)
        predictor.files = files
        return predictor

    def detect(
        self, batch: Batch, at_once: int = 16
    ) -> tuple[list[np.ndarray], list[Tensor] | None]:
        """The detections of a batch on the device.

        Args:
            batch: Images, or the tiles of one image.
            at_once: Maximum tiles of an image that go through the networks together.

        Returns:
            Per image (n, 6) float32: x1, y1, x2, y2 in pixels of the image file, score, class; best
            first. And the raw prediction, if it is that of one network in one pass.

        Raises:
            InputError: The images are no floats, or the output is not finite.
        """
        check_floats(batch.images)
        if batch.windows is not None:
            rows = rows_of_tiles(lambda x: self._forward(x)[0], batch, self.thresholds, at_once)
            return [rows], None
        decoded, raw = self._forward(batch.images)
        return to_rows(decoded, batch.letterboxes, self.thresholds), raw

    def _forward(self, images: Tensor) -> tuple[Tensor, list[Tensor] | None]:
        """(B, 3, H, W) -> (B, R, 5 + C), and the raw prediction of a single network."""
        with without_bfloat16(images.device.type):
            if self.network is None:
                raw = None
                decoded = torch.cat([forward(images) for forward in self._members], 1)
            else:
                raw = [maps.float() for maps in self.network(images.to(dtype_of(self.network)))]
                decoded = self.network.head.decode(raw)
        # one pass over the rows; suppression waits for the device anyway
        if self.finite and not decoded.sum(dtype=torch.float32).isfinite():
            name = "the network's output"
            for network in self.networks:
                tensor = not_finite(network.state_dict())
                if tensor:
                    name = tensor
            raise InputError(
                f"{name} is not finite. Give precision 32-true, or a checkpoint from before the"
                " training diverged"
            )
        return decoded, raw

    def rename(self, names: Sequence[str]) -> None:
        """Return only detections of the classes `names`, with their numbers in that list.

        Raises:
            InputError: The detector has none of these classes.
        """
        chosen = self.thresholds["classes"]
        numbers = {}
        for number, k in same_names(self.names, names).items():
            if chosen is None or k in chosen:
                numbers[k] = number
        if not numbers:
            raise InputError(
                f"none of the classes {', '.join(names)} is one of the detector's:"
                f" {', '.join(self.names)}"
            )
        self.thresholds["classes"] = list(numbers)
        self.numbers[list(numbers)] = list(numbers.values())
        self.names = list(names)

    def inputs(
        self,
        image_size: int | None = None,
        tile_size: int | None = None,
    ) -> EvaluationInput:
        """How images become the input; for the arguments see `predict`."""
        if image_size is None:
            image_size = self.image_size
        fixed = shape_for(self.exported, image_size, self.stride)
        size = round_up(image_size, self.stride)
        tiles = self.tiles
        if tile_size is not None:
            tiles = Tiles(tile_size) if tile_size else None
        return EvaluationInput(size, self.stride, 0.0, fixed, tiles)

    @torch.inference_mode()
    def predict_batches(
        self, batches: Iterable[Batch], at_once: int = 16
    ) -> Iterator[tuple[Batch, list[np.ndarray]]]:
        """Each batch with the rows of its images; for the arguments see `detect`."""
        mixed = self.precision == "16-mixed" and self.device.type == "cuda"
        for batch in batches:
            batch = finish_on_device(batch, self.device)
            with torch.autocast("cuda", torch.float16, enabled=mixed):
                rows, _ = self.detect(batch, at_once)
            for of_image in rows:
                of_image[:, 5] = self.numbers[of_image[:, 5].astype(int)]
            yield batch, rows

    def predict(
        self,
        images: Image | Sequence[Image],
        image_size: PositiveInt | None = None,
        tile_size: NonNegativeInt | None = None,
        batch_size: PositiveInt = 16,
    ) -> Detections | list[Detections]:
        """The objects in images, the same as `cli.py predict` finds with the same options.

        `predictor(images)` is the same.

        Args:
            images: One or a list of: path of an image file, its bytes, PIL image, (H, W, 3) uint8
                RGB array (of `cv2.imread`, which returns BGR: `array[..., ::-1]`; (H, W): grey),
                (3, H, W) tensor, uint8 or float in 0..1. Or a folder of this disk or a glob
                pattern, whose images are sorted; a file that cannot be read is named and skipped.
            image_size: Longer side of the input in pixels, rounded up to the stride; default: that
                of the training.
            tile_size: Predict on larger images whole and in tiles whose sides are this many pixels;
                0: no tiles; default: as in the training.
            batch_size: Maximum images, or tiles of one, that go through the network together.

        Returns:
            Detections, or a list of them for several images.

        Raises:
            InputError: Something is no image, there is no such class, or an output is not finite.
        """
        numbers = {"image_size": image_size, "tile_size": tile_size, "batch_size": batch_size}
        check_arguments(Predictor.predict, numbers)
        is_pattern = False  # or the path of a folder
        if isinstance(images, str | Path):
            is_pattern = not isfile(images) and not is_address(images)
        is_list = isinstance(images, Sequence) and not isinstance(images, str | bytes)
        items: Any = images if is_list else [images]
        if is_pattern:
            items = find_images(images)  # type: ignore[arg-type]
            if not items:
                raise InputError(f"{images}: no image file there")
        inputs = self.inputs(image_size, tile_size)
        samples = PredictionSamples(
            items, inputs, batch_size, lenient=is_pattern and len(items) > 1
        )
        detections: dict[int, Detections] = {}
        for batch, rows in self.predict_batches(samples.read(), batch_size):
            for index, of_image in zip(batch.indices, rows, strict=True):
                path = str(items[index]) if isinstance(items[index], str | Path) else None
                detections[index] = Detections.of(of_image, self.names, path)
        if is_pattern and not detections:
            raise InputError(f"{images}: none of its images could be read")
        if is_pattern or is_list:
            return [detections[i] for i in sorted(detections)]
        return detections[0]

    __call__ = predict


def shape_for(members: Iterable[object], image_size: int, stride: int) -> tuple[int, int] | None:
    """(height, width) in pixels that all members take; None: any multiples of the stride.

    Args:
        members: Networks and exported files.
        image_size: Longer side in pixels.
        stride: Of all together.

    Raises:
        InputError: An exported file among them takes no images of this size, or another member
            takes none of its shape.
    """
    fixed: tuple[int, int] | None = None
    for member in members:
        if isinstance(member, Exported) and not member.metadata.dynamic:
            height, width = member.metadata.image_size
            takes = f"{member.path} takes images of {height}x{width} px"
            if image_size != member.image_size:
                raise InputError(f"{takes}, not of {image_size} px")
            if height % stride or width % stride or fixed not in (None, (height, width)):
                raise InputError(
                    f"{takes}, which others of the ensemble do not; export it with --dynamic true"
                )
            fixed = (height, width)
    return fixed


def _device_and_dtype(members: Sequence[YOLOv5 | Exported]) -> tuple[torch.device, torch.dtype]:
    """Those of the first network; exported files run on the CPU."""
    for member in members:
        if isinstance(member, YOLOv5):
            weight = next(member.parameters())
            return weight.device, weight.dtype
    return torch.device("cpu"), torch.float32


def in_classes(
    forward: Forward, known: Sequence[str], names: Sequence[str], images: Tensor
) -> torch.Tensor:
    """A member's rows with the columns of all classes; those of other members are 0.

    Args:
        forward: Returns (B, R, 5 + K).
        known: The K classes of the member.
        names: All classes.
        images: (B, 3, H, W) in 0..1.

    Returns:
        (B, R, 5 + C).
    """
    shared = same_names(known, names)  # {index in names: index in known}
    columns_here = [5 + k for k in shared]
    columns_there = list(shared.values())
    own = forward(images)
    scores = own[..., 5:]
    if len(known) == 1:  # the score of a single class is not trained: objectness says it all
        scores = torch.ones_like(scores)
    united = own.new_zeros(*own.shape[:2], 5 + len(names))
    united[..., :5] = own[..., :5]
    united[..., columns_here] = scores[..., columns_there]
    return united


def device_of(name: str | torch.device | None) -> torch.device:
    """By its name, or a GPU by its number; None: the first GPU, if there is one."""
    if name in (None, ""):
        place = "cuda" if torch.cuda.is_available() else "cpu"
    else:
        place = f"cuda:{name}" if str(name).isdecimal() else str(name)
    try:
        device = torch.device(place)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:
        raise InputError(f"device {name}: there is none of this name ({in_one_line(e)})") from None
    return device


def without_bfloat16(device: str) -> AbstractContextManager[None]:
    """Autocast to bfloat16 is off within: its 8 bits are too few for confidences."""
    if torch.get_autocast_dtype(device) != torch.bfloat16:
        return nullcontext()
    return torch.autocast(device, enabled=False)


def dtype_of(module: torch.nn.Module) -> torch.dtype:
    """That of a network's weights."""
    return next(module.parameters()).dtype


def decoded_rows(network: YOLOv5, images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, R, 5 + C) float32, whatever the network's precision."""
    return network.head.decode(network(images.to(dtype_of(network))))
