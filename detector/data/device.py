"""What is left to do with a batch on the device."""

from torch import Tensor

from boltbox.detector.data.sample import Batch


def finish_on_device(batch: Batch) -> Batch:
    """Images uint8 -> float in 0..1. Tiles stay uint8: as floats they would not all find room."""
    return batch if batch.windows is not None else batch._replace(images=to_floats(batch.images))


def to_floats(images: Tensor) -> Tensor:
    """(B, 3, H, W) uint8 -> float32 in 0..1, on the device where they are."""
    return images.float() / 255
