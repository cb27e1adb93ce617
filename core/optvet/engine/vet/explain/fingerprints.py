"""Fingerprints: a digest by which two findings are the same one, without reducing them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import onnx

from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.building import BuildSpec, read_model
from optvet.engine.work.trials.from_file import graph_of
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph.identity import structure_of
from optvet.spec.records import Finding


def fingerprint(optimizer: str, finding: Finding, structure: Sequence[str]) -> str:
    """16 hexadecimal digits, equal for one optimizer, culprit, symptom and structure.

    Of requirements, the same one: several may be broken in one place. Of metadata, what changed in
    place of the structure: any node will do to show it. Of outputs, whether their form is wrong
    (shape, type) or their values: one rewrite of one structure can do either, for two reasons.
    """
    if finding.symptom.info.identity == "metadata":
        structure = ["; ".join(finding.changed)]
    by_requirement = finding.symptom.info.severity == "requirement"
    required = [finding.requirement] if by_requirement else []
    formed = ["form"] if finding.wrong_form else []
    place = [*required, *formed, *structure]
    about = [optimizer, list(finding.culprit), str(finding.symptom), place]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def fingerprint_in_place(runner: TrialRunner, finding: Finding) -> str:
    """The fingerprint of a finding that is not reduced: of the place that was rewritten wrongly.

    Where there is no such place, other facts count: which metadata changed, or the words of a
    failure without names and numbers. Else it is the structure of the whole model.
    """
    return fingerprint(runner.case.optimizer.name, finding, _structure(runner, finding))


def _structure(runner: TrialRunner, finding: Finding) -> list[str]:
    identity = finding.symptom.info.identity
    if finding.divergence is not None and finding.divergence.form:
        return [finding.divergence.form]
    if identity in ("culprit", "metadata"):
        return []
    failed = finding.stage != "compare" and finding.message
    if identity == "words" or failed:
        return [normalized_message(finding.message)]
    return runner.sandbox.call(_structure_of, runner.build_spec(None), role="judging").value or []


def _structure_of(build_spec: BuildSpec) -> list[str]:
    """Called in a worker."""
    enter("load")
    if build_spec.scratch is not None:
        return structure_of(graph_of(build_spec.blob))
    return structure_of(onnx.load_from_string(read_model(build_spec.blob, build_spec.digest)))
