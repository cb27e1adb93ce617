import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from optvet.engine.judge.judgement import Call, Judgement
from optvet.engine.judge.known_noise import Noise, most_believable, uncertainty
from optvet.engine.judge.outputs import judge
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.numerics.floats import unit_roundoff

F32, F16 = np.float32, np.float16
NAN, INF = np.nan, np.inf
ULP = float(np.finfo(F32).eps)
BADNESS: list[Call] = ["same", "drift", "sensitivity", "unsure", "fault"]


def f32(*values: Any) -> np.ndarray:
    return np.array(values, dtype=F32)


def one(ref: np.ndarray, cand: np.ndarray, noise: Noise | None = None) -> Judgement:
    (judgement,) = judge({"y": ref}, {"y": cand}, noise)
    return judgement


def call(ref: np.ndarray, cand: np.ndarray, noise: Noise | None = None) -> Call:
    return one(ref, cand, noise).call


def jittered(ref: np.ndarray, size: float, runs: int = 3, seed: int = 0, **more: Any) -> Noise:
    """Noise as if the reference spread by ``size`` of each element."""
    rng = np.random.default_rng(seed)
    jitters = [
        {"y": (ref * (1 + size * rng.normal(size=ref.shape))).astype(ref.dtype)}
        for _ in range(runs)
    ]
    return Noise(jitters=jitters, **more)


def noise(**more: Any) -> Noise:
    return Noise(**more)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(F32)


# Bit for bit


@pytest.mark.parametrize(
    ("ref", "cand"),
    [
        (f32(1, 2), f32(1, 2)),
        (f32(NAN, 1), f32(NAN, 1)),
        (f32(0.0), f32(-0.0)),
        (f32(INF, -INF), f32(INF, -INF)),
        (f32(), f32()),
        (np.array(3.5, F32), np.array(3.5, F32)),
        (np.array([1, 2]), np.array([1, 2])),
        (np.array([True]), np.array([True])),
        (np.array(["a", "b"], object), np.array(["a", "b"], object)),
        (np.array([], object), np.array([], object)),
        (np.array([1 + 2j], np.complex64), np.array([1 + 2j], np.complex64)),
        (np.zeros((0, 4), np.int64), np.zeros((0, 4), np.int64)),
    ],
)
def test_equal_values_are_the_same(ref: np.ndarray, cand: np.ndarray) -> None:
    judgement = one(ref, cand)
    assert (judgement.call, judgement.error, judgement.exceeds) == ("same", 0.0, 0.0)


def test_nan_equals_nan_whatever_its_bits() -> None:
    quiet = np.array([0x7FC00000], np.uint32).view(F32)
    other = np.array([0xFFC00001], np.uint32).view(F32)
    assert call(quiet, other) == "same"


def test_bfloat16_is_a_float() -> None:
    import ml_dtypes

    ref = np.array([1, NAN, 256], ml_dtypes.bfloat16)
    assert call(ref, ref.copy()) == "same"
    assert unit_roundoff(ref.dtype) == 2**-8
    # Behind 256 = 2**8 comes 258.
    assert call(ref, np.array([1, NAN, 258], ml_dtypes.bfloat16), noise()) == "drift"
    assert call(ref, np.array([1, NAN, 300], ml_dtypes.bfloat16), noise()) == "fault"


@pytest.mark.parametrize(
    ("dtype", "half_step"), [(F16, 2**-11), (F32, 2**-24), (np.float64, 2**-53)]
)
def test_the_unit_roundoff_is_half_the_step_after_one(dtype: Any, half_step: float) -> None:
    assert unit_roundoff(np.dtype(dtype)) == half_step


# What no noise excuses


@pytest.mark.parametrize(
    ("ref", "cand", "detail"),
    [
        (f32(1), np.array([1.0]), "float32 became float64"),
        (np.array([1]), np.array([1], np.int32), "int64 became int32"),
        (f32(1, 2), f32(1), "shape [2] became [1]"),
        (f32(1), np.array(1, F32), "shape [1] became []"),
        (f32(), f32(1), "shape [0] became [1]"),
    ],
)
def test_another_type_or_shape_is_a_structural_fault(
    ref: np.ndarray, cand: np.ndarray, detail: str
) -> None:
    for given_noise in (None, noise()):
        judgement = one(ref, cand, given_noise)
        assert (judgement.call, judgement.detail) == ("fault", detail)
        assert judgement.structural
        assert judgement.exceeds == math.inf


def test_a_missing_output_is_a_structural_fault() -> None:
    (judgement,) = judge({"y": f32(1)}, {"z": f32(1)})
    assert (judgement.output, judgement.call, judgement.detail) == ("y", "fault", "missing")
    assert judgement.structural


def test_an_output_that_only_the_candidate_has_is_not_judged() -> None:
    assert [j.output for j in judge({"y": f32(1)}, {"y": f32(1), "z": f32(2)})] == ["y"]


def test_a_shape_that_varies_under_jitter_too_is_sensitivity() -> None:
    ref, cand = f32(1, 2, 3), f32(1, 2)
    flipping = noise(jitters=[{"y": f32(1, 2)}], discontinuous=frozenset({"y"}))
    assert call(ref, cand, flipping) == "sensitivity"
    steady = noise(jitters=[{"y": f32(1, 2, 3)}], discontinuous=frozenset({"y"}))
    assert call(ref, cand, steady) == "fault"


def test_an_output_that_loses_all_elements_is_not_explained_by_one_that_flips() -> None:
    ref = f32(*range(10))
    flipping = noise(jitters=[{"y": f32(*range(9))}], discontinuous=frozenset({"y"}))
    assert call(ref, f32(*range(8)), flipping) == "sensitivity"
    assert call(ref, f32(), flipping) == "fault"
    assert call(ref, f32(1, 2, 3), flipping) == "fault"


# NaN and infinity


@pytest.mark.parametrize(
    ("ref", "cand"),
    [
        (f32(1, NAN), f32(NAN, 1)),
        (f32(1, 2), f32(1, NAN)),
        (f32(1, NAN), f32(1, 2)),
        (f32(1, INF), f32(1, -INF)),
        (f32(1, INF), f32(1, NAN)),
        (f32(1, 2), f32(1, INF)),
    ],
)
def test_nan_or_infinity_in_other_places_is_a_fault(ref: np.ndarray, cand: np.ndarray) -> None:
    assert call(ref, cand) == "unsure"
    assert call(ref, cand, noise()) == "fault"
    assert one(ref, cand, noise()).exceeds == math.inf


def test_nan_that_jitter_shows_in_the_same_place_is_sensitivity() -> None:
    shows = noise(jitters=[{"y": f32(1, NAN)}])
    assert call(f32(1, 2), f32(1, NAN), shows) == "sensitivity"
    elsewhere = noise(jitters=[{"y": f32(NAN, 2)}])
    assert call(f32(1, 2), f32(1, NAN), elsewhere) == "fault"


def test_the_finite_elements_next_to_nan_are_still_judged() -> None:
    assert call(f32(NAN, 1, 2), f32(NAN, 1, 2 + 4 * ULP), noise()) == "drift"
    assert call(f32(NAN, 1, 2), f32(NAN, 1, 2.1), noise()) == "fault"


def test_a_reference_of_nothing_but_nan_and_infinities_is_compared_by_its_pattern() -> None:
    assert call(f32(NAN, INF), f32(NAN, INF), noise()) == "same"
    assert call(f32(NAN, INF), f32(INF, NAN), noise()) == "fault"


def test_an_overflow_that_the_candidate_avoids_is_told_and_not_blamed() -> None:
    exact = noise(finite_inputs=frozenset("y"), truth={"y": np.array([1, -200.0])})
    judgement = one(f32(1, -INF), f32(1, -200), exact)
    assert judgement.call == "sensitivity"
    assert "1 of 2 elements are finite now, infinite before" in judgement.detail
    assert "exact ones to 1e-03" in judgement.detail


def test_a_number_in_place_of_an_infinity_is_the_exact_one_or_undecided() -> None:
    finite = {"finite_inputs": frozenset("y")}
    exact = noise(**finite, truth={"y": np.array([1, -200.0])})
    for size in (-199.0, -250.0, -1e30):
        assert call(f32(1, -INF), f32(1, size), exact) == "fault"
    for truth in ({}, {"y": np.array([1, -INF])}):
        judgement = one(f32(1, -INF), f32(1, -200), noise(**finite, truth=truth))
        assert judgement.call == "unsure"
        assert "no exact result says" in judgement.detail


def test_a_number_beside_a_pole_is_as_large_as_perturbed_runs_show() -> None:
    runs = noise(jitters=[{"y": f32(1, 1e7)}, {"y": f32(1, 2e6)}, {"y": f32(1, INF)}])
    for size in (1e6, 5e6, 2e7):
        judgement = one(f32(1, INF), f32(1, size), runs)
        assert judgement.call == "sensitivity"
        assert "2e+06 to 1e+07 in size" in judgement.detail
    for size in (1e3, 1e8, -1e7, 0.0):
        assert call(f32(1, INF), f32(1, size), runs) == "fault"


def test_a_result_that_overflows_may_be_nan() -> None:
    ref, cand = f32(1, -INF), f32(1, NAN)
    exact = {"y": np.array([1, -1e42])}
    judgement = one(ref, cand, noise(finite_inputs=frozenset("y"), truth=exact))
    assert judgement.call == "sensitivity"
    assert "of 1 of 2 elements the exact result overflows" in judgement.detail
    small = {"y": np.array([1, -1e12])}
    assert call(ref, cand, noise(finite_inputs=frozenset("y"), truth=small)) == "fault"
    assert call(ref, cand, noise(truth=exact)) == "fault"
    for other in (INF, 0.5):
        assert call(ref, f32(1, other), noise(finite_inputs=frozenset("y"), truth=exact)) == "fault"


@pytest.mark.parametrize("cand", [f32(1, 200), f32(1, -0.5)], ids=["sign", "size"])
def test_an_infinity_that_cannot_be_an_overflow_is_a_fault(cand: np.ndarray) -> None:
    assert call(f32(1, -INF), cand, noise(finite_inputs=frozenset("y"))) == "fault"


# Integers, booleans, strings


DISCRETE = [
    (np.array([1, 2, 3]), np.array([1, 2, 4])),
    (np.array([255, 0], np.uint8), np.array([254, 0], np.uint8)),
    (np.array([True, False]), np.array([True, True])),
    (np.array(["cat", "dog"], object), np.array(["cat", "cow"], object)),
    (np.array(7), np.array(8)),
]


@pytest.mark.parametrize(("ref", "cand"), DISCRETE)
def test_a_discrete_output_that_nothing_rounds_must_be_equal(
    ref: np.ndarray, cand: np.ndarray
) -> None:
    assert call(ref, cand) == "unsure"
    judgement = one(ref, cand, noise(exact=frozenset({"y"})))
    assert judgement.call == "fault"
    assert judgement.structural
    assert "nothing here can round" in judgement.detail


@pytest.mark.parametrize(("ref", "cand"), DISCRETE)
def test_a_discrete_output_behind_a_decision_may_flip_where_jitter_flips_it(
    ref: np.ndarray, cand: np.ndarray
) -> None:
    edge = noise(jitters=[{"y": ref}, {"y": cand}], discontinuous=frozenset({"y"}))
    assert call(ref, cand, edge) == "sensitivity"
    firm = noise(jitters=[{"y": ref}, {"y": ref}], discontinuous=frozenset({"y"}))
    judgement = one(ref, cand, firm)
    assert (judgement.call, judgement.structural) == ("fault", False)


def test_the_share_of_elements_that_differ_is_told() -> None:
    ref, cand = np.arange(10), np.arange(10) * np.array([1] * 8 + [2, 2])
    assert one(ref, cand, noise()).detail == "2 of 10 elements differ"


def test_a_float_that_nothing_rounds_must_be_equal_to_the_last_bit() -> None:
    exact = noise(exact=frozenset({"y"}))
    judgement = one(f32(1, 2), f32(1, 2 + 2 * ULP), exact)
    assert (judgement.call, judgement.structural) == ("fault", True)
    assert call(f32(0.0), f32(-0.0), exact) == "same"


def test_one_quantization_step_is_explained_and_two_are_not() -> None:
    ref = np.array([10, 20, 30], np.uint8)
    steps = noise(steps={"y": 1.0}, discontinuous=frozenset({"y"}))
    assert call(ref, np.array([11, 20, 29], np.uint8), steps) == "sensitivity"
    assert call(ref, np.array([12, 20, 30], np.uint8), steps) == "fault"
    # 0 and 255 are far apart, though -1 as a byte is 255.
    zero = np.array([0, 20, 30], np.uint8)
    assert call(zero, np.array([255, 20, 30], np.uint8), steps) == "fault"


def test_one_step_of_a_dequantized_output_is_explained_and_two_are_not() -> None:
    ref = f32(0.1, 0.2, 0.3)
    steps = noise(steps={"y": 0.1}, discontinuous=frozenset({"y"}))
    assert call(ref, f32(0.1, 0.3, 0.3), steps) == "sensitivity"
    assert call(ref, f32(0.1, 0.4, 0.3), steps) == "fault"


# Rounding and drift


def test_without_noise_only_plain_rounding_is_certain() -> None:
    ref = f32(1, 2, 3)
    assert call(ref, ref * (1 + ULP)) == "drift"
    assert call(ref, ref * F32(1.001)) == "unsure"


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4, 4)])
def test_a_last_place_is_rounding_in_any_shape(shape: tuple[int, ...]) -> None:
    ref = np.asarray(normal(*shape))
    assert call(ref, np.nextafter(ref, F32(9)), noise()) == "drift"


def test_a_difference_of_the_size_of_the_jitter_is_drift() -> None:
    ref = normal(4, 64)
    cand = (ref * (1 + 1e-4 * np.random.default_rng(9).normal(size=ref.shape))).astype(F32)
    assert call(ref, cand, jittered(ref, 1e-4)) == "drift"
    assert call(ref, cand, jittered(ref, 1e-6)) == "fault"


def test_error_and_noise_are_relative_to_the_largest_reference() -> None:
    ref = f32(-4, 1, 2)
    jitters = [{"y": ref + f32(0, 0.004, 0)}, {"y": ref - f32(0, 0.004, 0)}]
    judgement = one(ref, f32(-4, 1, 3), noise(jitters=jitters))
    assert judgement.call == "fault"
    assert judgement.error == pytest.approx(1 / 4)
    assert judgement.noise == pytest.approx(0.004 / 4, rel=1e-3)
    assert judgement.exceeds > 10


def test_a_long_sum_may_be_re_ordered() -> None:
    # 32 u of the RMS, where 4096 terms allow u * sqrt(4096) = 64 u.
    ref = normal(8, 8)
    cand = (ref + 16 * ULP * np.sqrt(np.mean(np.square(ref)))).astype(F32)
    assert call(ref, cand, noise(longest_reduction=1)) == "fault"
    assert call(ref, cand, noise(longest_reduction=4096)) == "drift"


def test_a_one_percent_error_in_a_small_slice_is_not_hidden_by_a_large_one() -> None:
    # Boxes of hundreds of pixels beside scores below one, as detectors return them.
    boxes = np.random.default_rng(0).uniform(10, 600, size=(100, 4)).astype(F32)
    scores = np.random.default_rng(1).uniform(0, 1, size=(100, 1)).astype(F32)
    ref = np.concatenate([boxes, scores], axis=1)
    wrong, fine = ref.copy(), ref.copy()
    wrong[:, 4] *= F32(1.01)
    fine[:, 4] *= F32(1 + 2 * ULP)
    measured = jittered(ref, 2 * ULP)
    assert call(ref, wrong, measured) == "fault"
    assert call(ref, fine, measured) == "drift"


def test_one_wrong_element_of_many_is_a_fault() -> None:
    ref = normal(100, 100)
    cand = ref.copy()
    cand[50, 50] += F32(0.01)
    assert call(ref, cand, jittered(ref, 2 * ULP)) == "fault"


def spread(ref: np.ndarray, size: float, runs: int = 15, **more: Any) -> Noise:
    """Noise of ``size`` of the largest element, on all elements alike in each run."""
    rng = np.random.default_rng(0)
    top = float(np.abs(ref).max())
    moved = [(ref + size * top * rng.normal()).astype(ref.dtype) for _ in range(runs)]
    return Noise(jitters=[{"y": run} for run in moved], **more)


def test_terms_that_cancel_exactly_do_not_refute_the_noise() -> None:
    zeros = np.zeros(4, np.float32)
    moved = np.full(4, 3e-5, np.float32)
    noise = Noise(jitters=[{"y": moved}, {"y": -moved}], truth={"y": zeros.astype(np.float64)})
    assert most_believable("y", zeros, noise) == np.inf
    assert most_believable("y", zeros + 1, replace(noise, truth={"y": zeros + 1.0})) < 1


def test_a_reference_in_float64_does_not_refute_the_noise_of_float32() -> None:
    tiny = np.full(3, 2e-9, np.float32)
    noise = Noise(truth={"y": tiny.astype(np.float64)})
    assert most_believable("y", tiny, noise) < 1e-9
    assert most_believable("y", tiny, replace(noise, in_double=frozenset({"y"}))) == np.inf


def test_noise_that_the_exact_result_refutes_excuses_nothing() -> None:
    ref = normal(4, 64)
    wrong = (ref * F32(1.05)).astype(F32)
    exact = ref.astype(np.float64) * (1 + 1e-7)
    assert call(ref, wrong, spread(ref, 1.0, truth={"y": exact})) == "fault"
    # The reference itself is off by as much as the noise says: then it is noise.
    off = ref.astype(np.float64) * (1 + 0.03)
    assert call(ref, wrong, spread(ref, 0.05, truth={"y": off})) == "sensitivity"


def test_gross_noise_excuses_nothing_before_it_is_compared_with_float64() -> None:
    ref = normal(4, 64)
    cand = (ref + F32(0.005) * np.abs(ref).max()).astype(F32)
    measured = spread(ref, 0.02)
    assert call(ref, cand, replace(measured, checked=False)) == "unsure"
    assert call(ref, cand, measured) == "drift"
    # Of few draws the largest says little: more are asked for before so much is excused.
    cand = (ref + F32(0.012) * np.abs(ref).max()).astype(F32)
    assert call(ref, cand, replace(measured, jitters=measured.jitters[:2])) == "unsure"
    assert call(ref, cand, measured) == "sensitivity"


def test_what_only_noise_explains_and_anybody_sees_is_sensitivity_and_told_with_numbers() -> None:
    ref = normal(4, 64)
    cand = (ref + F32(0.02) * np.abs(ref).max()).astype(F32)
    judgement = one(ref, cand, spread(ref, 0.02))
    assert judgement.call == "sensitivity"
    assert judgement.detail.startswith("differs by 0.02 of its largest value, and rounding alone")


def test_the_bound_for_sums_explains_no_more_than_a_thousandth() -> None:
    # In half precision, the root of a million terms would allow for half of the output.
    ref = normal(4, 64).astype(np.float16)
    cand = (ref * np.float16(1.02)).astype(np.float16)
    assert call(ref, cand, Noise(longest_reduction=10**6)) == "fault"


@pytest.mark.parametrize("size", [1e-6, 1e-4, 1e-2])
def test_the_noise_that_is_told_could_excuse_the_error_beside_it(size: float) -> None:
    ref = normal(4, 64)
    cand = (ref + F32(size) * np.abs(ref).max() * np.sign(normal(4, 64, seed=3))).astype(F32)
    judgement = one(ref, cand, spread(ref, size, longest_reduction=64))
    assert judgement.call in ("drift", "sensitivity")
    assert judgement.error is not None
    assert judgement.noise is not None
    assert judgement.error < 10 * judgement.noise


def test_an_output_of_zeros_that_becomes_something_is_a_fault() -> None:
    judgement = one(np.zeros(4, F32), f32(0, 0, 1, 0), noise())
    assert (judgement.call, judgement.error) == ("fault", math.inf)


# float64 acquits, and never convicts


def test_a_candidate_that_is_closer_to_the_exact_result_is_acquitted() -> None:
    exact = np.random.default_rng(0).normal(size=64)
    ref = (exact * (1 + 1e-3 * np.random.default_rng(1).normal(size=64))).astype(F32)
    cand = exact.astype(F32)
    quiet = jittered(ref, ULP)
    assert call(ref, cand, quiet) == "fault"
    acquitted = one(ref, cand, noise(jitters=quiet.jitters, truth={"y": exact}))
    assert acquitted.call == "drift"
    assert "as close to the exact result as rounding allows" in acquitted.detail


def test_without_an_answer_in_time_a_difference_that_could_be_rounding_is_not_decided() -> None:
    ref = normal(64)
    cand, wrong = (ref * (1 + 1e-4)).astype(F32), (ref * 1.01).astype(F32)
    quiet = jittered(ref, 64 * ULP)
    late = jittered(ref, 64 * ULP, missing="no result after 120 s")
    assert (call(ref, cand, quiet), call(ref, wrong, quiet)) == ("fault", "fault")
    open_ = one(ref, cand, late)
    assert (open_.call, open_.detail) == ("unsure", "no result after 120 s")
    assert call(ref, wrong, late) == "fault"
    with_nan = cand.copy()
    with_nan[0] = NAN
    assert call(ref, with_nan, late) == "fault"


def test_without_any_perturbed_run_in_time_no_size_of_a_difference_convicts() -> None:
    ref = normal(64)
    late = noise(missing="no result after 120 s")
    assert call(ref, (ref * 1.01).astype(F32), late) == "unsure"
    assert call(np.array([3]), np.array([4]), late) == "unsure"


def test_without_an_answer_in_time_few_flips_are_not_decided_and_many_are_a_fault() -> None:
    ref = np.zeros(1000, np.int64)
    late = Noise(jitters=[{"y": ref}], missing="no result after 120 s")
    few, many = ref.copy(), ref.copy()
    few[:5], many[:500] = 1, 1
    assert (call(ref, few, late), call(ref, many, late)) == ("unsure", "fault")


def test_a_candidate_that_is_further_from_the_exact_result_stays_a_fault() -> None:
    exact = np.random.default_rng(0).normal(size=64)
    ref, cand = exact.astype(F32), (exact * 1.01).astype(F32)
    assert call(ref, cand, jittered(ref, ULP, truth={"y": exact})) == "fault"


def test_an_evaluator_that_agrees_with_neither_does_not_convict() -> None:
    ref = normal(64)
    cand = (ref * (1 + 1e-4 * np.random.default_rng(2).normal(size=64))).astype(F32)
    nonsense = {"y": np.full(64, 7.0)}
    assert call(ref, cand, jittered(ref, 1e-4, truth=nonsense)) == "drift"
    # Nor does it acquit a fault by being far from both.
    assert call(ref, ref * F32(1.1), jittered(ref, ULP, truth=nonsense)) == "fault"


def test_an_exact_result_of_another_shape_is_no_evidence() -> None:
    ref = normal(4)
    assert call(ref, ref * F32(1.1), jittered(ref, ULP, truth={"y": np.zeros(3)})) == "fault"


def test_infinity_is_right_where_the_exact_result_exceeds_float32() -> None:
    truth = {"y": np.array([1.0, 1e39])}
    ref, cand = np.array([1, 3.4e38], F32), f32(1, INF)
    assert call(ref, cand, noise(truth=truth)) == "drift"
    assert call(ref, cand, noise()) == "fault"


# Half precision, declared tolerances


def test_half_precision_has_steps_of_its_own() -> None:
    ref = np.array([1, 2, 1000], F16)
    assert call(ref, np.array([1, 2, 1000.5], F16), noise()) == "drift"
    assert call(ref, np.array([1, 2, 1100], F16), noise()) == "fault"


def test_the_largest_half_does_not_overflow_in_the_comparison() -> None:
    judgement = one(np.array([60000, 1], F16), np.array([-60000, 1], F16), noise())
    assert (judgement.call, judgement.error) == ("fault", 2.0)


def test_a_declared_tolerance_decides_for_a_lossy_pass() -> None:
    ref = f32(1, 2, 4)
    lossy = noise(tolerance=0.01)
    assert call(ref, f32(1, 2, 4.02), lossy) == "drift"
    assert call(ref, f32(1, 2, 4.1), lossy) == "fault"
    assert call(ref, f32(1, 2, NAN), lossy) == "fault"


# Extreme magnitudes: warnings are errors here


@pytest.mark.parametrize("scale", [1e38, 1e-40, 1e-44, 3e30, 1e-20])
def test_neither_huge_nor_tiny_values_confuse_the_oracle(scale: float) -> None:
    # Multiples of the least subnormal, so that tiny values stay what they are.
    ref = (np.array([1, 2, 3, -2] * 8) * scale).astype(F32)
    assert call(ref, ref.copy(), noise()) == "same"
    assert call(ref, -ref, noise()) == "fault"
    assert call(ref, np.roll(ref, 1), jittered(ref, ULP)) == "fault"


def test_huge_and_tiny_float64_values_do_not_overflow() -> None:
    ref = np.array([1e308, -1e308, 1e-308])
    judgement = one(ref, -ref, noise(jitters=[{"y": ref * (1 - 1e-15)}]))
    assert judgement.call == "fault"


# Empty and 0-d


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (2, 0, 5)])
def test_empty_outputs_are_the_same_in_any_shape(shape: tuple[int, ...]) -> None:
    assert call(np.zeros(shape, F32), np.ones(shape, F32), noise()) == "same"


def test_a_scalar_is_judged_like_any_other() -> None:
    ref = np.array(2, F32)
    assert call(ref, np.array(2 + 2 * ULP, F32), noise()) == "drift"
    assert call(ref, np.array(2.1, F32), noise()) == "fault"
    assert call(ref, np.array(NAN, F32), noise()) == "fault"


# Properties


_DTYPES = st.one_of(
    hnp.floating_dtypes(endianness="="),
    hnp.integer_dtypes(endianness="="),
    hnp.unsigned_integer_dtypes(endianness="="),
    hnp.boolean_dtypes(),
    st.just(np.dtype(object)),
).filter(lambda dtype: dtype.itemsize <= 8)
_SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def arrays_of(dtype: np.dtype) -> st.SearchStrategy[np.ndarray]:
    elements = st.text(max_size=3) if dtype.kind == "O" else None
    return hnp.arrays(dtype, _SHAPES, elements=elements)


@given(_DTYPES.flatmap(arrays_of), st.booleans())
def test_anything_is_the_same_as_itself(array: np.ndarray, measured: bool) -> None:
    exact = noise(exact=frozenset({"y"})) if measured else None
    assert call(array, array.copy(), exact) == "same"


finite_arrays = hnp.arrays(
    F32, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(-1e3, 1e3, width=32)
)


@given(finite_arrays, st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(1, 100))
@settings(max_examples=200)
def test_a_larger_difference_is_never_judged_milder(
    ref: np.ndarray, seed: int, size: float, growth: float
) -> None:
    direction = np.random.default_rng(seed).normal(size=ref.shape)
    measured = jittered(ref, 1e-4, seed=seed)
    smaller = (ref + size * direction).astype(F32)
    larger = (ref + size * growth * direction).astype(F32)
    mild, severe = one(ref, smaller, measured), one(ref, larger, measured)
    # Rounding to float32 may shrink a difference by an ulp, which matters only near equality.
    if np.all(np.abs(larger - ref) >= np.abs(smaller - ref)):
        assert BADNESS.index(severe.call) >= BADNESS.index(mild.call)


@given(finite_arrays, st.integers(0, 2**32 - 1), st.sampled_from([1e-7, 1e-5, 1e-2, 1.0]))
def test_swapping_the_two_does_not_turn_a_gross_fault_into_drift(
    ref: np.ndarray, seed: int, size: float
) -> None:
    direction = np.random.default_rng(seed).normal(size=ref.shape)
    cand = (ref + size * (1 + np.abs(ref)) * direction).astype(F32)
    there, back = one(ref, cand, noise()), one(cand, ref, noise())
    if there.call == "fault" and there.exceeds > 4:
        assert back.call == "fault"


@given(finite_arrays, st.integers(0, 2**32 - 1))
def test_scaling_by_a_power_of_two_changes_no_verdict(ref: np.ndarray, seed: int) -> None:
    ref = np.where(np.abs(ref) < 1e-3, F32(0), ref)  # clear of subnormals after scaling
    direction = np.random.default_rng(seed).normal(size=ref.shape)
    cand = (ref * (1 + 1e-6 * direction)).astype(F32)
    measured = jittered(ref, 3e-7, seed=seed)
    factor = F32(2**40)
    scaled = Noise(jitters=[{"y": j["y"] * factor} for j in measured.jitters])
    assert call(ref, cand, measured) == call(ref * factor, cand * factor, scaled)


# What comparators are told


def test_uncertainty_by_hand() -> None:
    ref, u = f32(3, -4, INF), ULP / 2
    # Nothing is summed: eight units of the largest number.
    assert uncertainty("y", ref, noise()) == pytest.approx(8 * u * 4)
    # Sums of 10,000 terms: sqrt(10,000) units, and one for the last rounding.
    assert uncertainty("y", ref, noise(longest_reduction=10_000)) == pytest.approx(101 * u * 4)
    # Eight times what the reference itself moved, beside that.
    moved = noise(jitters=[{"y": f32(3, -4.5, INF)}])
    assert uncertainty("y", ref, moved) == pytest.approx(8 * 0.5 + 2 * u * 4, rel=1e-6)
    assert uncertainty("y", ref, noise(exact=frozenset({"y"}))) == 0
    assert uncertainty("y", np.array([1, 2]), noise()) is None


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-9, 0), st.floats(-9, 0), st.integers(1, 10**6))
def test_what_is_drift_lies_within_the_uncertainty(
    seed: int, error: float, size: float, terms: int
) -> None:
    ref = normal(3, 20, seed=seed)
    rng = np.random.default_rng([seed, 1])
    cand = (ref + 10**error * rng.normal(size=ref.shape)).astype(F32)
    known = jittered(ref, 10**size, seed=seed, longest_reduction=terms)
    for given_noise in (known, noise(longest_reduction=terms, measured=False)):
        level = uncertainty("y", ref, given_noise)
        assert level is not None
        if call(ref, cand, given_noise) in ("same", "drift"):
            assert np.abs(ref.astype(float) - cand).max() <= level * (1 + 1e-9)


def test_a_fault_of_other_kernels_says_how_much_less_exact_they_are() -> None:
    ref = normal(64)
    exact = {"y": ref.astype(np.float64) * (1 + 1e-7)}
    wrong = {"y": (exact["y"] * (1 + 1e-3)).astype(F32)}
    about = jittered(ref, 1e-7, truth=exact)
    (judged,) = judge({"y": ref}, wrong, about, OTHER_KERNELS)
    assert judged.call == "fault"
    assert judged.detail == "1e+04 times as far from the exact result as the original"
    (same_kernels,) = judge({"y": ref}, wrong, about)
    assert (same_kernels.call, same_kernels.detail) == ("fault", "")


@pytest.mark.parametrize(("came", "call"), [(1, "sensitivity"), (2, "fault")])
def test_a_label_is_noise_where_operators_that_round_otherwise_give_it(
    came: int, call: str
) -> None:
    label, other = np.array([0, 3]), np.array([1, 3])
    noise = Noise(jitters=[{"y": label}] * 3, injected=[{"y": label}, {"y": other}])
    (judged,) = judge({"y": label}, {"y": np.array([came, 3])}, noise)
    assert judged.call == call
