"""The findings of a campaign as the study lists its own: an issue, its error, its models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any, NamedTuple

from optvet.plugin import Finding, ReportTable, Symptom, TrialRow
from optvet_ditox.figures import Cell, published


def _type(found: Finding) -> str:
    """The study's word for a symptom."""
    if found.severity == "note" and found.known_limit is None:
        return _WARNING
    return _type_of(found.symptom, found.stage)


_FROM_FIRST = ("build", "check", "load", "run", "compare")


def _type_of(symptom: Symptom, stage: str) -> str:
    if symptom.info.of_values:
        return "accuracy"
    return "crash" if stage in ("build", "check") else "crash when run"


class _Issue(NamedTuple):
    """What makes two findings one row, beside the words of the error."""

    optimizer: str
    passes: str
    type: str
    about: str


class _Wording(NamedTuple):
    error: str
    symptom: str
    cause: str
    message: str


def _issues(row: TrialRow) -> Iterator[tuple[_Issue, _Wording]]:
    """Faults, notes, and passes that fail alone though no finding is about them."""
    for seen in row.faults:
        yield _issue_of(row, seen.finding, seen.issue, seen.cause.name)
    for note in row.notes:
        cause = "by design" if note.known_limit else "the pass" if note.culprit else "round trip"
        yield _issue_of(row, note, str(note.symptom), cause)
    blamed = {name for f in (*(s.finding for s in row.faults), *row.notes) for name in f.culprit}
    for record in row.passes:
        if record.symptom is None or record.effect != "failed" or record.name in blamed:
            continue
        kind = _type_of(record.symptom, min(record.symptom.info.stages, key=_FROM_FIRST.index))
        key = _Issue(row.optimizer, record.name, kind, str(record.symptom))
        cause = "unclear" if record.known_limit is None else "by design"
        error = record.known_limit or record.message or "alone"
        yield key, _Wording(error, str(record.symptom), cause, record.message)
    yield from _warnings(row)


def _warnings(row: TrialRow) -> Iterator[tuple[_Issue, _Wording]]:
    """What libraries warn of after optimization only: by pass alone, then by all passes."""
    explained: set[str] = set()
    for record in row.passes:
        for message in record.warnings:
            explained.add(_VARYING.sub("…", message))
            yield _warning_of(row, record.name, message, "the pass")
    together = row.pipeline[0] if len(row.pipeline) == 1 else "all passes"
    cause = "the pass" if len(row.pipeline) == 1 else "unclear"
    for warning in row.warnings:
        if _VARYING.sub("…", warning.message) not in explained:
            yield _warning_of(row, together, warning.message, cause)


def _warning_of(row: TrialRow, passes: str, message: str, cause: str) -> tuple[_Issue, _Wording]:
    about = _VARYING.sub("…", message)
    return _Issue(row.optimizer, passes, _WARNING, about), _Wording(
        message, _WARNING, cause, message
    )


_WARNING = "warning"
_VARYING = re.compile(r"'[^']*'|\d+")
"""Names and numbers in a message, which differ from model to model."""


def _issue_of(row: TrialRow, found: Finding, issue: str, cause: str) -> tuple[_Issue, _Wording]:
    passes = ", ".join(found.culprit) or "round trip"
    error = found.known_limit or found.message or found.blamed()
    wording = _Wording(error, found.symptom, cause, found.message)
    return _Issue(row.optimizer, passes, _type(found), issue), wording


def findings(rows: Sequence[TrialRow]) -> ReportTable:
    """Each issue: the passes, what the error says, its type and cause, and the models."""
    issues: dict[_Issue, list[TrialRow]] = {}
    about: dict[_Issue, _Wording] = {}
    for row in rows:
        for key, said in _issues(row):
            issues.setdefault(key, []).append(row)
            about.setdefault(key, said)
    lines: list[list[Cell]] = []
    ordered = sorted(issues.items(), key=lambda item: -len({r.digest for r in item[1]}))
    for number, (key, those) in enumerate(ordered, 1):
        said = about[key]
        named = sorted({f"{r.model} (op. {r.opset})" if r.opset else r.model for r in those})
        models = len({r.digest for r in those})
        listed = ", ".join(named[:_LISTED]) + (" …" if len(named) > _LISTED else "")
        error = shorten(said.error, _MESSAGE, placeholder=" …")
        cells: list[Cell] = [error, key.type, said.symptom, said.cause, listed, models]
        lines.append([number, key.optimizer, key.passes, *cells])
    return ReportTable(
        title="DiTOX: findings",
        note="The same crash of the same passes is one finding, and so is the same note; "
        "wrong values are one per place. By design: what the pass documents that it does, which "
        "the study counted too. Warnings are those of libraries after optimization only: of a pass "
        "alone, else of all passes.",
        columns=[
            "no.", "optimizer", "passes", "error", "type", "symptom", "cause", "models", "how many"
        ],
        rows=lines,
    )  # fmt: skip


_MESSAGE = 80
_LISTED = 6


def published_findings(rows: Sequence[TrialRow]) -> ReportTable:
    """The study's fifteen findings, and how many models here show the same of the same pass."""
    seen = [
        (row.digest, {*key.passes.split(", ")}, said) for row in rows for key, said in _issues(row)
    ]
    lines: list[list[Cell]] = []
    for number, entry in enumerate(published()["findings"], 1):
        names = {*(entry["passes"] or ("round trip", "all passes"))}
        ours = {digest for digest, passes, said in seen if passes & names and _is(entry, said)}
        passes = ", ".join(entry["passes"]) or "all passes"
        lines.append([number, passes, entry["text"], entry["type"], entry["models"], len(ours)])
    return ReportTable(
        title="DiTOX: the study's findings",
        note="Here: models of this campaign on which one of these passes, or the round trip that "
        "all passes share, shows the same symptom with the same error.",
        columns=["no.", "passes", "error", "type", "models in DiTOX", "here"],
        rows=lines,
    )


def _is(entry: Mapping[str, Any], said: _Wording) -> bool:
    """Whether something that was seen is a finding of the study: its symptom, and its error."""
    if entry.get("symptom", said.symptom) != said.symptom:
        return False
    return re.search(entry.get("message", ""), said.message, re.IGNORECASE) is not None
