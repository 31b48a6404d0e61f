"""One small data set as labelling tools export it, each layout from the tool's documentation.

Every function writes PICTURES below a folder and returns what `--data.dataset` is given.
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from made_datasets import picture, save, yolo_line

NAMES = ["cat", "dog"]
Box = tuple[int, float, float, float, float]  # class, xyxy pixels
# name: height, width, boxes, which are exact in binary; the last two are val where there are two splits
PICTURES: dict[str, tuple[int, int, list[Box]]] = {
    "p0": (64, 64, [(0, 4.0, 8.0, 36.0, 40.0)]),
    "p1": (64, 128, [(1, 16.0, 8.0, 96.0, 40.0), (0, 2.0, 2.0, 18.0, 34.0)]),
    "p2": (128, 64, []),
    "p3": (64, 64, [(1, 0.0, 0.0, 64.0, 32.0)]),
    "p4": (64, 64, [(0, 8.0, 8.0, 24.0, 56.0)]),
    "p5": (128, 128, [(1, 32.0, 16.0, 96.0, 48.0)]),
}
TRAIN = list(PICTURES)[:4]
VAL = list(PICTURES)[4:]


def _picture(path: Path) -> None:
    height, width, _ = PICTURES[path.stem]
    save(path, picture(height, width, int(path.stem[1:])))


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _boxes(name: str) -> str:
    """YOLO text of one picture."""
    height, width, boxes = PICTURES[name]
    return "".join(f"{yolo_line(*box, width, height)}\n" for box in boxes)


def _polygons(name: str) -> str:
    """The same as polygons with the corners turned by an eighth, whose bounding boxes are the boxes."""
    height, width, boxes = PICTURES[name]
    lines = []
    for c, x1, y1, x2, y2 in boxes:
        x = (x1 + x2) / 2
        y = (y1 + y2) / 2
        points = (x, y1), (x2, y), (x, y2), (x1, y)
        numbers = [n for px, py in points for n in (px / width, py / height)]
        lines.append(" ".join(map(str, (c, *numbers))) + "\n")
    return "".join(lines)


def _pairs(images: Path, labels: Path, names: Iterable[str], text: Any = _boxes) -> None:
    for name in names:
        _picture(images / f"{name}.png")
        _write(labels / f"{name}.txt", text(name))


def _coco(
    path: Path, names: Iterable[str], ids: dict[str, int], prefix: str = "", **more: Any
) -> Path:
    """A json file in COCO's format. ids: of the categories, by name."""
    images = []
    annotations = []
    for k, name in enumerate(names, 1):
        height, width, boxes = PICTURES[name]
        file = {"id": k, "file_name": f"{prefix}{name}.png", "height": height, "width": width}
        images.append(file)
        for c, x1, y1, x2, y2 in boxes:
            number = len(annotations) + 1
            category = ids[NAMES[c]]
            box = [x1, y1, x2 - x1, y2 - y1]
            area = (x2 - x1) * (y2 - y1)
            annotations.append(
                {"id": number, "image_id": k, "category_id": category, "bbox": box, "area": area,
                 "iscrowd": 0, "segmentation": []}
            )  # fmt: skip
    categories = [
        {"id": i, "name": name, "supercategory": "none" if name == "pets" else "pets"}
        for name, i in ids.items()
    ]
    content = {"images": images, "annotations": annotations, "categories": categories, **more}
    return _write(path, json.dumps(content))


def roboflow_yolo(root: Path, text: Any = _boxes) -> Path:
    """Roboflow's YOLOv5, YOLOv8, YOLO11: paths that begin with ../ although nothing lies there."""
    _pairs(root / "train/images", root / "train/labels", TRAIN, text)
    _pairs(root / "valid/images", root / "valid/labels", VAL, text)
    content = {"train": "../train/images", "val": "../valid/images", "test": "../test/images"}
    about = {"workspace": "pets", "version": 1, "license": "Public Domain"}
    _write(
        root / "data.yaml", yaml.safe_dump({**content, "nc": 2, "names": NAMES, "roboflow": about})
    )
    return root / "data.yaml"


def roboflow_segmentation(root: Path) -> Path:
    return roboflow_yolo(root, _polygons)


def roboflow_obb(root: Path) -> Path:
    """Rotated boxes: the four corners of each."""
    return roboflow_yolo(root, _polygons)


def roboflow_label_txt(root: Path) -> Path:
    """The older export of rotated boxes: pixels, and the class by its name."""

    def text(name: str) -> str:
        lines = []
        for c, x1, y1, x2, y2 in PICTURES[name][2]:
            x = (x1 + x2) / 2
            y = (y1 + y2) / 2
            lines.append(f"{x} {y1} {x2} {y} {x} {y2} {x1} {y} {NAMES[c]} 0\n")
        return "".join(lines)

    for split, names in (("train", TRAIN), ("valid", VAL)):
        _pairs(root / split / "images", root / split / "labelTxt", names, text)
    content = {"train": "../train/images", "val": "../valid/images", "nc": 2, "names": NAMES}
    _write(root / "data.yaml", yaml.safe_dump(content))
    return root / "data.yaml"


def dota(root: Path) -> Path:
    """The same without a data.yaml."""
    roboflow_label_txt(root).unlink()
    return root


def roboflow_coco(root: Path) -> Path:
    """Category 0 is the group of all others and has no objects."""
    for split, names in (("train", TRAIN), ("valid", VAL)):
        _coco(root / split / "_annotations.coco.json", names, {"pets": 0, "cat": 1, "dog": 2})
        for name in names:
            _picture(root / split / f"{name}.png")
    return root


def roboflow_csv(root: Path) -> Path:
    """TensorFlow Object Detection; an image without an object is in no row."""
    for split, names in (("train", TRAIN), ("valid", VAL)):
        rows = ["filename,width,height,class,xmin,ymin,xmax,ymax"]
        for name in names:
            _picture(root / split / f"{name}.png")
            height, width, boxes = PICTURES[name]
            for c, *box in boxes:
                rows.append(",".join(map(str, (f"{name}.png", width, height, NAMES[c], *box))))
        _write(root / split / "_annotations.csv", "\n".join(rows) + "\n")
    return root


def zip_file(root: Path) -> Path:
    """What the tools' web pages give, with a folder in it and what macOS adds."""
    folder = roboflow_yolo(root / "given/pets").parent
    _write(root / "given/__MACOSX/pets/train/images/._p0.png", "")
    archive = shutil.make_archive(str(root / "pets"), "zip", folder.parent)
    shutil.rmtree(folder.parent)
    return Path(archive)


def coco(root: Path) -> Path:
    """COCO's own folders; its ids have gaps."""
    for split, names in (("train2017", TRAIN), ("val2017", VAL)):
        _coco(root / "annotations" / f"instances_{split}.json", names, {"cat": 17, "dog": 18})
        _write(root / "annotations" / f"captions_{split}.json", '{"annotations": []}')
        for name in names:
            _picture(root / split / f"{name}.png")
    return root


def cvat_coco(root: Path) -> Path:
    """CVAT's COCO 1.0 of a task without subsets."""
    _coco(root / "annotations/instances_default.json", PICTURES, {"cat": 1, "dog": 2})
    for name in PICTURES:
        _picture(root / "images/default" / f"{name}.png")
    return root


def label_studio_coco(root: Path) -> Path:
    _coco(root / "result.json", PICTURES, {"cat": 0, "dog": 1}, prefix="images/")
    for name in PICTURES:
        _picture(root / "images" / f"{name}.png")
    return root


def fiftyone_coco(root: Path) -> Path:
    """COCODetectionDataset."""
    _coco(root / "labels.json", PICTURES, {"cat": 1, "dog": 2})
    for name in PICTURES:
        _picture(root / "data" / f"{name}.png")
    return root


def fiftyone_coco_splits(root: Path) -> Path:
    """COCODetectionDataset, a folder for each split."""
    for split, names in (("train", TRAIN), ("validation", VAL)):
        _coco(root / split / "labels.json", names, {"cat": 1, "dog": 2})
        for name in names:
            _picture(root / split / "data" / f"{name}.png")
    return root


def coco_of_one_file(root: Path) -> Path:
    """The images in a folder that is named as the split."""
    _coco(root / "boxes.json", PICTURES, {"cat": 1, "dog": 2})
    for name in PICTURES:
        _picture(root / "images/train" / f"{name}.png")
    return _write(root / "data.yaml", "train: boxes.json\n")


def voc_made_yolo(root: Path) -> Path:
    """YOLO text that was made from xml files, which are still there, and a list of images."""
    _pairs(root / "images", root / "labels", PICTURES)
    for name in PICTURES:
        _write(root / "Annotations" / f"{name}.xml", "<annotation></annotation>")
    _write(root / "train.txt", "".join(f"./images/{name}.png\n" for name in PICTURES))
    return _write(root / "data.yaml", "train: train.txt\nnames: [cat, dog]\n")


def labelimg(root: Path) -> Path:
    """LabelImg, YOLO: text files and classes.txt beside the images."""
    _pairs(root, root, PICTURES)
    _write(root / "classes.txt", "cat\ndog\n")
    return root


def labelimg_images(root: Path) -> Path:
    """The same in a folder `images`."""
    labelimg(root / "images")
    return root


def label_studio_yolo(root: Path) -> Path:
    _pairs(root / "images", root / "labels", PICTURES)
    _write(root / "classes.txt", "cat\ndog\n")
    categories = [{"id": i, "name": name} for i, name in enumerate(NAMES)]
    _write(root / "notes.json", json.dumps({"categories": categories, "info": {"year": 2026}}))
    return root


def label_studio_notes(root: Path) -> Path:
    """Only notes.json has the names."""
    (label_studio_yolo(root) / "classes.txt").unlink()
    return root


def cvat_yolo(root: Path) -> Path:
    """CVAT's YOLO 1.1; the paths of the list begin with data/."""
    _pairs(root / "obj_train_data", root / "obj_train_data", PICTURES)
    _write(root / "obj.names", "cat\ndog\n")
    _write(root / "obj.data", "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\n")
    _write(root / "train.txt", "".join(f"data/obj_train_data/{name}.png\n" for name in PICTURES))
    return root


def darknet(root: Path) -> Path:
    """Roboflow's YOLO Darknet."""
    for split, names in (("train", TRAIN), ("valid", VAL)):
        _pairs(root / split, root / split, names)
        _write(root / split / "_darknet.labels", "cat\ndog\n")
    return root


def cvat_ultralytics(root: Path) -> Path:
    """CVAT's Ultralytics YOLO Detection of a task with one subset."""
    _pairs(root / "images/train", root / "labels/train", PICTURES)
    _write(root / "train.txt", "".join(f"images/train/{name}.png\n" for name in PICTURES))
    content = {"path": "./", "train": "train.txt", "names": dict(enumerate(NAMES))}
    _write(root / "data.yaml", yaml.safe_dump(content))
    return root


def fiftyone_yolo(root: Path) -> Path:
    """YOLOv5Dataset."""
    _pairs(root / "images/train", root / "labels/train", TRAIN)
    _pairs(root / "images/val", root / "labels/val", VAL)
    content = {"path": str(root), "train": "./images/train/", "val": "./images/val/"}
    _write(root / "dataset.yaml", yaml.safe_dump({"names": dict(enumerate(NAMES)), **content}))
    return root


def images_and_labels(root: Path) -> Path:
    """Nothing says what the classes are called."""
    _pairs(root / "images", root / "labels", PICTURES)
    return root


def other_machine(root: Path) -> Path:
    """A data.yaml whose `path` is on the machine where it was written."""
    _pairs(root / "images/train", root / "labels/train", TRAIN)
    _pairs(root / "images/val", root / "labels/val", VAL)
    content = {"path": "/content/datasets/pets", "train": "images/train", "val": "images/val"}
    _write(root / "data.yaml", yaml.safe_dump({**content, "names": NAMES}))
    return root / "data.yaml"


def _objects(name: str) -> dict[str, Any]:
    """As Hugging Face's examples have them: xywh in pixels."""
    boxes = PICTURES[name][2]
    corners = [[x1, y1, x2 - x1, y2 - y1] for _, x1, y1, x2, y2 in boxes]
    return {"bbox": corners, "category": [box[0] for box in boxes]}


def hugging_face_folder(root: Path) -> Path:
    """An imagefolder with metadata.jsonl."""
    for split, names in (("train", TRAIN), ("validation", VAL)):
        lines = [
            json.dumps({"file_name": f"{name}.png", "objects": _objects(name)}) for name in names
        ]
        _write(root / split / "metadata.jsonl", "\n".join(lines) + "\n")
        for name in names:
            _picture(root / split / f"{name}.png")
    return root


def cvat_xml(root: Path) -> Path:
    """CVAT for images 1.1."""
    nodes = []
    for k, (name, (height, width, boxes)) in enumerate(PICTURES.items()):
        _picture(root / "images" / f"{name}.png")
        inner = "".join(
            f'<box label="{NAMES[c]}" source="manual" occluded="0" xtl="{x1}" ytl="{y1}" xbr="{x2}"'
            f' ybr="{y2}" z_order="0"></box>'
            for c, x1, y1, x2, y2 in boxes
        )
        head = f'id="{k}" name="{name}.png" width="{width}" height="{height}"'
        nodes.append(f"<image {head}>{inner}</image>")
    text = f"<annotations><version>1.1</version>{''.join(nodes)}</annotations>"
    _write(root / "annotations.xml", text)
    return root


def labelme(root: Path) -> Path:
    """A json file beside each image."""
    for name, (height, width, boxes) in PICTURES.items():
        _picture(root / f"{name}.png")
        shapes = [
            {"label": NAMES[c], "points": [[x1, y1], [x2, y2]], "shape_type": "rectangle",
             "group_id": None, "flags": {}}
            for c, x1, y1, x2, y2 in boxes
        ]  # fmt: skip
        size = {"imageHeight": height, "imageWidth": width, "imageData": None}
        content = {"version": "5.5.0", "flags": {}, "shapes": shapes}
        _write(root / f"{name}.json", json.dumps({**content, "imagePath": f"{name}.png", **size}))
    return root


def via(root: Path) -> Path:
    """VGG Image Annotator 2."""
    content = {}
    for name, (_, _, boxes) in PICTURES.items():
        _picture(root / "images" / f"{name}.png")
        regions = [
            {"shape_attributes": {"name": "rect", "x": x1, "y": y1, "width": x2 - x1,
                                  "height": y2 - y1},
             "region_attributes": {"label": NAMES[c]}}
            for c, x1, y1, x2, y2 in boxes
        ]  # fmt: skip
        size = os.path.getsize(root / "images" / f"{name}.png")
        content[f"{name}.png{size}"] = {
            "filename": f"{name}.png", "size": size, "regions": regions, "file_attributes": {}
        }  # fmt: skip
    _write(root / "via_region_data.json", json.dumps(content))
    return root
