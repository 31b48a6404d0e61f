"""`predict` as a user types it: what it reads, what it writes, what it says when it cannot."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from made_predictions import NAMES, checkpoint_file, pictures_folder, predict  # noqa: F401
from small_fit import small_fit

import cli
from boltbox.detector.commands.validate import load_ensemble
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput
from boltbox.detector.data.inputs.sources import Sources, Video
from boltbox.detector.data.sample import Batch
from boltbox.detector.inference.detections import class_numbers
from boltbox.detector.inference.predictor import Predictor, in_classes
from boltbox.detector.report.video_file import VideoFile
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

ROOT = Path(__file__).parents[2]


def make_video(
    path: Path,
    frames: int = 8,
    size: tuple[int, int] = (96, 64),
    code: str = "MJPG",
    fps: float = 12.5,
) -> Path:
    """Noise, whose frames are large enough that a cut file holds some of them."""
    rng = np.random.default_rng(0)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), fps, size)
    for _ in range(frames):
        writer.write(rng.integers(0, 256, (size[1], size[0], 3), np.uint8))
    writer.release()
    return path


def labels(run: Path) -> list[str]:
    return sorted(
        str(p.relative_to(run / "labels").with_suffix("")) for p in (run / "labels").rglob("*.txt")
    )


def test_image_ids_of_two_folders(checkpoint: Path, pictures: Path, here: Path) -> None:
    """Images of one number keep their whole names, and so do all others."""
    for folder in ("a", "b"):
        (here / "photos" / folder).mkdir(parents=True)
        shutil.copy(sorted(pictures.iterdir())[0], here / "photos" / folder / "000001.png")
    run = predict(checkpoint, "photos", "--json", "true", "--images", "false")
    ids = {found["image_id"] for found in json.loads((run / "predictions.json").read_text())}
    assert ids == {"a/000001", "b/000001"}


def test_labels_to_train_on(
    checkpoint: Path, pictures: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the class numbers of a data set, in a folder beside the images; a training reads them.
    Label files are not replaced, whosever they are."""
    (here / "photos").mkdir()
    pictures.rename(here / "photos/images")
    (here / "data.yaml").write_text(
        f"path: {here}\ntrain: [photos/images]\nval: photos/images\nnames: [Star, hat, disc]\n"
    )
    as_set = ["--names=data.yaml", "--confidences=false", "--images=false"]
    as_set.append("--labels=photos/labels")
    predict(checkpoint, "photos/images", *as_set)
    assert "\nresults:   photos/labels\nspeed:     " in capsys.readouterr().out
    assert not (here / "out").exists()
    numbers = {NAMES.index("star"): "0", NAMES.index("disc"): "2"}
    found = set()
    everything = predict(checkpoint, "photos/images", "--max_det=1000", run="everything")
    for file in (everything / "labels").iterdir():
        wanted = [line.split() for line in file.read_text().splitlines()]
        wanted = [[numbers[int(c)], *box] for c, *box, _ in wanted if int(c) in numbers]
        lines = [
            line.split() for line in (here / "photos/labels" / file.name).read_text().splitlines()
        ]
        assert lines == wanted[:20]
        found |= {c for c, *_ in lines}
    assert found == {"0", "2"}

    before = {file: file.read_bytes() for file in (here / "photos").rglob("*.*")}
    shutil.copytree(here / "photos/images", here / "new")  # names as in the data set
    for source, options, run, wanted in (
        ("photos/images", as_set, "out", "--labels: photos/labels/0000.txt exists"),
        ("new", as_set, "out", "--labels: photos/labels/0000.txt exists"),
        ("new", as_set[:3], "photos", "give --labels photos/labels"),
        ("new", [], "everything", "--run: everything/labels/0000.txt exists"),
        ("everything/images", ["--labels=false"], "everything", "would replace the source"),
    ):
        with pytest.raises(SystemExit):
            predict(checkpoint, source, *options, run=run)
        assert wanted in capsys.readouterr().err
        assert not (here / "out").exists()
    assert before == {file: file.read_bytes() for file in (here / "photos").rglob("*.*")}

    cli.main(small_fit(here / "data.yaml", here / "run", "--trainer.max_epochs", "0"))
    assert re.search(r"train:     8 images, \d+ boxes$", capsys.readouterr().out, re.M)
    (here / "data.yaml").write_text(f"path: {here}\ntrain: photos\nval: photos\nnames: [hat]\n")
    with pytest.raises(SystemExit):
        predict(checkpoint, "photos/images", "--names=data.yaml", run="none")
    assert "none of the classes hat is one of the detector's: disc, ring" in capsys.readouterr().err


def test_a_folder_of_images_and_a_video(
    checkpoint: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that looks like a picture to its header alone is named and left out; so is a video that
    is none."""
    make_video(pictures / "film.avi")
    (pictures / "no.mp4").write_bytes(b"no film")
    damaged = cv2.imencode(
        ".png", np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    )[1].tobytes()
    (pictures / "damaged.png").write_bytes(damaged[:60] + bytes(len(damaged) // 2))
    run = predict(checkpoint, "pictures", *(f"--{what}=true" for what in ("json", "csv", "crops")))
    told = capsys.readouterr()
    assert "left out: pictures/damaged.png: this image cannot be decoded" in told.out
    assert "left out: source pictures/no.mp4: not a video" in told.out
    for file in (run / "images").iterdir():
        height, width = cv2.imread(str(file)).shape[:2]
        shown = rf"^pictures/{file.name}: {width}x{height}, (.*), \d+ ms$"
        (counts,) = re.findall(shown, told.out, re.M)
        lines = (run / f"labels/{file.stem}.txt").read_text().splitlines()
        assert sum(int(each.split()[0]) for each in counts.split(", ")) == len(lines)
    films = [f"film_{i:06d}" for i in range(8)]
    assert labels(run) == [f"{i:04d}" for i in range(8)] + films
    assert sorted(p.stem for p in (run / "images").iterdir()) == [f"{i:04d}" for i in range(8)]

    video = Video(str(run / "videos/film.mp4"))
    assert video.fps == 12.5
    assert [pixels.shape for _, pixels in video] == [(64, 96, 3)] * 8

    with open(run / "predictions.csv", newline="") as file:
        table = list(csv.DictReader(file))
    results = json.loads((run / "predictions.json").read_text())
    lines = [
        (p.stem, *line.split())
        for p in sorted((run / "labels").iterdir())
        for line in p.read_text().splitlines()
    ]
    crops = {p.relative_to(run / "crops") for p in (run / "crops").rglob("*.jpg")}
    assert len(table) == len(results) == len(lines) == len(crops) > 16
    assert {r["image_id"] for r in results} == {*range(8), *films}
    counts = Counter(row["name"] for row in table)
    by_class = ", ".join(f"{counts[name]} {name}" for name in NAMES if name in counts)
    empty = sum(not p.read_text() for p in (run / "labels").iterdir())
    said = f"{by_class} ({len(lines)} detections in 16 images, {empty} without any)"
    assert f"found:     {said}\nresults:   {run}\nspeed:     " in told.out
    by_image: dict[str, int] = {}
    for row in table:
        name = Path(row["image"]).stem if not row["frame"] else f"film_{int(row['frame']):06d}"
        number = by_image[name] = by_image.get(name, -1) + 1
        assert NAMES[int(row["class"])] == row["name"]
        assert Path(row["name"], f"{name}_{number:03d}.jpg") in crops
        same = [
            r for r in results if str(r["image_id"]) == (name if row["frame"] else str(int(name)))
        ][number]
        x1, y1, x2, y2 = (float(row[k]) for k in ("x1", "y1", "x2", "y2"))
        np.testing.assert_allclose(same["bbox"], (x1, y1, x2 - x1, y2 - y1), atol=0.02)
        line = [line for line in lines if line[0] == name][number]
        height, width = (64, 96) if row["frame"] else cv2.imread(row["image"]).shape[:2]
        centre = (x1 + x2) / 2 / width, (y1 + y2) / 2 / height
        np.testing.assert_allclose([float(v) for v in line[2:4]], centre, atol=2e-4)
        assert float(line[6]) == pytest.approx(float(row["confidence"]), abs=1e-5)


def test_classes_are_typed_as_for_yolov5(checkpoint: Path, pictures: Path) -> None:
    """One is a list of one, several words are a list."""
    text = {}
    for run, typed in enumerate(("[star,0]", "star 0", "star,0", "[0]", "0", "disc")):
        options = ["--images=false", "--classes", *typed.split()]
        folder = predict(checkpoint, "pictures", *options, run=str(run))
        text[typed] = [file.read_text() for file in sorted((folder / "labels").iterdir())]
    assert text["[star,0]"] == text["star 0"] == text["star,0"] != text["[0]"]
    assert text["[0]"] == text["0"] == text["disc"]


def test_lines_come_in_the_order_of_the_files(
    checkpoint: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though a batch has images of one shape; one that cannot be read holds nobody up."""
    (here / "photos").mkdir()
    for k in range(9):
        size = ((64, 64, 3), (32, 96, 3), (96, 32, 3))[k % 3]
        cv2.imwrite(f"photos/{k}.png", np.full(size, 9 * k, np.uint8))
    half = Path("photos/4.png").read_bytes()[:60]
    Path("photos/4.png").write_bytes(half + bytes(40))
    run = predict(checkpoint, "photos", "--batch_size=2", "--images=false")
    told = capsys.readouterr().out
    order = [k for k in range(9) if k != 4]
    assert re.findall(r"^photos/(\d).png: ", told, re.M) == [str(k) for k in order]
    assert len(labels(run)) == len(order)
    predict(checkpoint, "photos/1.png", "--images=false", run="one")
    assert re.search(
        r"\(\d+ detections? in 1 image, .*\)\nresults:   one$", capsys.readouterr().out, re.M
    )


def test_a_film_on_a_terminal_says_what_is_left(
    checkpoint: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    """A log file gets no line of a frame, and none of the images if they are many."""
    make_video(here / "film.avi")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    predict(checkpoint, "film.avi", "--frame_step", "2", "--images", "false")
    told = capsys.readouterr()
    assert re.search(r"film.avi: 100%.*\| 4/4 \[\d\d:\d\d<00:00, .* frames/s, ", told.err)
    assert "film.avi" not in told.out
    monkeypatch.setattr("boltbox.detector.commands.predict.LINES", 0)
    cv2.imwrite("a.png", np.zeros((64, 64, 3), np.uint8))
    predict(checkpoint, "a.png")
    assert "a.png" not in capsys.readouterr().out


def test_lists_and_what_is_not_saved(checkpoint: Path, pictures: Path, here: Path) -> None:
    # from the list's folder, from here
    (pictures / "list.txt").write_text("0001.jpg\npictures/0002.jpg\n")
    assert Sources.find("pictures/list.txt").images == ["pictures/0001.jpg", "pictures/0002.jpg"]
    assert Sources.find("pictures/000[45].*").images == ["pictures/0004.jpg", "pictures/0005.jpg"]
    for word in ("secret", "se@cret"):
        stream = Sources.find(f"rtsp://me:{word}@10.0.0.1/live?x=1")
        assert stream.names() == ["10_0_0_1_live_x_1"]
    shutil.copytree(pictures, here / "2024/day1")
    assert {*Sources.find("2024").names()} == {f"day1/{i:04d}" for i in range(8)}
    run = predict(checkpoint, "pictures/0003.jpg", "--images", "false", "--confidences", "false")
    assert labels(run) == ["0003"]
    assert not (run / "images").exists()
    assert all(
        len(line.split()) == 5
        for p in (run / "labels").iterdir()
        for line in p.read_text().splitlines()
    )


def test_a_video_file_is_there_whole_or_not_at_all(here: Path) -> None:
    """Its sides become even, as the encoder wants; a frame of another size is scaled."""
    file = VideoFile(here / "deep/film.mp4", 5.0, (65, 97))
    for size in ((65, 97), (65, 97), (130, 194)):
        file.write(np.full((*size, 3), (200, 100, 50), np.uint8))
    assert not (here / "deep/film.mp4").exists()
    file.close()
    file.close()
    frames = [pixels for _, pixels in Video("deep/film.mp4")]
    assert [f.shape for f in frames] == [(66, 98, 3)] * 3
    assert all(np.abs(f.astype(int) - (200, 100, 50)).max() < 12 for f in frames), "RGB stays RGB"


@pytest.mark.parametrize("fps", [29.97, 119.8765, 200 / 3, 239.6831])
def test_a_video_of_any_rate(here: Path, fps: float) -> None:
    file = VideoFile(here / "film.mp4", fps, (64, 64))
    for _ in range(4):
        file.write(np.zeros((64, 64, 3), np.uint8))
    file.close()
    assert Video("film.mp4").fps == pytest.approx(fps, rel=1e-3)


@pytest.fixture
def no_nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("no_nohup")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
    ids=["SIGTERM", "SIGHUP", "Ctrl-C"],
)
def test_what_was_found_before_a_signal_is_kept(
    number: int, code: int, checkpoint: Path, here: Path, capsys, monkeypatch
) -> None:
    make_video(here / "film.avi", frames=20)
    look = Predictor.detect
    seen = []

    def stopped(self: Predictor, batch: Batch, *rest: Any) -> object:
        """A signal in the third batch."""
        seen.append(batch)
        if len(seen) == 3:
            os.kill(os.getpid(), number)
        return look(self, batch, *rest)

    monkeypatch.setattr(Predictor, "detect", stopped)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as leaving:
        predict(checkpoint, "film.avi", "--batch_size", "4", "--json", "true")
    assert leaving.value.code == code
    assert signal.getsignal(signal.SIGTERM) == before
    assert labels(Path("out")) == [f"film_{k:06d}" for k in range(8)]
    assert Video("out/videos/film.mp4").frames == 8
    assert {r["image_id"] for r in json.loads(Path("out/predictions.json").read_text())} <= set(
        labels(Path("out"))
    )
    assert "detections so far are" in capsys.readouterr().out


def test_every_third_frame_of_a_video_that_is_cut_short(checkpoint: Path, here: Path) -> None:
    whole = make_video(here / "film.avi", frames=12).read_bytes()
    (here / "cut.avi").write_bytes(whole[: len(whole) * 6 // 10])
    run = predict(checkpoint, "cut.avi", "--frame_step", "3")
    kept = labels(run)
    assert kept[0] == "cut_000000"
    assert kept == [f"cut_{i:06d}" for i in range(0, 3 * len(kept), 3)]
    video = Video("out/videos/cut.mp4")
    assert video.fps == pytest.approx(12.5 / 3, rel=1e-3)
    assert sum(1 for _ in video) == len(kept) > 1


def test_a_stream_gives_its_newest_frame(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is slow misses frames, but never sees one twice or an older one; with a step every
    frame is seen in turn."""

    class Camera:
        """Frame k shows k; the camera waits for nobody."""

        def __init__(self, source: object) -> None:
            self.number = 0

        def isOpened(self) -> bool:
            return True

        def get(self, what: int) -> float:
            return 0.0

        def grab(self) -> bool:
            self.number += 1
            return self.number <= 300

        def retrieve(self) -> tuple[bool, np.ndarray]:
            return True, np.full((4, 4, 3), self.number % 256, np.uint8)

        def read(self) -> tuple[bool, np.ndarray | None]:
            slow.wait(0.001)
            return (True, self.retrieve()[1]) if self.grab() else (False, None)

        def release(self) -> None:
            pass

    slow = threading.Event()
    monkeypatch.setattr(cv2, "VideoCapture", Camera)
    numbers = []
    for number, pixels in Video("rtsp://camera", newest=True):
        assert pixels[0, 0, 0] == (number + 1) % 256
        numbers.append(number)
        slow.wait(0.02)
    assert numbers == sorted(set(numbers))
    assert 2 <= len(numbers) < 150
    assert numbers[-1] == 299
    assert [n for n, _ in Video("rtsp://camera", step=100)] == [0, 100, 200]
    rates = [Video("rtsp://camera", step=5, newest=newest).fps for newest in (True, False)]
    assert rates[0] == 5 * rates[1], "a step leaves nothing out of the newest frames"


ERRORS = {
    "nowhere": "source nowhere: no image or video file there",
    "nothing": "source nothing: no image or video file there",
    "note.mp4": "source note.mp4: not a video",
    "empty.avi": "source empty.avi: not a video",
    "list.txt": "source: no such file: nowhere.jpg (list.txt, line 2",
    "rtsp://127.0.0.1:9/none": "source rtsp://127.0.0.1:9/none: not a video",
    "97": "source 97: not a video, stream or camera",
}


def spoil(folder: Path) -> None:
    (folder / "nothing").mkdir()
    for name in ("note.jpg", "note.mp4"):
        (folder / name).write_text("no picture")
    (folder / "empty.avi").touch()
    (folder / "list.txt").write_text("note.jpg\nnowhere.jpg\n")


@pytest.mark.parametrize("source", ERRORS)
def test_sources_that_cannot_be_used(
    source: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil(here)
    with pytest.raises(InputError) as e:
        list(Sources.find(source).batches(EvaluationInput(64, 32), 4, workers=0))
    assert str(e.value).startswith(ERRORS[source])
    assert capfd.readouterr().err == "", "FFmpeg says nothing of its own"


def test_an_error_is_one_sentence(
    checkpoint: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil(here)
    with pytest.raises(SystemExit) as leaving:
        predict(checkpoint, "note.mp4")
    told = capfd.readouterr().err.strip()
    assert leaving.value.code == 2
    assert told.startswith("error: source note.mp4: not a video"), told
    assert len(told.splitlines()) == 1, told
    assert not Path("out").exists()


def test_options_that_cannot_be(
    checkpoint: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, wanted in {
        ("--save-crop", "true"): "--crops true",
    }.items():
        with pytest.raises(SystemExit):
            predict(checkpoint, "0", *options)
        assert wanted in capsys.readouterr().err
    for wrong, wanted in (
        ("disk", "no class 'disk'; did you mean 'disc'"),
        (7, "no class 7; the numbers are 0 to 4"),
    ):
        with pytest.raises(InputError, match=wanted):
            class_numbers([wrong], NAMES)
    with pytest.raises(InputError, match="no such weights file"):
        Predictor.load("nowhere.pt")
    for option, value in {
        "line_width": "0",
        "conf": "1.5",
        "device": "nowhere",
    }.items():
        with pytest.raises(SystemExit):
            predict(checkpoint, "0", f"--{option}", value)
        assert option in capsys.readouterr().err


def test_half_precision_and_hidden_labels(checkpoint: Path, pictures: Path) -> None:
    run = predict(
        checkpoint,
        "pictures/0000.jpg",
        "--precision",
        "16-true",
        "--hide_labels",
        "true",
    )
    found = Detector.load(checkpoint, "cpu").predict("pictures/0000.jpg", conf=0.0005)
    confidences = np.loadtxt(run / "labels/0000.txt", ndmin=2)[:5, 5]
    np.testing.assert_allclose(confidences, found.confidence[:5], atol=0.03)
    image = cv2.imread("pictures/0000.jpg")
    drawn = cv2.imread(str(run / "images/0000.jpg"))
    assert drawn.shape == image.shape
    assert np.abs(drawn.astype(int) - image).max() > 50


def test_an_ensemble_with_itself(checkpoint: Path, pictures: Path) -> None:
    """Rows of a network's twin overlap its own wholly; another member's rows join."""
    alone = Predictor.load(checkpoint, device="cpu", conf=0.0005)
    theirs = alone.predict("pictures/0000.jpg")
    together = Predictor.load(checkpoint, [checkpoint] * 2, "cpu", conf=0.0005)
    np.testing.assert_array_equal(together.predict("pictures/0000.jpg").xyxy, theirs.xyxy)
    other = torch.load(checkpoint, weights_only=True)
    for name, tensor in other["state_dict"].items():
        if "head.convs" in name:
            tensor.mul_(1.5)
    torch.save(other, "other.ckpt")
    joined = Predictor.load("other.ckpt", [checkpoint], "cpu", conf=0.0005)
    found = joined.predict("pictures/0000.jpg")
    own = Predictor.load("other.ckpt", device="cpu", conf=0.0005).predict("pictures/0000.jpg")
    assert {tuple(b) for b in found.xyxy.tolist()} - {tuple(b) for b in own.xyxy.tolist()}


def test_an_ensemble_knows_the_classes_of_all_members(checkpoint: Path, pictures: Path) -> None:
    """Of each class the detections are those of the members that know it, to the bit; classes of one
    name are one. A validation has the classes of its data."""
    other = torch.load(checkpoint, weights_only=True)
    names = ["hoop", "Disc", "bar", "moon", "box"]
    other["hyper_parameters"]["names"] = names
    for name, tensor in other["state_dict"].items():
        if "head.convs" in name:
            tensor.mul_(0.9)
    torch.save(other, "other.ckpt")
    options: dict[str, Any] = {"device": "cpu", "conf": 0.001, "max_det": 100000}
    options["multi_label"] = True
    both = Predictor.load(checkpoint, ["other.ckpt"], **options)
    assert both.names == [*NAMES, "hoop", "bar", "moon", "box"]

    def found(predictor: Predictor, name: str) -> list[tuple[float, ...]]:
        own = predictor.predict("pictures/0000.jpg")
        number = predictor.names.index(name)
        rows = np.column_stack((own.xyxy, own.confidence))[own.class_id == number]
        return [tuple(row) for row in rows.tolist()]

    discs = set[tuple[float, ...]]()
    for path, known in ((checkpoint, NAMES), ("other.ckpt", names)):
        alone = Predictor.load(path, **options)
        seen = 0
        for name in known:
            rows = found(alone, name)
            if name.lower() == "disc":
                discs |= {*rows}
            else:
                assert rows == found(both, name)
                seen += len(rows)
        assert seen > 5
    assert found(both, "disc")[0] in discs
    with pytest.raises(InputError, match="class 0 is 'disc' here and 'hoop' there"):
        load_ensemble(["other.ckpt"], NAMES)


def test_a_single_class_in_an_ensemble() -> None:
    """Its column is not learned; objectness says it all."""
    rows = torch.rand(2, 7, 6)
    made = in_classes(lambda images: rows, ["b"], ["a", "B", "c"])(torch.zeros(2, 3, 8, 8))
    assert torch.equal(made[..., :5], rows[..., :5])
    assert torch.equal(made[..., 5:], torch.tensor([0.0, 1, 0]).expand(2, 7, 3))


def test_without_lightning(checkpoint: Path, pictures: Path) -> None:
    """`predict` and `export` import neither it nor what only a training needs."""
    line = ["predict", "--ckpt_path", str(checkpoint), "--source", "pictures/0000.jpg"]
    main = "from boltbox.detector.commands.main import main"
    program = f"import sys; {main}; main({line!r}); print('torchvision.utils' in sys.modules)"
    also = "import boltbox.detector.commands.export.command; print('lightning' in sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", f"{program}; {also}; print('torchmetrics' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert told.stdout.splitlines()[-3:] == ["False"] * 3, told.stderr


def test_validation_with_augmentation_and_in_tiles(
    checkpoint: Path, small_data: Path, here: Path
) -> None:
    """Figures of every image; no losses, for no single look has them."""
    options = [
        "--data.dataset",
        str(small_data),
        "--data.workers",
        "0",
        "--trainer.accelerator",
        "cpu",
    ]
    options += ["--tta", "true", "--data.tile_size", "128", "--data.image_size", "128"]
    options += ["--report.enabled", "false"]
    cli.main(["validate", "--ckpt_path", str(checkpoint), *options, "--run", "validated"])
    figures = json.loads(Path("validated/metrics.json").read_text())
    assert figures["images"] == 8
    assert figures["objects"] > 8
    assert not any("loss" in name for name in figures)


def test_an_image_no_larger_than_a_tile_is_looked_at_as_ever(
    checkpoint: Path, pictures: Path
) -> None:
    detector = Detector.load(checkpoint, "cpu")
    whole = detector.predict("pictures/0000.jpg", conf=0.0005)
    same = detector.predict("pictures/0000.jpg", conf=0.0005, tile_size=300)
    np.testing.assert_array_equal(same.xyxy, whole.xyxy)
    tiled = detector.predict("pictures/0000.jpg", conf=0.0005, tile_size=64)
    assert len(tiled) != len(whole)
