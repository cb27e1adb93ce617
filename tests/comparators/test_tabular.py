from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, max_error

from optvet import InputError, Sample
from optvet.plugin import Comparison, Model, ModelConfig, ValueInfo
from optvet_tabular import TabularComparator, TabularOptions

COMPARATOR = TabularComparator()
Outputs = dict[str, Any]
ROW = ValueInfo("X", "float", (None, 4))


def model(
    task: str | None = None, inputs: tuple[ValueInfo, ...] = (ROW,), domain: str = "ai.onnx"
) -> Model:
    path = Path("m.onnx")
    opsets = {domain: 1}
    return Model("m", path, path, "0", inputs, (), 8, opsets, 1, 1, ModelConfig(task=task))


def compare(
    before: Outputs, after: Outputs, noise: float = 0.0, label: Any = None, **options: Any
) -> Comparison:
    sides = [{n: np.asarray(v) for n, v in side.items()} for side in (before, after)]
    return COMPARATOR.compare(
        model(),
        Sample("s", {}, label),
        sides[0],
        sides[1],
        TabularOptions(**options),
        noise=dict.fromkeys(before, noise),
    )


SURE: Outputs = {"label": np.array([0, 1]), "probabilities": np.array([[0.9, 0.1], [0.4, 0.6]])}
FLIPPED: Outputs = {"label": np.array([0, 0]), "probabilities": np.array([[0.9, 0.1], [0.6, 0.4]])}


def words(*values: str) -> np.ndarray:
    return np.array(values, object)


# Worked out by hand


def test_labels_and_probabilities_by_hand() -> None:
    compared = compare(SURE, FLIPPED, label=[0, 1])
    assert compared.metrics == {
        "rows": 2,
        "label_agreement": 0.5,
        "probability_change": pytest.approx(0.2),
        "rows_changed": 1,
        "rows_undecided": 0,
        "accuracy_reference": 1,
        "accuracy_candidate": 0.5,
        "accuracy_delta": -0.5,
    }
    assert compared.detail["labels"] == [
        {"output": "label", "row": 1, "reference": "1", "candidate": "0"}
    ]
    summary = COMPARATOR.summarise([compared], TabularOptions())
    assert summary.headline == "1 of 2 rows changed; 50% of labels agree"


def test_regressed_values_by_hand() -> None:
    # 3 -> 3.3 is a tenth; 0 -> 0.2 has no relative error but is a change.
    compared = compare({"y": [[3.0], [0]]}, {"y": [[3.3], [0.2]]})
    assert compared.metrics["relative_error"] == pytest.approx(0.1)
    assert compared.metrics["value_change"] == pytest.approx(0.3)
    assert compared.metrics["rows_changed"] == 2
    summary = COMPARATOR.summarise([compared], TabularOptions())
    assert summary.headline == "2 of 2 rows changed; relative error at most 0.1"


def test_tolerances_are_numpys() -> None:
    before, after = {"y": [[1000.0]]}, {"y": [[1000.5]]}
    assert compare(before, after, rtol=1e-4).changed
    assert not compare(before, after, rtol=1e-3).changed
    assert not compare(before, after, rtol=0, atol=1).changed
    assert not compare(before, after, noise=1).changed


# Planted changes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SURE, FLIPPED),
        ({"label": words("a", "b")}, {"label": words("a", "c")}),
        ({"y": [[1.0]]}, {"y": [[1.01]]}),
        ({"y": [[0.0]]}, {"y": [[1e-3]]}),
        (SURE, {**SURE, "probabilities": [[0.8, 0.2], [0.4, 0.6]]}),
        (
            {"p": [[0.9, 0.1]], "p.keys": words("a", "b")},
            {"p": [[0.9, 0.1]], "p.keys": words("a", "c")},
        ),
        ({"flag": [True]}, {"flag": [False]}),
    ],
)
def test_planted_changes_must_fail(before: Outputs, after: Outputs) -> None:
    assert not compare(before, before).changed
    assert compare(before, after).changed


def test_a_label_between_equal_probabilities_is_sensitivity() -> None:
    before = {"label": [1], "probabilities": [[0.4999, 0.5001]]}
    after = {"label": [0], "probabilities": [[0.5001, 0.4999]]}
    compared = compare(before, after, noise=0.001)
    assert (compared.changed, compared.sensitive) == (False, True)
    assert compared.metrics["rows_undecided"] == 1
    assert compare(before, after, noise=1e-5).changed


def test_classes_say_which_probabilities_belong_to_a_label() -> None:
    # b and c are as good as each other; a is not.
    before = {"label": words("b"), "p": [[0.1, 0.45, 0.45]], "p.keys": words("a", "b", "c")}
    assert compare(before, {**before, "label": words("c")}, noise=0.01).sensitive
    assert compare(before, {**before, "label": words("a")}, noise=0.01).changed


def test_a_map_in_another_order_is_the_same_map() -> None:
    before = {"p": [[0.9, 0.1]], "p.keys": words("a", "b")}
    assert not compare(before, {"p": [[0.1, 0.9]], "p.keys": words("b", "a")}).changed
    assert compare(before, {"p": [[0.9, 0.1]], "p.keys": words("b", "a")}).changed


def test_true_labels_may_be_strings() -> None:
    compared = compare({"label": words("a", "b")}, {"label": words("a", "a")}, label=["a", "b"])
    assert compared.metrics["accuracy_delta"] == -0.5


# NaN, types, nothing


def test_nan_is_defined() -> None:
    nothing, something = {"y": [[np.nan], [1.0]]}, {"y": [[2.0], [1.0]]}
    assert not compare(nothing, nothing).changed
    for pair in ((nothing, something), (something, nothing)):
        compared = compare(*pair, noise=1e9)
        assert compared.metrics["rows_changed"] == 1
        assert compared.metrics["value_change"] == np.inf
    assert compare({"y": [np.inf]}, {"y": [-np.inf]}).changed
    assert not compare({"y": [np.inf]}, {"y": [np.inf]}).changed


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_types(dtype: Any) -> None:
    before = {"y": np.array([[1, 2]], dtype)}
    assert not compare(before, before).changed
    assert compare(before, {"y": np.array([[1, 3]], dtype)}).changed


def test_an_empty_batch_has_no_rows() -> None:
    empty: Outputs = {"label": np.zeros(0, np.int64), "probabilities": np.zeros((0, 3))}
    compared = compare(empty, empty)
    assert not compared.changed
    assert COMPARATOR.summarise([compared], TabularOptions()).metrics["label_agreement"] == 1


def test_no_outputs_are_refused() -> None:
    with pytest.raises(InputError, match="no outputs"):
        compare({}, {})


# Properties

values = hnp.arrays(np.float64, (5, 2), elements=st.floats(-1e3, 1e3))
labels = hnp.arrays(np.int64, 9, elements=st.integers(0, 3))


@given(values, labels)
def test_identical_tables_are_perfect(value: np.ndarray, label: np.ndarray) -> None:
    compared = compare({"y": value, "label": label}, {"y": value.copy(), "label": label.copy()})
    assert compared.metrics["label_agreement"] == 1
    assert compared.metrics["probability_change"] == 0
    assert not compared.changed
    assert not compared.sensitive


@given(labels, labels)
def test_agreement_is_symmetric_bounded_and_sklearns(a: np.ndarray, b: np.ndarray) -> None:
    first, second = (compare({"l": x}, {"l": y}).metrics for x, y in ((a, b), (b, a)))
    assert first["label_agreement"] == second["label_agreement"]
    assert first["label_agreement"] == pytest.approx(accuracy_score(a, b), abs=1e-9)
    assert compare({"l": a}, {"l": b}).changed == (not np.array_equal(a, b))


@given(values, st.integers(0, 2**31))
def test_value_change_is_sklearns_largest_error(a: np.ndarray, seed: int) -> None:
    b = a + np.random.default_rng(seed).normal(size=a.shape)
    metrics = compare({"y": a}, {"y": b}).metrics
    assert metrics["value_change"] == pytest.approx(max_error(a.ravel(), b.ravel()), abs=1e-9)


@given(values, st.floats(0, 1), st.floats(0, 1))
def test_more_error_never_changes_fewer_rows(a: np.ndarray, s: float, t: float) -> None:
    less, more = sorted((s, t))
    rows = [compare({"y": a}, {"y": a + k}).metrics["rows_changed"] for k in (less, more)]
    assert rows[0] <= rows[1]


# Choosing it


@pytest.mark.parametrize(
    ("task", "mine"),
    [
        ("tabular classification (random forest)", True),
        ("tabular regression (gradient boosting)", True),
        ("text classification (TF-IDF + logistic regression)", True),
        ("text classification (2-layer encoder)", False),
        ("head-pose regression", False),
    ],
)
def test_it_recognises_its_tasks(task: str, mine: bool) -> None:
    score = COMPARATOR.matches(model(task), {"y": np.zeros((1, 3))})
    assert (score == 1) is mine


def test_it_infers_what_scikit_learns_converters_make() -> None:
    likely = [
        SURE,
        {"label": words("a"), "p": np.zeros((1, 2)), "p.keys": words("a", "b")},
    ]
    for outputs in likely:
        assert 0.01 < COMPARATOR.matches(model(), outputs) < 0.9
    forest = model(domain="ai.onnx.ml")
    assert 0.01 < COMPARATOR.matches(forest, {"variable": np.zeros((4, 1))}) < 0.9
    assert COMPARATOR.matches(model(), {"variable": np.zeros((4, 1))}) < 0.01
    # Other converters import the operators of trees without using any.
    assert COMPARATOR.matches(forest, {"Identity": np.zeros((4, 1))}) < 0.01
    image = model(None, (ValueInfo("x", "float", (1, 3, 8, 8)),))
    assert COMPARATOR.matches(image, SURE) < 0.01
