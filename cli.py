"""boltbox: train, evaluate and use a YOLOv5 detector.

python cli.py fit --config configs/yolo.yaml
python cli.py fit --data.dataset my/data.yaml --model.start.weights yolov5n.pt
python cli.py fit --ckpt_path last
python cli.py validate --ckpt_path last
python cli.py predict --ckpt_path last --source my/images
python cli.py predict --ckpt_path last --source my/video.mp4 --csv true
python cli.py anchors --data.dataset my/data.yaml --data.image_size 640
python cli.py doctor --data.dataset my/data.yaml --data.image_size 640
python cli.py import-hyp my_hyp.yaml
python cli.py benchmark --data.dataset my/data.yaml --data.image_size 640
python cli.py evolve --config configs/yolo.yaml --data.dataset my/data.yaml
python cli.py export --ckpt_path best --format onnx
python cli.py report runs/fit-1
python cli.py compare runs/fit-1 runs/fit-2
"""

from boltbox.detector.commands.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
