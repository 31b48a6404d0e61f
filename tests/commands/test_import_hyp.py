"""YOLOv5's flat files of hyper-parameters become overlays, and nothing in them is lost unnamed."""

import os
from pathlib import Path

import pytest
import yaml
from made_runs import ROOT, read, type_line

import cli
from boltbox.detector.commands.evolve.space import YOLOV5_GENES
from boltbox.detector.system.configuration import flatten


def test_flat_values_become_our_file(here):
    ours = read(ROOT / "configs/hyp/voc.yaml")
    flat = {name.rpartition(".")[2]: value for name, value in flatten(ours).items()}
    del flat["optimizer"]  # it has no key of its own
    Path("hyp.scratch.yaml").write_text(yaml.safe_dump(flat, sort_keys=False))
    type_line("import-hyp hyp.scratch.yaml")
    made = read("hyp.scratch_boltbox.yaml")
    assert made == ours
    assert list(flatten(made)) == list(flatten(ours))  # in the same order


def test_every_key_reaches_its_option(here, capsys):
    """Each with a value of its own, so that none can be taken for another."""
    values = {}
    for gene in YOLOV5_GENES.values():
        values[gene.name] = round(gene.low + (gene.high - gene.low) * 0.37, 6)
    values |= {"anchors": 3.412, "label_smoothing": 0.11, "iou_t": 0.2}
    text = "".join(f"{name}: {value}\n" for name, value in values.items())
    Path("hyp.yaml").write_text(text.replace("weight_decay: 0.00037", "weight_decay: 37e-5"))
    cli.main(["import-hyp", "hyp.yaml", "--out", "to/some place/overlay.yaml"])
    capsys.readouterr()
    recipe = ["--config", "yolov5", "--config", "to/some place/overlay.yaml"]
    with pytest.raises(SystemExit):
        cli.main(["fit"] + recipe + ["--print_config"])
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
def test_bad_files_get_a_sentence(content, named, here, refused):
    Path("hyp.yaml").write_text(content)
    error = refused("import-hyp hyp.yaml")
    assert error.startswith("error: hyp.yaml: ")
    assert named in error
    assert os.listdir() == ["hyp.yaml"]


def test_nothing_is_written_over(here, refused):
    Path("folder").mkdir()
    for name in ("hyp.yaml", "hyp_boltbox.yaml"):
        Path(name).write_text("lr0: 0.5\n")
    for line, name in {
        "hyp.yaml": "hyp_boltbox.yaml",
        "hyp.yaml --out hyp.yaml": "hyp.yaml",
        "hyp.yaml --out folder": "folder",
        "none.yaml": "none.yaml",
    }.items():
        assert refused(f"import-hyp {line}").startswith(f"error: {name}: ")
    for path in here.iterdir():
        assert path.is_dir() or path.read_text() == "lr0: 0.5\n"


def test_anchors_0_leaves_the_anchors_alone(here):
    Path("hyp.yaml").write_text("anchors: 0\nlr0: 0.5\n")
    type_line("import-hyp hyp.yaml")
    options = {"optim": {"optimizer": "SGD", "lr0": 0.5}}
    assert read("hyp_boltbox.yaml") == {"model": options}
