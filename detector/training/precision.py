"""The precision of a command on this machine."""

import torch

from boltbox.detector.system.rank_zero import rank_zero_print
from boltbox.detector.training.trainer_options import TRAINER_OPTIONS

DEFAULT: str = TRAINER_OPTIONS["precision"]
# they compute nothing, or in processes that print it themselves
SILENT = ("anchors", "doctor", "benchmark", "evolve")


def usable_precision(precision: str, accelerator: str, command: str, strategy: str) -> str:
    """The value for `trainer.precision` on this machine; prints a line where it is not the given
    one.

    16-mixed means mixed precision of whichever kind the machine supports. Without a GPU that is
    bfloat16 for a fit where the processor computes in it, else float32. fsdp2 cannot scale losses,
    so it gets bfloat16 on a GPU that has it, else float32.

    Args:
        precision: `trainer.precision`.
        accelerator: `trainer.accelerator`.
        command: of the command line.
        strategy: `trainer.strategy`, by its name.
    """
    if precision == "bf16-true" and command != "fit":
        rank_zero_print(
            "precision bf16-true has too few digits for confidences; it becomes 32-true"
        )
        return "32-true"
    if precision != "16-mixed":
        return precision
    if accelerator == "cpu" or not torch.cuda.is_available():
        supported = (
            command == "fit" and getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
        )
        chosen, why = "bf16-mixed" if supported else "32-true", "16-mixed needs a GPU"
    elif command == "fit" and strategy == "fsdp2":
        chosen, why = (
            "bf16-mixed" if torch.cuda.is_bf16_supported() else "32-true",
            "fsdp2 has no 16-mixed",
        )
    else:
        return precision
    if command not in SILENT:
        rank_zero_print(f"precision: {chosen} ({why})")
    return chosen
