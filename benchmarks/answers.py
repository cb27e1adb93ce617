"""Does the ONNX standard have an answer for a model on its inputs? For ``found.py``.

Written apart from optvet's own check, to test it: by Python's integers, which do not overflow, and
by a run of onnx's reference evaluator that returns every value of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

WHOLE = ("Add", "Sub", "Mul", "Neg", "Abs", "Pow", "ReduceSum", "ReduceProd", "CumSum", "Sum")
ORDERS = ("ArgMax", "ArgMin", "Hardmax", "ReduceMax", "ReduceMin", "TopK")
SHIFTS_ALL = 28
"""The operator set from which on the standard says what any shift gives."""


def open_points(model: onnx.ModelProto, feeds: dict[str, Any], *, made: bool = False) -> str:
    """The first thing that has no answer, in words; empty if there is none.

    Of a model that the program under test made itself, a wrong shape of an output excuses nothing.
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    values: dict[str, Any] = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    values |= {**feeds, **inner(model, feeds)}
    for name, value in values.items():
        if name not in feeds and any(t.name == name for t in model.graph.initializer):
            if value.dtype.kind == "f" and np.isnan(value).any():
                return f"weight {name} is NaN"
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    for node in model.graph.node:
        if node.op_type == "BitShift" and opset >= SHIFTS_ALL:
            continue
        given = [values.get(n) for n in node.input]
        for words in broken(node, given, values.get(node.output[0]) if node.output else None):
            return f"{node.op_type} {node.output[0] if node.output else ''}: {words}"
    return "" if made else _wrong_shape(model, values)


def _wrong_shape(model: onnx.ModelProto, values: dict[str, Any]) -> str:
    """The first output that has another shape than it declares, in words; empty for none."""
    for output in model.graph.output:
        kind, value = output.type.tensor_type, values.get(output.name)
        if output.type.HasField("tensor_type") and kind.HasField("shape") and value is not None:
            sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
            if len(sizes) != value.ndim:
                return f"output {output.name} has another rank than it declares"
            if any(s not in (None, n) for s, n in zip(sizes, value.shape, strict=True)):
                return f"output {output.name} has another shape than it declares"
    return ""


def inner(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Every array of a run; none of a model that the evaluator cannot run."""
    try:
        with np.errstate(all="ignore"):
            made = ReferenceEvaluator(model).run(None, dict(feeds), intermediate=True)
    except Exception:  # it raises what it likes of operators that it lacks
        return {}
    return {
        k: v
        for k, v in {**made, **_outputs(model, feeds)}.items()  # type: ignore[dict-item]  # a dict, as asked if isinstance(v, np.ndarray)
    }


def _outputs(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Outputs by ONNX Runtime, which joins the results of a Loop as the standard says."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))
    except Exception:  # it raises what it likes of models that it does not take
        return {}


def broken(node: onnx.NodeProto, given: list[Any], result: Any) -> Iterator[str]:
    """What has no answer at one node."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    first = given[0] if given else None
    second = given[1] if len(given) > 1 else None
    operator = node.op_type
    if operator == "Einsum":
        terms = str(attributes["equation"], "utf-8").replace(" ", "").partition("->")[0].split(",")
        pairs = zip(terms, given, strict=False)
        known = [(t, v.shape) for t, v in pairs if v is not None and "." not in t]
        named = [pair for term, shape in known for pair in zip(term, shape, strict=False)]
        if len({*named}) > len({letter for letter, _ in named}):
            yield "a letter stands for two sizes"
    if operator == "Range" and any(value is not None and value.ndim for value in given):
        yield "an operand is no scalar"
    if "Quantize" in operator or operator.startswith("QLinear"):
        for name, value in zip(node.input, given, strict=True):
            scale = value is not None and value.dtype.kind == "f" and name != node.input[0]
            if scale and not (np.isfinite(value) & (value > 0)).all():
                yield f"scale {name} is not positive"
        if operator != "DequantizeLinear" and first is not None and first.dtype.kind == "f":
            if np.isnan(first).any():
                yield "quantizes NaN"
    epsilon = attributes.get("epsilon")
    if epsilon is not None and not epsilon > 0:
        yield f"epsilon is {epsilon}"
    if operator == "BatchNormalization" and len(given) > 4 and given[4] is not None:
        if (given[4] + (1e-5 if epsilon is None else epsilon) < 0).any():
            yield "a variance is negative"
    if operator == "Cast" and first is not None and first.dtype.kind == "f" and result is not None:
        if result.dtype.kind in "iu":
            limits = np.iinfo(result.dtype)
            for number in first.ravel().astype(float).tolist():
                if not math.isfinite(number) or not limits.min <= int(number) <= limits.max:
                    yield f"casts {number} to {result.dtype}"
                    break
    if second is not None and second.dtype.kind in "iu" and operator in ("Div", "Mod"):
        if (second == 0).any():
            yield "divides integers by 0"
    if operator in ORDERS and first is not None and first.dtype.kind == "f":
        if np.isnan(first).any():
            yield "NaN has no place in an order"
    if operator in ("Split", "SplitToSequence") and first is not None:
        sizes = np.asarray(attributes.get("split", 0) if second is None else second)
        axis = attributes.get("axis", 0)
        if sizes.ndim == 1 and axis < first.ndim and sizes.sum() != first.shape[axis]:
            yield f"parts of {sizes.tolist()} elements of an axis of {first.shape[axis]}"
    if operator in ("Conv", "ConvTranspose") and len(given) > 2 and given[2] is not None:
        if given[2].ndim != 1:
            yield f"a bias of the shape {list(given[2].shape)}"
    if operator == "BitShift" and second is not None and (second >= 8 * second.itemsize).any():
        yield "shifts by more bits than there are"
    if operator in WHOLE and first is not None and first.dtype.kind in "iu":
        whole = [g for g in given if g is not None]
        if operator in ("Add", "Sub", "Mul", "Sum", "Pow") and len(whole) > 1:
            yield from overflow(operator, whole)
        elif operator in ("ReduceSum", "ReduceProd", "CumSum"):
            over = second if second is not None else attributes.get("axes")
            axes = None if over is None else tuple(np.ravel(over).tolist())
            whole = first.astype(object)
            if operator == "CumSum":
                turned = np.flip(whole, axes) if attributes.get("reverse") else whole
                exact = np.add.accumulate(turned, axes[0] if axes else 0)
            else:
                exact = (np.prod if operator == "ReduceProd" else np.sum)(whole, axis=axes or None)
            limits = np.iinfo(first.dtype)
            if any(not limits.min <= n <= limits.max for n in np.ravel(exact).tolist()):
                yield f"{operator} of integers overflows"


def overflow(operator: str, given: list[Any]) -> Iterator[str]:
    """Integers whose result their type does not hold."""
    limits = np.iinfo(given[0].dtype)
    for row in zip(*(a.ravel().tolist() for a in np.broadcast_arrays(*given)), strict=True):
        if operator == "Pow" and (row[1] < 0 or row[1] > 4096):
            exact: Any = math.inf if abs(row[0]) > 1 else 0
        else:
            exact = {
                "Add": sum,
                "Sum": sum,
                "Sub": lambda r: r[0] - r[1],
                "Mul": math.prod,
                "Pow": lambda r: r[0] ** r[1],
            }[operator](row)
        if not limits.min <= exact <= limits.max:
            yield f"{operator} of integers overflows"
            return
