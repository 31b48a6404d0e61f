"""Weights that are named and not there are fetched, from a server of the test's own."""

import functools
import hashlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from shared import published_file  # noqa: F401 - a fixture

from boltbox.detector.system.errors import InputError
from boltbox.detector.weights import published as module
from boltbox.detector.weights.published import Publication, local_file

NAME = "yolov5n.pt"


asked = []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        asked.append(self.path)


def test_fetching(
    published,
    here,
    tmp_path,
    monkeypatch,
    refused,
    capfd,
):
    """Once; not a part of a file, another file or none; and a file here comes first."""
    (tmp_path / "served").mkdir()
    served = tmp_path / "served" / NAME
    content = published.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    assert sha256 == module.PUBLISHED[NAME].sha256
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    handler = functools.partial(Quiet, directory=str(served.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/{NAME}"
        for checksum, bad in (("0" * 64, content), (None, content[:-1000]), (sha256, None)):
            monkeypatch.setitem(module.PUBLISHED, NAME, Publication(address, checksum, "a licence"))
            served.unlink(missing_ok=True)
            if bad:
                served.write_bytes(bad)
            with pytest.raises(InputError, match=f"{NAME}: .*{address}"):
                local_file(NAME)
            assert not list(Path(torch.hub.get_dir()).rglob("*.pt*"))
        refused(f"fit --model.start.weights {NAME} --data.dataset demo")
        served.write_bytes(content)
        asked.clear()
        for output in (f"fetched from {address} (a licence)", ""):
            assert local_file(NAME).read_bytes() == content
            assert output in capfd.readouterr().out
        assert asked == [f"/{NAME}"]
        (here / NAME).touch()
        assert local_file(NAME) == Path(NAME)
        assert local_file("folder/yolov5n.pt") == Path("folder/yolov5n.pt")
        server.shutdown()
    with pytest.raises(InputError, match=r"yolo11n\.pt does not fit"):
        local_file("yolo11n.pt")
