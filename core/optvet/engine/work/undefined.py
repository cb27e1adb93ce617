"""What the ONNX standard leaves open of a model, by the values inside of it where they matter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto

from optvet.engine.judge.defined import Undefined, needs_inner_values, undefined_in
from optvet.engine.work.trial import RuntimeConfig
from optvet.engine.work.values import record_values

Values = Mapping[str, np.ndarray]


def undefined_on(
    config: RuntimeConfig, model: ModelProto, feeds: Values, outputs: Values | None = None
) -> list[Undefined]:
    """As ``undefined_in``; runs the model once more where a rule asks for a value inside of it.

    Called in workers. A runtime that cannot return inner values leaves it at what is known without.
    """
    found = undefined_in(model, feeds, outputs)
    if found or not needs_inner_values(model, feeds):
        return found
    try:
        inner = record_values(model.SerializeToString(), feeds, config)
    except Exception as error:  # runtimes raise what they like of a model with more outputs
        if isinstance(error, MemoryError):
            raise
        return []
    return undefined_in(model, feeds, inner)


def undefined_kinds(data: bytes, feeds: Values, config: RuntimeConfig) -> frozenset[str]:
    """In which ways a serialized model is undefined. Called in a worker."""
    model = ModelProto.FromString(data)
    return frozenset(u.kind for u in undefined_on(config, model, feeds))
