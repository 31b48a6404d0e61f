"""benchmarks.recipes: trainings in pairs, and what is made of them."""

import json
import sys
from pathlib import Path
from shlex import split

import numpy as np
import pytest

from benchmarks.recipes import __main__ as recipes
from benchmarks.recipes.subset import write_subset
from benchmarks.recipes.training import Figures
from benchmarks.recipes.verdict import first_pass, interval, judge
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.errors import InputError


def run(score: float, curve: list[float], seconds: float = 10.0, parameters: int = 100) -> Figures:
    return Figures(
        score,
        "val",
        tuple((k + 1, (k + 1) * seconds, value) for k, value in enumerate(curve)),
        parameters,
    )


def test_only_what_was_trained_alike_is_compared() -> None:
    base = {
        "a": {0: run(0.1, [0.1]), 1: run(0.2, [0.2]), 2: run(0.9, [0.9])},
        "b": {0: run(0.5, [0.5])},
        "c": {0: run(1, [1])},
    }
    other = {
        "a": {0: run(0.2, [0.3]), 1: run(0.2, [0.2], parameters=110)},
        "b": {0: run(0.4, [0.4])},
    }
    verdict = judge(base, other)
    assert verdict.gains == pytest.approx({"a": 5.0, "b": -10.0})
    assert verdict.macro == pytest.approx(-2.5)
    assert (verdict.worst, verdict.parameters) == ("b", pytest.approx(1.1))
    with pytest.raises(ValueError, match="no data set and seed"):
        judge(base, {"a": {7: run(1, [1])}})


def test_the_interval_of_the_mean() -> None:
    """Of many sets of one seed each it is the plain bootstrap's, near 1.96 standard errors; of
    equal gains it is a point."""
    gaps = [np.array([value]) for value in np.random.default_rng(0).normal(2, 1, 100)]
    mean = np.mean(gaps)
    error = np.std(gaps) / 10
    assert interval(gaps) == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.02)
    assert interval([np.full(3, 1.5)] * 3) == pytest.approx((1.5, 1.5))


def test_when_a_recipe_passes_the_other() -> None:
    base = [run(0, [0.1, 0.2, 0.3, 0.4]), run(0, [0.1, 0.2, 0.3, 0.6])]
    fast = [run(0, [0.3, 0.7, 0.7, 0.7], seconds=15), run(0, [0.1, 0.3, 0.9, 0.9], seconds=15)]
    # means .2, .5: after 2 of 4 epochs, 30 of 40 seconds
    assert first_pass(base, fast) == pytest.approx((0.5, 0.75))
    assert first_pass(fast, base) is None


def test_subsets(small_data: Path, tmp_path: Path) -> None:
    """Always the same images, a smaller subset's within a larger one's; the other splits are
    whole."""
    whole = DatasetFile.read(str(small_data))
    files = {}
    for count in (3, 5):
        subset = DatasetFile.read(str(write_subset(str(small_data), count, tmp_path / str(count))))
        files[count] = {Path(f).name for f in subset.open("train").files}
        assert len(files[count]) == count
        assert len(subset.open("val").files) == len(whole.open("val").files)
        assert subset.names == whole.names
    assert files[3] < files[5]


def test_no_subset_whose_validation_images_would_be_trained_on(
    small_data: Path, tmp_path: Path
) -> None:
    root = small_data.parent if small_data.is_file() else small_data
    divided = tmp_path / "data.yaml"
    divided.write_text(
        f"path: {root}\ntrain: images/train\nsplit: 0.5\nnames: {DatasetFile.read(str(small_data)).names}\n"
    )
    with pytest.raises(InputError, match="its val is a share of train"):
        write_subset(str(divided), 3, tmp_path / "subset")


@pytest.mark.usefixtures("quick_starts")
def test_a_study(
    small_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is done is not trained again, what was interrupted goes on, what failed is named."""
    common = split(
        "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --data.image_size 64 --model.network.width_multiple 0.125 --model.network.depth_multiple 0.1 --model.network.levels [5] --data.workers 0 --trainer.accelerator cpu --report.enabled false --pictures.enabled false --doctor.enabled false --autoanchor.enabled false"
    )
    words = f"--data {small_data} --seeds 0 --jobs 2 --folder {tmp_path} --recipe plain=".split()
    monkeypatch.setattr(
        sys, "argv", ["recipes", *words, "--recipe", "wrong=--model.optim.lr0 much", "--", *common]
    )
    with pytest.raises(SystemExit, match=r"wrong on .*, seed 0: fit ended with code 2"):
        recipes.main()
    (done,) = tmp_path.glob("*/plain/0/figures.json")
    written = {name: done.with_name(name).read_bytes() for name in ("figures.json", "metrics.csv")}
    done.unlink()  # as if it had been interrupted after its last epoch
    monkeypatch.setattr(
        sys, "argv", ["recipes", *words, "--recipe", "slow=--model.optim.lr0 0.001", "--", *common]
    )
    capsys.readouterr()
    recipes.main()
    out = capsys.readouterr().out
    assert {name: done.with_name(name).read_bytes() for name in written} == written
    assert "resume:    " in (done.parent / "fit.log").read_text()
    age = done.stat().st_mtime_ns
    recipes.main()
    assert done.stat().st_mtime_ns == age
    scores = [
        100 * json.loads(next(tmp_path.glob(f"*/{recipe}/0/figures.json")).read_text())["score"]
        for recipe in ("plain", "slow")
    ]
    assert f"| slow | {scores[1] - scores[0]:+.1f} | {scores[1] - scores[0]:+.2f} |" in out
    assert "AP in hundredths" in (tmp_path / "study.md").read_text()
    rows = read_table(tmp_path / "study.csv")
    assert [(row["recipe"], row["seed"]) for row in rows] == [("plain", "0"), ("slow", "0")]
    assert [100 * float(row["score"]) for row in rows] == pytest.approx(scores)
    assert all(len(row["AP"].split()) == 1 for row in rows)
