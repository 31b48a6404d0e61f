"""Data on servers: as files of this disk, or one sentence; never an image that was not read."""

import json
import os
import shutil
import tarfile
import threading

import pytest
import servers
import yaml
from label_layouts import LAYOUTS
from made_datasets import content, lay_out, load, picture, save
from made_runs import code_of, findings_of, small_fit, train, type_line
from torch.utils.data import DataLoader

from benchmarks.resume_fuzz import command, difference, start, trial
from boltbox.detector.data import file_list
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.detection_batch import detection_batch
from boltbox.detector.system import addresses
from boltbox.detector.system.errors import Unreachable

EVERY_KIND = ["roboflow_yolo", "coco", "roboflow_csv", "hugging_face", "voc_trainval", "dota"]
pytestmark = pytest.mark.usefixtures("quick_starts")


@pytest.fixture(scope="module")
def store():
    with servers.s3() as system:
        system.mkdir("bucket")
        yield system


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A server of `tmp_path/web`; nothing waits long."""
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(addresses, "WAIT", 0.001)
    with servers.http(tmp_path / "web") as server:
        yield server


def described(folder, address, to):
    """A data.yaml for the files of a folder, which are at an address."""
    content = DatasetFile.read(str(folder))
    keys = {"path": address, "format": content.format, "names": content.names}
    for split, paths in content.splits.items():
        keys[split] = [str(path.relative_to(folder)) for path in paths]
    to.write_text(yaml.safe_dump(keys))
    return to


def told(dataset, root):
    """All that was read, without the place of the files."""
    pixels = [hash(dataset[i].image.tobytes()) for i in range(len(dataset))]
    return repr([content(dataset), pixels]).replace(root, "ROOT")


@pytest.mark.parametrize("name", EVERY_KIND)
def test_labels_of_every_kind(name, store, web, tmp_path):
    folder = tmp_path / "web" / name
    LAYOUTS[name].write(folder)
    next(folder.rglob("*.png")).write_text("no image")
    store.put(str(folder), "bucket", recursive=True)
    shutil.make_archive(str(tmp_path / name), "zip", folder)
    store.put(str(tmp_path / f"{name}.zip"), f"bucket/{name}.zip")
    local = DatasetFile.read(str(folder))
    addresses_of = [f"{web.address}/{name}"]
    if name == EVERY_KIND[0]:
        addresses_of += [f"s3://bucket/{name}", f"zip://s3://bucket/{name}.zip"]
        addresses_of += [f"zip://{tmp_path}/{name}.zip"]
    for address in addresses_of:
        remote = DatasetFile.read(str(described(folder, address, tmp_path / "data.yaml")))
        for split in local.splits:
            expected = told(local.open(split), str(folder))
            for _ in ("read", "from the cache"):
                dataset = remote.open(split)
                assert told(dataset, str(remote.root)) == expected
            assert all(map(addresses.is_address, dataset.files))


def test_names_that_a_listing_quotes(web, tmp_path):
    save(tmp_path / "web/images/a b.png", picture(40, 60))
    files = {"labels/a b.txt": "0 .5 .5 .2 .2", "list.txt": "images/a b.png"}
    lay_out(tmp_path / "web", files | {"data.yaml": "train: list.txt\nnames: [cat]\n"})
    assert len(load(f"{web.address}/data.yaml").labels.boxes) == 1


def test_what_a_bucket_does_not_list_is_not_asked_for(monkeypatch):
    """Thousands of images without labels would each cost a request."""
    files = file_list.FileList()
    files._folders["s3://bucket"] = {"a b.png": file_list.FILE}
    monkeypatch.setattr(file_list, "state_of", None)
    assert not files.is_file("s3://bucket/a b.txt")


def test_a_fit_and_its_resume(store, small_data, tmp_path):
    """In loader workers, with SIGKILL: as on the same files of this disk."""
    data = described(small_data.parent, "s3://bucket/demo", tmp_path / "data.yaml")
    store.put(str(small_data.parent), "bucket/demo", recursive=True)
    store.put(str(data), "bucket/demo/data.yaml")
    more = ["--trainer.max_epochs", "2", "--data.batch_size", "8", "--autoanchor.enabled", "false"]
    reference = tmp_path / "local"
    assert start(command(small_data, reference, 0, 1, within_epochs=False, more=more)) == 0
    run = tmp_path / "run"
    line = command("s3://bucket/demo/data.yaml", run, 1, 1, more=more)
    hits, unlike = trial(line, ["batch:2"], run, reference)
    assert hits == 1
    assert not unlike


def test_the_doctor(store, small_data, tmp_path):
    root = shutil.copytree(small_data.parent, tmp_path / "set")
    image = next((root / "images/train").iterdir())
    image.write_bytes(image.read_bytes()[:200])
    store.put(str(root), "bucket/doctor", recursive=True)
    data = described(root, "s3://bucket/doctor", tmp_path / "data.yaml")
    findings = []
    for dataset, place, run in ((root / "data.yaml", root, "a"), (data, "s3://bucket/doctor", "b")):
        text = str(findings_of(dataset, tmp_path / run, f"--fix {tmp_path}/fix-{run}"))
        findings.append(text.replace(str(place), "ROOT"))
    assert findings[0] == findings[1]
    ours, theirs = (DatasetFile.read(str(tmp_path / f"fix-{k}")).open("train") for k in "ab")
    assert len(ours) == len(theirs) == 23


def test_the_loader_of_the_page(store, small_data, tmp_path):
    (code,) = code_of("remote")
    names = {}
    exec(code, names)
    local = DatasetFile.read(str(small_data)).open("train")
    for first in (0, 12):
        with tarfile.open(tmp_path / f"{first}.tar", "w") as shard:
            for i in range(first, first + 12):
                target = {"boxes": local[i].boxes.tolist(), "labels": local[i].classes.tolist()}
                (tmp_path / "target.json").write_text(json.dumps(target))
                shard.add(local.files[i], f"{i:02}.jpg")
                shard.add(tmp_path / "target.json", f"{i:02}.json")
        store.put(str(tmp_path / f"{first}.tar"), f"bucket/{first}.tar")
    shards = names["Shards"](["s3://bucket/0.tar", "s3://bucket/12.tar"])
    loader = DataLoader(
        shards, 4, num_workers=2, collate_fn=lambda items: tuple(zip(*items, strict=True))
    )
    seen = [len(target["boxes"]) for _, targets in loader for target in targets]
    assert sorted(seen) == sorted(len(local[i].boxes) for i in range(24))
    batch = detection_batch(next(iter(loader)), len(local.names), 32)  # as a Detector takes it
    assert len(batch.images) == 4


@pytest.mark.parametrize("fault", [503, "cut", "gone"])
def test_a_fault_that_passes(fault, web, tmp_path):
    folder = LAYOUTS["roboflow_yolo"].write(tmp_path / "web/set").parent
    data = described(folder, f"{web.address}/set", tmp_path / "data.yaml")
    expected = told(DatasetFile.read(str(folder)).open("train"), str(folder))
    for file in (folder / "train").rglob("p*"):
        web.faults[file.name] = [fault] * 2
    remote = DatasetFile.read(str(data))
    assert told(remote.open("train"), str(remote.root)) == expected


@pytest.mark.parametrize("fault", [403, "short"])
def test_a_fault_that_stays(fault, web, tmp_path):
    """A file that a server does not give is no damaged one, which would be left out."""
    folder = LAYOUTS["roboflow_yolo"].write(tmp_path / "web/set").parent
    data = described(folder, f"{web.address}/set", tmp_path / "data.yaml")
    DatasetFile.read(str(data)).open("train")
    for number, kind in enumerate(("p1*.txt", "p1*.png")):
        file = next((folder / "train").rglob(kind))
        os.utime(file, (0, number))  # so the cache is not valid
        web.faults = {file.name: [fault] * 30}
        with pytest.raises(Unreachable, match=f"^http.*{file.name}"):
            told(DatasetFile.read(str(data)).open("train"), "")
        assert web.faults[file.name], "it does not try for ever"


def test_a_file_needs_no_32_threads():
    assert addresses.many(lambda file: threading.active_count(), [0])[0] < addresses.AT_ONCE


def test_a_server_that_is_gone_for_a_while(web, small_data, tmp_path, refused):
    """The training ends with a sentence, and goes on where it was."""
    shutil.copytree(small_data.parent, tmp_path / "web/set")
    data = described(small_data.parent, f"{web.address}/set", tmp_path / "data.yaml")
    for run, epochs in (("whole", 2), ("run", 1)):
        train(data, tmp_path / run, f"--data.cache none --trainer.max_epochs {epochs}")
    image = next((small_data.parent / "images/train").iterdir()).name
    web.faults[image] = ["gone"] * 20
    resume = f"fit --ckpt_path last --run {tmp_path}/run --trainer.max_epochs 2"
    assert image in refused(resume)
    web.faults = {}
    type_line(resume)
    assert not difference(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://nobody/set", "s3://nobody/set"),
        ("https://me:secret@host/set", "https://host/set"),
        ("s4://bucket/set", "s3"),
        ("gs://bucket/set", "gcsfs"),
    ],
)
def test_one_sentence(address, shown, store, web, tmp_path, refused):
    data = tmp_path / "data.yaml"
    data.write_text(f"path: {address}\ntrain: images\nval: images\nnames: [a]\n")
    sentence = refused(small_fit(data, tmp_path / "run"))
    assert shown in sentence
    assert "secret" not in sentence
    assert not (tmp_path / "run/checkpoints").exists()
