"""Weights that are named and not there are fetched, from a server of the test's own."""

import functools
import hashlib
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from shared import published_file, shared  # noqa: F401 - a fixture

import cli
from boltbox.detector.system.errors import InputError
from boltbox.detector.weights import published as module
from boltbox.detector.weights.published import Publication, local_file

NAME = "yolov5n.pt"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """Serves tmp_path/served; it is the publisher of NAME, whose checksum is that of `weights`."""
    folder = tmp_path / "served"
    folder.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def offer(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, content: bytes, sha256: str = ""
) -> None:
    Path("../served", NAME).write_bytes(content)
    address = f"http://127.0.0.1:{server.server_port}/{NAME}"
    monkeypatch.setitem(module.PUBLISHED, NAME, Publication(address, sha256, "a licence"))


def test_a_prediction_fetches_it_once(
    published: Path,
    server: ThreadingHTTPServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = published.read_bytes()
    assert hashlib.sha256(content).hexdigest() == module.PUBLISHED[NAME].sha256
    offer(server, monkeypatch, content, module.PUBLISHED[NAME].sha256)
    image = sorted((shared("data/coco128_val128") / "images/val").iterdir())[0]
    predict = ["predict", "--ckpt_path", NAME, "--source", str(image), "--image_size", "320"]
    cli.main(predict)
    text = capsys.readouterr().out
    assert "a licence" in text
    assert str(server.server_port) in text
    cli.main(predict)
    assert "fetched" not in capsys.readouterr().out
    assert server.asked == [f"/{NAME}"]  # type: ignore[attr-defined]
    assert list(Path("runs/predict-2/labels").iterdir())


def test_another_file_is_refused(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(server, monkeypatch, b"something else", "0" * 64)
    with pytest.raises(SystemExit) as left:
        cli.main(["export", "--ckpt_path", NAME])
    assert left.value.code == 2
    told = capsys.readouterr()
    assert NAME in told.err
    assert "fetched from" not in told.out
    assert not list(Path(torch.hub.get_dir()).rglob("*.pt*"))


def test_a_part_of_a_file_is_fetched_again(
    published: Path, server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those whose checksum is not known."""
    content = published.read_bytes()
    offer(server, monkeypatch, content[:-1000])
    with pytest.raises(InputError, match=r"could not be fetched .*incomplete"):
        local_file(NAME)
    offer(server, monkeypatch, content)
    assert local_file(NAME).read_bytes() == content


def test_without_a_network(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(server, monkeypatch, b"")
    Path("../served", NAME).unlink()
    with pytest.raises(SystemExit):
        cli.main(["fit", "--model.start.weights", NAME, "--data.dataset", "demo"])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "could not be fetched" in error
    assert "give its path" in error


def test_a_file_here_comes_first(server: ThreadingHTTPServer) -> None:
    Path(NAME).touch()
    assert local_file(NAME) == Path(NAME)
    assert local_file("folder/yolov5n.pt") == Path("folder/yolov5n.pt")
    assert server.asked == []  # type: ignore[attr-defined]
