"""Gets the quantized tensors of an optimized model, and judges its layers by them.

If the optimized model is available as ONNX, its quantized tensors become outputs of a copy. If not,
the original gets its own quantized tensors as outputs, and the optimizer is run on that (a probe).
Both count only if all other outputs stay bit-identical, since a further output may prevent a
fusion.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto
from pydantic import TypeAdapter

from optvet.engine.contract import optimizer_returns, runtime_returns
from optvet.engine.judge import layer_checks, layer_judgement
from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.layer_judgement import LocalAnswer
from optvet.engine.numerics.forced import alike, plain
from optvet.engine.numerics.matching import InnerValues, Values, match
from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.environment_fingerprint import fingerprint_environment
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials import noise_floor as measuring
from optvet.engine.work.trials.building import BuildSpec, read_model, visible
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig, flatten, infer, load
from optvet.engine.work.trials.known_results import sample_digests
from optvet.engine.work.trials.trial_results import is_circumstantial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph import structure
from optvet.graph.interface import Alignment, align
from optvet.graph.quantized import Grid, integer_tensors
from optvet.graph.text import node_text
from optvet.graph.walk import between
from optvet.graph.weights import constants_of
from optvet.spec.types import Artifact, InterfaceChange, Model, Sample

VERSION = 7
"""Part of the cache key; to be raised when the meaning of a cached answer changes."""
FIRST_DRAWS, MORE_DRAWS = tuple(range(1, 7)), tuple(range(7, 15))
"""Seeds of the runs of the original with each value perturbed before it is quantized."""
_PROBES, _PROBE_S = 40, 40.0
"""Limits (runs, seconds of CPU time) of repeating a probe with fewer tensors if it changes outputs.

On the clock, a busy machine would see fewer layers, and judge otherwise.
"""

How = Literal["graph", "probe", "none"]


@dataclass(frozen=True)
class Place:
    """One layer in both graphs, as text: the values that it starts from, and its nodes."""

    begins: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The judged layers of one optimized model.

    Attributes:
        how: From its graph, from the original with further outputs, or not at all.
        samples: Ids of the samples, in the order of the indices in ``answer``.
        answer: All layers; None if no inner values are available.
        reason: Why there is no answer.
        places: The nodes of each wrong layer, if both graphs are available.
    """

    how: How
    samples: tuple[str, ...]
    answer: LocalAnswer | None = None
    reason: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)


_INSPECTION: TypeAdapter[Inspection] = TypeAdapter(Inspection)


@dataclass(frozen=True)
class _LayerTask:
    """What a worker needs to judge layers: the feeds and outputs of both models, the runtimes."""

    original: BuildSpec
    reference: RuntimeConfig
    candidate: RuntimeConfig
    model: Model
    interface: frozenset[InterfaceChange]
    feeds: tuple[Values, ...]
    outputs: tuple[Outputs, ...]
    longest_reduction: int


def inspect(
    runner: TrialRunner,
    passes: Sequence[str],
    samples: Sequence[Sample],
    runs: Mapping[str, Outputs],
) -> Inspection:
    """Judge the layers of the model after ``passes`` on ``samples``; cached.

    Args:
        runner: The trial runner that tried ``passes``.
        passes: The pass sequence.
        samples: The inputs.
        runs: Outputs of the optimized model, by sample id.
    """
    ids = tuple(s.id for s in samples)
    if runner.build_spec(None).scratch is not None:
        return Inspection("none", ids, reason="the model is too large to examine its layers")
    fed = [runner.sample_digest(s) for s in samples]
    got = sample_digests(Sample(i, runs[i]) for i in ids)
    key = cache_key.key(
        "layers", VERSION, fingerprint_environment(), runner.identity, list(passes), fed, got
    )
    kept = runner.cache.read(key, _INSPECTION.validate_json, _INSPECTION.dump_json)
    if kept is not None:
        return kept
    build_spec = runner.build_spec(passes)
    task = _LayerTask(
        runner.build_spec(None),
        runner.case.reference,
        runner.case.candidate,
        runner.model,
        runner.order(build_spec, samples).interface,
        tuple(s.feeds for s in samples),
        tuple(runs[i] for i in ids),
        measuring.analysis(runner).longest_reduction,
    )
    inspection, sure = _inspect(runner, build_spec, task, ids)
    if sure:
        runner.cache.put(key, "layers", _INSPECTION.dump_json(inspection))
    return inspection


def _inspect(
    runner: TrialRunner, build_spec: BuildSpec, task: _LayerTask, ids: tuple[str, ...]
) -> tuple[Inspection, bool]:
    """The answer, and whether it may be cached: another attempt would give the same."""
    reasons: list[str] = []
    shown = runner.submit(build_spec, _optimized_onnx, build_spec, fresh=True).result()
    runner.ledger.add("noise", applications=1)
    if shown.value is not None:
        outcome = runner.sandbox.call(_judge_by_graph, task, shown.value, role="judging")
        runner.ledger.add("noise", inferences=2 * len(ids))
        if isinstance(outcome.value, tuple):
            return Inspection("graph", ids, outcome.value[0], places=outcome.value[1]), True
        reasons.append(outcome.value or _words(outcome.failure))
    probed = runner.sandbox.call(_probe, build_spec, task, role="tested")
    runner.ledger.add("noise", applications=1, inferences=len(ids))
    if probed.value is not None and probed.value[0]:
        outcome = runner.sandbox.call(_judge_by_probe, task, *probed.value, role="judging")
        runner.ledger.add("noise", inferences=len(ids))
        if isinstance(outcome.value, tuple):
            return Inspection("probe", ids, outcome.value[0], places=outcome.value[1]), True
        reasons.append(outcome.value or _words(outcome.failure))
    elif probed.value is not None:
        reasons.append("its outputs change once inner values are outputs too")
    else:
        reasons.append(_words(probed.failure))
    sure = not any(is_circumstantial(o.failure) for o in (shown, probed))
    return Inspection("none", ids, reason=reasons[-1]), sure


def _words(failure: object) -> str:
    message = getattr(failure, "message", "") or "no answer"
    return " ".join(str(message).split())[:200]


def run_perturbed(
    runner: TrialRunner, sample: Sample, seeds: Sequence[int] = FIRST_DRAWS
) -> list[Outputs]:
    """Outputs of the original with each value perturbed before it is quantized, by seed."""
    about = (runner.reference_identity, runner.sample_digest(sample))
    key = cache_key.key("moved", VERSION, *about, list(seeds))
    kept = runner.cache.read(key, measuring.unpack_runs)
    if kept is not None:
        return kept
    outcome = runner.sandbox.call(
        _run_perturbed,
        runner.build_spec(None),
        runner.case.reference,
        sample.feeds,
        tuple(seeds),
        role="judging",
    )
    runs = outcome.value or []
    runner.ledger.add("noise", inferences=len(runs))
    if not is_circumstantial(outcome.failure):
        runner.cache.put(key, "noise", measuring.pack_runs(runs))
    return runs


# In a worker --------------------------------------------------------------------------------------


class _Runs:
    """Runs models on the reference's runtime with its options."""

    def __init__(self, judge: RuntimeConfig) -> None:
        self._judge = judge

    def __call__(
        self, model: ModelProto, feeds: Sequence[Values]
    ) -> Iterator[dict[str, np.ndarray]]:
        session = load(self._judge, Artifact("onnx", bytes(model.SerializeToString())))
        names = {i.name for i in model.graph.input}
        for each in feeds:
            fed = {n: np.array(v) for n, v in each.items() if n in names}
            yield dict(runtime_returns.outputs(self._judge.runtime, session.run(fed)))


def _original(task: _LayerTask) -> ModelProto:
    return onnx.load_from_string(read_model(task.original.blob, task.original.digest))


def _run_perturbed(
    build_spec: BuildSpec, judge: RuntimeConfig, feeds: Values, seeds: Sequence[int]
) -> list[Outputs]:
    enter("run")
    original = plain(onnx.load_from_string(read_model(build_spec.blob, build_spec.digest)))
    return [flatten(v) for v in layer_checks.run_perturbed(original, _Runs(judge), feeds, seeds)]


def _optimized_onnx(artifact: Artifact, build_spec: BuildSpec) -> bytes | None:
    """The optimized model as ONNX; None if it is not available in that format."""
    if artifact.format == "onnx" and artifact.path is None:
        return artifact.data
    model = visible(build_spec)
    return None if model is None else bytes(model.SerializeToString())


Judged = tuple[LocalAnswer, dict[str, Place]]


def _judge_by_graph(task: _LayerTask, data: bytes) -> Judged | str:
    """All layers, by the optimized graph; a text with the reason if that is impossible."""
    enter("compare")
    model = onnx.load_from_string(data)
    alignment = align(task.model, structure.facts(model, len(data)), task.interface)
    if alignment.problem:
        return alignment.problem
    grids = integer_tensors(model)
    inner = _run_inner_values(task, model, grids, alignment)
    if isinstance(inner, str):
        return inner
    back = {was: now for now, was in alignment.outputs.items()}
    return _judge_inner_values(task, inner, grids, onnx.load_from_string(data), back)


def _run_inner_values(
    task: _LayerTask, model: ModelProto, grids: Mapping[str, Grid], alignment: Alignment
) -> list[InnerValues] | str:
    known = {o.name for o in model.graph.output}
    model.graph.output.extend(ValueInfoProto(name=n) for n in grids if n not in known)
    session = load(task.candidate, Artifact("onnx", bytes(model.SerializeToString())))
    inner = []
    for feeds, outputs in zip(task.feeds, task.outputs, strict=True):
        values = infer(task.candidate.runtime, session, feeds, alignment)
        if not _outputs_are_equal(values, outputs):
            return "its outputs change once inner values are outputs too"
        integers = {n: values[alignment.outputs.get(n, n)] for n in grids}
        inner.append(InnerValues(integers, outputs))
    return inner


def _outputs_are_equal(values: Outputs, outputs: Outputs) -> bool:
    """Whether all ``outputs`` are bit-identical in ``values``."""
    return all(
        n in values and values[n].dtype == v.dtype and _same(values[n], v)
        for n, v in outputs.items()
    )


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.all((a == b) | ((a != a) & (b != b))))


def _judge_inner_values(
    task: _LayerTask,
    inner: Sequence[InnerValues],
    grids: Mapping[str, Grid],
    optimized: ModelProto | None = None,
    renamed: Mapping[str, str] | None = None,
    *,
    named: bool = False,
) -> Judged | str:
    model = _original(task)
    original, run = plain(model), _Runs(task.reference)
    matches = match(original, run, task.feeds[0], inner[0], grids, named=named)
    if not matches:
        return "none of its quantized tensors is in the original"
    noise = Noise(longest_reduction=task.longest_reduction, measured=False)
    answer = layer_checks.check(original, run, task.feeds, inner, matches, noise)
    there = dict(renamed or {}) | {n: m.name for n, m in matches.items()}
    wrong = [e for e in (*answer.layers, *answer.ends) if e.outcome in layer_judgement.WRONG]
    return answer, {e.name: _place(e, model, optimized, there) for e in wrong}


def _place(
    layer: layer_judgement.LayerJudgement,
    model: ModelProto,
    optimized: ModelProto | None,
    there: Mapping[str, str],
) -> Place:
    after: tuple[str, ...] = ()
    if optimized is not None:
        stops = {there.get(n, n) for n in layer.begins}
        after = _nodes(optimized, there.get(layer.name, layer.name), stops)
    return Place(layer.begins, _nodes(model, layer.name, layer.begins), after)


def _nodes(model: ModelProto, end: str, begins: Collection[str]) -> tuple[str, ...]:
    """The nodes that compute the value ``end`` from the values ``begins``, as text."""
    constants = constants_of(model)
    found = (model.graph.node[i] for i in between(model.graph, end, begins))
    return tuple(node_text(n, constants) for n in found)


def _probe(build_spec: BuildSpec, task: _LayerTask) -> tuple[list[str], list[Outputs]]:
    """Quantized tensors that can be outputs without changing others: their names and values.

    Called in a process of the optimizer. All are tried at once; if outputs change, then those of
    one place after the other, since a fusion is prevented in all places that look alike; and then
    halves of what is left. On few samples a prevented fusion may keep the bits by chance.
    """
    enter("build")
    model = _original(task)
    original = plain(model)
    groups = sorted(alike(original), key=len, reverse=True)
    end, kept, found = time.process_time() + _PROBE_S, list[str](), list[Outputs]()
    waiting, tries = [tuple(q.name for q in original.quantizers), *groups], 0
    while waiting and tries < _PROBES and (time.process_time() < end or not tries):
        some, tries = waiting.pop(0), tries + 1
        runs = _run_probe(build_spec, task, model, [*kept, *some])
        if runs is not None:
            kept, found = [*kept, *some], runs
            if tries == 1:
                break
        elif tries > 1 and len(some) > 1:
            waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
    return kept, found


def _run_probe(
    build_spec: BuildSpec, task: _LayerTask, model: ModelProto, names: Sequence[str]
) -> list[Outputs] | None:
    """Values of ``names`` on all samples; None if the run fails or other outputs change."""
    assert build_spec.optimizer is not None
    assert build_spec.options is not None
    probed = ModelProto()
    probed.CopyFrom(model)
    known = {o.name for o in model.graph.output}
    probed.graph.output.extend(
        onnx.helper.make_tensor_value_info(n, kind, None)
        for n, kind in _kinds(model).items()
        if n in names and n not in known
    )
    data = bytes(probed.SerializeToString())
    try:
        artifact = build_spec.optimizer.apply(
            Artifact("onnx", data), build_spec.passes, build_spec.options
        )
        session = load(task.candidate, optimizer_returns.artifact(build_spec.optimizer, artifact))
        runs = []
        for feeds, outputs in zip(task.feeds, task.outputs, strict=True):
            values = infer(task.candidate.runtime, session, feeds)
            if not _outputs_are_equal(values, outputs) or not set(names) <= set(values):
                return None
            runs.append({n: values[n] for n in names})
        return runs
    except Exception as error:  # an optimizer may fail on a model with a further output
        if isinstance(error, MemoryError):
            raise
        return None


def _kinds(model: ModelProto) -> dict[str, int]:
    return {q.name: q.grid.kind for q in plain(model).quantizers}


def _judge_by_probe(
    task: _LayerTask, names: Sequence[str], values: Sequence[Outputs]
) -> Judged | str:
    """All layers, by the values of a probe; a text with the reason if that is impossible."""
    enter("compare")
    grids = {q.name: q.grid for q in plain(_original(task)).quantizers if q.name in names}
    inner = [InnerValues(v, o) for v, o in zip(values, task.outputs, strict=True)]
    return _judge_inner_values(task, inner, grids, named=True)
