"""What an evolution leaves in its folder."""

import contextlib
import csv
import fcntl
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from detector.commands.evolve.importances import importances
from detector.commands.evolve.individual import Individual, best, done
from detector.commands.evolve.overlay import overlay_text
from detector.commands.evolve.pictures import plot_fitness, plot_genes, plot_importances
from detector.commands.evolve.space import Gene
from detector.data.cache.folder import own_name
from detector.system.atomic_file import not_fatal, write_beside

METRICS = {  # YOLOv5's columns, in its order, and what they are called here
    "metrics/precision": "P",
    "metrics/recall": "R",
    "metrics/mAP_0.5": "mAP50",
    "metrics/mAP_0.5:0.95": "mAP50-95",
    "val/box_loss": "val/box_loss",
    "val/obj_loss": "val/obj_loss",
    "val/cls_loss": "val/cls_loss",
}
OURS = ("generation", "individual", "trial", "state", "fitness", "seconds", "reason")
DIGITS = 5  # significant ones of a value in hyp_evolved.yaml


def write_outputs(
    folder: Path,
    genes: Sequence[Gene],
    individuals: Sequence[Individual],
    generations: int,
    fixed: Mapping[str, float] | None = None,
) -> None:
    """Write all files anew, each atomically; one that cannot be written is said, and evolution goes on.

    Several processes may do so at once. They may know of different numbers of individuals: a file of one that knows of more
    is not replaced.

    evolve.csv: a row for each individual that is not running, by trial number. YOLOv5's columns come first (its seven figures,
        then the genes by its names), so what reads its file reads this one. Ours follow (`OURS`). Other than YOLOv5's, the
        columns are not padded with blanks, the genes' values are not rounded, individuals that failed have a row too (cells
        without a figure are empty), and only what is searched for has a column.
    hyp_evolved.yaml: the best individual's values, an overlay for `fit`; not there while none is done.
    evolve.png, fitness.png, importances.png, importances.json: see `pictures` and `importances`; importances.png is not there
        while there is nothing to draw.

    Args:
        folder: of the study.
        genes: that are searched for, in the order of the columns and panels.
        individuals: all of them, also those that are running.
        generations: of the whole evolution; 0 if the sampler has none.
        fixed: value by option of what was given to all individuals and is no gene; hyp_evolved.yaml needs it as well.
    """
    ended = sorted((i for i in individuals if i.state != "running"), key=lambda i: i.number)
    rows = _table(genes, ended)

    def put(name: str, write: Callable[[BinaryIO], object]) -> None:
        path = folder / name
        with not_fatal(path):
            beside = write_beside(own_name(path), write)
            with _alone(folder):
                if _outdated(folder / "evolve.csv", rows):
                    beside.unlink()
                else:
                    os.replace(beside, path)

    put("evolve.csv", lambda file: file.write("".join(rows).encode()))
    if best(ended):
        put("hyp_evolved.yaml", lambda file: file.write(_evolved(genes, ended, generations, fixed or {}).encode()))
    found = importances(genes, ended)
    put("importances.json", lambda file: file.write(json.dumps(found, indent=1).encode()))
    put("evolve.png", lambda file: plot_genes(file, genes, ended))
    put("fitness.png", lambda file: plot_fitness(file, ended, generations))
    if found["importances"]:
        put("importances.png", lambda file: plot_importances(file, found))


def _table(genes: Sequence[Gene], ended: Sequence[Individual]) -> list[str]:
    """Lines of evolve.csv, the first with the names of the columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*METRICS, *(g.name for g in genes), *OURS])
    for i in ended:
        metrics = [f"{i.metrics[name]:.6g}" if name in i.metrics else "" for name in METRICS.values()]
        values = [str(_number(g, i.values[g.name])) if g.name in i.values else "" for g in genes]
        fitness = "" if i.fitness is None else f"{i.fitness:.6g}"
        reason = " ".join(i.reason.split())  # a row is a line
        writer.writerow([*metrics, *values, i.generation, i.index, i.number, i.state, fitness, f"{i.seconds:.1f}", reason])
    return text.getvalue().splitlines(keepends=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process of this machine is in here, so nothing happens between looking and replacing."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every shared folder can; then a file may be a trial behind until the next
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _outdated(path: Path, rows: Sequence[str]) -> bool:
    """The file at `path` says all that `rows` say, and more."""
    try:
        there = set(path.read_text().splitlines(keepends=True))
    except (OSError, UnicodeDecodeError):
        return False
    return there > set(rows)


def _evolved(genes: Sequence[Gene], ended: Sequence[Individual], generations: int, fixed: Mapping[str, float]) -> str:
    """The best individual as an overlay."""
    winner = best(ended)
    assert winner is not None
    place = f"generation {winner.generation} of {generations}, individual {winner.index}, " if generations else ""
    comments = [
        f"The best of {len(done(ended))} individuals: {place}trial {winner.number}, fitness {winner.fitness:.5g}.",
        ", ".join(f"{name} {winner.metrics[name]:.5g}" for name in METRICS.values() if name in winner.metrics),
        "An overlay: what was searched for, and what the search kept fixed.",
        "  python cli.py fit --config configs/yolo.yaml --config hyp_evolved.yaml --data.dataset FILE",
    ]
    options = {g.option: _rounded(g, winner.values[g.name]) for g in genes if g.name in winner.values}
    return overlay_text({**options, **fixed}, [c for c in comments if c])


def _number(gene: Gene, value: float) -> float:
    return round(value) if gene.whole else float(value)


def _rounded(gene: Gene, value: float) -> float:
    """To so many digits that people can read it, but not over the bounds."""
    short = float(f"{value:.{DIGITS}g}")
    return _number(gene, short if gene.low <= short <= gene.high else float(value))
