"""Tracks on films whose objects are known: MOTA and IDF1 (IoU 0.5, classes ignored) by `trackers`.

    pip install trackers
    python cli.py fit --model.network.size n --trainer.max_epochs 25 --run runs/demo
    python -m benchmarks.tracking runs/demo
    python -m benchmarks.tracking yolov5n.pt --photos coco128/images/val   # labels beside them

Without photos, 12 films of the demo dataset's shapes, which turn, hide one another and bounce off
the edges; with photos, a noisy camera that pans and zooms over 20 of them.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import supervision as sv
from trackers import ByteTrackTracker
from trackers.eval.clear import aggregate_clear_metrics, compute_clear_metrics
from trackers.eval.identity import aggregate_identity_metrics, compute_identity_metrics

from benchmarks.tables import print_header, print_row
from boltbox import Predictor
from boltbox.detector.data.demo import HOLE, NAMES, SHAPES, _background, _colour
from boltbox.detector.data.sample import SourceImage
from boltbox.detector.inference.tracking import Tracker

HEIGHT, WIDTH = 192, 256
Frame = tuple[np.ndarray, np.ndarray, np.ndarray]  # RGB, numbers (n,), boxes (n, 4) xyxy


def demo_film(seed: int, frames: int = 120, objects: int = 7) -> Iterator[Frame]:
    """Shapes that move. An object counts where at least 30 % of it is visible."""
    rng = np.random.default_rng((77, seed))
    background = _background(HEIGHT, WIDTH, rng)
    classes = rng.integers(len(NAMES), size=objects)
    radius = HEIGHT * np.exp(rng.uniform(*np.log((0.18, 0.45)), objects)) / 2
    position = rng.uniform((0, 0), (WIDTH, HEIGHT), (objects, 2))
    pace = rng.uniform(0.5, 5, objects)  # pixels per frame
    heading = rng.uniform(0, 2 * np.pi, objects)
    velocity = pace[:, None] * np.stack((np.cos(heading), np.sin(heading)), 1)
    turn = rng.uniform(-0.03, 0.03, objects)
    phase = rng.uniform(0, 2 * np.pi, objects)
    colours = [_colour(k / len(NAMES), rng) for k in classes]
    blur, noise = rng.uniform(0.3, 0.8), rng.uniform(0, 8)
    for t in range(frames):
        image = background.copy()
        owner = np.full((HEIGHT, WIDTH), -1)
        areas, boxes = [], []
        for i, k in enumerate(classes):
            distances = np.array(SHAPES[NAMES[k]])
            angles = 2 * np.pi * np.arange(len(distances)) / len(distances) + phase[i] + turn[i] * t
            outline = radius[i] * np.stack((np.cos(angles), np.sin(angles)), 1) * distances[:, None]
            contours = [outline, outline * HOLE] if NAMES[k] == "ring" else [outline]
            contours = [(c + position[i]).round().astype(np.int32) for c in contours]
            mask = np.zeros((HEIGHT, WIDTH), np.uint8)
            cv2.fillPoly(mask, contours, 1)
            image[mask > 0] = colours[i]
            owner[mask > 0] = i
            area, *holes = [cv2.contourArea(c) for c in contours]
            areas.append(max(area - sum(holes), 1))
            x, y, w, h = cv2.boundingRect(contours[0])
            boxes.append((max(x, 0), max(y, 0), min(x + w, WIDTH), min(y + h, HEIGHT)))
        visible = np.bincount(owner[owner >= 0], minlength=objects) / areas > 0.3
        image = cv2.GaussianBlur(image, (0, 0), blur) + rng.normal(0, noise, image.shape)
        image = image.clip(0, 255).astype(np.uint8)[..., ::-1].copy()
        yield image, np.flatnonzero(visible), np.array(boxes, float)[visible]
        position += velocity
        for axis, limit in enumerate((WIDTH, HEIGHT)):
            outside = (position[:, axis] < 0) | (position[:, axis] > limit)
            inwards = np.where(position[outside, axis] < 0, 1, -1)
            velocity[outside, axis] = np.abs(velocity[outside, axis]) * inwards


def photo_film(photo: Path, seed: int, frames: int = 60) -> Iterator[Frame]:
    """A camera over a photo with YOLO labels."""
    rng = np.random.default_rng((78, seed))
    image = cv2.imread(str(photo))
    height, width = image.shape[:2]
    labels = np.loadtxt(label_file(photo), ndmin=2)
    centres, sides = labels[:, 1:3] * (width, height), labels[:, 3:5] * (width, height)
    truth = np.hstack((centres - sides / 2, centres + sides / 2))
    phase, pace = rng.uniform(0, 2 * np.pi, 3), rng.uniform(0.5, 1.5, 3)
    for t in range(frames):
        wave = np.sin(pace * t / frames * 2 * np.pi + phase)
        view = np.array((width, height)) * (0.68 + 0.08 * wave[0])
        corner = ((width, height) - view) * (0.5 + 0.5 * wave[1:])
        gain = 480 / view.max()
        size = tuple(np.round(view * gain).astype(int).tolist())
        to_view = np.column_stack((np.eye(2) * gain, -corner * gain))
        frame = cv2.warpAffine(image, to_view, size, flags=cv2.INTER_AREA)
        frame = frame * rng.uniform(0.85, 1.15) + rng.normal(0, 8, frame.shape)
        jpeg = cv2.imencode(".jpg", frame.clip(0, 255), [cv2.IMWRITE_JPEG_QUALITY, 60])[1]
        boxes = (truth - np.tile(corner, 2)) * gain
        inside = boxes.clip(0, np.tile(size, 2))
        area = np.prod(inside[:, 2:] - inside[:, :2], 1)
        seen = (area > 0.3 * np.prod(boxes[:, 2:] - boxes[:, :2], 1)) & (area > 100)
        yield cv2.imdecode(jpeg, 1)[..., ::-1].copy(), np.flatnonzero(seen), inside[seen]


def label_file(photo: Path) -> Path:
    return photo.parents[2] / "labels" / photo.parent.name / f"{photo.stem}.txt"


def ious(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, m) of boxes (n, 4) and (m, 4)."""
    shared = np.minimum(a[:, None, 2:], b[:, 2:]) - np.maximum(a[:, None, :2], b[:, :2])
    overlap = np.prod(shared.clip(0), 2)
    area_a, area_b = (np.prod(boxes[:, 2:] - boxes[:, :2], 1) for boxes in (a, b))
    return overlap / (area_a[:, None] + area_b - overlap)


def package_defaults() -> partial:
    """Rows (n, 6) -> (m, 7), those with a track."""

    def follow(tracker: ByteTrackTracker, rows: np.ndarray) -> np.ndarray:
        order = np.arange(len(rows))
        found = sv.Detections(rows[:, :4], confidence=rows[:, 4], class_id=order)
        found = tracker.update(found)
        if not len(found):
            return np.zeros((0, 7))
        joined = np.column_stack((rows[found.class_id], found.tracker_id))
        return joined[found.tracker_id >= 0]

    return partial(follow, ByteTrackTracker())


def ours(begins: float) -> partial:
    return partial(Tracker(begins).follow, SourceImage("film", "film", 0, fps=30.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights")
    parser.add_argument("--photos", type=Path)
    args = parser.parse_args()
    films = [demo_film(seed) for seed in range(12)]
    if args.photos:
        photos = []
        for photo in sorted(args.photos.glob("*.jpg")):
            if (
                label_file(photo).exists()
                and 3 <= len(label_file(photo).read_text().split("\n")) <= 15
            ):
                photos.append(photo)
        films = [photo_film(photo, seed) for seed, photo in enumerate(photos[:20])]
    predictor = Predictor.load(args.weights, conf=0.1)
    seen = []
    for film in films:
        frames = []
        for image, numbers, boxes in film:
            found = predictor.predict(image)
            rows = np.column_stack((found.xyxy, found.confidence, found.class_id))
            frames.append((numbers, boxes, rows))
        seen.append(frames)
    print_header("", "--conf", "MOTA", "IDF1", "switches")
    variants = [("package's defaults", conf, package_defaults) for conf in (0.25, 0.1)]
    variants += [
        (f"--track_conf {b}", c, partial(ours, b))
        for b in (0.25, 0.4, 0.5, 0.6)
        for c in (0.15, 0.25)
    ]
    for name, conf, make in variants:
        clear, identity = [], []
        for frames in seen:
            follow = make()
            tracks = [follow(rows[rows[:, 4] > conf]) for _, _, rows in frames]
            same = [ious(frame[1], rows[:, :4]) for frame, rows in zip(frames, tracks, strict=True)]
            sides = (
                [frame[0] for frame in frames],
                [rows[:, 6].astype(int) for rows in tracks],
                same,
            )
            clear.append(compute_clear_metrics(*sides))
            identity.append(compute_identity_metrics(*sides))
        total = aggregate_clear_metrics(clear)
        idf1 = aggregate_identity_metrics(identity)["IDF1"]
        print_row(name, conf, f"{total['MOTA']:.3f}", f"{idf1:.3f}", total["IDSW"])


if __name__ == "__main__":
    main()
