"""Weights that are named and not there are fetched, from a server of the test's own."""

import hashlib
from pathlib import Path

import pytest
import servers
import torch
from shared import published_file  # noqa: F401 - a fixture

from boltbox.detector.system.errors import InputError
from boltbox.detector.weights import published as module
from boltbox.detector.weights.published import Publication, local_file

NAME = "yolov5n.pt"


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
    with servers.http(served.parent) as server:
        address = f"{server.address}/{NAME}"
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
        server.requests.clear()
        for output in (f"fetched from {address} (a licence)", ""):
            assert local_file(NAME).read_bytes() == content
            assert output in capfd.readouterr().out
        assert server.requests == {f"/{NAME}": 1}
        (here / NAME).touch()
        assert local_file(NAME) == Path(NAME)
        assert local_file("folder/yolov5n.pt") == Path("folder/yolov5n.pt")
    with pytest.raises(InputError, match=r"yolo11n\.pt does not fit"):
        local_file("yolo11n.pt")
