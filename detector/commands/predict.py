"""`python cli.py predict`: objects in images, videos and streams, written as files."""

import glob
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from boltbox.detector.checkpoint.reader import newest_checkpoint
from boltbox.detector.checkpoint.runs import check_run, has_checkpoints, locked, results_folder
from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.inputs.sources import Sources
from boltbox.detector.inference.detections import Detections
from boltbox.detector.inference.predictor import Precision, Predictor
from boltbox.detector.report.prediction_files import PredictionFiles
from boltbox.detector.system.errors import InputError
from boltbox.detector.system.ranges import BelowOne, ClosedUnitInterval, NonNegativeInt, PositiveInt
from boltbox.detector.system.rank_zero import print_fact, printable, rank_zero_print
from boltbox.detector.system.signals import exit_on_signals
from boltbox.detector.system.trusted import trusting

LINES = 100  # images: more have a line each on a terminal alone, as soon as they are done


class InOrder:
    """Prints numbered lines in order: an early one waits for those before it."""

    def __init__(self) -> None:
        self.waiting: dict[int, str] = {}
        self.turn = 0

    def add(self, number: int, line: str) -> None:
        self.waiting[number] = line
        while self.turn in self.waiting:
            rank_zero_print(self.waiting.pop(self.turn))
            self.turn += 1

    def finish(self) -> None:
        """Print those that wait for an image that could not be read."""
        for number in sorted(self.waiting):
            rank_zero_print(self.waiting.pop(number))


def predict(
    source: str | None = None,
    ckpt_path: str | None = None,
    run: Path | None = None,
    conf: ClosedUnitInterval = 0.25,
    thresholds: Literal["own"] | None = None,
    iou: ClosedUnitInterval = 0.45,
    max_det: PositiveInt = 1000,
    classes: list[int | str] | None = None,
    names: str | None = None,
    agnostic: bool = False,
    tta: bool = False,
    ensemble: list[str] | None = None,
    image_size: PositiveInt | None = None,
    batch_size: PositiveInt = 16,
    tile_size: PositiveInt | None = None,
    tile_overlap: BelowOne = 0.2,
    frame_step: PositiveInt = 1,
    device: str | None = None,
    precision: Precision = "16-mixed",
    workers: NonNegativeInt = 8,
    images: bool = True,
    labels: bool | Path = True,
    json: bool = False,
    csv: bool = False,
    crops: bool = False,
    confidences: bool = True,
    hide_labels: bool = False,
    hide_confidences: bool = False,
    line_width: PositiveInt | None = None,
    trust_parts: bool = False,
) -> None:
    """Find objects in images, videos and streams.

    NAME below is an image's path in the folder that is given, or in the common folder of all
    images; of a video, the video's with the number of the frame, as in NAME_000012.

    Args:
        source: Image, video, folder, glob pattern, list file (.txt, one path per line), address
            (rtsp://, http://, ...), number of a camera, or `-` for paths from the standard input.
        ckpt_path: last, best (both of the most recent fit, or of --run), a run folder (its best), a
            checkpoint, YOLOv5's published weights (.pt), or an exported file; default: best.
        run: Output folder; default: runs/predict-NUMBER. A folder of fit: where last and best
            are.
        conf: Minimum confidence of a detection.
        thresholds: own: per class, the confidence with the best F1 in the validation of the
            training, instead of conf.
        iou: Overlap above which the less confident of two detections of a class is dropped.
        max_det: Maximum detections per image.
        classes: Only detections of these classes, by name or number.
        names: A data.yaml whose class numbers are written instead of the detector's; only
            detections of its classes, by name: labels to train on (docs/predict.md).
        agnostic: Suppress across classes.
        tta: Predict three times on each image, at several sizes and mirrored (YOLOv5's --augment).
        ensemble: Further files like ckpt_path that predict too; classes are united by name.
        image_size: Longer side of the input in pixels; default: that of the training.
        batch_size: Images per batch.
        tile_size: Predict on larger images whole and in overlapping tiles, whose sides are this
            many pixels of the image file (docs/predict.md); default: no tiles.
        tile_overlap: Minimum share of a tile that neighbours have in common.
        frame_step: Use every N-th frame of a video.
        device: cpu, or the number of a GPU; default: the first GPU, if there is one.
        precision: 16-mixed (float32 without a GPU), 32-true, or 16-true, which halves the weights.
        workers: Maximum processes that read images; 0: none.
        images: Write images/NAME.jpg with drawn boxes, or videos/NAME.mp4.
        labels: Write labels/NAME.txt, one line per detection, best first: class cx cy w h
            confidence, as fractions of the image; or the folder to write NAME.txt into. No label
            file is replaced.
        json: Write predictions.json, COCO's results format.
        csv: Write predictions.csv, one row per detection.
        crops: Write crops/CLASS/NAME_NUMBER.jpg, the pixels within each box.
        confidences: Write confidences into the label files.
        hide_labels: Draw boxes without text.
        hide_confidences: Draw class names without confidences.
        line_width: Width of drawn lines in pixels; default: by image size.
        trust_parts: Import a head that the checkpoint names, whoever wrote it; else only boltbox's.
    """
    if source is None:
        raise InputError(
            "nothing to predict on: give --source with an image, a folder, a video, a stream, ..."
        )
    training = run if run and has_checkpoints(run) else None
    if run and not training:
        _refuse_others(run)
    sources = Sources.find(source)
    with trusting(everything=trust_parts):
        predictor = Predictor.load(
            ckpt_path or newest_checkpoint(training),
            ensemble or (),
            device,
            training,
            thresholds,
            conf=conf,
            iou=iou,
            max_det=max_det,
            agnostic=agnostic,
            classes=classes,
            tta=tta,
            precision=precision,
        )
    print_fact("weights", ", ".join(map(str, predictor.files)))
    if names:
        predictor.rename(DatasetFile.read(names).names)
    inputs = predictor.inputs(image_size, tile_size, tile_overlap)
    if run and images:
        _keep_images(sources, run)
    if isinstance(labels, Path):
        _keep_labels(sources, labels, "--labels")
    elif run and labels and not training:
        _keep_labels(sources, run / "labels", "--run")

    folder = results_folder("predict", run)
    own = folder / "labels" if labels else None
    label_folder = labels if isinstance(labels, Path) else own
    outputs = images, label_folder, json, csv, crops, confidences
    style = not hide_labels, not hide_confidences, line_width
    started = time.perf_counter()
    batches = sources.batches(inputs, batch_size, workers, frame_step)
    with (
        locked(folder, "predict"),
        exit_on_signals(),
        closing(PredictionFiles(folder, predictor.names, *outputs, style)) as files,
        tqdm(total=len(sources.images), unit=" images", disable=None) as bar,
    ):
        lines, film, before = sys.stdout.isatty() or bar.total <= LINES, "", started
        in_order = InOrder()
        try:
            for batch, rows in predictor.predict_batches(batches, batch_size):
                each = 1000 * (time.perf_counter() - before) / len(rows)
                # the tiles of one image have a letterbox each; there is one picture
                for number, picture, box, found in zip(
                    batch.indices,
                    batch.sources or [],
                    batch.letterboxes,
                    rows,
                    strict=batch.windows is None,
                ):
                    assert box is not None
                    files.add(picture, found, box.width, box.height)
                    if not lines and picture.frame is None:
                        continue
                    text = str(Detections.of(found, predictor.names))
                    if picture.frame is not None:
                        if picture.path != film:
                            film, bar.unit = picture.path, " frames"
                            bar.set_description(printable(film), refresh=False)
                            bar.reset(picture.frames)
                        bar.set_postfix_str(text, refresh=False)
                    else:
                        size = f"{box.width}x{box.height}"
                        line = f"{picture.path}: {size}, {text}, {each:.0f} ms"
                        in_order.add(number if bar.total <= LINES else in_order.turn, line)
                bar.update(len(rows))
                before = time.perf_counter()
        except SystemExit:
            rank_zero_print(
                f"stopped; {files.counts.total()} detections so far are kept in {folder}"
            )
            raise
        finally:
            in_order.finish()
    if not files.pictures:
        raise InputError(f"source {source}: none of its files could be read")
    what, seconds = "image" if sources.images else "frame", time.perf_counter() - started
    written_to = [str(f) for f in (folder, labels) if isinstance(f, Path) and f.exists()]
    by_class = [f"{n} {predictor.names[k]}" for k, n in sorted(files.counts.items())]
    detections = counted(files.counts.total(), "detection")
    print_fact(
        "found",
        f"{', '.join(by_class) or 'nothing'} ({detections} in {counted(files.pictures, what)},"
        f" {files.empty} without any)",
    )
    print_fact("results", ", ".join(written_to))
    print_fact("speed", f"{files.pictures / seconds:.1f} {what}s/s")


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "image"), counted(2, "image")
    ('1 image', '2 images')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _refuse_others(run: Path) -> None:
    """As `check_run`, with the option for who wants labels beside images."""
    try:
        check_run(run)
    except InputError as e:
        raise InputError(f"{e}; for label files there, give --labels {run / 'labels'}") from None


def _keep_images(sources: Sources, run: Path) -> None:
    """Raises InputError if the drawn images would replace the source."""
    if sources.any_below(run / "images") or sources.any_below(run / "videos"):
        raise InputError(
            f"--run {run}: the drawn images would replace the source: use --images false, or"
            " another --run"
        )


def _keep_labels(sources: Sources, folder: Path, option: str) -> None:
    """Raises InputError if one of the label files is there: somebody may have corrected it."""
    for number, name in enumerate(sources.names()):
        files = [folder / f"{name}.txt"]
        if number >= len(sources.images):  # a frame of a video has its number in its name
            frames = f"{glob.escape(name)}_{6 * '[0-9]'}*.txt"
            files = [folder / file for file in glob.iglob(frames, root_dir=folder)]
        if old := next(filter(Path.exists, files), None):
            raise InputError(
                f"{option}: {old} exists, and no label file is replaced. Move it, or give another"
                " folder"
            )
