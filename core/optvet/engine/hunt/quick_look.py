"""A quick look at an optimized model: the one judge, under a setting that measures no noise.

Called in workers. What it finds is a suspicion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx
from onnx import ModelProto

from optvet.engine.hunt.expected import ExpectedOutput, Values, chance_of, outputs_of
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.sample import (
    InterfaceProblem,
    SampleVerdict,
    Setting,
    judge_failure,
    judge_sample,
)
from optvet.graph import structure
from optvet.graph.interface import Alignment, align, interface_of, misdeclared, weakened
from optvet.spec.errors import REFUSALS
from optvet.spec.symptoms import Stage, Symptom
from optvet.spec.types import Artifact, Failure

QUICK = Setting(quick=1.0)
"""A plain tolerance in place of measured noise."""
QUICK_ELSEWHERE = Setting(quick=1024.0)
"""The same for kernels of another runtime, which may differ by more."""


@dataclass(frozen=True)
class Look:
    """What is wrong with an optimized model at first sight, and the metadata that it has lost."""

    verdict: SampleVerdict
    lost: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    alignment: Alignment | None = None


def look(
    subject: TestedOptimizer, made: Artifact, truth: ExpectedOutput, setting: Setting = QUICK
) -> Look:
    """Look at a model that an optimizer made.

    Raises:
        Exception: Of ``REFUSALS``: it cannot be judged here.
    """
    graph = Look(SampleVerdict("same"))
    if made.format == "onnx":
        graph = _look_at_graph(subject, made.data, truth)
    if not graph.verdict.right:
        return graph
    verdict = _look_at_outputs(subject, made, truth, setting, graph.alignment)
    return replace(graph, verdict=verdict)


def verdict_on_error(stage: Stage, error: Exception) -> SampleVerdict:
    """The verdict on a step that raised an error."""
    return judge_failure(Failure("error", stage, str(error)))


def _look_at_outputs(
    subject: TestedOptimizer,
    made: Artifact,
    truth: ExpectedOutput,
    setting: Setting,
    alignment: Alignment | None,
) -> SampleVerdict:
    try:
        session = subject.candidate.runtime.load(made, subject.candidate.options)
    except REFUSALS:
        raise
    except Exception as error:
        return verdict_on_error("load", error)
    chance, verdict = truth.chance, SampleVerdict("same")
    for feeds, expected in zip(truth.feeds, truth.outputs, strict=True):
        try:
            outputs = outputs_of(session, feeds)
            again = outputs_of(session, feeds) if chance.drawn and feeds is truth.feeds[0] else None
        except Exception as error:
            return verdict_on_error("run", error)
        fixed = chance.drop_random_outputs(expected)
        verdict = judge_sample(fixed, outputs, setting=setting)
        if not verdict.right:
            # Suspicions are told apart by their words, which must not be about this model.
            return replace(verdict, message=_kind(verdict.faults[0], fixed))
        if again is not None and chance_of(outputs, again) != chance:
            return SampleVerdict("fault", Symptom.WRONG_OUTPUT, message="draws")
        if alignment is not None and (words := misdeclared(alignment, outputs)):
            return judge_sample({}, InterfaceProblem(words))
    return verdict


def _kind(fault: Judgement, expected: Values) -> str:
    """The kind of a difference: in dtype and shape, in where numbers are, or in values."""
    kind = "structure" if fault.structural else "places" if fault.detail else "values"
    return f"{kind} {expected[fault.output].dtype}"


def _look_at_graph(subject: TestedOptimizer, data: bytes, truth: ExpectedOutput) -> Look:
    try:
        proto = ModelProto.FromString(data)
        if not subject.optimizer.traits.dialect:
            onnx.checker.check_model(data, full_check=True)
    except Exception as error:
        return Look(verdict_on_error("check", error))
    interface = interface_of(proto)
    alignment = align(truth.interface, interface, frozenset())
    if alignment.changed:
        return Look(judge_sample({}, InterfaceProblem(alignment.changed)))
    facts = structure.brief_facts(proto, len(data))
    if structure.is_bloated(truth.facts, facts):
        words = structure.growth(truth.facts, facts)
        return Look(SampleVerdict("fault", Symptom.BLOAT, "build", words))
    lost = structure.lost_metadata(truth.facts, facts)
    return Look(SampleVerdict("same"), {**lost, **weakened(truth.interface, interface)}, alignment)
