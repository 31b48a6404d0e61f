"""The configurations that come with the project, wherever it is installed."""

from pathlib import Path

CONFIGS = Path(__file__).parents[2] / "configs"


def config_path(name: str) -> str:
    """The file that `--config` means: the one of this name or, if there is none here, the shipped
    one.

    Of shipped ones `configs/` and `.yaml` may be left out, and the folder of one that overlays
    others.

    >>> [Path(config_path(name)).name for name in ("configs/yolo.yaml", "hyp/low.yaml", "med", "mine.yaml")]
    ['yolo.yaml', 'low.yaml', 'med.yaml', 'mine.yaml']
    """  # noqa: E501
    # a file that is here comes first; a long or unprintable name is none of the shipped
    if len(name) > 200 or not name.isprintable() or Path(name).exists():
        return name
    inside = name.removeprefix("configs/").removesuffix(".yaml")
    for path in (*CONFIGS.glob("*.yaml"), *CONFIGS.glob("hyp/*.yaml")):
        own = path.relative_to(CONFIGS).with_suffix("").as_posix()
        if inside in (own, own.rpartition("/")[2]):
            return str(path)
    return name
