"""What unlabelled images and a teacher are worth: a few labelled images of each data set, alone and
with all others unlabelled, and the whole set, in trainings of as many steps.

    python -m benchmarks.teacher --data bccd aquarium/data.yaml --images 25 50 --seeds 0 1 --jobs 2 \\
        --folder runs/teacher -- --model.start.weights yolov5n.pt --data.workers 0

labels: the labelled images alone · taught: the best checkpoint of that training is the teacher of
the others · all: every image with its labels. Options after -- are for all trainings; --taught
gives further ways to be taught, NAME=OPTIONS, where TEACHER and UNLABELLED stand for the
checkpoint and the folder. AP as in benchmarks.recipes; the command can be given again.
"""

import argparse
import math
import shlex
import sys
from pathlib import Path

from benchmarks.recipes.study import run_all
from benchmarks.recipes.subset import write_subset
from benchmarks.recipes.training import Training
from benchmarks.tables import markdown
from boltbox.detector.data.dataset_file import DatasetFile

BATCH, VALIDATIONS = 8, 10
TAUGHT = "--data.unlabelled UNLABELLED --teacher TEACHER"


def length(images: int, batch: int, steps: int) -> tuple[str, ...]:
    """Options for about as many steps, each with `batch` of the images, and some ten validations."""
    epochs = steps / math.ceil(images / batch)
    every = max(round(epochs / VALIDATIONS), 1)
    words = {"max_epochs": max(round(epochs / every), 1) * every, "check_val_every_n_epoch": every}
    return tuple(word for name, x in words.items() for word in (f"--trainer.{name}", str(x)))


def link_others(source: str, labelled: Path, folder: Path) -> Path:
    """A folder of links to the training images that are not among the labelled ones."""
    files = [DatasetFile.read(str(given)).open("train").files for given in (source, labelled)]
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted({*files[0]} - {*files[1]}):
        link = folder / Path(file).name
        if not link.is_symlink():
            link.symlink_to(Path(file).resolve())
    return folder


def main() -> None:
    words = sys.argv[1:]
    common = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--images", nargs="+", type=int, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--taught", action="append", default=[], help="NAME=OPTIONS")
    given = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    ways = dict(text.split("=", 1) for text in given.taught or [f"taught={TAUGHT}"])
    first, second = [], []
    for seed in given.seeds:
        for source in given.data:
            path = Path(source)
            name = path.parent.name if path.suffix == ".yaml" else path.name

            def training(
                data: str, name: str, way: str, images: int, words: str, seed: int = seed
            ) -> Training:
                options = tuple(shlex.split(f"--data.batch_size {BATCH} {words}"))
                own = int(options[-options[::-1].index("--data.batch_size")])
                steps = length(images, own // 2 if words else own, given.steps)
                run = given.folder / name / way / str(seed)
                return Training(data, name, way, options, (*steps, *common), seed, run)

            total = len(DatasetFile.read(source).open("train"))
            first.append(training(str(path.resolve()), name, "all", total, ""))
            for images in given.images:
                part = f"{name}-{images}"
                data = write_subset(source, images, given.folder / "subsets" / part)
                others = link_others(source, data, given.folder / "unlabelled" / part)
                alone = training(str(data), part, "labels", images, "")
                first.append(alone)
                for way, text in ways.items():
                    text = text.replace("UNLABELLED", shlex.quote(str(others.resolve())))
                    best = alone.folder.resolve() / "checkpoints/best.ckpt"
                    text = text.replace("TEACHER", str(best))
                    second.append(training(str(data), part, way, images, text))
    for trainings in (first, second):
        run_all(trainings, given.jobs, lambda t: print(f"{t}: {100 * t.figures().score:.1f}"))
    scores: dict[tuple[str, str], list[str]] = {}
    for t in first + second:
        scores.setdefault((t.name, t.recipe), []).append(f"{100 * t.figures().score:.1f}")
    rows = [["images", "recipe", *(f"seed {seed}" for seed in given.seeds)]]
    rows += [[*key, *values] for key, values in scores.items()]
    print("", *markdown(rows), sep="\n")


if __name__ == "__main__":
    main()
