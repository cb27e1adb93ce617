"""What the models of the zoo learn from: data sets of scikit-learn, and what is made of them."""

from __future__ import annotations

import numpy as np

TEST_FRACTION = 0.25
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Training inputs, held-out inputs, training targets, held-out targets."""


def held_out(data: str) -> Split:
    """The split that all recipes on the scikit-learn data set ``data`` share; float32 inputs."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    loaded = getattr(datasets, f"load_{data}")()
    inputs = loaded.data.astype(np.float32)
    split = train_test_split(inputs, loaded.target, test_size=TEST_FRACTION, random_state=0)
    return split[0], split[1], split[2], split[3]


SIDE, CELL, DIGIT = 20, 4, 8
"""Pixels of a canvas, of a cell of the detector's map, and of a digit."""


def canvases(
    rng: np.random.Generator, digits: np.ndarray, labels: np.ndarray, number: int
) -> tuple[np.ndarray, np.ndarray, list[list[tuple[int, int, int]]]]:
    """Images with one to four digits each, which do not overlap.

    Args:
        rng: Where digits, their number and their places come from.
        digits: [n, 64], 0 to 16.
        labels: [n].
        number: How many images.

    Returns:
        Images [number, 1, 20, 20] float32, 0 to 1; targets as of ``detection_gradient``; and per
        image each digit's left, top and label.
    """
    cells = SIDE // CELL
    images = np.zeros((number, 1, SIDE, SIDE), np.float32)
    targets = np.zeros((number, cells * cells, 3))
    boxes: list[list[tuple[int, int, int]]] = []
    for at in range(number):
        placed: list[tuple[int, int, int]] = []
        for _ in range(4 * int(rng.integers(1, 4))):
            left, top = (int(v) for v in rng.integers(0, SIDE - DIGIT + 1, 2))
            if any(abs(left - x) < DIGIT + 1 and abs(top - y) < DIGIT + 1 for x, y, _ in placed):
                continue
            which = int(rng.integers(len(digits)))
            images[at, 0, top : top + DIGIT, left : left + DIGIT] = digits[which].reshape(8, 8) / 16
            x, y = left + DIGIT / 2, top + DIGIT / 2
            column, row = int(x // CELL), int(y // CELL)
            offsets = (x / CELL - column - 0.5, y / CELL - row - 0.5)
            targets[at, row * cells + column] = (labels[which] + 1, *offsets)
            placed.append((left, top, int(labels[which])))
        boxes.append(placed)
    return images, targets, boxes


LETTERS = "\n abcdefghijklmnopqrstuvwxyz.,()-:'0"
"""What the language model reads and writes, by number; 0 stands for every digit."""
CONTEXT = 8


def descriptions() -> str:
    """scikit-learn's descriptions of its data sets, in the letters that ``letters-lm`` knows."""
    from sklearn import datasets

    names = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")
    text = " ".join(getattr(datasets, f"load_{name}")().DESCR for name in names).lower()
    kept = "".join(c if c in LETTERS else "0" if c.isdigit() else " " for c in text)
    return " ".join(kept.split())


def letter_windows(rng: np.random.Generator) -> np.ndarray:
    """Eight letters and the next one, by number: [n, 9], in a random order."""
    ids = np.array([LETTERS.index(c) for c in descriptions()])
    windows = np.lib.stride_tricks.sliding_window_view(ids, CONTEXT + 1).copy()
    rng.shuffle(windows)
    return windows
