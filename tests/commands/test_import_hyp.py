"""YOLOv5's flat files of hyper-parameters become overlays, and nothing in them is lost unnamed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import cli
from boltbox.detector.commands.evolve.space import YOLOV5_GENES

ROOT = Path(cli.__file__).parent


def flat(nested: dict[str, Any]) -> dict[str, Any]:
    return {
        k: v
        for key, value in nested.items()
        for k, v in (flat(value) if isinstance(value, dict) else {key: value}).items()
    }


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, output and error of a command."""
    try:
        cli.main(list(args))
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", ["low", "voc", "high"])
def test_flat_values_become_our_file(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = yaml.safe_load((ROOT / f"configs/hyp/{name}.yaml").read_text())
    # it has no key of its own
    given = {key: value for key, value in flat(ours).items() if key != "optimizer"}
    Path("hyp.scratch.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    code, told, _ = run(capsys, "import-hyp", "hyp.scratch.yaml")
    made = yaml.safe_load(Path("hyp.scratch_boltbox.yaml").read_text())
    assert code == 0
    assert made == ours
    assert list(flat(made)) == list(flat(ours))  # in the same order
    assert "next:      python cli.py fit" in told


def test_every_key_reaches_its_option(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with a value of its own, so that none can be taken for another."""
    values = {
        gene.name: round(gene.low + (gene.high - gene.low) * 0.37, 6)
        for gene in YOLOV5_GENES.values()
    }
    values |= {"anchors": 3.412, "label_smoothing": 0.11, "iou_t": 0.2}
    lines = [f"{k}: {v}" for k, v in values.items()]
    Path("my_hyp.yaml").write_text(
        "# evolved\n" + "\n".join(lines).replace("weight_decay: 0.00037", "weight_decay: 37e-5")
    )
    code, _, _ = run(capsys, "import-hyp", "my_hyp.yaml", "--out", "to/some place/overlay.yaml")
    assert code == 0
    code, printed, _ = run(
        capsys,
        "fit",
        "--config",
        str(ROOT / "configs/yolov5.yaml"),
        "--config",
        "to/some place/overlay.yaml",
        "--print_config",
    )
    options = yaml.safe_load(printed)
    assert code == 0
    assert options["model"]["network"].pop("anchors") == 3
    assert options["model"]["loss"]["label_smoothing"] == 0.11
    for gene in YOLOV5_GENES.values():
        if gene.name != "anchors":
            place = options
            for part in gene.option.split("."):
                place = place[part]
            assert place == values[gene.name], gene.option


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "expected one line per number, like lr0: 0.01"),
        ("lr0: [", "not valid YAML"),
        (b"\xff\xfe\x00", "not a text file in UTF-8"),
        ("- 0.1\n- 0.2\n", "expected one line per number"),
        ("model:\n  optim:\n    lr0: 0.01\n", "'model' (see --help)"),
        (
            "lr0: 0.1\nmosaik: 1.0\nnames: [a]\n",
            "'mosaik' (did you mean 'mosaic'?), 'names' (see --help): no hyper-parameter",
        ),
        ("lr0: .nan", "lr0 is 'nan'; expected a finite number"),
        ("lr0: 1" + "0" * 400, "expected a finite number"),
        ("lr0: true", "lr0 is 'True'; expected a finite number"),
        ("lr0:", "lr0 is 'None'; expected a finite number"),
        ("lr0: fast", "lr0 is 'fast'; expected a finite number"),
    ],
)
def test_bad_files_get_a_sentence(
    content: str | bytes, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hyp.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    code, told, error = run(capsys, "import-hyp", "hyp.yaml")
    assert (code, told) == (2, "")
    assert error.startswith("error: hyp.yaml: ")
    assert says in error
    assert error.count("\n") == 1
    assert [p.name for p in here.iterdir()] == ["hyp.yaml"]


@pytest.mark.parametrize("out", ["hyp.yaml", "other.yaml", "hyp_boltbox.yaml", "folder"])
def test_nothing_is_written_over(out: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    for name in ("hyp.yaml", "other.yaml", "hyp_boltbox.yaml"):
        Path(name).write_text("lr0: 0.5\n")
    typed = [] if out == "hyp_boltbox.yaml" else ["--out", out]
    code, _, error = run(capsys, "import-hyp", "hyp.yaml", *typed)
    assert (code, error) == (
        2,
        f"error: {out}: already exists and is not overwritten; give another name with --out\n",
    )
    assert all(p.is_dir() or p.read_text() == "lr0: 0.5\n" for p in here.iterdir())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["none.yaml"], "none.yaml: no such file"),
        (["."], ".: is not a regular file"),
        (
            ["hyp.yaml", "--out", "hyp.yaml/beneath/a.yaml"],
            "",
        ),
    ],
)
def test_places_that_cannot_be(
    args: list[str], says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hyp.yaml").write_text("lr0: 0.5\n")
    code, _, error = run(capsys, "import-hyp", *args)
    assert code == 2
    assert error.startswith(f"error: {says}")


def test_anchors_0_leaves_the_anchors_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("hyp.yaml").write_text("anchors: 0\nlr0: 0.5\n")
    run(capsys, "import-hyp", "hyp.yaml")
    assert yaml.safe_load(Path("hyp_boltbox.yaml").read_text()) == {
        "model": {"optim": {"optimizer": "SGD", "lr0": 0.5}}
    }


def test_a_flat_file_given_to_fit_is_answered_with_the_command(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("hyp.yaml").write_text("lr0: 0.5\n")
    assert "python cli.py import-hyp hyp.yaml" in run(capsys, "fit", "--config", "hyp.yaml")[2]
    assert "fit --config hyp.yaml" in run(capsys, "fit", "--hyp", "hyp.yaml")[2]
    assert "model.optim.lr0" in run(capsys, "fit", "--lr0", "0.5")[2]
