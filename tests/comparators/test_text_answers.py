import json
import math
import re
import string
from collections.abc import Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import scipy
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.data import DATA

from optvet import InputError, Sample
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.plugin import Comparison, Model, ModelConfig, ValueInfo
from optvet.plugin import Run as RunModel
from optvet.spec.request import VetRequest
from optvet.testing import Planted
from optvet_text import TextComparator
from optvet_text.answers import (
    NOWHERE,
    answers_from_label,
    best_span,
    context_mask,
    span_outputs,
)
from optvet_text.measures import exact_match, f1, normalised
from optvet_text.options import TextOptions

COMPARATOR = TextComparator()
SHARED = DATA
texts = st.text("abct he.,'AT\n", max_size=20)

# Measures -----------------------------------------------------------------------------------------


def squad_f1(prediction: str, gold: str) -> float:
    """The definition of SQuAD 2.0, step by step, written for this test alone."""

    def words(text: str) -> list[str]:
        kept = "".join(c for c in text.lower() if c not in string.punctuation)
        return [w for w in re.split(r"\s+", re.sub(r"\b(?:a|an|the)\b", " ", kept)) if w]

    predicted, right = words(prediction), words(gold)
    if not predicted or not right:
        return 1.0 if predicted == right else 0.0
    rest, shared = list(right), 0
    for word in predicted:
        if word in rest:
            rest.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def test_f1_by_hand() -> None:
    # "cat sat on mat" and "cat on sofa": 2 shared of 4 and of 3; 2 * 2 / 7.
    assert f1("The cat sat on a mat.", "a cat, on the sofa!") == pytest.approx(4 / 7, abs=1e-12)
    # A word counts as often as both have it: 1 of 3 and of 1.
    assert f1("yes yes yes", "yes") == pytest.approx(0.5, abs=1e-12)
    assert f1("An apple", "the APPLE.") == exact_match("An apple", "the APPLE.") == 1
    assert f1("one", "two") == exact_match("one", "two") == 0


def test_no_answer_is_an_answer() -> None:
    assert f1("", "") == exact_match("", "") == 1
    assert f1("", "Rome") == f1("Rome", "") == exact_match("Rome", "") == 0
    assert f1("the", "") == 1  # nothing is left of it


def test_normalisation_by_hand() -> None:
    assert normalised(" The  U.S.A.'s\nan-other theme ") == "usas another theme"


@given(texts, texts)
def test_f1_is_squads(a: str, b: str) -> None:
    assert f1(a, b) == pytest.approx(squad_f1(a, b), abs=1e-9)


@given(texts, texts)
def test_measures_are_symmetric_bounded_and_ordered(a: str, b: str) -> None:
    assert f1(a, b) == f1(b, a)
    assert exact_match(a, b) == exact_match(b, a)
    assert 0 <= exact_match(a, b) <= f1(a, b) <= 1
    assert f1(a, a) == exact_match(a, a) == 1


@given(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1), st.lists(st.just("w")))
def test_a_shared_word_in_place_of_a_foreign_one_never_lowers_f1(
    gold: list[str], foreign: list[str]
) -> None:
    assume(foreign)
    worse, better = " ".join(foreign), " ".join([gold[0], *foreign[1:]])
    assert f1(better, " ".join(gold)) > f1(worse, " ".join(gold)) == 0


# Spans --------------------------------------------------------------------------------------------

scores = hnp.arrays(np.float64, 6, elements=st.floats(-9, 9))
masks = hnp.arrays(bool, 6)


@given(scores, scores, masks, st.integers(1, 6))
def test_the_best_span_is_the_best_of_all(
    start: np.ndarray, end: np.ndarray, allowed: np.ndarray, longest: int
) -> None:
    allowed[0] = False
    found = best_span(start, end, allowed, longest=longest, no_answer=False)
    every = [
        (i, j)
        for i, j in product(range(6), repeat=2)
        if i <= j < i + longest and allowed[i] and allowed[j]
    ]
    if not every:
        assert found == (NOWHERE, NOWHERE)
        return
    assert found == max(every, key=lambda s: (start[s[0]] + end[s[1]], -s[0], -s[1]))
    top = start[found[0]] + end[found[1]]
    empty = best_span(start, end, allowed, longest=longest, no_answer=True)
    assert empty == ((NOWHERE, NOWHERE) if start[0] + end[0] > top else found)


def test_spans_by_hand() -> None:
    start = np.array([1.0, 0, 5, 0, 9])
    end = np.array([1.0, 8, 0, 4, 0])
    allowed = np.array([False, True, True, True, False])
    # 4 is not allowed, 2..1 runs backwards: 2..3 has 9, 1..1 has 8.
    assert best_span(start, end, allowed, longest=9, no_answer=True) == (2, 3)
    assert best_span(start, end, allowed, longest=1, no_answer=True) == (1, 1)
    start[0] = 9
    assert best_span(start, end, allowed, longest=9, no_answer=True) == (NOWHERE, NOWHERE)
    start[2] = math.nan
    assert best_span(start, end, allowed, longest=9, no_answer=False) == (1, 1)


def test_an_answer_lies_in_the_context() -> None:
    feeds = {
        "input_ids": np.zeros((1, 8), np.int64),
        "attention_mask": np.array([[1, 1, 1, 1, 1, 1, 1, 0]]),
        "token_type_ids": np.array([[0, 0, 0, 1, 1, 1, 1, 0]]),
    }
    # [CLS] question [SEP] context context context [SEP] [PAD]
    found = context_mask(Sample("s", feeds), (1, 8))
    assert found.astype(int).tolist() == [[0, 0, 0, 1, 1, 1, 0, 0]]
    del feeds["token_type_ids"]
    assert context_mask(Sample("s", feeds), (1, 8)).astype(int).tolist() == [[0, *[1] * 6, 0]]


@pytest.mark.parametrize(
    ("label", "rows", "expected"),
    [
        ("Rome", 1, [["Rome"]]),
        (["Rome", "roma"], 1, [["Rome", "roma"]]),
        ({"text": ["Rome"], "answer_start": [3]}, 1, [["Rome"]]),
        ({"text": [], "answer_start": []}, 1, [[""]]),
        ({"answers": [{"text": "Rome", "answer_start": 3}]}, 1, [["Rome"]]),
        (["Rome", ["Bern", "Berne"]], 2, [["Rome"], ["Bern", "Berne"]]),
        (["Rome"], 2, None),
        (3, 1, None),
        (None, 1, None),
    ],
)
def test_labels(label: Any, rows: int, expected: Any) -> None:
    assert answers_from_label(label, rows) == expected


# The comparator -----------------------------------------------------------------------------------

WORDS = ["[CLS]", "[SEP]", "who", "the", "old", "cat", "sat", "down"]


def model(task: str | None = "question-answering", *outputs: str) -> Model:
    path = Path("m.onnx")
    names = outputs or ("start_logits", "end_logits")
    inputs = tuple(ValueInfo(n, "int64", (1, "n")) for n in ("input_ids", "token_type_ids"))
    made = tuple(ValueInfo(n, "float", (1, "n")) for n in names)
    return Model("m", path, path, "0", inputs, made, 8, {}, 1, 1, ModelConfig(task=task))


def peaks(start: int, end: int, height: float = 5.0) -> dict[str, np.ndarray]:
    made = {n: np.zeros((1, 9), np.float32) for n in ("start_logits", "end_logits")}
    made["start_logits"][0, start] = made["end_logits"][0, end] = height
    return made


def compare(
    before: Mapping[str, np.ndarray],
    after: Mapping[str, np.ndarray],
    folder: Path,
    *,
    noise: float = 0.0,
    label: Any = None,
) -> Comparison:
    file = folder / "vocabulary.json"
    file.write_text(json.dumps(WORDS))
    options = TextOptions(vocabulary=str(file))
    # [CLS] who [SEP] the old cat sat down [SEP]
    feeds = {
        "input_ids": np.array([[0, 2, 1, 3, 4, 5, 6, 7, 1]]),
        "token_type_ids": np.array([[0, 0, 0, 1, 1, 1, 1, 1, 1]]),
    }
    sample = Sample("s", feeds, label)

    def always(made: Mapping[str, np.ndarray]) -> RunModel:
        return lambda feeds: made

    ours, theirs = (
        COMPARATOR.decode(model(), sample, always(made), options) for made in (before, after)
    )
    levels = {n: noise for n in before}
    return COMPARATOR.compare(model(), sample, ours, theirs, options, noise=levels)


def test_answers_by_hand(tmp_path: Path) -> None:
    # "the old cat" and "cat sat": without the article, 1 shared of 2 and of 2.
    compared = compare(peaks(3, 5), peaks(5, 6), tmp_path, label=["the cat", "old cat"])
    assert compared.metrics["f1"] == 0.5
    assert compared.metrics["exact_match"] == 0
    # The best of both labels: "old cat" is right, "cat sat" shares 1 of 2 with 1 or 2 words.
    assert compared.metrics["f1_reference"] == compared.metrics["exact_match_reference"] == 1
    assert compared.metrics["f1_candidate"] == pytest.approx(2 / 3, abs=1e-12)
    assert compared.changed
    assert compared.detail["changed"] == [
        {"row": 0, "reference": "the old cat", "candidate": "cat sat", "spans": [[3, 5], [5, 6]]}
    ]
    summary = COMPARATOR.summarise(
        [compared, compare(peaks(3, 5), peaks(3, 5), tmp_path)], TextOptions()
    )
    assert summary.headline == "1 of 2 answers changed; F1 0.75, to the labels 1 → 0.6667"
    assert summary.metrics["f1_delta"] == pytest.approx(-1 / 3, abs=1e-12)


def test_the_same_answer_is_exactly_one(tmp_path: Path) -> None:
    compared = compare(peaks(3, 5), peaks(3, 5, height=4.0), tmp_path)
    assert (compared.changed, compared.sensitive) == (False, False)
    assert compared.metrics["f1"] == compared.metrics["exact_match"] == 1


def test_an_answer_that_goes_is_a_change(tmp_path: Path) -> None:
    compared = compare(peaks(3, 5), peaks(0, 0), tmp_path)
    assert compared.detail["changed"][0]["candidate"] == ""
    assert (compared.metrics["f1"], compared.changed) == (0, True)


def test_an_answer_that_changes_within_noise_is_sensitivity(tmp_path: Path) -> None:
    # The reference preferred its answer by 0.1 + 0.1.
    for noise, sensitive in ((0.05, False), (0.2, True)):
        compared = compare(peaks(3, 5, 0.1), peaks(5, 6), tmp_path, noise=noise)
        assert (compared.changed, compared.sensitive) == (not sensitive, sensitive)


def test_an_answer_that_is_no_number_has_changed(tmp_path: Path) -> None:
    lost = {n: np.full((1, 9), np.nan, np.float32) for n in peaks(0, 0)}
    assert not compare(lost, lost, tmp_path).changed
    for ours, theirs in ((peaks(3, 5), lost), (lost, peaks(4, 5))):
        assert compare(ours, theirs, tmp_path).metrics["f1"] < 1


def test_outputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    odd = {"start_logits": np.zeros((1, 9)), "end_logits": np.zeros((1, 8))}
    with pytest.raises(InputError, match=r"shapes \[1, 9\] and \[1, 8\], expected"):
        compare(odd, odd, tmp_path)


def test_models_that_answer_are_recognised() -> None:
    outputs = peaks(3, 5)
    assert COMPARATOR.matches(model(), outputs) == 0.97
    assert COMPARATOR.matches(model(None), outputs) == 0.85
    assert COMPARATOR.matches(model("text classification"), outputs) == 0
    assert COMPARATOR.matches(model("question answering", "embedding"), outputs) == 0
    assert span_outputs(model(None, "restarted", "hidden")) is None
    assert span_outputs(model(None, "output_start_logits", "output_end_logits")) is not None


READER = """
<ir_version: 8, opset_import: ["" : 17]>
reader (int64[1,n] input_ids) => (float[1,n] start_logits, float[1,n] end_logits)
<float[8,2] e = {0, 0, 1, 4, 2, 2, 5, 1, 1, 5, 3, 3, 4, 0, 2, 6}, float[2] w = {-3, 1},
 int64[1] axis = {-1}>
{
    both = Gather(e, input_ids)
    kept = Relu(both)
    start_logits = ReduceSum<keepdims = 0>(kept, axis)
    turned = Mul(kept, w)
    lost = Relu(turned)
    end_logits = ReduceSum<keepdims = 0>(lost, axis)
}
"""


@pytest.mark.parametrize(("name", "same"), [("keep_00", True), ("drop_relu", False)])
def test_a_whole_vet_compares_answers(tmp_path: Path, name: str, same: bool) -> None:
    path = tmp_path / "reader.onnx"
    onnx.save(onnx.parser.parse_model(READER), path)
    path.with_suffix(".toml").write_text(
        """
        task = "question-answering"
        [inputs.input_ids]
        kind = "randint"
        high = 8
        shape = [1, 12]
        """
    )
    plugins = Plugins()
    plugins.register("optimizer", Planted(default=(name,)))
    chosen = VetRequest(model="model", optimizer="planted", limit=6, cache_dir=tmp_path / "cache")
    result = vet_model(open_model(path, str(path), tmp_path / "cache"), chosen, plugins)
    assert result.impact is not None
    assert result.impact.comparator == "text"
    metrics = result.impact.metrics
    assert metrics["answers"] == result.samples
    assert metrics["f1"] is not None
    assert (metrics["f1"] == 1) == same
    assert (result.verdict == "clean") == same


EXCERPT = SHARED / "data" / "text" / "squad_v2_dev_excerpt.json"


@pytest.mark.skipif(not EXCERPT.is_file(), reason="no ../shared/data")
def test_real_answers_agree_with_the_definition() -> None:
    articles = json.loads(EXCERPT.read_text())["data"]
    questions = [q for a in articles for p in a["paragraphs"] for q in p["qas"]]
    golds = [answers_from_label({"answers": q["answers"]}, 1) for q in questions]
    known = [g for gold in golds if gold for g in gold[0]]
    assert len(known) > 20
    for first, second in pairwise(known):
        assert f1(first, second) == pytest.approx(squad_f1(first, second), abs=1e-9)


def test_scores_of_starts_and_ends_are_told_by_their_order_and_distance(tmp_path: Path) -> None:
    before, after = peaks(4, 6), peaks(4, 6)
    after["start_logits"][0, 8] = 3
    metrics = compare(before, after, tmp_path).metrics
    assert [metrics[f"end_{k}"] for k in ("kendall_tau", "cosine", "max_abs", "rmse")] == [
        1,
        1,
        0,
        0,
    ]
    assert metrics["start_max_abs"] == 3
    assert metrics["start_rmse"] == pytest.approx(1)
    assert metrics["start_cosine"] == pytest.approx(5 / 34**0.5)
    expected = scipy.stats.kendalltau(before["start_logits"][0], after["start_logits"][0]).statistic
    assert metrics["start_kendall_tau"] == pytest.approx(expected)
    after["end_logits"][0, 0] = np.nan
    lost = compare(before, after, tmp_path).metrics
    assert (lost["end_kendall_tau"], lost["end_max_abs"]) == (0, np.inf)
