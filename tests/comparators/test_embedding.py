from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.neighbors import NearestNeighbors

from optvet import InputError, Sample
from optvet.plugin import Comparison, Model, ModelConfig
from optvet_embedding import (
    EmbeddingComparator,
    EmbeddingOptions,
    cosine,
    neighbour_agreement,
)

COMPARATOR = EmbeddingComparator()
vectors = hnp.arrays(np.float64, 6, elements=st.floats(-100, 100))


def model(task: str | None = None) -> Model:
    path = Path("m.onnx")
    return Model("m", path, path, "0", (), (), 8, {}, 1, 1, ModelConfig(task=task))


def compare(before: Any, after: Any, noise: float = 0.0, **options: Any) -> Comparison:
    return COMPARATOR.compare(
        model(),
        Sample("s", {}),
        {"embedding": np.asarray(before)},
        {"embedding": np.asarray(after)},
        EmbeddingOptions(**options),
        noise={"embedding": noise},
    )


# Worked out by hand


def test_cosine_by_hand() -> None:
    assert cosine(np.array([3.0, 4]), np.array([4.0, 3])) == pytest.approx(24 / 25)
    assert cosine(np.array([1.0, 0]), np.array([0.0, 2])) == 0
    assert cosine(np.array([1.0, 2]), np.array([-2.0, -4])) == pytest.approx(-1)
    assert cosine(np.zeros(2), np.zeros(2)) == 1
    assert cosine(np.zeros(2), np.ones(2)) == 0
    assert cosine(np.array([1e200, 0]), np.array([1e200, 0.0]) * 2) == 1


def test_neighbours_by_hand() -> None:
    # At 0°, 10°, 40° and 50° the pairs are neighbours. Turning the second to 35° takes it to the
    # third, whose neighbour it becomes; the first and the last keep theirs.
    ours, theirs = (
        np.array([[np.cos(a), np.sin(a)] for a in np.radians(angles)])
        for angles in ([0, 10, 40, 50], [0, 35, 40, 50])
    )
    assert neighbour_agreement(ours, ours) == 1
    assert neighbour_agreement(ours, theirs) == 0.5


def test_neighbours_are_looked_for_in_all_samples() -> None:
    angles = [([0], [0]), ([10], [35]), ([40], [40]), ([50], [50])]

    def on_circle(angle: Sequence[float]) -> np.ndarray:
        return np.array([[np.cos(np.radians(angle[0])), np.sin(np.radians(angle[0]))]])

    comparisons = [compare(on_circle(a), on_circle(b)) for a, b in angles]
    summary = COMPARATOR.summarise(comparisons, EmbeddingOptions())
    assert summary.metrics["neighbour_agreement"] == 0.5
    assert summary.metrics["cosine"] == pytest.approx(np.cos(np.radians(25)))
    assert summary.headline == (
        "1 of 4 vectors changed direction; lowest cosine 0.906308, "
        "2 of 4 nearest neighbours changed"
    )


def test_two_vectors_have_no_choice_of_neighbours() -> None:
    assert neighbour_agreement(np.eye(2), np.eye(2)) is None
    summary = COMPARATOR.summarise([compare(np.eye(2), np.eye(2))], EmbeddingOptions())
    assert "neighbour_agreement" not in summary.metrics


def test_equal_neighbours_are_as_good_as_each_other() -> None:
    ours = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    assert neighbour_agreement(ours, ours[::-1][[1, 2, 3, 0]]) == 1


def test_neighbours_closer_than_noise_are_equal() -> None:
    ours = np.array([[1.0, 0, 0], [0.9, 0.1, 0], [0.9, 0, 0.1001]])
    theirs = ours[[0, 2, 1]]
    assert neighbour_agreement(ours, theirs) != 1
    assert neighbour_agreement(ours, theirs, doubt=1.0) == 1


# Planted changes


@pytest.mark.parametrize("kind", ["turned", "negated", "permuted", "zero"])
def test_planted_changes_must_fail(kind: str) -> None:
    before = np.random.default_rng(0).normal(size=(4, 16))
    after = {
        "turned": before + 0.5 * np.roll(before, 1, 1),
        "negated": -before,
        "permuted": before[::-1],
        "zero": np.zeros_like(before),
    }[kind]
    compared = compare(before, after)
    assert compared.changed
    assert compared.metrics["cosine"] < 0.99


def test_length_alone_does_not_turn_but_is_told() -> None:
    before = np.random.default_rng(0).normal(size=(4, 16))
    compared = compare(before, 2 * before)
    assert not compared.changed
    assert compared.metrics["max_distance"] > 1


def test_turned_within_noise_is_sensitivity() -> None:
    before, after = np.array([[1e-3, 0.0]]), np.array([[0.0, 1e-3]])
    compared = compare(before, after, noise=0.01)
    assert (compared.changed, compared.sensitive) == (False, True)


# Shapes, NaN, nothing


@pytest.mark.parametrize("shape", [(2, 12), (2, 1, 1, 12), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
def test_a_row_is_a_vector(shape: tuple[int, ...], dtype: Any) -> None:
    value = np.arange(24).reshape(shape).astype(dtype)
    compared = compare(value, value)
    assert compared.metrics["rows"] == 2
    assert compared.metrics["cosine"] == 1
    assert compare(np.arange(3.0), np.arange(3.0)).metrics["rows"] == 1


def test_nan_is_defined() -> None:
    before, broken = np.ones((3, 4)), np.ones((3, 4))
    broken[1, 1] = np.nan
    assert compare(broken, broken.copy()).metrics["cosine"] == 1
    for pair in ((before, broken), (broken, before)):
        compared = compare(*pair, noise=1e9)
        assert compared.changed
        assert compared.metrics["cosine"] == 0
        assert compared.metrics["max_distance"] == np.inf
        COMPARATOR.summarise([compared], EmbeddingOptions())
    lost = COMPARATOR.summarise([compare(before, broken)], EmbeddingOptions())
    assert lost.metrics["neighbour_agreement"] == pytest.approx(2 / 3)


def test_an_empty_batch_has_no_vectors() -> None:
    compared = compare(np.zeros((0, 4)), np.zeros((0, 4)))
    assert not compared.changed
    assert COMPARATOR.summarise([compared], EmbeddingOptions()).metrics == {"rows": 0}


def test_what_is_no_vector_is_refused() -> None:
    words = np.array(["a"], object)
    with pytest.raises(InputError, match="no output 'with vectors'"):
        compare(words, words)


# Properties


@given(hnp.arrays(np.float32, (5, 8), elements=st.floats(-100, 100, width=32)))
def test_identical_vectors_are_perfect(value: np.ndarray) -> None:
    compared = compare(value, value.copy())
    assert compared.metrics["cosine"] == 1
    assert not compared.changed
    summary = COMPARATOR.summarise([compared], EmbeddingOptions())
    assert summary.metrics["neighbour_agreement"] == 1


@given(vectors, vectors)
def test_cosine_is_symmetric_bounded_and_scipys(a: np.ndarray, b: np.ndarray) -> None:
    assert cosine(a, b) == cosine(b, a)
    assert -1 <= cosine(a, b) <= 1
    assume(min(np.linalg.norm(a), np.linalg.norm(b)) > 1e-6)
    assert cosine(a, b) == pytest.approx(1 - scipy.spatial.distance.cosine(a, b), abs=1e-9)


@given(st.floats(0, np.pi), st.floats(0, np.pi))
def test_cosine_falls_with_the_angle(x: float, y: float) -> None:
    less, more = sorted((x, y))
    axis = np.array([1.0, 0])
    values = [cosine(axis, np.array([np.cos(a), np.sin(a)])) for a in (less, more)]
    assert values[0] >= values[1] - 1e-12


@given(st.integers(0, 2**32 - 1))
def test_neighbours_are_sklearns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ours = rng.normal(size=(12, 5))
    theirs = ours + rng.normal(size=ours.shape)
    found = [
        NearestNeighbors(n_neighbors=1, metric="cosine").fit(v).kneighbors(return_distance=False)
        for v in (ours, theirs)
    ]
    expected = float(np.mean(found[0] == found[1]))
    assert neighbour_agreement(ours, theirs) == pytest.approx(expected, abs=1e-9)


# Choosing it


def test_it_recognises_its_tasks() -> None:
    for task in ("audio embedding", "face recognition", "feature-extraction"):
        assert COMPARATOR.matches(model(task), {"y": np.zeros((1, 96))}) >= 0.9
    assert COMPARATOR.matches(model("policy"), {"y": np.zeros((1, 96))}) < 0.01


def test_it_infers_names_and_unit_vectors() -> None:
    value = np.random.default_rng(0).normal(size=(2, 64))
    assert COMPARATOR.matches(model(), {"y": value}) < 0.01
    assert 0.01 < COMPARATOR.matches(model(), {"sentence_embedding": value}) < 0.9
    unit = value / np.linalg.norm(value, axis=1, keepdims=True)
    assert 0.01 < COMPARATOR.matches(model(), {"y": unit}) < 0.9
    assert COMPARATOR.matches(model(), {"y": np.eye(64)[:2]}) < 0.01
