"""Reading documents, those of earlier versions too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from optvet.spec.errors import InputError
from optvet.spec.parsing import read_json
from optvet.spec.records.base import Record
from optvet.spec.symptoms import Symptom
from optvet.spec.validation_words import words_of
from optvet.spec.words import quote

R = TypeVar("R", bound=Record)
JSON = dict[str, Any]


def read_document(kind: type[R], document: Mapping[str, Any]) -> R:
    """A document of ``kind``, brought up to date if it is of an earlier version.

    Raises:
        pydantic.ValidationError: It is no document of that kind.
    """
    data = dict(document)
    # The first version of bundles and replays wrote the field's name in place of its alias.
    if "schema_" in data:
        data["schema"] = data.pop("schema_")
    while (upgrade := _UPGRADES.get(str(data.get("schema")))) is not None:
        data = upgrade(data)
    return kind.model_validate(data)


def read_document_in(kind: type[R], file: Path, *, advice: str) -> R:
    """The document of ``kind`` in a file; see ``read_document``.

    Raises:
        InputError: It is none; the message ends in ``advice``.
    """
    try:
        return read_document(kind, read_json(file, "listing"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{file}: {quote(where)}: {words_of(first)}; {advice}") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{file}: no document of optvet ({error}); {advice}") from error


def _vet_2(data: JSON) -> JSON:
    """``optvet.vet/1``: controls and other runtimes' answers were texts by name."""
    data |= {"schema": "optvet.vet/2", "findings": [_finding_2(f) for f in data["findings"]]}
    data["complete"] = "not tried" not in data["controls"].get("samples", "")
    data["controls"] = [
        {"name": name, "state": _state(words), "detail": words}
        for name, words in data["controls"].items()
    ]
    return data


def _vet_3(data: JSON) -> JSON:
    """``optvet.vet/2``: ``changing_passes`` was called ``touched``."""
    return data | {"schema": "optvet.vet/3", "changing_passes": data.pop("touched", None)}


def _state(words: str) -> str:
    if words == "not needed":
        return "not-needed"
    if words.startswith(("agrees", "innocent")) or words.endswith(" judged"):
        return "passed"
    return "failed" if words.startswith("shows ") or " show " in words else "limited"


def _finding_2(finding: JSON) -> JSON:
    checks = finding.get("cross_check", {})
    return finding | {"cross_check": [_cross_check_2(name, checks[name]) for name in checks]}


def _cross_check_2(runtime: str, answer: str) -> JSON:
    words, _, remark = answer.partition(", but ")
    outcome = {"no fault": "no-fault", "runs it": "runs"}.get(words, "fault")
    symptom = None
    if words.startswith("cannot run"):
        outcome = "not-judged"
    elif outcome == "fault":
        symptom = words
    same = None if outcome in ("runs", "not-judged") else not remark
    detail = words if outcome == "not-judged" else ""
    about = {"runtime": runtime, "outcome": outcome, "symptom": symptom}
    return about | {"same_original": same, "detail": detail}


def _bundle_2(data: JSON) -> JSON:
    finding = _finding_2(data["finding"])
    words = {"normalized_message": data.pop("gist", "")}
    return data | words | {"schema": "optvet.finding/2", "finding": finding}


def _bundle_3(data: JSON) -> JSON:
    """``optvet.finding/2``: the names of changed metadata were one text."""
    if data["finding"]["symptom"] == Symptom.METADATA_CHANGE:
        names = list(filter(None, data.pop("normalized_message", "").split("; ")))
        data["finding"] = data["finding"] | {"changed": names}
    return data | {"schema": "optvet.finding/3"}


def _replay_2(data: JSON) -> JSON:
    return data | {"schema": "optvet.replay/2", "was": _finding_2(data["was"])}


_UPGRADES: Mapping[str, Callable[[JSON], JSON]] = {
    "optvet.vet/1": _vet_2,
    "optvet.vet/2": _vet_3,
    "optvet.finding/1": _bundle_2,
    "optvet.finding/2": _bundle_3,
    "optvet.replay/1": _replay_2,
}
