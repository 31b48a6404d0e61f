"""The rooms of detector/."""

ROOMS = (  # from the ground up: a room imports from those before it and from itself
    "system",
    "model",
    "data",
    "weights",
    "checkpoint",
    "evaluation",
    "inference",
    "training",
    "distributed",
    "report",
    "loggers",
    "commands",
)
