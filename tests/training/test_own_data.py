"""Data of one's own in torchvision's detection style, the decoded prediction, and what Lightning
does with it."""

import json
import re
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import onnxruntime
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.model_summary import ModelSummary
from made_options import made_detector
from small_fit import SMALL
from test_python import ROOT, options
from torch.utils.data import DataLoader, IterableDataset

import cli
from boltbox.callbacks import Checkpoints
from boltbox.detector.checkpoint.reader import read_outline
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.detection_batch import detection_batch
from boltbox.detector.data.sample import Batch, finish_on_device
from boltbox.detector.model.boxes import cxcywhn_to_xyxy
from boltbox.detector.system.errors import InputError
from boltbox.detector.training.module import Detector

Item = tuple[torch.Tensor, dict[str, torch.Tensor]]


def made(**given: Any) -> Detector:
    tiny = {"width_multiple": 0.125, "depth_multiple": 0.1, "levels": [5]}
    return made_detector(["a", "b"], **tiny | given)


def items(n: int = 12) -> list[Item]:
    """Of several sizes."""
    rng = torch.Generator().manual_seed(0)
    return [
        (
            torch.rand(3, 60, 50 + 4 * (i % 4), generator=rng),
            {"boxes": torch.tensor([[5.0, 5, 25, 30 + i]]), "labels": torch.tensor([i % 2])},
        )
        for i in range(n)
    ]


def loader(shuffle: bool = False, n: int = 12) -> DataLoader:
    def collate(batch: list[Item]) -> tuple[Any, ...]:
        return tuple(zip(*batch, strict=True))

    return DataLoader(items(n), 4, shuffle, collate_fn=collate)  # type: ignore[arg-type]


class Own(L.LightningDataModule):
    names = ("a", "b")
    image_size = 96

    def train_dataloader(self) -> DataLoader:
        return loader(shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return loader()


class Counted(Own):
    """With an argument, and the number of its images."""

    def __init__(self, count: int, image_size: int = 64) -> None:
        super().__init__()
        self.count = count
        self.image_size = image_size  # type: ignore[misc]

    def train_dataloader(self) -> DataLoader:
        return loader(shuffle=True, n=self.count)


def test_the_command_line(
    here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments are options, a resume names it again, and typos are answered."""
    own = ["--data", "test_own_data.Counted"]
    more = "--trainer.limit_val_batches 1 --trainer.accelerator cpu --trainer.precision 32-true"
    tiny = [word for word in SMALL if not word.startswith("--data") and word not in ("64", "0")]
    cli.main(["fit", *own, "--data.count", "8", *tiny, *more.split(), "--trainer.max_epochs", "1"])
    cli.main(["fit", *own, "--ckpt_path", "last", "--trainer.max_epochs", "2"])
    with open("runs/fit-1/metrics.csv") as file:
        assert [row.partition(",")[0] for row in file] == ["epoch", "0", "1"]
    cli.main(["validate", *own, "--report.enabled", "false"])
    assert json.loads(Path("runs/validate-1/metrics.json").read_text())["images"] == 12
    for line, told in [
        (["fit", *own], "data.count"),
        (["fit", *own, "--data.cuont", "8"], "did you mean 'data.count'"),
        (["anchors", *own], "--data test_own_data.Counted: anchors"),
        (["fit", "--data", "test_own_data.Countde"], "has no class Countde"),
        (["fit", "--data", "test_own_data.Item"], "data: "),
        (
            ["validate"],
            "config.yaml: data.count is an option",
        ),
    ]:
        capsys.readouterr()
        with pytest.raises(SystemExit):
            cli.main(line)
        assert told in capsys.readouterr().err


def test_the_loader_of_the_docs() -> None:
    text = re.findall("```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)[1]
    names: dict[str, Any] = {"dataset": items()}
    exec(text.partition("trainer =")[0].replace("num_workers=4", "num_workers=0"), names)
    batch = detection_batch(next(iter(names["loader"])), len(names["detector"].names), 32)
    assert batch.images.shape == (12, 3, 64, 64)


def weights(run: str) -> dict[str, torch.Tensor]:
    return torch.load(Path(run) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def test_own_loaders(here: Path, capsys: pytest.CaptureFixture) -> None:
    """Fit, validate and predict; a resume between epochs is exact, though the loader shuffles."""
    whole = {"limit_train_batches": 1.0, "limit_val_batches": 1.0, "max_epochs": 2}
    for run, steps in (("whole", -1), ("part", 3)):
        L.seed_everything(0)
        detector = made()
        trainer = L.Trainer(**options(run=run, **whole) | {"max_steps": steps})
        trainer.fit(detector, loader(shuffle=True), loader())
    assert (detector.batch_size, detector.image_size) == (4, 64)
    told = capsys.readouterr().out
    assert told.count("image size: 64 px, the longer side of the first batch\n") == 2
    resumed = L.Trainer(**options(run="part", **whole))
    resumed.fit(made(), loader(shuffle=True), loader(), ckpt_path="last")
    assert "image size:" not in capsys.readouterr().out
    ours = weights("part")
    theirs = weights("whole")
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())

    trainer.validate(detector, loader(), ckpt_path="best", verbose=False)
    assert "\nall         12 " in capsys.readouterr().out
    detector.evaluation.configure(conf=0.0, max_det=5)
    found: Any = trainer.predict(detector, loader())
    assert sum(map(len, found)) == 12
    assert all(len(each) for batch in found for each in batch)
    image = (items()[1][0] * 255).byte().permute(1, 2, 0).numpy()
    assert max(each.xyxy.max() for batch in found for each in batch) <= 62
    alone: Any = trainer.predict(detector, DataLoader(torch.rand(2, 3, *image.shape[:2]), 2))
    assert len(alone[0]) == 2


def test_an_own_data_module(here: Path) -> None:
    detector = made()
    own = Own()
    L.Trainer(**options()).fit(detector, datamodule=own)
    assert (detector.batch_size, detector.image_size) == (4, 96)
    own.names = ("a", "c")
    with pytest.raises(InputError, match=r"its data have .*'c'"):
        L.Trainer(**options()).fit(made(), datamodule=own)


def test_batches_are_those_of_the_data_module(small_data: Path) -> None:
    """Its images and boxes, given in torchvision's style, make its batch again."""
    data = DetectionData(str(small_data), image_size=64, batch_size=8, workers=0, cache="none")
    data.setup("fit")
    batch: Batch = finish_on_device(next(iter(data.train_dataloader())))
    rows, height, width = batch.targets.numpy(), *batch.images.shape[2:]
    boxes = cxcywhn_to_xyxy(rows[:, 2:], width, height)
    targets = [
        {
            "boxes": torch.from_numpy(boxes[rows[:, 0] == i]),
            "labels": torch.from_numpy(rows[rows[:, 0] == i, 1]).long(),
        }
        for i in range(8)
    ]
    ours = detection_batch((batch.images, targets), 5, 32)
    assert torch.equal(ours.images, batch.images)
    assert len(rows) > 8
    np.testing.assert_allclose(ours.targets, rows, atol=1e-5)


def test_padding_and_boxes() -> None:
    images = [torch.ones(3, 40, 70), torch.zeros(3, 64, 64)]
    targets = [
        {"boxes": [[7, 4, 90, 20], [9, 9, 9, 30]], "labels": [1, 0]},
        {"boxes": [], "labels": []},
    ]
    batch = detection_batch((images, targets), 2, 32)
    assert batch.images.shape == (2, 3, 64, 96)
    assert batch.images[0, :, :40, :70].min() == 1
    assert batch.images[0, :, 40:].unique().tolist() == pytest.approx([114 / 255])
    row = [0, 1, 38.5 / 96, 12 / 64, 63 / 96, 16 / 64]
    np.testing.assert_allclose(batch.targets, [row], atol=1e-4)
    first, second = batch.truths
    assert first is not None and second is not None  # noqa: PT018
    assert (first.height, first.width, len(second.boxes)) == (40, 70, 0)


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        return iter(items())


def test_what_is_wrong_with_own_data(here: Path) -> None:
    (image, target), *_ = items()
    last = {**target, "labels": torch.tensor([2])}
    for given, sentence in (
        (((image,), (last,)), "there is a label 2; labels are 0 to 1, .*background"),
        (
            ((image * 255,), (target,)),
            "images must be .*give image / 255",
        ),
        (
            ((image.byte(),), (target,)),
            "images must be .*give image / 255",
        ),
        (
            ((image[0],), (target,)),
            "images must be 3 x H x W, float in 0..1",
        ),
        ((image[None], torch.zeros(1)), r"a batch must be \(images, targets\)"),
        (image[None], r"a batch must be \(images, targets\)"),
        ((image[None], None), r"a batch must be \(images, targets\)"),
        (((image,), ({**target, "labels": torch.tensor([0, 1])},)), "boxes must be .*shapes"),
        (((image,), ({**target, "boxes": torch.zeros(1, 5)},)), "boxes must be .*shapes"),
        (((image,), ({**target, "labels": ["cat"]},)), "boxes must be .*str"),
    ):
        with pytest.raises(InputError, match=f"^data of your own: {sentence}"):
            detection_batch(given, 2, 32)
    with pytest.raises(InputError, match="have no length; give the Trainer limit_train_batches=N"):
        L.Trainer(**options(limit_train_batches=1.0)).fit(made(), DataLoader(Endless()))


def test_the_best_checkpoint_of_another_run(here: Path) -> None:
    """It stays until this run has one, which need not be better."""
    best = here / "checkpoints/best.ckpt"
    given: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    best.parent.mkdir()
    torch.save({"fitness": 1.0}, best)
    for validated in (0.0, 1.0):
        trainer = L.Trainer(callbacks=[Checkpoints()], limit_val_batches=validated, **given)
        trainer.fit(made(), loader(), loader())
        assert (read_outline(best)["fitness"] == 1.0) is not bool(validated)


def test_lightning_looks_at_the_prediction(here: Path) -> None:
    """Its summary, graph and ONNX file, in the midst of a training, change nothing."""
    detector = made()
    detector.set_image_size(64)
    detector.network.backbone.eval()  # as frozen layers are
    modes = [module.training for module in detector.network.modules()]
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    random = torch.get_rng_state()
    assert ModelSummary(detector).in_sizes[0] == [1, 3, 64, 64]
    assert [module.training for module in detector.network.modules()] == modes
    detector.to_onnx("x.onnx", verbose=False, optimize=False)
    TensorBoardLogger(here, log_graph=True).log_graph(detector)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in detector.state_dict().items())

    images = torch.rand(1, 3, 64, 64)
    session = onnxruntime.InferenceSession("x.onnx")
    expected = detector(images)
    assert expected.shape == (1, 3 * 2 * 2, 7)
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-3, atol=1e-3)
    fused = detector.network.fused()
    torch.testing.assert_close(expected, fused.decode(fused(images)), rtol=1e-3, atol=1e-3)


def test_a_data_module_that_did_not_fit(small_data: Path, here: Path) -> None:
    """What it has validated on is saved, and one that has tested fits from the checkpoint."""
    data = DetectionData(str(small_data), image_size=64, batch_size=4, workers=0)
    detector = made_detector(data.names, levels=[5])
    trainer = L.Trainer(**options())
    trainer.validate(detector, data)
    trainer.save_checkpoint("validated.ckpt")
    trainer = L.Trainer(**options(default_root_dir="trained"))
    trainer.fit(detector, data)
    trainer.save_checkpoint("trained.ckpt")
    text = f"path: {small_data.parent}\ntrain: images/train\nval: images/val\ntest: images/val\n"
    (here / "data.yaml").write_text(f"{text}names: {list(data.names)}\n")
    data = DetectionData("data.yaml", image_size=64, batch_size=4, workers=0)
    again = L.Trainer(**options(max_epochs=2, default_root_dir="again"))
    again.test(detector, data)
    again.fit(detector, data, ckpt_path="trained.ckpt")
    assert again.current_epoch == 2
