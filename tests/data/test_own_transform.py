"""Transforms of the user's own, as docs/augmentation.md shows them: they train, repeat, resume;
mistakes are named."""

import dataclasses
import importlib
import pickle
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from forked import forks
from made_labels import labels_of
from made_samples import noise, noise_set, random_sample

import cli
from benchmarks.resume_fuzz import command, difference, start
from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.datamodule import DetectionData
from boltbox.detector.data.sample import LetterboxInfo, Sample
from boltbox.detector.data.sampler import Key
from boltbox.detector.data.transforms.augment import PLACES, Augment, TrainSamples, Transform
from boltbox.detector.data.transforms.colour import Albumentations, RandomFlip, RandomHSV
from boltbox.detector.data.transforms.letterbox import Letterbox
from boltbox.detector.data.transforms.mixing import CopyPaste, MixUp, Mosaic
from boltbox.detector.data.transforms.perspective import RandomPerspective
from boltbox.detector.system.errors import InputError

PAGE = Path(cli.__file__).parent / "docs/augmentation.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the page's code as my_transforms.py, which can be imported, and its options as
    own.yaml."""
    folder = tmp_path_factory.mktemp("own")
    text = PAGE.read_text()
    for language, name in (("python", "my_transforms.py"), ("yaml", "own.yaml")):
        (block,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        (folder / name).write_text(block)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
        sys.modules.pop("my_transforms", None)


@pytest.fixture
def mine(page: Path) -> Any:
    return importlib.import_module("my_transforms")


def test_it_trains_and_resumes(page: Path, small_data: Path, tmp_path: Path) -> None:
    """Killed with SIGKILL and resumed by other workers, it ends with the weights of a run that was
    never interrupted."""
    short = ["--trainer.max_epochs", "2", "--autoanchor.enabled", "false"]
    short += ["--trainer.limit_train_batches", "3", "--trainer.limit_val_batches", "0"]
    own = ["--config", str(page / "own.yaml"), *short]
    reference = tmp_path / "reference"
    run = tmp_path / "run"
    with forks():
        assert start([*command(small_data, reference, 0, 1, within_epochs=False), *own]) == 0
        assert (
            start([*command(small_data, run, workers=2, ranks=1), *own], "batch:4")
            == -signal.SIGKILL
        )
        resumed = [
            *command(small_data, run, workers=2, ranks=1),
            *short,
            "--ckpt_path",
            "last",
            "--trust_parts",
            "true",
        ]
        assert start(resumed) == 0, "config.yaml of the run brings the transforms"
    assert not difference(run, reference)
    written = yaml.safe_load((run / "config.yaml").read_text())["data"]["augment"]["after"]
    assert written["mosaic"] == [
        {"class_path": "my_transforms.QuarterTurn", "init_args": {"p": 0.5}}
    ]


def loaded(data_yaml: Path, workers: int, **options: Any) -> tuple[list[Any], list[Any]]:
    """Images and targets of the first two training batches and of the first validation batch."""
    data = DetectionData(str(data_yaml), image_size=64, batch_size=8, workers=workers, **options)
    data.setup("fit")
    training = [
        (b.images.tolist(), b.targets.tolist())
        for b, _ in zip(data.train_dataloader(), range(2), strict=False)
    ]
    return training, [
        (b.images.tolist(), b.indices)
        for b, _ in zip(data.val_dataloader(), range(1), strict=False)
    ]


@pytest.mark.parametrize("options", [{}, {"cache": "ram"}, {"rect": True}], ids=str)
def test_batches_do_not_depend_on_workers(
    options: dict[str, Any], small_data: Path, mine: Any
) -> None:
    own = {
        "mosaic": [mine.QuarterTurn()],
        "perspective": [mine.QuarterTurn()],
        "mixup": [mine.Halves(0.7)],
    }
    # where images have shapes of their own, which these do not fit
    rect = options.get("rect", False)
    augment = Augment(mixup=0.5, after={"resize": [mine.Invert(0.5)], **({} if rect else own)})
    one, two = (loaded(small_data, workers, augment=augment, **options) for workers in (0, 2))
    plain = loaded(small_data, 0, augment=Augment(mixup=0.5), **options)
    assert one == two
    assert one[0] != plain[0]
    assert one[1] == plain[1], "validation has no augmentation"


def test_after_every_step_and_over_a_pickle(tmp_path: Path, mine: Any) -> None:
    """Wherever they stand they see pixels, move the sample's random numbers on by themselves, and
    travel to spawned workers."""
    images = ResizedImages(noise_set(tmp_path), 64)
    key = Key(1, 3, 0)
    for place in PLACES:
        seen: list[tuple[int, ...]] = []

        def look(
            sample: Sample,
            rng: np.random.Generator,
            partner: Callable[[], Sample],
            seen: Any = seen,
        ) -> Sample:
            seen.append(sample.image.shape)
            return sample

        before = TrainSamples(images, Augment().steps(64, lazy=place not in PLACES[:3]), 5)[key]
        after = TrainSamples(images, Augment(after={place: [look]}).steps(64), 5)[key]
        assert np.array_equal(before.image, after.image)
        assert np.array_equal(before.boxes, after.boxes)
        assert {shape[2] for shape in seen} == {3}
        # where images have one size
        own = [mine.Invert(0.5), *([mine.Halves(1)] if place != "resize" else [])]
        samples = TrainSamples(images, Augment(after={place: own}).steps(64), 5)
        again = pickle.loads(pickle.dumps(samples))
        assert np.array_equal(samples[key].image, again[key].image)
        assert np.array_equal(samples[key].boxes, again[key].boxes)


def test_the_examples_move_boxes_with_pixels(mine: Any) -> None:
    rng = np.random.default_rng(0)

    def no_partner() -> Any:
        pytest.fail("no partner is asked for")

    image = np.zeros((40, 60, 3), np.uint8)
    image[5:15, 10:40] = 255
    sample = Sample(
        image,
        np.array([[10, 5, 40, 15]], np.float32),
        np.array([2]),
        [[np.array([[10, 5], [40, 15]], np.float32)]],
    )
    turned = mine.QuarterTurn(1)(sample, rng, no_partner)
    x, y, w, h = cv2.boundingRect(turned.image[..., 0])
    assert turned.boxes.tolist() == [[x, y, x + w, y + h]]
    assert turned.polygons[0][0].tolist() == [[5, 50], [15, 20]]

    other = Sample(
        noise(40, 60),
        np.array([[20, 0, 50, 40], [0, 0, 20, 20], [25, 0, 31, 40]], np.float32),
        np.array([3, 4, 5]),
    )
    mixed = mine.Halves(1)(sample, rng, lambda: other)
    assert mixed.boxes.tolist() == [[10, 5, 30, 15], [30, 0, 50, 40]], (
        "cut at the middle; 1 of 6 pixels is too little"
    )
    assert mixed.classes.tolist() == [2, 3]
    assert np.array_equal(mixed.image[:, 30:], other.image[:, 30:])
    assert np.array_equal(mixed.image[:, :30], sample.image[:, :30])


@dataclasses.dataclass
class Weighed(Sample):
    """A sample with a field of its own."""

    weight: float = 1.0


def full(image: np.ndarray) -> Weighed:
    """A sample whose every field has a value of its own."""
    made = random_sample(3, *image.shape[:2])
    boxes = made.boxes
    classes = made.classes
    polygons = made.polygons
    truth = labels_of(np.zeros((0, 4)), np.zeros(0), 9, 9)
    return Weighed(
        image,
        boxes,
        classes,
        polygons,
        LetterboxInfo(9, 9),
        7,
        truth,
        0.25,
    )


@pytest.mark.parametrize(
    ("step", "ended"),
    [
        (Letterbox(np.full((8, 2), 64)), set()),
        (CopyPaste(1.0), set()),
        (RandomHSV(), set()),
        (RandomFlip(1, 1.0), {"letterbox"}),
        (Albumentations([{"Blur": {"p": 1.0}}]), {"letterbox", "polygons"}),
        (RandomPerspective(64), {"letterbox", "polygons"}),
        (Mosaic(64, 1.0), {"letterbox", "truth"}),
        (MixUp(1.0), {"letterbox", "truth"}),
    ],
    ids=lambda x: type(x).__name__,
)
def test_steps_keep_every_field(step: Transform, ended: set[str]) -> None:
    """Also one that they do not know. `ended`: fields that the step empties, each for a reason that
    it names."""
    other = Sample(noise(64, 64, 1), np.array([[4, 4, 40, 40]], np.float32), np.array([1]), index=2)
    sample = full(noise(64, 64))
    made = step(sample, np.random.default_rng(0), lambda: other)
    assert isinstance(made, Weighed)
    moved = {"image", "boxes", "classes", "polygons", "letterbox"}
    for field in dataclasses.fields(Weighed):
        if field.name in ended:
            assert not getattr(made, field.name)
        elif field.name not in moved:
            assert getattr(made, field.name) is getattr(sample, field.name)
    assert made.letterbox is not None or "letterbox" in ended
    assert len(made.boxes) == len(made.classes)
    assert len(made.boxes) > 0


def test_replace() -> None:
    sample = full(noise(8, 8))
    changed = sample.replace(index=4)
    assert (changed.index, sample.index, changed.weight, type(changed)) == (4, 7, 0.25, Weighed)
    assert changed.image is sample.image
    with pytest.raises(TypeError, match="colour"):
        sample.replace(colour=1)


BAD: dict[str, Any] = {
    "no call": 5,
    "two arguments": lambda sample, rng: sample,
    "nothing": lambda sample, rng, partner: None,
    "floats": lambda sample, rng, partner: sample.replace(image=sample.image / 255),
    "another size": lambda sample, rng, partner: sample.replace(image=sample.image[:32]),
    "boxes without classes": lambda s, rng, partner: s.replace(classes=s.classes[:0]),
    "not a number": lambda sample, rng, partner: sample.replace(boxes=sample.boxes * np.nan),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.augment\.after\.hsv: .*(is no|must return)"):
        TrainSamples(
            ResizedImages(noise_set(tmp_path), 64),
            Augment(mosaic=0, after={"hsv": [BAD[name]]}).steps(64),
            0,
        )[Key(0, 1, 0)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{mosiac: [my_transforms.Invert]}", "did you mean 'mosaic'?"),
        ("{mosaic: [my_transforms.Invrt]}", "module 'my_transforms' has no attribute 'Invrt'"),
        ("{mosaic: [nowhere.Invert]}", "No module named 'nowhere'"),
        ("{mosaic: [boltbox.detector.data.sample.Sample]}", "Expected 'boltbox.detector.data.sample.Sample' to be a class that instantiates into callable"),
        ("{mosaic: [{class_path: my_transforms.Invert, init_args: {q: 1}}]}", "data.augment.after: there is no option 'q'; choose from p"),
        ("{mosaic: [{class_path: my_transforms.Invert, init_args: {p: often}}]}", "p is often"),
        ("{mosaic: my_transforms.Invert}", "it must be dict[str, list[Callable]]"),
    ],
)  # fmt: skip
def test_options_that_name_no_transform(
    given: str,
    told: str,
    page: Path,
    here: Path,
    small_data: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["fit", "--data.dataset", str(small_data), "--data.augment.after", given])
    assert told in capsys.readouterr().err


def test_a_script_writes_them_down(mine: Any) -> None:
    """config.yaml of a training that a script has started."""
    options = Augment(after={"hsv": [mine.Invert(0.3)]}).to_dict()
    assert options["after"] == {
        "hsv": [{"class_path": "my_transforms.Invert", "init_args": {"p": 0.3}}]
    }
    assert options["mosaic"] == 1.0
