"""Operators that replace the reference evaluator's own; each docstring says why."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as _StockLoop
from onnx.reference.ops.op_one_hot import OneHot as _StockOneHot
from onnx.reference.ops.op_optional import Optional as _StockOptional

from optvet.engine.numerics.float64.float_arrays import Array, at_least_single, float_type, is_float
from optvet.engine.numerics.float64.tree_ensembles import tree_classifier, tree_regressor
from optvet.engine.numerics.float64.windows import (
    average_pool,
    conv,
    conv_transpose,
    global_average_pool,
    global_max_pool,
    max_pool,
)

# --- normalization and activation -----------------------------------------------------------------


def batch_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float,
    is_test: int = 1,
    outputs: int = 1,
    **_: Any,
) -> Array:
    """BatchNormalization before opset 14: the evaluator also uses statistics of the batch.

    https://github.com/onnx/onnx/issues/5799; ResNet-50 is off by a factor of 154 there.
    """
    if outputs > 1 or not is_test:
        raise NotImplementedError("BatchNormalization in training mode before opset 14")

    def aligned(parameter: Array) -> Array:  # also of one value per element, spatial = 0
        return parameter.reshape(parameter.shape + (1,) * (x.ndim - 1 - parameter.ndim))

    spread = np.sqrt(aligned(variance) + epsilon)
    return np.asarray(aligned(scale) * ((x - aligned(mean)) / spread) + aligned(bias))


def group_normalization(
    x: Array, scale: Array, bias: Array, *, epsilon: float, num_groups: int, **_: Any
) -> Array:
    """GroupNormalization: the function in its schema computes in float32."""
    groups = x.reshape(x.shape[0], num_groups, -1)
    centred = groups - groups.mean(axis=2, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + epsilon)

    def aligned(parameter: Array) -> Array:
        # One value per group in opset 18, one per channel since opset 21.
        return np.repeat(parameter, x.shape[1] // parameter.size).reshape(-1, *[1] * (x.ndim - 2))

    return np.asarray(normal.reshape(x.shape) * aligned(scale) + aligned(bias))


def lrn(x: Array, *, alpha: float, beta: float, bias: float, size: int, **_: Any) -> Array:
    """LRN: the evaluator's own uses the batch size as the number of channels."""
    front = (size - 1) // 2
    around = [(0, 0), (front, size - 1 - front), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(x**2, around)
    total = sum(squares[:, i : i + x.shape[1]] for i in range(size))
    return np.asarray(x / (bias + alpha / size * total) ** beta)


def softmax_before_13(x: Array, *, axis: int = 1, **_: Any) -> Array:
    """Softmax over all axes from ``axis`` on; the evaluator implements opset 13 only."""
    rows = _rows(x, axis)
    powers = np.exp(rows - rows.max(axis=1, keepdims=True, initial=-np.inf))
    return np.reshape(powers / powers.sum(axis=1, keepdims=True), x.shape)


def log_softmax_before_13(x: Array, *, axis: int = 1, **_: Any) -> Array:
    """LogSoftmax over all axes from ``axis`` on."""
    rows = _rows(x, axis)
    shifted = rows - rows.max(axis=1, keepdims=True, initial=-np.inf)
    return np.reshape(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), x.shape)


def hardmax_before_13(x: Array, *, axis: int = 1, **_: Any) -> Array:
    """Hardmax over all axes from ``axis`` on."""
    rows = _rows(x, axis)
    y = np.zeros_like(rows)
    y[np.arange(len(rows)), rows.argmax(axis=1)] = 1
    return y.reshape(x.shape)


def _rows(x: Array, axis: int) -> Array:
    axis += x.ndim if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _special() -> Any:
    """Scipy's special functions; importing them takes longer than most models do."""
    from scipy import special

    return special


def erf(x: Array, **_: Any) -> Array:
    """Erf: the evaluator's own rounds its result to float32."""
    return np.asarray(_special().erf(x))


def lp_normalization(x: Array, *, axis: int = -1, p: int = 2, **_: Any) -> Array:
    """LpNormalization: the evaluator's own adds up numbers in place of magnitudes."""
    norm = np.linalg.norm(x, p, axis=axis, keepdims=True)
    return np.asarray(np.divide(x, norm, out=np.zeros_like(x), where=norm != 0))


def mean_variance_normalization(x: Array, *, axes: Sequence[int], **_: Any) -> Array:
    """MeanVarianceNormalization: the function in its schema has float32 constants."""
    centred = x - x.mean(axis=tuple(axes), keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=tuple(axes), keepdims=True))
    return np.asarray(centred / (deviation + 1e-9))


def scatter(x: Array, indices: Array, updates: Array, *, axis: int = 0, **_: Any) -> Array:
    """Scatter, the former name of ScatterElements."""
    y = x.copy()
    np.put_along_axis(y, indices, updates, axis)
    return y


def gelu(x: Array, *, approximate: str = "none", **_: Any) -> Array:
    """Gelu: the function in its schema uses the evaluator's Erf."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return np.asarray(0.5 * x * (1 + np.tanh(inner)))
    # The normal distribution function: 1 + erf(x / √2) cancels for negative x.
    return np.asarray(x * _special().ndtr(x))


def dequantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    **_: Any,
) -> Array:
    """DequantizeLinear: the evaluator's own multiplies in float32."""

    def aligned(parameter: Array) -> Array:
        values = np.asarray(parameter).astype(np.float64)
        if values.size == 1 and not block_size:
            return values.reshape(())
        if block_size:
            spread = np.repeat(values, block_size, axis=axis)
            return spread.take(range(x.shape[axis]), axis=axis)
        dims = [1] * x.ndim
        dims[axis] = values.size
        return values.reshape(dims)

    whole = np.asarray(x).astype(np.float64)
    if zero_point is not None:
        whole = whole - aligned(zero_point)
    return np.asarray(whole * aligned(scale))


def upsample(x: Array, scales: Any = None, *, mode: str = "nearest", **attributes: Any) -> Array:
    """Upsample, and Resize of opset 10: the evaluator supports integer factors only."""
    factors = [float(s) for s in (attributes["scales"] if scales is None else scales)]
    for axis, factor in enumerate(factors):
        if factor != 1:
            x = _resample(x, axis, factor, mode)
    return x


def _resample(x: Array, axis: int, factor: float, mode: str) -> Array:
    size: int = x.shape[axis]
    positions = np.arange(math.floor(size * factor)) / factor
    if mode == "nearest":
        if factor < 1:
            raise NotImplementedError("the standard does not say which neighbour is nearest")
        nearest = np.minimum(np.floor(positions).astype(int), size - 1)
        return np.asarray(x.take(nearest, axis=axis))
    positions = np.minimum(positions, size - 1)
    left = np.floor(positions).astype(int)
    right = np.minimum(left + 1, size - 1)
    share = (positions - left).reshape(-1, *[1] * (x.ndim - 1 - axis))
    return np.asarray(x.take(left, axis) * (1 - share) + x.take(right, axis) * share)


# --- found in models, but not in the standard ----------------------------------------


def affine(x: Array, *, alpha: float = 1.0, beta: float = 0.0, **_: Any) -> Array:
    """Affine, experimental until 2018: αx + β."""
    return np.asarray(alpha * x + beta)


def image_scaler(x: Array, *, bias: Sequence[float], scale: float = 1.0, **_: Any) -> Array:
    """ImageScaler, experimental until 2018: a factor for all, then a bias per channel."""
    return np.asarray(scale * x + np.asarray(bias, np.float64).reshape(-1, 1, 1))


def crop(x: Array, *, border: Sequence[int], scale: Sequence[int] | None = None, **_: Any) -> Array:
    """Crop, experimental until 2018: ``border`` is left, top, right, bottom."""
    left, top, right, bottom = border
    height, width = scale or (x.shape[2] - top - bottom, x.shape[3] - left - right)
    return x[:, :, top : top + height, left : left + width]


def fused_conv(
    x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attributes: Any
) -> Array:
    """FusedConv of com.microsoft: activation(Conv(x, w) + b + z)."""
    y = conv(x, w, b, **attributes)
    y = y if z is None else y + z
    parameters = [float(p) for p in attributes.get("activation_params") or []]
    match attributes.get("activation", ""):
        case "":
            return y
        case "Relu":
            return np.maximum(y, 0)
        case "Tanh":
            return np.tanh(y)
        case "Sigmoid":
            return np.asarray(_special().expit(y))
        case "LeakyRelu":
            return np.where(y < 0, parameters[0] * y, y)
        case "Clip":
            return np.clip(y, parameters[0], parameters[1])
        case "HardSigmoid":
            return np.clip(parameters[0] * y + parameters[1], 0, 1)
        case other:
            raise NotImplementedError(f"FusedConv with activation {other!r}")


# --- trees --------------------------------------------------------------------------------------


# --- control ------------------------------------------------------------------------------------


class Loop(_StockLoop):
    """Loop: the evaluator's own skips a loop without condition and flattens scan outputs."""

    def _run(  # type: ignore[override]  # inputs by position, as the evaluator passes them
        self,
        trips: Array | None,
        condition: Array | None,
        *states: Any,
        context: Mapping[str, Any] | None = None,
        attributes: Any = None,
        **_: Any,
    ) -> tuple[Any, ...]:
        body: Any = self.body  # type: ignore[attr-defined]  # set from the node's attributes
        scope = dict(context or {})
        limit = None if trips is None else int(np.asarray(trips).item())
        going = condition is None or bool(np.asarray(condition).item())
        carried, scans, trip = list(states), [], 0
        while going and (limit is None or trip < limit):
            fixed = [np.array(trip, np.int64), np.array(True)]
            scope.update(zip(body.input_names, [*fixed, *carried], strict=True))
            results = body.run(None, scope, attributes=attributes)
            going = bool(np.asarray(results[0]).item())
            carried, scanned = results[1 : 1 + len(states)], results[1 + len(states) :]
            scans.append(scanned)
            trip += 1
        if not scans and len(body.output_names) > 1 + len(states):
            raise NotImplementedError("the shape of a scan output is unknown without an iteration")
        stacked = [np.stack(values) for values in zip(*scans, strict=True)]
        return (*carried, *stacked)


class Optional(_StockOptional):
    """Optional: the evaluator's own makes a list, which OptionalGetElement leaves as it is."""

    def _run(self, x: Any = None, **_: Any) -> tuple[Any, ...]:  # type: ignore[override]
        return ([None] if x is None else x,)


class OneHot(_StockOneHot):
    """OneHot: the evaluator's own casts neither a depth with a fraction nor such a place."""

    def _run(  # type: ignore[override]
        self, indices: Array, depth: Array, values: Array, **attributes: Any
    ) -> tuple[Any, ...]:
        whole = np.asarray(depth).astype(np.int64).reshape(())
        run: Callable[..., tuple[Any, ...]] = super()._run
        return run(np.asarray(indices).astype(np.int64), whole, values, **attributes)


def replacements(opsets: Mapping[str, int], double: bool = True) -> tuple[type[OpRun], ...]:
    """Replacements of the evaluator's operators at these operator sets."""
    return _replacements_of(
        opsets.get("", onnx.defs.onnx_opset_version()), opsets.get("ai.onnx.ml", 1), double
    )


@functools.cache
def _replacements_of(opset: int, ml_opset: int, double: bool) -> tuple[type[OpRun], ...]:
    """Replacements of the evaluator's operators, for one pair of opsets."""
    kernels: dict[str, Callable[..., Any]] = {
        "Affine": affine,
        "AveragePool": average_pool,
        "Conv": conv,
        "ConvTranspose": conv_transpose,
        "Crop": crop,
        "DequantizeLinear": dequantize_linear,
        "Erf": erf,
        "Gelu": gelu,
        "GlobalAveragePool": global_average_pool,
        "GlobalMaxPool": global_max_pool,
        "GroupNormalization": group_normalization,
        "ImageScaler": image_scaler,
        "LRN": lrn,
        "LpNormalization": lp_normalization,
        "MaxPool": max_pool,
        "MeanVarianceNormalization": mean_variance_normalization,
        "Scatter": scatter,
        "Upsample": upsample,
    }
    if opset < 14:
        kernels["BatchNormalization"] = batch_normalization
    if opset < 13:
        kernels["Softmax"] = softmax_before_13
        kernels["LogSoftmax"] = log_softmax_before_13
        kernels["Hardmax"] = hardmax_before_13
    if opset == 10:
        kernels["Resize"] = upsample
    return (
        Loop,
        Optional,
        OneHot,
        _operator("FusedConv", fused_conv, 1, "com.microsoft", double),
        _operator("TreeEnsembleClassifier", tree_classifier, ml_opset, "ai.onnx.ml", double),
        _operator("TreeEnsembleRegressor", tree_regressor, ml_opset, "ai.onnx.ml", double),
        *(_operator(name, kernel, opset, "", double) for name, kernel in kernels.items()),
    )


def _operator(
    name: str, kernel: Callable[..., Any], opset: int, domain: str, double: bool
) -> type[OpRun]:
    """A class of the evaluator that runs ``kernel``, in float64 or rounded to its inputs' type."""

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        # The evaluator passes float32 scalars, whose arithmetic with each other is float32 too.
        exact = {k: float(v) if isinstance(v, np.floating) else v for k, v in attributes.items()}
        values = inputs if double else [at_least_single(x) for x in inputs]
        result = kernel(*values, **exact, outputs=len(self.onnx_node.output))
        results = result if isinstance(result, tuple) else (result,)
        if double:
            return results
        kind = np.dtype(np.float32) if domain == "ai.onnx.ml" else float_type(inputs)
        return tuple(r.astype(kind) if is_float(r.dtype) else r for r in results)

    members: dict[str, Any] = {"_run": run, "op_domain": domain}
    try:
        # The evaluator would take defaults from the newest schema, whatever the model's opset.
        members["op_schema"] = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        members["op_schema"] = None
    return type(name, (OpRun,), members)
