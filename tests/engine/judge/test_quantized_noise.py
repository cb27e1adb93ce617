"""Noise of models of integers, which feel no jitter."""

import numpy as np

from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.outputs import judge

REFERENCE = np.arange(100, dtype=np.uint8)


def off_by(size: int, *indices: int) -> dict[str, np.ndarray]:
    other = REFERENCE.copy()
    other[list(indices)] += np.uint8(size)
    return {"y": other}


def verdict(candidate: dict[str, np.ndarray], noise: Noise) -> str:
    (judgement,) = judge({"y": REFERENCE}, candidate, noise)
    return judgement.call


def test_integers_may_flip_as_far_as_the_reference_is_from_the_truth() -> None:
    """A quantized model of integers does not feel jitter; its distance to float64 is its noise."""
    noise = Noise(
        jitters=({"y": REFERENCE},), truth=off_by(1, 1, 2, 3), discontinuous=frozenset({"y"})
    )
    assert verdict(off_by(2, 50), noise) == "sensitivity"
    assert verdict(off_by(3, 50), noise) == "fault"
    assert verdict(off_by(1, *range(40, 53)), noise) == "fault"


def test_integers_that_never_flip_must_be_equal() -> None:
    noise = Noise(jitters=({"y": REFERENCE},), truth={"y": REFERENCE})
    assert verdict(off_by(1, 50), noise) == "fault"
