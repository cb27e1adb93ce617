from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, precision_score, top_k_accuracy_score

from optvet import InputError, Sample
from optvet.plugin import Comparison, Model, ModelConfig, ValueInfo
from optvet_classification import ClassificationComparator, ClassificationOptions
from optvet_classification.labels import labels_of
from optvet_classification.rank_metrics import kendall_tau, ranking, row_metrics

COMPARATOR = ClassificationComparator()
IMAGE = ValueInfo("x", "float", (1, 3, 224, 224))


def model(
    task: str | None = None, inputs: tuple[ValueInfo, ...] = (IMAGE,), **opsets: int
) -> Model:
    path = Path("m.onnx")
    return Model(
        "m", path, path, "0", inputs, (), 8, opsets or {"ai.onnx": 17}, 1, 1, ModelConfig(task=task)
    )


def compare(
    reference: Any,
    candidate: Any,
    noise: float = 0.0,
    label: Any = None,
    **options: Any,
) -> Comparison:
    given = [
        v if isinstance(v, dict) else {"scores": np.asarray(v)} for v in (reference, candidate)
    ]
    return COMPARATOR.compare(
        model(),
        Sample("s", {}, label),
        given[0],
        given[1],
        ClassificationOptions(**options),
        noise={"scores": noise},
    )


def scores(rows: int | None = None, classes: int = 20) -> st.SearchStrategy[np.ndarray]:
    shape = (classes,) if rows is None else (rows, classes)
    return hnp.arrays(np.float32, shape, elements=st.floats(-8, 8, width=32))


# Worked out by hand


def test_labels_order_and_confidence_by_hand() -> None:
    # Order 0 1 2 3 against 1 0 2 3: first labels differ, the pairs of best two are equal, and of
    # six pairs one is discordant: tau = (5 - 1) / 6.
    metrics = row_metrics(np.array([4.0, 3, 2, 1]), np.array([3.0, 3.5, 2, 1]), (1, 2, 3, 10))
    assert metrics == {
        "top1_agreement": 0.0,
        "top2_agreement": 1.0,
        "top3_agreement": 1.0,
        "kendall_tau": pytest.approx(4 / 6),
        "kendall_tau_top2": pytest.approx(-1),
        "kendall_tau_top3": pytest.approx(1 / 3),
        "kendall_tau_top4": pytest.approx(4 / 6),
        **{f"reordered_top{k}": 1.0 for k in (1, 2, 3, 4)},
        "confidence_change": 1.0,
        "certainty_change_top1": 1.0,
        "certainty_change_top2": 0.75,
        "certainty_change_top3": 0.5,
        "certainty_change_top4": 0.375,
    }


@given(st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_certainty_changes_are_pooled_over_the_rows_of_all_samples(
    moves: list[list[float]],
) -> None:
    def moved(by: list[float]) -> Comparison:
        before = np.tile([50.0, 20.0, 10.0], (len(by), 1))
        return compare(before, before + np.array(by)[:, None] * [1, 0, 0], topk=(1, 2))

    metrics = COMPARATOR.summarise(list(map(moved, moves)), ClassificationOptions()).metrics
    every = np.abs([m for sample in moves for m in sample])
    for k in (1, 2):
        assert metrics[f"certainty_change_top{k}"] == pytest.approx(every.mean() / k, abs=1e-9)
        sd = metrics[f"certainty_change_top{k}_sd"]
        assert sd == pytest.approx(every.std() / k, abs=1e-6)


def test_a_lost_score_changes_certainty_beyond_all_numbers() -> None:
    compared = compare([[3.0, 2, 1]], [[np.nan, 2, 1]], topk=(1, 2))
    metrics = COMPARATOR.summarise([compared], ClassificationOptions(topk=(1, 2))).metrics
    assert metrics["certainty_change_top2_sd"] == np.inf
    assert metrics["kendall_tau_top2"] == 0


def test_disjoint_lists_are_in_utter_disorder_not_in_perfect_order() -> None:
    # Best two 0 1 against 2 3. Between the lists of ids, (0, 1) and (2, 3), tau would be 1. Of the
    # six pairs of all four the two within a list agree and the four across are inverted.
    assert kendall_tau(np.array([9.0, 8, 2, 1]), np.array([2.0, 1, 9, 8]), 2) == pytest.approx(
        (2 - 4) / 6
    )


def test_ties_are_counted_as_tau_b_does() -> None:
    # Ranks 1 2 3 against 1 2 2: two concordant pairs and one tied: 2 / sqrt(3 * 2).
    assert kendall_tau(np.array([3.0, 2, 1]), np.array([3.0, 2, 2]), 3) == pytest.approx(2 / 6**0.5)


def test_without_an_order_there_is_nothing_to_agree_with() -> None:
    flat, sloped = np.ones(4), np.arange(4.0)
    assert kendall_tau(flat, flat, 4) == 1.0
    assert kendall_tau(flat, sloped, 4) == kendall_tau(sloped, flat, 4) == 0.0


def test_accuracy_by_hand() -> None:
    before = np.eye(3)[[0, 1, 2, 0]]
    after = np.eye(3)[[0, 1, 1, 1]]
    compared = compare(before, after, label=[0, [0, 1], 2, 2])
    assert compared.metrics["accuracy_top1_reference"] == 0.75
    assert compared.metrics["accuracy_top1_candidate"] == 0.5
    assert compared.metrics["accuracy_top1_delta"] == -0.25
    assert "accuracy_top5_delta" not in compared.metrics
    summary = COMPARATOR.summarise([compared], ClassificationOptions())
    assert summary.headline == "2 of 4 labels changed; top-1 accuracy 0.75 → 0.5"


def test_rows_weigh_the_same_whatever_sample_they_are_in() -> None:
    three = compare(np.eye(3), np.eye(3))
    one = compare(np.eye(3)[:1], np.eye(3)[1:2])
    summary = COMPARATOR.summarise([three, one], ClassificationOptions())
    assert summary.metrics["top1_agreement"] == 0.75
    assert summary.headline == "1 of 4 labels changed"


@pytest.mark.parametrize(
    ("label", "rows", "expected"),
    [
        (3, 1, [{3}]),
        (np.int64(3), 1, [{3}]),
        ([3, 4], 1, [{3, 4}]),
        ([[3, 4]], 1, [{3, 4}]),
        ([3, [4, 5]], 2, [{3}, {4, 5}]),
        (np.array([1, 2]), 2, [{1}, {2}]),
        ([3], 2, None),
        ("cat", 1, None),
        (None, 1, None),
        (1.5, 1, None),
    ],
)
def test_labels_that_count_as_right(label: Any, rows: int, expected: Any) -> None:
    assert labels_of(label, rows) == expected


def test_a_label_may_be_the_name_of_a_class() -> None:
    assert labels_of("cat", 1, ["dog", "cat"]) == [frozenset({1})]


# Planted changes


FIVE = np.array([[5.0, 4, 3, 2, 1]])


@pytest.mark.parametrize(
    ("candidate", "metric", "value"),
    [
        ([[4, 5, 3, 2, 1]], "top1_agreement", 0.0),
        ([[5, 4, 2, 3, 1]], "kendall_tau", 0.8),
        ([[4.5, 4, 3, 2, 1]], "confidence_change", 0.5),
        ([[5, 1, 3, 2, 4]], "top2_agreement", 0.5),
    ],
)
def test_planted_changes_are_noticed(candidate: Any, metric: str, value: float) -> None:
    perfect = compare(FIVE, FIVE, topk=(1, 2, 5)).metrics
    assert (perfect["top1_agreement"], perfect["kendall_tau"]) == (1.0, 1.0)
    metrics = compare(FIVE, np.asarray(candidate, float), topk=(1, 2, 5)).metrics
    assert metrics[metric] == pytest.approx(value)
    assert metrics[metric] != perfect[metric]


def test_a_flip_must_fail() -> None:
    compared = compare(FIVE, FIVE[:, ::-1])
    assert compared.changed
    assert not compared.sensitive
    assert compared.detail["rows"][0]["reference"][0] == [0, 5.0]
    assert compared.detail["rows"][0]["candidate"][0] == [4, 5.0]


def test_a_flip_within_noise_is_sensitivity() -> None:
    before, after = np.array([[1.0, 1.01, 0]]), np.array([[1.01, 1.0, 0]])
    close = compare(before, after, noise=0.02)
    assert (close.changed, close.sensitive) == (False, True)
    assert close.metrics["labels_undecided"] == 1
    assert compare(before, after, noise=0.001).changed


# Layouts and types


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((2, 5), ""),
        ((2, 5, 1, 1), ""),
        ((2, 1, 1, 5), ""),
        ((2, 1, 5), ""),
        ((2, 5), "NC"),
        ((2, 5, 1, 1), "NC11"),
        ((2, 1, 1, 5), "N11C"),
    ],
)
def test_any_rank_and_layout_holds_the_same_rows(shape: tuple[int, ...], layout: str) -> None:
    before = np.arange(10, dtype=np.float32)
    after = before.copy()
    after[0] = 99
    compared = compare(before.reshape(shape), after.reshape(shape), layout=layout)
    assert (compared.metrics["rows"], compared.metrics["labels_changed"]) == (2, 1)


def test_classes_may_come_first() -> None:
    before = np.array([[1.0, 0], [0, 1], [0, 0]])
    compared = compare(before, before[[1, 0, 2]], layout="CN")
    assert (compared.metrics["rows"], compared.metrics["labels_changed"]) == (2, 2)


def test_a_vector_is_one_row() -> None:
    assert compare(FIVE[0], FIVE[0]).metrics["rows"] == 1


@pytest.mark.parametrize(
    ("before", "after", "noise", "changed"),
    [(0.6, 0.4, 0.0, True), (0.51, 0.49, 0.1, False), (2.0, -2.0, 0.0, True), (3.0, 1.5, 0, False)],
)
def test_a_single_score_is_two_classes(
    before: float, after: float, noise: float, changed: bool
) -> None:
    assert compare([[before]], [[after]], noise=noise).changed is changed


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.uint8, np.int8])
def test_types(dtype: Any) -> None:
    values = FIVE.astype(dtype)
    assert not compare(values, values).changed
    assert compare(values, values[:, ::-1]).changed


def test_scores_are_told_from_labels_and_other_outputs() -> None:
    before = {"label": np.array([0]), "probabilities": np.array([[0.9, 0.1]], np.float32)}
    after = {"label": np.array([1]), "probabilities": np.array([[0.2, 0.8]], np.float32)}
    compared = compare(before, after, label=0)
    assert compared.metrics["confidence_change"] == pytest.approx(0.7)
    assert compared.metrics["accuracy_top1_delta"] == -1


@pytest.mark.parametrize("labels", [np.array([3, 4]), np.array(["a", "b"], object)])
def test_labels_without_scores(labels: np.ndarray) -> None:
    assert not compare({"label": labels}, {"label": labels}).changed
    compared = compare({"label": labels}, {"label": labels[::-1]})
    assert compared.changed
    assert compared.metrics["top1_agreement"] == 0


def test_what_has_no_axis_of_classes_is_refused() -> None:
    maps = np.zeros((1, 5, 7, 7), np.float32)
    with pytest.raises(InputError, match=r"shape \[1, 5, 7, 7\], expected one axis of classes"):
        compare(maps, maps)
    with pytest.raises(InputError, match="is not of layout 'NC'"):
        compare(maps, maps, layout="NC")
    with pytest.raises(InputError, match="no output 'nothing'"):
        compare(FIVE, FIVE, output="nothing")
    with pytest.raises(InputError, match="neither an output with scores"):
        compare({}, {})


# NaN, infinities, nothing


def test_nan_on_both_sides_is_the_same_answer() -> None:
    values = np.array([[np.nan, 1, 2], [np.nan, np.nan, np.nan]])
    compared = compare(values, values.copy())
    assert not compared.changed
    assert compared.metrics["top1_agreement"] == compared.metrics["kendall_tau"] == 1


@pytest.mark.parametrize("where", ["reference", "candidate"])
def test_nan_on_one_side_is_a_change(where: str) -> None:
    values, broken = np.array([[3.0, 1, 2]]), np.array([[3.0, 1, np.nan]])
    pair = (broken, values) if where == "reference" else (values, broken)
    compared = compare(*pair, noise=1e9)
    assert compared.changed
    assert compared.metrics["top1_agreement"] == compared.metrics["kendall_tau"] == 0
    assert compared.metrics["confidence_change"] == np.inf


def test_infinite_scores_have_an_order() -> None:
    masked = np.array([[-np.inf, 1.0, 2, np.inf]])
    compared = compare(masked, masked)
    assert not compared.changed
    assert compared.metrics["confidence_change"] == 0
    assert compare(masked, masked[:, ::-1]).changed


def test_an_empty_batch_has_no_labels() -> None:
    empty = np.zeros((0, 5), np.float32)
    compared = compare(empty, empty)
    assert not compared.changed
    summary = COMPARATOR.summarise([compared], ClassificationOptions())
    assert summary.headline == "0 of 0 labels changed"


# Properties


@given(scores(3))
def test_identical_scores_are_perfect(values: np.ndarray) -> None:
    compared = compare(values, values.copy())
    perfect = {k: v for k, v in compared.metrics.items() if k.endswith(("agreement", "tau"))}
    assert set(perfect.values()) == {1.0}
    assert compared.metrics["confidence_change"] == 0
    assert not compared.changed
    assert not compared.sensitive


@given(scores(), scores())
def test_agreement_and_tau_are_symmetric_and_bounded(a: np.ndarray, b: np.ndarray) -> None:
    first, second = row_metrics(a, b, (1, 5, 10)), row_metrics(b, a, (1, 5, 10))
    for key in ("top1_agreement", "top5_agreement", "top10_agreement", "kendall_tau"):
        assert first[key] == pytest.approx(second[key], abs=1e-12)
        assert -1 <= first[key] <= 1
        assert key == "kendall_tau" or first[key] >= 0


@given(scores(), scores(), st.floats(0, 4), st.floats(0, 4))
def test_more_noise_never_makes_more_changes(
    a: np.ndarray, b: np.ndarray, x: float, y: float
) -> None:
    low, high = sorted((x, y))
    assert compare(a, b, noise=low).changed >= compare(a, b, noise=high).changed


@settings(deadline=None)
@given(scores(), scores())
def test_tau_is_scipys_on_ranks(a: np.ndarray, b: np.ndarray) -> None:
    k = 10
    union = sorted({*ranking(a)[:k].tolist(), *ranking(b)[:k].tolist()})
    expected = scipy.stats.kendalltau(a[union], b[union]).statistic
    mine = kendall_tau(a, b, k)
    if np.isnan(expected):
        assert mine in (0.0, 1.0)
    else:
        assert mine == pytest.approx(expected, abs=1e-9)


@pytest.mark.long
@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_accuracy_is_sklearns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = rng.normal(size=(2, 30, 12))
    truth = rng.integers(0, 12, 30)
    metrics = compare(before, after, label=truth.tolist()).metrics
    for side, values in (("reference", before), ("candidate", after)):
        assert metrics[f"accuracy_top1_{side}"] == pytest.approx(
            accuracy_score(truth, values.argmax(1)), abs=1e-9
        )
        assert metrics[f"accuracy_top5_{side}"] == pytest.approx(
            top_k_accuracy_score(truth, values, k=5, labels=range(12)), abs=1e-9
        )
    agreed = accuracy_score(before.argmax(1), after.argmax(1))
    assert metrics["top1_agreement"] == pytest.approx(agreed, abs=1e-9)


@settings(deadline=None)
@given(scores(), scores())
def test_agreement_of_lists_is_sklearns_precision(a: np.ndarray, b: np.ndarray) -> None:
    metrics = row_metrics(a, b, (1, 5, 10))
    for k in (1, 5, 10):
        marks = np.zeros((2, 1, len(a)), int)
        for side, values in enumerate((a, b)):
            # Of equal scores the first class, as a stable sort has it.
            marks[side, 0, np.argsort(-values, kind="stable")[:k]] = 1
        expected = precision_score(*marks, average="samples")
        assert metrics[f"top{k}_agreement"] == pytest.approx(expected, abs=1e-9)


# Choosing it


@pytest.mark.parametrize(
    "task",
    [
        "image-classification (ImageNet-1k)",
        "keyword spotting (12 classes)",
        "content-type detection from bytes",
        "text-orientation classification",
        "text classification (2-layer encoder)",
    ],
)
def test_it_recognises_its_tasks(task: str) -> None:
    assert COMPARATOR.matches(model(task), {"y": np.zeros((1, 10), np.float32)}) >= 0.9


SOFTMAX = np.full((2, 4), 0.25, np.float32)


@pytest.mark.parametrize(
    ("name", "value", "likely"),
    [
        ("y", SOFTMAX, True),
        ("y", SOFTMAX.reshape(2, 4, 1, 1), True),
        ("y", np.array([[250, 2, 3]], np.uint8), True),
        ("logits", np.array([[3.0, -1]]), True),
        ("y", np.linspace(-3, 3, 1000, dtype=np.float32)[None], True),
        ("y", np.array([[3.0, -1, 2]]), False),
        ("y", np.array([[0.5]]), False),
        ("y", np.zeros((1, 21, 32, 32), np.float32), False),
        ("y", np.zeros((1, 3549, 85), np.float32), False),
        ("y", np.array([[np.nan, np.nan]]), False),
        ("y", np.zeros((0, 10), np.float32), False),
    ],
)
def test_it_infers_soft_maxes_and_little_else(name: str, value: np.ndarray, likely: bool) -> None:
    score = COMPARATOR.matches(model(), {name: value})
    assert 0.01 < score < 0.9 if likely else score < 0.01


@pytest.mark.parametrize("task", ["object-detection (COCO 80)", "tabular classification", "pose"])
def test_it_leaves_other_tasks_alone(task: str) -> None:
    assert COMPARATOR.matches(model(task), {"y": np.array([[3.0, -1, 2]])}) < 0.01
