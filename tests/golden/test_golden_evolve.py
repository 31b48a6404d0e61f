"""YOLOv5's evolution: bounds, the genes that change by default, the schedule of each generation."""

from golden.cases import each

from boltbox.detector.commands.command_line import CONFIGS
from boltbox.detector.commands.evolve.genetic import schedule
from boltbox.detector.commands.evolve.space import EVOLVED, FILES, YOLOV5_GENES
from boltbox.detector.system.text_file import load_yaml


@each("evolve")
def test_evolution(case):
    meta = case.meta
    # nothing reads that one
    theirs = {k: (v["low"], v["high"]) for k, v in meta["bounds"].items() if k != "iou_t"}
    assert {name: (gene.low, gene.high) for name, gene in YOLOV5_GENES.items()} == theirs
    assert meta["evolved_keys"] == EVOLVED
    ranges = [[YOLOV5_GENES[k].low, YOLOV5_GENES[k].high] for k in EVOLVED]
    assert ranges == meta["evolved_ranges"]
    assert meta["starting_individuals_read_from_hyp_files"] == len(FILES)
    length = load_yaml((CONFIGS / "evolve_yolov5.yaml").read_text())["evolve"]
    assert meta["ga"]["pop_size"] == length["population"]
    names = ("elite_size", "tournament_size", "crossover_rate", "mutation_rate")
    for expected in meta["schedules"]:
        count = expected["generations"]
        for generation, ours in enumerate(schedule(g, count) for g in range(count)):
            assert tuple(ours) == tuple(expected[name][generation] for name in names)
