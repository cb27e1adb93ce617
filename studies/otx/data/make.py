"""Makes the images of the offline variant, with labels: digits and canvases of digits.

::

    python studies/otx/data/make.py

Needs scikit-learn and Pillow. No model of the zoo was trained on these digits.
"""

import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image

from optvet_zoo.recipes import train

_HERE = Path(__file__).parent
_SAMPLES = 8
_SIDE = 8


def main() -> None:
    """Write two folders of images, and a file of labels for each, beside this file."""
    _, digits, _, labels = train.held_out("digits")
    canvases, _, places = train.canvases(np.random.default_rng(0), digits, labels, _SAMPLES)
    _save("digits", (digits[:_SAMPLES] / 16).reshape(-1, _SIDE, _SIDE))
    _save("canvases", canvases[:, 0])
    with (_HERE / "digits.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("file", "label"))
        rows.writerows((f"{i}.png", int(labels[i])) for i in range(_SAMPLES))
    boxes = [
        {
            "file": f"{i}.png",
            # The detector's first class is the background.
            "boxes": [{"label": d + 1, "bbox": [x, y, _SIDE, _SIDE]} for x, y, d in found],
        }
        for i, found in enumerate(places)
    ]
    (_HERE / "canvases.json").write_text(json.dumps(boxes) + "\n", encoding="utf-8")


def _save(name: str, images: np.ndarray) -> None:
    """Grey images, 0 to 1, as files of a folder."""
    (_HERE / name).mkdir(exist_ok=True)
    for number, image in enumerate(images):
        pixels = Image.fromarray(np.rint(255 * image).astype(np.uint8))
        pixels.save(_HERE / name / f"{number}.png", optimize=True)


main()
