"""Early stopping by fitness."""

from lightning.pytorch.callbacks import EarlyStopping


class EarlyStop(EarlyStopping):
    """Lightning's EarlyStopping on fitness: stops after `patience` epochs without a strictly better one.

    Args:
        patience: In epochs; 0 is off.
    """

    def __init__(self, patience: int = 100) -> None:
        super().__init__(monitor="val/fitness", mode="max", patience=patience or 2**31, min_delta=0.0)
