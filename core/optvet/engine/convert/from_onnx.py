"""ONNX models as sources: datasets provide their inputs, as for ``vet``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optvet.engine.convert import worker_steps
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inputs import Inputs, Slice
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import SourceFacts
from optvet.spec.errors import UsageError
from optvet.spec.foreign import read_file
from optvet.spec.protocols import Feeds
from optvet.spec.types import Artifact, Failure, Model, Sample

_SAMPLES = 4
"""Samples of a dataset that are used beside the first, the example."""


def facts_of_onnx(
    request: ConvertRequest, plugins: Plugins, config: RuntimeConfig, sandbox: Sandbox
) -> SourceFacts:
    """Samples of the datasets as example and further inputs; sizes with a name may change.

    Raises:
        UsageError: The model or a dataset cannot be used.
        NothingTested: There is no sample.
    """
    models = resolve_model(request.model, plugins, cache_root())
    if len(models) != 1:
        raise UsageError(f"{request.model}: {len(models)} models; convert one at a time")
    model = models[0]
    artifact = Artifact("onnx", read_file(model.blob))

    def probe(feeds: Sequence[Feeds]) -> list[str | None]:
        samples = [Sample(f"probe-{i}", f) for i, f in enumerate(feeds)]
        outcome = sandbox.call(worker_steps.observe, config, artifact, samples, role="judging")
        failure = outcome.failure or (outcome.value.load if outcome.value else None)
        if failure is not None or outcome.value is None:
            return [describe(failure) if failure else "no answer"] * len(samples)
        runs = (outcome.value.runs[s.id] for s in samples)
        return [describe(r) if isinstance(r, Failure) else None for r in runs]

    inputs = Inputs(
        model,
        plugins,
        request.dataset or (plugins.default("dataset"),),
        {},
        cut=Slice(limit=1 + _SAMPLES),
        seed=request.seed,
        probe=probe,
        memory_bytes=request.memory,
        trust=False,
    )
    first, *others = [{n: np.asarray(v) for n, v in s.feeds.items()} for s in inputs]
    return SourceFacts(first, tuple(others), _dynamic(model))


def _dynamic(model: Model) -> dict[str, dict[int, str]]:
    return {
        value.name: {i: n for i, n in enumerate(value.shape or ()) if isinstance(n, str)}
        for value in model.inputs
    }
