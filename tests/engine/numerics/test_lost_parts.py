"""What outputs and their parts lost."""

from __future__ import annotations

import numpy as np

from optvet.engine.numerics.lost_parts import LostParts, lost_by

RNG = np.random.default_rng(0)
SCORES = RNG.uniform(0, 1, (1, 3, 64))
BOTH = np.concatenate([RNG.uniform(0, 640, (1, 4, 64)), SCORES], axis=1)


def test_a_part_that_became_constant_or_narrow_or_another_order_is_told() -> None:
    assert lost_by(SCORES, SCORES * 0).startswith("became constant: 0 where it was 0.0")
    assert lost_by(SCORES, SCORES * 0.4).startswith("is 0.00")
    assert lost_by(SCORES, SCORES * 3).startswith("is 0.0")
    assert lost_by(SCORES, RNG.permuted(SCORES, axis=2)).startswith("has another order: its ranks")
    assert lost_by(SCORES, np.round(SCORES * 8) / 8) == ""
    assert lost_by(SCORES, SCORES * 0.6 + 0.1) == ""
    assert lost_by(SCORES * 0 + 1, SCORES) == ""
    assert lost_by(np.full(4, np.nan), np.zeros(4)) == ""


def test_each_part_of_each_output_is_looked_at_over_all_samples() -> None:
    reference = {"1": {"pred": BOTH, "n": np.arange(3)}, "2": {"pred": BOTH * 0.9}}
    wrong = BOTH.copy()
    wrong[:, 4:] = 0
    lost = LostParts()
    lost.add(reference, {"1": {"pred": wrong}, "2": {"pred": wrong}})
    (words,) = lost.words()
    assert words.startswith("pred[:, 4:7] became constant: 0 where it was 0.0")
    # One sample on which the scores are told apart is enough.
    lost.add({"3": {"pred": BOTH}}, {"3": {"pred": BOTH}})
    assert lost.words() == []
    lost = LostParts()
    lost.add(reference, {"1": {"pred": BOTH[0]}})
    assert lost.words() == []
