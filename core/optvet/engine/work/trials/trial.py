"""One trial: build → check → load → run, inside workers.

The functions here run in workers. Their only state is two small caches (the last models read, the
last artifacts hashed), which save reading and hashing hundreds of megabytes again; optimizers get
copies. An exception in a stage becomes the report's ``failure``; the death of the worker becomes a
failure in the parent process.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto
from pydantic import BaseModel

from optvet.engine import contract
from optvet.engine.work.sandbox import enter, last_stage, poison_memory
from optvet.engine.work.sandbox.messages import NAME_CHARS, cut, text_of, type_name
from optvet.engine.work.trials import from_file
from optvet.engine.work.trials.checking import check
from optvet.graph import structure
from optvet.graph.digest import canonical_digest
from optvet.graph.interface import Alignment, align
from optvet.graph.outline import Message, digest_of, message_digest, outline_in
from optvet.spec.errors import ContractError, InfrastructureError, MissingLibrary, UsageError
from optvet.spec.foreign import load_model, read_file
from optvet.spec.protocols import (
    ChecksOptions,
    Decodes,
    Feeds,
    LoadsFiles,
    Optimizer,
    ReportsChanges,
    Runtime,
    Saves,
    Session,
)
from optvet.spec.types import Artifact, Failure, FailureKind, InterfaceChange, Model, Sample

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class BuildSpec:
    """What to build: ``passes`` of ``optimizer`` on the model, or the original model.

    A large model is used from its file: ``scratch`` is the folder for results, and ``stamp`` is the
    ``stamp_of`` its file when it was opened.
    """

    blob: Path
    digest: str
    optimizer: Optimizer | None = None
    options: BaseModel | None = None
    passes: tuple[str, ...] = ()
    scratch: Path | None = None
    stamp: tuple[int, int] | None = None


@dataclass(frozen=True)
class RuntimeConfig:
    """A runtime and its options."""

    runtime: Runtime
    options: BaseModel


@dataclass(frozen=True)
class TrialReport:
    """The result of one trial.

    ``digest`` identifies the bytes of the artifact, ``canonical`` what it computes. ``outputs`` has
    one entry per sample that ran; ``failure`` is the first failure, and ``failed_sample`` the
    sample during which it happened. ``known``: the trial stopped early, because the caller knows
    the results of this artifact.
    """

    digest: str = ""
    canonical: str = ""
    facts: structure.Facts | None = None
    failure: Failure | None = None
    failed_sample: str | None = None
    outputs: Mapping[str, Outputs] = field(default_factory=dict)
    changing_passes: tuple[str, ...] | None = None
    known: bool = False
    interface_problem: str = ""


@dataclass(frozen=True)
class TrialSpec:
    """What a trial has to do: how far to go, on which samples, under which checks.

    ``known`` are digests, and canonical digests, of artifacts whose results are known: the trial
    stops when it builds one. ``full_check``: check with strict shape inference, which the original
    must pass too; ``plain_check``: ask the checker at all. An error of the checker whose normalized
    message is ``ignored_complaint`` is ignored, since import and export alone cause it.
    """

    build_spec: BuildSpec
    config: RuntimeConfig | None
    samples: tuple[Sample, ...]
    reference: Model | None = None
    interface: frozenset[InterfaceChange] = frozenset()
    known: frozenset[str] = frozenset()
    full_check: bool = True
    plain_check: bool = True
    ignored_complaint: str = ""


_models: OrderedDict[str, bytes] = OrderedDict()
_artifacts: OrderedDict[str, bytes] = OrderedDict()


def read_model(blob: Path, digest: str, *, private: bool = False) -> bytes:
    """The model's bytes; those of the last two models are kept in memory.

    Args:
        blob: The file of the model.
        digest: Its sha256.
        private: Return a copy for the caller only: an optimizer may write into its input.

    Raises:
        InfrastructureError: The file does not have this digest, or no longer.
    """
    if private:
        return read_file(blob)
    if digest not in _models:
        data = read_file(blob)
        if hashlib.sha256(data).hexdigest() != digest:
            raise InfrastructureError(
                f"{blob} has changed since it was opened; keep the model as it is while it is "
                "vetted, and start again"
            )
        _models[digest] = data
        while len(_models) > 2:
            _models.popitem(last=False)
    _models.move_to_end(digest)
    return _models[digest]


@dataclass(frozen=True)
class _OnnxGraph:
    """The graph of an ONNX artifact, and where the weights lie that it lacks."""

    proto: ModelProto
    size_bytes: int
    source: Path | Message | None


_OUTLINED_BYTES = 1 << 20


def _outline(data: bytes) -> _OnnxGraph | None:
    """The graph of a model in memory without its weights; None if it is better parsed whole."""
    if len(data) < _OUTLINED_BYTES:
        return None
    try:
        proto, message = outline_in(data)
    except DecodeError:
        return None  # Parsed whole, it is refused with protobuf's reason.
    return _OnnxGraph(proto, len(data), message)


def _identify(data: bytes) -> tuple[str, _OnnxGraph | None]:
    """A digest of ``data``, and its graph if that was looked at for it.

    Most passes do not change the model, so ``data`` is first compared with the last artifacts,
    which is ten times faster than hashing.
    """
    for digest, other in _artifacts.items():
        if len(other) == len(data) and other == data:
            return digest, None
    graph = _outline(data)
    if graph is not None and isinstance(graph.source, Message):
        # The weights are hashed one by one, and then known for the canonical digest too.
        digest = message_digest(graph.proto, graph.source)
    else:
        digest = hashlib.sha256(data).hexdigest()
    _artifacts[digest] = data
    while len(_artifacts) > 3:
        _artifacts.popitem(last=False)
    return digest, graph


def run_trial(artifact: Artifact, order: TrialSpec) -> TrialReport:
    """Check, load and run ``artifact``, the result of building ``order.build_spec``."""
    digest, graph = _digest_of(order.build_spec, artifact)
    if digest in order.known:
        return TrialReport(digest, changing_passes=artifact.changing_passes, known=True)
    if artifact.format != "onnx":
        report = TrialReport(digest, digest, changing_passes=artifact.changing_passes)
        return _run(order, artifact, report, None)
    return _examine(order, artifact, digest, graph)


def _digest_of(build_spec: BuildSpec, artifact: Artifact) -> tuple[str, _OnnxGraph | None]:
    if build_spec.optimizer is None:
        return build_spec.digest, None
    if artifact.fingerprint is None:
        if artifact.path is not None:
            return digest_of(artifact.path), None
        return _identify(artifact.data)
    name = (
        f"{build_spec.digest}|{build_spec.optimizer.name}|{artifact.format}|{artifact.fingerprint}"
    )
    return hashlib.sha256(name.encode()).hexdigest(), None


def objection(
    plugin: ChecksOptions, options: BaseModel
) -> UsageError | ModuleNotFoundError | MissingLibrary | None:
    """Why ``plugin`` refuses ``options``, or what is absent; None if it accepts them."""
    try:
        plugin.check_options(options)
    except UsageError as error:
        return UsageError(str(error))
    except (ModuleNotFoundError, MissingLibrary) as error:
        return error
    return None


def build(build_spec: BuildSpec) -> Artifact:
    """The artifact of ``build_spec``; raises whatever the optimizer raises.

    Raises:
        ContractError: The optimizer did not return an artifact.
    """
    if build_spec.optimizer is None:
        if build_spec.scratch is not None:
            return from_file.original(build_spec.blob, build_spec.stamp)
        return Artifact("onnx", read_model(build_spec.blob, build_spec.digest))
    assert build_spec.options is not None
    if build_spec.scratch is not None:
        about = (build_spec.optimizer, build_spec.passes, build_spec.options, build_spec.scratch)
        return contract.artifact(
            build_spec.optimizer, from_file.apply_to_file(build_spec.blob, *about)
        )
    artifact = build_spec.optimizer.apply(
        _source(build_spec), build_spec.passes, build_spec.options
    )
    return contract.artifact(build_spec.optimizer, artifact)


def _source(build_spec: BuildSpec) -> Artifact:
    """A private copy of the model for the optimizer, which may write into it."""
    return Artifact("onnx", read_model(build_spec.blob, build_spec.digest, private=True))


def visible(build_spec: BuildSpec) -> ModelProto | None:
    """The graph of what ``build`` makes; None if its format has no readable graph.

    Raises whatever the optimizer raises.
    """
    artifact = build(build_spec)
    if artifact.format == "onnx":
        path = artifact.path
        return load_model(path) if path else onnx.load_from_string(artifact.data)
    saved = saved_artifact(build_spec)
    return None if saved is None else onnx.load_from_string(saved.data)


def saved_artifact(build_spec: BuildSpec) -> Artifact | None:
    """The artifact of ``build`` exported as ONNX; None if the optimizer cannot do that.

    Raises whatever the optimizer raises.
    """
    optimizer = build_spec.optimizer
    if not isinstance(optimizer, Saves):
        return None
    assert build_spec.options is not None
    saved = optimizer.saved(_source(build_spec), build_spec.passes, build_spec.options)
    return contract.check_saved(optimizer, saved)


def run_poisoned_trial(artifact: Artifact, order: TrialSpec) -> TrialReport:
    """Like ``run_trial``, with new memory filled by a pattern, to reveal uninitialized reads."""
    poison_memory()
    return run_trial(artifact, order)


def _examine(
    order: TrialSpec, artifact: Artifact, digest: str, graph: _OnnxGraph | None
) -> TrialReport:
    enter("check")
    report = TrialReport(digest, changing_passes=artifact.changing_passes)
    try:
        graph = graph or _graph_of(artifact)
        facts = structure.facts(graph.proto, graph.size_bytes)
        _check(order, artifact)
        canonical = canonical_digest(graph.proto, graph.source)
    except Exception as error:
        return _with(report, failure=failure_of(error))
    report = _with(report, facts=facts, canonical=canonical)
    alignment = None
    if order.reference is not None:
        alignment = align(order.reference, facts, order.interface)
    if canonical in order.known and not (alignment and alignment.problem):
        return _with(report, known=True)
    return _run(order, artifact, report, alignment)


def _graph_of(artifact: Artifact) -> _OnnxGraph:
    if artifact.path is None and (graph := _outline(artifact.data)) is not None:
        return graph
    return _OnnxGraph(*graph_and_size(artifact), artifact.path and artifact.path.parent)


def graph_and_size(artifact: Artifact) -> tuple[ModelProto, int]:
    """The graph of an ONNX artifact, without large weights if it is a file; and its size."""
    if artifact.path is not None:
        proto = from_file.graph_of(artifact.path)
        return proto, from_file.size_of(artifact.path, proto)
    return onnx.load_from_string(artifact.data), len(artifact.data)


def _check(order: TrialSpec, artifact: Artifact) -> None:
    if not order.plain_check:
        return
    try:
        check(
            artifact.path or artifact.data,
            full=order.full_check,
            dialect=speaks_dialect(order.build_spec),
        )
    except Exception as error:
        if not order.ignored_complaint or normalized_message(str(error)) != order.ignored_complaint:
            raise


_GIST_CHARS = 4000
# Each takes linear time: the text is untrusted, and may be one word of a megabyte.
_QUOTED = re.compile(r"""'[^'\n]*'|"[^"\n]*"|`[^`\n]*`""")
_NAMED = re.compile(r"\bname: ?\S*")
_ADDRESS = re.compile(r"\b0[xX][0-9a-fA-F]+")  # Addresses differ from process to process.
_NO_LETTERS = re.compile("[^A-Za-z]+")


def normalized_message(message: str) -> str:
    """The first words of a message, without names, numbers, addresses and paths."""
    text = _ADDRESS.sub(" ", _NAMED.sub(" ", _QUOTED.sub(" ", message[:_GIST_CHARS])))
    words = " ".join(word for word in text.split() if "/" not in word[:-1])
    return " ".join(_NO_LETTERS.sub(" ", words).split()[:12])


def speaks_dialect(build_spec: BuildSpec) -> bool:
    """Whether the artifact may have operators of a runtime's own; see ``Traits.dialect``."""
    return build_spec.optimizer is not None and build_spec.optimizer.traits.dialect


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
        for i, sample in enumerate(order.samples):
            if fresh and i:
                session = load(order.config, artifact)
            enter("run")
            sample_id = sample.id
            outputs[sample.id] = infer(order.config.runtime, session, sample.feeds, alignment)
    except Exception as error:
        return _with(report, failure=failure_of(error), failed_sample=sample_id, outputs=outputs)
    return _with(report, outputs=outputs)


def load(config: RuntimeConfig, artifact: Artifact) -> Session:
    """A session of the artifact; UsageError if the runtime does not accept its format."""
    if artifact.format not in config.runtime.accepts:
        accepts = ", ".join(sorted(config.runtime.accepts))
        raise UsageError(
            f"runtime {config.runtime.name!r} runs {accepts}, not {artifact.format}; "
            "choose another with --runtime"
        )
    if artifact.path is not None and isinstance(config.runtime, LoadsFiles):
        return contract.session(config.runtime, config.runtime.load_file(artifact, config.options))
    if artifact.path is not None:
        artifact = replace(artifact, data=from_file.whole(artifact.path), path=None)
    return contract.session(config.runtime, config.runtime.load(artifact, config.options))


def infer(
    runtime: Runtime,
    session: Session,
    feeds: Feeds,
    alignment: Alignment | None = None,
) -> Outputs:
    """Outputs of one run, named as in the original; ``feeds`` are not changed."""
    outputs = contract.outputs(runtime, session.run(align_feeds(feeds, alignment)))
    names = alignment.outputs if alignment else {}
    flat = flatten({names.get(name, name): value for name, value in outputs.items()})
    contract.arrays(runtime, flat)
    return flat


def align_feeds(feeds: Feeds, alignment: Alignment | None = None) -> dict[str, np.ndarray]:
    """Copies of ``feeds`` under the names and types of the aligned model.

    Copies, since a runtime may write into its inputs, which are used again.
    """
    names = alignment.inputs if alignment else {}
    casts = alignment.casts if alignment else {}
    return {names.get(n, n): np.array(v, dtype=casts.get(n)) for n, v in feeds.items()}


def alignment_of(order: TrialSpec, artifact: Artifact) -> Alignment | None:
    """How an artifact's interface maps to the original's; None if its format hides it."""
    if order.reference is None or artifact.format != "onnx":
        return None
    graph = _graph_of(artifact)
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
            contract.check_decoded(comparator, decoded)
            answers[sample.id] = {name: np.asarray(value) for name, value in decoded.items()}
        except Exception as error:
            answers[sample.id] = failure_of(error)
    return answers, count


def flatten(outputs: Mapping[str, Any]) -> Outputs:
    """Outputs as arrays: sequences become ``name[i]``, maps ``name.keys`` and ``name``."""
    flat: Outputs = {}
    for name, value in outputs.items():
        _flatten(name, value, flat)
    return flat


def graph_output_of(name: str) -> str:
    """The graph output that an array which ``flatten`` named came from."""
    suffixes = _SUFFIXES_BACKWARDS.match(name[::-1])
    return name[: len(name) - suffixes.end()] if suffixes else name


# From the end: a search for suffixes from the start takes quadratic time on "[0][0][0]…x".
_SUFFIXES_BACKWARDS = re.compile(r"(?:\]\d+\[|syek\.|htgnel\.|enon_si\.)+")


def _flatten(name: str, value: Any, flat: Outputs) -> None:
    if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        keys = list(value[0])
        if all(list(v) == keys for v in value):
            flat[f"{name}.keys"] = np.array(keys)
            flat[name] = np.array([[v[k] for k in keys] for v in value], dtype=np.float32)
            return
    if isinstance(value, dict):
        flat[f"{name}.keys"] = np.array(list(value))
        flat[name] = np.array(list(value.values()))
    elif isinstance(value, (list, tuple)):
        flat[f"{name}.length"] = np.array(len(value))
        for i, item in enumerate(value):
            _flatten(f"{name}[{i}]", item, flat)
    elif value is None:
        flat[f"{name}.is_none"] = np.array(True)
    else:
        flat[name] = np.asarray(value)


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


def ask_changing_passes(build_spec: BuildSpec) -> list[str] | None:
    """Passes that changed the model, as the optimizer reports; None if it cannot."""
    enter("build")
    optimizer = build_spec.optimizer
    assert isinstance(optimizer, ReportsChanges)
    assert build_spec.options is not None
    if build_spec.scratch is not None:
        return None  # a hint is not worth loading a large model
    changing_passes = optimizer.changing_passes(
        _source(build_spec), build_spec.passes, build_spec.options
    )
    if changing_passes is None:
        return None
    return list(contract.changing_passes(optimizer, changing_passes))


def failure_of(error: BaseException) -> Failure:
    """An exception as a value."""
    text = text_of(error).strip() or type(error).__name__
    out_of_memory = isinstance(error, MemoryError) or "bad_alloc" in text
    kind: FailureKind = "out-of-memory" if out_of_memory else "error"
    return Failure(kind, last_stage(), text, type_name(error))


def _with(report: TrialReport, **changes: Any) -> TrialReport:
    return replace(report, **changes)


def sample_digests(samples: Iterable[Sample]) -> list[str]:
    """One digest per sample, over names, dtypes, shapes and contents."""
    digests = []
    for sample in samples:
        content = hashlib.sha256()
        for name in sorted(sample.feeds):
            array = np.ascontiguousarray(sample.feeds[name])
            data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            content.update(f"{name}|{array.dtype}|{array.shape}|{len(data)}|".encode())
            content.update(data)
        digests.append(content.hexdigest())
    return digests
