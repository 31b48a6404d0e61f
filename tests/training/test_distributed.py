"""Two processes train and validate as one does."""

import json
import os
from pathlib import Path
from typing import Any

import cv2
import lightning as L
import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml
from agreement import diaries_that_agree
from made_datasets import lay_out, picture, save, yolo_line
from original_recipe import yolov5_average
from plain_loop import CLIP, EPOCHS, FixedNorms, Halves, halves, plain_loop, small_detector, spawn
from ranks import together
from small_fit import SMALL

import cli
from boltbox.callbacks import Warmup
from boltbox.detector.system.rank_zero import first_to_report

ROOT = Path(cli.__file__).parent


class Figures(L.Callback):
    """All that was logged at each validation or test, with the batch norm statistics of the
    average, in figures<N>.json of the run folder."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        average = pl_module.network if pl_module.ema is None else pl_module.ema
        norms = [float(b.double().sum()) for n, b in average.named_buffers() if "running" in n]
        logged = {
            k: float(v) for k, v in trainer.callback_metrics.items() if not k.startswith("train/")
        }
        self.seen.append({"logged": logged, "norms": norms})
        (Path(trainer.default_root_dir) / f"figures{trainer.global_rank}.json").write_text(
            json.dumps(self.seen)
        )

    on_test_end = on_validation_end


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """38 noisy images with the same three objects, and one to validate on: whichever images a
    process gets, it has the same share of the objects. Box and class losses are means over the
    objects of each process, as in YOLOv5."""
    root = tmp_path_factory.mktemp("alike")
    objects = [(0, 4, 4, 20, 24), (1, 30, 8, 60, 40), (0, 10, 36, 50, 60)]
    for k in range(39):
        split = "train" if k else "val"
        save(root / f"images/{split}/{k}.png", picture(64, 64, k))
        lay_out(
            root,
            {f"labels/{split}/{k}.txt": "".join(yolo_line(*o, 64, 64) + "\n" for o in objects)},
        )
    lay_out(root, {"data.yaml": "path: .\ntrain: images/train\nval: images/val\nnames: [a, b]\n"})
    return root / "data.yaml"


def test_ten_steps_equal_those_of_one_process(alike: Path, here: Path) -> None:
    """Loss and gradients of the first step; rates, windows and steps at each batch; weights and
    average in the end. The last batch of each epoch is smaller."""
    line = ["fit", "--config", str(ROOT / "configs/hyp/none.yaml"), "--data.dataset", str(alike), *SMALL,
            "--data.batch_size", "8", "--model.optim.nominal_batch_size", "16", "--warmup.warmup_epochs", "1",
            "--trainer.max_epochs", "3", "--trainer.callbacks", "agreement.Diary", "--trainer.limit_val_batches", "0"]  # fmt: skip
    cli.main([*line, "--run", "one"])
    together(cli.main, [*line, "--run", "two", "--trainer.devices", "2"])
    two = diaries_that_agree(here)
    one = torch.load(here / "one/rank0.pt", weights_only=True)
    assert one["batches"][-1]["step"] >= 10
    assert len({str(b["rates"]) for b in one["batches"]}) > 4, "there is a warm-up"
    assert len({b["window"] for b in one["batches"]}) == 2, "there are windows"
    for b, r0, r1 in zip(*(diary["batches"] for diary in (one, *two)), strict=True):
        assert b["parts"] == pytest.approx((np.array(r0["parts"]) + r1["parts"]) / 2, rel=1e-4)
    assert one["batches"][0]["parts"] == pytest.approx(
        (np.array(two[0]["batches"][0]["parts"]) + two[1]["batches"][0]["parts"]) / 2, rel=1e-5
    )
    for name, gradient in one["gradients"].items():
        for t in two:
            assert (t["gradients"][name] - gradient).norm() <= 1e-5 * gradient.norm().clamp(1e-3), (
                name
            )
    for t in two:
        for kind in ("network", "ema"):
            for name, value in one[kind].items():
                torch.testing.assert_close(
                    t[kind][name], value, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
                )
        for name, before in one["start"].items():
            moved = (one["network"][name] - before).norm()
            assert (t["network"][name] - one["network"][name]).norm() <= 1e-3 * moved + 1e-6, name


def test_gradients_are_summed_over_processes() -> None:
    """As a plain loop that adds the losses of both halves before each backward pass, through
    warm-up, windows and clipping, where the halves have different numbers of objects."""
    module = small_detector(levels=[5])
    wanted, _, _ = plain_loop(
        small_detector(levels=[5]), None, literal=False, shards=halves, training=False
    )
    trained = FixedNorms(**module.hparams)
    trained.set_image_size(module.image_size)
    trained.batch_size = module.batch_size
    trained.load_state_dict(module.state_dict())
    spawn(2, max_epochs=EPOCHS, gradient_clip_val=CLIP, callbacks=[Warmup(), yolov5_average()]).fit(
        trained, Halves()
    )
    ours = trained.network.state_dict()
    start = module.network.state_dict()
    for name, value in wanted.items():
        moved = (value - start[name]).double().norm()
        assert (ours[name] - value).double().norm() <= 1e-3 * moved, name
    assert (wanted["head.convs.0.weight"] - start["head.convs.0.weight"]).abs().max() > 1e-6


@pytest.fixture(scope="module")
def seven(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """7 training and 7 validation images of the demo, of different shapes, 4 of the first without
    labels; test: one image."""
    root = tmp_path_factory.mktemp("seven")
    for split in ("train", "val"):
        for k, file in enumerate(sorted((small_data.parent / f"images/{split}").glob("*.jpg"))[:7]):
            image = cv2.imread(str(file))[..., ::-1]
            height, width = image.shape[:2]
            save(
                root / f"images/{split}/{k}.png", cv2.resize(image, (width, height // (1 + k % 2)))
            )
            text = (small_data.parent / f"labels/{split}/{file.stem}.txt").read_text()
            lay_out(
                root, {f"labels/{split}/{k}.txt": "" if split == "train" and k % 2 == 0 else text}
            )
    names = yaml.safe_load(small_data.read_text())["names"]
    lay_out(root, {"one.txt": "./images/val/3.png\n", "data.yaml": yaml.safe_dump(
        {"path": ".", "train": "images/train", "val": "images/val", "test": "one.txt", "names": names})})  # fmt: skip
    return root / "data.yaml"


def figures(run: Path, rank: int = 0) -> list[dict[str, Any]]:
    return json.loads((run / f"figures{rank}.json").read_text())


def test_uneven_shares(seven: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A training of two processes with a last batch of three images, images without labels, and
    validations in the middle of accumulation windows; then its checkpoint's figures on seven images
    and on one, by two processes and by one, and what it finds."""
    line = ["--data.dataset", str(seven), *SMALL, "--data.batch_size", "4"]
    line += ["--trainer.callbacks", "test_distributed.Figures"]
    checkpoint = ["--ckpt_path", "run/checkpoints/last.ckpt"]
    three = ["--data.val_batch_size", "3"]
    both = ["--trainer.devices", "2"]

    def of_two() -> None:
        cli.main(["validate", *line, *both, *checkpoint, "--run", "two7", *three])
        cli.main(["test", *line, *both, *checkpoint, "--run", "two1"])

    fit = ["--trainer.max_epochs", "1", "--trainer.val_check_interval", "1"]
    fit += ["--warmup.warmup_epochs", "0", "--model.network.bn_momentum", "0.03"]
    fit += ["--model.network.anchors", "[[15,15,25,25,40,40]]"]  # an untrained network finds some
    together(cli.main, ["fit", *line, *both, *fit, "--run", "run"])
    together(of_two)
    capfd.readouterr()
    assert len(figures(here / "run")) == 2
    assert figures(here / "run") == figures(here / "run", 1), (
        "both processes validate with the same average"
    )
    for images, command in ((7, ["validate", *three]), (1, ["test"])):
        own = ["--run", f"one{images}", "--trainer.devices", "1"]
        cli.main([*command, *line, *checkpoint, *own])
        one, two, other = (
            figures(here / name, rank)[0]["logged"]
            for name, rank in ((f"one{images}", 0), (f"two{images}", 0), (f"two{images}", 1))
        )
        assert len(one) > 10
        assert one == two == other
        alone, shared = (
            json.loads((here / f"{name}{images}/metrics.json").read_text())
            for name in ("one", "two")
        )
        assert shared == alone
        assert alone["images"] == images
    assert json.loads((here / "one7/metrics.json").read_text())["R"] > 0


def test_batch_norms_are_not_synchronized_on_a_cpu(
    seven: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["fit", "--data.dataset", str(seven), *SMALL, "--trainer.devices", "2"]
    with pytest.raises(SystemExit) as leaving:
        cli.main([*line, "--trainer.sync_batchnorm", "true"])
    assert leaving.value.code == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: trainer.sync_batchnorm needs GPUs")
    assert len(told.splitlines()) == 1


def test_an_error_that_all_have_is_said_once(here: Path) -> None:
    def claim() -> None:
        dist.init_process_group("gloo", init_method="env://", rank=int(os.environ["LOCAL_RANK"]))
        said = [
            first_to_report(error)
            for error in ("the same", "the same", f"own of {dist.get_rank()}")
        ]
        (here / f"said{dist.get_rank()}.json").write_text(json.dumps(said))
        dist.barrier()

    together(claim)
    one, two = (json.loads((here / f"said{rank}.json").read_text()) for rank in (0, 1))
    assert one[0] + one[1] + two[0] + two[1] == 1
    assert one[2]
    assert two[2]
