"""Lightning's Trainer, for commands that start trainings of their own."""

from typing import Any

import lightning as L


class Trainer(L.Trainer):
    """A Trainer that knows how it was asked for.

    Attributes:
        typed: the user's options, as typed after the command.
        train: command line that trains, to which options are added.
        configuration: all options, in groups, as plain values.
        named_strategy: trainer.strategy as the user gave it.
    """

    typed: list[str]
    train: list[str]
    configuration: dict[str, Any]
    named_strategy: Any
