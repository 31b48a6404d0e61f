"""In which precision a detector predicts outside of a Trainer."""

import contextlib

import torch

from boltbox.detector.system.errors import InputError


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """For predictions outside of a Trainer, what its precision would be: 16-mixed on a GPU, float32
    elsewhere.

    Raises:
        InputError: another precision than 16-mixed and 32-true.
    """
    if precision not in ("16-mixed", "32-true"):
        raise InputError(
            f"precision is {precision!r}; choose 16-mixed or 32-true, or turn the weights:"
            " detector.half()"
        )
    if precision == "16-mixed" and device.type == "cuda":
        return torch.autocast("cuda", torch.float16)
    return contextlib.nullcontext()
