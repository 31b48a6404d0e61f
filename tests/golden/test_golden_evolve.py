"""YOLOv5's evolution: bounds, the genes that change by default, the schedule of each generation."""

from golden.cases import each

from boltbox.detector.commands.command_line import CONFIGS
from boltbox.detector.commands.evolve.genetic import schedule
from boltbox.detector.commands.evolve.space import EVOLVED, FILES, YOLOV5_GENES
from boltbox.detector.system.text_file import load_yaml


@each("evolve")
def test_evolution(case):
    meta = case.meta
    bounds = meta["bounds"]
    assert bounds.keys() - YOLOV5_GENES.keys() == {"iou_t"}, "nothing reads that one"
    for name, gene in YOLOV5_GENES.items():
        assert (gene.low, gene.high) == (bounds[name]["low"], bounds[name]["high"])
    assert meta["evolved_keys"] == EVOLVED
    for name, (low, high) in zip(EVOLVED, meta["evolved_ranges"], strict=True):
        assert (YOLOV5_GENES[name].low, YOLOV5_GENES[name].high) == (low, high)
    assert meta["starting_individuals_read_from_hyp_files"] == len(FILES)
    length = load_yaml((CONFIGS / "evolve_yolov5.yaml").read_text())["evolve"]
    assert meta["ga"]["pop_size"] == length["population"]
    names = ("elite_size", "tournament_size", "crossover_rate", "mutation_rate")
    for expected in meta["schedules"]:
        count = expected["generations"]
        for generation in range(count):
            for name, ours in zip(names, schedule(generation, count), strict=True):
                assert ours == expected[name][generation], name
