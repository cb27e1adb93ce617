"""Which values rounding may have made."""

import numpy as np
import pytest

from optvet.plugin import may_be_rounded


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_whole_numbers_and_halves_are_exact_and_quotients_are_not(kind: str) -> None:
    values = np.array([0, 1, -1, 0.5, -0.25, 16, np.inf, -np.inf, np.nan], kind)
    assert not may_be_rounded(values).any()
    odd = (1 / np.array([3, 7, 11, -13, 1e3], kind)).astype(kind)
    assert may_be_rounded(odd).all()


def test_next_to_no_rounded_number_passes_for_an_exact_one() -> None:
    values = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    assert may_be_rounded(values).mean() > 0.99


def test_values_that_are_no_floats_are_exact() -> None:
    assert not may_be_rounded(np.arange(5)).any()
    assert may_be_rounded(np.zeros((0, 3), np.float32)).shape == (0, 3)
