"""What is left to do with a batch on the device."""

from torch import Tensor

from boltbox.detector.data.sample import Batch
from boltbox.detector.data.transforms.colour import adjust_hsv_floats


def finish_on_device(batch: Batch) -> Batch:
    """Images uint8 -> float in 0..1, and the change of colour, if the loader left it. Tiles stay
    uint8: as floats they would not all find room."""
    if batch.windows is not None:
        return batch
    images = to_floats(batch.images)
    if batch.gains is not None:
        images = adjust_hsv_floats(images, batch.gains)
    return batch._replace(images=images, gains=None)


def to_floats(images: Tensor) -> Tensor:
    """(B, 3, H, W) uint8 -> float32 in 0..1, on the device where they are."""
    return images.float() / 255
