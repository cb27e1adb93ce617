"""A source as a ``Model`` with samples of datasets, so that it can be asked what ``vet`` asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from optvet.engine.convert import worker_steps
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.numerics.texts import is_text
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inputs import Inputs, Slice
from optvet.graph.types import dtype_name
from optvet.spec.convert import ConvertRequest, parts_of
from optvet.spec.converters import SourceFacts
from optvet.spec.errors import UsageError
from optvet.spec.protocols import Feeds
from optvet.spec.types import Artifact, Failure, Model, Sample, ValueInfo

FIRST_SAMPLES = 5
"""Samples of a dataset that are judged like the source's own inputs, the first as its example."""


def model_in_onnx(request: ConvertRequest, plugins: Plugins) -> Model:
    """The model of a source in ONNX.

    Raises:
        UsageError: The reference means several.
    """
    models = resolve_model(request.model, plugins, request.cache_dir or cache_root())
    if len(models) != 1:
        raise UsageError(f"{request.model}: {len(models)} models; convert one at a time")
    return models[0]


def model_like(
    reference: str, digest: str, facts: SourceFacts, outputs: Mapping[str, np.ndarray]
) -> Model:
    """What is known of a source that is no ONNX: its file, and its inputs and outputs.

    Args:
        reference: The source as the user named it.
        digest: The digest of its file.
        facts: Its inputs, and which sizes may change.
        outputs: Its outputs on the example; sizes are left open.
    """
    file = Path(parts_of(reference)[0])
    return Model(
        source=reference,
        path=file,
        blob=file,
        digest=digest,
        inputs=tuple(_info(n, v, facts.dynamic.get(n, {})) for n, v in facts.inputs.items()),
        outputs=tuple(_info(n, v, None) for n, v in outputs.items()),
        ir_version=0,
        opsets={},
        size_bytes=0,
        nodes=0,
    )


def _info(name: str, value: np.ndarray, dynamic: Mapping[int, str] | None) -> ValueInfo:
    if is_text(value.dtype):
        dtype = "string"
    else:
        dtype = dtype_name(int(onnx.helper.np_dtype_to_tensor_dtype(value.dtype)))
    open_sizes = dict.fromkeys(range(value.ndim)) if dynamic is None else dynamic
    shape = tuple(open_sizes.get(axis, size) for axis, size in enumerate(value.shape))
    return ValueInfo(name, dtype, shape)


def samples_of(
    request: ConvertRequest,
    plugins: Plugins,
    model: Model,
    source: Artifact,
    config: RuntimeConfig,
    sandbox: Sandbox,
) -> Inputs:
    """The samples of the datasets, which are tried on ``source``: few if no dataset is named.

    Raises:
        UsageError: A dataset cannot be used.
    """

    def probe(feeds: Sequence[Feeds]) -> list[str | None]:
        samples = [Sample(f"probe-{i}", f) for i, f in enumerate(feeds)]
        outcome = sandbox.call(worker_steps.observe, config, source, samples, role="judging")
        failure = outcome.failure or (outcome.value.load if outcome.value else None)
        if failure is not None or outcome.value is None:
            return [describe(failure) if failure else "no answer"] * len(samples)
        runs = (outcome.value.runs[s.id] for s in samples)
        return [describe(r) if isinstance(r, Failure) else None for r in runs]

    limit = request.limit
    if limit is None and not (request.dataset or model.config.dataset):
        limit = FIRST_SAMPLES
    return Inputs(
        model,
        plugins,
        request.dataset,
        request.dataset_options,
        cut=Slice(request.start, limit, request.shuffle, request.on_bad),
        seed=request.seed,
        probe=probe,
        memory_bytes=request.memory,
        trust=request.trust,
    )


def names_of_sizes(model: Model) -> dict[str, dict[int, str]]:
    """Sizes with a name, which may change, by input and axis."""
    return {
        value.name: {i: n for i, n in enumerate(value.shape or ()) if isinstance(n, str)}
        for value in model.inputs
    }
