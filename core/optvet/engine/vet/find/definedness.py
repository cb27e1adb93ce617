"""Whether a wrong value arises where the ONNX standard does not define the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.models.opening import open_model
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import finite
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.undefined_values import undefined_between, with_answers
from optvet.spec.records import Finding
from optvet.spec.scratch import temporary_folder
from optvet.spec.types import Sample


def mark_undefined_faults(
    session: VetSession, examiner: Examiner, samples: Sequence[Sample]
) -> None:
    """Make faults undecided that arise at an operation which the standard does not define.

    Kernels may compute anything there, so an optimizer may move or fold the operation. It excuses
    no fault elsewhere in the graph: if the first differing value is known, only operations between
    it and the last values that agree count. It excuses no fault on other samples either: a fault
    that shows on a sample with a defined result stays a fault.
    """
    by_id = {sample.id: sample for sample in samples}
    ledger = session.ledger
    for i, finding in enumerate(ledger.findings):
        if finding.severity != "fault" or not finding.symptom.info.of_values:
            continue
        sample = by_id.get(finding.witness.sample) if finding.witness else None
        words = _open_on(session, finding, sample) if sample is not None else ""
        if not words:
            continue
        shown = _show_elsewhere(session, examiner, finding, samples)
        if shown:
            ledger.amend(i, shown)
            continue
        why = f"undefined by the ONNX standard: {words}"
        ledger.amend(i, {"severity": "note", "known_limit": why})
        ledger.control("definedness", "limited", why)
        ledger.add_undecided_reason(f"an output differs, and the original is {why}")


def _open_on(session: VetSession, finding: Finding, sample: Sample) -> str:
    """The undefined operation on a sample at which the finding arises; empty if none."""
    found, runner = finding.divergence, session.runner
    begins, ends = [], list(finding.outputs)
    if found is not None and found.value is not None:
        begins, ends = list(found.agreeing), [found.value]
    about = (runner.build_spec(None), dict(sample.feeds), session.case.reference)
    words = runner.sandbox.call(undefined_between, *about, begins, ends, role="judging").value or ""
    return "" if words and _shows_with_answers(session, finding, sample) else words


def _shows_with_answers(session: VetSession, finding: Finding, sample: Sample) -> bool:
    """Whether the fault also shows if undefined values are fed to the model as inputs.

    Then it does not arise from them: the passes break a fully defined model too.
    """
    runner, case = session.runner, session.case
    about = (runner.build_spec(None), dict(sample.feeds), case.reference)
    answered = runner.sandbox.call(with_answers, *about, role="judging").value
    if answered is None:
        return False
    data, feeds = answered
    with temporary_folder("optvet-answered-") as folder:
        path = Path(folder) / "answered.onnx"
        path.write_bytes(data)
        other = runner.on(case.on(open_model(path, case.model.source, Path(folder))))
        samples, table = [replace(sample, feeds=feeds)], case.passes
        lowered = case.lowers and not finding.culprit
        if lowered:
            examiner = Examiner(other, samples, thresholds=OTHER_KERNELS)
        else:
            examiner = Examiner(other, samples, tolerance=table.tolerance)
        examiner.learn_reference(other.reference(samples))
        if case.lowers and not lowered:
            examiner.learn_reference(other.trial(table.base, samples, "control"))
        passes = table.complete(finding.culprit) if finding.culprit else table.base
        seen = examiner.examine(other.trial(passes, samples, "confirm"), samples).observation
    if seen is None or seen.symptom != finding.symptom:
        return False
    return bool({*seen.outputs} & {*finding.outputs})


def _show_elsewhere(
    session: VetSession, examiner: Examiner, finding: Finding, samples: Sequence[Sample]
) -> dict[str, Any]:
    """Changes to a finding that a fully defined sample shows too; empty if none does."""
    table, runner = session.case.passes, session.runner
    passes = table.complete(finding.culprit) if finding.culprit else table.base
    trial = runner.trial(passes, samples, "confirm")
    for sample in samples:
        seen = examiner.examine(trial, [sample]).observation
        if seen is None or seen.symptom != finding.symptom:
            continue
        if set(seen.outputs) & {*finding.outputs} and not _open_on(session, finding, sample):
            return {
                "witness": session.witness(sample),
                "message": seen.message,
                "outputs": list(seen.outputs),
                "error": finite(seen.error),
                "noise_floor": finite(seen.noise),
            }
    return {}
