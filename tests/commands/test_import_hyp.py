"""YOLOv5's flat files of hyper-parameters become overlays, and nothing in them is lost unnamed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import cli
from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.system.configuration import flatten

ROOT = Path(cli.__file__).parent


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The error of a command that ends with exit code 2."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(["import-hyp", *words])
    captured = capsys.readouterr()
    assert (leaving.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
    return captured.err


def test_flat_values_become_our_file(here: Path) -> None:
    ours = yaml.safe_load((ROOT / "configs/hyp/voc.yaml").read_text())
    flat = {name.rpartition(".")[2]: value for name, value in flatten(ours).items()}
    del flat["optimizer"]  # it has no key of its own
    Path("hyp.scratch.yaml").write_text(yaml.safe_dump(flat, sort_keys=False))
    cli.main(["import-hyp", "hyp.scratch.yaml"])
    made = yaml.safe_load(Path("hyp.scratch_boltbox.yaml").read_text())
    assert made == ours
    assert list(flatten(made)) == list(flatten(ours))  # in the same order


def test_every_key_reaches_its_option(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with a value of its own, so that none can be taken for another."""
    values: dict[str, float] = {}
    for gene in YOLOV5_GENES.values():
        values[gene.name] = round(gene.low + (gene.high - gene.low) * 0.37, 6)
    values |= {"anchors": 3.412, "label_smoothing": 0.11, "iou_t": 0.2}
    text = "".join(f"{name}: {value}\n" for name, value in values.items())
    Path("hyp.yaml").write_text(text.replace("weight_decay: 0.00037", "weight_decay: 37e-5"))
    cli.main(["import-hyp", "hyp.yaml", "--out", "to/some place/overlay.yaml"])
    capsys.readouterr()
    recipe = ["--config", "yolov5", "--config", "to/some place/overlay.yaml"]
    with pytest.raises(SystemExit):
        cli.main(["fit", *recipe, "--print_config"])
    options = flatten(yaml.safe_load(capsys.readouterr().out))
    assert options["model.network.anchors"] == 3
    assert options["model.loss.label_smoothing"] == 0.11
    for gene in YOLOV5_GENES.values():
        if gene.name != "anchors":
            assert options[gene.option] == values[gene.name], gene.option


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "lr0: 0.01"),
        ("lr0: [", "YAML"),
        ("model:\n  optim:\n    lr0: 0.01\n", "model: "),
        ("lr0: 0.1\nmosaik: 1.0\n", "mosaik: "),
        ("lr0: .nan", "lr0"),
        ("lr0: 1" + "0" * 400, "lr0"),
        ("lr0: fast", "lr0"),
    ],
)
def test_bad_files_get_a_sentence(
    content: str, named: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hyp.yaml").write_text(content)
    error = failure(capsys, "hyp.yaml")
    assert error.startswith("error: hyp.yaml: ")
    assert named in error
    assert [path.name for path in here.iterdir()] == ["hyp.yaml"]


def test_nothing_is_written_over(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    names: dict[str, list[Any]] = {name: ["--out", name] for name in ("hyp.yaml", "folder")}
    names |= {"hyp_boltbox.yaml": []}
    for name in ("hyp.yaml", "hyp_boltbox.yaml"):
        Path(name).write_text("lr0: 0.5\n")
    for name, typed in names.items():
        assert failure(capsys, "hyp.yaml", *typed).startswith(f"error: {name}: ")
    assert failure(capsys, "none.yaml").startswith("error: none.yaml: ")
    assert all(path.is_dir() or path.read_text() == "lr0: 0.5\n" for path in here.iterdir())


def test_anchors_0_leaves_the_anchors_alone(here: Path) -> None:
    Path("hyp.yaml").write_text("anchors: 0\nlr0: 0.5\n")
    cli.main(["import-hyp", "hyp.yaml"])
    options = {"optim": {"optimizer": "SGD", "lr0": 0.5}}
    assert yaml.safe_load(Path("hyp_boltbox.yaml").read_text()) == {"model": options}
