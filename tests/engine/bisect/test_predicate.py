"""What makes a release bad, with answers of ``vet`` that are made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from optvet.engine.bisect import predicate
from optvet.engine.bisect.overlay import Overlay
from optvet.engine.bisect.predicate import ReleaseAnswer, VetPredicate
from optvet.spec.records import ErrorRecord, VetResult
from optvet.spec.records.timing import Timing
from optvet.spec.request import VetRequest

OVERLAY = Overlay("1.0", (Path("nowhere"),))


def timing(low: float | None, high: float | None) -> Timing:
    return Timing(
        verdict="undecided",
        detail="noise",
        baseline="original",
        low=low,
        high=high,
        confidence=0.99,
        threshold=0.1,
    )


def answer(
    monkeypatch: pytest.MonkeyPatch, timed: Timing | None, symptom: str | None = None
) -> ReleaseAnswer:
    """What a release is, that has no finding and this timing."""
    result = VetResult.model_construct(verdict="clean", findings=[], timing=timed)
    monkeypatch.setattr(predicate, "vet_there", lambda overlay, request: result)
    asked = VetRequest(model="m.onnx", measure=True)
    return VetPredicate(asked, symptom)(OVERLAY)


@pytest.mark.parametrize(
    ("timed", "reason"),
    [
        (timing(0.95, 1.2), "0.95 to 1.20 times the time of the original, where 1.10 is the limit"),
        (timing(None, None), "the timing is undecided: noise"),
        (None, "it could not be timed"),
    ],
)
def test_a_release_that_may_be_too_slow_is_skipped(
    monkeypatch: pytest.MonkeyPatch, timed: Timing | None, reason: str
) -> None:
    got = answer(monkeypatch, timed)
    assert got.state == "skipped"
    assert reason in got.reason


def test_whether_a_release_is_faster_need_not_be_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(monkeypatch, timing(0.85, 1.05)).state == "good"


def test_time_does_not_matter_where_another_symptom_is_sought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert answer(monkeypatch, timing(0.95, 1.2), "wrong-output").state == "good"


def test_a_release_that_does_not_have_the_pass_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ErrorRecord.model_construct(message="unknown pipeline or pass of acme 'tidy'; did you")
    monkeypatch.setattr(predicate, "vet_there", lambda overlay, request: error)
    told = VetPredicate(VetRequest(model="m.onnx", pipeline="tidy"))(OVERLAY)
    assert (told.state, told.verdict, told.error) == ("good", "no such pass", error)
