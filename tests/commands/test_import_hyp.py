"""YOLOv5's flat files of hyper-parameters become overlays, and nothing in them is lost unnamed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import cli
from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.system.configuration import flatten

ROOT = Path(cli.__file__).parent


def run(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    """Exit code, output and error of a command."""
    try:
        cli.main([str(arg) for arg in args])
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    return code, *capsys.readouterr()


def test_flat_values_become_our_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """anchors: 0 leaves the anchors alone."""
    ours = yaml.safe_load((ROOT / "configs/hyp/voc.yaml").read_text())
    flat = {option.split(".")[-1]: value for option, value in flatten(ours).items()}
    del flat["optimizer"]  # SGD: no key of its own
    Path("hyp.scratch.yaml").write_text(yaml.safe_dump({"anchors": 0} | flat, sort_keys=False))
    assert run(capsys, "import-hyp", "hyp.scratch.yaml")[0] == 0
    made = yaml.safe_load(Path("hyp.scratch_boltbox.yaml").read_text())
    assert list(flatten(made).items()) == list(flatten(ours).items())  # in the same order


def test_every_key_reaches_its_option(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with a value of its own, so that none can be taken for another."""
    values = {
        gene.name: round(gene.low + (gene.high - gene.low) * 0.37, 6)
        for gene in YOLOV5_GENES.values()
    }
    expected = {gene.option: values[name] for name, gene in YOLOV5_GENES.items()}
    values |= {"anchors": 3.412, "label_smoothing": 0.11, "iou_t": 0.2}
    expected |= {"model.network.anchors": 3, "model.loss.label_smoothing": 0.11}
    text = "".join(f"{k}: {v}\n" for k, v in values.items())
    Path("my_hyp.yaml").write_text(text.replace("decay: 0.00037", "decay: 37e-5"))
    out = Path("to/some place/overlay.yaml")
    assert run(capsys, "import-hyp", "my_hyp.yaml", "--out", out)[0] == 0
    config = ("--config", ROOT / "configs/yolov5.yaml", "--config", out)
    options = flatten(yaml.safe_load(run(capsys, "fit", *config, "--print_config")[1]))
    assert {option: options[option] for option in expected} == expected


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("lr0: [", ""),
        ("- 0.1\n", "lr0: 0.01"),
        ("lr0: 0.1\nmosaik: 1.0\n", "'mosaic'"),
        ("lr0: .nan", "lr0"),
        ("lr0: fast", "lr0"),
    ],
)
def test_bad_files_get_a_sentence(
    content: str, named: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hyp.yaml").write_text(content)
    code, printed, error = run(capsys, "import-hyp", "hyp.yaml")
    assert (code, printed) == (2, "")
    assert error.startswith("error: hyp.yaml: ")
    assert named in error
    assert error.count("\n") == 1
    assert [p.name for p in here.iterdir()] == ["hyp.yaml"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["hyp.yaml"], "hyp_boltbox.yaml"),
        (["hyp.yaml", "--out", "hyp.yaml"], "hyp.yaml"),
        (["hyp.yaml", "--out", "folder"], "folder"),
        (["hyp.yaml", "--out", "hyp.yaml/beneath/a.yaml"], ""),
        (["none.yaml"], "none.yaml"),
        (["."], "."),
    ],
)
def test_nothing_is_written_over(
    options: list[str], named: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("folder").mkdir()
    for name in ("hyp.yaml", "hyp_boltbox.yaml"):
        Path(name).write_text("lr0: 0.5\n")
    code, _, error = run(capsys, "import-hyp", *options)
    assert code == 2
    assert error.startswith(f"error: {named}")
    assert all(p.is_dir() or p.read_text() == "lr0: 0.5\n" for p in here.iterdir())


def test_a_flat_file_given_to_fit_is_answered_with_the_command(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hyp.yaml").write_text("lr0: 0.5\n")
    assert "python cli.py import-hyp hyp.yaml" in run(capsys, "fit", "--config", "hyp.yaml")[2]
    assert "fit --config hyp.yaml" in run(capsys, "fit", "--hyp", "hyp.yaml")[2]
    assert "model.optim.lr0" in run(capsys, "fit", "--lr0", "0.5")[2]
