from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import max_error, root_mean_squared_error

from optvet import Sample
from optvet.plugin import Comparison, Model, ModelConfig
from optvet_tensor import TensorComparator, TensorOptions, cosine, max_ulp, tensor_metrics

COMPARATOR = TensorComparator()
floats = hnp.arrays(np.float32, (3, 4), elements=st.floats(-1e3, 1e3, width=32))
anything = hnp.arrays(np.float32, 7, elements=st.floats(width=32))


def model(task: str | None = None) -> Model:
    path = Path("m.onnx")
    return Model("m", path, path, "0", (), (), 8, {}, 1, 1, ModelConfig(task=task))


def compare(before: Any, after: Any, noise: float = 0.0) -> Comparison:
    sides = [v if isinstance(v, dict) else {"y": np.asarray(v)} for v in (before, after)]
    return COMPARATOR.compare(
        model(),
        Sample("s", {}),
        sides[0],
        sides[1],
        TensorOptions(),
        noise=dict.fromkeys(sides[0], noise),
    )


def test_metrics_by_hand() -> None:
    before = np.array([3.0, 4, 0, 0], np.float64)
    after = np.array([3.0, 4, 0, 5], np.float64)
    metrics = tensor_metrics(before, after, 1.0)
    assert metrics["max_abs"] == 5
    assert metrics["max_rel"] == 0
    assert metrics["rmse"] == 2.5
    assert metrics["cosine"] == pytest.approx(25 / (5 * 50**0.5))
    assert metrics["beyond_noise"] == 0.25
    assert metrics["nonfinite"] == 0
    assert tensor_metrics(before[:2], np.array([3.3, 4]))["max_rel"] == pytest.approx(0.1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_steps_between_numbers_by_hand(dtype: Any) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    one = np.array([1.0], dtype)
    assert max_ulp(one, np.nextafter(one, dtype(2))) == 1
    assert max_ulp(np.array([-tiny]), np.array([tiny])) == 2
    assert max_ulp(-one, one) == 2 * int(one.view(f"u{one.itemsize}")[0])
    assert max_ulp(np.array([-0.0], dtype), np.array([0.0], dtype)) == 0


def test_nonfinite_elements_are_counted_where_they_differ() -> None:
    before = np.array([np.nan, np.inf, 1, np.nan], np.float32)
    after = np.array([np.nan, -np.inf, np.inf, 2], np.float32)
    metrics = tensor_metrics(before, after, 1e9)
    assert metrics["nonfinite"] == metrics["beyond_noise"] == 0.75
    assert tensor_metrics(before, before)["beyond_noise"] == 0


def test_the_worst_output_speaks_for_the_sample() -> None:
    before = {"a": np.ones(2), "b": np.ones(2)}
    compared = compare(before, {"a": np.ones(2), "b": np.array([1.0, 3])})
    assert compared.metrics["max_abs"] == 2
    assert compared.detail["outputs"]["a"]["max_abs"] == 0
    summary = COMPARATOR.summarise([compared, compare(before, before)], TensorOptions())
    assert summary.headline == "1 of 2 samples differ beyond noise"
    assert summary.metrics["cosine"] < 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.ones(3, np.float32), np.array([1, 1, 1.001], np.float32)),
        (np.ones(3, np.float32), np.array([1, 1, np.nan], np.float32)),
        (np.array([2**53]), np.array([2**53 + 1])),
        (np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64)),
        (np.array([1 + 1j]), np.array([1 - 1j])),
        (np.array([True]), np.array([False])),
        (np.array(["a"], object), np.array(["b"], object)),
        (np.array(1.0), np.array(2.0)),
    ],
)
def test_planted_changes_must_fail(before: np.ndarray, after: np.ndarray) -> None:
    assert not compare(before, before.copy()).changed
    assert compare(before, after).changed


def test_within_noise_is_no_change() -> None:
    assert not compare(np.array([1.0]), np.array([1.1]), noise=0.2).changed


def test_large_and_small_numbers_do_not_overflow() -> None:
    huge = np.array([1e308, 1e308])
    metrics = tensor_metrics(huge, -huge)
    assert (metrics["max_abs"], metrics["rmse"]) == (np.inf, np.inf)
    assert metrics["cosine"] == pytest.approx(-1)
    assert tensor_metrics(huge, huge * 0.5)["rmse"] == pytest.approx(5e307)
    tiny = np.array([1e-200, 0])
    assert tensor_metrics(tiny, np.zeros(2))["rmse"] == pytest.approx(1e-200 / 2**0.5)
    wide = np.array([60000, -60000], np.float16)
    assert tensor_metrics(wide, -wide)["max_abs"] == 120000


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool, object])
def test_nothing_equals_nothing(dtype: Any) -> None:
    empty = np.zeros((0, 3), dtype)
    assert not compare(empty, empty).changed


@given(anything)
def test_identical_tensors_are_perfect(value: np.ndarray) -> None:
    metrics = tensor_metrics(value, value.copy())
    assert metrics.pop("cosine") == pytest.approx(1)
    assert set(metrics.values()) == {0.0}


@given(anything, anything)
def test_distances_are_symmetric_and_bounded(a: np.ndarray, b: np.ndarray) -> None:
    first, second = tensor_metrics(a, b), tensor_metrics(b, a)
    for key in ("max_abs", "rmse", "cosine", "beyond_noise", "nonfinite", "max_ulp"):
        assert first[key] == pytest.approx(second[key], abs=1e-12)
    assert -1 <= first["cosine"] <= 1
    assert 0 <= first["nonfinite"] <= first["beyond_noise"] <= 1
    assert 0 <= first["rmse"] <= first["max_abs"] * (1 + 1e-12)


@given(floats, floats, st.floats(0, 100), st.floats(0, 100))
def test_more_noise_leaves_fewer_beyond(a: np.ndarray, b: np.ndarray, x: float, y: float) -> None:
    low, high = sorted((x, y))
    shares = [tensor_metrics(a, b, n)["beyond_noise"] for n in (low, high)]
    assert shares[0] >= shares[1]


@given(floats, floats)
def test_distances_are_scipys_and_sklearns(a: np.ndarray, b: np.ndarray) -> None:
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    metrics = tensor_metrics(a, b)
    assert metrics["max_abs"] == pytest.approx(max_error(x, y), abs=1e-9)
    assert metrics["rmse"] == pytest.approx(root_mean_squared_error(x, y), abs=1e-9)
    assume(min(np.linalg.norm(x), np.linalg.norm(y)) > 1e-6)
    assert cosine(x, y) == pytest.approx(1 - scipy.spatial.distance.cosine(x, y), abs=1e-9)


@pytest.mark.parametrize(
    "task",
    [
        *("head-pose regression", "hand-landmarks", "face-landmarks (heat maps)"),
        *("single-person pose", "voice-activity detection", "speech enhancement (streaming)"),
        *("speech quality (MOS)", "ranking", "robot locomotion policy"),
        "collision-avoidance advisory",
    ],
)
def test_it_recognises_tasks_of_plain_numbers(task: str) -> None:
    assert COMPARATOR.matches(model(task), {}) == 0.9


@pytest.mark.parametrize("task", [None, "image-classification", "tabular regression"])
def test_it_stands_back_elsewhere(task: str | None) -> None:
    assert COMPARATOR.matches(model(task), {}) == 0.01


@given(
    hnp.arrays(np.float32, 5, elements=st.floats(-(2.0**90), 2.0**90, width=32)),
    st.integers(0, 2**31),
)
def test_steps_are_numpys(a: np.ndarray, seed: int) -> None:
    b = a.copy()
    for _ in range(np.random.default_rng(seed).integers(0, 9)):
        b = np.nextafter(b, np.float32(np.inf))
    expected = np.testing.assert_array_max_ulp(a, b, maxulp=100).max()
    assert max_ulp(a, b) == expected


@given(floats, floats, st.floats(0, 100))
def test_relative_errors_and_shares_are_numpys(a: np.ndarray, b: np.ndarray, noise: float) -> None:
    x, y = a.astype(np.float64), b.astype(np.float64)
    metrics = tensor_metrics(a, b, noise)
    known = x != 0
    worst = np.max(np.abs(y[known] / x[known] - 1), initial=0.0)
    assert metrics["max_rel"] == pytest.approx(worst, rel=1e-9, abs=1e-9)
    assert metrics["beyond_noise"] == np.mean(~np.isclose(y, x, rtol=0, atol=noise))


def test_each_part_is_measured_by_its_own_range_on_all_samples() -> None:
    rng = np.random.default_rng(0)
    boxes, scores = rng.uniform(0, 640, (1, 4, 32)), rng.uniform(0, 1, (1, 3, 32))
    both, wrong = (np.concatenate([boxes, s], axis=1) for s in (scores, scores * 0))
    quiet, gone = (np.concatenate([boxes, s], axis=1) for s in (scores * 0.01, scores * 0))
    references = [{"y": both}, {"y": quiet}]
    options = COMPARATOR.calibrated(model(), references, TensorOptions())
    assert [str(part) for part in options.parts["y"]] == ["[:, 0:4]", "[:, 4:7]"]
    plain, by_part = tensor_metrics(both, wrong), tensor_metrics(both, wrong, 0, options.parts["y"])
    assert plain["max_change"] < 0.002
    assert by_part["max_change"] == pytest.approx(1)
    assert (plain["cosine"] > 0.999, by_part["cosine"]) == (True, 0)
    assert by_part["max_abs"] == plain["max_abs"]
    # A sample on which nothing is found has small scores, of which no range follows.
    none = tensor_metrics(quiet, gone, 0, options.parts["y"])
    assert none["max_change"] == pytest.approx(0.01, rel=0.1)
    assert none["cosine"] > 0.999
    given = TensorOptions.model_validate({"parts": {"y": options.parts["y"][:1]}})
    assert COMPARATOR.calibrated(model(), references, given) == given
    assert "y" not in COMPARATOR.calibrated(model(), [{"y": boxes}], TensorOptions()).parts
