"""What the recipe asks of Lightning's Trainer where that has another default; importing it takes no time."""

from typing import Any

TRAINER_OPTIONS: dict[str, Any] = {
    "max_epochs": 100,
    "precision": "16-mixed",
    "devices": 1,
    "gradient_clip_val": 10.0,
    "logger": False,
    "num_sanity_val_steps": 0,  # a validation before the training would only take time
    "use_distributed_sampler": False,  # the data share themselves out over the processes
    "enable_model_summary": False,
}
