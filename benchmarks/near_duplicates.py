"""How often the doctor calls documents alike that are not, and whether it finds copies.

    python -m benchmarks.near_duplicates FOLDER ...

Draws receipts of one layout, each with text of its own: scanned, and photographed on one dark
table; and pages of print. FOLDER: further images. For each set: how many pictures the first look
alone calls alike, how many both looks do, and of copies of 20 pictures (another size, JPEG quality,
brightness, a margin cut off) how many are found.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from boltbox.detector.commands.doctor.near_duplicates import SIDE, alike, is_paper, near_duplicates
from boltbox.detector.commands.doctor.picture import look_at

LETTERS = list("abcdefghijklmnop  ")
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "half": lambda image: cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA),
    "JPEG quality 50": lambda image: cv2.imdecode(
        cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 50])[1], 0
    ),
    "brighter": lambda image: cv2.convertScaleAbs(image, alpha=1.1, beta=8),
    "without 1 %": lambda image: image[image.shape[0] // 100 :, image.shape[1] // 100 :],
}


def receipt(seed: int, lines: int) -> np.ndarray:
    """(900, 500) grey: head and foot of the shop, lines of text with a price."""
    rng = np.random.default_rng(seed)
    paper = Image.new("L", (500, 900), 250)
    pen, step = ImageDraw.Draw(paper), 730 / lines
    font = ImageFont.load_default(int(step * 0.75))
    pen.rectangle((0, 0, 500, 100), fill=20)
    pen.rectangle((20, 850, 480, 890), fill=60)
    for k in range(lines):
        text = "".join(rng.choice(LETTERS, int(rng.integers(3, int(500 / step)))))
        pen.text((15, 110 + k * step), text, fill=25, font=font)
        pen.text(
            (485, 110 + k * step), f"{rng.uniform(0, 300):.2f}", fill=25, font=font, anchor="ra"
        )
    return np.asarray(paper)


def on_table(paper: np.ndarray, seed: int) -> np.ndarray:
    """(1200, 900) grey: in about the same place of a dark table."""
    rng = np.random.default_rng(seed)
    photo = rng.integers(50, 62, (1200, 900)).astype(np.uint8)
    x, y, width, height = np.array((180, 72, 540, 1056)) + rng.integers(-7, 8, 4)
    photo[y : y + height, x : x + width] = cv2.resize(
        paper, (width, height), interpolation=cv2.INTER_AREA
    )
    return photo


def page(seed: int) -> np.ndarray:
    """(1100, 850) grey: two columns of print."""
    rng = np.random.default_rng(seed)
    paper = Image.new("L", (850, 1100), 255)
    pen, font = ImageDraw.Draw(paper), ImageFont.load_default(15)
    for x in (70, 440):
        for y in range(100, 1020, 21):
            length = 44 if rng.random() > 0.12 else 15
            pen.text((x, y), "".join(rng.choice(LETTERS, length)), fill=0, font=font)
    return np.asarray(paper)


def thumbnails(images: list[np.ndarray], folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """As the doctor makes them, of JPEG files: (n, 32, 32) and which ones are paper."""
    found = []
    for image in images:
        cv2.imwrite(str(folder / "x.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 90])
        found.append(look_at(str(folder / "x.jpg"), lambda: ""))
    levels = np.frombuffer(b"".join(picture.thumbnail for picture in found), np.uint8).reshape(
        -1, SIDE, SIDE
    )
    return levels, np.array([picture.paper for picture in found])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    sets = {
        f"receipts of {n} lines": [receipt(k, n) for k in range(options.count)] for n in (20, 40)
    }
    sets |= {
        f"{name}, on a table": [on_table(image, k) for k, image in enumerate(own)]
        for name, own in list(sets.items())
    }
    sets["pages of print"] = [page(k) for k in range(options.count)]
    for folder in options.folders:
        paths = sorted(p for p in folder.rglob("*") if p.suffix in (".jpg", ".png"))
        sets[folder.name] = [cv2.imread(str(p), cv2.IMREAD_GRAYSCALE) for p in paths]
    with tempfile.TemporaryDirectory() as scratch:
        for name, images in sets.items():
            own, paper = thumbnails(images, Path(scratch))
            groups = np.zeros(len(own))
            first, both = alike(own, groups), near_duplicates(own, groups, paper)
            print(
                f"{name}: {len(own)} pictures, paper {paper.mean():.0%}; first look {len(first)},"
                f" both looks {len(both)}",
                end="",
            )
            chosen = images[:: max(len(images) // 20, 1)][:20]
            for change, apply in CHANGES.items():
                copies, white = thumbnails([apply(image) for image in chosen], Path(scratch))
                pairs = zip(
                    thumbnails(chosen, Path(scratch))[0],
                    copies,
                    [is_paper(image) for image in chosen],
                    white,
                    strict=True,
                )
                two = np.zeros(2)
                hits = sum(
                    bool(near_duplicates(np.stack((a, b)), two, np.array((p, q))))
                    for a, b, p, q in pairs
                )
                print(f"; {change} {hits}/{len(chosen)}", end="")
            print()


if __name__ == "__main__":
    main()
