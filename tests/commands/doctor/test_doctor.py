"""The command `doctor` as a user types it: what it prints and writes, its exit codes; what it finds
in real data."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_datasets import as_yolo, lay_out
from PIL import Image
from shared import shared

import cli
from boltbox.detector.data.dataset_file import DatasetFile


def doctor(*options: str) -> int:
    """The exit code."""
    try:
        cli.main(["doctor", *options])
    except SystemExit as e:
        return int(e.code or 0)
    return 0


def findings_of(source: Path, folder: Path, *options: str) -> list[dict[str, str]]:
    """All findings, from the run's file."""
    line = f"--data.dataset {source} --data.image_size 640 --run {folder}"
    assert doctor(*line.split(), *options) in (0, 1)
    return json.loads((folder / "doctor.json").read_text())["findings"]


def test_a_single_class(tmp_path: Path) -> None:
    """The doctor reads the labels as training does, and so does the copy that it repairs."""
    Image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    lay_out(tmp_path, {"a.txt": "7 .5 .5 .5 .5\n", "data.yaml": "train: .\nnames: [cat, dog]\n"})
    assert doctor("--data.dataset", str(tmp_path), "--run", str(tmp_path / "../x")) == 1
    copy = tmp_path.with_name("copy")
    line = f"--data.dataset {tmp_path} --data.single_class true --fix {copy} --run {tmp_path}/../y"
    assert doctor(*line.split()) == 0
    file = DatasetFile.read(str(copy))
    assert file.names == ["item"]
    assert len(file.open("train").labels.boxes) == 1


WORDS = {  # of FAULTS.tsv -> kind
    "zero width": "zero_size_box",
    "no label file": "missing_label_file",
    "under 2 px": "tiny_box",
    "past the frame": "box_past_frame",
    "whose image is not there": "orphan_label_file",
}


def test_real_faults(tmp_path: Path) -> None:
    """Each fault and warning of FAULTS.tsv, by every kind that its words name; of images nothing
    else, but that MOS84, 92 and 74 (in val) show one crossroads within seconds, and that two
    receipts of one shop look alike. All of it can be repaired."""
    root = shared("data/real_faults")
    findings = findings_of(root / "data.yaml", tmp_path / "run", "--fix", str(tmp_path / "fixed"))
    found = {(f["split"], Path(f["file"]).stem, f["kind"]) for f in findings}
    for split in ("train", "val"):
        found |= {(split, stem, kind) for own, stem, kind in found if own == ""}
    rows = [line.split("\t") for line in (root / "FAULTS.tsv").read_text().splitlines()]
    wanted = {
        (split, Path(file).stem, kind)
        for split, file, words in rows
        for word, kind in WORDS.items()
        if word in words
    }
    assert len(wanted) == 11
    assert wanted <= found
    assert {f["kind"] for f in findings if f["severity"] == "fault"} == {"zero_size_box"}
    of_images = ("image", "_splits")
    assert sorted(
        (f["kind"], Path(f["file"]).name) for f in findings if f["kind"].endswith(of_images)
    ) == [
        ("similar_across_splits", "MOS74.png"),
        ("similar_across_splits", "receipt_289.jpg"),
    ]
    copy = DatasetFile.read(str(tmp_path / "fixed"))
    assert [len(copy.open(split)) for split in ("train", "val")] == [10, 4]


def test_bccd(tmp_path: Path) -> None:
    """Its two boxes without size, and one pair of pictures that show the same cells, in different
    splits; nothing else."""
    findings = findings_of(shared("data/bccd") / "BCCD", tmp_path)
    named = sorted(
        (f["severity"], f["kind"], Path(f["file"]).name, f["where"]) for f in findings if f["file"]
    )
    assert named == [
        ("fault", "zero_size_box", "BloodImage_00338.xml", "object 13 (RBC)"),
        ("fault", "zero_size_box", "BloodImage_00343.xml", "object 4 (RBC)"),
        ("warning", "similar_across_splits", "BloodImage_00037.jpg", ""),
    ]


def test_summary_and_files(
    tmp_path: Path, small_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(small_data.parent, tmp_path / "data")
    labels = sorted(p for p in (tmp_path / "data/labels/train").iterdir() if p.read_text())
    for path in labels[:5]:
        path.write_text(path.read_text() + "0 .5 .5 0 .5\n")
    broken = tmp_path / "data/images/train/0003.jpg"
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    source = str(tmp_path / "data" / small_data.name)
    run = tmp_path / "run"
    before = {p: p.read_bytes() for p in (tmp_path / "data").rglob("*") if p.is_file()}
    assert doctor("--data.dataset", source, "--data.image_size", "64", "--run", str(run)) == 1
    told = capsys.readouterr()
    lines = told.out.splitlines()
    at = lines.index("fault: zero_size_box (5)")
    assert [line.startswith("  ") for line in lines[at : at + 6]] == [False, *[True] * 4, False]
    assert lines[at + 4] == "  ... and 2 more"
    assert any(line.startswith(f"  {broken}: ") for line in lines)
    assert f"report:    {run / 'doctor.html'}, doctor.json" in lines
    assert "images: 100%" in told.err
    content = json.loads((run / "doctor.json").read_text())
    assert lines[0].startswith(f"FAULTS: {content['faults']} faults, ")
    assert sum(f["kind"] == "zero_size_box" for f in content["findings"]) == 5
    severities = [f["severity"] for f in content["findings"]]
    assert severities == sorted(severities, key=["fault", "warning", "note"].index)
    page = (run / "doctor.html").read_text()
    assert all(path.name in page for path in (broken, *labels[:5]))
    assert before == {p: p.read_bytes() for p in (tmp_path / "data").rglob("*") if p.is_file()}


def test_json_is_all_that_stdout_holds(
    small_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor("--data.dataset", str(small_data), "--data.image_size", "64", "--json")
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads((here / "runs/doctor-1/doctor.json").read_text())
    assert content["dataset"] == str(small_data)
    for severity in ("fault", "warning", "note"):
        assert content[f"{severity}s"] == sum(
            f["severity"] == severity for f in content["findings"]
        )


def harmless(root: Path) -> None:
    """A box of each class in images that differ: two halves of an image, black and white, in four
    directions."""
    for k, split in enumerate(("train", "train", "val", "val")):
        image = Image.new("RGB", (64, 64))
        image.paste(
            (255, 255, 255), [(0, 0, 64, 32), (0, 0, 32, 64), (0, 32, 64, 64), (32, 0, 64, 64)][k]
        )
        path = root / f"images/{split}/{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        lay_out(root, {f"labels/{split}/{k}.txt": "0 .5 .5 .6 .6\n1 .3 .3 .5 .5\n"})
    lay_out(root, {"data.yaml": "train: images/train\nval: images/val\nnames: [cat, dog]\n"})


def orphan(root: Path) -> None:
    harmless(root)
    lay_out(root, {"labels/train/gone.txt": ""})


@pytest.mark.parametrize(("lay", "code"), [(harmless, 0), (orphan, 1)])
def test_exit_codes_of_strict(lay: Callable[[Path], None], code: int, tmp_path: Path) -> None:
    """A warning counts, as it does not otherwise (test_names_of_a_file_need_not_be_text)."""
    lay(tmp_path)
    options = f"--data.dataset {tmp_path} --data.image_size 64 --run {tmp_path}/run".split()
    assert doctor(*options, "--strict") == code


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--data.dataset", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--data", "nowhere.yaml"], "doctor --data.dataset nowhere.yaml"),
        (["--data=demo"], "doctor --data.dataset demo"),
        (["--data.dataset", "gone"], "train refers to"),
        ([], "no data"),
        (["--data.dataset", "data.yaml", "--strct"], "did you mean 'strict'?"),
    ],
)
def test_errors_are_one_sentence(
    options: list[str], wanted: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_yolo(here)
    lay_out(here, {"gone/data.yaml": "train: nowhere\nval: neither\nnames: [cat, dog]\n"})
    assert doctor(*options) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: ")
    assert wanted in told
    assert len(told.splitlines()) == 1
    assert not (here / "runs").exists()


def test_every_image_broken(tmp_path: Path) -> None:
    """Each is named, and nothing else fails for it."""
    as_yolo(tmp_path)
    for path in (tmp_path / "images/train").iterdir():
        path.write_bytes(b"no picture")
    findings: list[dict[str, Any]] = findings_of(tmp_path, tmp_path / "run")
    assert {Path(f["file"]).name for f in findings if f["kind"] == "unreadable_image"} == {
        "a.png",
        "b.png",
        "c.png",
    }


def test_names_of_a_file_need_not_be_text(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    as_yolo(tmp_path)
    label = (tmp_path / "labels/train").joinpath(
        b"\xff<script>.txt".decode(errors="surrogateescape")
    )
    label.write_text("")
    line = f"--data.dataset {tmp_path} --data.image_size 64 --run {tmp_path}/run"
    assert doctor(*line.split()) == 0
    assert b"<script>.txt: no image of this name" in capfdbinary.readouterr().out
