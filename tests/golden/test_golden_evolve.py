"""YOLOv5's evolution: bounds, the genes that change by default, the schedule of each generation."""

from golden.cases import Case, each

from boltbox.detector.commands.command_line import CONFIGS
from boltbox.detector.commands.evolve.genetic import schedule
from boltbox.detector.commands.evolve.space import EVOLVED, FILES, YOLOV5_GENES
from boltbox.detector.system.text_file import load_yaml


@each("evolve")
def test_bounds(case: Case) -> None:
    # nothing reads that one
    theirs = {k: (v["low"], v["high"]) for k, v in case.meta["bounds"].items() if k != "iou_t"}
    assert {name: (gene.low, gene.high) for name, gene in YOLOV5_GENES.items()} == theirs


@each("evolve")
def test_evolved_by_default(case: Case) -> None:
    assert case.meta["evolved_keys"] == EVOLVED
    assert [[YOLOV5_GENES[k].low, YOLOV5_GENES[k].high] for k in EVOLVED] == case.meta[
        "evolved_ranges"
    ]
    assert case.meta["starting_individuals_read_from_hyp_files"] == len(FILES)
    length = load_yaml((CONFIGS / "evolve_yolov5.yaml").read_text())["evolve"]
    assert case.meta["ga"]["pop_size"] == length["population"]


@each("evolve")
def test_schedule(case: Case) -> None:
    for expected in case.meta["schedules"]:
        count = expected["generations"]
        ours = [schedule(g, count) for g in range(count)]
        assert [s.elites for s in ours] == expected["elite_size"]
        assert [s.tournament for s in ours] == expected["tournament_size"]
        assert [s.crossover for s in ours] == expected["crossover_rate"]
        assert [s.mutation for s in ours] == expected["mutation_rate"]
