import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, root_mean_squared_error

from optvet import InputError, Sample
from optvet.plugin import Comparison, Model, ModelConfig, ValueInfo
from optvet_speech import (
    SpeechComparator,
    SpeechOptions,
    ctc_collapsed,
    errors_of,
    frame_metrics,
    vocabulary_of,
)

COMPARATOR = SpeechComparator()
SYMBOLS = ("_", "a", "b", "|")
needs_jiwer = pytest.mark.skipif(find_spec("jiwer") is None, reason="needs jiwer")


def model(task: str | None = None) -> Model:
    path = Path("m.onnx")
    inputs = (ValueInfo("x", "float", (1, "time")),)
    return Model("m", path, path, "0", inputs, (), 8, {}, 1, 1, ModelConfig(task=task))


def compare(
    before: Any, after: Any, noise: float = 0.0, label: Any = None, **options: Any
) -> Comparison:
    return COMPARATOR.compare(
        model(),
        Sample("s", {}, label),
        {"y": np.asarray(before)},
        {"y": np.asarray(after)},
        SpeechOptions(**options),
        noise={"y": noise},
    )


def frames(text: str, sure: float = 1.0) -> np.ndarray:
    """[1, time, 4] frames of which each has its best symbol as ``text`` says."""
    return sure * np.eye(4)[[SYMBOLS.index(c) for c in text]][None]


def distance(a: list[str], b: list[str]) -> int:
    """Levenshtein's distance by its recurrence."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


# Worked out by hand


def test_repeats_are_merged_before_blanks_are_dropped() -> None:
    assert ctc_collapsed([1, 1, 0, 1, 2, 2], 0) == [1, 1, 2]
    assert ctc_collapsed([0, 0], 0) == []
    assert ctc_collapsed([], 0) == []


@needs_jiwer
def test_error_rates_by_hand() -> None:
    # "ab b a" against "ab a": one of three words is missing, two of six characters.
    compared = compare(frames("ab|bb|a"), frames("ab__|aa"), vocabulary=SYMBOLS)
    assert compared.detail == {"reference": ["ab b a"], "candidate": ["ab a"]}
    assert compared.metrics["wer"] == pytest.approx(1 / 3)
    assert compared.metrics["cer"] == pytest.approx(2 / 6)
    assert compared.changed
    summary = COMPARATOR.summarise([compared], SpeechOptions())
    assert summary.headline == ("1 of 1 utterances changed; word error rate 0.3333 between the two")


@needs_jiwer
def test_transcripts_say_which_side_is_right() -> None:
    compared = compare(frames("ab|a"), frames("ab|b"), vocabulary=SYMBOLS, label="ab a")
    assert compared.metrics["wer_reference"] == 0
    assert compared.metrics["wer_candidate"] == 0.5
    summary = COMPARATOR.summarise([compared], SpeechOptions())
    assert summary.headline.endswith("between the two, 0 → 0.5")


@needs_jiwer
def test_errors_are_added_before_they_are_divided() -> None:
    pair = [
        compare(frames("a|a|a"), frames("a|a|a"), vocabulary=SYMBOLS),
        compare(frames("a"), frames("b"), vocabulary=SYMBOLS),
    ]
    assert COMPARATOR.summarise(pair, SpeechOptions()).metrics["wer"] == 0.25


def test_words_where_there_were_none_have_no_rate_but_count() -> None:
    assert errors_of("", "") == (0, 0, 0, 0)
    assert errors_of("", "a b") == (2, 0, 3, 0)
    compared = compare(frames("__"), frames("_a"), vocabulary=SYMBOLS)
    assert compared.metrics["wer"] == 1
    assert compared.changed


def test_frames_by_hand() -> None:
    compared = compare(frames("ab"), frames("aa"))
    assert compared.metrics["frame_agreement"] == 0.5
    # Two of eight scores are off by one.
    assert compared.metrics["frame_rmse"] == 0.5
    assert compared.changed


# Planted changes


@needs_jiwer
@pytest.mark.parametrize("text", ["ab|b", "abb|a", "ab|", "_b|a", "aba"])
def test_planted_changes_must_fail(text: str) -> None:
    before = frames("ab|a__")
    after = frames(text.ljust(6, "_"))
    compared = compare(before, after, vocabulary=SYMBOLS)
    assert compared.changed == (compared.detail["reference"] != compared.detail["candidate"])
    assert compared.changed or text == "abb|a"
    assert compared.metrics["frame_agreement"] < 1


def test_frames_that_spell_the_same_are_no_change() -> None:
    compared = compare(frames("aab"), frames("abb"), vocabulary=SYMBOLS)
    assert not compared.changed
    assert compared.metrics["frame_agreement"] < 1
    assert compare(frames("aab"), frames("abb")).changed


@needs_jiwer
def test_a_change_within_noise_is_sensitivity() -> None:
    for options in ({}, {"vocabulary": SYMBOLS}):
        compared = compare(frames("ab", 0.01), frames("aa", 0.01), noise=0.1, **options)
        assert (compared.changed, compared.sensitive) == (False, True)


# Kinds of output


@pytest.mark.parametrize("layout", ["NTV", "TNV", "NVT"])
def test_axes_may_be_in_any_order(layout: str) -> None:
    ours, theirs = (np.transpose(frames(t), ["NTV".index(a) for a in layout]) for t in ("ab", "aa"))
    assert compare(ours, theirs, layout=layout).metrics["frame_agreement"] == 0.5


@needs_jiwer
def test_symbols_need_no_decoding() -> None:
    compared = compare(np.array([[1, 2, 3]]), np.array([[1, 2, 4]]))
    assert compared.metrics["wer"] == pytest.approx(1 / 3)
    assert compared.changed
    named = compare(np.array([[1, 3, 2]]), np.array([[1, 3, 2]]), vocabulary=SYMBOLS)
    assert named.detail["reference"] == ["a b"]


@needs_jiwer
def test_words_are_words() -> None:
    ours, theirs = (np.array([text], object) for text in ("the cat sat", "the cat"))
    assert compare(ours, theirs).metrics["wer"] == pytest.approx(1 / 3)


def test_one_score_per_frame_is_cut_at_a_half() -> None:
    compared = compare([[0.9, 0.1, 0.6]], [[0.9, 0.1, 0.4]])
    assert compared.metrics["frame_agreement"] == pytest.approx(2 / 3)
    assert compare([[0.51]], [[0.49]], noise=0.1).sensitive


def test_vocabularies_come_from_files(tmp_path: Path) -> None:
    listed, mapped, plain = (tmp_path / n for n in ("l.json", "m.json", "p.txt"))
    listed.write_text(json.dumps(["a", "b"]))
    mapped.write_text(json.dumps({"b": 1, "a": 0}))
    plain.write_text("a\nb\n")
    for file in (listed, mapped, plain):
        assert vocabulary_of(str(file)) == ["a", "b"]
    listed.write_text("[1,")
    for bad in (listed, tmp_path / "none"):
        with pytest.raises(InputError, match=r"vocabulary .* cannot be (used|read)"):
            vocabulary_of(str(bad))


def test_without_jiwer_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(InputError, match=r"install optvet\[speech\]"):
        errors_of("a", "b")
    assert errors_of("a b", "a b") == (0, 2, 0, 3)


# NaN, types, nothing


def test_nan_is_defined() -> None:
    before, broken = frames("ab"), frames("ab")
    broken[0, 1, 3] = np.nan
    assert compare(broken, broken.copy()).metrics["frame_rmse"] == 0
    for pair in ((before, broken), (broken, before)):
        compared = compare(*pair, noise=1e9)
        assert compared.changed
        assert compared.metrics["frame_agreement"] == 0.5
        assert compared.metrics["frame_rmse"] == np.inf


def test_float16() -> None:
    before = frames("ab").astype(np.float16)
    assert not compare(before, before).changed


@pytest.mark.parametrize("value", [np.zeros((1, 0, 4)), np.zeros((0, 3), np.int64)])
def test_silence_agrees_with_silence(value: np.ndarray) -> None:
    compared = compare(value, value.copy(), vocabulary=SYMBOLS)
    assert not compared.changed
    assert COMPARATOR.summarise([compared], SpeechOptions()).metrics["wer"] == 0


def test_what_is_no_speech_is_refused() -> None:
    with pytest.raises(InputError, match="no output 'with frames or symbols'"):
        compare(np.array(True), np.array(True))
    with pytest.raises(InputError, match="at most three axes"):
        compare(np.zeros((1, 2, 3, 4)), np.zeros((1, 2, 3, 4)))


# Properties

scores = hnp.arrays(np.float64, (2, 3, 4), elements=st.floats(-5, 5))
texts = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8)


@given(scores)
def test_identical_frames_are_perfect(value: np.ndarray) -> None:
    compared = compare(value, value.copy(), vocabulary=SYMBOLS)
    assert compared.metrics["frame_agreement"] == 1
    assert compared.metrics["frame_rmse"] == compared.metrics["wer"] == 0
    assert not compared.changed
    assert not compared.sensitive


@given(scores, scores)
def test_frames_are_symmetric_bounded_and_sklearns(a: np.ndarray, b: np.ndarray) -> None:
    first, second = (frame_metrics(*p, 0.0)[0] for p in ((a, b), (b, a)))
    assert first == second
    expected = accuracy_score(a.argmax(-1).ravel(), b.argmax(-1).ravel())
    assert first["frame_agreement"] == pytest.approx(expected, abs=1e-9)
    error = root_mean_squared_error(a.ravel(), b.ravel())
    assert first["frame_rmse"] == pytest.approx(error, abs=1e-9)


@needs_jiwer
@given(texts, texts)
def test_errors_are_the_distance_and_its_bounds(a: list[str], b: list[str]) -> None:
    errors, words, _, _ = errors_of(" ".join(a), " ".join(b))
    assert errors == distance(a, b) == errors_of(" ".join(b), " ".join(a))[0]
    assert words == len(a)
    assert abs(len(a) - len(b)) <= errors <= max(len(a), len(b))


# Choosing it


@pytest.mark.parametrize(
    ("task", "mine"),
    [
        ("speech-recognition", True),
        ("automatic speech recognition (CTC)", True),
        ("voice-activity detection", False),
        ("speech enhancement (LSTM mask)", False),
        ("speech quality (MOS)", False),
        ("audio embedding", False),
        ("keyword spotting", False),
    ],
)
def test_it_recognises_its_tasks(task: str, mine: bool) -> None:
    score = COMPARATOR.matches(model(task), {"y": np.zeros((1, 5), np.float32)})
    assert (score >= 0.9) is mine


def test_it_infers_normalized_scores_per_frame() -> None:
    value = np.random.default_rng(0).normal(size=(1, 9, 5))
    assert COMPARATOR.matches(model(), {"y": value}) < 0.01
    normalized = value - np.log(np.exp(value).sum(-1, keepdims=True))
    assert 0.01 < COMPARATOR.matches(model(), {"y": normalized}) < 0.9
