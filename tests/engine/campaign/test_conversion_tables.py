"""Tables of conversions, from answers as `convert` and `repair` write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Run

from optvet import UsageError
from optvet.engine.campaign.tables.answer_files import read_answers
from optvet.engine.campaign.tables.conversion_tables import (
    ConversionRow,
    blame,
    converted_from,
    frameworks,
    funnel,
    kinds,
    matrix,
)
from optvet.spec.errors import InputError
from optvet.spec.records.convert import ConversionResult

VERDICTS = {"refused": "refused", None: "right"}


def answer(
    symptom: str | None = None, *, source: str = "net", verdict: str = "", **finding: Any
) -> ConversionResult:
    """A conversion by one stage; what is wrong with it, if anything."""
    found = []
    if symptom is not None:
        severity = "refusal" if symptom == "refused" else "fault"
        given: dict[str, Any] = {"stages": ["c/convert"], "kind": "convert", "culprit": "c/convert"}
        given |= {"confirmed": True, "severity": severity, "symptom": symptom}
        found.append({**given, **finding})
    died = symptom in ("refused", "crash")
    stage = {"converter": "c", "name": "convert", "kind": "convert", "format": "onnx"}
    return ConversionResult.model_validate(
        {
            "schema": "optvet.convert/1",
            "source": {
                "source": f"{source}.py:net",
                "format": "plain",
                "digest": source,
                "runtime": "plain",
                "version": "1",
                "inputs": {},
            },
            "converters": [{"name": "c", "version": "1", "options": {}}],
            "verdict": verdict or VERDICTS.get(symptom, "faulty"),
            "findings": found,
            "stages": [{**stage, "state": "not-reached" if died else "same", "error": 1e-7}],
            "controls": [],
        }
    )


def column(found: list[ConversionRow], name: str) -> Any:
    table = funnel(found)
    return table.rows[-1][table.columns.index(name)]


@pytest.mark.parametrize(
    ("symptom", "outcome"),
    [
        (None, "right"),
        ("refused", "refused"),
        ("crash", "died"),
        ("invalid-model", "does not load"),
        ("load-failure", "does not load"),
        ("run-failure", "does not run"),
        ("timeout", "does not run"),
        ("interface-change", "differs"),
        ("wrong-output", "differs"),
    ],
)
def test_each_conversion_is_counted_at_the_step_that_fails(
    symptom: str | None, outcome: str
) -> None:
    found = converted_from([answer(symptom)])
    assert found[0].outcome == outcome
    assert column(found, outcome) == column(found, "asked") == 1


def test_what_is_undecided_or_has_no_answer_is_neither_right_nor_wrong() -> None:
    found = [*converted_from([answer(verdict="undecided")]), ConversionRow("other", "c", None)]
    assert (column(found, "undecided"), column(found, "no result")) == (1, 1)
    assert column(found, "share right") == 0
    assert column([ConversionRow("other", "c", None)], "share right") is None


def test_refusals_have_a_line_of_their_own_without_an_issue() -> None:
    found = converted_from([answer("refused"), answer("load-failure", message="not implemented")])
    assert kinds(found).rows == [
        ["c", "node conversion", "load-failure", "incompatibility", 1, 1],
        ["c", "node conversion", "refused", "", None, 1],
    ]


RANGE = {"stages": ["c/read", "c/convert"]}
AGREES = {"confirmed": False}
SPLIT = {
    "cross_check": [
        {"runtime": "r", "outcome": "fault"},
        {"runtime": "s", "outcome": "no-fault"},
    ]
}
ALONE: dict[str, Any] = {"cross_check": [{"runtime": "r", "outcome": "not-judged"}]}
BOTH = {"cross_check": [{"runtime": "r", "outcome": "fault"}]}


@pytest.mark.parametrize(
    ("finding", "decided"),
    [
        (BOTH, "yes"),
        (ALONE, "on one runtime"),
        (RANGE, "undecided: artifacts between cannot be run"),
        (AGREES, "undecided: it agrees with its predecessor"),
        (SPLIT, "undecided: other runtimes disagree"),
    ],
)
def test_a_stage_is_decided_only_if_all_evidence_names_it(
    finding: dict[str, Any], decided: str
) -> None:
    table = blame(converted_from([answer("wrong-output", **finding)]))
    assert table.rows[0][table.columns.index("decided")] == decided
    assert "rows 2 and 3" in table.note


@pytest.mark.parametrize(
    ("symptom", "decided"),
    [
        ("run-failure", "on one runtime"),
        ("load-failure", "on one runtime"),
        ("invalid-model", "yes"),
    ],
)
def test_what_one_runtime_alone_refuses_may_be_its_own_fault(symptom: str, decided: str) -> None:
    table = blame(converted_from([answer(symptom, **ALONE)]))
    assert table.rows[0][table.columns.index("decided")] == decided


def test_formats_that_nothing_leads_to_are_told_from_those_not_asked() -> None:
    found = converted_from([answer(), answer("wrong-output", source="other"), answer("refused")])
    table = frameworks(found, {"plain": frozenset({"onnx", "tvm"}), "onnx": frozenset({"tvm"})})
    assert table.columns == ["source", "onnx", "tvm"]
    assert table.rows == [["plain", "1 right, 1 differs, 1 refused", "not asked"]]
    for reach in ({"plain": frozenset[str]()}, None):
        assert frameworks(found, reach).rows == [["plain", "1 right, 1 differs, 1 refused"]]


def test_cells_of_the_matrix_are_errors_or_what_failed() -> None:
    found = converted_from(
        [answer(), answer("wrong-output", source="b", error=0.5), answer("refused", source="c")]
    )
    assert [row[1] for row in matrix(found).rows] == ["1e-07", "! 0.5", "refused"]


def test_answers_in_a_folder_are_tables(place: Path, run: Run) -> None:
    folder = place / "answers"
    folder.mkdir()
    (folder / "a.json").write_text(answer("wrong-output", error=0.5).to_json())
    (folder / "note.json").write_text('{"schema": "other/1"}')
    repair = {
        "schema": "optvet.repair/1",
        "source": "net.py:net",
        "digest": "d",
        "converters": [{"name": "c", "version": "1", "options": {}}],
        "verdict": "repaired",
        "verdict_before": "faulty",
        "edits": [{"kind": "removal", "about": "drop Relu", "operations": []}],
        "before": {"witnesses": {"inputs": 2, "wrong": 2}},
        "after": {
            "witnesses": {"inputs": 2, "wrong": 0},
            "held_out": {"inputs": 5, "wrong": 0},
        },
    }
    (folder / "r.json").write_text(json.dumps(repair))
    ran = run("campaign", "tables", folder, "--study", "converters", "--format", "csv")
    assert ran.code == 0
    assert "net.py:net,c,repaired,drop Relu,2,0,0,5" in ran.out
    assert "c,1,0,0,0,0,1,0,0,0,0.0" in ran.out
    told = run("campaign", "tables", folder, "--study", "converters", "--json", "-")
    assert json.loads(told.out)["study"] == "converters"
    for arguments in ((folder,), ("nowhere", "--answers", folder)):
        ran = run("campaign", "tables", *arguments)
        assert (ran.code, "only answers of precision have a table" in ran.err) == (2, True)


def test_what_is_no_answer_is_told(place: Path, run: Run) -> None:
    with pytest.raises(UsageError, match="has no answer of convert, repair, compare, bench"):
        read_answers([place])
    (place / "a.json").write_text('{"schema": "optvet.convert/1"}')
    with pytest.raises(InputError, match=r"a.json is no optvet.convert/1: source"):
        read_answers([place])
    ran = run("campaign", "tables", "nowhere", "--answers", place)
    assert (ran.code, "a.json is no optvet.convert/1" in ran.err) == (2, True)
    ran = run("campaign", "tables", "nowhere", "--study", "converters")
    assert (ran.code, "is no store" in ran.err) == (2, True)
