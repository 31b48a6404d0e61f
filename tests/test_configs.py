"""Every YAML file that is shipped is taken by the parser, and says what the defaults say where it claims so."""

from pathlib import Path

import pytest
import yaml

import cli

ROOT = Path(__file__).parents[1]
CONFIGS = [p for p in sorted((ROOT / "configs").rglob("*.yaml")) if p.parent.name != "datasets"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: str(p.relative_to(ROOT)))
def test_config_parses(path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(["fit", "--config", str(ROOT / "configs/yolo.yaml"), "--config", str(path), "--print_config"])
    assert leaving.value.code in (0, None)
    printed = yaml.safe_load(capsys.readouterr().out)
    for group, options in yaml.safe_load(path.read_text()).items():
        for name, value in options.items():
            if not isinstance(value, dict):
                assert printed[group][name] == value


def test_low_yaml_repeats_the_defaults(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["fit", "--print_config"])
    defaults = yaml.safe_load(capsys.readouterr().out)
    low = yaml.safe_load((ROOT / "configs/hyp/low.yaml").read_text())
    for group, options in low.items():
        for name, value in options.items():
            found = defaults[group][name]
            assert (found | value if isinstance(value, dict) else value) == found, f"{group}.{name}"


@pytest.mark.parametrize("path", sorted((ROOT / "configs/datasets").glob("*.yaml")), ids=lambda p: p.name)
def test_dataset_examples_are_maps_with_known_keys(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    assert set(content) <= {"path", "format", "train", "val", "test", "names", "nc", "images", "keep_difficult"}
    assert {"train", "val"} <= set(content)
