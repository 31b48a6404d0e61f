"""What an evolution leaves in its folder, for plausible, few, failed and strange individuals."""

import csv
import json
import math
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import matplotlib.figure
import numpy as np
import pytest
import yaml
from made_individuals import GENES, failed, individual
from matplotlib.figure import Figure

import cli
from detector.commands.evolve import pictures
from detector.commands.evolve.importances import importances
from detector.commands.evolve.individual import Individual
from detector.commands.evolve.outputs import write_outputs
from detector.commands.evolve.space import YOLOV5_GENES, Gene

ROOT = Path(cli.__file__).parent
PICTURES = {"evolve.png", "fitness.png", "importances.png"}


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "evolve.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "DPI", 40)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """Every figure that is saved."""
    seen: list[Figure] = []
    real = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: (seen.append(self), real(self, *args, **more)))
    yield seen
    seen.clear()


def test_table_has_yolov5s_columns_first(tmp_path: Path) -> None:
    running = individual(3, state="running", fitness=0.9, metrics={})
    cut = individual(2, state="pruned", fitness=0.25, reason="worse than half")
    write_outputs(tmp_path, GENES, [cut, failed(1), individual(0, fitness=1 / 3, seconds=12.34), running], 5)
    lines = (tmp_path / "evolve.csv").read_text().splitlines()
    assert lines[0] == (
        "metrics/precision,metrics/recall,metrics/mAP_0.5,metrics/mAP_0.5:0.95,val/box_loss,val/obj_loss,val/cls_loss,"
        "lr0,anchors,hsv_h,mosaic,warmup_epochs,generation,individual,trial,state,fitness,seconds,reason"
    )
    assert len(lines) == 4  # a row is a line, and none for the one that runs
    done, broken, pruned = rows(tmp_path)
    assert [done[c] for c in lines[0].split(",")[:7]] == ["0.75", "0.5", "0.625", "0.375", "0.05", "0.02", "0.01"]
    assert {g.name: float(done[g.name]) for g in GENES} == individual(0).values  # to the last bit
    assert done["anchors"].isdigit()
    assert (done["trial"], done["generation"], done["individual"], done["state"]) == ("0", "0", "0", "done")
    assert (done["fitness"], done["seconds"], done["reason"]) == ("0.333333", "12.3", "")
    assert (broken["metrics/precision"], broken["fitness"], broken["state"]) == ("", "", "failed")
    assert broken["reason"] == 'the loss was not finite in epoch 3, "batch" 4'
    assert (pruned["fitness"], pruned["reason"]) == ("0.25", "worse than half")


def test_fit_takes_the_best_as_an_overlay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither one that was cut short, whatever its fitness, nor the later of two equals."""
    genes = [*GENES[:-1], GENES[-1]._replace(high=1.2345678)]
    values = {"lr0": 1.23456789e-5, "anchors": 7.0, "hsv_h": 0.0123456789, "mosaic": 1.0, "warmup_epochs": 1.2345678}
    best = individual(9, fitness=0.5, generation=2, index=1, values=values)
    others = [individual(1, fitness=0.4), individual(12, fitness=0.5), individual(2, state="pruned", fitness=0.9), failed(4)]
    write_outputs(tmp_path, genes, [*others, best], 5, {"model.obj": 0.7, "early_stop.patience": 12})
    overlay = tmp_path / "hyp_evolved.yaml"
    text = overlay.read_text()
    assert "The best of 3 individuals: generation 2 of 5, individual 1, trial 9, fitness 0.5.\n" in text
    assert "mAP50 0.625, mAP50-95 0.375" in text
    assert yaml.safe_load(text) == {
        "model": {"lr0": 1.2346e-5, "anchors": 7, "obj": 0.7},
        "data": {"augment": {"hsv_h": 0.012346, "mosaic": 1.0}},
        "warmup": {"warmup_epochs": 1.2345678},  # 1.2346 would be beyond the bound
        "early_stop": {"patience": 12},
    }
    with pytest.raises(SystemExit):
        cli.main(["fit", "--config", str(ROOT / "configs/yolo.yaml"), "--config", str(overlay), "--print_config"])
    options = yaml.safe_load(capsys.readouterr().out)
    assert (options["model"]["lr0"], options["model"]["anchors"]) == (1.2346e-5, 7)
    assert (options["data"]["augment"]["hsv_h"], options["data"]["augment"]["hsv_s"]) == (0.012346, 0.7)
    assert options["warmup"]["warmup_epochs"] == 1.2345678
    assert (options["model"]["obj"], options["early_stop"]["patience"]) == (0.7, 12)


def test_when_all_failed_there_is_no_best(tmp_path: Path) -> None:
    write_outputs(tmp_path, GENES, [failed(n) for n in range(4)], 2)
    assert {p.name for p in tmp_path.iterdir()} == {"evolve.csv", "evolve.png", "fitness.png", "importances.json"}
    told = json.loads((tmp_path / "importances.json").read_text())
    assert told["importances"] == {}
    assert told["note"] == "at least two different individuals must be done"


def test_importances_find_the_gene_that_decides() -> None:
    told = importances(GENES, [individual(n) for n in range(60)])
    shares = told["importances"]
    assert next(iter(shares)) == "hsv_h"
    assert set(shares) == {g.name for g in GENES}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-4)
    assert shares["hsv_h"] > max(0.5, 3 * told["chance"])
    assert max(share for name, share in shares.items() if name != "hsv_h") < 2 * told["chance"]


@pytest.mark.parametrize(
    ("individuals", "note"),
    [
        ([], "at least two different"),
        ([individual(1), failed(2)], "at least two different"),
        ([individual(1), individual(2, values=individual(1).values)], "at least two different"),
        ([individual(1), individual(2, state="pruned")], "at least two different"),
        ([individual(n, fitness=0.25) for n in range(5)], "the same fitness"),
        ([individual(1), individual(2, fitness=math.nan)], "at least two different"),
    ],
)
def test_importances_that_nothing_can_be_said_of(individuals: list[Individual], note: str) -> None:
    told = importances(GENES, individuals)
    assert note in told["note"]
    assert told["importances"] == {}


def test_importances_of_strange_spaces() -> None:
    """Start values outside of the bounds, a fixed gene, one by its logarithm, one that some individuals lack."""
    genes = [GENES[0]._replace(log=True), GENES[1], GENES[2]._replace(low=0.02, high=0.02), GENES[3]]
    some = [individual(n, genes) for n in range(12)]
    some[0].values |= {"lr0": 0.7, "anchors": 12.0}
    del some[1].values["mosaic"]
    assert set(importances(genes, some)["importances"]) == {"lr0", "anchors", "mosaic"}
    assert importances([genes[2]], some)["note"] == "no gene has room between its bounds"


def test_pictures_of_thirty_genes(tmp_path: Path, figures: list[Figure]) -> None:
    """A panel each, titles that touch neither each other nor a panel, the best marked where it is."""
    genes = [g._replace(log=g.name == "lr0") for g in YOLOV5_GENES.values()]
    genes += [Gene(f"trainer.a_rather_long_name_{k}", f"trainer.a_rather_long_name_{k}", 1.0, 2.0) for k in range(2)]
    some = [individual(n, genes) if n % 7 else failed(n, genes) for n in range(40)]
    write_outputs(tmp_path, genes, some, 10)
    panels, by_generation, bars = figures
    axes = [a for a in panels.axes if a.get_visible()]
    assert len(axes) == 30
    assert [a.get_xscale() for a in axes] == ["log"] + ["linear"] * 29
    assert by_generation.axes[0].get_xlabel() == "generation"
    assert len(bars.axes[0].patches) == 30
    best = max((i for i in some if i.state == "done"), key=lambda i: i.fitness or 0)
    for axis, gene in zip(axes, genes, strict=True):
        star = next(line for line in axis.lines if line.get_marker() == "*")
        assert (star.get_xdata()[0], star.get_ydata()[0]) == (best.values[gene.name], best.fitness)
    renderer = panels.canvas.get_renderer()  # type: ignore[attr-defined]
    inside = [a.get_window_extent(renderer) for a in axes]
    titles = [a.title.get_window_extent(renderer) for a in axes]
    assert not any(a.overlaps(b) for k, a in enumerate(titles) for b in [*titles[:k], *inside])
    assert all(box.x0 >= 0 and box.x1 <= panels.bbox.x1 and box.y1 <= panels.bbox.y1 for box in titles)
    for name in PICTURES:
        picture = cv2.imread(str(tmp_path / name))
        assert picture is not None
        assert picture.std() > 10


@pytest.mark.parametrize("count", [1, 25])
def test_without_generations_the_curve_is_by_trial(count: int, tmp_path: Path, figures: list[Figure]) -> None:
    some = [individual(n, generation=0) for n in range(count)]
    write_outputs(tmp_path, GENES, [*some, failed(count)], 0)
    axis = figures[1].axes[0]
    curves = {line.get_label(): np.asarray(line.get_ydata()) for line in axis.lines}
    fitness = np.array([i.fitness for i in some])
    assert axis.get_xlabel() == "trial"
    assert np.array_equal(curves["best so far"], np.maximum.accumulate(fitness))
    assert curves["mean of 10 trials"][-1] == pytest.approx(fitness[-10:].mean())
    assert "generation" not in (tmp_path / "hyp_evolved.yaml").read_text()


def test_curve_by_generation(tmp_path: Path, figures: list[Figure]) -> None:
    fitness = [[0.1, 0.4, 0.3, 0.2], [0.2, 0.3, 0.3, 0.2], [0.5, 0.1, 0.1, 0.1]]
    some = [individual(4 * g + k, fitness=f) for g, of in enumerate(fitness) for k, f in enumerate(of)]
    write_outputs(tmp_path, GENES, [*some, failed(12), failed(13)], 4)
    axis = figures[1].axes[0]
    curves = {line.get_label(): np.asarray(line.get_ydata()) for line in axis.lines}
    assert curves["mean"] == pytest.approx([0.25, 0.25, 0.2])
    assert curves["best of the generation"].tolist() == [0.4, 0.3, 0.5]
    assert curves["best so far"].tolist() == [0.4, 0.4, 0.5]
    assert [line.get_xdata().tolist() for line in axis.lines if line.get_label() == "failed"] == [[3]]
    assert "2" in [t.get_text() for t in axis.texts]


def test_who_knows_less_replaces_nothing(tmp_path: Path) -> None:
    some = [individual(n, GENES[2:3]) for n in range(5)]
    write_outputs(tmp_path, GENES[2:3], some, 2)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    write_outputs(tmp_path, GENES[2:3], [some[0], some[2]], 2)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    write_outputs(tmp_path, GENES[2:3], [individual(0, GENES[2:3], seconds=99.0)], 2)  # of a study begun anew
    assert [row["seconds"] for row in rows(tmp_path)] == ["99.0"]


def _write_growing(folder: Path, order: list[int]) -> None:
    some = [individual(n, GENES[2:3]) for n in range(12)]
    for k in order:
        write_outputs(folder, GENES[2:3], some[:k], 3)


def test_processes_that_write_at_once(tmp_path: Path) -> None:
    """Every reader finds whole files at any time, and in the end those of the one who knew most."""
    started = multiprocessing.get_context("fork")
    processes = [started.Process(target=_write_growing, args=(tmp_path, order)) for order in ([3, 12, 4], [2, 7, 6])]
    for process in processes:
        process.start()
    seen, columns = set(), 7 + 1 + 7
    while any(process.is_alive() for process in processes):
        if (tmp_path / "evolve.csv").is_file():
            found = list(csv.reader((tmp_path / "evolve.csv").read_text().splitlines()))
            assert {len(line) for line in found} == {columns}
            seen.add(len(found) - 1)
        if (tmp_path / "hyp_evolved.yaml").is_file():
            assert set(yaml.safe_load((tmp_path / "hyp_evolved.yaml").read_text())["data"]["augment"]) == {"hsv_h"}
        time.sleep(0.005)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(seen) > 1
    assert len(rows(tmp_path)) == 12
    assert {p.name for p in tmp_path.iterdir()} == {"evolve.csv", "hyp_evolved.yaml", "importances.json"} | PICTURES


def test_a_folder_that_cannot_be_is_not_fatal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    write_outputs(tmp_path / "file" / "study", GENES[2:3], [individual(n, GENES[2:3]) for n in range(3)], 2)
    told = capsys.readouterr().out
    for name in ("evolve.csv", "hyp_evolved.yaml", "importances.json", *PICTURES):
        assert f"{name} could not be written" in told
