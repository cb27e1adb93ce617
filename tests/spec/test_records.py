"""Documents: strict, versioned, and read in their earlier versions too."""

from typing import Any

import pytest
from pydantic import ValidationError

from optvet import VetResult
from optvet.spec.records import DOCUMENTS, Replayed, Reproduction
from optvet.spec.records.reading import read_document

FINDING = {
    "symptom": "wrong-output",
    "severity": "fault",
    "stage": "compare",
    "culprit": ["a"],
    "confirmed": True,
    "cross_check": {
        "one": "no fault",
        "two": "wrong-output, but it computes the original differently",
        "three": "cannot run the original: no kernel",
        "four": "runs it",
    },
}
VET = {
    "schema": "optvet.vet/1",
    "model": {
        "source": "m.onnx",
        "digest": "00",
        "ir_version": 8,
        "opsets": {"ai.onnx": 17},
        "nodes": 1,
        "size_bytes": 9,
    },
    "optimizer": {"name": "o", "version": "1", "pipeline": ["a"]},
    "runtime": {"name": "r", "version": "1", "options": {}},
    "verdict": "faulty",
    "findings": [FINDING],
    "safe_pipeline": [],
    "controls": {
        "empty pipeline": "innocent",
        "reference against itself": "not needed",
        "checker": "the original passes onnx.checker but not strict shape inference",
        "samples": "3 judged; it fails on these, so it was not tried on the others",
    },
    "cost": {},
}


def test_a_result_of_the_first_version_is_read() -> None:
    result = read_document(VetResult, VET)
    assert [(c.name, c.state) for c in result.controls] == [
        ("empty pipeline", "passed"),
        ("reference against itself", "not-needed"),
        ("checker", "limited"),
        ("samples", "limited"),
    ]
    assert not result.complete
    told = {
        c.runtime: (c.outcome, c.symptom, c.same_original) for c in result.findings[0].cross_check
    }
    assert told == {
        "one": ("no-fault", None, True),
        "two": ("fault", "wrong-output", False),
        "three": ("not-judged", None, None),
        "four": ("runs", None, None),
    }
    assert read_document(VetResult, result.model_dump(by_alias=True)) == result


def test_a_result_of_the_second_version_is_read() -> None:
    now = read_document(VetResult, VET).model_dump(by_alias=True)
    del now["changing_passes"]
    old = now | {"schema": "optvet.vet/2", "touched": ["a"]}
    assert read_document(VetResult, old).changing_passes == ["a"]


BUNDLE: dict[str, Any] = {
    "fingerprint": "00",
    "model": "m",
    "nodes": [3, 1],
    "optimizer": "o",
    "optimizer_options": {},
    "passes": ["a"],
    "runtime": "r",
    "runtime_options": {},
    "inputs": [],
    "outputs": [],
    "versions": {},
    "timeout_s": 1.0,
}


def test_a_bundle_of_the_first_version_is_read() -> None:
    record = read_document(
        Reproduction,
        BUNDLE | {"schema_": "optvet.finding/1", "finding": FINDING},
    )
    assert record.finding.cross_check[0].outcome == "no-fault"
    assert '"schema": "optvet.finding/3"' in record.to_json()


def test_names_of_metadata_in_a_bundle_of_the_second_version_are_read() -> None:
    note = {"symptom": "metadata-change", "severity": "note", "stage": "build"}
    finding = note | {"culprit": [], "confirmed": True}
    record = read_document(
        Reproduction,
        BUNDLE
        | {
            "schema": "optvet.finding/2",
            "finding": finding,
            "normalized_message": "ir_version; opset_import",
        },
    )
    assert record.finding.changed == ["ir_version", "opset_import"]
    assert record.normalized_message == ""


def test_a_replay_of_the_first_version_is_read() -> None:
    old = {
        "schema_": "optvet.replay/1",
        "bundle": "b",
        "outcome": "fixed",
        "was": FINDING,
        "now": None,
        "versions_then": {},
        "versions_now": {},
    }
    assert read_document(Replayed, old).was.cross_check[3].outcome == "runs"


def test_an_unknown_key_or_version_is_refused() -> None:
    with pytest.raises(ValidationError, match="schema"):
        read_document(VetResult, VET | {"schema": "optvet.vet/99"})
    with pytest.raises(ValidationError, match="extra"):
        read_document(VetResult, VET | {"extra": 1})


def test_every_document_is_written_with_the_key_schema() -> None:
    for name, kind in DOCUMENTS.items():
        field = kind.model_fields["schema_"]
        assert field.alias == "schema"
        assert str(field.default).startswith(f"optvet.{name}/")
