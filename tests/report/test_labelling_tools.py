"""Boxes for labelling tools: what each tool's own package makes of the files comes back through the
doors of the data sets, with hostile names and images of several folders, which Label Studio copies
and renames."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from made_datasets import picture, save
from made_labels import labels_of
from made_predictions import checkpoint_file, pictures_folder, predict  # noqa: F401
from made_runs import read

import cli
from boltbox.detector.commands.review.suspect import (
    Review,
    ReviewedImage,
    Source,
    Suspect,
)
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.report.labelling_tools import BoxedImage, write_boxes

NAMES = ["<b>&amp;\"'</script>", "größe 2", "{{ 1 }}"]
ROWS = np.float32([[1.25, 2.5, 30.125, 39, 0.75, 1], [0, 0, 60, 40, 1e-5, 0], [3, 4, 5, 6, 1, 2]])


def label_studio(folder, photos, monkeypatch):
    """The predictions are accepted, and exported as COCO."""
    monkeypatch.setenv("LOCAL_FILES_DOCUMENT_ROOT", str(photos.parent))
    converter = pytest.importorskip("label_studio_sdk.converter.converter")
    tasks = read(folder / "label-studio.json")
    for number, task in enumerate(tasks):
        task |= {"id": number, "annotations": task.pop("predictions")}
    (folder / "exported.json").write_text(json.dumps(tasks))
    tool = converter.Converter(config=(folder / "label-studio.xml").read_text(), project_dir=None)
    tool.convert_to_coco(folder / "exported.json", "back", is_dir=False)
    return "back"


def cvat(folder, photos, monkeypatch):
    """Imported and exported by the package that CVAT itself uses, then converted."""
    datumaro = pytest.importorskip("datumaro")
    (folder / "images").symlink_to(photos)
    dataset = datumaro.Dataset.import_from(str(folder / "cvat.xml"), "cvat")
    dataset.export("exported", "cvat")
    (file,) = Path("exported").rglob("*.xml")
    file.replace(photos / "annotations.xml")
    cli.main(["convert", str(photos), "--out", "back"])
    return "back"


def coco(folder, photos, monkeypatch):
    """Read by the reference implementation, which also takes the annotations as results."""
    coco = importlib.import_module("pycocotools.coco").COCO(str(folder / "coco.json"))
    results = coco.loadRes(read(folder / "coco.json")["annotations"])
    scores = [annotation["score"] for annotation in results.dataset["annotations"]]
    np.testing.assert_allclose(scores, [*ROWS[:, 4], *ROWS[:2, 4]])
    (folder / "coco.json").replace("instances.json")
    Path("data.yaml").write_text(f"train: instances.json\nimages: {json.dumps(str(photos))}\n")
    return "data.yaml"


@pytest.mark.parametrize("tool", [label_studio, cvat, coco], ids=lambda tool: tool.__name__)
def test_there_and_back(tool, here, monkeypatch, capsys):
    photos = here / "my %2F photos"
    images = []
    for k, place in enumerate(("a&b/1.png", '<"é">#?/1.png', "a&b/none.png")):
        file = save(photos / place, picture(40, 60, k))
        images.append(BoxedImage(str(file), 60, 40, ROWS[: 3 - k if k < 2 else 0].tolist()))
    Path("out").mkdir()
    write_boxes(tool.__name__.replace("_", "-"), images, NAMES, Path("out"))
    written = capsys.readouterr().out.split()[1::2]
    assert set(map(Path, written)) == set(Path("out").iterdir())
    file = DatasetFile.read(str(tool(Path("out"), photos, monkeypatch)))
    dataset = file.open("train")
    found = {}
    for path, labels in zip(dataset.files, dataset.labels, strict=True):
        classes = [file.names[c] for c in labels.classes]
        if len(classes):
            found[Path(path).read_bytes()] = dict(zip(classes, labels.boxes.tolist(), strict=True))
    for image in images[:2]:
        boxes = found.pop(Path(image.file).read_bytes())
        assert len(boxes) == len(image.rows)
        for *box, _, c in image.rows:
            np.testing.assert_allclose(boxes[NAMES[int(c)]], box, atol=0.01)
    assert not found


def test_what_predict_found(checkpoint, pictures, here):
    """Every detection above --conf, as in the file of COCO's results."""
    run = predict(checkpoint, "pictures", "--export coco --json true --images false")
    content = read(run / "coco.json")
    assert {x["file_name"] for x in content["images"]} == {x.name for x in pictures.iterdir()}
    results = read(run / "predictions.json")
    assert len(results) > len(content["images"])
    for row, result in zip(content["annotations"], results, strict=True):
        assert row["category_id"] == result["category_id"] + 1
        np.testing.assert_allclose(row["bbox"], result["bbox"], atol=1e-3)


def test_what_a_review_found():
    """The labels of the images with suspects, and the missing ones that are probable; each with the
    probability that it is right."""
    cat = (1.0, 2.0, 30.0, 20.0)
    dog = (5.0, 6.0, 9.5, 8.0)
    labels = labels_of([cat, dog], [0, 1], 40, 60)
    image = ReviewedImage("a.png", "val", labels, ["", ""], np.zeros((0, 4)))
    suspects = [
        Suspect(3, 0, "missing", 0.875, None, dog, 0, None, ""),
        Suspect(4, 0, "no_object", 0.75, 1, dog, 1, None, ""),
        Suspect(9, 0, "missing", 0.25, None, cat, 1, None, ""),
    ]
    rows = [list(cat) + [1, 0], list(dog) + [0.25, 1], list(dog) + [0.875, 0]]
    found = Review(Source("a"), NAMES, [image], suspects).boxed()
    assert found == [BoxedImage("a.png", 60, 40, rows)]
