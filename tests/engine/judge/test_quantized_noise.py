"""Noise of models of integers, which feel no jitter, and of what is dequantized."""

import numpy as np
import pytest

from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.outputs import judge
from optvet.engine.judge.sizes import wide
from optvet.engine.judge.thresholds import OTHER_KERNELS, THRESHOLDS, Thresholds

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


@pytest.mark.parametrize(
    ("off", "limits", "call"),
    [
        (1.5e-5, OTHER_KERNELS, "sensitivity"),
        (1.5e-5, THRESHOLDS, "fault"),
        (3e-5, OTHER_KERNELS, "fault"),
    ],
)
def test_kernels_of_another_runtime_may_compute_from_the_ends_of_a_grid(
    off: float, limits: Thresholds, call: str
) -> None:
    """A grid of 255 steps of 1.3 ends about 331 apart, of which a roundoff is 2e-5."""
    zero = np.zeros(1, np.float32)
    noise = Noise(jitters=({"y": zero},), grids={"y": 331.5}, truth={"y": wide(zero)})
    (judgement,) = judge({"y": zero}, {"y": zero + np.float32(off)}, noise, limits)
    assert judgement.call == call
