"""One small dataset as labelling tools export it, each layout from the tool's documentation."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from made_datasets import lay_out, picture, save, voc_text, yolo_text
from made_runs import column

NAMES = ["cat", "dog"]
# name: height, width, boxes, which are exact in binary; the last two are val where there are two
PICTURES = {
    "p0": (64, 64, [(0, 4.0, 8.0, 36.0, 40.0)]),
    "p1": (64, 128, [(1, 16.0, 8.0, 96.0, 40.0), (0, 2.0, 2.0, 18.0, 34.0)]),
    "p2": (128, 64, []),
    "p3": (64, 64, [(1, 0.0, 0.0, 64.0, 32.0)]),
    "p4": (64, 64, [(0, 8.0, 8.0, 24.0, 56.0)]),
    "p5": (128, 128, [(1, 32.0, 16.0, 96.0, 48.0)]),
}
TRAIN = list(PICTURES)[:4]
VAL = list(PICTURES)[4:]


def _picture(path):
    height, width, _ = PICTURES[path.stem]
    save(path, picture(height, width, int(path.stem[1:])))


def yolo(names):
    height, width, boxes = PICTURES[names[0]]
    return yolo_text(boxes, width, height)


def corners(name):
    """Class and corners, turned by an eighth: the boxes around them are the boxes."""
    turned = []
    for c, x1, y1, x2, y2 in PICTURES[name][2]:
        x = (x1 + x2) / 2
        y = (y1 + y2) / 2
        turned.append((c, [x, y1, x2, y, x, y2, x1, y]))
    return turned


def polygons(names):
    height, width, _ = PICTURES[names[0]]
    text = ""
    for c, points in corners(names[0]):
        values = [v / (height if k % 2 else width) for k, v in enumerate(points)]
        text += f"{c} {' '.join(map(str, values))}\n"
    return text


def dota(names):
    """Pixels, and the class by its name."""
    text = "imagesource:x\ngsd:1\n"
    for c, points in corners(names[0]):
        text += f"{' '.join(map(str, points))} {NAMES[c]} 0\n"
    return f"{text}0 0 9 0 9 9 0 9 {NAMES[0]} 1\n"  # difficult


def voc(names):
    return voc_text(PICTURES[names[0]][2])


def csv(names):
    """TensorFlow Object Detection; an image without an object is in no row."""
    text = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
    for name in names:
        height, width, boxes = PICTURES[name]
        for c, *box in boxes:
            text += ",".join(map(str, (f"{name}.png", width, height, NAMES[c], *box))) + "\n"
    return text


def objects(name):
    """As Hugging Face's examples have them: xywh in pixels."""
    boxes = PICTURES[name][2]
    sides = [[x1, y1, x2 - x1, y2 - y1] for _, x1, y1, x2, y2 in boxes]
    return {"bbox": sides, "category": column(boxes, 0)}


def jsonl(names):
    text = ""
    for name in names:
        text += json.dumps({"file_name": f"{name}.png", "objects": objects(name)}) + "\n"
    return text


def coco(names):
    """Ids with gaps; category 0 is Roboflow's group of all others and has no objects."""
    content = {"images": [], "annotations": [], "categories": []}
    for k, name in enumerate(names, 1):
        height, width, _ = PICTURES[name]
        file = {"id": k, "file_name": f"{name}.png", "height": height, "width": width}
        content["images"].append(file)
        found = objects(name)
        for box, c in zip(found["bbox"], found["category"], strict=True):
            row = {"id": len(content["annotations"]), "image_id": k, "category_id": 17 + c}
            content["annotations"].append(row | {"bbox": box, "iscrowd": 0, "segmentation": []})
    for i, name in ((18, "dog"), (0, "pets"), (17, "cat")):
        parent = "none" if name == "pets" else "pets"
        content["categories"].append({"id": i, "name": name, "supercategory": parent})
    return json.dumps(content)


def cvat(names):
    """CVAT for images 1.1."""
    text = "<annotations><version>1.1</version>"
    for k, name in enumerate(names):
        height, width, boxes = PICTURES[name]
        text += f'<image id="{k}" name="{name}.png" width="{width}" height="{height}">'
        for c, x1, y1, x2, y2 in boxes:
            text += f'<box label="{NAMES[c]}" source="manual" occluded="0" xtl="{x1}" ytl="{y1}"'
            text += f' xbr="{x2}" ybr="{y2}" z_order="0"></box>'
        text += "</image>"
    return f"{text}</annotations>"


def labelme(names):
    """With a byte order mark."""
    height, width, boxes = PICTURES[names[0]]
    shapes = []
    for c, x1, y1, x2, y2 in boxes:
        shape = {"label": NAMES[c], "points": [[x1, y1], [x2, y2]], "group_id": None}
        shapes.append(shape | {"shape_type": "rectangle", "flags": {}})
    size = {"imageHeight": height, "imageWidth": width, "imageData": None}
    content = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": f"{names[0]}.png"}
    return "\ufeff" + json.dumps(content | size)


def via(names):
    """VGG Image Annotator 2."""
    content = {}
    for name in names:
        regions = []
        for c, x1, y1, x2, y2 in PICTURES[name][2]:
            shape = {"name": "rect", "x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1}
            label = {"label": NAMES[c]}
            regions.append({"shape_attributes": shape, "region_attributes": label})
        entry = {"filename": f"{name}.png", "size": 9, "regions": regions, "file_attributes": {}}
        content[f"{name}.png9"] = entry
    return json.dumps(content)


class Layout(NamedTuple):
    """Where images and labels are.

    Attributes:
        images: path of an image, with {name} and {split}.
        labels: of its label file; without {name}, of that of a split.
        text: the content of a label file of these images.
        splits: the names of the two; one is all images.
        files: others.
        source: what `--data.dataset` is given.
        names: of the classes, as they are found.
    """

    images: str
    labels: str
    text: Callable[[Sequence[str]], str] = yolo
    splits: Sequence[str] = ("",)
    files: Mapping[str, str] = {}
    source: str = "."
    names: list[str] = NAMES

    def write(self, root):
        groups = [TRAIN, VAL] if len(self.splits) == 2 else [list(PICTURES)]
        for split, group in zip(self.splits, groups, strict=True):
            names_of = defaultdict(list)
            for name in group:
                _picture(root / self.images.format(split=split, name=name))
                names_of[self.labels.format(split=split, name=name)].append(name)
            for path, names in names_of.items():
                lay_out(root, {path: self.text(names)})
        for path, text in self.files.items():
            lay_out(root, {path: text.replace("ROOT", str(root))})
        return root / self.source


TEXTS = {f.__name__: f for f in (yolo, polygons, dota, voc, csv, jsonl, coco)}
LAYOUTS = {}
for _name, _row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items():
    _text = TEXTS[_row.pop("text", "yolo")]
    LAYOUTS[_name] = Layout(text=_text, **_row)
CONVERTED = {
    "cvat": Layout("images/{name}.png", "annotations.xml", cvat),
    "labelme": Layout("{name}.png", "{name}.json", labelme),
    "via": Layout("images/{name}.png", "via_region_data.json", via),
}


def zip_file(root):
    """What the tools' web pages give, with a folder in it and what macOS adds."""
    folder = LAYOUTS["roboflow_yolo"].write(root / "given/pets").parent
    lay_out(root, {"given/__MACOSX/pets/train/images/._p0.png": "", "given/.DS_Store": ""})
    archive = shutil.make_archive(str(root / "pets"), "zip", folder.parent)
    shutil.rmtree(folder.parent)
    return Path(archive)
