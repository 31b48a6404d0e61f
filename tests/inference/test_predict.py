"""`predict` as a user types it: what it reads, what it writes, what it says when it cannot."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from made_predictions import NAMES, checkpoint_file, pictures_folder, predict, predict_line  # noqa: F401
from made_runs import column, contents, load, read, rows, type_line, until

from boltbox.detector.commands.validate import validate
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.formats.yolo_txt import parse_yolo
from boltbox.detector.data.inputs.evaluation_input import EvaluationInput
from boltbox.detector.data.inputs.sources import Sources, Video
from boltbox.detector.data.sample import SourceImage
from boltbox.detector.inference.predictor import Predictor, in_classes
from boltbox.detector.report.prediction_files import Output, PredictionFiles
from boltbox.detector.report.video_file import VideoFile
from boltbox.detector.system.errors import InputError

FRAMES = [f"film_{k:06d}" for k in range(8)]  # of make_video("film.avi")


def make_video(path, frames=8):
    """Noise, whose frames are large enough that a cut file holds some of them."""
    rng = np.random.default_rng(0)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 12.5, (96, 64))
    for _ in range(frames):
        writer.write(rng.integers(0, 256, (64, 96, 3), np.uint8))
    writer.release()
    return path


def labels(run):
    """The words of each line of each label file."""
    found = {}
    for file in sorted((run / "labels").rglob("*.txt")):
        found[file.stem] = list(map(str.split, file.read_text().splitlines()))
    return found


COCO = ["person", *map(str, range(78)), "toothbrush"]


def test_ids_in_results(tmp_path):
    """Images of one number keep their whole names, and so do all others; COCO's own classes have
    its own ids. The file is, to the byte, that of the whole list."""
    for names, ids, classes, numbers in (
        (["a/01", "b/01", "x"], ["a/01", "b/01", "x"], NAMES, (2, 0)),
        (["a/01", "b/02", "x\n\udcff", "a/01"], [1, 2, "x\n\udcff", 1], COCO, (13, 90)),
        ([], [], NAMES, ()),
    ):
        files = PredictionFiles(tmp_path, classes, Output(images=False, labels=False, json=True))
        results = []
        for name, number in zip(names, ids, strict=True):
            kinds = (11, 79) if classes == COCO else numbers
            rows = np.float32([[1, 2, 3.14159, 4, 0.123456, 0], [0, 0, 1e-9, 7, 1, 0]])
            rows[:, 5] = kinds
            files.add(SourceImage(name, name), rows, 640, 480)
            files.add(SourceImage("01", "01"), rows[:0], 640, 480)  # nothing found
            for box, score, category in (
                ([1.0, 2.0, 2.142, 2.0], 0.12346, numbers[0]),
                ([0.0, 0.0, 0.0, 7.0], 1.0, numbers[1]),
            ):
                result = {"image_id": number, "category_id": category, "bbox": box, "score": score}
                results.append(result)
        files.close()
        assert (tmp_path / "predictions.json").read_text() == json.dumps(results)
        assert len(list(tmp_path.iterdir())) == 1


def test_a_stream_keeps_no_list_of_its_files(tmp_path, monkeypatch):
    module = "boltbox.detector.report.prediction_files"
    flushed = []
    monkeypatch.setattr(f"{module}.FLUSHED", 3)
    monkeypatch.setattr(f"{module}.sync_files", lambda paths: flushed.append(len(paths)))
    files = PredictionFiles(tmp_path, NAMES, Output(images=False))
    for frame in range(8):
        files.add(SourceImage("camera0", "0", frame), np.zeros((0, 6)), 640, 480)
    files.close()
    assert flushed == [3, 3, 2]


def test_labels_to_train_on(checkpoint, pictures, here, capfd, refused):
    """With the class numbers of a dataset, in a folder beside the images; a training reads them. No
    file of the user is replaced."""
    (here / "photos").mkdir()
    pictures.rename(here / "photos/images")
    (here / "data.yaml").write_text(
        f"path: {here}\ntrain: [photos/images]\nval: photos/images\nnames: [Star, hat, disc]\n"
    )
    as_set = "--names data.yaml --confidences false --images false"
    beside = f"{as_set} --labels photos/labels"
    predict(checkpoint, "photos/images", beside)
    assert "\nresults:   photos/labels\nspeed:     " in capfd.readouterr().out
    assert not (here / "out").exists()
    numbers = {str(NAMES.index("star")): "0", str(NAMES.index("disc")): "2"}
    written = labels(here / "photos")
    for name, lines in labels(
        predict(checkpoint, "photos/images", "--max_det 1000", run="everything")
    ).items():
        expected = [[numbers[c]] + box for c, *box, _ in lines if c in numbers]
        assert written[name] == expected[:20]
    assert set(column(chain(*written.values()), 0)) == {"0", "2"}
    with_confidences = next(parse_yolo(Path("everything/labels/0000.txt").read_text()))
    assert "--confidences false" in with_confidences.problem
    stars = predict(checkpoint, "photos/images", f"{as_set} --classes star", run="stars")
    assert set(column(chain(*labels(stars).values()), 0)) == {"0"}
    assert len(DatasetFile.read("data.yaml").open("train").labels.boxes) > 20

    before = contents(here / "photos")
    (here / "none.yaml").write_text("train: photos\nval: photos\nnames: [hat]\n")
    shutil.copytree(here / "photos/images", here / "new")  # names as in the dataset
    for source, options, run, named in (
        ("photos/images", beside, "out", "--labels: photos/labels/0000.txt"),
        ("new", as_set, "photos", "photos"),
        ("new", "", "everything", "--run: everything/labels/0000.txt"),
        ("everything/images", "--labels false", "everything", "--run everything"),
        ("new", "--names none.yaml", "out", "hat"),
    ):
        assert named in refused(predict_line(checkpoint, source, options, run))
        assert not (here / "out").exists()
    assert before == contents(here / "photos")


def test_a_folder_of_images_and_a_video(checkpoint, pictures, capsys):
    """One that looks like a picture to its header alone is named and left out; so is a video that
    is none. All files of the run say the same."""
    make_video(pictures / "film.avi")
    (pictures / "no\udcff.mp4").write_bytes(b"no film")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    damaged = cv2.imencode(".png", noise)[1].tobytes()
    (pictures / "damaged.png").write_bytes(damaged[:60] + bytes(len(damaged) // 2))
    options = "--batch_size 3 --json true --csv true --crops true"
    run = predict(checkpoint, "pictures", options)
    told = capsys.readouterr().out
    assert "left out: pictures/damaged.png" in told
    assert "left out: source pictures/no" in told
    of_file = labels(run)
    images = [f"{i:04d}" for i in range(8)]
    assert list(of_file) == images + FRAMES
    assert sorted(column((run / "images").iterdir(), "stem")) == images
    for name in images:
        height, width = cv2.imread(str(run / f"images/{name}.jpg")).shape[:2]
        (counts,) = re.findall(
            rf"^pictures/{name}.jpg: {width}x{height}, (.*), \d+ ms$", told, re.M
        )
        found = sum(int(each.split()[0]) for each in counts.split(", "))
        assert found == len(of_file[name])
    video = Video(str(run / "videos/film.mp4"))
    assert video.fps == 12.5
    assert column(column(video, 1), "shape") == [(64, 96, 3)] * 8

    table = rows(run, "predictions.csv")
    results = read(run / "predictions.json")
    crops = contents(run / "crops")
    total = sum(map(len, of_file.values()))
    empty = list(of_file.values()).count([])
    assert len(table) == len(results) == len(crops) == total > 16
    assert f" ({total} detections in 16 images, {empty} without any)\nresults:   {run}\n" in told
    numbers = {}
    for row, result in zip(table, results, strict=True):
        name = Path(row["image"]).stem
        name = f"{name}_{int(row['frame']):06d}" if row["frame"] else name
        number = numbers[name] = numbers.get(name, -1) + 1
        assert NAMES[int(row["class"])] == row["name"]
        assert f"{row['name']}/{name}_{number:03d}.jpg" in crops
        assert result["image_id"] == (name if row["frame"] else int(name))
        x1, y1, x2, y2 = (float(row[k]) for k in ("x1", "y1", "x2", "y2"))
        np.testing.assert_allclose(result["bbox"], (x1, y1, x2 - x1, y2 - y1), atol=0.02)
        assert result["score"] == float(row["confidence"])
        kind, *line = of_file[name][number]
        height, width = (64, 96) if row["frame"] else cv2.imread(row["image"]).shape[:2]
        box = (x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height
        np.testing.assert_allclose(list(map(float, line)), [*box, result["score"]], atol=2e-4)
        assert kind == row["class"]


def test_a_film_on_a_terminal_says_what_is_left(checkpoint, here, capsys, monkeypatch):
    """A log file gets no line of a frame, and none of the images if they are many."""
    make_video(here / "film.avi")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    predict(checkpoint, "film.avi", "--frame_step 2 --images false")
    told = capsys.readouterr()
    assert re.search(r"film.avi: 100%.*\| 4/4 \[\d\d:\d\d<00:00, .* frames/s, ", told.err)
    assert "film.avi" not in told.out
    monkeypatch.setattr("boltbox.detector.commands.predict.LINES", 0)
    cv2.imwrite("a.png", np.zeros((64, 64, 3), np.uint8))
    predict(checkpoint, "a.png")
    assert "a.png" not in capsys.readouterr().out


def test_lists_and_what_is_not_saved(checkpoint, pictures, here, capsys):
    # from the list's folder, from here
    (pictures / "list.txt").write_text("0001.jpg\npictures/0002.jpg\n")
    assert Sources.find("pictures/list.txt").images == ["pictures/0001.jpg", "pictures/0002.jpg"]
    assert Sources.find("pictures/000[45].*").images == ["pictures/0004.jpg", "pictures/0005.jpg"]
    for word in ("secret", "se@cret"):
        stream = Sources.find(f"rtsp://me:{word}@10.0.0.1/live?x=1")
        assert stream.names() == ["10_0_0_1_live_x_1"]
    shutil.copytree(pictures, here / "2024/day1")
    assert set(Sources.find("2024").names()) == {f"day1/{i:04d}" for i in range(8)}
    options = "--images false --confidences false --classes star 0"
    run = predict(checkpoint, "pictures/0003.jpg", options)
    (lines,) = labels(run).values()
    assert set(column(lines, 0)) == {"0", "2"}
    assert set(map(len, lines)) == {5}
    assert not (run / "images").exists()
    predict(checkpoint, "pictures/0003.jpg", "--images false --labels false", run="nothing")
    assert "results:   none written\n" in capsys.readouterr().out


def test_a_video_file_is_there_whole_or_not_at_all(here, capsys):
    """Its sides become even, as the encoder wants; a frame of another size is scaled. Whoever reads
    equal frames only is told what that may mean: OpenCV reads interlaced video so."""
    file = VideoFile(here / "12:deep/film.mp4", 119.8765, (65, 97))
    for size in ((65, 97), (65, 97), (130, 194)):
        file.write(np.full((*size, 3), (200, 100, 50), np.uint8))
    assert not (here / "12:deep/film.mp4").exists()
    file.close()
    file.close()
    video = Video("12:deep/film.mp4")
    assert video.fps == pytest.approx(119.8765, rel=1e-3)
    frames = column(video, 1)
    assert column(frames, "shape") == [(66, 98, 3)] * 3
    for f in frames:
        assert np.abs(f.astype(int) - (200, 100, 50)).max() < 12, "RGB stays RGB"
    assert "warning: 12:deep/film.mp4: all its frames are the same" in capsys.readouterr().out
    list(Video(str(make_video(here / "film.avi"))))
    list(Video(str(make_video(here / "one.avi", frames=1))))
    assert capsys.readouterr().out == ""


def test_what_was_found_before_a_signal_is_kept(checkpoint, here, monkeypatch):
    make_video(here / "film.avi", frames=20)
    look = Predictor.detect
    seen = []

    def stopped(self, batch, *rest):
        """A signal in the third batch."""
        seen.append(batch)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return look(self, batch, *rest)

    monkeypatch.setattr(Predictor, "detect", stopped)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="130"):
        predict(checkpoint, "film.avi", "--batch_size 4 --json true")
    assert signal.getsignal(signal.SIGTERM) == before
    assert list(labels(Path("out"))) == FRAMES
    assert Video("out/videos/film.mp4").frames == 8
    assert set(column(read("out/predictions.json"), "image_id")) <= set(labels(Path("out")))


def test_every_third_frame_of_a_video_that_is_cut_short(checkpoint, here):
    whole = make_video(here / "film.avi", frames=12).read_bytes()
    (here / "cut.avi").write_bytes(whole[: len(whole) * 6 // 10])
    run = predict(checkpoint, "cut.avi", "--frame_step 3")
    kept = list(labels(run))
    assert kept == [f"cut_{i:06d}" for i in range(0, 3 * len(kept), 3)]
    video = Video("out/videos/cut.mp4")
    assert video.fps == pytest.approx(12.5 / 3, rel=1e-3)
    assert len(list(video)) == len(kept) > 1


def test_a_stream_gives_its_newest_frame(here, monkeypatch):
    """Whoever is slow misses frames, but never sees one twice or an older one; with a step every
    frame is seen in turn. A live stream has no end, and a film on a server its length."""

    class Camera:
        """Frame k shows k; the camera waits for nobody, once somebody has looked."""

        def __init__(self, source):
            self.number = 0

        def isOpened(self):
            return True

        def get(self, what):
            tells = {cv2.CAP_PROP_FRAME_COUNT: length, cv2.CAP_PROP_FPS: 30}
            return tells.get(what, milliseconds)

        def grab(self):
            self.number += 1
            shown.append(self.number)
            return self.number <= 300

        def retrieve(self):
            return True, np.full((4, 4, 3), self.number % 256, np.uint8)

        def read(self):
            looked.wait(0.001 if self.number < 100 else 240)
            return (True, self.retrieve()[1]) if self.grab() else (False, None)

        def release(self):
            pass

    looked = threading.Event()
    shown = []
    length = milliseconds = 0
    monkeypatch.setattr(cv2, "VideoCapture", Camera)
    numbers = []

    def look():
        for number, pixels in Video("rtsp://camera", newest=True):
            assert pixels[0, 0, 0] == (number + 1) % 256
            numbers.append(number)
            looked.set()
            until(lambda: shown[-1] >= min(number + 4, 301), "a newer frame")  # noqa: B023

    with pytest.raises(InputError, match=r"^source rtsp://camera: .* after frame 299\."):
        look()
    assert numbers == sorted(set(numbers))
    assert 2 <= len(numbers) < 150
    assert numbers[-1] == 299
    assert column(Video("rtsp://camera", step=100), 0) == [0, 100, 200]
    rates = [Video("rtsp://camera", step=5, newest=newest).fps for newest in (True, False)]
    assert rates[0] == 5 * rates[1], "a step leaves nothing out of the newest frames"
    length = 303  # by an estimate
    assert column(Video("http://server/film.mkv", step=100), 0) == [0, 100, 200]
    length = 600
    with pytest.raises(InputError, match=r"after frame 200\."):
        list(Video("http://server/film.mkv", step=100))
    milliseconds = 19_000  # of 20 s: the rate changes
    assert len(list(Video("http://server/film.mkv"))) == 300
    length = 0
    assert list(Video("http://server/photo.PNG?a", newest=True))


ERRORS = {
    "nowhere": "source nowhere: ",
    "nothing": "source nothing: ",
    "note.mp4": "source note.mp4: ",
    "empty.avi": "source empty.avi: ",
    "list.txt": "source: no such file: nowhere.jpg (list.txt, line 2",
    "rtsp://127.0.0.1:9/none": "source rtsp://127.0.0.1:9/none: ",
    "97": "source 97: ",
}


def test_sources_that_cannot_be_used(checkpoint, here, capfd, refused):
    (here / "nothing").mkdir()
    for name in ("note.jpg", "note.mp4"):
        (here / name).write_text("no picture")
    (here / "empty.avi").touch()
    (here / "list.txt").write_text("note.jpg\nnowhere.jpg\n")
    for source, words in ERRORS.items():
        with pytest.raises(InputError, match=f"^{re.escape(words)}"):
            list(Sources.find(source).batches(EvaluationInput(64, 32), 4, workers=0))
    assert capfd.readouterr().err == "", "FFmpeg says nothing of its own"
    for options, named in (
        ("", "source note.mp4: "),
        ("--conf 1.5", "conf"),
        ("--export cvat", "export cvat"),
        ("--iou 0.4 b.jpg", "Quote a pattern"),
    ):
        assert named in refused(predict_line(checkpoint, "note.mp4", options))
    assert not Path("out").exists()


def test_an_ensemble_knows_the_classes_of_all_members(checkpoint, pictures):
    """Rows of a network's twin overlap its own wholly. Of each class the detections are those of
    the members that know it, to the bit; classes of one name are one. A validation has the classes
    of its data."""
    other = load(checkpoint)
    names = ["hoop", "Disc", "bar", "moon", "box"]
    other["hyper_parameters"]["names"] = names
    for name, tensor in other["state_dict"].items():
        if "head.convs" in name:
            tensor.mul_(0.9)
    torch.save(other, "other.ckpt")
    options = {"device": "cpu", "conf": 0.001, "max_det": 100000}
    options["multi_label"] = True
    twins = Predictor.load(checkpoint, [checkpoint], **options)
    same = Predictor.load(checkpoint, **options).predict("pictures/0000.jpg")
    np.testing.assert_array_equal(twins.predict("pictures/0000.jpg").xyxy, same.xyxy)
    both = Predictor.load(checkpoint, ["other.ckpt"], **options)
    both = pickle.loads(pickle.dumps(both))  # as for the processes of a pool
    assert both.names == NAMES + ["hoop", "bar", "moon", "box"]

    def found(predictor, name):
        own = predictor.predict("pictures/0000.jpg")
        number = predictor.names.index(name)
        rows = np.column_stack((own.xyxy, own.confidence))[own.class_id == number]
        return list(map(tuple, rows.tolist()))

    for path, known in ((checkpoint, NAMES[1:]), ("other.ckpt", ["hoop"] + names[2:])):
        alone = Predictor.load(path, **options)
        count = 0
        for name in known:
            rows = found(alone, name)
            assert rows == found(both, name)
            count += len(rows)
        assert count > 5
    assert found(both, "disc")
    with pytest.raises(InputError, match=r"'disc'.*'hoop'"):
        validate(None, SimpleNamespace(names=NAMES), None, "validate", ensemble=["other.ckpt"])


def test_a_single_class_in_an_ensemble():
    """Its column is not learned; objectness says it all."""
    rows = torch.rand(2, 7, 6)
    made = in_classes(lambda images: rows, ["b"], ["a", "B", "c"], torch.zeros(2, 3, 8, 8))
    assert torch.equal(made[..., :5], rows[..., :5])
    assert torch.equal(made[..., 5:], torch.tensor([0.0, 1, 0]).expand(2, 7, 3))


def test_without_lightning(checkpoint, pictures):
    """`predict` and `export` import neither it nor what only a training needs."""
    line = ["predict", "--ckpt_path", str(checkpoint), "--source", "pictures/0000.jpg"]
    program = (
        f"import sys; from boltbox.detector.commands.main import main; main({line!r}); "
        "print('torchvision' in sys.modules); import boltbox.detector.commands.export.command; "
        "print({'lightning', 'torchmetrics'} & {*sys.modules})"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout.splitlines()[-2:] == ["False", "set()"], told.stderr


def test_validation_with_augmentation_and_in_tiles(checkpoint, small_data, here):
    """Figures of every image; no losses, for no single look has them."""
    line = f"validate --ckpt_path {checkpoint} --data.dataset {small_data} --data.workers 0"
    line += " --trainer.accelerator cpu --tta true --data.tile_size 128 --data.image_size 128"
    line += " --report.enabled false --run validated"
    type_line(line)
    figures = read("validated/metrics.json")
    assert figures["images"] == 8
    assert figures["objects"] > 8
    for name in figures:
        assert "loss" not in name


def test_half_precision(checkpoint, pictures):
    run = predict(checkpoint, "pictures/0000.jpg", "--precision 16-true")
    found = Predictor.load(checkpoint, device="cpu", conf=0.0005).predict("pictures/0000.jpg")
    confidences = np.loadtxt(run / "labels/0000.txt", ndmin=2)[:5, 5]
    np.testing.assert_allclose(confidences, found.confidence[:5], atol=0.03)
    half = Predictor.load(checkpoint, device="cpu", conf=0.0005, precision="16-true")
    assert half.predict("pictures/0000.jpg").confidence[0] != found.confidence[0]
    image = cv2.imread("pictures/0000.jpg")
    drawn = cv2.imread(str(run / "images/0000.jpg"))
    assert np.abs(drawn.astype(int) - image).max() > 50
