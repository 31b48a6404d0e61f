"""Make a data set of small objects: images of another one, scaled down, on large canvases.

python -m benchmarks.small_objects bccd/BCCD small
"""

from pathlib import Path

import cv2
import numpy as np
from jsonargparse import auto_cli

from boltbox.detector.data.dataset_file import DatasetFile
from boltbox.detector.data.images import read_image
from boltbox.detector.model.boxes import xyxy_to_cxcywhn

CANVASES = {"train": 60, "val": 20}


def make(
    dataset: str,
    out: Path,
    seed: int = 0,
    scale: float = 0.25,
    pasted: int = 8,
    size: tuple[int, int] = (600, 800),
) -> None:
    """Write images, labels and data.yaml.

    Args:
        dataset: A data.yaml or folder, with the splits train and val.
        out: A new folder.
        seed: Decides which images are pasted where.
        scale: Of the images.
        pasted: Images per canvas, or fewer if there is no place.
        size: Height and width of a canvas in pixels.
    """
    height, width = size
    file = DatasetFile.read(dataset)
    file.prepare()
    rng = np.random.default_rng(seed)
    for split, number in CANVASES.items():
        data = file.open(split)
        for kind in ("images", "labels"):
            (out / kind / split).mkdir(parents=True)
        for k in range(number):
            canvas = np.full((height, width, 3), rng.integers(60, 200, 3), np.uint8)
            rows = []
            occupied = np.zeros((height, width), bool)
            for i in rng.integers(len(data), size=pasted).tolist():
                image = cv2.resize(
                    read_image(data.files[i]),
                    None,
                    fx=scale,
                    fy=scale,
                    interpolation=cv2.INTER_AREA,
                )
                h, w = image.shape[:2]
                for _ in range(50):
                    x = int(rng.integers(width - w))
                    y = int(rng.integers(height - h))
                    if not occupied[y : y + h, x : x + w].any():
                        break
                else:
                    continue
                occupied[y : y + h, x : x + w] = True
                canvas[y : y + h, x : x + w] = image
                boxes, classes, _ = data.labels.counted(i)
                gain = (w, h, w, h) / data.labels.sizes[i, [1, 0, 1, 0]]
                fractions = xyxy_to_cxcywhn(boxes * gain + (x, y, x, y), width, height)
                rows.append(np.column_stack((classes, fractions)))
            cv2.imwrite(str(out / f"images/{split}/{k}.png"), canvas[..., ::-1])
            np.savetxt(
                out / f"labels/{split}/{k}.txt", np.concatenate(rows), "%d %.6f %.6f %.6f %.6f"
            )
    (out / "data.yaml").write_text(
        f"path: .\ntrain: images/train\nval: images/val\nnames: {file.names}\n"
    )


if __name__ == "__main__":
    auto_cli(make, as_positional=True)
