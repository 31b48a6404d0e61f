"""Samples are a function of seed, epoch and index, in whatever order or process; the order of the
steps; transforms of the user's own, as docs/augmentation.md shows them."""

import dataclasses
import importlib
import pickle
import signal
import sys
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from forked import forks
from made_datasets import read_yolo
from made_labels import labels_of
from made_runs import code_of, column, read
from made_samples import SIZE, assert_same, noise_set, random_sample

from benchmarks.resume_fuzz import command, difference, start
from boltbox.detector.data.cache.images import ResizedImages
from boltbox.detector.data.sample import LetterboxInfo, Sample
from boltbox.detector.data.sampler import Key
from boltbox.detector.data.transforms.augment import STEP_NAMES, Augment, TrainSamples
from boltbox.detector.data.transforms.colour import Albumentations, RandomFlip, RandomHSV
from boltbox.detector.data.transforms.letterbox import Letterbox
from boltbox.detector.data.transforms.mixing import CopyPaste, MixUp, Mosaic
from boltbox.detector.data.transforms.perspective import RandomPerspective
from boltbox.detector.system.errors import InputError

EVERYTHING = Augment(
    degrees=10, shear=3, perspective=0.0005, flipud=0.3, mosaic=0.6, mixup=0.4, copy_paste=0.5,
    albumentations=[{"RandomBrightnessContrast": {"p": 0.5}}, {"HorizontalFlip": {"p": 0.3}}],
)  # fmt: skip
KEYS = [Key(k % 2, k // 2 % 8, k // 16) for k in range(32)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return noise_set(tmp_path_factory.mktemp("set"))


def train_samples(dataset, augment=EVERYTHING, seed=5, rect=False):
    shapes = np.full((8, 2), SIZE) if rect else None
    return TrainSamples(ResizedImages(dataset, SIZE), augment.steps(SIZE, shapes), seed)


def test_samples_depend_on_key_and_seed_alone(dataset):
    samples = train_samples(dataset)
    first = {key: samples[key] for key in KEYS}
    for key, s in first.items():
        assert (s.image.shape, s.image.dtype, s.index) == ((SIZE, SIZE, 3), np.uint8, key.index)
        assert (s.boxes.dtype, s.classes.dtype) == (np.float32, np.int64)
        assert len(s.boxes) == len(s.classes) == len(s.polygons)
        assert s.boxes.min(initial=0) >= -1e-4
        assert s.boxes.max(initial=0) <= SIZE + 1e-4
        assert (s.boxes[:, 2:] > s.boxes[:, :2]).all()
    assert sum(map(len, column(first.values(), "boxes"))) > 60

    fresh = train_samples(dataset)
    for key in KEYS[::-3] + KEYS[:4] + KEYS[3:4]:
        assert_same(fresh[key], first[key])
    other = train_samples(dataset, seed=6)
    images = [s.image.tobytes() for s in (*first.values(), *map(other.__getitem__, KEYS[:8]))]
    assert len(set(images)) == len(images)
    again = read_yolo(Path(dataset.files[0]).parent, dataset.names, Path())
    assert np.array_equal(dataset.labels.boxes, again.labels.boxes), "labels are not touched"
    assert np.array_equal(dataset.labels.points, again.labels.points)


LAZY = "Mosaic CopyPaste RandomPerspective MixUp"
PIXELS = f"render {LAZY}"
RECTANGLES = "render Letterbox CopyPaste RandomPerspective"


@pytest.mark.parametrize(
    ("augment", "options", "steps"),
    [
        (Augment(), {}, LAZY),
        (Augment(albumentations=[{"Blur": {}}]), {}, LAZY + " Albumentations"),
        (Augment(), {"lazy": False}, PIXELS),
        (Augment(degrees=1), {}, PIXELS),
        (Augment(shear=1), {}, PIXELS),
        (Augment(perspective=0.001), {}, PIXELS),
        (Augment(copy_paste=0.1), {}, PIXELS),
        (Augment(), {"shapes": np.array([[64, 64]])}, RECTANGLES),
    ],
)
def test_steps_in_order(augment, options, steps):
    names = [
        getattr(step, "__name__", type(step).__name__) for step in augment.steps(64, **options)
    ]
    assert " ".join(names) == steps + " RandomHSV RandomFlip RandomFlip"


@dataclasses.dataclass
class Weighed(Sample):
    """A sample with a field of its own."""

    weight: float = 1.0


@pytest.mark.parametrize(
    ("step", "ended"),
    [
        (Letterbox(np.full((8, 2), 64)), []),
        (CopyPaste(1.0), []),
        (RandomHSV(0.1, 0.5, 0.5), []),
        (RandomFlip(1, 1.0), ["letterbox"]),
        (Albumentations([{"Blur": {"p": 1.0}}]), ["letterbox", "polygons"]),
        (RandomPerspective(64), ["letterbox", "polygons"]),
        (Mosaic(64, 1.0), ["letterbox", "truth"]),
        (MixUp(1.0), ["letterbox", "truth"]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_steps_keep_every_field(step, ended):
    """Also one that they do not know; all but those that the step empties."""
    truth = labels_of([], [], 9, 9)
    sample = Weighed(**vars(random_sample(3, 64, 64)) | {"truth": truth, "weight": 0.25})
    made = step(sample, np.random.default_rng(0), lambda: random_sample(4, 64, 64))
    assert (made.index, made.weight, type(made)) == (3, 0.25, Weighed)
    fields = {"letterbox": made.letterbox, "polygons": any(made.polygons), "truth": made.truth}
    assert [name for name, value in fields.items() if not value] == ended
    assert sample.letterbox == LetterboxInfo(64, 64)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A folder with the page's code as my_transforms.py, which can be imported, and its options as
    own.yaml."""
    folder = tmp_path_factory.mktemp("own")
    for language, name in (("python", "my_transforms.py"), ("yaml", "own.yaml")):
        (block,) = code_of("augmentation", language)
        (folder / name).write_text(block)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
        sys.modules.pop("my_transforms", None)


@pytest.fixture
def mine(page):
    return importlib.import_module("my_transforms")


def test_own_transforms_train_and_resume(page, small_data, tmp_path):
    """Killed with SIGKILL and resumed by other workers, it ends with the weights of a run that was
    never interrupted; config.yaml of the run brings the transforms."""
    more = "--trainer.max_epochs 2 --trainer.limit_train_batches 3 --trainer.limit_val_batches 0"
    short = more.split() + ["--autoanchor.enabled", "false"]
    own = ["--config", str(page / "own.yaml")] + short
    run = tmp_path / "run"
    whole = command(small_data, tmp_path / "whole", 0, 1, within_epochs=False)
    cut = command(small_data, run, workers=2, ranks=1)
    with forks():
        assert start(whole + own) == 0
        assert start(cut + own, "batch:4") == -signal.SIGKILL
        assert start(cut + short + ["--ckpt_path", "last", "--trust_parts", "true"]) == 0
    assert not difference(run, tmp_path / "whole")
    written = read(run / "config.yaml")["data"]["augment"]["after"]
    turn = {"class_path": "my_transforms.QuarterTurn", "init_args": {"p": 0.5}}
    assert written["mosaic"] == [turn]


@pytest.mark.parametrize("place", STEP_NAMES)
def test_own_transform_after_every_step(place, dataset, mine):
    """It sees pixels, changes nothing but what it returns, and travels to spawned workers."""
    seen = []

    def look(sample, rng, partner):
        seen.append(sample.image.shape)
        return sample

    key = Key(1, 3, 0)
    images = ResizedImages(dataset, 64)
    plain = Augment().steps(64, lazy=place not in STEP_NAMES[:3])
    looking = train_samples(dataset, Augment(after={place: [look]}))
    assert_same(TrainSamples(images, plain, 5)[key], looking[key])
    assert {shape[2:] for shape in seen} == {(3,)}
    own = [mine.Invert(0.5)]
    if place != "resize":  # after it images have one size
        own.append(mine.Halves(1))
    samples = train_samples(dataset, Augment(after={place: own}))
    assert_same(pickle.loads(pickle.dumps(samples))[key], samples[key])
    assert not np.array_equal(samples[key].image, looking[key].image)


def test_the_example_moves_boxes_with_pixels(mine):
    rng = np.random.default_rng(0)
    image = np.zeros((40, 60, 3), np.uint8)
    image[5:15, 10:40] = 255
    box = np.array([[10, 5, 40, 15]], np.float32)
    sample = Sample(image, box, np.array([2]), [[box.reshape(2, 2)]])
    turned = mine.QuarterTurn(1)(sample, rng, lambda: pytest.fail("no partner"))
    x, y, w, h = cv2.boundingRect(turned.image[..., 0])
    assert turned.boxes.tolist() == [[x, y, x + w, y + h]]
    assert turned.polygons[0][0].tolist() == [[5, 50], [15, 20]]


BAD = {
    "no call": 5,
    "two arguments": lambda sample, rng: sample,
    "nothing": lambda sample, rng, partner: None,
    "no array": lambda sample, rng, partner: sample.replace(classes=[1, 2]),
    "floats": lambda sample, rng, partner: sample.replace(image=sample.image / 255),
    "grey": lambda sample, rng, partner: sample.replace(image=sample.image[..., :1]),
    "another size": lambda sample, rng, partner: sample.replace(image=sample.image[:32]),
    "boxes without classes": lambda s, rng, partner: s.replace(classes=s.classes[:0]),
    "three numbers": lambda s, rng, partner: s.replace(boxes=s.boxes[:, :3]),
    "not a number": lambda sample, rng, partner: sample.replace(boxes=sample.boxes * np.nan),
    "class names": lambda sample, rng, partner: sample.replace(classes=sample.classes.astype(str)),
    "one polygon": lambda sample, rng, partner: sample.replace(polygons=[[np.eye(2)]]),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_named(name, dataset):
    with pytest.raises(InputError, match=r"^data\.augment\.after\.hsv: "):
        train_samples(dataset, Augment(mosaic=0, scale=0, after={"hsv": [BAD[name]]}))[KEYS[2]]


@pytest.mark.parametrize("number", [-2, 3])
def test_a_class_without_a_name_is_refused(number, dataset):
    def change(sample, rng, partner):
        return sample.replace(classes=np.full(len(sample.classes), number))

    with pytest.raises(
        InputError, match=rf"/1\.png: its sample has the class {number} .* 0 to 2\."
    ):
        train_samples(dataset, Augment(mosaic=0, scale=0, after={"hsv": [change]}))[KEYS[2]]


def test_a_transform_may_change_the_fields_of_its_sample(dataset):
    def clear(sample, rng, partner):
        sample.boxes = sample.boxes[:0]
        sample.classes = sample.classes[:0]
        return sample

    assert not train_samples(dataset, Augment(after={"hsv": [clear]}))[KEYS[2]].polygons


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("{mosiac: [my_transforms.Invert]}", "'mosaic'"),
        ("{mosaic: [my_transforms.Invrt]}", "'Invrt'"),
        ("{mosaic: [boltbox.detector.data.sample.Sample]}", "sample.Sample"),
        ("{mosaic: [{class_path: my_transforms.Invert, init_args: {q: 1}}]}", "'q'"),
    ],
)
def test_options_that_name_no_transform(given, named, page, small_data, refused):
    line = ["fit", "--data.dataset", str(small_data), "--data.augment.after", given]
    assert named in refused(line)


def faded(sample, rng, partner, p):
    return sample


def test_a_script_writes_them_down(mine):
    """config.yaml of a training that a script has started."""
    both = [mine.Invert(0.3), partial(faded, p=0.3)]
    options = Augment(after={"hsv": both}).to_dict()
    invert = {"class_path": "my_transforms.Invert", "init_args": {"p": 0.3}}
    assert options["after"] == {"hsv": [invert, invert | {"class_path": f"{__name__}.faded"}]}
    assert options["mosaic"] == 1.0
    with pytest.raises(InputError, match="by name"):
        Augment(after={"hsv": [partial(faded, 0.3)]}).to_dict()
