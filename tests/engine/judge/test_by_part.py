"""A small part of an output that is wrong does not hide behind a large one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.sample import SampleVerdict, Setting, judge_sample
from optvet.spec.parts import parts_of

RNG = np.random.default_rng(0)
BOXES = RNG.uniform(100, 640, (1, 4, 64))
SCORES = RNG.uniform(0, 1, (1, 3, 64))
BOTH = np.concatenate([BOXES, SCORES], axis=1).astype(np.float32)
LOSSY = Setting(tolerance=0.1, parts={"pred": parts_of([BOTH])})


def with_scores(scores: np.ndarray, boxes: np.ndarray = BOXES) -> dict[str, np.ndarray]:
    return {"pred": np.concatenate([boxes, scores], axis=1).astype(np.float32)}


def lossy(came: dict[str, np.ndarray], noise: Noise | None = None) -> SampleVerdict:
    return judge_sample({"pred": BOTH}, came, noise, LOSSY)


def test_a_declared_error_is_a_share_of_the_range_of_each_part() -> None:
    wrong = with_scores(SCORES * 0)
    # A thousandth of the largest value.
    assert judge_sample({"pred": BOTH}, wrong, None, Setting(tolerance=0.1)).state == "drift"
    found = lossy(wrong)
    assert (found.state, found.outputs) == ("fault", ("pred",))
    assert found.message.startswith(
        "output 'pred' differs in [:, 4:7] by 1 of the range of that part; 0.1 is declared; it "
        "became constant: 0 where it was"
    )
    near = lossy(with_scores(SCORES + 0.05))
    assert near.state == "drift"
    assert near.error == pytest.approx(0.05, rel=0.1)
    assert lossy(with_scores(SCORES, BOXES + 50)).state == "drift"
    assert "of its range" in lossy(with_scores(SCORES, BOXES + 100)).message
    assert lossy(with_scores(SCORES * np.nan)).state == "fault"


def test_what_counts_is_the_range_on_all_samples() -> None:
    # Where nothing is found all scores are small, and a step of the quantizer is most of them.
    quiet = {"pred": with_scores(SCORES * 0.01)["pred"]}
    assert judge_sample(quiet, with_scores(SCORES * 0), None, LOSSY).state == "drift"


def test_a_part_that_rounding_moves_further_is_not_held_to_what_is_declared() -> None:
    moved = tuple(with_scores(SCORES + step) for step in (-0.1, 0.1))
    assert lossy(with_scores(SCORES * 0.5), Noise(jitters=moved)).state == "drift"
    quiet = tuple(with_scores(SCORES + step) for step in (-1e-6, 1e-6))
    assert lossy(with_scores(SCORES * 0.5), Noise(jitters=quiet)).state == "fault"


def narrow(value: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first eight boxes: no class alone has the sixteen values that tell its noise."""
    return {"pred": value["pred"][:, :, :8]}


def test_a_part_is_judged_by_its_own_noise() -> None:
    expected = narrow({"pred": BOTH})
    # Boxes that rounding moves by up to 0.2 pixels, beside scores that it leaves alone.
    steps = [RNG.normal(size=BOXES.shape) * 0.2 for _ in range(6)]
    noise = Noise(
        jitters=[narrow(with_scores(SCORES * (1 + 1e-7), BOXES + step)) for step in steps],
        longest_reduction=64,
    )
    whole = judge_sample(expected, narrow(with_scores(SCORES, BOXES + steps[0])), noise)
    assert whole.state == "drift"
    found = judge_sample(expected, narrow(with_scores(SCORES + 0.3, BOXES + steps[0])), noise)
    assert found.state == "fault"
    assert found.message.startswith("output 'pred' differs in [:, 4:7] by 0.3")
    # Scores that rounding moves as far, after a cancellation, say.
    loose = [narrow(with_scores(SCORES + s[:, :3] / 2, BOXES + s)) for s in steps]
    noise = replace(noise, jitters=loose)
    came = narrow(with_scores(SCORES + 0.1, BOXES + steps[0]))
    assert judge_sample(expected, came, noise).state in ("drift", "sensitivity")


def test_without_noise_a_part_within_the_rounding_of_the_other_is_unclear() -> None:
    expected, came = narrow({"pred": BOTH}), narrow(with_scores(SCORES + 1e-4))
    assert judge_sample(expected, came).state == "undecided"
    assert judge_sample(expected, came, None, Setting(quick=10.0)).state == "drift"
