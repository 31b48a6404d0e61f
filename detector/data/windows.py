"""Training on tiles: random windows of large images, at the scale at which tiles are predicted; and
when tiles pay."""

from functools import partial

import numpy as np

from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.datasets import DetectionDataset
from boltbox.detector.data.label_table import LabelTable
from boltbox.detector.data.sample import IGNORED, Sample
from boltbox.detector.data.transforms.letterbox import LazyImage, Patch
from boltbox.detector.model.boxes import area_xyxy, clip_xyxy

WHOLE = 0.25  # share of the samples that show the whole image
VISIBLE = 0.4  # share of a box within the window from which on it is an object
SMALL = 16.0  # pixels of the network's input: smaller objects are better seen in tiles
LARGE = 32.0  # pixels that the objects of a tile need at most
LARGER = 1.5  # sides of an image over those of a tile, from which on tiles show more


class Windows(ResizedImages):
    """Training samples that show a window of an image or, in a share of WHOLE, all of it. An epoch
    has as many samples as windows fit on the area of the images.

    Windows are placed at random, those that touch a border as often as others: objects at the
    border would be rare else. Images that are no larger than a window are shown whole.

    Args:
        dataset: images and labels as they are on disk.
        size: longer side of the network's input in pixels.
        tile: sides of a window in pixels of the file.
    """

    def __init__(self, dataset: DetectionDataset, size: int, tile: int) -> None:
        super().__init__(dataset, size)
        self.tile = tile
        self.sizes = dataset.labels.sizes
        sides = self.sizes.clip(max=tile)
        counts = np.rint((self.sizes / sides).prod(1)).astype(np.int64)
        self.image_of = np.repeat(np.arange(len(dataset)), counts)
        self.sample_sizes = sides[self.image_of]

    def sample(self, number: int, rng: np.random.Generator) -> Sample:
        """A window of a random place, or the whole image."""
        i = int(self.image_of[number])
        size = self.sizes[i]
        whole, *place = rng.random(3).tolist()
        if whole < WHOLE or size.max() <= self.tile:
            return self[i].replace(index=number)
        gain = self.size / self.tile
        shape = np.rint(size.clip(max=self.tile) * gain).astype(np.int64)
        room = (size * gain - shape).clip(0)
        y, x = ((room + shape) * place - shape / 2).clip(0, room).astype(np.int64).tolist()
        height, width = shape.tolist()
        patch = Patch(partial(self.read, i), (0, 0, width, height), gain, -x, -y)
        sample = Sample(None, *self.dataset.labels.counted(i), index=number)
        return _cut(sample.moved(LazyImage((height, width), [patch]), (gain, gain), (-x, -y)))


def _cut(sample: Sample) -> Sample:
    """The objects within the image. Those of which less than VISIBLE is within it are IGNORED."""
    height, width = sample.size
    boxes = clip_xyxy(sample.boxes, width, height)
    share = area_xyxy(boxes) / area_xyxy(sample.boxes)
    kept = share > 0
    polygons = []
    for parts, is_kept in zip(sample.polygons, kept, strict=True):
        if is_kept:
            polygons.append([part.clip(0, (width, height)) for part in parts])
    return sample.replace(
        boxes=boxes[kept],
        classes=np.where(share < VISIBLE, IGNORED, sample.classes)[kept],
        polygons=polygons,
    )


def choose_tile_size(labels: LabelTable, image_size: int) -> tuple[int, str]:
    """Whether tiles pay: half of the objects are small in whole images, and larger in tiles.

    Args:
        labels: of the training images.
        image_size: longer side of the network's input in pixels.

    Returns:
        Sides of the tiles in pixels of the file, or 0; and the sizes that decide.
    """
    if not len(labels.boxes):
        return 0, "no objects"
    whole = float(np.median(np.sqrt(labels.object_sizes(image_size).prod(1))))
    sides = labels.boxes[:, 2:] - labels.boxes[:, :2]
    in_file = float(np.median(np.sqrt(sides.prod(1))))
    longer = float(np.median(labels.sizes.max(1)))
    reason = (
        f"objects of {whole:.0f} px in images of {image_size} px, {in_file:.0f} px in files of"
        f" {longer:.0f} px"
    )
    tile = image_size * max(1, round(in_file / LARGE))
    pays = whole < SMALL and longer >= LARGER * tile
    return tile if pays else 0, reason
