from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from optvet.plugin import Comparison, InputError, Sample
from optvet.testing import check_comparator, pretend_model

from depth_comparator import DepthComparator, DepthOptions, depth_metrics

COMPARATOR = DepthComparator()
MAP = np.linspace(1, 8, 12, dtype=np.float32).reshape(1, 3, 4)


def compare(before: Any, after: Any, noise: float = 0.0, **options: Any) -> Comparison:
    return COMPARATOR.compare(
        pretend_model("depth-estimation"),
        Sample("s", {}),
        {"depth": np.asarray(before)},
        {"depth": np.asarray(after)},
        DepthOptions(**options),
        noise={"depth": noise},
    )


def test_it_conforms() -> None:
    check_comparator(COMPARATOR, "depth-estimation", {"depth": MAP}, {"depth": MAP[..., ::-1]})


def test_metrics_by_hand() -> None:
    # |c - r| / r is 1/2, 0, 1/2, 0; the ratios are 1.5, 1, 2, 1, and 1.25³ is 1.95.
    metrics = depth_metrics(np.array([2.0, 4, 4, 1]), np.array([3.0, 4, 2, 1]))
    assert metrics == {
        "abs_rel": 0.25,
        "rmse": pytest.approx(math.sqrt(5 / 4)),
        "rmse_log": pytest.approx(math.sqrt((math.log(1.5) ** 2 + math.log(2) ** 2) / 4)),
        "delta_1": 0.5,
        "delta_2": 0.75,
        "delta_3": 0.75,
        "pixels": 4,
        "pixels_lost": 0,
    }


def test_what_has_no_distance_is_counted_and_not_averaged() -> None:
    metrics = depth_metrics(np.array([1.0, 0, np.nan, 2]), np.array([1.0, 0, 3, -1]))
    assert (metrics["pixels"], metrics["pixels_lost"], metrics["abs_rel"]) == (1, 2, 0)


@pytest.mark.parametrize("value", [1.02, 0.9, 0.0, -1.0, np.nan, np.inf])
def test_a_changed_pixel_must_fail(value: float) -> None:
    other = MAP.copy()
    other[0, 0, 0] = value
    assert compare(MAP, other).changed
    assert compare(MAP, other).metrics["pixels_changed"] == 1


def test_a_change_within_noise_is_sensitivity() -> None:
    close = compare(MAP, MAP * 1.02, noise=1.0)
    assert (close.changed, close.sensitive) == (False, True)
    assert not compare(MAP, MAP * 1.001).changed


def test_the_ratio_is_symmetric_and_the_relative_error_is_not() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = rng.uniform(0.1, 10, (2, 20))
        first, second = depth_metrics(a, b), depth_metrics(b, a)
        for key in ("delta_1", "delta_2", "delta_3", "rmse", "rmse_log"):
            assert first[key] == pytest.approx(second[key], abs=1e-12)
        assert 0 <= first["delta_1"] <= first["delta_2"] <= first["delta_3"] <= 1
    assert depth_metrics(np.ones(1), 2 * np.ones(1))["abs_rel"] == 1
    assert depth_metrics(2 * np.ones(1), np.ones(1))["abs_rel"] == 0.5


def test_the_summary_tells_the_worst_sample() -> None:
    summary = COMPARATOR.summarise([compare(MAP, MAP), compare(MAP, MAP * 2)], DepthOptions())
    assert summary.headline == "1 of 2 depth maps changed; relative error 1"
    assert (summary.metrics["delta_1"], summary.metrics["pixels"]) == (0, 24)


def test_what_is_no_map_is_refused() -> None:
    with pytest.raises(InputError, match="no output 'with a map' of distances among 'depth'"):
        compare(np.ones(3), np.ones(3))
    with pytest.raises(InputError, match="no output 'nothing'"):
        compare(MAP, MAP, output="nothing")
