"""The conformance suite of studies."""

from __future__ import annotations

from typing import get_args

from optvet.spec.records.report_table import ReportTable
from optvet.spec.studies import Outcome, Study, StudyData, TrialParts, TrialRow
from optvet.testing.conformance import check_form, require


def check_study(study: Study) -> None:
    """Check that ``study`` keeps the contract; raises AssertionError where it does not.

    Its tables are made of no trial, and of trials with each outcome of which little is known.
    """
    check_form(study, Study, "a study")
    words = study.description
    require(study, bool(words) and "\n" not in words, "description must be one line")
    for title, data in (("of no trial", StudyData(())), ("of some trials", _make_data())):
        tables = study.tables(data)
        wrong = [t for t in tables if not isinstance(t, ReportTable)]
        require(study, not wrong, f"tables() {title} must return ReportTables")
        uneven = [t.title for t in tables if any(len(r) != len(t.columns) for r in t.rows)]
        require(study, not uneven, f"tables() {title}: a row of {uneven} has not its columns")
        again = study.tables(data)
        require(study, list(tables) == list(again), f"tables() {title} gave others in two calls")


def _make_data() -> StudyData:
    """A trial of each outcome, under two optimizers."""
    rows = [
        TrialRow(
            key=f"{name}{number}",
            model=f"m{number}",
            digest=f"d{number}",
            source=f"m{number}.onnx",
            optimizer=name,
            version="1",
            parts=TrialParts(name, "1", "default", dataset="random"),
            outcome=outcome,
        )
        for name in ("first", "second")
        for number, outcome in enumerate(get_args(Outcome))
    ]
    return StudyData(rows, ["m0.onnx", "other"])
