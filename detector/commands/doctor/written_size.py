"""Boxes that were written for images of another size, or in another unit: one conclusion from many
boxes."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from boltbox.detector.commands.doctor.finding import Finding
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.images import UNREADABLE, image_size

MANY = 0.1  # share of the boxes that leave the frame; a few do in any data set
LEAST_BOXES, LEAST_IMAGES = 5, 3  # of less nothing can be concluded
SLACK = 1.02  # boxes may reach so far past the size that they were written for
MOST = 0.95  # share of the images that a size must explain
FULL = 0.8  # boxes that go no farther than this share of a size do not speak for it
# share of the images that must reach as far as a factor or size, for it to explain them; by chance
# a tenth do
AT_EDGE = 1 / 3
FACTORS = (1.25, 4 / 3, 1.5, 5 / 3, 2, 2.5, 3, 4, 5, 6, 8, 10)
_FRACTION = 5.0  # numbers above are no fractions, however wrong
_SMALL_IMAGE = 150  # pixels; of smaller images per cents and pixels look alike


def other_size(split: str, dataset: DetectionDataset, in_fractions: bool) -> Iterator[Finding]:
    """At most one finding, other_image_size. in_fractions: see Format."""
    if in_fractions:
        problem = _of_fractions(dataset)
    else:
        table = dataset.labels
        reach = np.zeros((len(table), 2))  # x, y: how far to the right and down the boxes go
        np.maximum.at(
            reach, np.repeat(np.arange(len(table)), np.diff(table.starts)), table.boxes[:, 2:]
        )
        sizes = table.sizes[:, ::-1].astype(float)
        problem = _as_declared(dataset, reach, sizes) or _as_they_reach(dataset, reach, sizes)
    if problem:
        yield Finding("fault", "other_image_size", split, "", "", problem)


def _as_declared(dataset: DetectionDataset, reach: np.ndarray, sizes: np.ndarray) -> str:
    """A sentence, if boxes fit the sizes that their label files give and not those of the
    images."""
    given = np.array([s.size or (0, 0) for s in dataset.sources], float).reshape(-1, 2)[:, ::-1]
    wrong = np.flatnonzero((given > 0).all(1) & (given != sizes).any(1) & (reach > 0).any(1))
    if len(wrong) < LEAST_IMAGES:
        return ""
    of_given, of_real = reach[wrong] / given[wrong], reach[wrong] / sizes[wrong]
    if (of_given.max(1) > SLACK).mean() > 1 - MOST:
        return ""
    smaller = (given[wrong].prod(1) < sizes[wrong].prod(1)).mean() > 0.5
    if (of_real.max(1) > SLACK).mean() <= 1 - MOST and not (
        smaller and np.quantile(of_given.max(1), 0.9) > FULL
    ):
        return ""  # the boxes fit the images: it is only the sizes that are wrong
    first = int(wrong[0])
    example = f"{_size(given[first])} where {dataset.files[first]} has {_size(sizes[first])}"
    factors = given[wrong] / sizes[wrong]
    if (given[wrong] == given[wrong][0]).all():
        what = f"images of {example}"
    elif (given[wrong] == sizes[wrong][:, ::-1]).all():
        what = f"the images as they are stored, without the turn in their EXIF data: {example}"
    elif np.ptp(factors) < 0.02 * factors.mean():
        what = f"images {factors.mean():.3g} times as wide and high: {example}"
    else:
        what = f"images of the sizes that the label files give, for example {example}"
    return (
        f"the boxes of {len(wrong)} of {len(dataset)} images were written for another image size:"
        f" {what}; {_advice()}"
    )


def _as_they_reach(dataset: DetectionDataset, reach: np.ndarray, sizes: np.ndarray) -> str:
    """A sentence, if many boxes leave the frame: the size that they need."""
    table = dataset.labels
    of_box = np.repeat(sizes, np.diff(table.starts), 0)
    leaving = int((table.boxes[:, 2:] > of_box * SLACK).any(1).sum())
    if leaving < max(LEAST_BOXES, MANY * len(table.boxes)):
        return ""
    own = (reach > 0).any(1)
    files = [dataset.files[i] for i in np.flatnonzero(own).tolist()]
    return (
        f"{leaving} of {len(table.boxes)} boxes leave their images: they seem to be written for"
        " another image size,"
        f" {_needed(reach[own], sizes[own], files)};"
        f" {_advice()}"
    )


def _needed(reach: np.ndarray, sizes: np.ndarray, files: Sequence[str]) -> str:
    """The size that boxes need which reach so far (n, 2) in images of these sizes (n, 2), or the
    factor; that neither explains them, where few images have a box that reaches so far."""
    ratios = reach / sizes
    farthest, factor = reach.max(0), _one_factor(ratios)
    at_one_size = int((reach > 0.97 * farthest).any(1).sum())
    where = f"where {files[0]} has {_size(sizes[0])}"
    if factor and ((sizes == sizes[0]).all() or at_one_size <= _near(ratios, factor)):
        return f"{factor:.3g} times as wide and high, {_size(sizes[0] * factor)} {where}"
    if at_one_size >= max(LEAST_IMAGES, AT_EDGE * len(reach)):
        return f"at least {_size(farthest)} {where}"
    return "and no one factor or size explains them all"


def _one_factor(ratios: np.ndarray) -> float | None:
    """The factor that explains boxes which reach so far (n, 2), in sizes of their images: some
    boxes end at the edge of their image, so that many images reach just as far. None, if not so
    many do."""
    highest = np.quantile(ratios, 0.98, 0)
    tried = (_snapped(highest), float(highest.max()))
    return next(
        (f for f in tried if f and _near(ratios, f) >= max(LEAST_IMAGES, AT_EDGE * len(ratios))),
        None,
    )


def _near(ratios: np.ndarray, factor: float) -> int:
    """Images whose boxes reach as far as this factor, and no farther."""
    farthest = ratios.max(1)
    return int(((farthest > 0.97 * factor) & (farthest <= factor * SLACK)).sum())


def _snapped(factors: np.ndarray) -> float | None:
    """The usual factor that boxes which reach so far (2,) almost fill."""
    return next(
        (f for f in FACTORS if (factors <= f * SLACK).all() and factors.max() >= 0.95 * f), None
    )


def _of_fractions(dataset: DetectionDataset) -> str:
    """A sentence, if many objects were dropped for coordinates above 1."""
    above = [fault for fault in dataset.report.faults if fault.kind == "coordinate_above_1"]
    count, images = len(above), dict.fromkeys(fault.image for fault in above)
    if (
        count < max(LEAST_BOXES, MANY * (count + len(dataset.labels.boxes)))
        or len(images) < LEAST_IMAGES
    ):
        return ""
    boxes = defaultdict(list)
    for fault in dataset.report.faults:
        if fault.box:
            boxes[fault.image].append(fault.box)
    for i, image in enumerate(dataset.files):
        if image in images:
            boxes[image] += dataset.labels[i].boxes.tolist()
    reach, sizes, files = [], [], []
    for image in images:
        try:
            height, width = image_size(image)
        except UNREADABLE:
            continue
        if boxes[image]:
            reach.append(np.array(boxes[image])[:, 2:].max(0) / (width, height))
            sizes.append((width, height))
            files.append(image)
    if len(files) < LEAST_IMAGES:
        return ""
    start = (
        f"{count} of {count + len(dataset.labels.boxes)} boxes have coordinates above 1: they seem"
        " to be "
    )
    reach_, sizes_ = np.array(reach, float), np.array(sizes, float)
    if np.median(reach_.max(1)) > _FRACTION:
        if (reach_.max(1) <= 100 * SLACK).all() and np.median(sizes_.min(1)) > _SMALL_IMAGE:
            return f"{start}per cents, not fractions of the image; divide them by 100"
        if ((reach_ <= sizes_ * SLACK).all(1)).mean() >= MOST:
            return f"{start}pixels, not fractions of the image; divide them by its width and height"
        return (
            f"{start}pixels of images of another size, {_needed(reach_, sizes_, files)}; divide"
            " them by its width and height"
        )
    factor = _one_factor(reach_)
    if factor is None:
        return (
            f"{start}divided by sizes that are not those of their images, and no one factor"
            f" explains them all; {_advice()}"
        )
    example = f"{_size(sizes_[0] / factor)} where {files[0]} has {_size(sizes_[0])}"
    return (
        f"{start}divided by another image size, 1/{factor:.3g} of the right one: {example}; divide"
        f" them by {factor:.3g}"
    )


def _advice() -> str:
    return "give the images that the labels were made for, or scale the boxes"


def _size(size: np.ndarray) -> str:
    return f"{round(float(size[0]))}x{round(float(size[1]))} px"
