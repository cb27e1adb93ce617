"""Whether a wrong value arises where the ONNX standard has no answer for the original."""

from __future__ import annotations

from collections.abc import Sequence

from optvet.engine.vet.session import Session
from optvet.engine.work.undefined import undefined_between
from optvet.spec.records import Finding
from optvet.spec.types import Sample


def leave_open_what_is_undefined(session: Session, samples: Sequence[Sample]) -> None:
    """Make faults undecided that arise at an operation which the standard leaves open.

    Kernels may answer it as they like, so that an optimizer which moves or folds it does nothing
    wrong. Elsewhere in the graph such an operation excuses nothing: where the first value that
    differs is known, only what lies between it and the last ones that agree counts.
    """
    by_id = {sample.id: sample for sample in samples}
    ledger, lab = session.ledger, session.lab
    for i, finding in enumerate(ledger.findings):
        if finding.severity != "fault" or not finding.symptom.info.of_values:
            continue
        sample = by_id.get(finding.witness.sample) if finding.witness else None
        if sample is None:
            continue
        begins, ends = _region(finding)
        about = (lab.subject(None), dict(sample.feeds), session.case.reference, begins, ends)
        words = lab.sandbox.call(undefined_between, *about, role="referee").value
        if words:
            why = f"undefined by the ONNX standard: {words}"
            ledger.amend(i, {"severity": "note", "known_limit": why})
            ledger.control("definedness", "limited", why)
            ledger.undecided(f"an output differs, and the original is {why}")


def _region(finding: Finding) -> tuple[list[str], list[str]]:
    found = finding.divergence
    if found is None or found.value is None:
        return [], list(finding.outputs)
    return list(found.agreeing), [found.value]
