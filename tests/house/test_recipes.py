"""benchmarks.recipes: trainings in pairs, and what is made of them."""

from pathlib import Path

import pytest
from made_runs import read
from small_fit import SMALL

from benchmarks import recipes
from benchmarks.recipes import write_subset
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.system.csv_table import read_table
from boltbox.detector.system.errors import InputError


def test_subsets(small_data, tmp_path):
    """Always the same images, a smaller subset's within a larger one's; val is complete."""
    complete = DatasetFile.read(str(small_data))
    files = {}
    for count in (3, 5):
        subset = DatasetFile.read(str(write_subset(str(small_data), count, tmp_path / str(count))))
        files[count] = {Path(f).name for f in subset.open("train").files}
        assert len(files[count]) == count
        assert len(subset.open("val").files) == len(complete.open("val").files)
        assert subset.names == complete.names
    assert files[3] < files[5]
    divided = tmp_path / "data.yaml"
    content = f"path: {small_data.parent}\ntrain: images/train\nsplit: 0.5\n"
    divided.write_text(f"{content}names: {complete.names}\n")
    with pytest.raises(InputError, match=r"val split of its own"):
        write_subset(str(divided), 3, tmp_path / "subset")


@pytest.mark.usefixtures("quick_starts")
def test_a_study(small_data, tmp_path, capsys):
    """What is done is not trained again, what was interrupted goes on, what failed is named."""
    words = f"--data {small_data} --seeds 0 --jobs 2 --folder {tmp_path} --recipe plain= --recipe"
    common = " ".join(SMALL) + " --trainer.max_epochs 1 --trainer.limit_train_batches 1"
    with pytest.raises(SystemExit, match=r"wrong on .*, seed 0: fit ended with code 2"):
        recipes.main(words.split() + ["wrong=--model.optim.lr0 much", "--"] + common.split())
    (done,) = tmp_path.glob("*/plain/0/figures.json")
    written = {name: done.with_name(name).read_bytes() for name in ("figures.json", "metrics.csv")}
    done.unlink()  # as if it had been interrupted after its last epoch
    line = words.split() + ["slow=--model.optim.lr0 0.001", "--"] + common.split()
    recipes.main(line)
    assert {name: done.with_name(name).read_bytes() for name in written} == written
    assert "resume:    " in (done.parent / "fit.log").read_text()
    changed = done.stat().st_mtime_ns
    capsys.readouterr()
    recipes.main(line)
    assert done.stat().st_mtime_ns == changed
    rows = read_table(tmp_path / "study.csv")
    assert [(row["recipe"], row["seed"]) for row in rows] == [("plain", "0"), ("slow", "0")]
    assert float(rows[0]["score"]) == read(done)["score"]
    gain = 100 * (float(rows[1]["score"]) - float(rows[0]["score"]))
    assert f"| slow | {gain:+.1f} | {gain:+.2f} |" in capsys.readouterr().out
