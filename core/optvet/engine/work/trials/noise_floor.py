"""Measuring the noise floor: by jitter always, by float64 before a fault is reported.

Each measurement is one task in a worker, and its result is cached by content. What does not end
within the limits of time and memory is missing, not zero: see ``Noise.missing``.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import numpy_helper
from pydantic import TypeAdapter

from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.sample import magnitude
from optvet.engine.numerics import perturb, rounding
from optvet.engine.numerics.forced import plain
from optvet.engine.numerics.inject import INJECTIONS, injected_bytes
from optvet.engine.numerics.jitter_file import jitter_file
from optvet.engine.numerics.loosen import loosened_bytes
from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.array_bytes import dump_arrays, load_arrays
from optvet.engine.work.cache.environment_fingerprint import (
    fingerprint_environment,
    numerics_digest,
)
from optvet.engine.work.sandbox import enter
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.building import BuildSpec, read_model
from optvet.engine.work.trials.from_file import graph_of
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig, flatten, infer, load
from optvet.engine.work.trials.trial_results import is_circumstantial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph.cost import longest_reduction, macs
from optvet.graph.outline import outline_in
from optvet.graph.tidy import tidy
from optvet.graph.types import element_bits, element_types
from optvet.graph.walk import between, nodes_of, reads
from optvet.spec.errors import InfrastructureError
from optvet.spec.runtime_protocols import Session
from optvet.spec.types import Artifact, Sample

JITTERS = 2
SEEDS, MORE_SEEDS, WIDE_SEEDS = range(JITTERS, 5), range(5, 15), range(100, 106)
"""Further draws before a fault is reported; the last two where a rounded value decides."""
MAX_MACS = 2e10
"""Models with more multiply-adds than this are not evaluated in float64: it takes too long."""


@dataclass(frozen=True)
class Analysis:
    """Facts about the outputs that follow from the graph alone."""

    exact: frozenset[str]
    discontinuous: frozenset[str]
    random: frozenset[str]
    longest_reduction: int
    steps: Mapping[str, float]
    open_grids: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Outputs that lie on a grid whose step is an input: that input, and the steps of the grid."""
    quantizers: int = 0
    """Places of the graph at which activations are rounded to integers by fixed scales."""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The inputs on which each output depends."""


def analysis(runner: TrialRunner) -> Analysis:
    """The analysis of the model of the trial runner, cached."""
    key = cache_key.key("analysis", 5, fingerprint_environment(), runner.model.digest)
    kept = runner.cache.read(key, _analysis_from_json, _analysis_to_json)
    if kept is None:
        outcome = runner.sandbox.call(_analyze, runner.build_spec(None), role="judging")
        if outcome.value is None:
            raise InfrastructureError(f"cannot analyse the model: {outcome.failure}")
        runner.cache.put(key, "analysis", _analysis_to_json(outcome.value))
        return outcome.value
    return kept


_ANALYSIS: TypeAdapter[Analysis] = TypeAdapter(Analysis)


def _analysis_to_json(found: Analysis) -> bytes:
    raw = {k: sorted(v) if isinstance(v, frozenset) else v for k, v in asdict(found).items()}
    return json.dumps(raw).encode()


def _analysis_from_json(data: bytes) -> Analysis:
    return _ANALYSIS.validate_python(json.loads(data))


def _analyze(build_spec: BuildSpec) -> Analysis:
    if build_spec.scratch is not None:
        model, whole = graph_of(build_spec.blob), False
    else:
        model, whole = _graph_to_analyze(read_model(build_spec.blob, build_spec.digest))
    model = tidy(model)
    outputs = {o.name for o in model.graph.output}
    # A model without its weights is a large one, or has no quantizer.
    places = plain(model).quantizers if whole else ()
    return Analysis(
        frozenset(outputs - rounding.can_round(model)),
        frozenset(rounding.discontinuous(model)),
        frozenset(rounding.random_ops(model)),
        longest_reduction(model),
        quantization_steps(model),
        _open_grids(model),
        len(places),
        {name: tuple(sorted(_inputs_of(model.graph, name))) for name in outputs},
    )


def _inputs_of(graph: onnx.GraphProto, output: str) -> set[str]:
    nodes = (graph.node[i] for i in between(graph, output, ()))
    return {i.name for i in graph.input} & {output, *(n for node in nodes for n in reads(node))}


_PARSED_BYTES = 1 << 20


def _graph_to_analyze(data: bytes) -> tuple[onnx.ModelProto, bool]:
    """A model, and whether it is whole: without a quantizer, large weights are not read."""
    if len(data) >= _PARSED_BYTES:
        with contextlib.suppress(DecodeError):
            outline = outline_in(data)[0]
            names = {node.op_type for node in nodes_of(outline.graph)}
            if not outline.functions and not any("Q" in n or "quant" in n.lower() for n in names):
                return outline, False
    return onnx.load_from_string(data), True


_LAYOUT = frozenset(
    "Identity Reshape Flatten Transpose Squeeze Unsqueeze Slice Gather Concat Split Pad Relu "
    "MaxPool Clip Dropout Expand Cast DepthToSpace SpaceToDepth Max Abs Neg Min".split()
)
"""Operators whose results lie on the quantization grid of what they read."""


def quantization_steps(model: onnx.ModelProto) -> dict[str, float]:
    """Step of the outputs that lie on a quantization grid, in units of the output."""
    constants = {t.name: t for t in model.graph.initializer}
    steps = {}
    for output, node in _makers(model):
        if node.op_type == "DequantizeLinear" and node.input[1] in constants:
            scale = numpy_helper.to_array(constants[node.input[1]])
            steps[output] = float(np.max(np.abs(scale)))
        elif node.op_type in ("QuantizeLinear", "QLinearConv", "QLinearMatMul"):
            steps[output] = 1.0
    return steps


def _open_grids(model: onnx.ModelProto) -> dict[str, tuple[str, int]]:
    types, inputs = element_types(model), {i.name for i in model.graph.input}
    grids = {}
    for output, node in _makers(model):
        if node.op_type == "DequantizeLinear" and node.input[1] in inputs:
            bits = element_bits(types.get(node.input[0], 0)) or 0
            # Numbers of 32 bits have no zero point.
            if 0 < bits < 32:
                grids[output] = node.input[1], 2**bits - 1
    return grids


def _makers(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    """Outputs of the graph with the node that makes their values, but for their layout."""
    graph = model.graph
    producer = {o: n for n in graph.node for o in n.output}
    for output in graph.output:
        name, seen = output.name, 0
        while name in producer and producer[name].op_type in _LAYOUT and seen < 64:
            name, seen = producer[name].input[0], seen + 1
        if name in producer:
            yield output.name, producer[name]


# --- jitter ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _JitterOrder:
    build_spec: BuildSpec
    config: RuntimeConfig
    samples: tuple[Sample, ...]
    seeds: tuple[int, ...]
    ulps: float
    inside: bool = False
    wide_sums: bool = False


def noise_without_runs(runner: TrialRunner, sample: Sample) -> Noise:
    """Noise as far as the graph alone tells it, without any measurement."""
    about = analysis(runner)
    grids = {
        name: count * magnitude(sample.feeds[step])
        for name, (step, count) in about.open_grids.items()
        if step in sample.feeds
    }
    return Noise(
        longest_reduction=about.longest_reduction,
        exact=about.exact,
        discontinuous=about.discontinuous,
        steps=about.steps,
        grids=grids,
        finite_inputs=frozenset(
            output
            for output, names in about.inputs.items()
            if all(_is_finite(sample.feeds[n]) for n in names if n in sample.feeds)
        ),
        measured=False,
    )


def _is_finite(value: np.ndarray) -> bool:
    return value.dtype.kind != "f" or bool(np.isfinite(value).all())


def measure(
    runner: TrialRunner,
    samples: Sequence[Sample],
) -> dict[str, Noise]:
    """Noise on each of ``samples`` from a few jittered runs of the reference."""
    runs, missing = _jitter(runner, samples, range(JITTERS), 1.0)
    return {
        s.id: replace(
            noise_without_runs(runner, s),
            jitters=tuple(runs.get(s.id, ())),
            measured=True,
            checked=False,
            missing=missing,
        )
        for s in samples
    }


def loosened(runner: TrialRunner, sample: Sample, tolerance: float) -> tuple[Outputs, ...]:
    """Outputs of the reference with inputs, weights and decisions moved by a declared loss."""
    runs, _ = _jitter(runner, [sample], range(perturb.LOOSENED), perturb.Share(tolerance))
    return tuple(runs.get(sample.id, ()))


def _jitter(
    runner: TrialRunner,
    samples: Sequence[Sample],
    seeds: Sequence[int],
    ulps: float,
    *,
    inside: bool = False,
    wide_sums: bool = False,
) -> tuple[dict[str, list[Outputs]], str]:
    """Outputs of perturbed runs by sample, and why they are missing for want of time or memory."""
    kind = ("wide " * wide_sums + "injected") if inside else "jitter"
    kind = "loosened" if isinstance(ulps, perturb.Share) else kind
    runs: dict[str, list[Outputs]] = {}
    todo, missing = [], ""
    for sample in samples:
        key = _key(runner, kind, sample, list(seeds), ulps)
        kept = runner.cache.read(key, unpack_runs)
        if kept is None:
            todo.append(sample)
        else:
            runs[sample.id] = kept
    if todo:
        order = _JitterOrder(
            runner.build_spec(None),
            runner.case.reference,
            tuple(todo),
            tuple(seeds),
            ulps,
            inside,
            wide_sums,
        )
        outcome = runner.sandbox.call(_run_with_jitter, order, role="judging")
        # If the perturbed reference fails, there is no measured noise; the absolute bounds remain,
        # and float64 is evaluated before a fault is reported.
        measured = outcome.value or {}
        runner.ledger.add("noise", inferences=sum(len(r) for r in measured.values()))
        if outcome.failure is not None and is_circumstantial(outcome.failure):
            missing = f"perturbed runs of the original gave no answer: {describe(outcome.failure)}"
        for sample in todo:
            runs[sample.id] = measured.get(sample.id, [])
            # Runs that a limit ended say nothing of the model, so no later vet may find them.
            if not missing:
                key = _key(runner, kind, sample, list(seeds), ulps)
                runner.cache.put(key, "noise", pack_runs(runs[sample.id]))
    return runs, missing


def _run_with_jitter(order: _JitterOrder) -> dict[str, list[Outputs]]:
    runs: dict[str, list[Outputs]] = {s.id: [] for s in order.samples}
    # A session for each draw, since weights move as well; all samples share it.
    for seed in order.seeds:
        session = None  # Two sessions at once would take twice the memory.
        enter("load")
        session = _load_with_jitter(order, seed)
        enter("run")
        for sample in order.samples:
            feeds = perturb.jitter_feeds(sample.feeds, np.random.default_rng(seed), order.ulps)
            try:
                runs[sample.id].append(infer(order.config.runtime, session, feeds))
            except Exception as error:
                # A perturbed input may be illegal; the other ones are still measured.
                if isinstance(error, MemoryError):
                    raise
    return runs


def _load_with_jitter(order: _JitterOrder, seed: int) -> Session:
    build_spec = order.build_spec
    if build_spec.scratch is None:
        data = read_model(build_spec.blob, build_spec.digest)
        if isinstance(order.ulps, perturb.Share):
            return load(order.config, Artifact("onnx", loosened_bytes(data, seed, order.ulps)))
        if order.inside:
            return load(
                order.config,
                Artifact("onnx", injected_bytes(data, seed, wide_sums=order.wide_sums)),
            )
        return load(order.config, Artifact("onnx", perturb.jitter_bytes(data, seed, order.ulps)))
    # Mapped files stay readable after their deletion, so the folder can be removed after loading.
    with tempfile.TemporaryDirectory(dir=build_spec.scratch) as folder:
        path = jitter_file(build_spec.blob, Path(folder), seed, order.ulps)
        return load(order.config, Artifact("onnx", path=path))


def refinements(
    runner: TrialRunner, sample: Sample, noise: Noise, *, other_kernels: bool, missing: str
) -> Iterator[Noise]:
    """Better and better noise, each at the cost of more inferences than the one before.

    In this order: a few draws more, every operator moved by its own rounding, float64, and where a
    rounded value decides, many draws. The caller asks on only while an output is called a fault, or
    is not decided: then nothing but more noise could change the verdict.

    Args:
        runner: Runs the original.
        sample: What it is run on.
        noise: What was measured before.
        other_kernels: Whether the operators that are judged are not the reference's own.
        missing: Why float64 gave no answer on another sample; then it is not asked again.
    """
    about = analysis(runner)
    decides, drawn = bool(about.discontinuous or about.steps), len(noise.jitters) > JITTERS
    if not drawn:
        yield (noise := _with_jitters(runner, sample, noise, SEEDS, 1.0))
    # Stages from cheap to costly; each later one is reached only by verdicts that are still open.
    large = runner.build_spec(None).scratch is not None  # It would be written once more for each.
    injections = range(0 if large else INJECTIONS)
    # Before float64: other kernels round inside operators, and these runs often settle it.
    if other_kernels and injections:
        runs, why = _jitter(runner, [sample], injections, 1.0, inside=True)
        noise = replace(
            noise, injected=tuple(runs.get(sample.id, ())), missing=noise.missing or why
        )
        yield noise
    # One sample that reached the limit is enough; others of its shapes would reach it as well.
    truth, why = ({}, missing) if missing else _float64(runner, sample)
    noise = replace(noise, truth=truth, checked=True, missing=noise.missing or why)
    if not other_kernels and injections:
        # The kernels are the reference's own, which sum halves as floats.
        runs, why = _jitter(runner, [sample], injections, 1.0, inside=True, wide_sums=True)
        noise = replace(
            noise, injected=tuple(runs.get(sample.id, ())), missing=noise.missing or why
        )
    yield noise
    # A rare flip shows only in many draws.
    if decides:
        if not drawn:
            yield (noise := draw_more(runner, sample, noise))
        # Re-ordering a sum changes a value by more than one roundoff of its inputs does.
        yield _with_jitters(runner, sample, noise, WIDE_SEEDS, 4.0)


def draw_more(runner: TrialRunner, sample: Sample, noise: Noise) -> Noise:
    """``noise`` with many draws, which tell the largest of them well; once."""
    if len(noise.jitters) >= JITTERS + len(SEEDS) + len(MORE_SEEDS):
        return noise
    return _with_jitters(runner, sample, noise, MORE_SEEDS, 1.0)


def _with_jitters(
    runner: TrialRunner, sample: Sample, noise: Noise, seeds: Sequence[int], ulps: float
) -> Noise:
    runs, why = _jitter(runner, [sample], seeds, ulps)
    jitters = (*noise.jitters, *runs.get(sample.id, ()))
    return replace(noise, jitters=jitters, missing=noise.missing or why)


def _float64(runner: TrialRunner, sample: Sample) -> tuple[Outputs, str]:
    """float64 outputs, empty where there are none; and why, where that is for want of time."""
    if runner.build_spec(None).scratch is not None:
        return {}, ""  # In float64 a large model takes three times its size and more.
    key = _key(runner, "exact", sample)
    runs, missing = runner.cache.read(key, unpack_runs), ""
    if runs is None:
        outcome = runner.sandbox.call(_evaluate, runner.build_spec(None), sample, role="judging")
        runner.ledger.add("noise", inferences=1)
        runs = [outcome.value] if outcome.value is not None else []
        failure = outcome.failure
        # What is missing is not kept in the cache: with more time or memory there may be a result.
        # That an operator has no float64 kernel is kept, since asking again cannot change it.
        if failure is not None and failure.error_type.endswith(TooCostly.__name__):
            missing = failure.message
        elif failure is not None and failure.kind != "error":
            missing = f"the evaluation in float64 gave no answer: {describe(failure)}"
        else:
            runner.cache.put(key, "noise", pack_runs(runs))
    return (runs[0] if runs else {}), missing


class TooCostly(Exception):
    """The evaluation in float64 would take too long on any machine."""


def _evaluate(build_spec: BuildSpec, sample: Sample) -> Outputs:
    """float64 outputs. Raises NotPromotable, TooCostly."""
    # Imported here: the reference operators double the import time of a vet.
    from optvet.engine.numerics import float64

    enter("run")
    model = tidy(onnx.load_from_string(read_model(build_spec.blob, build_spec.digest)))
    shapes = {name: value.shape for name, value in sample.feeds.items()}
    # Counted instead of timed, so that the verdict does not depend on the machine.
    count = macs(model, shapes)
    if count is not None and count > MAX_MACS:
        raise TooCostly(f"{count:.1g} multiplications are too many for an evaluation in float64")
    return flatten(float64.evaluate(model, dict(sample.feeds)))


# --- storage --------------------------------------------------------------------------------------


def _key(runner: TrialRunner, kind: str, sample: Sample, *more: object) -> str:
    about = runner.reference_identity, runner.sample_digest(sample)
    return cache_key.key(kind, numerics_digest(), *about, *more)


def pack_runs(runs: Sequence[Mapping[str, np.ndarray]]) -> bytes:
    """Outputs of several runs in their form in the cache."""
    flat = {f"{i}/{n}": v for i, run in enumerate(runs) for n, v in run.items()}
    return dump_arrays(flat, {"runs": len(runs)})


def unpack_runs(data: bytes) -> list[Outputs]:
    """Read the output of ``pack_runs``."""
    arrays, meta = load_arrays(data)
    runs: list[Outputs] = [{} for _ in range(meta["runs"])]
    for name, value in arrays.items():
        index, _, output = name.partition("/")
        runs[int(index)][output] = value
    return runs
