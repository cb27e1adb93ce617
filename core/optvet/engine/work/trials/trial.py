"""One trial: build → check → load → run, inside workers.

The functions here run in workers. ``building`` makes the artifact, ``inference`` loads and runs it.
An exception in a stage becomes the report's ``failure``; the death of the worker becomes a failure
in the parent process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx.shape_inference
from onnx import GraphProto
from pydantic import BaseModel

from optvet.engine.contract import comparator_returns
from optvet.engine.work.cache import cache_key
from optvet.engine.work.sandbox import enter, poison_memory
from optvet.engine.work.sandbox.messages import NAME_CHARS, cut, text_of
from optvet.engine.work.trials.artifact_graph import OnnxGraph, graph_of
from optvet.engine.work.trials.building import BuildSpec, build, digest_of_build, speaks_dialect
from optvet.engine.work.trials.checking import check
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig, infer, load
from optvet.engine.work.trials.raised_errors import failure_of, normalized_message, quote_names
from optvet.graph import structure
from optvet.graph.digest import UNKNOWN, Contents, contents_of
from optvet.graph.interface import Alignment, align
from optvet.graph.walk import all_names, local_names
from optvet.spec.errors import ContractError
from optvet.spec.protocols import Decodes, Feeds
from optvet.spec.runtime_protocols import Runtime, Session
from optvet.spec.types import (
    MODEL_PARTS,
    Artifact,
    Failure,
    InterfaceChange,
    Model,
    ModelPart,
    Sample,
)


@dataclass(frozen=True)
class TrialReport:
    """The result of one trial.

    ``digest`` identifies the bytes of the artifact, ``contents`` what programs read of it.
    ``outputs`` has one entry per sample that ran; ``failure`` is the first failure, and
    ``failed_sample`` the sample during which it happened. ``known``: the trial stopped early,
    because the caller knows the results of this artifact, or of an equal one. ``follows``: it
    stopped after the first sample, because all outputs are those of another one; see ``TrialSpec``.
    ``strict`` is what strict shape inference alone says of an artifact that the runtime loads.
    """

    digest: str = ""
    contents: Contents = UNKNOWN
    facts: structure.Facts | None = None
    failure: Failure | None = None
    failed_sample: str | None = None
    outputs: Mapping[str, Outputs] = field(default_factory=dict)
    changing_passes: tuple[str, ...] | None = None
    known: bool = False
    follows: bool = False
    interface_problem: str = ""
    strict: Failure | None = None


@dataclass(frozen=True)
class TrialSpec:
    """What a trial has to do: how far to go, on which samples, under which checks.

    ``known`` are digests of artifacts whose results are known, and of what the runtime reads of
    them, ``reads``: the trial stops when it builds an equal one. ``first_outputs`` has digests of
    their outputs on the first sample, by what is read of them ``when_run``: the trial stops if its
    own are the same. ``full_check``: check with strict shape inference, which the original must
    pass too; ``plain_check``: ask the checker at all. An error of the checker whose normalized
    message is ``ignored_complaint`` is ignored, since import and export alone cause it.
    """

    build_spec: BuildSpec
    config: RuntimeConfig | None
    samples: tuple[Sample, ...]
    reference: Model | None = None
    interface: frozenset[InterfaceChange] = frozenset()
    known: frozenset[str] = frozenset()
    reads: frozenset[ModelPart] = MODEL_PARTS
    first_outputs: Mapping[str, str] = field(default_factory=dict)
    full_check: bool = True
    plain_check: bool = True
    ignored_complaint: str = ""


def run_trial(artifact: Artifact, order: TrialSpec) -> TrialReport:
    """Check, load and run ``artifact``, the result of building ``order.build_spec``."""
    digest, graph = digest_of_build(order.build_spec, artifact)
    if digest in order.known:
        return TrialReport(digest, changing_passes=artifact.changing_passes, known=True)
    if artifact.format != "onnx":
        contents = Contents(digest)
        report = TrialReport(digest, contents, changing_passes=artifact.changing_passes)
        return _run(order, artifact, report, None)
    return _examine(order, artifact, digest, graph)


def run_poisoned_trial(artifact: Artifact, order: TrialSpec) -> TrialReport:
    """Like ``run_trial``, with new memory filled by a pattern, to reveal uninitialized reads."""
    poison_memory()
    return run_trial(artifact, order)


def _examine(
    order: TrialSpec, artifact: Artifact, digest: str, graph: OnnxGraph | None
) -> TrialReport:
    enter("check")
    report = TrialReport(digest, changing_passes=artifact.changing_passes)
    try:
        graph = graph or graph_of(artifact)
        facts = structure.facts(graph.proto, graph.size_bytes)
        strict = _check(order, artifact, graph.proto.graph)
        contents = contents_of(graph.proto, graph.source, graph.layout)
    except Exception as error:
        return _with(report, failure=failure_of(error))
    report = _with(report, facts=facts, contents=contents, strict=strict)
    alignment = None
    if order.reference is not None:
        alignment = align(order.reference, facts, order.interface)
    if contents.read_by(order.reads) in order.known and not (alignment and alignment.problem):
        return _with(report, known=True)
    return _run(order, artifact, report, alignment)


def _check(order: TrialSpec, artifact: Artifact, graph: GraphProto) -> Failure | None:
    """Return an error of strict shape inference on an optimized model; raise all others.

    Declared shapes that contradict what is computed are harmless to a runtime that does not mind.
    """
    if not order.plain_check:
        return None
    try:
        check(
            artifact.path or artifact.data,
            full=order.full_check,
            dialect=speaks_dialect(order.build_spec),
        )
    except Exception as error:
        # Two complaints that differ in a name alone are one.
        error.args = (quote_names(str(error), all_names(graph.node) | local_names(graph)),)
        if order.ignored_complaint and normalized_message(str(error)) == order.ignored_complaint:
            return None
        alone = isinstance(error, onnx.shape_inference.InferenceError)
        if not alone or order.build_spec.optimizer is None:
            raise
        return failure_of(error)
    return None


def _run(
    order: TrialSpec, artifact: Artifact, report: TrialReport, alignment: Alignment | None
) -> TrialReport:
    if order.config is None:
        return report
    enter("load")
    outputs: dict[str, Outputs] = {}
    sample_id: str | None = None
    try:
        session = load(order.config, artifact)
        # A random operator with a seed continues its sequence from run to run of a session.
        fresh = report.facts is not None and report.facts.random
        if alignment is not None and alignment.problem:
            return _with(report, interface_problem=alignment.problem)
        expected = order.first_outputs.get(when_run(report.contents, order.reads))
        for i, sample in enumerate(order.samples):
            if fresh and i:
                session = load(order.config, artifact)
            enter("run")
            sample_id = sample.id
            outputs[sample.id] = infer(order.config.runtime, session, sample.feeds, alignment)
            if i == 0 and expected and digest_of_outputs(outputs[sample.id]) == expected:
                return _with(report, outputs=outputs, follows=True)
    except Exception as error:
        failure = failure_of(error)
        if report.strict is not None and failure.stage == "load":
            # What the checker says of it comes first, as where it refuses the model by itself.
            return _with(report, failure=report.strict, strict=None)
        return _with(report, failure=failure, failed_sample=sample_id, outputs=outputs)
    return _with(report, outputs=outputs)


def when_run(contents: Contents, reads: frozenset[ModelPart]) -> str:
    """What a runtime needs of a model once it is loaded.

    Names, and weights that nobody reads, are resolved when it is loaded: if that goes wrong, it
    does for every sample.
    """
    return contents.read_by(reads - {"names", "unused"})


def digest_of_outputs(outputs: Outputs) -> str:
    """Equal for outputs of the same names and bits."""
    return cache_key.key("outputs", outputs)


def alignment_of(order: TrialSpec, artifact: Artifact) -> Alignment | None:
    """How an artifact's interface maps to the original's; None if its format hides it."""
    if order.reference is None or artifact.format != "onnx":
        return None
    graph = graph_of(artifact)
    facts = structure.facts(graph.proto, graph.size_bytes)
    return align(order.reference, facts, order.interface)


def decode(
    artifact: Artifact, order: TrialSpec, model: Model, comparator: Decodes, options: BaseModel
) -> tuple[dict[str, Outputs | Failure], int]:
    """The comparator's answer or a failure, per sample; and the number of inferences."""
    assert order.config is not None
    runtime = order.config.runtime
    alignment = alignment_of(order, artifact)
    enter("load")
    session = load(order.config, artifact)
    enter("run")
    count = 0

    def run(feeds: Feeds) -> Outputs:
        nonlocal count
        count += 1
        return infer(runtime, session, feeds, alignment)

    answers: dict[str, Outputs | Failure] = {}
    for sample in order.samples:
        try:
            decoded = comparator.decode(model, sample, run, options)
            comparator_returns.check_decoded(comparator, decoded)
            answers[sample.id] = {name: np.asarray(value) for name, value in decoded.items()}
        except Exception as error:
            answers[sample.id] = failure_of(error)
    return answers, count


def probe(order: TrialSpec) -> list[str | None]:
    """For each sample None if the model runs on it, else the runtime's error message."""
    assert order.config is not None
    artifact = build(order.build_spec)
    enter("load")
    session = load(order.config, artifact)
    enter("run")
    return [_try(order.config.runtime, session, sample) for sample in order.samples]


def _try(runtime: Runtime, session: Session, sample: Sample) -> str | None:
    try:
        infer(runtime, session, sample.feeds)
    except ContractError:
        raise
    except Exception as error:  # any error means that the model does not run on the sample
        return f"{cut(type(error).__name__, NAME_CHARS)}: {text_of(error)}"
    return None


def _with(report: TrialReport, **changes: Any) -> TrialReport:
    return replace(report, **changes)
