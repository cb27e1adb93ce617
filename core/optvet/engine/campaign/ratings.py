"""Ratings of findings: what a person says of each, beside what optvet or another person says.

Symptoms, stages and causes of findings are judgements, and the cause is a guess. A study therefore
lets two people rate the same findings and tells how far they agree beyond chance.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from optvet.engine.numerics.agreement import agreement
from optvet.spec.errors import InputError
from optvet.spec.parsing import read_bytes
from optvet.spec.records.report_table import ReportTable
from optvet.spec.studies import FaultRow, TrialRow
from optvet.spec.words import csv_cell

ASPECTS = ("symptom", "stage", "cause")
Ratings = Mapping[str, Mapping[str, str]]
"""By fingerprint of a finding, and by aspect; what was not rated is left out."""
_CELL = 200


def own_ratings(rows: Iterable[TrialRow]) -> Ratings:
    """What optvet itself says of each fault, once for each fingerprint."""
    return {
        seen.fingerprint: {
            "symptom": str(seen.finding.symptom),
            "stage": seen.finding.stage,
            "cause": seen.cause.name,
        }
        for _, seen in _faults(rows)
    }


def sheet(rows: Iterable[TrialRow]) -> str:
    """The faults as a table in CSV, whose columns of ``ASPECTS`` are left for a person to fill."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["fingerprint", "model", "culprit", "message", *ASPECTS])
    for row, seen in {s.fingerprint: (r, s) for r, s in _faults(rows)}.values():
        about = (row.model, seen.finding.blamed(), seen.finding.message)
        cells = [csv_cell(" ".join(text.split())[:_CELL]) for text in about]
        writer.writerow([seen.fingerprint, *cells, *[""] * len(ASPECTS)])
    return out.getvalue()


def read_ratings(file: Path) -> Ratings:
    """The ratings in a sheet; a finding's fingerprint may be cut to eight digits or more.

    Raises:
        InputError: It is no table with a column of fingerprints and one of an aspect.
    """
    try:
        text = read_bytes(file, "listing").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{file} is not in UTF-8; save the sheet as CSV in UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    named = [aspect for aspect in ASPECTS if aspect in (reader.fieldnames or ())]
    if "fingerprint" not in (reader.fieldnames or ()) or not named:
        raise InputError(
            f"{file} is no sheet of ratings: expected columns fingerprint and at least one of "
            f"{', '.join(ASPECTS)}, as `optvet campaign rate STORE` prints them"
        )
    found: dict[str, dict[str, str]] = {}
    for line in reader:
        key = (line["fingerprint"] or "").strip()
        if len(key) < 8:
            raise InputError(f"{file}, line {reader.line_num}: {key!r} is no fingerprint")
        if key in found:
            raise InputError(f"{file}, line {reader.line_num}: {key} is rated twice")
        given = {aspect: (line[aspect] or "").strip().lower() for aspect in named}
        found[key] = {aspect: name for aspect, name in given.items() if name}
    return found


def rating_tables(first: Ratings, second: Ratings, names: tuple[str, str]) -> list[ReportTable]:
    """Agreement per aspect, and each finding of which the two say something else.

    Args:
        first: Whose fingerprints may be cut.
        second: Likewise.
        names: Who rated, for the columns.
    """
    pairs = _paired(first, second)
    lines: list[list[str | int | float | None]] = []
    for aspect in ASPECTS:
        both = [
            (a[aspect].lower(), b[aspect].lower())
            for _, a, b in pairs
            if aspect in a and aspect in b
        ]
        found = agreement([a for a, _ in both], [b for _, b in both])
        share = found.same / found.items if found.items else None
        lines.append([aspect, found.items, found.same, share, found.kappa])
    unlike: list[list[str | int | float | None]] = [
        [key, aspect, a[aspect], b[aspect]]
        for key, a, b in pairs
        for aspect in ASPECTS
        if aspect in a and aspect in b and a[aspect].lower() != b[aspect].lower()
    ]
    unpaired = len(first) + len(second) - 2 * len(pairs)
    return [
        ReportTable(
            title=f"Agreement of {names[0]} and {names[1]}",
            note="κ: Cohen's kappa, 1 is full agreement and 0 what chance gives; not defined where "
            f"both give one name alone. Findings that only one of them rated: {unpaired}.",
            columns=["aspect", "rated by both", "same", "share", "κ"],
            rows=lines,
        ),
        ReportTable(
            title="Findings that they rate otherwise",
            columns=["finding", "aspect", *names],
            rows=unlike,
        ),
    ]


def _faults(rows: Iterable[TrialRow]) -> Iterable[tuple[TrialRow, FaultRow]]:
    return ((row, seen) for row in rows for seen in row.faults)


def _paired(
    first: Ratings, second: Ratings
) -> list[tuple[str, Mapping[str, str], Mapping[str, str]]]:
    """Ratings of one finding by both; fingerprints are equal up to the shorter one's length."""
    return [
        (min(a, b, key=len), rated, other)
        for a, rated in first.items()
        for b, other in second.items()
        if a.startswith(b) or b.startswith(a)
    ]
