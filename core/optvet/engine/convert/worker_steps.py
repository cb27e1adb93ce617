"""What is done with sources and artifacts in worker processes: these functions run there."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from pydantic import BaseModel

from optvet.engine.contract import checked_calls, other_returns, runtime_returns
from optvet.engine.convert.match_interface import fed_to
from optvet.engine.numerics import perturb, rounding
from optvet.engine.numerics.floats import is_float
from optvet.engine.numerics.inject import injected_bytes
from optvet.engine.numerics.loosen import loosened_bytes
from optvet.engine.work.sandbox import enter, poison_memory
from optvet.engine.work.sandbox.messages import cut, text_of, type_name
from optvet.engine.work.trials.checking import check
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig, infer, load, open_session
from optvet.engine.work.trials.raised_errors import failure_of
from optvet.graph.cost import longest_reduction
from optvet.graph.interface import Interface, interface_of
from optvet.graph.quantized import quantized_operators
from optvet.graph.structure import undefined_operators
from optvet.graph.tidy import tidy
from optvet.graph.walk import is_onnx, nodes_of
from optvet.spec.converters import (
    Converter,
    ConverterExtras,
    SourceExtras,
    SourceFacts,
    TellsSource,
)
from optvet.spec.errors import InfrastructureError, PluginError, UsageError
from optvet.spec.extras import given
from optvet.spec.factory import call_registering
from optvet.spec.foreign import load_model
from optvet.spec.protocols import Feeds
from optvet.spec.runtime_protocols import Runtime, Session
from optvet.spec.significance import may_be_rounded
from optvet.spec.types import Artifact, Failure, Sample

_OURS = (UsageError, PluginError, InfrastructureError)
"""Errors about what was given or installed; all others are what a converter does with a source."""
_CAUSES = 4


@dataclass(frozen=True)
class Converted:
    """The artifacts of one converter, as far as it came, and why it came no further.

    ``read`` are the files that were opened meanwhile, but for those of what is installed.
    """

    artifacts: tuple[Artifact, ...]
    failure: Failure | None = None
    read: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observed:
    """What an artifact does: the checker's complaint, and outputs or a failure per sample.

    ``interface`` is that of an ONNX model which loads; other formats hide theirs. ``unconverted``
    are operators of an ONNX model for which it does not load, and that ONNX does not define: the
    converter left them as they are in the source's framework.
    """

    complaint: str = ""
    load: Failure | None = None
    runs: Mapping[str, Outputs | Failure] = field(default_factory=dict)
    interface: Interface | None = None
    unconverted: tuple[str, ...] = ()

    @property
    def why_invalid(self) -> str:
        """What is wrong with the model before it is loaded; empty if nothing is."""
        if not self.unconverted:
            return self.complaint
        words = f"not converted: ONNX defines no operator {', '.join(self.unconverted)}."
        return f"{words}\n{self.complaint}" if self.complaint else words


_opened: set[str] | None = None
"""What was opened since ``watch_files``; None before."""


def watch_files() -> None:
    """Note which files this process opens from now on; what native code opens is not seen."""
    global _opened
    if _opened is None:
        _opened = set()
        sys.addaudithook(_note_opened)


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str):
        _opened.add(arguments[0])


def files_read(scratch: Path | None = None) -> tuple[str, ...]:
    """The files that were opened and are there, but for those of Python, devices and ``scratch``.

    Compiled modules stand for what they were made of. What a library writes to the worker's own
    temporary folder and reads there, such as generated code, is gone with the worker.
    """
    # What is installed is compared by the lists of packages.
    own = {os.path.realpath(p) for n, p in sysconfig.get_paths().items() if n != "data"}
    own |= {os.path.realpath(p) for p in (f"{sys.base_prefix}/lib", Path(__file__).parents[3])}
    own |= {os.path.realpath(p) for p in sys.path if p.endswith("-packages")}
    own.add(os.path.realpath(tempfile.gettempdir()))
    own |= {"/proc", "/sys", "/dev", "/etc", *(() if scratch is None else (str(scratch),))}
    names = {os.path.realpath(name) for name in _opened or () if os.path.isfile(name)}
    return tuple(sorted(n for n in names if not any(n.startswith(f"{o}/") for o in own)))


def describe_watched(
    config: RuntimeConfig, source: Artifact
) -> tuple[SourceFacts, tuple[str, ...]]:
    """How the source is called, and the files that it opened while it was loaded."""
    watch_files()
    return describe(config, source), files_read()


def version(plugin: Converter | Runtime) -> str:
    """The version of a plugin's library."""
    return plugin.version()


def describe(config: RuntimeConfig, source: Artifact) -> SourceFacts:
    """How the source is called."""
    enter("load")
    runtime = config.runtime
    assert isinstance(runtime, TellsSource)
    return runtime_returns.check_facts(runtime, runtime.source_facts(source, config.options))


def convert(
    converter: Converter,
    source: Artifact,
    options: BaseModel,
    folder: Path,
    inputs: Sequence[Feeds] = (),
    registered: Sequence[str] = (),
) -> Converted:
    """The artifacts of all stages; an exception of the converter is its answer.

    ``inputs`` are for a converter that takes them; ``registered`` are the user's functions, which
    are called first.
    """
    enter("build")
    watch_files()
    for function in registered:
        call_registering(function)
    formats = [stage.format for stage in converter.stages(options)]
    artifacts: list[Artifact] = []
    try:
        for artifact in _artifacts(converter, source, options, folder, inputs):
            expected = formats[len(artifacts)] if len(artifacts) < len(formats) else None
            if not isinstance(artifact, Artifact) or artifact.format != expected:
                got = getattr(artifact, "format", type(artifact).__name__)
                words = f"convert() gave {got} as artifact {len(artifacts) + 1}, expected "
                raise checked_calls.blame("converter", converter, words + (expected or "no more"))
            artifacts.append(artifact)
        if len(artifacts) < len(formats):
            words = (
                f"convert() gave {len(artifacts)} artifacts, expected {len(formats)}, one per stage"
            )
            raise checked_calls.blame("converter", converter, words)
    except _OURS:
        raise
    except Exception as error:
        return Converted(tuple(artifacts), _refusal(error), files_read(folder))
    return Converted(tuple(artifacts), read=files_read(folder))


def _artifacts(
    converter: Converter,
    source: Artifact,
    options: BaseModel,
    folder: Path,
    inputs: Sequence[Feeds],
) -> Iterable[Artifact]:
    convert_on = given(converter, ConverterExtras.convert_on)
    if convert_on is None:
        return other_returns.check_artifacts(converter, converter.convert(source, options, folder))
    fed = [fed_to(source, feeds) for feeds in inputs]
    return other_returns.check_artifacts(converter, convert_on(source, options, folder, fed))


def _refusal(error: BaseException) -> Failure:
    """The exception with its causes; the last one is usually the reason."""
    words, seen = [], 0
    cause: BaseException | None = error
    while cause is not None and seen < _CAUSES:
        words.append(f"{type_name(cause)}: {text_of(cause).strip()}")
        cause, seen = cause.__cause__, seen + 1
    shown, joined = [words[0], *(words[-1:] if len(words) > 1 else [])], "\ncaused by "
    if "\n" in words[0]:
        # Screens and tables cut messages, and this one begins with general advice.
        shown, joined = shown[::-1], "\nreported as "
    failure = failure_of(error)
    return Failure(failure.kind, "build", cut(joined.join(shown)), failure.error_type)


def observe(
    config: RuntimeConfig,
    artifact: Artifact,
    samples: Sequence[Sample],
    checked: bool = False,
    poisoned: bool = False,
) -> Observed:
    """Check, load and run an artifact, each sample for itself."""
    if poisoned:
        poison_memory()
    complaint = ""
    if checked and artifact.format == "onnx":
        enter("check")
        try:
            check(artifact.path or artifact.data, full=True)
        except Exception as error:
            complaint = cut(text_of(error), 2000)
    enter("load")
    try:
        session = open_session(config, artifact)
    except _OURS:
        raise
    except Exception as error:
        failure = failure_of(error)
        left = _unconverted(artifact, f"{complaint}\n{failure.message}")
        return Observed(complaint, failure, unconverted=left)
    enter("run")
    runs = {s.id: _run(config, artifact, session, s) for s in samples}
    interface = None
    if artifact.format == "onnx" and artifact.data:
        interface = interface_of(onnx.load_from_string(artifact.data))
    return Observed(complaint, None, runs, interface)


def _unconverted(artifact: Artifact, message: str) -> tuple[str, ...]:
    """Operators that ONNX does not define, if the message names one of them."""
    if artifact.format != "onnx":
        return ()
    try:
        found = undefined_operators(_onnx(artifact))
    except (DecodeError, OSError, ValueError):
        return ()  # It is no model, which the message tells.
    named = set(re.findall(r"\w+", message))
    return tuple(found) if any(name.rpartition("::")[2] in named for name in found) else ()


def quantized_nodes(before: Artifact | None, after: Artifact) -> int:
    """How many operators more of ``after`` than of ``before`` compute with quantized operands."""
    enter("check")
    counts = [quantized_operators(_onnx(a)) for a in (before, after) if a is not None]
    return max(counts[-1] - (counts[0] if len(counts) > 1 else 0), 0)


def _onnx(artifact: Artifact) -> onnx.ModelProto:
    if artifact.path is None:
        return onnx.load_from_string(artifact.data)
    return load_model(artifact.path, weights=False)


def _run(
    config: RuntimeConfig, artifact: Artifact, session: Session, sample: Sample
) -> Outputs | Failure:
    try:
        return infer(config.runtime, session, fed_to(artifact, sample.feeds))
    except _OURS:
        raise
    except Exception as error:
        return failure_of(error)


def run_perturbed(
    config: RuntimeConfig,
    artifact: Artifact,
    samples: Sequence[Sample],
    seeds: Sequence[int],
    inside: bool,
    ulps: float = 1.0,
) -> dict[str, list[Outputs]]:
    """Outputs with weights and inputs moved by roundoffs, or every operator by its own.

    A runtime that cannot move weights is given moved inputs alone.
    """
    runtime = config.runtime
    moved: dict[str, list[Outputs]] = {s.id: [] for s in samples}
    for seed in seeds:
        enter("load")
        if perturbed := given(runtime, SourceExtras.load_perturbed):
            session = perturbed(artifact, config.options, seed, inside)
        elif artifact.format == "onnx" and inside:
            session = load(config, Artifact("onnx", injected_bytes(artifact.data, seed)))
        elif artifact.format == "onnx":
            session = load(config, Artifact("onnx", _moved(artifact.data, seed, ulps)))
        elif inside:
            break
        else:
            session = open_session(config, artifact)
        enter("run")
        for sample in samples:
            rng = np.random.default_rng(seed)
            feeds = sample.feeds if inside else move_inputs(sample.feeds, rng, ulps)
            # A moved input may be illegal; the other ones are still measured.
            with contextlib.suppress(ArithmeticError, ValueError, RuntimeError, IndexError):
                moved[sample.id].append(infer(runtime, session, feeds))
    return moved


def move_inputs(feeds: Feeds, rng: np.random.Generator, ulps: float = 1.0) -> dict[str, np.ndarray]:
    """Inputs moved by a roundoff, or ``ulps`` of them, but for values that no rounding made.

    Halfway between integers, a step would decide to which of them a value is rounded.
    """
    moved = perturb.jitter_feeds(feeds, rng, ulps)
    for name, value in feeds.items():
        if is_float(value.dtype):
            moved[name] = np.where(may_be_rounded(value), moved[name], value)
    return moved


def moved_weights(
    config: RuntimeConfig,
    artifact: Artifact,
    samples: Sequence[Sample],
    seeds: Sequence[int],
    ulps: float = 1.0,
) -> dict[str, list[Outputs]]:
    """Outputs of an ONNX model with weights and inputs moved by roundoffs."""
    moved: dict[str, list[Outputs]] = {s.id: [] for s in samples}
    for seed in seeds:
        enter("load")
        session = load(config, Artifact("onnx", _with_moved_weights(artifact.data, seed, ulps)))
        enter("run")
        for sample in samples:
            feeds = move_inputs(sample.feeds, np.random.default_rng(seed), ulps)
            run = _run(config, artifact, session, Sample(sample.id, feeds))
            if not isinstance(run, Failure):
                moved[sample.id].append(run)
    return moved


def _moved(data: bytes, seed: int, ulps: float) -> bytes:
    if isinstance(ulps, perturb.Share):
        return loosened_bytes(data, seed, ulps)
    return perturb.jitter_bytes(data, seed, ulps)


def _with_moved_weights(data: bytes, seed: int, ulps: float) -> bytes:
    """The model with its weights moved, those that operators have as attributes too.

    Trees and linear models of ``ai.onnx.ml`` have theirs there.
    """
    model = onnx.load_from_string(_moved(data, seed, ulps))
    rng = np.random.default_rng(seed)
    for node in nodes_of(model.graph):
        for attribute in node.attribute:
            if attribute.floats and not is_onnx(node):
                values = {attribute.name: np.array(attribute.floats, np.float32)}
                moved = perturb.jitter_feeds(values, rng, ulps)[attribute.name]
                del attribute.floats[:]
                attribute.floats.extend(moved.tolist())
    return bytes(model.SerializeToString())


def run_in_float64(
    config: RuntimeConfig, artifact: Artifact, samples: Sequence[Sample]
) -> dict[str, Outputs]:
    """Outputs in float64, of samples on which that works; empty where the runtime cannot."""
    runtime = config.runtime
    enter("load")
    truth: dict[str, Outputs] = {}
    if artifact.format == "onnx":
        session: Session = _Exact(artifact.data)
    elif load_double := given(runtime, SourceExtras.load_double):
        session = load_double(artifact, config.options)
    else:
        return {}
    enter("run")
    for sample in samples:
        # A source may make float32 values of its own, which do not mix with doubles.
        with contextlib.suppress(ArithmeticError, ValueError, RuntimeError, TypeError):
            truth[sample.id] = infer(runtime, session, sample.feeds)
    return truth


class _Exact:
    """An ONNX model in float64."""

    def __init__(self, data: bytes) -> None:
        self._model = tidy(onnx.load_from_string(data))

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name."""
        from optvet.engine.numerics import float64  # scipy takes long to import

        return dict(float64.evaluate(self._model, dict(feeds)))


@dataclass(frozen=True)
class GraphFacts:
    """What follows from the graph of a converted model alone; outputs by their place."""

    longest_reduction: int
    discontinuous: frozenset[int]


def graph_facts(artifact: Artifact) -> GraphFacts:
    """The facts that a measure of noise needs."""
    model = tidy(onnx.load_from_string(artifact.data))
    names: list[Any] = [o.name for o in model.graph.output]
    decided = rounding.discontinuous(model)
    return GraphFacts(
        longest_reduction(model), frozenset(i for i, n in enumerate(names) if n in decided)
    )
