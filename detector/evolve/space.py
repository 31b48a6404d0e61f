"""Genes: the numbers that evolution may change, their bounds, and YOLOv5's names for them."""

from typing import NamedTuple


class Gene(NamedTuple):
    """A number of the configuration that is searched for.

    Attributes:
        name: YOLOv5's name, like hsv_h; that of any other option is the option itself.
        option: where the number stands in the configuration, like data.augment.hsv_h.
        low, high: bounds; both may be taken.
        log: drawn and mutated by its logarithm (low > 0).
        whole: a whole number.
    """

    name: str
    option: str
    low: float
    high: float
    log: bool = False
    whole: bool = False


# Every key of a hyp*.yaml that is read here, with YOLOv5's bounds. iou_t is none: nothing reads it there either.
YOLOV5_GENES = {
    gene.name: gene
    for gene in (
        Gene("lr0", "model.lr0", 1e-5, 0.1),
        Gene("lrf", "model.lrf", 0.01, 1.0),
        Gene("momentum", "model.momentum", 0.6, 0.98),
        Gene("weight_decay", "model.weight_decay", 0.0, 0.001),
        Gene("warmup_epochs", "warmup.warmup_epochs", 0.0, 5.0),
        Gene("warmup_momentum", "warmup.warmup_momentum", 0.0, 0.95),
        Gene("warmup_bias_lr", "warmup.warmup_bias_lr", 0.0, 0.2),
        Gene("box", "model.box", 0.02, 0.2),
        Gene("cls", "model.cls", 0.2, 4.0),
        Gene("cls_pw", "model.cls_pw", 0.5, 2.0),
        Gene("obj", "model.obj", 0.2, 4.0),
        Gene("obj_pw", "model.obj_pw", 0.5, 2.0),
        Gene("anchor_t", "model.anchor_t", 2.0, 8.0),
        Gene("anchors", "model.anchors", 2.0, 10.0, whole=True),
        Gene("fl_gamma", "model.fl_gamma", 0.0, 2.0),
        Gene("hsv_h", "data.augment.hsv_h", 0.0, 0.1),
        Gene("hsv_s", "data.augment.hsv_s", 0.0, 0.9),
        Gene("hsv_v", "data.augment.hsv_v", 0.0, 0.9),
        Gene("degrees", "data.augment.degrees", 0.0, 45.0),
        Gene("translate", "data.augment.translate", 0.0, 0.9),
        Gene("scale", "data.augment.scale", 0.0, 0.9),
        Gene("shear", "data.augment.shear", 0.0, 10.0),
        Gene("perspective", "data.augment.perspective", 0.0, 0.001),
        Gene("flipud", "data.augment.flipud", 0.0, 1.0),
        Gene("fliplr", "data.augment.fliplr", 0.0, 1.0),
        Gene("mosaic", "data.augment.mosaic", 0.0, 1.0),
        Gene("mixup", "data.augment.mixup", 0.0, 1.0),
        Gene("copy_paste", "data.augment.copy_paste", 0.0, 1.0),
    )
}
EVOLVED = list(YOLOV5_GENES)[15:]  # by default: the augmentation
