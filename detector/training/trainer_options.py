"""Options of Lightning's Trainer; nothing is imported here that takes seconds."""

from typing import Any

TRAINER_OPTIONS: dict[str, Any] = {  # of the recipe, where they differ from Lightning's defaults
    "max_epochs": 100,
    "precision": "16-mixed",
    "devices": 1,
    "gradient_clip_val": 10.0,
    "logger": False,
    "num_sanity_val_steps": 0,  # a validation before the training only takes time
    "use_distributed_sampler": False,  # DetectionData has a sampler for several processes
    "enable_model_summary": False,
}


def as_list(value: Any) -> list[Any]:
    """The value of an option that takes None, one thing or a list of them, like callbacks and
    plugins."""
    return [] if value is None else value if isinstance(value, list) else [value]
