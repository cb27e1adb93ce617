"""Comparing two model files: inputs are made for the first, and fed to both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

from onnx import ModelProto

from optvet.engine.compare_as_shipped import ShippedSide, check_shipped, compare_as_shipped
from optvet.engine.compare_source import SourceOptions, compare_source, is_source
from optvet.engine.discovery import Plugins
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.models.sources import resolve_model
from optvet.engine.options import parse_options
from optvet.engine.recording.judging import judge_recording
from optvet.engine.recording.reading import SUFFIX, read_recording
from optvet.engine.vet.explain.answer_contrast import ComparedSides, contrast, run_sides
from optvet.engine.vet.impact.assess import assessment_of
from optvet.engine.vet.observe.divergence import compare_models, compare_with_file
from optvet.engine.work.cache.disk import cache_root
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
    runtime_options: Mapping[str, Any] = MappingProxyType({}),
    clean: bool = False,
    tolerance: float = 0.0,
    progress: Progress = lambda text, done, total: None,
) -> ModelComparison:
    """Compare two models on the first sample of a dataset that the first model accepts.

    The first is ONNX, or a source of a framework with inputs of its own; the second may be a file
    in the format of a runtime, by its suffix, or a recording of a kit, which brings its inputs.
    With a ``limit`` above 1, so many samples tell which layers differ where ``comparator``, by
    default the one that fits best, finds other answers (``AnswerContrast``).
    ``trust`` says whether the first model's record may name code, and data outside of its folder.
    What agrees in the clean room is compared as shipped too: the second model, in ONNX, in a
    session with its runtime's defaults and ``runtime_options``. With ``clean`` it is not, and both
    models are run with these options. ``tolerance`` is the error of the arithmetic of the device of
    a recording, relative to a value's largest magnitude.

    Raises:
        UsageError: A model, dataset or runtime cannot be used.
        NothingTested: The dataset gave no sample.
    """
    if is_source(a, plugins):
        if runtime_options and clean:
            raise UsageError(
                f"--clean: {a} is no ONNX model, and has no such options; leave out --clean or "
                "--runtime-option"
            )
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
            runtime_options=runtime_options,
            clean=clean,
        )
    request = VetRequest(
        model=a,
        dataset=(dataset or plugins.default("dataset"),),
        runtime=runtime,
        comparator=comparator,
        limit=limit,
        seed=seed,
        timeout=timeout_s,
        memory=memory_bytes,
        cache_dir=cache_dir,
        trust=trust,
    )
    if Path(b).suffix.lower() == SUFFIX:
        return _with_recording(Path(b), request, plugins, tolerance, progress)
    if tolerance:
        raise UsageError(f"--tolerance: {b} is no recording; leave it out")
    return _compare_onnx(b, request, plugins, runtime_options, clean, progress)


def _with_recording(
    file: Path, request: VetRequest, plugins: Plugins, tolerance: float, progress: Progress
) -> ModelComparison:
    """Compare what a device gave with what the model of ``request`` gives in the clean room."""
    recording = read_recording(file)
    model = one_model(request.model, plugins, request.cache_dir or cache_root())
    runtime = plugins.runtime(request.runtime) if request.runtime else plugins.reference_runtime()
    limits = Limits(request.timeout, request.memory)
    with Sandbox(jobs=1, limits=limits, preload=preload_for(None, runtime)) as sandbox:
        progress("comparing", 0, None)
        config = RuntimeConfig(runtime, runtime.options)
        return judge_recording(model, recording, config, sandbox, tolerance)[0]


def _compare_onnx(
    b: str,
    request: VetRequest,
    plugins: Plugins,
    options: Mapping[str, Any],
    clean: bool,
    progress: Progress,
) -> ModelComparison:
    """Compare the model of ``request``, in ONNX, with ``b``."""
    a, cache_dir = request.model, request.cache_dir or cache_root()
    chosen = plugins.runtime(request.runtime) if request.runtime else plugins.reference_runtime()
    other = _reader(b, plugins)
    reader = _reader(a, plugins)
    if reader is not None:
        raise UsageError(
            f"{a}: the first model must be ONNX; give this one of {reader.name} second"
        )
    first = one_model(a, plugins, cache_dir)
    second = one_model(b, plugins, cache_dir) if other is None else None
    if other is not None and options:
        raise UsageError(f"--runtime-option: {b} is read by {other.name}; leave it out")
    in_both = options if clean else {}
    config = RuntimeConfig(chosen, parse_options(chosen.name, chosen.options, in_both))
    by = (config, RuntimeConfig(other, other.options) if other is not None else config)
    side = None
    if second is not None and not clean:
        side = ShippedSide(second, options)
        check_shipped(request, plugins, first, side)
    found = _compared_by_value(first, second or Path(b).resolve(), request, plugins, by, progress)
    if side is None or found.diverges_at is not None:
        return found
    shipped = compare_as_shipped(first, side, request, plugins, progress=progress)
    return found.model_copy(update={"as_shipped": shipped})


def _compared_by_value(
    first: Model,
    second: Model | Path,
    request: VetRequest,
    plugins: Plugins,
    by: tuple[RuntimeConfig, RuntimeConfig],
    progress: Progress,
) -> ModelComparison:
    """Both models in the clean room; ``by`` runs each."""
    config, config_b = by
    preload = preload_for(None, *dict.fromkeys(each.runtime for each in by))
    limits = Limits(request.timeout, request.memory)
    with Sandbox(jobs=1, limits=limits, preload=preload) as sandbox:
        progress("making inputs", 0, None)
        samples = drawn_samples(first, request, plugins, config, sandbox)
        progress("comparing", 0, None)
        feeds, graph = samples[0].feeds, first.load()
        b_side = second if isinstance(second, Path) else second.load()
        found = _compared(graph, b_side, feeds, config, config_b, sandbox)
        if request.limit == 1:
            return found
        whole = b_side if isinstance(b_side, Path) else b_side.SerializeToString()
        sides = ComparedSides(graph.SerializeToString(), whole, config, config_b)
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


def one_model(reference: str, plugins: Plugins, cache_dir: Path) -> Model:
    """The one model that ``reference`` names.

    Raises:
        UsageError: It names several.
    """
    models = resolve_model(reference, plugins, cache_dir)
    if len(models) != 1:
        raise UsageError(f"{reference}: {len(models)} models; compare one with one")
    return models[0]


def drawn_samples(
    model: Model,
    request: VetRequest,
    plugins: Plugins,
    config: RuntimeConfig,
    sandbox: Sandbox,
) -> list[Sample]:
    """The inputs that ``request`` asks for, which ``config`` takes."""

    def ask_runtime(feeds: Sequence[Feeds]) -> list[str | None]:
        samples = tuple(Sample(f"probe-{i}", f) for i, f in enumerate(feeds))
        order = TrialSpec(BuildSpec(model.blob, model.digest), config, samples)
        outcome = sandbox.call(probe, order, role="judging")
        if outcome.value is not None:
            return outcome.value
        words = outcome.failure.message if outcome.failure else "no answer"
        return [words] * len(samples)

    inputs = Inputs(
        model,
        plugins,
        request.dataset,
        {},
        cut=Slice(limit=request.limit),
        seed=request.seed,
        probe=ask_runtime,
        memory_bytes=sandbox.limits.memory_bytes,
        trust=request.trust,
    )
    return list(inputs)
