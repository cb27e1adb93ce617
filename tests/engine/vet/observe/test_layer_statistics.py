"""How a value differs between two models, in numbers."""

from __future__ import annotations

import numpy as np
import pytest

from optvet.engine.vet.observe.layer_statistics import activation_of


def test_the_worst_part_of_a_value_speaks_for_it() -> None:
    rng = np.random.default_rng(0)
    boxes, scores = rng.uniform(0, 640, (1, 4, 32)), rng.uniform(0, 1, (1, 3, 32))
    value, wrong = (np.concatenate([boxes, s], axis=1) for s in (scores, 1 - scores))
    found = activation_of(value.astype(np.float32), wrong.astype(np.float32))
    assert found is not None
    apart, lengths = 1 - 2 * scores, np.linalg.norm(scores) * np.linalg.norm(1 - scores)
    assert found.rms_difference == pytest.approx(
        np.linalg.norm(apart) / np.linalg.norm(scores), rel=1e-3
    )
    assert found.cosine == pytest.approx(float(np.sum(scores * (1 - scores))) / lengths, rel=1e-3)
    same = activation_of(boxes, boxes)
    assert same is not None
    assert same.rms_difference == 0
    assert same.cosine == pytest.approx(1)
