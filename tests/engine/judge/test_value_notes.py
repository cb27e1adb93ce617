"""Notes on values: which outputs have one, and what is kept of many samples."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from optvet.engine.judge import value_notes as module
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.sample import SampleVerdict
from optvet.engine.judge.value_notes import ValueNote, value_notes
from optvet.engine.vet.observe.observation import Examination
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Sample

Arrays = Mapping[str, np.ndarray]


def note(output: str, detail: str = "", symptom: Symptom = Symptom.SENSITIVITY) -> ValueNote:
    return ValueNote(symptom, output, detail)


def test_only_outputs_that_depend_on_rounding_are_noted_as_sensitive() -> None:
    judgements = (
        Judgement("a", "same"),
        Judgement("b", "sensitivity", 0.5, 0.4, detail="1 of 8 differs"),
        Judgement("c", "fault", 1.0, 0.0, exceeds=9.0),
    )
    verdict = SampleVerdict("fault", judgements=judgements)
    found = list(value_notes(verdict, {}, {}))
    assert found == [ValueNote(Symptom.SENSITIVITY, "b", "1 of 8 differs", 0.5, 0.4)]


def test_a_further_note_sees_the_outputs_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(verdict: SampleVerdict, expected: Arrays, came: Arrays) -> Iterator[ValueNote]:
        for name, value in came.items():
            if not value.any() and expected[name].any():
                yield note(name, "all zero", Symptom.BLOAT)

    monkeypatch.setattr(module, "VALUE_NOTES", (*module.VALUE_NOTES, zeros))
    expected = {"a": np.ones(3), "b": np.zeros(3)}
    came = {"a": np.zeros(3), "b": np.zeros(3)}
    found = list(value_notes(SampleVerdict("same"), expected, came))
    assert found == [note("a", "all zero", Symptom.BLOAT)]


def test_of_many_samples_the_first_note_of_each_kind_and_output_is_kept() -> None:
    first, second = Sample("first", {}), Sample("second", {})
    found = Examination(notes=[(first, note("a", "1"))])
    found.add(Examination(notes=[(second, note("a", "2")), (second, note("b", "3"))]))
    found.add(Examination(notes=[(second, note("a", "4", Symptom.BLOAT))]))
    kept = [(s.id, n.symptom, n.output, n.detail) for s, n in found.notes]
    assert kept == [
        ("first", Symptom.SENSITIVITY, "a", "1"),
        ("second", Symptom.SENSITIVITY, "b", "3"),
        ("second", Symptom.BLOAT, "a", "4"),
    ]
