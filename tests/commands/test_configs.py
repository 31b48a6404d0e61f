"""Every YAML file that is shipped is taken by the parser, and says what the defaults say where it
claims so."""

import pytest
import yaml
from made_runs import ROOT, read

from boltbox.detector.system.configuration import flatten
from boltbox.detector.training.trainer_options import usable_precision

DATASETS = ROOT / "configs/datasets"
CONFIGS = [path for path in sorted((ROOT / "configs").rglob("*.yaml")) if path.parent != DATASETS]


@pytest.fixture
def options_of(printed):
    """The configuration that a command line would run with."""
    return lambda line: flatten(yaml.safe_load(printed(f"{line} --print_config")))


def test_sizes_of_the_demo_are_for_the_demo(options_of, here):
    """They are defaults: a configuration counts more, what is typed most. Other data have
    YOLOv5's."""
    (here / "of_demo.yaml").write_text("data:\n  dataset: demo\n  batch_size: 32\n")
    names = ("data.dataset", "data.image_size", "data.batch_size", "trainer.max_epochs")
    for line, expected in {
        "fit --config yolo": ["demo", 128, 64, 60],
        "fit --config yolo --data.dataset my.yaml --data.batch_size 4": ["my.yaml", 640, 4, 100],
        "fit --config of_demo.yaml --data.image_size 96": ["demo", 96, 32, 60],
        "doctor": [None, 640, None, 100],  # which then asks for data
    }.items():
        options = options_of(line)
        assert list(map(options.get, names)) == expected
    assert options["trainer.precision"] == "16-mixed"


CASES = {  # precision, accelerator, command, strategy; what the machine has; precision that is used
    ("16-mixed auto fit auto", ""): "32-true",
    ("16-mixed auto fit auto", "avx"): "bf16-mixed",
    ("16-mixed cpu fit fsdp2", "avx gpu bf16"): "bf16-mixed",
    ("16-mixed auto validate auto", "avx"): "32-true",
    ("16-mixed auto fit ddp", "gpu bf16"): "16-mixed",
    ("16-mixed gpu fit fsdp2", "gpu bf16"): "bf16-mixed",
    ("16-mixed gpu fit fsdp2", "gpu"): "32-true",
    ("32-true auto fit auto", "gpu"): "32-true",
}


@pytest.mark.parametrize(("asked", "machine"), CASES)
def test_precision_that_a_machine_has(
    asked,
    machine,
    monkeypatch,
    capsys,
):
    """What differs from what was asked for is said in a line."""
    for function, word in {
        "torch.cuda.is_available": "gpu",
        "torch.cuda.is_bf16_supported": "bf16",
        "torch.cpu._is_avx512_bf16_supported": "avx",
    }.items():
        monkeypatch.setattr(function, lambda word=word: word in machine)
    used = usable_precision(*asked.split())
    assert used == CASES[asked, machine]
    assert (used in capsys.readouterr().out) == (not asked.startswith(used))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_config_parses(path, options_of):
    """yolo.yaml and low.yaml, on yolov5.yaml, repeat the defaults."""
    command = "evolve" if path.name == "evolve_yolov5.yaml" else "fit"
    base = f"{command} --data.dataset my.yaml"
    if path.name == "low.yaml":
        base += " --config yolov5"
    given = flatten(read(path))
    assert given.items() <= options_of(f"{base} --config {path}").items()
    if path.name in ("yolo.yaml", "low.yaml"):
        assert given.items() <= options_of(base).items()


def test_dataset_examples_are_maps_with_known_keys():
    for path in DATASETS.glob("*.yaml"):
        keys = read(path).keys()
        assert {"train", "val"} <= keys, path
        assert keys <= {"path", "format", "train", "val", "test", "names", "nc", "images"}, path
