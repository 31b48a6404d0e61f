"""The command `doctor` as a user types it: what it prints and writes, its exit codes; what it finds
in real data; its short form before a training."""

import re
import shutil
from pathlib import Path

import pytest
from made_datasets import lay_out
from made_runs import column, findings_of, read, train, type_line
from PIL import Image
from shared import shared

from boltbox.callbacks.doctor import DoctorCheck
from boltbox.detector.data.dataset_file import DatasetFile


def doctor(line):
    """The exit code."""
    try:
        type_line(f"doctor {line}")
    except SystemExit as e:
        return int(e.code or 0)
    return 0


def test_the_objects_are_those_of_a_training(tmp_path):
    """All of a single class, in the copy that it repairs too, and as large as in tiles."""
    Image.new("RGB", (640, 640)).save(tmp_path / "a.png")
    lay_out(tmp_path, {"a.txt": "7 .5 .5 .02 .02\n", "data.yaml": "train: .\nnames: [cat, dog]\n"})
    copy = tmp_path.with_name("copy")
    run = tmp_path.with_name("run")
    line = f"--data.dataset {tmp_path} --data.image_size 64 --data.single_class true --run {run}"
    for options, is_tiny in (("--data.tile_size 0", True), (f"--fix {copy}", False)):
        assert doctor(f"{line} {options}") == 0
        assert ("tiny_box" in (run / "doctor.json").read_text()) == is_tiny
    file = DatasetFile.read(str(copy))
    assert file.names == ["item"]
    assert len(file.open("train").labels.boxes) == 1


WORDS = {  # of FAULTS.tsv -> kind
    "zero width": "zero_size_box",
    "no label file": "missing_label_file",
    "under 2 px": "tiny_box",
    "past the frame": "box_past_frame",
    "whose image is not there": "orphan_labels",
}


def test_real_faults(tmp_path):
    """Each fault and warning of FAULTS.tsv, by every kind that its words name; of images nothing
    else, but that MOS84, 92 and 74 (in val) show one crossroads within seconds, and that two
    receipts of one shop look alike."""
    root = shared("data/real_faults")
    findings = findings_of(root / "data.yaml", tmp_path / "run", "--data.image_size 640")
    found = {(Path(f["file"]).stem, f["kind"]) for f in findings}
    expected = set()
    for row in (root / "FAULTS.tsv").read_text().splitlines():
        _, file, words = row.split("\t")
        for word, kind in WORDS.items():
            if word in words:
                expected.add((Path(file).stem, kind))
    assert len(expected) == 11
    assert expected <= found
    assert {f["kind"] for f in findings if f["severity"] == "fault"} == {"zero_size_box"}
    assert {(stem, kind) for stem, kind in found if kind.endswith(("image", "_splits"))} == {
        ("MOS74", "similar_across_splits"),
        ("receipt_289", "similar_across_splits"),
    }


@pytest.fixture
def data(small_data, tmp_path, monkeypatch):
    """A small data set of its own, where nobody has looked yet."""
    monkeypatch.setenv("BOLTBOX_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(small_data.parent, tmp_path / "data")) / small_data.name


def test_exit_codes_summary_and_files(data, tmp_path, capsys):
    line = f"--data.dataset {data} --data.image_size 64 --run {tmp_path}/run"
    labels = sorted(p for p in (data.parent / "labels/train").iterdir() if p.read_text())
    (data.parent / "labels/train/gone.txt").touch()
    assert doctor(line) == 0
    assert doctor(f"{line} --strict true") == 1, "a warning counts"
    for path in labels[:5]:
        path.write_text(path.read_text() + "0 .5 .5 0 .5\n")
    capsys.readouterr()
    assert doctor(line) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("fault: zero_size_box (5)")
    assert [line[:2] == "  " for line in lines[at : at + 6]] == [False] + [True] * 4 + [False]
    content = read(tmp_path / "run/doctor.json")
    assert content["faults"] == 5
    assert lines[0].startswith("FAULTS: 5 faults, ")
    train = DatasetFile.read(str(data)).open("train")
    assert list(content["boxes"]["train"].values()) == train.class_counts().tolist()
    severities = column(content["findings"], "severity")
    assert severities == sorted(severities, key=["fault", "warning", "note"].index)
    page = (tmp_path / "run/doctor.html").read_text()
    for path in labels[:5]:
        assert path.name in page


def test_before_a_training(data, tmp_path, capsys):
    """What it warns of, on a line each; not what is left out, which `fit` says anyway."""
    past = data.parent / "labels/train/0000.txt"
    past.write_text("0 .9 .5 .5 .5\n0 .9 .5 .5 .4\n1 .5 .5 0 .5\n")
    (data.parent / "labels/val/gone.txt").touch()
    options = "--trainer.max_epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 0"
    train(data, tmp_path / "run", f"{options} --doctor.enabled true")
    told = "\n".join(re.findall(r"^doctor: .*", capsys.readouterr().out, re.MULTILINE))
    assert re.search(rf"{past}, line 1.*\(and 1 more\)", told)
    assert "gone.txt" in told
    assert "note" not in told
    assert "line 3" not in told
    assert told.endswith(f"cli.py doctor --data.dataset {data}")
    DoctorCheck(enabled=False).on_fit_start(None, None)
