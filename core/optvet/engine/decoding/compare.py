"""Compares two exported encoder-decoders, or decoders with a cache, run by run.

The first model decodes greedily, and all inputs of each run are recorded. The second model's file
then runs on the same inputs, and its outputs are judged as those of two single models are. So an
earlier file cannot make a later one look wrong. At the end the second model decodes alone, for its
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto

from optvet.engine.compare import drawn_samples, one_model
from optvet.engine.decoding.files import ENCODER, DecodingFiles, cache_entry, files_of
from optvet.engine.decoding.greedy import (
    Decoded,
    DecodingPlan,
    DecodingRun,
    Part,
    decode,
    logits_of,
    runs_on,
)
from optvet.engine.discovery import Plugins
from optvet.engine.vet.observe.divergence import compare_models, region_of
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.server_modules import preload_for
from optvet.engine.work.trials.trial_runner import Progress
from optvet.graph.interface import graph_inputs
from optvet.graph.types import numpy_dtype
from optvet.graph.weights import constants_of
from optvet.spec.errors import InputError, UsageError
from optvet.spec.records.compare import DecodingComparison, DecodingStep, Layer, ModelComparison
from optvet.spec.request import VetRequest
from optvet.spec.types import Model

_SEQUENCES, _PROMPT, _READ = 2, 5, 7
_MARGIN = 16.0
"""How far the logits of two tokens may part, in noises of the logits, for either to be written."""


@dataclass(frozen=True)
class _Side:
    """One folder: its files, by role. Each is read once, however many tokens are written."""

    files: DecodingFiles
    models: Mapping[str, Model]
    graphs: Mapping[str, ModelProto]
    runnable: Mapping[str, Part]


def compare_decoding(
    b: str,
    plugins: Plugins,
    request: VetRequest,
    *,
    cache_dir: Path,
    tokens: int = 8,
    progress: Progress = lambda text, done, total: None,
) -> DecodingComparison:
    """Decode with the first folder, and compare each run with the same file of folder ``b``.

    Args:
        b: The second folder, with the same parts as the first.
        plugins: What is installed.
        request: Its model is the first folder. Inputs and noise are measured with that folder. Its
            dataset supplies encoder inputs that are no tokens, such as sound.
        cache_dir: Where downloaded models are kept.
        tokens: Number of tokens to decode.
        progress: Called with the current step.

    Raises:
        UsageError: A folder has no decoder, the folders have other parts, or a part has an input
            for which decoding has no value.
        InputError: The first model does not decode.
    """
    a = request.model
    sides = [_side(folder, plugins, cache_dir) for folder in (a, b)]
    first, second = sides
    for folder, side, other in ((b, second, first), (a, first, second)):
        if gone := set(other.models) - set(side.models):
            raise UsageError(f"{folder} has no {sorted(gone)[0]}.onnx; compare the same parts")
    runtime = plugins.runtime(request.runtime) if request.runtime else plugins.reference_runtime()
    by = RuntimeConfig(runtime, runtime.options)
    limits = Limits(request.timeout, request.memory)
    with Sandbox(jobs=1, limits=limits, preload=preload_for(None, runtime)) as sandbox:
        progress("making inputs", 0, None)
        plan = _plan(first, request, plugins, by, sandbox, tokens)
        progress("decoding", 0, None)
        decoded = _decoded(first, plan, by, sandbox)
        if decoded.failure:
            raise InputError(f"{a} does not decode: {decoded.failure}")
        return _judged(first, second, decoded, plan, by, sandbox, progress)


def _side(folder: str, plugins: Plugins, cache_dir: Path) -> _Side:
    files = files_of(folder)
    models = {p: one_model(str(f), plugins, cache_dir) for p, f in files.by_part.items()}
    graphs = {part: model.load() for part, model in models.items()}
    runnable = {p: Part(g.SerializeToString(), graph_inputs(g)) for p, g in graphs.items()}
    return _Side(files, models, graphs, runnable)


# --- what is decoded ------------------------------------------------------------------------------


def _plan(
    side: _Side,
    request: VetRequest,
    plugins: Plugins,
    by: RuntimeConfig,
    sandbox: Sandbox,
    tokens: int,
) -> DecodingPlan:
    """Draw inputs. Some positions are masked, since only these show a lost mask."""
    rng = np.random.default_rng(request.seed)
    encoder: dict[str, np.ndarray] = {}
    if ENCODER in side.models:
        encoder = _encoder_inputs(side.models[ENCODER], request, plugins, by, sandbox, rng)
    sequences = len(next(iter(encoder.values()))) if encoder else _SEQUENCES
    decoder = side.models[side.files.decoder_at(1)]
    length = 1 if encoder else _PROMPT
    prompt = rng.integers(0, _vocabulary(decoder), (sequences, length))
    mask = np.ones_like(prompt)
    if length > 1:
        # Not the first token: each position then reads one at least, and its value is defined.
        mask[-1, 1] = 0
    parts = tuple(side.files.decoder_at(t) for t in range(1, tokens + 1))
    return DecodingPlan(encoder, prompt, mask, parts)


def _encoder_inputs(
    model: Model,
    request: VetRequest,
    plugins: Plugins,
    by: RuntimeConfig,
    sandbox: Sandbox,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    names = [i.name for i in model.inputs]
    if not set(names) <= {"input_ids", "attention_mask"}:
        return dict(drawn_samples(model, request, plugins, by, sandbox)[0].feeds)
    sizes = next((i.shape for i in model.inputs if i.name == "input_ids"), None) or (None, None)
    fixed = [
        d if isinstance(d, int) else n for d, n in zip(sizes, (_SEQUENCES, _READ), strict=False)
    ]
    ids = rng.integers(0, _vocabulary(model), fixed)
    mask = np.ones_like(ids)
    mask[-1, -max(1, ids.shape[1] // 3) :] = 0
    values = {"input_ids": ids, "attention_mask": mask}
    return {i.name: values[i.name].astype(numpy_dtype(i)) for i in model.inputs}


def _vocabulary(model: Model) -> int:
    """The vocabulary size: rows of the embedding table, else the last dimension of the logits."""
    graph = model.load()
    weights = constants_of(graph)
    reads = {"input_ids", "decoder_input_ids"}
    for node in graph.graph.node:
        if node.op_type in ("Cast", "Identity", "Reshape") and node.input[0] in reads:
            reads.update(node.output)
        if node.op_type == "Gather" and node.input[1] in reads and node.input[0] in weights:
            return int(weights[node.input[0]].dims[0])
    last = [o.shape[-1] for o in model.outputs if o.name == "logits" and o.shape]
    known = [d for d in last if isinstance(d, int)]
    return known[0] if known else 2


def _decoded(side: _Side, plan: DecodingPlan, by: RuntimeConfig, sandbox: Sandbox) -> Decoded:
    outcome = sandbox.call(decode, side.runnable, plan, by, fresh=True)
    if outcome.value is not None:
        return outcome.value
    return Decoded(failure=outcome.failure.message if outcome.failure else "no answer")


# --- judging --------------------------------------------------------------------------------------


def _judged(
    first: _Side,
    second: _Side,
    decoded: Decoded,
    plan: DecodingPlan,
    by: RuntimeConfig,
    sandbox: Sandbox,
    progress: Progress,
) -> DecodingComparison:
    steps: list[DecodingStep] = []
    compared: ModelComparison | None = None
    entries: list[str] = []
    for done, run in enumerate(decoded.runs):
        progress("comparing", done, len(decoded.runs))
        judged, compared, entries = _judge(first, second, run, by, sandbox)
        steps.append(judged)
        if judged.call == "differs":
            break
    alone = _decoded(second, plan, by, sandbox)
    found = DecodingComparison(
        schema="optvet.compare-decoding/1",
        verdict="agrees",
        tokens=(decoded.tokens, alone.tokens),
        other_token_at=_other_token(decoded.tokens, alone.tokens),
        steps=steps,
        not_compared=[f.name for side in (first, second) for f in side.files.others],
    )
    last = steps[-1]
    if last.call == "differs":
        return found.model_copy(
            update={
                "verdict": "differs",
                "message": last.detail,
                "file": last.file,
                "token": last.token,
                "output": last.output,
                "layer": _layer(first, decoded.runs[len(steps) - 1], last, compared),
                "cache_entries": entries,
                "comparison": compared,
            }
        )
    if alone.failure:
        # Each file is right on the first model's values, so what one hands to another is not.
        at = len(alone.tokens[0]) + 1 if alone.tokens else 1
        return found.model_copy(
            update={
                "verdict": "differs",
                "message": f"each file agrees, but they do not decode together: {alone.failure}",
                "file": second.files.by_part[second.files.decoder_at(at)].name,
                "token": at,
            }
        )
    if unsure := next((s for s in steps if s.call == "undecided"), None):
        words = f"{unsure.file} at token {unsure.token}: {unsure.detail}"
        return found.model_copy(update={"verdict": "undecided", "message": words})
    if found.other_token_at is not None:
        return _near_tie(found, decoded)
    return found


def _judge(
    first: _Side, second: _Side, run: DecodingRun, by: RuntimeConfig, sandbox: Sandbox
) -> tuple[DecodingStep, ModelComparison | None, list[str]]:
    """Judge one run: its verdict, the comparison of the two files, cache entries that differ."""
    file, part = second.files.by_part[run.part].name, second.runnable[run.part]
    base = DecodingStep(file=file, token=run.token, call="differs")
    taken, feeds = {i.name for i in part.inputs}, dict(run.feeds)
    for kind, gone in (
        ("has lost the input", set(feeds) - taken),
        ("asks for", taken - set(feeds)),
    ):
        if gone:
            words = f"{file} {kind} {', '.join(sorted(gone))}"
            return base.model_copy(update={"detail": words}), None, []
    ran = sandbox.call(runs_on, part, feeds, by, fresh=True)
    if ran.value is None:
        words = f"{file} fails: {ran.failure.message if ran.failure else 'no answer'}"
        return base.model_copy(update={"detail": words}), None, []
    if lost := [name for name in run.outputs if name not in ran.value]:
        words = f"{file} does not give {', '.join(lost)}"
        update = {"detail": words, "output": lost[0]}
        return base.model_copy(update=update), None, [n for n in lost if cache_entry(n)]
    a, b = first.graphs[run.part], second.graphs[run.part]
    return _of_outputs(base, run, compare_models(a, b, feeds, by, sandbox))


def _layer(
    first: _Side, run: DecodingRun, judged: DecodingStep, compared: ModelComparison | None
) -> str | None:
    """The first differing value on the way to an output that differs."""
    if compared is None or judged.output is None:
        return None
    wrong = [layer.name for layer in compared.layers if layer.call == "fault"]
    graph = first.graphs[run.part]
    leads = {judged.output}
    for output in set(run.outputs).intersection(wrong):
        nodes, _ = region_of(graph, output, set())
        leads.update(name for node in nodes for name in node.output)
    return next((name for name in wrong if name in leads), judged.output)


def _of_outputs(
    base: DecodingStep, run: DecodingRun, compared: ModelComparison
) -> tuple[DecodingStep, ModelComparison, list[str]]:
    """Judge the outputs. Inner values may differ as long as no output does."""
    layers = {layer.name: layer for layer in compared.layers}
    outputs = [layers[name] for name in run.outputs if name in layers]
    wrong = [layer for layer in outputs if layer.call == "fault"]
    if wrong:
        entries = [layer.name for layer in wrong if cache_entry(layer.name)]
        told = _told(base, wrong[0], "differs")
        return told, compared, entries
    unknown = [name for name in run.outputs if name not in layers]
    if unknown:
        words = f"{unknown[0]} could not be compared"
        return base.model_copy(update={"call": "undecided", "detail": words}), compared, []
    if unsure := [layer for layer in outputs if layer.call == "unsure"]:
        return _told(base, unsure[0], "undecided"), compared, []
    worst = max(outputs, key=lambda layer: layer.error or 0.0)
    return _told(base, worst, "same"), compared, []


def _told(base: DecodingStep, layer: Layer, call: str) -> DecodingStep:
    words = layer.detail or f"{layer.name} differs by more than its noise"
    return base.model_copy(
        update={
            "call": call,
            "output": None if call == "same" else layer.name,
            "error": layer.error,
            "noise": layer.noise,
            "detail": "" if call == "same" else words,
        }
    )


def _other_token(one: list[list[int]], other: list[list[int]]) -> int | None:
    """The first position, from 1, at which any sequence has different tokens; else None."""
    columns = zip(zip(*one, strict=True), zip(*other, strict=True), strict=False)
    return next((i for i, (a, b) in enumerate(columns, 1) if a != b), None)


def _near_tie(found: DecodingComparison, decoded: Decoded) -> DecodingComparison:
    """Decide whether noise explains a different token although each file agrees."""
    at = found.other_token_at
    assert at is not None
    # A run of the encoder comes before the decoder's, which are one per token.
    index = at - 1 + len(decoded.runs) - len(decoded.tokens[0])
    judged = found.steps[index]
    logits = logits_of(decoded.runs[index].outputs)[:, -1].astype(np.float64)
    pairs = [(i, a[at - 1], b[at - 1]) for i, (a, b) in enumerate(zip(*found.tokens, strict=True))]
    gap = max(abs(logits[i, a] - logits[i, b]) for i, a, b in pairs)
    scale = float(np.abs(logits).max(initial=0.0)) or 1.0
    allowed = _MARGIN * max(judged.noise or 0.0, judged.error or 0.0)
    size = f"their logits differ by {gap / scale:.1e} of the largest, noise explains {allowed:.1e}"
    if gap / scale <= allowed:
        words = f"token {at} is different, within the noise: {size}"
        return found.model_copy(update={"message": words})
    words = f"each file agrees on the first model's inputs, but token {at} is different: {size}"
    return found.model_copy(update={"verdict": "undecided", "message": words})
