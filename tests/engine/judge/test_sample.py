"""From what was expected and what came to a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.sample import (
    InterfaceProblem,
    Setting,
    judge_sample,
    refine,
    telling_tolerance,
    unlike,
)
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.spec.types import Failure

Y = np.array([1.0, 2.0, 4.0], np.float32)
QUICK = Setting(quick=1.0)


def off(by: float) -> dict[str, np.ndarray]:
    return {"y": np.asarray(Y * (1 + by), np.float32)}


def noise(of: float) -> Noise:
    return Noise(jitters=[off(of * sign) for sign in (1, -1, 1)])


def test_what_is_equal_is_the_same() -> None:
    verdict = judge_sample({"y": Y}, {"y": Y.copy()})
    assert (verdict.state, verdict.symptom, verdict.right) == ("same", None, True)


def test_without_noise_a_difference_is_undecided_and_with_it_a_fault_or_drift() -> None:
    came = off(1e-4)
    assert judge_sample({"y": Y}, came).state == "undecided"
    assert judge_sample({"y": Y}, came, noise(1e-4)).state == "drift"
    verdict = judge_sample({"y": Y}, came, noise(1e-7))
    assert (verdict.state, verdict.symptom, verdict.stage) == ("fault", "wrong-output", "compare")
    assert verdict.outputs == ("y",)
    assert verdict.error == pytest.approx(1e-4, rel=1e-2)
    assert verdict.message.startswith("output 'y' differs by ")


def test_other_kernels_are_a_setting() -> None:
    came, known = off(1e-6), replace(noise(6e-8), finite_inputs=frozenset("y"))
    assert judge_sample({"y": Y}, came, known).state == "fault"
    assert judge_sample({"y": Y}, came, known, Setting(OTHER_KERNELS)).state == "drift"


@pytest.mark.parametrize(("by", "state"), [(1e-5, "drift"), (1e-3, "fault")])
def test_a_quick_look_is_a_setting_without_noise(by: float, state: str) -> None:
    assert judge_sample({"y": Y}, off(by), setting=QUICK).state == state


def test_a_quick_look_excuses_no_nan_and_no_integer() -> None:
    came = {"y": np.array([1, 2, math.nan], np.float32)}
    assert judge_sample({"y": Y}, came, setting=QUICK).state == "fault"
    whole = np.array([1, 2])
    verdict = judge_sample({"y": whole}, {"y": np.array([1, 3])}, setting=QUICK)
    assert verdict.state == "fault"
    assert verdict.message == "output 'y' 1 of 2 elements differ: 2 became 3"


def test_a_declared_tolerance_is_a_share_of_the_usual_range() -> None:
    declared = Setting(tolerance=0.01)
    assert judge_sample({"y": Y}, off(0.005), setting=declared).state == "drift"
    assert judge_sample({"y": Y}, off(0.05), setting=declared).state == "fault"
    wide = replace(declared, ranges={"y": 40.0})
    verdict = judge_sample({"y": Y}, off(0.05), setting=wide)
    assert verdict.state == "drift"
    assert verdict.noise == pytest.approx(0.01)


def test_the_worst_output_decides() -> None:
    expected = {"a": Y, "b": Y, "c": Y}
    came = {"a": Y, "b": off(1e-3)["y"], "c": off(1e-1)["y"]}
    jitters = [{n: off(1e-7)["y"] for n in expected}] * 3
    verdict = judge_sample(expected, came, Noise(jitters=jitters))
    assert verdict.outputs == ("b", "c")
    assert verdict.message.startswith("output 'c' ")
    assert [j.call for j in verdict.judgements] == ["same", "fault", "fault"]
    assert verdict.max_error == pytest.approx(0.4, rel=1e-3)


def test_what_is_missing_or_of_another_form_is_a_fault_without_a_size() -> None:
    for came in ({}, {"y": Y[:2]}, {"y": Y.astype(np.float64)}):
        verdict = judge_sample({"y": Y}, came, noise(1.0))
        assert verdict.state == "fault"
        assert verdict.error is None


def test_failures_and_interfaces_are_judged_by_the_same_function() -> None:
    failed = judge_sample({"y": Y}, Failure("error", "run", "no"))
    assert (failed.symptom, failed.stage, failed.failed) == ("run-failure", "run", True)
    other = judge_sample({"y": Y}, InterfaceProblem("outputs ['y'] became ['z']", ("y",)))
    assert (other.symptom, other.outputs, other.failed) == ("interface-change", ("y",), False)


def test_a_caller_may_know_more_of_an_output() -> None:
    verdict = judge_sample(
        {"y": Y}, off(1e-2), noise(1e-7), review=lambda j: replace(j, call="drift")
    )
    assert verdict.state == "drift"


def test_noise_is_refined_only_as_long_as_the_verdict_depends_on_it() -> None:
    taken: list[float] = []
    measured: list[float] = []

    def stages() -> Iterator[Noise]:
        for size in (1e-7, 1e-6, 1e-4, 1e-2):
            measured.append(size)
            yield noise(size)

    def take(found: Noise) -> bool:
        taken.append(0.0)
        return judge_sample({"y": Y}, off(1e-4), found).state == "fault"

    refine(stages(), take)
    assert measured == [1e-7, 1e-6, 1e-4]
    assert len(taken) == 3


def test_a_second_run_is_alike_bit_for_bit() -> None:
    nan = {"y": np.array([1, math.nan], np.float32)}
    assert unlike(nan, {"y": nan["y"].copy()}) == set()
    assert unlike({"y": Y, "z": Y}, {"y": off(1e-7)["y"]}) == {"y", "z"}


@pytest.mark.parametrize(
    ("error", "noise_floor"), [(1e-2, 1e-7), (1e-2, 9e-3), (0.5, None), (1e-8, 0.0)]
)
def test_a_script_calls_the_error_wrong_and_the_noise_right(
    error: float, noise_floor: float | None
) -> None:
    assert telling_tolerance(error, noise_floor) < error
