"""YOLOv5's flat files of hyper-parameters become overlays, and nothing in them is lost unnamed."""

from pathlib import Path

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


def test_every_key_reaches_its_option(here, printed):
    """Each with a value of its own, so that none can be taken for another."""
    values = {}
    for gene in YOLOV5_GENES.values():
        values[gene.name] = round(gene.low + (gene.high - gene.low) * 0.37, 6)
    values |= {"anchors": 3.412, "label_smoothing": 0.11, "iou_t": 0.2}
    text = "".join(f"{name}: {value}\n" for name, value in values.items())
    Path("hyp.yaml").write_text(text.replace("weight_decay: 0.00037", "weight_decay: 37e-5"))
    overlay = "to/some place/overlay.yaml"
    cli.main(["import-hyp", "hyp.yaml", "--out", overlay])
    line = ["fit", "--config", "yolov5", "--config", overlay, "--print_config"]
    options = flatten(yaml.safe_load(printed(line)))
    assert options["model.network.anchors"] == 3
    assert options["model.loss.label_smoothing"] == 0.11
    for gene in YOLOV5_GENES.values():
        if gene.name != "anchors":
            assert options[gene.option] == values[gene.name], gene.option


def test_anchors_0_leaves_the_anchors_alone(here):
    Path("hyp.yaml").write_text("anchors: 0\nlr0: 0.5\n")
    type_line("import-hyp hyp.yaml")
    options = {"optim": {"optimizer": "SGD", "lr0": 0.5}}
    assert read("hyp_boltbox.yaml") == {"model": options}
