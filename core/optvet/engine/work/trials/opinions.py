"""Outputs by ONNX's reference evaluator, in the model's own types and in float64.

Called in workers, whose preload should have ``onnx.reference``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import ModelProto
from onnx.version_converter import convert_version

from optvet.engine.work.trials.inference import Outputs, flatten
from optvet.graph.cost import macs
from optvet.graph.structure import draws_random

_NEWER = 21
"""The operator set that models are converted to whose own operators the evaluator lacks."""
_MAX_MACS = 1e9
"""Multiplications from which on the evaluator would take longer than a user waits."""


def is_quick_to_evaluate(data: bytes, feeds: Mapping[str, np.ndarray]) -> bool:
    """Whether the evaluator gives the outputs of a model within seconds, the same each time.

    Called in a worker.
    """
    model = ModelProto.FromString(data)
    count = macs(model, {name: value.shape for name, value in feeds.items()})
    return count is not None and count <= _MAX_MACS and not draws_random(model)


def evaluate_in_own_types(
    model: ModelProto, feeds: Mapping[str, np.ndarray], names: Sequence[str]
) -> Outputs:
    """Outputs by the evaluator, which has the oldest forms of few operators.

    Raises:
        Exception: Whatever it raises of the model as it is.
    """
    # Imported here, as is what follows: it doubles the import time of a vet.
    from onnx.reference import ReferenceEvaluator

    from optvet.engine.numerics.float64 import taken_out

    with np.errstate(all="ignore"):
        try:
            results = ReferenceEvaluator(model).run(list(names), dict(feeds))
        except RuntimeError:
            results = ReferenceEvaluator(convert_version(model, _NEWER)).run(
                list(names), dict(feeds)
            )
    kinds = {v.name: v.type for v in model.graph.output}
    named = zip(names, results, strict=True)
    return flatten({name: taken_out(value, kinds[name]) for name, value in named})


def evaluate_exactly(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> Outputs:
    """Outputs in float64.

    Raises:
        NotPromotable: The model cannot be evaluated so.
    """
    from optvet.engine.numerics import float64

    return flatten(float64.evaluate(model, dict(feeds)))


def collect_opinions(
    data: bytes, feeds: Mapping[str, np.ndarray], most_macs: float | None = None
) -> list[Outputs] | None:
    """The evaluator's outputs of a serialized model, once or twice; none of a random one.

    None if the model takes more than ``most_macs`` multiplications, or nobody knows how many.
    """
    model = ModelProto.FromString(data)
    if most_macs is not None:
        count = macs(model, {name: value.shape for name, value in feeds.items()})
        if count is None or count > most_macs:
            return None
    if draws_random(model):
        return []
    names = [v.name for v in model.graph.output]
    ways: tuple[Callable[[], Outputs], ...] = (
        lambda: evaluate_in_own_types(model, feeds, names),
        lambda: evaluate_exactly(model, feeds),
    )
    opinions = []
    for way in ways:
        try:
            opinions.append(way())
        except MemoryError:
            raise
        except Exception:  # it raises what it likes of operators that it lacks: no opinion
            continue
    return opinions
