"""Comparing two model files: inputs are made for the first, and fed to both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from onnx import ModelProto

from optvet.engine.compare_source import SourceOptions, compare_source, is_source
from optvet.engine.discovery import Plugins
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.models.sources import resolve_model
from optvet.engine.vet.explain.answer_contrast import ComparedSides, contrast, run_sides
from optvet.engine.vet.impact.assess import assessment_of
from optvet.engine.vet.observe.divergence import compare_models, compare_with_file
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.building import BuildSpec
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inputs import Inputs, Slice
from optvet.engine.work.trials.server_modules import preload_for
from optvet.engine.work.trials.trial import TrialSpec, probe
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.errors import UsageError
from optvet.spec.protocols import Feeds
from optvet.spec.records import ModelComparison
from optvet.spec.request import VetRequest
from optvet.spec.runtime_protocols import ReadsFiles, Runtime
from optvet.spec.types import Model, Sample


def compare_files(
    a: str,
    b: str,
    plugins: Plugins,
    *,
    dataset: str | None = None,
    runtime: str | None = None,
    comparator: str | None = None,
    limit: int = 1,
    seed: int = 0,
    cache_dir: Path,
    timeout_s: float = 120.0,
    memory_bytes: int = 8 << 30,
    trust: bool = False,
    progress: Progress = lambda text, done, total: None,
) -> ModelComparison:
    """Compare two models on the first sample of a dataset that the first model accepts.

    The first is ONNX, or a source of a framework with inputs of its own; the second may be a file
    in the format of a runtime, by its suffix.
    With a ``limit`` above 1, so many samples tell which layers differ where ``comparator``, by
    default the one that fits best, finds other answers (``AnswerContrast``).
    ``trust`` says whether the first model's record may name code, and data outside of its folder.

    Raises:
        UsageError: A model, dataset or runtime cannot be used.
        NothingTested: The dataset gave no sample.
    """
    if is_source(a, plugins):
        return _with_source(
            a,
            b,
            plugins,
            dataset=dataset,
            runtime=runtime,
            comparator=comparator,
            limit=limit,
            seed=seed,
            cache_dir=cache_dir,
            timeout_s=timeout_s,
            memory_bytes=memory_bytes,
            trust=trust,
            progress=progress,
        )
    chosen = plugins.runtime(runtime) if runtime else plugins.reference_runtime()
    other = _reader(b, plugins)
    reader = _reader(a, plugins)
    if reader is not None:
        raise UsageError(
            f"{a}: the first model must be ONNX; give this one of {reader.name} second"
        )
    first = _one(a, plugins, cache_dir)
    second = _one(b, plugins, cache_dir) if other is None else None
    config = RuntimeConfig(chosen, chosen.options)
    preload = preload_for(None, chosen, *([other] if other else ()))
    limits = Limits(timeout_s, memory_bytes)
    with Sandbox(jobs=1, limits=limits, preload=preload) as sandbox:
        progress("making inputs", 0, None)
        samples = _samples(first, dataset, plugins, limit, seed, config, sandbox, trust)
        progress("comparing", 0, None)
        feeds, graph = samples[0].feeds, first.load()
        b_side = Path(b).resolve() if second is None else second.load()
        config_b = RuntimeConfig(other, other.options) if other is not None else config
        found = _compared(graph, b_side, feeds, config, config_b, sandbox)
        if limit == 1:
            return found
        whole = b_side if isinstance(b_side, Path) else b_side.SerializeToString()
        sides = ComparedSides(graph.SerializeToString(), whole, config, config_b)
        request = VetRequest(model=a, comparator=comparator, seed=seed, trust=trust)
        run = partial(run_sides, sides, found.layers, sandbox)
        assess = partial(assessment_of, request, plugins, first)
        return found.model_copy(update={"contrast": contrast(run, found.layers, samples, assess)})


def _compared(
    a: ModelProto,
    b: ModelProto | Path,
    feeds: Feeds,
    by_a: RuntimeConfig,
    by_b: RuntimeConfig,
    sandbox: Sandbox,
) -> ModelComparison:
    if isinstance(b, Path):
        return compare_with_file(a, b, feeds, by_a, by_b, sandbox, OTHER_KERNELS)
    return compare_models(a, b, feeds, by_a, sandbox)


def _with_source(
    a: str, b: str, plugins: Plugins, *, dataset: str | None, **options: Unpack[SourceOptions]
) -> ModelComparison:
    """Compare a source with what was made of it.

    Raises:
        UsageError: Besides what ``compare_source`` raises: a dataset is given, or B is no file.
    """
    if dataset is not None:
        raise UsageError(
            f"{a} says itself what its inputs are, in example_inputs and more_inputs; leave out "
            "--dataset"
        )
    if not Path(b).is_file():
        raise UsageError(f"{b}: there is no such file; beside a source, B is an ONNX file")
    return compare_source(a, Path(b), plugins, **options)


def _reader(reference: str, plugins: Plugins) -> Runtime | None:
    """The runtime whose own format a file is of; None if that is ONNX.

    Raises:
        UsageError: There is no such file, or the library that reads it is not installed.
    """
    suffix = Path(reference).suffix.lower()
    for name in plugins.names("runtime"):
        runtime = plugins.runtime(name)
        if suffix and isinstance(runtime, ReadsFiles) and suffix in runtime.suffixes:
            if not Path(reference).is_file():
                raise UsageError(f"no such file: {reference}")
            try:
                runtime.version()
            except ImportError as error:
                raise UsageError(f"{reference} is read by {name}: {error}") from error
            return runtime
    return None


def _one(reference: str, plugins: Plugins, cache_dir: Path) -> Model:
    models = resolve_model(reference, plugins, cache_dir)
    if len(models) != 1:
        raise UsageError(f"{reference}: {len(models)} models; compare one with one")
    return models[0]


def _samples(
    model: Model,
    dataset: str | None,
    plugins: Plugins,
    limit: int,
    seed: int,
    config: RuntimeConfig,
    sandbox: Sandbox,
    trust: bool,
) -> list[Sample]:
    def ask_runtime(feeds: Sequence[Feeds]) -> list[str | None]:
        samples = tuple(Sample(f"probe-{i}", f) for i, f in enumerate(feeds))
        order = TrialSpec(BuildSpec(model.blob, model.digest), config, samples)
        outcome = sandbox.call(probe, order, role="judging")
        if outcome.value is not None:
            return outcome.value
        words = outcome.failure.message if outcome.failure else "no answer"
        return [words] * len(samples)

    specs = (dataset or plugins.default("dataset"),)
    inputs = Inputs(
        model,
        plugins,
        specs,
        {},
        cut=Slice(limit=limit),
        seed=seed,
        probe=ask_runtime,
        memory_bytes=sandbox.limits.memory_bytes,
        trust=trust,
    )
    return list(inputs)
