"""Pictures of what boltbox writes: a report and the doctor's page.

    python -m benchmarks.screenshots

writes PNG and JPEG files into docs/pictures; docs/pictures/README.md lists them. It needs Chromium
(`apt-get install chromium`). The training and the diagnosis are commands in a folder of their own
below `runs/pictures`, and are skipped if that folder has its page already: delete the folder to do
it again. All of it takes about three minutes on two CPU cores.
"""

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from boltbox.detector.data.demo import make_demo

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/pictures"
BROWSER = "chromium --headless --no-sandbox --disable-gpu --hide-scrollbars"
WIDTH = 1000  # pixels of a page
COLOURS = 256  # of a picture of a page
CUT_OUTS = 6  # of a section
SHOWN = {  # by picture: the page, and how the titles of its sections begin
    "report-demo": ("demo/report.html", "Metrics", "Curves"),
    "doctor": (
        "doctor/doctor.html",
        "Findings",
        "fault: damaged",
        "fault: zero_size",
        "warning: box_past",
    ),
}
FAULTY_LINES = (
    "0 0.4 0.4 0 0",  # no size
    "0 0.9 0.9 0.4 0.3",  # past the frame
    "7 0.5 0.5 0.1 0.1",  # unknown class
    "1 160 120 40 30",  # in pixels
    "0.5 0.5 0.1 0.1",  # without a class
)
# of the doctor's findings, with a cut-out each
KINDS = ("damaged_image", "zero_size_box", "unknown_class", "box_past_frame", "duplicate_box")
COMMANDS = {  # by folder of the page
    "demo": "fit",
    "doctor": "doctor --data.dataset pets",
}


def plant_faults(demo: Path) -> None:
    """Common faults in labels and images of a fresh demo dataset, three of each."""
    labels = demo / "labels/train"
    images = demo / "images/train"
    spare = iter(sorted(labels.glob("*.txt")))
    for _ in range(3):
        for line in FAULTY_LINES:
            with next(spare).open("a") as file:
                file.write(f"{line}\n")
        doubled = next(spare)
        doubled.write_text(2 * doubled.read_text())
        next(spare).unlink()
        orphan = next(spare)
        orphan.rename(orphan.with_stem(f"photo_{orphan.stem}"))
        damaged = images / f"{next(spare).stem}.jpg"
        content = damaged.read_bytes()
        damaged.write_bytes(content[: len(content) // 2])
        copied = next(spare)
        shutil.copy(images / f"{copied.stem}.jpg", demo / f"images/val/copy_{copied.stem}.jpg")
        shutil.copy(copied, demo / f"labels/val/copy_{copied.name}")


def cut_outs(page: Path, kinds: Sequence[str]) -> None:
    """Save the first cut-out that the doctor's page shows of each kind, as doctor-KIND.jpg."""
    for section in re.findall(r"<section>.*?</section>", page.read_text(), re.DOTALL):
        kind = re.search(r"<h2.*?: (\w+) \(", section)
        picture = re.search(r'src="data:image/jpeg;base64,(.*?)"', section)
        if kind is not None and picture is not None and kind[1] in kinds:
            target = PICTURES / f"doctor-{kind[1]}.jpg"
            target.write_bytes(base64.b64decode(picture[1]))


def screenshot(page: Path, sections: Sequence[str], picture: Path) -> None:
    """Show the top of a page and the sections whose titles begin with these words, as PNG."""
    text = page.read_text()
    for section in re.findall(r"<section>.*?</section>", text, re.DOTALL):
        title = re.search(r"<h2.*?>(.*?)</h2>", section)
        if title is None or not title[1].startswith(tuple(sections)):
            text = text.replace(section, "")
            continue
        for figure in re.findall(r"<figure>.*?</figure>", section, re.DOTALL)[CUT_OUTS:]:
            text = text.replace(figure, "")
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder, "page.html")
        shown.write_text(text)
        shot = Path(folder, "page.png")
        size = f"--window-size={WIDTH},6000 --screenshot={shot}"
        line = [*BROWSER.split(), *size.split(), shown.as_uri()]
        subprocess.run(line, check=True, stderr=subprocess.DEVNULL)  # it misses a desktop
        image = Image.open(shot).convert("RGB")
    pixels = np.asarray(image)
    used = np.flatnonzero((pixels != pixels[-1, -1]).any((1, 2)))
    image = image.crop((0, 0, WIDTH, int(used[-1]) + 16))
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> None:
    folder = ROOT / "runs/pictures"
    faulty = folder / "pets"
    if not faulty.exists():
        make_demo(faulty, train=120, val=24)
        plant_faults(faulty)
    for name, words in COMMANDS.items():
        if not (folder / "runs" / name).exists():
            line = f"{sys.executable} {ROOT}/cli.py {words} --run runs/{name}"
            # a diagnosis that finds faults ends with a status of its own
            subprocess.run(line.split(), cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)})
    for name, (page, *sections) in SHOWN.items():
        screenshot(folder / "runs" / page, sections, PICTURES / f"{name}.png")
    cut_outs(folder / "runs/doctor/doctor.html", KINDS)


if __name__ == "__main__":
    main()
