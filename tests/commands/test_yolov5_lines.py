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
from boltbox.detector.commands.yolov5_line import FORMATS
from boltbox.detector.inference.exported import ENDINGS

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
    (
        "train --data d.yaml --hyp data/yolov5_hyp.yaml",
        "fit --data.dataset d.yaml --config configs/yolov5.yaml --config yolov5_hyp_boltbox.yaml",
    ),
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
    ("export --weights best.pt --include engine openvino onnx", "export --ckpt_path best.pt --format openvino"),
    ("export --weights best.pt --include engine", "export --ckpt_path best.pt"),
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
        "train data=d.yaml model=yolov5s.pt epochs=10 batch=8 patience=20 lr0=0.01",
        "fit --data.dataset d.yaml --model.start.weights yolov5s.pt --trainer.max_epochs 10"
        " --data.batch_size 8 --early_stop.patience 20 --model.optim.lr0 0.01",
    ),
    ("detect train resume=True", "fit --ckpt_path last"),
    ("detect val model=best.pt data=d.yaml", "validate --ckpt_path best.pt --data.dataset d.yaml"),
    (
        "detect predict model=best.pt source=photos conf=0.25 save_txt=True",
        "predict --ckpt_path best.pt --source photos --conf 0.25 --labels True",
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
    told = shlex.split(program.sub("", error.rpartition("here this line is: ")[2]))
    assert told == ours.split()
    shared = OPTIONS[SHARED] if COMMANDS[told[0]].needs_trainer else []
    known = {f"--{name}" for name in [*OPTIONS[told[0]], *shared]}
    assert {word for word in told if word.startswith("--")} <= known


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train --quad --exist-ok --img 9", "left out: --quad, --exist-ok; here"),
        ("train --entity me --nosave", "left out: --entity me, --nosave; here"),
        ("val --weights a.pt --save-json --exist-ok", "left out: --save-json; here"),
        ("val --weights a.pt --task train", "left out: --task train; here"),
        ("val model=a.pt split=train", "left out: --split train; here"),
        ("predict model=a.pt view_img=True", "left out: --view_img True; here"),
        (
            "export --include onnx engine",
            "left out: --include engine (one format at a time: onnx, openvino); here",
        ),
        ("export --include openvino onnx", "left out: --include onnx (one format"),
        (
            "train --hyp my/hyp.yaml --quad",
            "first python cli.py import-hyp my/hyp.yaml; left out: --quad; here",
        ),
        # nothing is lost
        ("export --include onnx --simplify --inplace", "here"),
        ("predict --weights a.pt --exist-ok --save-json", "here"),
        ("val --weights a.pt --task val", "here"),
    ],
)  # fmt: skip
def test_what_a_line_lacks(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(line.split())
    assert f": not a word of boltbox; {says}" in capsys.readouterr().err


def test_a_value_with_an_equals_sign_is_no_option(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning names its checkpoints so."""
    with pytest.raises(SystemExit):
        cli.main(["validate", "--ckpt_path", "epoch=3-step=10.ckpt"])
    assert "ckpt_path epoch=3-step=10.ckpt: no such file" in capsys.readouterr().err


def test_formats_are_those_of_export() -> None:
    assert set(FORMATS) == set(ENDINGS)
