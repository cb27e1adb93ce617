"""What an artifact does beside its source, as far as no runtime is needed to tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from optvet.engine.convert.compare_outputs import Judge, _without_rows, _without_unsettled
from optvet.engine.convert.match_interface import Matched, match_outputs
from optvet.engine.convert.open_labels import MovedLabels, OpenLabels, further_labels, judge_labels
from optvet.engine.convert.source_noise import NoiseMeter, _computed_in_double
from optvet.engine.convert.worker_steps import Observed
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.sample import SampleVerdict
from optvet.engine.work.trials.inference import Outputs
from optvet.graph.interface import Interface
from optvet.spec.converters import LabelScores, SourceFacts
from optvet.spec.types import Failure, FailureKind, Sample, ValueInfo

Y = np.array([1.0, 2.0], np.float32)
LABELS = SourceFacts({}, labels=frozenset({"y"}))
SAMPLE = Sample("1", {})


class Quiet(NoiseMeter):
    """Noise of one roundoff, without a run."""

    def __init__(self) -> None:
        self.known = {"1": Noise(jitters=[{"y": np.nextafter(Y, np.float32(9))}] * 3)}
        self.labels = {}


def seen(observed: Observed) -> SampleVerdict:
    judge = Judge({"1": {"y": Y}}, frozenset(), cast(NoiseMeter, Quiet()))
    return judge.see(observed, [SAMPLE])["1"]


@pytest.mark.parametrize(
    ("complaint", "kind", "symptom", "state"),
    [
        ("", "error", "load-failure", "fault"),
        ("no such operator", "error", "invalid-model", "fault"),
        ("", "abort", "crash", "fault"),
        ("no such operator", "abort", "crash", "fault"),
        ("", "killed", "crash", "undecided"),
    ],
)
def test_what_does_not_load_is_called_after_what_the_checker_said(
    complaint: str, kind: FailureKind, symptom: str, state: str
) -> None:
    found = seen(Observed(complaint, Failure(kind, "load", "it ended")))
    assert (found.symptom, found.state) == (symptom, state)
    assert found.message.startswith(complaint)
    assert found.message.endswith("it ended")


def test_outputs_are_judged_with_noise_where_that_matters() -> None:
    assert seen(Observed(runs={"1": {"y": Y}})).state == "same"
    assert seen(Observed(runs={"1": {"y": Y * np.float32(1 + 1e-6)}})).state == "drift"
    wrong = seen(Observed(runs={"1": {"other": Y * 2}}))
    assert (wrong.symptom, wrong.outputs, wrong.state) == ("wrong-output", ("y",), "fault")


def test_another_number_of_outputs_is_another_interface() -> None:
    found = seen(Observed(runs={"1": {"y": Y, "z": Y}}))
    assert (found.symptom, found.stage) == ("interface-change", "compare")


def test_what_fails_on_a_sample_is_a_run_failure() -> None:
    found = seen(Observed(runs={"1": Failure("error", "run", "no")}))
    assert (found.symptom, found.failed) == ("run-failure", True)


def test_an_output_that_the_source_lists_twice_may_come_once_or_twice() -> None:
    reference = {"y": np.zeros(2), "z": np.ones(2)}
    listed = ("y", "z", "y")
    twice = {"0": np.zeros(2), "1": np.ones(2), "2": np.zeros(2)}
    pair = match_outputs(reference, twice, listed)
    assert (pair.problem, {n: v.tolist() for n, v in pair.candidate.items()}) == (
        "",
        {"y": [0, 0], "z": [1, 1]},
    )
    assert match_outputs(reference, {"a": np.zeros(2), "b": np.ones(2)}, listed).problem == ""
    unlike = match_outputs(reference, twice | {"2": np.ones(2)}, listed)
    assert (unlike.problem, unlike.place) == ("y: listed twice, it came with two values", "y")
    assert match_outputs(reference, twice, ("y", "z")).problem == "2 outputs became 3"


def test_labels_alone_may_turn_from_booleans_to_integers() -> None:
    reference, numbered = {"y": np.array([True, False])}, {"y": np.array([1, 0])}
    pair = match_outputs(reference, numbered, facts=LABELS)
    assert (pair.problem, pair.notes) == ("", ("y: bool became int64",))
    assert pair.reference["y"].tolist() == pair.candidate["y"].tolist()
    assert match_outputs(reference, numbered).problem == "y: bool became int64"
    turned = match_outputs(numbered, reference, facts=LABELS)
    assert turned.problem == "y: int64 became bool"
    texts = match_outputs(reference, {"y": np.array(["a", "b"])}, facts=LABELS)
    assert texts.problem == "y: bool became text"


def test_one_number_for_each_row_may_be_a_vector_or_a_column() -> None:
    vector, column = {"y": Y}, {"y": Y.reshape(2, 1)}
    columns = SourceFacts({}, columns=frozenset({"y"}))
    for one, other in [(vector, column), (column, vector)]:
        pair = match_outputs(one, other, facts=columns)
        assert pair.problem == ""
        assert pair.candidate["y"].tolist() == pair.reference["y"].tolist()
        assert match_outputs(one, other).problem == pair.notes[0]
    assert match_outputs(vector, {"y": Y.reshape(1, 2)}, facts=columns).problem
    assert match_outputs({"y": np.zeros((2, 2))}, {"y": np.zeros(4)}, facts=columns).problem


def test_inputs_that_declare_less_are_noted() -> None:
    fixed, open_ = (
        Interface((ValueInfo("x", "float", shape),), (ValueInfo("y", "float", (2,)),))
        for shape in ((2, 3), (None, 3))
    )
    x = np.zeros((2, 3), np.float32)
    sample, outputs = Sample("s", {"x": x}), {"y": np.zeros(2, np.float32)}
    judge = Judge({"s": outputs}, frozenset(), Quiet(), source=fixed)
    found = judge.see(Observed(runs={"s": outputs}, interface=open_), [sample])["s"]
    assert (found.state, found.notes) == (
        "same",
        ("input 'x' declares less: [2, 3] became [?, 3]",),
    )


def further(
    label: list[int], scores: np.ndarray, moved: Sequence[list[int]] = (), spread: float = 0.0
) -> list[list[int]]:
    """Labels besides ``label`` that rounding may give, by the numbers behind them."""
    by = LabelScores(scores, np.arange(scores.shape[-1]), "scores")
    found = MovedLabels(
        {"label": [np.array(m) for m in moved]},
        {"label": by},
        {"label": np.full(scores.shape, spread)},
    )
    reference = {"label": np.array(label), "scores": scores}
    others = further_labels(reference, found, np.dtype(np.float32), [])
    return [other.tolist() for other in others["label"].others]


def test_a_label_whose_scores_are_as_good_as_equal_is_decided_by_rounding() -> None:
    scores = np.array([[0.5, 0.5, 0], [0.5 + 1e-7, 0.5 - 1e-7, 0], [0.9, 0.1, 0]])
    assert further([0, 0, 0], scores) == [[1, 1, 0]]
    # A source that names another class than that of its largest score decides by something else.
    assert further([2, 2, 2], scores) == []
    assert further([0, 0, 0], np.where(scores > 0.8, np.nan, scores)) == [[0, 0, 1], [1, 1, 2]]
    assert further([0, 0, 0], np.where(scores > 0.8, np.inf, scores)) == [[1, 1, 0]]
    assert further([0, 0, 0], scores, spread=0.21) == [[1, 1, 0]]
    assert further([0, 0, 0], scores, spread=0.41) == [[1, 1, 1], [2, 2, 0]]


def test_a_label_that_the_source_gives_on_moved_inputs_is_decided_by_rounding() -> None:
    scores = np.array([[0.9, 0.1], [0.9, 0.1]])
    assert further([0, 0], scores, [[0, 0], [0, 1], [0, 0]]) == [[0, 1]]


def test_scores_that_rounding_of_the_weights_moves_across_zero_decide_no_label() -> None:
    scores = np.array([[1e-8], [-1e-8], [0.5]])
    label = np.array([[1], [-1], [1]])
    by = LabelScores(np.stack([-scores, scores], axis=-1), np.array([-1, 1]), "scores")
    found = MovedLabels({"label": []}, {"label": by}, {"label": np.zeros((3, 1, 2))})
    reference = {"label": label, "scores": scores}

    def others(moved: list[Outputs]) -> list[list[list[int]]]:
        kind = np.dtype(np.float64)
        return [o.tolist() for o in further_labels(reference, found, kind, moved)["label"].others]

    assert others([{"scores": scores + step} for step in (-2e-8, 2e-8)]) == [[[-1], [1], [1]]]
    assert others([]) == []
    assert others([{"scores": np.where(scores > 0.1, np.inf, scores)}]) == []


def test_a_label_is_excused_only_if_the_source_may_give_it() -> None:
    judged = Judgement("y", "sensitivity")
    expected = np.array([0, 0, 0, 0])
    others = [np.array([1, 0, 0, 0]), np.array([0, 2, 0, 0])]
    open_ = OpenLabels(others, np.array([False, False, False, True]), np.array([-1, 1]))
    found = judge_labels(judged, expected, np.array([1, 2, 0, 0]), open_)
    assert found.call == "sensitivity"
    assert found.detail == "2 of 4 labels differ, which rounding decides in the source too"
    found = judge_labels(judged, expected, np.array([1, 1, 3, 0]), open_)
    assert found.call == "fault"
    assert (
        found.detail == "2 of 4 elements differ that the source decides, and 1 that rounding does"
    )
    assert judge_labels(judged, expected, np.array([0, 0, 3, 0]), open_).call == "fault"
    # The source decides against no class of the last row, so that each of them is as good.
    for label in (-1, 1):
        came = np.array([0, 0, 0, label])
        assert judge_labels(judged, expected, came, open_).call == "sensitivity"
    assert judge_labels(judged, expected, np.array([0, 0, 0, 9]), open_).call == "fault"


def test_many_labels_of_a_source_that_cannot_be_moved_are_wrong_where_noise_says_so() -> None:
    wrong = Judgement("y", "fault")
    expected = np.zeros(100, np.int64)
    assert judge_labels(wrong, expected, np.eye(100, dtype=np.int64)[0], None).call == "unsure"
    assert judge_labels(wrong, expected, expected + 1, None).call == "fault"


def test_a_row_of_tied_elements_is_excused_within_the_range_of_the_source() -> None:
    source = {"y": np.array([1.0, 3.0], np.float32), "label": np.array(["a", "b"], object)}
    rows, known = np.array([True, False]), {n: [v] for n, v in source.items()}

    def came(value: float, label: str) -> Matched:
        other = {"y": np.array([value, 3.0], np.float32), "label": np.array([label, "b"], object)}
        return _without_rows(Matched(source, other), rows, known)

    found = came(2.5, "b")
    assert found.candidate["y"].tolist() == [1, 3]
    assert found.candidate["label"].tolist() == ["a", "b"]
    assert found.notes[0].endswith("elements of the source tie; what is in -2 to 6 is excused")
    for value in (1e3, -5.0, np.nan):
        assert came(value, "zebra").candidate["y"].tolist()[0] != 1
        assert came(value, "zebra").candidate["label"].tolist() == ["zebra", "b"]


def test_what_the_source_computes_grossly_wrong_is_not_compared_closer_than_that() -> None:
    source = np.array([-10, -10, -10, 6], np.float32)
    came = np.array([-9, np.nan, 20, 7], np.float32)
    exact = {"y": np.array([-30, -30, -30, 6.0])}
    agreed = _without_unsettled(Matched({"y": source}, {"y": came}), exact).candidate["y"]
    assert agreed.tolist() == [-10, -10, 20, 7]


def test_a_number_in_place_of_an_infinity_is_no_larger_than_the_exact_one() -> None:
    source = np.array([-np.inf, 2.0], np.float32)
    exact = {"y": np.array([-30.0, 2.0])}
    for value, agrees in ((-31.0, True), (-55.0, True), (-1e6, False), (np.nan, True)):
        came = np.array([value, 2.0], np.float32)
        found = _without_unsettled(Matched({"y": source}, {"y": came}), exact).candidate["y"]
        assert (found[0] == -np.inf) == agrees


def test_an_output_that_float64_changes_was_not_computed_in_it() -> None:
    exact, near = np.array([0.1, 0.2]), np.array([0.1, np.nextafter(0.2, 1)])
    outputs = {"exact": exact, "near": near, "single": Y, "unknown": exact}
    truth = {"exact": exact, "near": exact, "single": Y.astype(np.float64)}
    assert _computed_in_double(outputs, truth) == {"exact"}
