"""Two model files against each other: inputs are made for the first, and fed to both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optvet.engine.discovery import Plugins
from optvet.engine.divergence import Comparison, compare_models
from optvet.engine.lab import Progress
from optvet.engine.sandbox import Limits, Sandbox
from optvet.engine.trial import Judge, Order, Subject, probe
from optvet.engine.vet import resolve_model
from optvet.spec.errors import NothingTested, UsageError
from optvet.spec.protocols import Feeds
from optvet.spec.types import Model, Sample


def compare_files(
    a: str,
    b: str,
    plugins: Plugins,
    *,
    dataset: str = "random",
    runtime: str = "onnxruntime",
    seed: int = 0,
    cache_dir: Path,
    timeout_s: float = 120.0,
    memory_bytes: int = 8 << 30,
    progress: Progress = lambda text, done, total: None,
) -> Comparison:
    """Compare two ONNX models on the first sample of a dataset that the first one runs on.

    Raises:
        UsageError: A model, dataset or runtime cannot be used.
        NothingTested: The dataset gave no sample.
    """
    first, second = (_one(reference, plugins, cache_dir) for reference in (a, b))
    chosen = plugins.runtime(runtime)
    judge = Judge(chosen, chosen.options)
    preload = ("numpy", "onnx", *chosen.preload)
    limits = Limits(timeout_s, memory_bytes)
    with Sandbox(jobs=1, limits=limits, preload=preload) as sandbox:
        progress("making inputs", 0, None)
        sample = _sample(first, dataset, plugins, seed, judge, sandbox)
        progress("comparing", 0, None)
        return compare_models(first.load(), second.load(), sample.feeds, judge, sandbox)


def _one(reference: str, plugins: Plugins, cache_dir: Path) -> Model:
    models = resolve_model(reference, plugins, cache_dir)
    if len(models) != 1:
        raise UsageError(f"{reference}: {len(models)} models; compare one with one")
    return models[0]


def _sample(
    model: Model, dataset: str, plugins: Plugins, seed: int, judge: Judge, sandbox: Sandbox
) -> Sample:
    def asked(feeds: Sequence[Feeds]) -> list[str | None]:
        samples = tuple(Sample(f"probe-{i}", f) for i, f in enumerate(feeds))
        outcome = sandbox.call(probe, Order(Subject(model.blob, model.digest), judge, samples))
        if outcome.value is not None:
            return outcome.value
        words = outcome.failure.message if outcome.failure else "no answer"
        return [words] * len(samples)

    name, _, argument = dataset.partition(":")
    source = plugins.dataset(name)
    samples = source.samples(
        model, argument or None, source.options, seed=seed, limit=1, probe=asked
    )
    for sample in samples:
        return sample
    raise NothingTested(f"dataset {dataset!r} gave no sample; nothing was compared")
