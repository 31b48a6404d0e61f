"""Small data sets written in each format, their parts as text, and how they are opened."""

import json
from pathlib import Path

import cv2
import numpy as np
from made_runs import column

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.formats.format import Split
from boltbox.detector.data.formats.yolo_txt import YoloText, parse_yolo
from boltbox.detector.data.read_split import SplitReader

# Three images: height, width, objects as class and xyxy pixels. The boxes are exact in binary, so
# that text keeps them.
SCENES = {
    "a": (40, 60, [(0, 5.25, 10.5, 30.75, 39.0)]),
    "b": (100, 37, [(1, 0.0, 50.0, 37.0, 100.0), (0, 1.5, 2.5, 12.25, 20.0)]),
    "c": (64, 64, []),
}
NAMES = ["cat", "dog"]
TRAIN = "train: images/train\n"
PAIR = "names: [cat, dog]\n"


def picture(height, width, seed=0):
    """Random (height, width, 3) uint8 RGB."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def bgr(array):
    """Grey (H, W), or (H, W, 3) RGB in OpenCV's order."""
    return array[..., ::-1] if array.ndim == 3 else array


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), bgr(image))
    return path


def lay_out(root, files):
    """Text files by relative path; a path that ends with a slash is an empty folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.write_text(text)


def image_set(root, pictures, texts, names="[a, b]", suffix="png"):
    """The data.yaml of pictures with these texts as labels, to train and validate on."""
    for k, (image, text) in enumerate(zip(pictures, texts, strict=True)):
        save(root / f"images/{k}.{suffix}", image)
        lay_out(root, {f"labels/{k}.txt": text})
    lay_out(root, {"data.yaml": f"train: images\nval: images\nnames: {names}\n"})
    return root / "data.yaml"


def yolo_line(c, x1, y1, x2, y2, width, height):
    centre = (x1 + x2) / 2 / width, (y1 + y2) / 2 / height
    return " ".join(map("{:.9g}".format, (c, *centre, (x2 - x1) / width, (y2 - y1) / height)))


def yolo_text(objects, width, height):
    """The text of a label file."""
    text = ""
    for row in objects:
        text += yolo_line(*row, width, height) + "\n"
    return text


def voc_object(name, xmin=1, ymin=2, xmax=11, ymax=22, more=""):
    box = f"<xmin>{xmin}</xmin><ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax>"
    return f"<object><name>{name}</name>{more}<bndbox>{box}</bndbox></object>"


def voc_xml(*objects):
    return f"<annotation>{''.join(objects)}</annotation>"


def voc_text(objects):
    """The text of a label file."""
    return voc_xml(*(voc_object(NAMES[c], *box) for c, *box in objects))


def as_yolo(root):
    for k, (stem, (h, w, objects)) in enumerate(SCENES.items()):
        save(root / f"images/train/{stem}.png", picture(h, w, k))
        lay_out(root, {f"labels/train/{stem}.txt": yolo_text(objects, w, h)})
    lay_out(root, {"data.yaml": "path: .\ntrain: images/train\nnames: [cat, dog]\n"})


def as_voc(root):
    for k, (stem, (h, w, objects)) in enumerate(SCENES.items()):
        save(root / f"JPEGImages/{stem}.png", picture(h, w, k))
        lay_out(root, {f"Annotations/{stem}.xml": voc_text(objects)})
    lay_out(root, {"ImageSets/Main/train.txt": "b\nc\na\n"})


def coco_content():
    """The scenes with category ids 17 and 3, and image ids that are not in the order of the
    files."""
    images = []
    annotations = []
    for image_id, (stem, (h, w, objects)) in zip((30, 10, 20), SCENES.items(), strict=True):
        images.append({"id": image_id, "file_name": f"{stem}.png", "height": h, "width": w})
        for c, x1, y1, x2, y2 in objects:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": (17, 3)[c],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                }
            )
    return {
        "images": images[::-1],
        "annotations": annotations,
        "categories": [{"id": 3, "name": "dog"}, {"id": 17, "name": "cat"}],
    }


def as_coco(root, content=None):
    for k, (stem, (h, w, _)) in enumerate(SCENES.items()):
        save(root / f"photos/{stem}.png", picture(h, w, k))
    files = {"train.json": json.dumps(content or coco_content())}
    lay_out(root, files | {"data.yaml": "train: train.json\nimages: photos\nnames: [cat, dog]\n"})


def coco_with(annotations):
    """These annotations, by default of image a.png (40 x 60 pixels) and category cat."""
    defaults = {"image_id": 30, "category_id": 17, "bbox": [10, 20, 30, 10]}
    rows = [defaults | {"id": 101 + k} | row for k, row in enumerate(annotations)]
    return coco_content() | {"annotations": rows}


def load(given, split="train"):
    return DatasetFile.read(str(given)).open(split)


def counts(dataset):
    """Images, boxes, images without objects, images without a label file."""
    table = dataset.labels
    background = int((np.diff(table.starts) == 0).sum())
    return len(dataset), len(table.boxes), background, dataset.unlabelled


def read_yolo(images, names, root, single_class=False):
    """A folder of images with text labels, without a data.yaml."""
    form = YoloText(Split("train", [images], root))
    return SplitReader(form, names, True, single_class, True).read()


def parsed(text):
    """The text of a label file -> (n, 5) class, cx, cy, w, h; n lists of parts; (line, problem) of
    each dropped line."""
    rows = []
    polygons = []
    faults = []
    for line in parse_yolo(text):
        if line.problem:
            faults.append((line.place, line.problem))
        else:
            rows.append((line.name,) + tuple(line.box))
            polygons.append(line.polygons)
    return np.array(rows, np.float32).reshape(-1, 5), polygons, faults


def files_of(dataset):
    return column(map(Path, dataset.files), "name")


def by_name(dataset):
    """The labels of each image, by the name of its file."""
    return dict(zip(files_of(dataset), dataset.labels, strict=True))


def content(dataset):
    """All that a dataset says, for comparison."""
    arrays = {name: (x.tolist(), x.dtype) for name, x in vars(dataset.labels).items()}
    faults = [(str(fault), fault.image, fault.box) for fault in dataset.faults]
    texts = list(map(list, (dataset.files, dataset.label_files, dataset.places)))
    more = (dataset.label_sizes.tolist(), dataset.folders, dataset.fingerprint)
    return texts, arrays, dataset.names, faults, more
