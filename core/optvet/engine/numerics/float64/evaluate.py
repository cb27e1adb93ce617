"""Running ONNX's reference evaluator, with corrections of its known defects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, TypeProto
from onnx.reference import ReferenceEvaluator

from optvet.engine.numerics.float64.float_arrays import Array, is_float
from optvet.engine.numerics.float64.operators import replacements
from optvet.engine.numerics.float64.promote import (
    NotPromotable,
    Promotion,
    inline_functions,
    promote,
)
from optvet.graph.walk import nodes_of


def evaluate(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of ``model`` for ``feeds``, computed in double precision.

    Random operators are evaluated too; callers must ignore the outputs that depend on them.

    Args:
        model: Any model; it is promoted first.
        feeds: Inputs by name; floating arrays of any width, converted without loss.

    Returns:
        All graph outputs by name: floats as float64, everything else in its own type.

    Raises:
        NotPromotable: The model cannot be evaluated, or the evaluator fails on these inputs.
    """
    return evaluator(model)(feeds)


Evaluation = Callable[[Mapping[str, Array]], dict[str, Array]]


def evaluator(model: ModelProto, *, double: bool = True) -> Evaluation:
    """Prepare ``model`` for many runs of ONNX's reference evaluator, with its defects corrected.

    Args:
        model: Any model with all its weights in memory.
        double: Compute in float64 and return floats as float64; if false, types are unchanged.

    Returns:
        A function from inputs to outputs, both by name; it raises NotPromotable where the
        evaluator fails.

    Raises:
        NotPromotable: The model cannot be evaluated correctly.
    """
    ready = promote(model) if double else _copy_to_evaluate(model)
    opsets = {entry.domain: entry.version for entry in ready.opset_import}
    outputs = ready.graph.output
    widened = _to_float64 if double else _keep

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        try:
            # Overflow and NaN are results to be compared, not errors.
            with np.errstate(all="ignore"):
                session = ReferenceEvaluator(ready, new_ops=list(replacements(opsets, double)))
                values = session.run(None, {name: widened(x) for name, x in feeds.items()})
        except MemoryError:
            raise
        except Exception as error:
            reason = f"the reference evaluator fails: {type(error).__name__}: {str(error)[:300]}"
            raise NotPromotable(reason) from error
        named = zip(outputs, values, strict=True)
        return {o.name: widened(taken_out(value, o.type)) for o, value in named}

    return run


def taken_out(value: Any, kind: TypeProto) -> Any:
    """An output of the evaluator: what an optional value holds, for which it gives a list of it."""
    wrapped = kind.HasField("optional_type") and isinstance(value, list) and len(value) == 1
    if wrapped and kind.optional_type.elem_type.HasField("sequence_type"):
        wrapped = value[0] is None or isinstance(value[0], list)
    return value[0] if wrapped else value


def _copy_to_evaluate(model: ModelProto) -> ModelProto:
    """A copy of ``model`` for evaluation in its own types; NotPromotable if that is not correct."""
    model = inline_functions(model)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    check = Promotion(opsets, True, {}, double=False)
    for node in nodes_of(model.graph):
        if reason := check.refusal(node):
            raise NotPromotable(f"operator {node.op_type} {node.name!r}: {reason}")
    return model


def _keep(value: Any) -> Any:
    return value


def _to_float64(value: Any) -> Any:
    """``value`` with its floats as float64; sequences element by element."""
    if isinstance(value, list):
        return [_to_float64(each) for each in value]
    if isinstance(value, np.ndarray | np.generic) and is_float(value.dtype):
        return np.asarray(value, np.float64)
    return value
