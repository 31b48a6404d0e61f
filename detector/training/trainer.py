"""Lightning's Trainer, for commands that start trainings in processes of their own."""

from typing import Any

import lightning as L


class Trainer(L.Trainer):
    """A Trainer that knows the command line it was made from.

    Attributes:
        typed: the user's options, as typed after the command.
        train: beginning of a command line that trains; options follow.
        configuration: all options, in groups, as plain values.
        named_strategy: trainer.strategy as the user gave it.
    """

    typed: list[str]
    train: list[str]
    configuration: dict[str, Any]
    named_strategy: Any
