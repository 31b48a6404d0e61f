"""Predictor: trained networks or exported files that predict together, and which of their
detections count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from boltbox.detector.data.class_names import same_names
from boltbox.detector.data.images import find_images
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput, collate_items
from boltbox.detector.data.inputs.sources import Image, Pictures
from boltbox.detector.data.sample import Batch, finish_on_device
from boltbox.detector.data.transforms.letterbox import round_up
from boltbox.detector.inference.detections import (
    Detections,
    class_numbers,
    rows_of_tiles,
    to_rows,
)
from boltbox.detector.inference.exported import Exported, shape_for
from boltbox.detector.inference.members import device_of, in_classes, load_member
from boltbox.detector.inference.tta import Rows, augmented
from boltbox.detector.model.network import YOLOv5
from boltbox.detector.system.errors import InputError, nearest
from boltbox.detector.weights.torch_file import not_finite

Precision = Literal["16-mixed", "16-true", "32-true"]
Confidence = float | Sequence[float] | Mapping[str, float]  # of all classes, of each, or by name


class Predictor:
    """Finds objects in images.

    Args:
        members: Networks, of which fused copies are taken, or exported files; suppression chooses
            among the rows of all of them.
        names: Class names.
        known: Class names of each member; default: all know all.
        image_size: Longer side of the input in pixels, unless `predict` is given another.
        conf: Minimum confidence of a detection, or of each class one; or of some classes, by name,
            and 0.25 of the others.
        iou: Overlap above which the less confident of two detections of a class is dropped.
        max_det: Maximum detections per image.
        agnostic: Suppress across classes.
        classes: Only detections of these classes, by name or number.
        tta: Predict three times on each image, at several sizes and mirrored.
        multi_label: A box may be a detection of several classes, as in validation.
        rounded: Suppress as YOLOv5 does; see `boltbox.detector.model.postprocess.nms`.
        precision: Of `find` and `predict`: 16-mixed (float32 without a GPU), 32-true, or 16-true,
            which halves the weights.
        fuse: False: predict with the networks themselves.
        finite: An output that is not finite is an error; else it counts as no detection.

    Raises:
        InputError: no such class or precision, or a list `conf` that has not one for each class.

    Attributes:
        files: that it was loaded from.
    """

    files: Sequence[Path] = ()

    def __init__(
        self,
        members: Sequence[YOLOv5 | Exported],
        names: Sequence[str],
        known: Sequence[Sequence[str]] | None = None,
        image_size: int = 640,
        conf: Confidence = 0.25,
        iou: float = 0.45,
        max_det: int = 1000,
        agnostic: bool = False,
        classes: Sequence[int | str] | None = None,
        tta: bool = False,
        multi_label: bool = False,
        rounded: bool = False,
        precision: Precision = "16-mixed",
        fuse: bool = True,
        finite: bool = True,
    ) -> None:
        if precision not in ("16-mixed", "16-true", "32-true"):
            raise InputError(f"precision is {precision!r}; choose 16-mixed, 16-true or 32-true")
        self.thresholds: dict[str, Any] = {
            "conf": confidences(conf, names, 0.25),
            "iou": iou,
            "max_det": max_det,
            "agnostic": agnostic,
            "classes": class_numbers(classes, names),
            "multi_label": multi_label,
            "rounded": rounded,
        }
        self.names, self.image_size, self.precision = list(names), image_size, precision
        self.own_names = list(names)  # whatever `rename` says
        self.numbers = np.arange(len(names), dtype=np.float32)  # of the classes, see `rename`
        self.stride = max(32, *(member.max_stride for member in members))
        self.exported = [m for m in members if isinstance(m, Exported)]
        networks = [m for m in members if isinstance(m, YOLOv5)]
        weight = next(networks[0].parameters()) if networks else torch.zeros(0)
        self.device = weight.device
        dtype = torch.float16 if precision == "16-true" else weight.dtype
        self.finite, self.networks = finite, list[YOLOv5]()
        self.network: YOLOv5 | None = None  # the only one, in one pass
        self._members: list[Rows] = []
        for member, classes_of in zip(members, known or [names] * len(members), strict=True):
            rows: Rows = member
            head: Any = member
            if isinstance(member, YOLOv5):
                network = (member.fused() if fuse else member).to(self.device, dtype)
                self.networks.append(network)
                rows, head = forward_function(network), network.head
                self.network = network if len(members) == 1 and not tta else None
            if tta:
                rows = augmented(rows, head.rows_per_level, member.max_stride)
            self._members.append(in_classes(rows, classes_of, names))

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
            path: a checkpoint of ours (its moving average predicts), a run folder (its best),
                YOLOv5's weights (.pt), an exported file, or `last` or `best` (of the run that was
                trained last).
            ensemble: further such files; what one of them knows, all know, by the names of the
                classes.
            device: of networks; default: the first GPU, if there is one.
            run: folder of `last` and `best`; default: the most recent fit.
            thresholds: own: in place of `conf`, of each class the confidence that had the best F1
                in the validation of the training.
            options: of Predictor.

        Raises:
            InputError: no such file, not a detector, or no thresholds in it.
        """
        device, names, chosen = device_of(device), list[str](), list[float]()
        members, known, files = list[YOLOv5 | Exported](), list[list[str]](), list[Path]()
        for file in (path, *ensemble):
            found, member = load_member(file, device, run)
            if not members:
                options.setdefault("image_size", found.image_size)
                options.setdefault("rounded", found.arguments().get("literal", False))
            both = same_names(names, found.names)
            new = [k for k in range(len(found.names)) if k not in both]
            if thresholds and new and not found.thresholds:
                raise InputError(
                    f"thresholds own: {file} holds none; the validation of a training chooses them:"
                    " give --conf"
                )
            names += [found.names[k] for k in new]
            chosen += [own for k, own in enumerate(found.thresholds or ()) if k in new]
            known.append(found.names)
            members.append(member)
            files.append(found.path)
        options |= {"conf": chosen} if thresholds else {}
        predictor = cls(members, names, known, **options)
        predictor.files = files
        return predictor

    def detect(
        self, batch: Batch, at_once: int = 16, thresholds: dict[str, Any] | None = None
    ) -> tuple[list[np.ndarray], list[Tensor] | None]:
        """Per image (n, 6) float32: x1, y1, x2, y2 in pixels of the image file, score, class, best
        first; and the raw prediction, if it is that of one network in one pass.

        Args:
            batch: on the device.
            at_once: most tiles of an image that go through the networks together.
            thresholds: in place of the Predictor's.

        Raises:
            InputError: the output is not finite.
        """
        thresholds = thresholds or self.thresholds
        if batch.windows is not None:
            rows = rows_of_tiles(lambda x: self._look(x)[0], batch, thresholds, at_once)
            return [rows], None
        decoded, raw = self._look(batch.images)
        return to_rows(decoded, batch.letterboxes, thresholds), raw

    def _look(self, images: Tensor) -> tuple[Tensor, list[Tensor] | None]:
        """(B, R, 5 + C), the rows of images (B, 3, H, W); and the raw prediction, if it is that of
        one network in one pass."""
        decoded, raw = self._forward(images)
        # one pass over the rows; suppression waits for the device anyway
        if self.finite and not decoded.sum(dtype=torch.float32).isfinite():
            tensors = [not_finite(network.state_dict()) for network in self.networks]
            name = next(filter(None, tensors), "the network's output")
            raise InputError(
                f"{name} is not finite; give precision 32-true, or a checkpoint from before the"
                " training diverged"
            )
        return decoded, raw

    def _forward(self, images: Tensor) -> tuple[Tensor, list[Tensor] | None]:
        """Without autocast to bfloat16: its 8 bits are too few for confidences."""
        device = images.device.type
        low = torch.get_autocast_dtype(device) == torch.bfloat16
        with torch.autocast(device, enabled=False) if low else contextlib.nullcontext():
            if self.network is None:
                return torch.cat([member(images) for member in self._members], 1), None
            raw = [maps.float() for maps in self.network(images.to(dtype_of(self.network)))]
        return self.network.decode(raw), raw

    def rename(self, names: Sequence[str]) -> None:
        """From now on `find` and `predict` give the numbers of the classes `names`, and detections
        of these alone.

        Raises:
            InputError: the detector knows none of them.
        """
        asked, common = self.thresholds["classes"], same_names(self.names, names)
        pairs = {k: c for c, k in common.items() if asked is None or k in asked}
        if not pairs:
            raise InputError(
                f"none of the classes {', '.join(names)} is one of the detector's:"
                f" {', '.join(self.names)}"
            )
        self.thresholds["classes"] = [*pairs]
        self.numbers = np.array([pairs.get(k, -1) for k in range(len(self.names))], np.float32)
        self.names = list(names)

    def inputs(
        self,
        image_size: int | None = None,
        tile_size: int | None = None,
        tile_overlap: float = 0.2,
    ) -> EvaluationInput:
        """How images become the input: their longer side gets `image_size` pixels, rounded up to
        the stride; default: that of the training. See `predict`."""
        size = image_size or self.image_size
        fixed, size = shape_for(self.exported, size), round_up(size, self.stride)
        return EvaluationInput(size, self.stride, 0.0, fixed, tile_size, tile_overlap)

    @torch.inference_mode()
    def find(
        self,
        batches: Iterable[Batch],
        at_once: int = 16,
        thresholds: dict[str, Any] | None = None,
    ) -> Iterator[tuple[Batch, list[np.ndarray]]]:
        """Each batch with the rows of its images; for the arguments see `detect`."""
        mixed = self.precision == "16-mixed" and self.device.type == "cuda"
        for batch in batches:
            batch = finish_on_device(batch._replace(images=batch.images.to(self.device)))
            with torch.autocast("cuda", torch.float16, enabled=mixed):
                rows, _ = self.detect(batch, at_once, thresholds)
            for own in rows:
                own[:, 5] = self.numbers[own[:, 5].astype(int)]
            yield batch, rows

    def predict(
        self,
        images: Image | Sequence[Image],
        image_size: int | None = None,
        tile_size: int | None = None,
        tile_overlap: float = 0.2,
        batch_size: int = 16,
        conf: Confidence | None = None,
        iou: float | None = None,
    ) -> Detections | list[Detections]:
        """The objects in images; the numbers are those of `cli.py predict` with the same options.
        `predictor(images)` is the same.

        Args:
            images: one or a list of: path of an image file, its bytes, PIL image, (H, W, 3) uint8
                RGB array (of `cv2.imread`, which gives BGR: `array[..., ::-1]`; (H, W): grey),
                (3, H, W) tensor, uint8 or float in 0..1. Or all images of a folder or a glob
                pattern, sorted; a file of these that cannot be read is named and left out.
            image_size: longer side of the input in pixels; default: that of the training.
            tile_size: predict on larger images whole and in tiles whose sides are this many pixels
                and which overlap by tile_overlap; default: no tiles.
            batch_size: most images, or tiles of one, that go through the network together.
            conf, iou: in this call, in place of the Predictor's; of classes that `conf` does not
                name, the Predictor's counts.

        Returns:
            Detections, or a list of them if `images` are several; see there for units.

        Raises:
            InputError: something that is no image, no such class, or an output that is not finite.
        """
        thresholds = dict(self.thresholds)
        if conf is not None:
            thresholds["conf"] = confidences(conf, self.own_names, thresholds["conf"])
        if iou is not None:
            thresholds["iou"] = iou
        folder = images if isinstance(images, str | Path) and not isfile(images) else None
        several = isinstance(images, Sequence) and not isinstance(images, str | bytes)
        given: Sequence[Any] = images if several else [images]  # type: ignore[assignment]
        if folder is not None:
            given = find_images(folder)
            if not given:
                raise InputError(f"{folder}: no image file there")
        inputs = self.inputs(image_size, tile_size, tile_overlap)
        lenient = folder is not None and len(given) > 1
        pictures = Pictures(given, inputs, batch_size, lenient)
        read = (collate_items([pictures[i] for i in batch]) for batch in pictures.batches)
        batches = (batch for batch in read if batch.indices)
        found = dict[int, Detections]()
        for batch, rows in self.find(batches, batch_size, thresholds):
            for index, own in zip(batch.indices, rows, strict=True):
                path = str(given[index]) if isinstance(given[index], str | Path) else None
                found[index] = Detections.of(own, self.names, path)
        if folder is not None and not found:
            raise InputError(f"{folder}: none of its images could be read")
        several = several or folder is not None
        return [found[i] for i in sorted(found)] if several else found[0]

    __call__ = predict


def confidences(
    conf: Confidence, names: Sequence[str], default: float | Sequence[float]
) -> float | Sequence[float]:
    """Least confidence of all classes, or of each one.

    Args:
        conf: One for all, one for each class, or some by class name.
        default: Of classes that `conf` does not name.

    >>> confidences({"dog": 0.6}, ["cat", "dog"], 0.25)
    [0.25, 0.6]

    Raises:
        InputError: There is no such class, or another number of them.
    """
    if isinstance(conf, Mapping):
        for name in conf:
            if name not in names:
                hint = nearest(str(name), names)
                raise InputError(f"conf: there is no class {name!r}; {hint}")
        each = default if isinstance(default, Sequence) else [default] * len(names)
        return [conf.get(name, least) for name, least in zip(names, each, strict=True)]
    if isinstance(conf, Sequence) and len(conf) != len(names):
        raise InputError(f"conf has {len(conf)} numbers, but there are {len(names)} classes")
    return conf


def dtype_of(module: torch.nn.Module) -> torch.dtype:
    """That of a network's weights."""
    return next(module.parameters()).dtype


def forward_function(network: YOLOv5) -> Rows:
    """A network and its decoding in one, in float32 outside, whatever the network's precision."""
    return lambda images: network.decode(network(images.to(dtype_of(network))))
