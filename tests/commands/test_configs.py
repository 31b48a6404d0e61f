"""Every YAML file that is shipped is taken by the parser, and says what the defaults say where it
claims so."""

from pathlib import Path
from shlex import split
from typing import Any

import pytest
import torch
import yaml

import cli
from boltbox.detector.training.trainer_options import usable_precision

ROOT = Path(__file__).parents[2]
CONFIGS = [p for p in sorted((ROOT / "configs").rglob("*.yaml")) if p.parent.name != "datasets"]


def printed(capsys: pytest.CaptureFixture, *line: str) -> dict[str, Any]:
    """The configuration that a command would run with."""
    with pytest.raises(SystemExit) as leaving:
        cli.main([*line, "--print_config"])
    assert leaving.value.code in (0, None)
    return yaml.safe_load(capsys.readouterr().out)


def sizes(options: dict[str, Any]) -> tuple[Any, ...]:
    data = options["data"]
    return data["dataset"], data["image_size"], data["batch_size"], options["trainer"]["max_epochs"]


def test_sizes_of_the_demo_are_for_the_demo(capsys: pytest.CaptureFixture, here: Path) -> None:
    """They are defaults: a configuration counts more, what is typed most. Other data have
    YOLOv5's."""
    recipe = ["--config", str(ROOT / "configs/yolo.yaml")]
    (here / "my_hyp.yaml").write_text("model:\n  optim:\n    lr0: 0.02\n")
    (here / "of_demo.yaml").write_text("data:\n  dataset: demo\n  batch_size: 32\n")
    assert sizes(printed(capsys, "fit", *recipe)) == ("demo", 128, 64, 60)
    more = "--config my_hyp.yaml --data.dataset my.yaml --data.batch_size 4"
    own = printed(capsys, "fit", *recipe, *split(more))
    assert sizes(own) == ("my.yaml", 640, 4, 100)
    assert own["model"]["optim"]["lr0"] == 0.02
    assert sizes(printed(capsys, "fit", "--config", "of_demo.yaml", "--data.image_size", "96")) == (
        "demo",
        96,
        32,
        60,
    )
    assert sizes(printed(capsys, "benchmark", "--data.dataset", "demo")) == ("demo", 128, 64, 60)
    assert sizes(printed(capsys, "doctor")) == (None, 640, 16, 100)  # which then asks for data


CASES = [
    (("16-mixed", "auto", "fit", "auto"), {}, "32-true"),
    (("16-mixed", "auto", "fit", "auto"), {"avx"}, "bf16-mixed"),
    (("16-mixed", "cpu", "fit", "fsdp2"), {"avx", "gpu", "gpu_bf16"}, "bf16-mixed"),
    (("16-mixed", "auto", "validate", "auto"), {"avx"}, "32-true"),
    (("16-mixed", "auto", "fit", "ddp"), {"gpu", "gpu_bf16"}, "16-mixed"),
    (("16-mixed", "gpu", "validate", "auto"), {"gpu"}, "16-mixed"),
    (("16-mixed", "gpu", "fit", "fsdp2"), {"gpu", "gpu_bf16"}, "bf16-mixed"),
    (("16-mixed", "gpu", "fit", "fsdp2"), {"gpu"}, "32-true"),
    (("32-true", "auto", "fit", "auto"), {"gpu"}, "32-true"),
]


@pytest.mark.parametrize(("asked", "machine", "chosen"), CASES)
def test_precision_that_a_machine_has(
    asked: tuple[str, str, str, str],
    machine: set[str],
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What differs from what was asked for is said in a line."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "gpu" in machine)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: "gpu_bf16" in machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: "avx" in machine)
    assert usable_precision(*asked) == chosen
    told = capsys.readouterr().out
    assert (chosen in told and len(told.splitlines()) == 1) if chosen != asked[0] else told == ""


def test_mixed_precision_is_the_default(capsys: pytest.CaptureFixture) -> None:
    found = printed(capsys, "validate", "--data.dataset", "my.yaml")
    assert found["trainer"]["precision"] == "16-mixed"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: str(p.relative_to(ROOT)))
def test_config_parses(path: Path, capsys: pytest.CaptureFixture) -> None:
    command = "evolve" if path.name == "evolve_yolov5.yaml" else "fit"
    found = printed(
        capsys, command, "--config", str(ROOT / "configs/yolo.yaml"), "--config", str(path)
    )
    for group, options in yaml.safe_load(path.read_text()).items():
        for name, value in options.items():
            if not isinstance(value, dict):
                assert found[group][name] == value


@pytest.mark.parametrize("name", ["yolo.yaml", "hyp/low.yaml"])
def test_recipe_repeats_the_defaults(name: str, capsys: pytest.CaptureFixture) -> None:
    base = ["--config", str(ROOT / "configs/yolov5.yaml")] if name == "hyp/low.yaml" else []
    defaults = printed(capsys, "fit", *base, "--data.dataset", "my.yaml")
    low = yaml.safe_load((ROOT / "configs" / name).read_text())
    for group, options in low.items():
        for name, value in options.items():
            usual = defaults[group][name]
            assert (usual | value if isinstance(value, dict) else value) == usual, f"{group}.{name}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs/datasets").glob("*.yaml")), ids=lambda p: p.name
)
def test_dataset_examples_are_maps_with_known_keys(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert set(content) <= {
        "path",
        "format",
        "train",
        "val",
        "test",
        "names",
        "nc",
        "images",
    }
    assert {"train", "val"} <= set(content)
