"""Public datasets by name, from a server of the test's own, laid out as their publishers do: fetched
once, whole or not at all."""

import hashlib
import io
import json
import os
import signal
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import pytest
import servers
from made_datasets import picture, voc_object, voc_xml
from made_runs import contents, type_line, until

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.public_datasets import PUBLIC
from boltbox.detector.system.errors import InputError

JPEG = cv2.imencode(".jpg", picture(64, 64))[1].tobytes()


def voc(root, name, *splits):
    files = {}
    for split in splits:
        files[f"{root}/ImageSets/Main/{split}.txt"] = f"{split}\n"
        files[f"{root}/Annotations/{split}.xml"] = voc_xml(voc_object(name))
        files[f"{root}/JPEGImages/{split}.jpg"] = JPEG
    return files


COCO = json.dumps(
    {
        "images": [{"id": 1, "file_name": "a.jpg", "height": 64, "width": 64}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 90, "bbox": [4, 8, 20, 20]}],
        "categories": [{"id": 90, "name": "toothbrush"}],
    }
)
VOC = "VOCdevkit/VOC2007"
FILES = {
    "coco128.zip": {"coco128/LICENSE": "", "coco128/images/train2017/a.jpg": JPEG, "coco128/labels/train2017/a.txt": "79 .5 .5 .2 .2"},
    "v1.0.zip": {"BCCD_Dataset-1.0/README.md": ""} | voc("BCCD_Dataset-1.0/BCCD", "Platelets", "train", "val", "test"),
    "VOCtrainval_06-Nov-2007.tar": voc(VOC, "tvmonitor", "train", "val"),
    "VOCtest_06-Nov-2007.tar": voc(VOC, "tvmonitor", "test"),
    "annotations_trainval2017.zip": {f"annotations/instances_{split}2017.json": COCO for split in ("train", "val")},
    "val2017.zip": {"val2017/a.jpg": JPEG},
    "train2017.zip": {"train2017/a.jpg": JPEG},
}  # fmt: skip


def pack(path, files):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            data = content if isinstance(content, bytes) else content.encode()
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.fixture
def web(here, tmp_path_factory, monkeypatch):
    """Its files are in `web.folder`; the table names their addresses and checksums."""
    folder = tmp_path_factory.mktemp("web")
    with servers.http(folder) as server:
        server.folder = folder
        for entry in PUBLIC.values():
            archives = {}
            for address in entry["archives"]:
                file = folder / Path(address).name
                pack(file, FILES[file.name])
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                archives[f"{server.address}/{file.name}"] = digest
            monkeypatch.setitem(entry, "archives", archives)
        yield server


def opened(name):
    """How many boxes of the last class each split has."""
    file = DatasetFile.read(name)
    return {split: file.open(split).class_counts()[-1] for split in file.splits}


@pytest.mark.parametrize("name", PUBLIC)
def test_it_is_fetched_once(name, web):
    """By the first of two that ask at once; with all splits and classes."""
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(opened, [name, f"{name}.yaml"]):
            assert found == dict.fromkeys({"train", "val", "test"} & PUBLIC[name].keys(), 1)
    files = contents(Path())
    assert set(web.requests.values()) == {1}
    assert len(web.requests) == len(PUBLIC[name]["archives"])
    web.faults = dict.fromkeys(FILES, [404] * 9)
    opened(name)
    assert contents(Path()) == files


def test_what_the_user_has_comes_first(web, refused):
    """A folder of that name; a dataset or an archive that lies there already."""
    web.faults = dict.fromkeys(FILES, [404] * 9)
    told = refused("doctor --data.dataset bccd --run run")
    assert f"{web.address}/v1.0.zip" in told
    assert not contents(Path())
    archive = Path("datasets/v1.0.zip")
    archive.write_bytes(b"another")
    with pytest.raises(InputError, match="datasets/v1"):
        DatasetFile.read("bccd")
    assert contents(Path()) == {"datasets/v1.0.zip": b"another"}
    archive.write_bytes((web.folder / archive.name).read_bytes())
    assert opened("bccd")["test"] == 1
    assert archive.is_file()
    type_line("doctor bccd --run run")
    Path("datasets/bccd").rename("bccd")
    assert opened("bccd")["test"] == 1
    assert not Path("datasets/bccd").exists()


@pytest.mark.parametrize("fault", [404, "cut", "short", "gone"])
def test_faults_of_the_network(fault, web):
    """The second archive fails: nothing is there, and the first one is not fetched again."""
    second = "VOCtest_06-Nov-2007.tar"
    web.faults[second] = [fault]
    with pytest.raises(InputError, match=f"{web.address}/{second}"):
        DatasetFile.read("voc2007")
    assert list(contents(Path())) == ["datasets/VOCtrainval_06-Nov-2007.tar"]
    assert opened("voc2007")["test"] == 1
    assert web.requests["/VOCtrainval_06-Nov-2007.tar"] == 1


def test_a_kill_half_way(web):
    web.faults["coco128.zip"] = ["stalled"]
    child = os.fork()
    if child == 0:
        try:
            DatasetFile.read("coco128")
        finally:
            os._exit(0)
    until(lambda: web.stalled.is_set() and list(Path("datasets").iterdir()), "half a file")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert [path.suffix for path in Path("datasets").iterdir()] == [".partial"]
    assert opened("coco128")["train"] == 1
    assert {path.name for path in Path("datasets").iterdir()} == {"coco128", "coco128.zip"}


def test_nothing_is_written_elsewhere(web, monkeypatch):
    """Even if the checksum of such an archive were in the table."""
    file = web.folder / "outside.tar"
    pack(file, {"../out.txt": "out"})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    archives = {f"{web.address}/outside.tar": digest}
    monkeypatch.setitem(PUBLIC["coco128"], "archives", archives)
    with pytest.raises(InputError):
        DatasetFile.read("coco128")
    assert list(contents(Path())) == ["datasets/outside.tar"]
