"""Whether other evaluators contradict what was expected."""

import numpy as np
import pytest

from optvet.engine.judge.second_opinion import explains_no, is_contradicted

F32 = np.float32
RUNTIME, REFERENCE = 4.99996e-6, 5.00679e-6  # of one Sigmoid, by ONNX Runtime and by the standard


def values(*numbers: float, dtype: type = F32) -> dict[str, np.ndarray]:
    return {"y": np.array(numbers, dtype)}


@pytest.mark.parametrize(
    ("opinions", "error", "noise", "contradicted"),
    [
        ([RUNTIME], 1e-2, 1e-7, False),
        # All of them differ by more than the script of a bundle allows.
        ([REFERENCE, REFERENCE], 1e-2, 1e-7, True),
        # One does not, and the others by little beside what is told.
        ([REFERENCE, RUNTIME], 1e-2, 1e-7, False),
        # Not beside this: it may as well be a matter of kernels.
        ([REFERENCE, RUNTIME], 2e-3, 1e-7, True),
        # The script knows how far the original itself is off.
        ([REFERENCE, REFERENCE], 1.0, 1.4e-3, False),
        # A fault without a size, such as another shape, needs values that agree roughly.
        ([REFERENCE], None, None, False),
        ([2 * REFERENCE], None, None, True),
        # An eighth beside the difference: plain where the others agree, not where they do not.
        ([RUNTIME * 1.2, RUNTIME * 1.2], 1.6, 0.2, True),
        ([RUNTIME * 1.2, RUNTIME * 1.25], 1.6, 0.2, False),
        ([RUNTIME * 1.2], 1.6, 0.2, False),
        ([], 1e-2, 1e-7, False),
    ],
)
def test_a_difference_is_told_only_where_evaluators_agree_better_than_it(
    opinions: list[float], error: float | None, noise: float | None, contradicted: bool
) -> None:
    given = [values(number, dtype=np.float64) for number in opinions]
    assert is_contradicted(values(RUNTIME), given, error, noise) is contradicted


def test_what_has_no_size_contradicts_in_any_case() -> None:
    for opinion in ({}, values(1, 2), values(np.nan), {"y": np.array([1])}):
        assert is_contradicted(values(1), [opinion], 1.0, 0.1)
    assert is_contradicted({"y": np.array([1])}, [{"y": np.array([2])}], None, None)


@pytest.mark.parametrize(
    ("stray", "error", "explains"),
    [
        (1e-4, 0.3, False),
        (0.14, 0.3, False),
        (0.2, 0.3, True),
        (None, 0.3, True),
        (1e-4, None, True),
    ],
)
def test_another_opinion_explains_no_more_than_twice_what_it_strays(
    stray: float | None, error: float | None, explains: bool
) -> None:
    assert explains_no(stray, error) is not explains
