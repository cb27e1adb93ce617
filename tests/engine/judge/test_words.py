"""A wrong output is told by what differs, never by infinity or a ratio to nothing."""

import numpy as np
import pytest

from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.outputs import judge
from optvet.engine.judge.words import difference

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("reference", "candidate", "words"),
    [
        ([0, 0], [0, 3e-9], "is 0 in the reference and up to 3e-09 in size here"),
        ([1, 2, 4], [1, 2, 3], "differs by 0.25 of its largest value, 4 (its own noise: 0.001)"),
        (
            [1, 2, 4],
            [1, NAN, 4],
            "has NaN in 1 of 3 elements where the reference has numbers (at [1]: 2 became nan)",
        ),
        (
            [NAN, INF, 4],
            [1, 2, 3],
            "has numbers in elements where the reference has NaN (at [0]: nan became 1, "
            "2 of 3 in all); differs by 0.25 of its largest value, 4 (its own noise: 0.001)",
        ),
        (
            [6e-8, 0],
            [0, 0],
            "differs by 1 of its largest value, 6e-08 (its own noise: 0.001)",
        ),
        ([1e-30, 0], [3e5, 0], "differs by up to 3e+05, where its largest value is 1e-30"),
    ],
)
def test_what_differs_is_told(reference: list[float], candidate: list[float], words: str) -> None:
    y, z = np.array(reference, np.float32), np.array(candidate, np.float32)
    (judgement,) = judge({"y": y}, {"y": z}, Noise())
    assert difference(y, z, judgement.error, 1e-3) == words
