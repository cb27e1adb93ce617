"""The table of symptoms."""

from __future__ import annotations

from typing import get_args

import pytest

from optvet.engine.scripts import rendering
from optvet.spec.symptoms import CHECKS, NOTES, SYMPTOMS, ScriptCheck, Stage, Symptom


def test_every_symptom_has_one_entry_in_the_order_of_the_enumeration() -> None:
    assert list(SYMPTOMS) == list(Symptom)


@pytest.mark.parametrize("symptom", Symptom)
def test_an_entry_contradicts_itself_nowhere(symptom: Symptom) -> None:
    info = symptom.info
    assert info.blames
    assert set(info.stages) <= set(get_args(Stage))
    assert info.expected.endswith(".")
    assert not info.headline.endswith(".")
    # What a script cannot show cannot be reduced: nothing would tell whether it is kept.
    assert info.reducible <= (info.check is not ScriptCheck.NOTHING)
    # A place in the graph is looked for by trying models at the one step that shows it.
    assert not (info.located and len(info.stages) > 1)
    assert not (info.failed and info.stages == ("compare",))
    # Structures are compared without a run, so no limit of one is reached.
    assert not (info.structural and info.limit)


def test_every_check_has_an_entry_and_code_that_reads_the_facts_it_compares() -> None:
    assert list(CHECKS) == list(ScriptCheck)
    comparing = {str(check) for check, info in CHECKS.items() if info.wrong}
    macros = vars(rendering._environment().get_template("facts.py.jinja").module)
    assert {name for name in macros if not name.startswith("_")} == comparing
    # What needs no run is shown by facts alone.
    assert all(info.wrong or info.runs for info in CHECKS.values())


def test_notes_are_what_does_not_count_as_a_fault() -> None:
    assert {Symptom.SENSITIVITY, Symptom.SLOWDOWN, Symptom.BLOAT} <= NOTES
    assert not NOTES & {Symptom.WRONG_OUTPUT, Symptom.REQUIREMENT, Symptom.REFUSED}
