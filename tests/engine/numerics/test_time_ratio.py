"""What timings say, on synthetic samples: no clock is read here."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optvet.engine.numerics.time_ratio import (
    CONFIDENCE,
    LEAST_REPEATS,
    RatioInterval,
    call_of,
    confidence_of_a_look,
    growing_looks,
    interval_of,
    looks,
    outliers,
    spread_of,
)


def simulated(
    random: np.random.Generator,
    ratio: float = 1.0,
    *,
    repeats: int = 10,
    rounds: int = 8,
    noise: float = 0.03,
    between: float = 0.02,
    outlying: float = 0.0,
) -> list[list[float]]:
    """Log ratios of a machine with noise in each round, an offset per process, and outliers."""
    found = []
    for _ in range(repeats):
        values = math.log(ratio) + random.normal(0, between) + random.normal(0, noise, rounds)
        hit = random.random(rounds) < outlying
        values[hit] += random.normal(0, 0.7, hit.sum())
        found.append([float(v) for v in values])
    return found


@pytest.mark.parametrize(
    ("noise", "between", "outlying"),
    [(0.01, 0.005, 0.0), (0.05, 0.03, 0.0), (0.05, 0.05, 0.1), (0.2, 0.15, 0.2)],
)
def test_equal_models_are_called_different_in_one_of_a_hundred_timings_at_most(
    noise: float, between: float, outlying: float
) -> None:
    random = np.random.default_rng(0)
    about = {"noise": noise, "between": between, "outlying": outlying}
    calls = [
        call_of(interval_of(simulated(random, **about)), threshold=0.05)  # type: ignore[arg-type]
        for _ in range(300)
    ]
    assert sum(call in ("slower", "faster") for call in calls) <= 3


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    intervals = [interval_of(simulated(random, 1.1)) for _ in range(400)]
    held = sum(i.low <= 1.1 <= i.high for i in intervals)
    assert held >= 400 * CONFIDENCE - 8


def test_a_slowdown_by_a_fifth_is_found_where_processes_differ_by_a_few_percent() -> None:
    random = np.random.default_rng(2)
    calls = [
        call_of(interval_of(simulated(random, 1.2, between=0.04, outlying=0.05)), threshold=0.05)
        for _ in range(100)
    ]
    assert calls.count("slower") >= 95
    assert "faster" not in calls


@pytest.mark.long
@pytest.mark.parametrize("steps", [looks(10), growing_looks(5)], ids=str)
def test_few_looks_at_growing_evidence_err_as_seldom_as_one(steps: tuple[int, ...]) -> None:
    random, wrong = np.random.default_rng(3), 0
    confidence = confidence_of_a_look(len(steps))
    for _ in range(400):
        repeats = simulated(random, between=0.05, repeats=steps[-1])
        intervals = [interval_of(repeats[:n], confidence) for n in steps]
        wrong += any(i.low > 1 or i.high < 1 for i in intervals)
    assert wrong <= 400 * (1 - CONFIDENCE) + 8


@given(st.integers(LEAST_REPEATS, 200))
def test_looks_grow_and_end_with_all_repeats(repeats: int) -> None:
    found = looks(repeats)
    assert list(found) == sorted(set(found))
    assert found[-1] == repeats


@given(
    st.lists(
        st.lists(st.floats(-2, 2), min_size=1, max_size=6), min_size=LEAST_REPEATS, max_size=12
    )
)
def test_an_interval_holds_its_ratio_and_turns_over_with_the_models(
    repeats: list[list[float]],
) -> None:
    found = interval_of(repeats)
    turned = interval_of([[-v for v in rounds] for rounds in repeats])
    assert found.low <= found.ratio * (1 + 1e-9)
    assert found.ratio <= found.high * (1 + 1e-9)
    assert turned.ratio == pytest.approx(1 / found.ratio)
    assert spread_of(repeats) >= 0


@given(st.floats(0.1, 10), st.floats(1, 3), st.floats(1, 3), st.floats(0.01, 1))
def test_a_verdict_holds_for_the_whole_interval(
    ratio: float, below: float, above: float, threshold: float
) -> None:
    interval = RatioInterval(ratio, ratio / below, ratio * above)
    call = call_of(interval, threshold)
    limit = 1 + threshold
    assert (call == "slower") == (interval.low > limit)
    assert (call == "faster") == (interval.high < 1 / limit)
    if call == "no-difference":
        assert max(interval.high, 1 / interval.low) <= limit * (1 + 1e-9)


def test_only_what_is_far_from_all_others_is_an_outlier() -> None:
    steady = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0]
    assert outliers(steady) == []
    assert outliers([*steady, 3.0]) == [6]
    assert outliers([1.0] * 5 + [1.02]) == []
    assert outliers([1.0, 9.0]) == []


def test_noise_is_told_as_the_spread_from_process_to_process() -> None:
    assert spread_of([[0.0], [0.0], [0.0]]) == 0
    assert spread_of([[-0.05], [0.0], [0.05]]) == pytest.approx(0.051, abs=0.002)
