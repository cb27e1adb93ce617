from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, precision_score

from optvet import InputError, Sample
from optvet.plugin import Comparison, Model, ModelConfig, ValueInfo
from optvet_token import TokenComparator, TokenOptions, token_metrics

COMPARATOR = TokenComparator()
IDS = ValueInfo("ids", "int64", ("batch", "seq"))
logits = hnp.arrays(np.float32, (2, 4, 9), elements=st.floats(-9, 9, width=32))


def model(task: str | None = None, inputs: tuple[ValueInfo, ...] = (IDS,)) -> Model:
    path = Path("m.onnx")
    return Model("m", path, path, "0", inputs, (), 8, {}, 1, 1, ModelConfig(task=task))


def compare(
    before: Any, after: Any, noise: float = 0.0, sample: Sample | None = None, **options: Any
) -> Comparison:
    return COMPARATOR.compare(
        model(),
        sample or Sample("s", {}),
        {"logits": np.asarray(before)},
        {"logits": np.asarray(after)},
        TokenOptions(**options),
        noise={"logits": noise},
    )


BEFORE = np.array([[[3.0, 2, 1, 0], [0, 1, 2, 3]]])
AFTER = np.array([[[3.0, 2, 1, 0], [0, 1, 3, 2]]])


def test_agreement_and_overlap_by_hand() -> None:
    # Best tokens 0 3 against 0 2. Best two {0 1} {3 2} on both sides; best one differs once.
    compared = compare(BEFORE, AFTER, topk=2)
    assert compared.metrics["token_agreement"] == 0.5
    assert compared.metrics["topk_overlap"] == 1
    assert compared.metrics["max_abs"] == 1
    assert compare(BEFORE, AFTER, topk=1).metrics["topk_overlap"] == 0.5
    assert compared.detail["changed"] == [{"position": 1, "reference": 3, "candidate": 2}]
    summary = COMPARATOR.summarise([compared, compare(BEFORE, BEFORE)], TokenOptions())
    assert summary.headline == "1 of 4 tokens changed"
    assert summary.metrics["token_agreement"] == 0.75


def test_a_changed_token_must_fail() -> None:
    assert compare(BEFORE, AFTER).changed


def test_a_change_within_noise_is_sensitivity() -> None:
    compared = compare(BEFORE, AFTER, noise=1.5)
    assert (compared.changed, compared.sensitive) == (False, True)
    assert compared.metrics["tokens_undecided"] == 1


def test_padding_is_left_out() -> None:
    sample = Sample("s", {"attention_mask": np.array([[1, 0]])})
    compared = compare(BEFORE, AFTER, sample=sample)
    assert not compared.changed
    assert compared.metrics["positions"] == 1
    assert compare(BEFORE, AFTER, sample=sample, mask="").changed


def test_accuracy_against_labels_leaves_ignored_ones_out() -> None:
    compared = compare(BEFORE, AFTER, sample=Sample("s", {}, np.array([[-100, 3]])))
    assert compared.metrics["accuracy_reference"] == 1
    assert compared.metrics["accuracy_candidate"] == 0


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_types(dtype: Any) -> None:
    assert not compare(BEFORE.astype(dtype), BEFORE.astype(dtype)).changed
    assert compare(BEFORE.astype(dtype), AFTER.astype(dtype)).changed


def test_one_sequence_has_no_batch_axis() -> None:
    assert compare(BEFORE[0], AFTER[0], output="logits").metrics["positions"] == 2


def test_nan_is_defined() -> None:
    broken = BEFORE.copy()
    broken[0, 0, 3] = np.nan
    assert compare(broken, broken.copy()).metrics["token_agreement"] == 1
    for pair in ((BEFORE, broken), (broken, BEFORE)):
        compared = compare(*pair, noise=1e9)
        assert compared.changed
        assert compared.metrics["token_agreement"] == 0.5
        assert compared.metrics["max_abs"] == np.inf


def test_infinite_scores_are_scores() -> None:
    masked = BEFORE.copy()
    masked[..., 1] = -np.inf
    compared = compare(masked, masked.copy())
    assert (compared.changed, compared.metrics["max_abs"]) == (False, 0)


def test_nothing_agrees_with_nothing() -> None:
    compared = compare(np.zeros((0, 4, 5)), np.zeros((0, 4, 5)))
    assert not compared.changed
    assert COMPARATOR.summarise([compared], TokenOptions()).metrics["token_agreement"] == 1


def test_what_has_no_positions_is_refused() -> None:
    with pytest.raises(InputError, match=r"of shape \[batch, positions, tokens\]"):
        compare(np.zeros((2, 3)), np.zeros((2, 3)))


@given(logits)
def test_identical_scores_are_perfect(value: np.ndarray) -> None:
    compared = compare(value, value.copy())
    assert compared.metrics["token_agreement"] == compared.metrics["topk_overlap"] == 1
    assert (compared.changed, compared.sensitive, compared.metrics["max_abs"]) == (False, False, 0)


@given(logits, logits, st.integers(1, 9))
def test_metrics_are_symmetric_and_bounded(a: np.ndarray, b: np.ndarray, k: int) -> None:
    first, second = (compare(*p, topk=k).metrics for p in ((a, b), (b, a)))
    for key in ("token_agreement", "topk_overlap", "max_abs"):
        assert first[key] == pytest.approx(second[key])
    assert 0 <= first["token_agreement"] <= 1
    assert 0 <= first["topk_overlap"] <= 1
    assert k < 9 or first["topk_overlap"] == 1


@given(logits, logits, st.integers(0, 7))
def test_repairing_a_position_never_lowers_agreement(a: np.ndarray, b: np.ndarray, i: int) -> None:
    mended = b.reshape(8, 9).copy()
    mended[i] = a.reshape(8, 9)[i]
    before, after = (compare(a, v).metrics for v in (b, mended.reshape(b.shape)))
    assert after["token_agreement"] >= before["token_agreement"]
    assert after["topk_overlap"] >= before["topk_overlap"] - 1e-12


@settings(deadline=None)
@given(logits, logits)
def test_agreement_is_sklearns_accuracy(a: np.ndarray, b: np.ndarray) -> None:
    expected = accuracy_score(a.argmax(-1).ravel(), b.argmax(-1).ravel())
    assert compare(a, b).metrics["token_agreement"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("task", "mine"),
    [
        ("language model (character GPT, 4 layers)", True),
        ("sentence segmentation (byte BiLSTM)", True),
        ("token-classification", True),
        ("semantic-segmentation", False),
        ("text classification", False),
    ],
)
def test_it_recognises_its_tasks(task: str, mine: bool) -> None:
    bare = model(task, (ValueInfo("x", "float", (1, 3)),))
    assert (COMPARATOR.matches(bare, {"y": BEFORE}) >= 0.9) is mine


@pytest.mark.parametrize(
    ("name", "width", "likely"),
    [
        ("logits", 65, True),
        ("y", 2, True),
        ("y", 50257, True),
        ("y", 768, False),
        ("last_hidden_state", 30522, False),
    ],
)
def test_it_infers_scores_per_position(name: str, width: int, likely: bool) -> None:
    score = COMPARATOR.matches(model(), {name: np.zeros((1, 4, width), np.float32)})
    assert 0.01 < score < 0.9 if likely else score < 0.01
    floats = model(None, (ValueInfo("x", "float", (1, 4)),))
    assert COMPARATOR.matches(floats, {name: np.zeros((1, 4, width), np.float32)}) < 0.01


@settings(deadline=None)
@given(logits, logits, st.integers(1, 5))
def test_overlap_of_lists_is_sklearns_precision(a: np.ndarray, b: np.ndarray, k: int) -> None:
    ours, theirs = (v.reshape(-1, v.shape[-1]).astype(np.float64) for v in (a, b))
    k = min(k, ours.shape[1])
    marks = [np.zeros(ours.shape, int) for _ in range(2)]
    for mark, side in zip(marks, (ours, theirs), strict=True):
        np.put_along_axis(mark, np.argsort(-side, axis=1, kind="stable")[:, :k], 1, axis=1)
    overlap = token_metrics(ours, theirs, k, 0.0)[0]["topk_overlap"]
    assert overlap == pytest.approx(precision_score(*marks, average="samples"), abs=1e-9)
