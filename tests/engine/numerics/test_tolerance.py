"""Fixed tolerances, held against numpy's own."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from optvet.engine.numerics.tolerance import excess, round_up

ODD = st.sampled_from([0.0, -0.0, 1.0, 1e-8, 3e38, np.nan, np.inf, -np.inf])
VALUES = arrays.arrays(np.float32, 5, elements=st.floats(width=32) | ODD.map(np.float32))


@given(VALUES, VALUES, st.sampled_from([0, 1e-7, 1e-3, 1.0]), st.sampled_from([0, 1e-5, 2.0]))
def test_elements_beyond_are_those_that_numpy_calls_not_close(
    ours: np.ndarray, theirs: np.ndarray, rtol: float, atol: float
) -> None:
    found = excess(ours, theirs, rtol=rtol, atol=atol)
    wide = (theirs.astype(np.float64), ours.astype(np.float64))
    close = np.isclose(*wide, rtol=rtol, atol=atol, equal_nan=True)
    # Beside rounding at the very bound, where a division and a product may differ.
    if not any(math.isclose(r, 1, rel_tol=1e-12) for r in _ratios(ours, theirs, rtol, atol)):
        assert found.beyond == np.count_nonzero(~close)
        assert (found.ratio <= 1) == bool(close.all())


def _ratios(ours: np.ndarray, theirs: np.ndarray, rtol: float, atol: float) -> list[float]:
    pairs = zip(ours, theirs, strict=True)
    return [excess(np.array(a), np.array(b), rtol=rtol, atol=atol).ratio for a, b in pairs]


@pytest.mark.parametrize(
    ("ours", "theirs", "beyond"),
    [
        (np.array([2**63 - 1]), np.array([2**63 - 2]), 1),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), 1),
        (np.array([True, False]), np.array([True, True]), 1),
        (np.array([1 + 1j]), np.array([1 - 1j]), 1),
        (np.zeros((2, 2)), np.zeros(4), 4),
        (np.zeros(0), np.zeros(0), 0),
        (np.array(1.0), np.array(1.0), 0),
    ],
)
def test_whole_numbers_words_and_shapes_agree_only_if_equal(
    ours: np.ndarray, theirs: np.ndarray, beyond: int
) -> None:
    found = excess(ours, theirs, rtol=0, atol=0.5)
    assert (found.beyond, found.ratio > 1) == (beyond, beyond > 0)
    assert excess(ours, ours.copy(), rtol=0, atol=0).ratio == 0


@pytest.mark.parametrize("value", [5.96e-7, 1e-8, 9.99e3, 0.101, 0.1, 1.0, 123.0])
def test_a_bound_is_rounded_up_to_two_digits(value: float) -> None:
    rounded = round_up(value)
    assert value <= rounded <= value * 1.1
    assert float(f"{rounded:.1e}") == rounded


def test_the_least_absolute_part_lets_all_be_within() -> None:
    r, c = np.array([1.0, 100.0]), np.array([1.5, 110.0])
    assert excess(r, c, rtol=0.0, atol=0.1).least_atol == 10.0
    assert excess(r, c, rtol=0.1, atol=0.1).least_atol == pytest.approx(0.4)
    assert excess(r, c, rtol=0.1, atol=0.4).ratio <= 1.0
    assert excess(r, np.array([1.0, np.nan]), rtol=0.0, atol=1.0).least_atol == np.inf
