"""`python cli.py predict`: objects in images, videos and streams, written as files."""

import glob
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from boltbox.detector.checkpoint.reader import newest_checkpoint
from boltbox.detector.checkpoint.runs import check_run, has_checkpoints, locked, results_folder
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.inputs.sources import Sources
from boltbox.detector.data.sample import SourceImage
from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.predictor import Precision, Predictor
from boltbox.detector.inference.tracking import Tracker
from boltbox.detector.report.labelling_tools import BoxedImage, write_boxes
from boltbox.detector.report.prediction_files import Output, PredictionFiles
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import ClosedUnitInterval, NonNegativeInt, PositiveInt
from boltbox.detector.system.rank_zero import amount, print_fact, printable, rank_zero_print
from boltbox.detector.system.signals import exit_on_signals
from boltbox.detector.system.trusted import trusting

LINES = 100  # images: for more, a line per image is only for a terminal


@dataclass(frozen=True)
class Input:
    """What to predict on, and how.

    Args:
        source: Image, video, folder, glob pattern, list file (.txt, one path per line), address
            (rtsp://, http://, ...), or number of a camera; a file or folder of this name comes
            first.
        ckpt_path: last, best (both of the most recent fit, or of --run), a run folder (its best), a
            checkpoint, YOLOv5's published weights (.pt), or an exported file; default: best.
        ensemble: Further files like ckpt_path that predict too; classes are merged by name.
        tta: Predict three times on each image, at several sizes and mirrored (YOLOv5's --augment).
        image_size: Longer side of the input in pixels; default: that of the training.
        batch_size: Images per batch.
        tile_size: Predict on larger images whole and in overlapping tiles, whose sides are this
            many pixels of the image file (docs/predict.md); 0: no tiles; default: as in the
            training.
        frame_step: Use every N-th frame of a video.
        device: cpu, or the number of a GPU; default: the first GPU, if there is one.
        precision: 16-mixed (float32 without a GPU), 32-true, or 16-true, which halves the weights.
        workers: Maximum processes that read images; 0: none.
        trust_parts: Import a head that the checkpoint names, whoever wrote it; else only boltbox's.
    """

    source: str | None = None
    ckpt_path: str | None = None
    ensemble: list[str] | None = None
    tta: bool = False
    image_size: PositiveInt | None = None
    batch_size: PositiveInt = 16
    tile_size: NonNegativeInt | None = None
    frame_step: PositiveInt = 1
    device: str | None = None
    precision: Precision = "16-mixed"
    workers: NonNegativeInt = 8
    trust_parts: bool = False


@dataclass(frozen=True)
class Filter:
    """Which detections count.

    Args:
        conf: Minimum confidence of a detection.
        thresholds: own: per class, the confidence with the best F1 in the validation of the
            training, instead of conf.
        iou: Overlap above which the less confident of two detections of a class is dropped.
        max_det: Maximum detections per image.
        classes: Only detections of these classes, by name or number.
        names: A data.yaml whose class numbers are written instead of the detector's; only
            detections of its classes, by name: labels to train on (docs/classes.md).
        agnostic: Suppress across classes.
        track: bytetrack: number the objects of each video, and leave out detections that belong to
            none (docs/predict.md).
        track_conf: Minimum confidence of a detection that begins a track; down to conf, detections
            continue one.
    """

    conf: ClosedUnitInterval = 0.25
    thresholds: Literal["own"] | None = None
    iou: ClosedUnitInterval = 0.45
    max_det: PositiveInt = 1000
    classes: list[int | str] | None = None
    names: str | None = None
    agnostic: bool = False
    track: Literal["bytetrack"] | None = None
    track_conf: ClosedUnitInterval = 0.5


def check_outputs(outputs: Output, training: Path | None, sources: Sources) -> None:
    """Raises InputError if files of the user would be replaced; training: the folder `run`, if it
    is that of a fit."""
    run = outputs.run
    drawn = [run / "images", run / "videos"] if run and outputs.images else []
    if any(sources.any_below(folder) for folder in drawn):
        raise InputError(
            f"--run {run}: the drawn images would replace the source. Use --images false, or"
            " another --run"
        )
    if isinstance(outputs.labels, Path):
        _check_labels(sources, outputs.labels, "--labels")
    elif run and outputs.labels and not training:
        _check_labels(sources, run / "labels", "--run")


class Progress:
    """A progress bar, and a line per image.

    Args:
        bar: Counts images, or frames of a video.
    """

    def __init__(self, bar: tqdm) -> None:
        self.bar = bar
        self.has_lines = sys.stdout.isatty() or bar.total <= LINES
        self.video = ""

    def show(self, image: SourceImage, objects: str, about: str) -> None:
        """Show what was found in an image or a frame; about: size and time of an image."""
        if image.frame is None:
            if self.has_lines:
                rank_zero_print(f"{image.path}: {about}")
            return
        if image.path != self.video:
            self.video = image.path
            self.bar.unit = " frames"
            self.bar.set_description(printable(image.path), refresh=False)
            self.bar.reset(image.frames)
        self.bar.set_postfix_str(objects, refresh=False)


def predict(inputs: Input, filters: Filter, outputs: Output) -> None:
    """Find objects in images, videos and streams.

    NAME in the options is an image's path in the source folder, or in the common folder of all
    images; of a video, the video's with the number of the frame, as in NAME_000012.
    """
    if inputs.source is None:
        raise InputError("no source. Give --source with an image, a folder, a video, a stream, ...")
    run = outputs.run
    training = run if run and has_checkpoints(run) else None
    if run and not training:
        check_run(run)
    sources = Sources.find(inputs.source)
    if filters.track and sources.images:
        raise InputError(
            f"track: {sources.images[0]} is an image, and tracks go through videos. Give --source"
            " with videos or a stream"
        )
    if outputs.export and not sources.images:
        raise InputError(
            f"export {outputs.export}: pre-labels are of images, and the source has none. Give"
            " --source with images, or drop --export"
        )
    tracker = Tracker(filters.track_conf) if filters.track else None
    predictor = load_predictor(inputs, filters, training)
    print_fact("weights", ", ".join(map(str, predictor.files)))
    if predictor.tiles and inputs.tile_size is None:
        print_fact("tiles", f"{predictor.tiles} (as trained; --tile_size 0: none)")
    check_outputs(outputs, training, sources)
    folder = results_folder("predict", run)
    batches = sources.batches(
        predictor.inputs(inputs.image_size, inputs.tile_size),
        inputs.batch_size,
        inputs.workers,
        inputs.frame_step,
    )
    boxed = []
    started = before = time.perf_counter()
    with (
        locked(folder, "predict"),
        exit_on_signals(),
        closing(PredictionFiles(folder, predictor.names, outputs, tracker is not None)) as files,
        tqdm(total=len(sources.images), unit=" images", disable=None) as bar,
    ):
        progress = Progress(bar)
        try:
            for batch, rows in predictor.predict_batches(batches, inputs.batch_size):
                assert batch.sources is not None
                milliseconds = 1000 * (time.perf_counter() - before) / len(rows)
                # the tiles of one image have a letterbox each, and one source
                for i, image in enumerate(batch.sources):
                    box = batch.letterboxes[i]
                    assert box is not None
                    if batch.pixels is not None:
                        image = image._replace(pixels=batch.pixels.numpy())
                    if tracker:
                        rows[i] = tracker.follow(image, rows[i])
                    if outputs.export and image.frame is None:
                        found = rows[i].tolist()
                        boxed.append(BoxedImage(image.path, box.width, box.height, found))
                    files.add(image, rows[i], box.width, box.height)
                    objects = str(Detections.of(rows[i], predictor.names))
                    about = f"{box.width}x{box.height}, {objects}, {milliseconds:.0f} ms"
                    progress.show(image, objects, about)
                bar.update(len(rows))
                before = time.perf_counter()
        except (SystemExit, InputError):
            if files.pictures:
                found_so_far = f"{files.counts.total()} detections so far"
                rank_zero_print(f"stopped: {found_so_far} are in {folder}")
            raise
    if not files.pictures:
        raise InputError(f"source {inputs.source}: none of its files could be read")
    if outputs.export:
        write_boxes(outputs.export, boxed, predictor.names, folder)
    noun = "image" if sources.images else "frame"
    print_results(files, noun, time.perf_counter() - started)


def load_predictor(inputs: Input, filters: Filter, training: Path | None) -> Predictor:
    """The Predictor of the options; `training` is the folder of last and best."""
    path = inputs.ckpt_path
    if not path:
        path = newest_checkpoint(training)
    with trusting(everything=inputs.trust_parts):
        predictor = Predictor.load(
            path,
            inputs.ensemble or (),
            inputs.device,
            training,
            filters.thresholds,
            conf=filters.conf,
            iou=filters.iou,
            max_det=filters.max_det,
            agnostic=filters.agnostic,
            classes=filters.classes,
            tta=inputs.tta,
            precision=inputs.precision,
        )
    if filters.names:
        predictor.rename(DatasetFile.read(filters.names).names)
    return predictor


def print_results(files: PredictionFiles, noun: str, seconds: float) -> None:
    """Print what was found, where it was written, and how fast."""
    objects = [f"{number} {files.names[k]}" for k, number in sorted(files.counts.items())]
    if not objects:
        objects = ["nothing"]
    detections = amount(files.counts.total(), "detection")
    images = amount(files.pictures, noun)
    text = f"{', '.join(objects)} ({detections} in {images}, {files.empty} without any)"
    print_fact("found", text)
    folders = [files.folder]
    if files.labels and not files.labels.is_relative_to(files.folder):
        folders.append(files.labels)
    written = [str(folder) for folder in folders if folder.exists()]
    print_fact("results", ", ".join(written) if written else "none written")
    print_fact("speed", f"{files.pictures / seconds:.1f} {noun}s/s")


def _check_labels(sources: Sources, folder: Path, option: str) -> None:
    """Raises InputError if one of the label files exists: somebody may have corrected it."""
    for number, name in enumerate(sources.names()):
        pattern = f"{glob.escape(name)}.txt"
        if number >= len(sources.images):  # a frame of a video has its number in its name
            pattern = f"{glob.escape(name)}_{6 * '[0-9]'}*.txt"
        for file in glob.iglob(pattern, root_dir=folder):
            raise InputError(
                f"{option}: {folder / file} exists, and no label file is replaced. Move it, or give"
                " another folder"
            )
