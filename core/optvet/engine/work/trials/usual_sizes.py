"""Models whose weights are so small that products of two are no normal numbers, in usual sizes.

A pass may multiply weights before an input is multiplied by them: equal but for rounding, unless
the product underflows, which loses all of it. What it does to the model in usual sizes tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from optvet.engine.judge.sample import magnitude
from optvet.engine.work.trials.undefined_values import region_of
from optvet.graph.functions import without_functions

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Resized:
    """A model and its feeds in usual sizes; ``words`` say which weights were too small."""

    data: bytes
    feeds: dict[str, np.ndarray]
    words: str


def in_usual_sizes(
    data: bytes, feeds: Values, begins: Collection[str], ends: Collection[str]
) -> Resized | None:
    """The model with very small and very large tensors scaled; None if no product underflows.

    Weights count that are read on the way from values ``begins`` to values ``ends``. Called in a
    worker.
    """
    model = without_functions(ModelProto.FromString(data))
    region = region_of(model, begins, ends)
    weights = {name: (t, numpy_helper.to_array(t)) for name, t in _tensors(model)}
    read = [(magnitude(v), name) for name, (_, v) in weights.items() if name in region]
    small = sorted((top, name) for top, name in read if top)[:2]
    if len(small) < 2 or small[0][0] * small[1][0] >= _smallest(weights[small[1][1]][1]):
        return None
    for tensor, value in weights.values():
        tensor.CopyFrom(numpy_helper.from_array(_resized(value), tensor.name))
    names = " and ".join(repr(name) for _, name in small)
    words = f"the product of the weights {names} is below the smallest normal number"
    resized = {name: _resized(value) for name, value in feeds.items()}
    return Resized(model.SerializeToString(), resized, words)


def _tensors(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    yield from ((tensor.name, tensor) for tensor in model.graph.initializer)
    for node in model.graph.node:
        if node.op_type == "Constant":
            yield from ((node.output[0], a.t) for a in node.attribute if a.name == "value")


def _smallest(value: np.ndarray) -> float:
    return float(np.finfo(value.dtype).tiny) if value.dtype.kind == "f" else 0.0


def _resized(value: np.ndarray) -> np.ndarray:
    """``value`` divided by a power of 2 if a square of its size is no normal number."""
    top = magnitude(value)
    least = _smallest(value)
    if not top or not least or least <= top * top <= 1 / least:
        return value
    return np.asarray(np.ldexp(value, -int(np.frexp(top)[1])), value.dtype)
