"""The short help: all commands, and of a command the options that people use."""

import textwrap
from collections.abc import Mapping, Sequence

from boltbox.detector.commands.parsing.program import program
from boltbox.detector.commands.parsing.signatures import Option

WIDTH, COLUMN = 80, 30  # characters of a line; column at which the descriptions of options begin

DATA = ("data.dataset", "data.image_size", "data.batch_size", "data.workers", "data.cache")
MODEL = ("model.network.size", "model.start.weights")
MACHINE = ("trainer.accelerator", "trainer.devices", "trainer.precision")
RUN = ("run", "config")
CHOSEN: dict[str, dict[str, Sequence[str]]] = {  # by command: groups of options
    "fit": {
        "data": (*DATA, "data.augment.mosaic"),
        "model": (*MODEL, "model.network.backbone", "model.start.freeze"),
        "training": (
            "trainer.max_epochs",
            "model.optim.optimizer",
            "model.optim.lr0",
            "model.optim.lr_schedule",
            "early_stop.patience",
            *MACHINE,
            "seed_everything",
        ),
        "run": ("ckpt_path", *RUN, "trainer.logger", "checkpoints.save_period", "report.enabled"),
    },
    "predict": {
        "input": ("data.source", "data.image_size", "data.frame_step", "data.tiled"),
        "model": (
            "ckpt_path",
            "model.start.weights",
            "model.network.size",
            "model.conf",
            "model.iou",
            "model.max_det",
            "model.classes",
            "model.tta",
            "model.ensemble",
            *MACHINE,
        ),
        "output": (
            "run",
            "save.images",
            "save.labels",
            "save.json",
            "save.csv",
            "save.crops",
            "save.confidences",
        ),
    },
    "anchors": {
        "data": DATA[:2],
        "model": ("ckpt_path", *MODEL, "model.network.anchors", "model.loss.anchor_t"),
        "anchors": ("autoanchor.bpr_limit", "autoanchor.generations", "autoanchor.augmented"),
        "run": ("json", *RUN),
    },
    "doctor": {
        "data": DATA[:2],
        "model": ("ckpt_path", "model.network.size"),
        "run": ("fix", "json", "strict", *RUN),
    },
    "benchmark": {
        "data": DATA,
        "model": MODEL,
        "measurement": (
            "seconds",
            "deadline",
            "trainer.accelerator",
            "trainer.devices",
            "trainer.strategy",
        ),
        "run": RUN,
    },
    "evolve": {
        "data": DATA,
        "model": MODEL,
        "search": (
            "evolve.generations",
            "evolve.population",
            "evolve.space",
            "evolve.sampler",
            "evolve.prune",
            "evolve.workers",
            "evolve.hours",
            "evolve.trials",
            "evolve.study",
        ),
        "training": ("trainer.max_epochs", *MACHINE),
        "run": RUN,
    },
}
CHOSEN["validate"] = CHOSEN["test"] = {
    "data": (*DATA[:4], "data.tiled"),
    "model": ("ckpt_path", *MODEL, "model.conf", "model.iou", "model.tta", *MACHINE),
    "run": (*RUN, "report.enabled"),
}

CHECKPOINT = "last, best, or a file: the checkpoint of the run (--run, or the most recent)."
SHORTER = {  # than the docstrings of the classes, or specific to the recipe
    "trainer.max_epochs": "Epochs.",
    "trainer.accelerator": "cpu, gpu or auto.",
    "trainer.devices": "How many GPUs (or processes on a CPU), or a list like [0,2].",
    "trainer.precision": "16-mixed (on a CPU what it can do), bf16-mixed, 32-true.",
    "trainer.logger": "W&B, TensorBoard: --config configs/wandb.yaml or configs/tensorboard.yaml.",
    "trainer.strategy": "How several devices train together; default: ddp.",
    "ckpt_path": CHECKPOINT,
    "config": "A file of options, as a run's config.yaml; later ones count, and what is typed.",
    "seed_everything": "Seed of everything random.",
    "data.dataset": "A data.yaml, a VOC folder, or demo: drawn on the spot.",
    "data.image_size": "Longer side of the network's input in pixels.",
    "data.cache": "Keep resized images: auto, none, ram or disk.",
    "model.network.size": "n, s, m, l, x; n6 ... x6, p2, p34, p6, p7.",
    "model.start.weights": "Start from a YOLOv5 .pt, a YOLOX .pth, a checkpoint of ours.",
    "model.network.backbone": "yolov5, or timm/NAME with --model.start.backbone_weights FILE.",
    "early_stop.patience": "Stop after so many epochs without a better fitness.",
    "report.enabled": "Make report.html at the end, a page on the run.",
    "data.tiled": "Look at large images whole and in overlapping tiles.",
    "model.tta": "Look three times at each image: several sizes, mirrored.",
    "save.confidences": "With the confidences in the label files.",
}


def every_command(commands: Mapping[str, str]) -> str:
    """The help of the program: its commands, each with a line."""
    lines = [
        f"usage: {program()} COMMAND [options]",
        "",
        "Train, evaluate and use a YOLOv5 detector.",
        "",
    ]
    lines += [f"  {name:<11} {line}" for name, line in commands.items()]
    lines += ["", "COMMAND --help shows the options that people use, COMMAND --help all every one."]
    return "\n".join(lines)


def few_options(command: str, description: str, options: Sequence[Option]) -> str:
    """The help of a command, for a terminal of WIDTH columns."""
    known = {option.name: option for option in options}
    lines = [f"usage: {program()} {command} [options]", "", description]
    for heading, names in CHOSEN[command].items():
        lines += ["", f"{heading}:"]
        for name in names:
            lines += _lines(known[name])
    many = len(options) - sum(map(len, CHOSEN[command].values()))
    lines += ["", f"[default]. {many} more, hyper-parameters among them: {command} --help all"]
    return "\n".join(lines)


def _lines(option: Option) -> list[str]:
    words = SHORTER.get(option.name, option.help).replace("`", "")
    flag = option.name in ("json", "strict")
    if (
        option.choices
        and option.choices[0] != "true"
        and not any(choice in words for choice in option.choices)
    ):
        words += f" {', '.join(option.choices)}."
    if option.default and not flag and "default" not in words:
        words += f" [{option.default}]"
    start = f"  --{option.name}"
    wrapped = textwrap.wrap(
        words, WIDTH - COLUMN, break_long_words=False, break_on_hyphens=False
    ) or [""]
    if len(start) + 2 > COLUMN:
        wrapped.insert(0, "")
    return [f"{start if k == 0 else '':<{COLUMN}}{line}".rstrip() for k, line in enumerate(wrapped)]
