"""`predict --track`: the same numbers in all files, one tracker per video."""

import sys
from itertools import chain

import cv2
import pytest
from made_predictions import checkpoint_file, pictures_folder, predict, predict_line  # noqa: F401
from made_runs import column, read, rows
from test_predict import labels


def test_a_film_that_stands_still(checkpoint, pictures, here):
    """Each object keeps its number, which it has from its second frame on."""
    pytest.importorskip("trackers")
    (here / "films").mkdir()
    for name, picture in zip(("a", "b"), sorted(pictures.iterdir()), strict=False):
        frame = cv2.resize(cv2.imread(str(picture)), (96, 64))
        path = str(here / f"films/{name}.avi")
        writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"MJPG"), 10, (96, 64))
        for _ in range(4):
            writer.write(frame)
        writer.release()
    track = "--track bytetrack --track_conf 0.0005 --csv true --json true"
    run = predict(checkpoint, "films", track)
    plain = labels(predict(checkpoint, "films", run="plain"))
    written = labels(run)
    for name in ("a", "b"):
        first, *others = [lines for key, lines in written.items() if key.startswith(name)]
        assert first == []
        assert others == [others[0]] * 3
        assert column(others[0], slice(6)) == plain[f"{name}_000001"]
        numbers = map(int, column(others[0], 6))
        assert set(numbers) == set(range(1, len(others[0]) + 1))
    numbers = list(map(int, column(chain(*written.values()), 6)))
    assert list(map(int, column(rows(run, "predictions.csv"), "track"))) == numbers
    assert column(read(run / "predictions.json"), "track_id") == numbers


def test_what_cannot_be_tracked(checkpoint, pictures, here, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackers", None)
    (here / "film.avi").touch()
    for source, named in (("pictures", "track: "), ("film.avi", "pip install")):
        assert named in refused(predict_line(checkpoint, source, "--track bytetrack"))
        assert not (here / "out").exists()
