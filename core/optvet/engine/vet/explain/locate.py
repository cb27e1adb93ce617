"""Locating a finding in the graph: the first wrong value, the rewrite, and the wrong sites.

::

    original, optimized → values of both on the witness → the earliest beyond its noise
                        → sites that were rewritten → each alone in the original → the wrong ones

Everything happens in one task of a worker, so that the values never leave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import ModelProto
from pydantic import BaseModel, TypeAdapter

from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.vet.explain.site_search import (
    _LINES,
    MAX_SITES,
    ExplainTask,
    shorten,
    tried_sites,
)
from optvet.engine.vet.observe.divergence import INNER_JITTERS, compare_values
from optvet.engine.vet.observe.recorded_values import record_with_jitter, told_values
from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.environment_fingerprint import fingerprint_environment
from optvet.engine.work.sandbox import enter
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.building import build, visible
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph import structure
from optvet.graph.interface import align
from optvet.spec.extras import given
from optvet.spec.memory import in_units
from optvet.spec.optimizer_protocols import OptimizerExtras
from optvet.spec.records import Divergence, ModelComparison
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact, Sample

VERSION = 8
"""Increased when the meaning of a cached divergence changes."""
_DIVERGENCE: TypeAdapter[Divergence] = TypeAdapter(Divergence)

AT_LEAST = 5
"""Inferences that finding one wrong value took before: both models, the original once more in
another process, and the confirmation of both. So many may be spent on explaining it."""


def explain(
    runner: TrialRunner,
    symptom: Symptom,
    outputs: Sequence[str],
    passes: Sequence[str],
    sample: Sample,
    inferences: int | None = None,
) -> Divergence | None:
    """Where in the graph a fault is; None if there is no optimized graph to look at.

    Args:
        runner: The trial runner that found the fault.
        symptom: Its symptom.
        outputs: The wrong outputs, if outputs are compared.
        passes: The culprit and the required passes.
        sample: The witness.
        inferences: How many it may take, ``AT_LEAST`` or more; None for as many as sites need.
    """
    if not symptom.info.located:
        return None
    produced = runner.case.optimizer.traits.produces
    tells_inside = given(runner.case.candidate.runtime, RuntimeExtras.artifact_values)
    saves = given(runner.case.optimizer, OptimizerExtras.saved)
    if produced != "onnx" and not tells_inside and not saves:
        return Divergence(
            differs=_outer_values(runner, symptom, outputs, passes, sample),
            note=f"{runner.case.optimizer.name} makes {produced}, whose inner values are hidden",
        )
    if runner.build_spec(None).scratch is not None:
        size = in_units(runner.model.size_bytes)
        return Divergence(note=f"inner values of a model of {size} are not compared")
    compares = not symptom.info.failed
    jitters = INNER_JITTERS if inferences is None else min(INNER_JITTERS, inferences - 2)
    fixed = 2 + jitters if compares else 1
    task = ExplainTask(
        runner.build_spec(None),
        runner.build_spec(passes),
        runner.case.candidate,
        runner.case.reference,
        runner.model,
        runner.order(runner.build_spec(passes), [sample]).interface,
        sample.feeds,
        symptom,
        tuple(outputs),
        runner.case.checks.full,
        runner.case.checks.plain,
        jitters if compares else 0,
        2 * MAX_SITES if inferences is None else inferences - fixed,
    )
    about = (list(passes), symptom, list(outputs), task.full_check, task.plain_check)
    question = (runner.identity, about, runner.sample_digest(sample))
    key = cache_key.key("divergence", VERSION, fingerprint_environment(), *question)
    kept = runner.cache.read(key, _DIVERGENCE.validate_json, _DIVERGENCE.dump_json)
    if kept is not None:
        return kept
    outcome = runner.submit(task.optimized, locate, task, fresh=True).result()
    runner.ledger.add("explain", applications=1, inferences=fixed)
    if outcome.value is None:
        if outcome.failure is not None and outcome.failure.stage == "build":
            return None
        words = describe(outcome.failure) if outcome.failure else "no answer"
        return Divergence(note=f"could not be looked at: {' '.join(words.split())[:300]}")
    found, tried = outcome.value
    runner.ledger.add("explain", inferences=tried)
    runner.cache.put(key, "divergence", _DIVERGENCE.dump_json(found))
    return found


def _outer_values(
    runner: TrialRunner,
    symptom: Symptom,
    outputs: Sequence[str],
    passes: Sequence[str],
    sample: Sample,
) -> list[str]:
    """The outputs where they differ most, on both sides: all that is known of a hidden graph."""
    if symptom.info.failed:
        return []
    original = runner.reference([sample]).runs.get(sample.id)
    optimized = runner.trial(passes, [sample], "confirm").runs.get(sample.id)
    lines = []
    for name in outputs[:_LINES]:
        if not isinstance(original, dict) or not isinstance(optimized, dict):
            continue
        x, y = original.get(name), optimized.get(name)
        if x is None or y is None or x.shape != y.shape or x.dtype.kind not in "fiub":
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.abs(x.astype(np.float64) - y.astype(np.float64))
        at = np.unravel_index(int(np.argmax(np.nan_to_num(difference, nan=np.inf))), x.shape)
        place = [int(i) for i in at]
        lines.append(f"output {name} at {place}: {x[at]} in the original, {y[at]} in the optimized")
    return lines


def divergence_text(found: Divergence) -> str:
    """A divergence as text."""
    lines = []
    if found.value is not None:
        size = f" (error {found.error:.2g})" if found.error is not None else ""
        lines.append(f"First value that differs by more than its noise: {found.value}{size}")
    if found.agreeing:
        lines.append(f"Made from: {', '.join(found.agreeing)}")
    if found.before or found.after:
        lines += ["Before:", *(f"    {n}" for n in found.before or ["no node"])]
        lines += ["After:", *(f"    {n}" for n in found.after or ["no node"])]
    lines += found.differs
    for site in found.wrong if found.tried > 1 else []:
        lines.append(f"Wrong by itself: {site.kind} {site.number} of {site.of}, {site.node}")
    lines += [f"    {words}" for words in found.distinction]
    return "\n".join([*lines, *([found.note] if found.note else [])])


# --- in the worker --------------------------------------------------------------------------------


def locate(artifact: Artifact, task: ExplainTask) -> tuple[Divergence, int]:
    """Where the optimized model diverges, and how many models were run to try rewrite sites.

    Called in a worker.
    """
    tried: Counter[str] = Counter()
    return _find_divergence(artifact, task, tried), tried.total()


def _find_divergence(artifact: Artifact, task: ExplainTask, tried: Counter[str]) -> Divergence:
    enter("build")
    before = onnx.load_from_string(build(task.original).data)
    onnx_bytes = artifact.data if artifact.format == "onnx" else None
    # An artifact of another format stays in the optimizer's process, so it is made again here,
    # in a process that serves nothing else.
    after = onnx.load_from_string(onnx_bytes) if onnx_bytes is not None else visible(task.optimized)
    if after is None:
        return _locate_inside(artifact, task, before)
    data = after.SerializeToString()
    facts = structure.facts(after, len(data))
    alignment = align(task.model, facts, task.interface)
    if alignment.problem:
        return Divergence(note=f"inputs or outputs differ: {alignment.problem}")
    feeds = {
        alignment.inputs.get(name, name): value.astype(alignment.casts[name])
        if name in alignment.casts
        else value
        for name, value in task.feeds.items()
    }
    try:
        first = record_with_jitter(
            before.SerializeToString(), task.feeds, task.reference, task.jitters
        )
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        note = f"the original does not run with all values as outputs: {_line(error)}"
        return _with_note(tried_sites(task, before, after, None, tried), note)
    if task.symptom.info.failed:
        return tried_sites(task, before, after, first, tried)
    try:
        second = record_with_jitter(data, feeds, task.config, 0)
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        note = f"the optimized model does not run with all values as outputs: {_line(error)}"
        return _with_note(tried_sites(task, before, after, first, tried), note)
    enter("compare")
    if _kernels(task.reference) != _kernels(task.config):
        first = replace(first, thresholds=OTHER_KERNELS)
    found = compare_values(before, after, first, second, outputs=task.outputs)
    sites = tried_sites(task, before, after, first, tried, found.diverges_at)
    return _first_difference(before, after, found, sites)


def _locate_inside(artifact: Artifact, task: ExplainTask, before: ModelProto) -> Divergence:
    """The same for an artifact of another format, whose runtime may tell its values.

    The original is run by the runtime of ONNX models, so other kernels' rounding is allowed for.
    """
    if task.symptom.info.failed:
        return Divergence(note="what cannot be run has no values")
    try:
        first = record_with_jitter(
            before.SerializeToString(), task.feeds, task.reference, task.jitters
        )
        inner_values = told_values(artifact, task.config, task.feeds, first.values.keys())
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        return Divergence(note=f"values inside are not known: {_line(error)}")
    if inner_values is None:
        return Divergence(note="the optimizer makes a format whose inner values are hidden")
    enter("compare")
    first = replace(first, thresholds=OTHER_KERNELS)
    found = compare_values(before, inner_values[0], first, inner_values[1], outputs=task.outputs)
    return _first_difference(before, inner_values[0], found, Divergence())


def _kernels(config: RuntimeConfig) -> tuple[str, BaseModel]:
    return config.runtime.name, config.options


def _with_note(divergence: Divergence, note: str) -> Divergence:
    """The same with the reason why it is incomplete."""
    return divergence.model_copy(update={"note": note})


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _first_difference(
    before: ModelProto, after: ModelProto, found: ModelComparison, sites: Divergence
) -> Divergence:
    if found.diverges_at is None:
        note = "no value differs by more than its noise once all values are outputs"
        return _with_note(sites, note)
    layer = found.layers[-1]
    differences = [f"attribute {k}: {v}" for k, v in layer.attributes.items()]
    differences += [
        f"weight {p.name}: "
        + ("another shape" if p.max_difference is None else f"differs by {p.max_difference:.2g}")
        for p in layer.parameters
        if p.differs
    ]
    return sites.model_copy(
        update={
            "value": found.diverges_at,
            "error": layer.error,
            "noise": layer.noise,
            "agreeing": found.agreeing,
            "before": shorten(found.before),
            "after": shorten(found.after),
            "whole": len(found.before) == len(before.graph.node),
            "differs": [layer.detail, *differences] if layer.detail else differences,
        }
    )
