"""Lines as people type them for YOLOv5 and Ultralytics: each is answered once, with the whole line in
boltbox's words."""

import json
import re
import shlex
from pathlib import Path

import pytest
from option_names import FILE

import cli
from boltbox.detector.commands.command_line import SHARED
from boltbox.detector.commands.main import COMMANDS

# test_help.py holds them to the parsers
OPTIONS = json.loads(FILE.read_text())
LINES = [
    # YOLOv5
    (
        "train --img 640 --batch 16 --epochs 3 --data coco128.yaml --weights yolov5s.pt",
        "fit --data.image_size 640 --data.batch_size 16 --trainer.max_epochs 3 --data.dataset coco128.yaml"
        " --model.start.weights yolov5s.pt",
    ),
    (
        "train.py --data coco.yaml --epochs 300 --weights= --cfg models/yolov5n.yaml --batch-size 128",
        "fit --data.dataset coco.yaml --trainer.max_epochs 300 --model.network.size n --data.batch_size 128",
    ),
    (
        "train --data d.yaml --batch-size -1",
        "fit --data.dataset d.yaml --data.batch_size auto",
    ),
    (
        "detect train data=d.yaml batch=-1",
        "fit --data.dataset d.yaml --data.batch_size auto",
    ),
    ("fit --data d.yaml --cfg yolov5x6.yaml", "fit --data.dataset d.yaml --model.network.size x6"),
    ("train --resume", "fit --ckpt_path last"),
    ("train --resume runs/train/exp/weights/last.pt", "fit --ckpt_path runs/train/exp/weights/last.pt"),
    ("fit --data d.yaml --device 0", "fit --data.dataset d.yaml --trainer.devices 1"),
    ("train --data d.yaml --device 3", "fit --data.dataset d.yaml --trainer.devices 3,"),
    ("train --data d.yaml --device 0,1", "fit --data.dataset d.yaml --trainer.devices 0,1"),
    ("train --data d.yaml --device cpu", "fit --data.dataset d.yaml --trainer.accelerator cpu"),
    ("train --data d.yaml --cache", "fit --data.dataset d.yaml --data.cache ram"),
    ("train --data d.yaml --cache disk", "fit --data.dataset d.yaml --data.cache disk"),
    (
        "train --data d.yaml --hyp data/hyps/hyp.scratch-low.yaml",
        "fit --data.dataset d.yaml --config configs/yolov5.yaml --config configs/hyp/low.yaml",
    ),
    (
        "train --data d.yaml --hyp hyp.VOC.yaml --cos-lr",
        "fit --data.dataset d.yaml --config configs/yolov5.yaml --config configs/hyp/voc.yaml"
        " --model.optim.lr_schedule cosine",
    ),
    ("train --data d.yaml --evolve", "evolve --data.dataset d.yaml --evolve.generations 300"),
    ("train --data d.yaml --evolve 50", "evolve --data.dataset d.yaml --evolve.generations 50"),
    (
        "train --data d.yaml --optimizer AdamW --patience 50 --freeze 10",
        "fit --data.dataset d.yaml --model.optim.optimizer AdamW --early_stop.patience 50"
        " --model.start.freeze 10",
    ),
    (
        "train --data d.yaml --single-cls --rect --multi-scale --sync-bn --workers 4 --seed 1",
        "fit --data.dataset d.yaml --data.single_class true --data.rect true --model.multi_scale true"
        " --trainer.sync_batchnorm true --data.workers 4 --seed_everything 1",
    ),
    (
        "train --data d.yaml --label-smoothing 0.1 --save-period 5",
        "fit --data.dataset d.yaml --model.loss.label_smoothing 0.1 --checkpoints.save_period 5",
    ),
    (
        "train --data d.yaml --project runs/train --name exp --exist-ok",
        "fit --data.dataset d.yaml --run runs/train/exp",
    ),
    ("train --data d.yaml --project my/runs", "fit --data.dataset d.yaml --run my/runs/exp"),
    ("train --data d.yaml --name n", "fit --data.dataset d.yaml --run n"),
    ("val --weights a.pt --name n --project p", "validate --ckpt_path a.pt --run p/n"),
    ("train --data d.yaml --hyp data/my_hyp.yaml", "fit --data.dataset d.yaml --config data/my_hyp.yaml"),
    ("train data=d.yaml plots=False", "fit --data.dataset d.yaml --pictures.enabled false"),
    (
        "train --data d.yaml --noautoanchor --noplots --noval --nosave --quad",
        "fit --data.dataset d.yaml --autoanchor.enabled false --pictures.enabled false"
        " --trainer.limit_val_batches 0",
    ),
    (
        "train --data d.yaml --entity me --upload_dataset --bbox_interval 1 --artifact_alias latest",
        "fit --data.dataset d.yaml",
    ),
    (
        "val --weights yolov5s.pt --data coco.yaml --img 640",
        "validate --ckpt_path yolov5s.pt --data.dataset coco.yaml --data.image_size 640",
    ),
    (
        "val.py --weights best.pt --data d.yaml --task test",
        "test --ckpt_path best.pt --data.dataset d.yaml",
    ),
    ("val --weights best.pt --task val", "validate --ckpt_path best.pt"),
    (
        "val --weights best.pt --data d.yaml --conf-thres 0.001 --iou-thres 0.6 --max-det 300 --augment",
        "validate --ckpt_path best.pt --data.dataset d.yaml --conf 0.001 --iou 0.6 --max_det 300"
        " --tta true",
    ),
    (
        "val --weights best.pt --data d.yaml --save-txt --save-conf --save-json --half",
        "validate --ckpt_path best.pt --data.dataset d.yaml --trainer.precision 16-true",
    ),
    ("val --weights a.pt b.pt --data d.yaml", "validate --ckpt_path a.pt --ensemble [b.pt] --data.dataset d.yaml"),
    (
        "detect --weights yolov5s.pt --source 0 --view-img",
        "predict --ckpt_path yolov5s.pt --source 0",
    ),
    (
        "detect.py --weights best.pt --source photos --save-txt --save-conf --save-crop --nosave",
        "predict --ckpt_path best.pt --source photos --labels true --confidences true --crops true"
        " --images false",
    ),
    (
        "detect --weights best.pt --source f.mp4 --vid-stride 5 --classes 0 2 --agnostic-nms",
        "predict --ckpt_path best.pt --source f.mp4 --frame_step 5 --classes [0,2] --agnostic true",
    ),
    (
        "detect --source a.jpg --imgsz 320 --line-thickness 3 --hide-labels --hide-conf --exist-ok",
        "predict --source a.jpg --image_size 320 --line_width 3 --hide_labels true"
        " --hide_confidences true",
    ),
    (
        "detect --weights best.pt --source a.jpg --half --device cpu --dnn --visualize --update",
        "predict --ckpt_path best.pt --source a.jpg --precision 16-true --device cpu",
    ),
    (
        "detect --weights best.pt --source a.jpg --data coco128.yaml",
        "predict --ckpt_path best.pt --source a.jpg",
    ),
    ("export --weights a.pt --include onnx --device 0", "export --ckpt_path a.pt --format onnx"),
    ("export --weights a.pt --include onnx --device cpu", "export --ckpt_path a.pt --format onnx"),
    (
        "export --weights yolov5s.pt --include onnx --img 640 --half",
        "export --ckpt_path yolov5s.pt --format onnx --image_size 640 --half",
    ),
    (
        "export.py --weights best.pt --include openvino --dynamic --simplify --opset 18",
        "export --ckpt_path best.pt --format openvino --dynamic --opset 18",
    ),
    ("export --weights best.pt --include onnx --imgsz 320 640", "export --ckpt_path best.pt --format onnx --image_size [320,640]"),
    # with a word after the command
    ("fit pets --epochs 3", "fit --data.dataset pets --trainer.max_epochs 3"),
    ("train pets --img 320", "fit --data.dataset pets --data.image_size 320"),
    ("predict photos --conf-thres .5", "predict --source photos --conf .5"),
    # Ultralytics
    (
        "detect train data=coco8.yaml model=yolov8n.pt epochs=100 imgsz=640",
        "fit --data.dataset coco8.yaml --model.start.weights yolov8n.pt --trainer.max_epochs 100"
        " --data.image_size 640",
    ),
    (
        "yolo detect train data=d.yaml model=yolov5s.pt cos_lr=True half=False cache=True amp=False",
        "fit --data.dataset d.yaml --model.start.weights yolov5s.pt --model.optim.lr_schedule cosine"
        " --data.cache ram --trainer.precision 32-true",
    ),
    ("yolo task=detect mode=predict model=a.pt source=b.jpg classes=0",
     "predict --ckpt_path a.pt --source b.jpg --classes 0"),
    (
        "train data=d.yaml model=yolov5s.pt epochs=10 batch=8 patience=20 lr0=0.01",
        "fit --data.dataset d.yaml --model.start.weights yolov5s.pt --trainer.max_epochs 10"
        " --data.batch_size 8 --early_stop.patience 20 --model.optim.lr0 0.01",
    ),
    ("detect train resume=True", "fit --ckpt_path last"),
    ("detect val model=best.pt data=d.yaml", "validate --ckpt_path best.pt --data.dataset d.yaml"),
    (
        "detect predict model=best.pt source=photos conf=0.25 save_txt=True",
        "predict --ckpt_path best.pt --source photos --conf 0.25 --labels true",
    ),
    ("predict model=best.pt source=a.jpg", "predict --ckpt_path best.pt --source a.jpg"),
    ("export model=best.pt format=onnx imgsz=640", "export --ckpt_path best.pt --format onnx --image_size 640"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "ours"), LINES, ids=lambda text: text[:60])
def test_a_line(line: str, ours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(line.split())
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    program = re.compile("(python cli.py|boltbox) ")
    told = shlex.split(program.sub("", error.rpartition("equivalent command: ")[2]))
    assert told == ours.split()
    shared = OPTIONS[SHARED] if COMMANDS[told[0]].needs_trainer else []
    known = {f"--{name}" for name in [*OPTIONS[told[0]], *shared]}
    assert {word for word in told if word.startswith("--")} <= known


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train --quad --exist-ok --img 9", "left out: --quad, --exist-ok; equivalent command: "),
        ("train --entity me --nosave", "left out: --entity me, --nosave; equivalent command: "),
        ("val --weights a.pt --save-json --exist-ok", "left out: --save-json; equivalent command: "),
        ("val --weights a.pt --task train", "left out: --task train; equivalent command: "),
        ("val model=a.pt split=train", "left out: --split train; equivalent command: "),
        ("predict model=a.pt view_img=True", "left out: --view_img True; equivalent command: "),
        ("train --quad --nothing 3", "left out: --quad, --nothing 3 (no such option; "),
        ("train --epochs 3 --bach 16", "left out: --bach 16 (no such option; did you mean 'batch'?)"),
        # nothing is lost
        ("export --include onnx --simplify --inplace", "equivalent command: "),
        ("predict --weights a.pt --exist-ok --save-json", "equivalent command: "),
        ("val --weights a.pt --task val", "equivalent command: "),
    ],
)  # fmt: skip
def test_what_a_line_lacks(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(line.split())
    assert f"; {says}" in capsys.readouterr().err


EVERYTHING = {  # options of YOLOv5's scripts and Ultralytics' modes, as their documentation lists them
    "train.py": "weights=a.pt cfg=yolov5n.yaml data=d.yaml hyp=hyp.VOC.yaml epochs=3 batch-size=4 imgsz=64 rect"
    " nosave noval noautoanchor noplots evolve evolve_population=a resume_evolve=b bucket=c cache image-weights device=cpu"
    " multi-scale single-cls optimizer=SGD sync-bn workers=1 project=p name=n exist-ok quad cos-lr label-smoothing=0.1"
    " patience=9 freeze=1 save-period=1 seed=1 local_rank=0 entity=e upload_dataset bbox_interval=1 artifact_alias=latest"
    " ndjson-console ndjson-file",
    "val.py": "data=d.yaml weights=a.pt batch-size=4 imgsz=64 conf-thres=0.1 iou-thres=0.5 max-det=9 task=val device=cpu"
    " workers=1 single-cls augment verbose save-txt save-hybrid save-conf save-json project=p name=n exist-ok half dnn",
    "detect.py": "weights=a.pt source=x data=d.yaml imgsz=64 conf-thres=0.1 iou-thres=0.5 max-det=9 device=cpu view-img"
    " save-txt save-format=1 save-csv save-conf save-crop nosave classes=0 agnostic-nms augment visualize update project=p"
    " name=n exist-ok line-thickness=3 hide-labels hide-conf half dnn vid-stride=2",
    "export.py": "data=d.yaml weights=a.pt imgsz=64 batch-size=1 device=cpu half inplace keras optimize int8 per-tensor"
    " dynamic cache=c simplify mlmodel opset=17 verbose workspace=4 nms agnostic-nms topk-per-class=9 topk-all=9"
    " iou-thres=0.5 conf-thres=0.1 include=onnx",
    "yolo train": "model=a.pt data=d.yaml epochs=3 time=2 patience=9 batch=4 imgsz=64 save=True save_period=1 cache=False"
    " device=cpu workers=1 project=p name=n exist_ok=False pretrained=True optimizer=auto verbose=True seed=0"
    " deterministic=True single_cls=False classes=0 rect=False multi_scale=False cos_lr=False close_mosaic=10 resume=False"
    " amp=True fraction=1.0 profile=False freeze=1 lr0=0.01 lrf=0.01 momentum=0.9 weight_decay=0.0005 warmup_epochs=3.0"
    " warmup_momentum=0.8 warmup_bias_lr=0.1 box=7.5 cls=0.5 dfl=1.5 pose=12.0 kobj=1.0 nbs=64 overlap_mask=True"
    " mask_ratio=4 dropout=0.0 val=True plots=True compile=False hsv_h=0.015 hsv_s=0.7 hsv_v=0.4 degrees=0.0 translate=0.1"
    " scale=0.5 shear=0.0 perspective=0.0 flipud=0.0 fliplr=0.5 bgr=0.0 mosaic=1.0 mixup=0.0 cutmix=0.0 copy_paste=0.0"
    " copy_paste_mode=flip auto_augment=randaugment erasing=0.4",
    "yolo val": "model=a.pt data=d.yaml imgsz=64 batch=4 save_json=False conf=0.001 iou=0.7 max_det=9 half=True device=cpu"
    " dnn=False plots=True classes=0 rect=True split=val project=p name=n verbose=False save_txt=False save_conf=False"
    " workers=1 augment=False agnostic_nms=False single_cls=False visualize=False compile=False",
    "yolo predict": "model=a.pt source=x conf=0.25 iou=0.7 imgsz=64 rect=True half=False device=cpu batch=1 max_det=9"
    " vid_stride=1 stream_buffer=False visualize=False augment=False agnostic_nms=False classes=0 retina_masks=False"
    " embed=1 project=p name=n stream=False verbose=True compile=False show=False save=False save_frames=False"
    " save_txt=False save_conf=False save_crop=False show_labels=True show_conf=False show_boxes=True line_width=2",
    "yolo export": "model=a.pt format=onnx imgsz=64 keras=False optimize=False half=False int8=False dynamic=False"
    " simplify=True opset=17 workspace=4 nms=False batch=1 device=cpu data=d.yaml fraction=1.0 end2end=True",
}  # fmt: skip


@pytest.mark.parametrize("script", EVERYTHING)
def test_every_option_has_a_place(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In boltbox's line, or among what is left out, without a guess: both are told at once."""
    words = EVERYTHING[script].split()
    if script.endswith(".py"):
        words = [word for each in words for word in f"--{each}".split("=")]
    with pytest.raises(SystemExit):
        cli.main([*script.split(), *words])
    error = capsys.readouterr().err
    assert "no such option" not in error
    command, *told = shlex.split(error.rpartition("equivalent command: python cli.py ")[2])
    shared = OPTIONS[SHARED] if COMMANDS[command].needs_trainer else []
    options = {word.removeprefix("--") for word in told if word.startswith("--")}
    assert options <= {*OPTIONS[command], *shared, "config"}


def test_a_value_with_an_equals_sign_is_no_option(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning names its checkpoints so."""
    with pytest.raises(SystemExit):
        cli.main(["validate", "--ckpt_path", "epoch=3-step=10.ckpt"])
    assert "ckpt_path epoch=3-step=10.ckpt: no such file" in capsys.readouterr().err
