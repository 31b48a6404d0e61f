"""The images that a Trainer was given."""

import lightning as L

from detector.data.datamodule import DetectionData
from detector.errors import InputError


def data_of(trainer: L.Trainer) -> DetectionData:
    """The data module of a Trainer.

    Raises:
        InputError: it has none, or one of another kind.
    """
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, DetectionData):
        raise InputError("boltbox's callbacks need boltbox's data module: trainer.fit(detector, datamodule=DetectionData(...))")
    return data
