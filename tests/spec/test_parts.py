"""Parts of outputs whose values have ranges of their own."""

from __future__ import annotations

import numpy as np
import pytest

from optvet.spec.parts import OutputPart, parts_of, parts_of_outputs

RNG = np.random.default_rng(0)
BOXES, SCORES = RNG.uniform(0, 640, (1, 4, 64)), RNG.uniform(0, 1, (1, 3, 64))
BOTH = np.concatenate([BOXES, SCORES], axis=1).astype(np.float32)


def names(*values: np.ndarray) -> list[str]:
    return [str(part) for part in parts_of(values)]


@pytest.mark.parametrize("axis", [1, 2])
def test_boxes_and_scores_in_one_tensor_are_two_parts(axis: int) -> None:
    boxes, scores = parts_of([BOTH if axis == 1 else BOTH.transpose(0, 2, 1)])
    assert (boxes.axis, boxes.start, boxes.stop) == (axis, 0, 4)
    assert (scores.axis, scores.start, scores.stop) == (axis, 4, 7)
    assert scores.largest == pytest.approx(SCORES.max())
    assert str(scores) == ("[:, 4:7]" if axis == 1 else "[:, :, 4:7]")
    turned = BOTH if axis == 1 else BOTH.transpose(0, 2, 1)
    assert scores.of(turned).max() == np.float32(SCORES.max())


def test_classes_that_did_not_come_are_no_parts() -> None:
    classes = RNG.uniform(0, 1e-3, (1, 80, 64))
    classes[0, [3, 17, 40]] = RNG.uniform(0, 1, (3, 64))
    assert names(np.concatenate([BOXES, classes], axis=1)) == ["[:, 0:4]", "[:, 4:84]"]
    assert names(classes) == []


def test_quantities_that_alternate_are_parts() -> None:
    corners = np.stack([RNG.uniform(0, 640, (64, 2)), RNG.uniform(0, 1, (64, 2))], axis=2)
    found = parts_of([corners.reshape(1, 64, 4)])
    assert [str(part) for part in found] == ["[:, :, 0:4:2]", "[:, :, 1:4:2]"]
    assert found[1].of(corners.reshape(1, 64, 4)).max() < 1
    points = RNG.uniform(0, 1, (1, 64, 17, 3)) * [640, 480, 1]
    assert names(points.reshape(1, 64, 51)) == [f"[:, :, {i}:51:3]" for i in range(3)]
    # Every other class came, of scores or of a few values.
    assert names(RNG.uniform(0, 1, (1, 64, 6)) * [1, 1e-2, 1, 1e-2, 1, 1e-2]) == []
    assert names(RNG.uniform(0, 1, (1, 2, 4)) * [640, 1, 640, 1]) == []


def test_probabilities_are_shares_of_one_whole() -> None:
    rare = np.stack([np.linspace(0.98, 0.999, 64), np.linspace(0.02, 0.001, 64)], axis=1)
    assert names(rare) == []
    assert names(*rare[:, None]) == []
    assert names(rare * [[1, 5]]) == ["[:, 0:1]", "[:, 1:2]"]


def test_a_range_is_known_from_enough_values_alone() -> None:
    # None is negative, and that all of one row are one sum says nothing.
    rows = [RNG.uniform(size=(1, 4)) * [[500, 500, 1, 1]] for _ in range(12)]
    assert names(rows[0]) == []
    assert names(*rows) == ["[:, 0:2]", "[:, 2:4]"]


@pytest.mark.parametrize(
    "value",
    [
        np.float32(3),
        np.zeros((2, 0)),
        np.zeros((1, 40, 3)),
        np.full((1, 40, 3), np.nan),
        # What is left of terms that cancel has no range that matters.
        np.concatenate([BOXES, RNG.normal(size=(1, 3, 64)) * 1e-5], axis=1),
        np.concatenate([BOXES, np.zeros((1, 3, 64))], axis=1),
        # Rows of a batch are no parts of one answer.
        np.concatenate([BOXES[0], SCORES[0]]),
        RNG.normal(size=(1, 64, 8, 8)) * np.exp(RNG.normal(size=(64, 1, 1))),
        # A sound that ends early, of which there is one.
        np.concatenate([RNG.normal(size=(1, 4000)), RNG.normal(size=(1, 1000)) / 100], axis=1),
    ],
)
def test_other_tensors_have_no_parts(value: np.ndarray) -> None:
    assert names(np.asarray(value)) == []


def test_an_axis_of_any_length_has_no_parts() -> None:
    assert names(BOTH, BOTH[:, :, :9]) == ["[:, 0:4]", "[:, 4:7]"]
    assert names(BOTH, BOTH[:, :5]) == []
    assert names(BOTH, BOTH[0]) == []


def test_the_range_is_that_of_all_samples_and_all_outputs_are_looked_at() -> None:
    quiet = BOTH.copy()
    quiet[:, 4:] *= 0.01
    found = parts_of_outputs([{"pred": quiet, "other": BOXES}, {"pred": BOTH, "n": np.arange(9)}])
    assert found == {
        "pred": (OutputPart(1, 0, 4, BOTH[:, :4].max()), OutputPart(1, 4, 7, BOTH[:, 4:].max()))
    }
