"""Inputs for calibration: named by their content, and removed when they are old."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from optvet.engine.work.trials.calibration import write_inputs

DAY_S = 24 * 3600.0


def test_equal_inputs_give_one_file_and_other_inputs_another(tmp_path: Path) -> None:
    ones, twos = {"x": np.ones(3, np.float32)}, {"x": np.full(3, 2, np.float32)}
    first = write_inputs(tmp_path, [ones, twos])
    assert write_inputs(tmp_path, [ones, twos]) == first
    assert write_inputs(tmp_path, [twos, ones]) != first
    with np.load(first) as arrays:
        assert sorted(arrays.files) == ["0/x", "1/x"]
        assert np.array_equal(arrays["1/x"], twos["x"])


def test_what_nobody_used_for_a_day_is_removed(tmp_path: Path) -> None:
    old = write_inputs(tmp_path, [{"x": np.ones(3, np.float32)}])
    other = tmp_path / "of-a-user.npz"
    other.touch()
    for file in (old, other):
        os.utime(file, (time.time() - 2 * DAY_S,) * 2)
    new = write_inputs(tmp_path, [{"x": np.zeros(3, np.float32)}])
    assert sorted(tmp_path.iterdir()) == sorted([other, new])
