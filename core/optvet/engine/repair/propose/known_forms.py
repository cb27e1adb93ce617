"""Operators that converters often write wrongly, written rightly in ONNX's own operators.

Each is a function of an ``OperatorForm`` to its result. Arguments are called as in the frameworks;
where these differ, an operand goes by its number too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from optvet.engine.repair.propose.forms import OperatorForm, UnknownForm
from optvet.engine.repair.propose.known_image_forms import (
    average_pool,
    batch_norm,
    pad,
    resize,
    resize_area,
)


def _log1p(f: OperatorForm) -> str:
    """Kahan: what is lost by rounding 1 + x is the same in Log(u) and in u - 1."""
    x = f.operand("self", 0)
    one, zero = f.constant(1), f.constant(0)
    u = f.op("Add", x, one)
    d = f.op("Sub", u, one)
    none = f.op("Equal", d, zero)
    slope = f.op("Div", f.op("Log", u), f.op("Where", none, one, d))
    small = f.op("Where", none, x, f.op("Mul", x, slope))
    return f.op("Where", f.op("IsInf", u), u, small)


def _expm1(f: OperatorForm) -> str:
    """2 sinh(x / 2) exp(x / 2) where x is small: there Exp(x) - 1 cancels, else this overflows."""
    x = f.operand("self", 0)
    one, two = f.constant(1), f.constant(2)
    large = f.op("Greater", f.op("Abs", x), one)
    half = f.op("Div", x, two)
    small = f.op("Mul", f.op("Mul", f.op("Sinh", half), f.op("Exp", half)), two)
    return f.op("Where", large, f.op("Sub", f.op("Exp", x), one), small)


def _log_sigmoid(f: OperatorForm) -> str:
    return f.op("Neg", f.op("Softplus", f.op("Neg", f.operand("self", 0))))


def _erfc(f: OperatorForm) -> str:
    return f.op("Sub", f.constant(1), f.op("Erf", f.operand("self", 0)))


def _floor_mod(f: OperatorForm) -> str:
    """The remainder with the sign of the divisor."""
    x, y = f.operand("self", 0), f.operand("other", 1)
    if not f.is_float:
        return f.op("Mod", x, y)
    zero = f.constant(0)
    m = f.op("Mod", x, y, fmod=1)
    other = f.op("Less", f.op("Mul", f.op("Sign", m), f.op("Sign", y)), zero)
    return f.op("Where", other, f.op("Add", m, y), m)


def _floor_divide(f: OperatorForm) -> str:
    x, y = f.operand("self", 0), f.operand("other", 1)
    if f.is_float:
        return f.op("Floor", f.op("Div", x, y))
    return f.op("Div", f.op("Sub", x, f.op("Mod", x, y)), y)


def _truncate(f: OperatorForm, x: str) -> str:
    return f.op("Where", f.op("Less", x, f.constant(0)), f.op("Ceil", x), f.op("Floor", x))


def _divide(f: OperatorForm) -> str:
    rounding = f.setting("rounding_mode")
    if rounding == "floor":
        return _floor_divide(f)
    x, y = f.operand("self", 0), f.operand("other", 1)
    if f.is_float:
        q = f.op("Div", x, y)
        return _truncate(f, q) if rounding == "trunc" else q
    if rounding == "trunc":
        return f.op("Div", x, y)
    kind = f.operator.value.dtype
    return f.op("Div", f.cast(x, kind), f.cast(y, kind))


def _fmod(f: OperatorForm) -> str:
    return f.op("Mod", f.operand("self", 0), f.operand("other", 1), fmod=1)


def _trunc(f: OperatorForm) -> str:
    return _truncate(f, f.operand("self", 0))


def _frac(f: OperatorForm) -> str:
    x = f.operand("self", 0)
    return f.op("Sub", x, _truncate(f, x))


def _round(f: OperatorForm) -> str:
    x, decimals = f.operand("self", 0), f.setting("decimals", 0)
    if not decimals:
        return f.op("Round", x)
    scale = f.constant(10.0 ** abs(int(decimals)))
    first, then = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return f.op(then, f.op("Round", f.op(first, x, scale)), scale)


def _guarded(f: OperatorForm, product: str, x: str, y: str) -> str:
    """The product; zero where ``x`` is zero and ``y`` is a number."""
    zero = f.constant(0)
    empty = f.op("And", f.op("Equal", x, zero), f.op("Not", f.op("IsNaN", y)))
    return f.op("Where", empty, zero, product)


def _xlogy(f: OperatorForm) -> str:
    x, y = f.operand("self", 0), f.operand("other", 1)
    return _guarded(f, f.op("Mul", x, f.op("Log", y)), x, y)


def _xlog1py(f: OperatorForm) -> str:
    x, y = f.operand("self", 0), f.operand("other", 1)
    return _guarded(f, f.op("Mul", x, f.op("Log", f.op("Add", y, f.constant(1)))), x, y)


def _xdivy(f: OperatorForm) -> str:
    x, y = f.operand("self", 0), f.operand("other", 1)
    return _guarded(f, f.op("Div", x, y), x, y)


def _gelu(f: OperatorForm) -> str:
    x, half, one = f.operand("self", 0), f.constant(0.5), f.constant(1)
    if f.setting("approximate", "none") == "tanh":
        cube = f.op("Mul", f.op("Mul", x, x), x)
        inner = f.op("Add", x, f.op("Mul", cube, f.constant(0.044715)))
        bent = f.op("Tanh", f.op("Mul", inner, f.constant(math.sqrt(2 / math.pi))))
    else:
        bent = f.op("Erf", f.op("Mul", x, f.constant(math.sqrt(0.5))))
    return f.op("Mul", f.op("Mul", x, half), f.op("Add", bent, one))


def _clamp(f: OperatorForm) -> str:
    """By comparisons, which take every type and keep NaN."""
    x = f.operand("self", 0)
    for operator, name, other, number in (
        ("Less", "min", "min_val", 1),
        ("Greater", "max", "max_val", 2),
    ):
        bound = f.optional(name, other, number)
        if bound:
            x = f.op("Where", f.op(operator, x, bound), bound, x)
    return x


def _softplus(f: OperatorForm) -> str:
    x, beta = f.operand("self", 0), f.constant(float(f.setting("beta", 1)))
    scaled = f.op("Mul", x, beta)
    linear = f.op("Greater", scaled, f.constant(float(f.setting("threshold", 20))))
    return f.op("Where", linear, x, f.op("Div", f.op("Softplus", scaled), beta))


def _sign(f: OperatorForm) -> str:
    """(x > 0) - (x < 0): of NaN what the source gives, since runtimes differ there."""
    x, zero = f.operand("self", 0), f.constant(0)
    above, below = (f.cast(f.op(kind, x, zero), f.dtype) for kind in ("Greater", "Less"))
    sign = f.op("Sub", above, below)
    kept = f.is_float and bool(np.isnan(f.operator.value.astype(np.float64)).any())
    return f.op("Where", f.op("IsNaN", x), x, sign) if kept else sign


def _silu(f: OperatorForm) -> str:
    x = f.operand("self", 0)
    return f.op("Mul", x, f.op("Sigmoid", x))


def _mish(f: OperatorForm) -> str:
    x = f.operand("self", 0)
    return f.op("Mul", x, f.op("Tanh", f.op("Softplus", x)))


def _hard_sigmoid(f: OperatorForm) -> str:
    return f.op("HardSigmoid", f.operand("self", 0), alpha=1 / 6, beta=0.5)


def _hard_swish(f: OperatorForm) -> str:
    x = f.operand("self", 0)
    return f.op("Mul", x, _hard_sigmoid(f))


def _leaky_relu(f: OperatorForm) -> str:
    slope = f.setting("negative_slope", f.setting("alpha", 0.01))
    return f.op("LeakyRelu", f.operand("self", 0), alpha=float(slope))


def _prelu(f: OperatorForm) -> str:
    """The slope belongs to the second axis."""
    x, slope = f.operand("self", 0), f.operand("weight", 1)
    if f.rank("weight", 1) == 1 and f.rank() > 2:
        slope = f.op("Reshape", slope, f.shape(-1, *[1] * (f.rank() - 2)))
    return f.op("PRelu", x, slope)


def _addcmul(f: OperatorForm) -> str:
    product = f.op("Mul", f.operand("tensor1", 1), f.operand("tensor2", 2))
    return f.op(
        "Add", f.operand("self", 0), f.op("Mul", product, f.constant(f.setting("value", 1)))
    )


def _addcdiv(f: OperatorForm) -> str:
    scaled = f.op("Mul", f.operand("tensor1", 1), f.constant(f.setting("value", 1)))
    return f.op("Add", f.operand("self", 0), f.op("Div", scaled, f.operand("tensor2", 2)))


def _addmm(f: OperatorForm) -> str:
    product = f.op("MatMul", f.operand("mat1", 1), f.operand("mat2", 2))
    alpha, beta, added = f.setting("alpha", 1), f.setting("beta", 1), f.operand("self", 0)
    if alpha != 1:
        product = f.op("Mul", product, f.constant(alpha))
    if beta != 1:
        added = f.op("Mul", added, f.constant(beta))
    return f.op("Add", product, added)


def _scaled(operator: str) -> Callable[[OperatorForm], str]:
    def form(f: OperatorForm) -> str:
        other, alpha = f.operand("other", 1), f.setting("alpha", 1)
        if alpha != 1:
            other = f.op("Mul", other, f.constant(alpha))
        return f.op(operator, f.operand("self", 0), other)

    return form


def _masked_fill(f: OperatorForm) -> str:
    return f.op("Where", f.operand("mask", 1), f.operand("value", 2), f.operand("self", 0))


def _atan2(f: OperatorForm) -> str:
    y, x = f.operand("self", 0), f.operand("other", 1)
    zero, pi = f.constant(0), f.constant(math.pi)
    base = f.op("Atan", f.op("Div", y, x))
    down = f.op("Less", y, zero)
    turned = f.op("Add", base, f.op("Where", down, f.op("Neg", pi), pi))
    half = f.constant(math.pi / 2)
    upright = f.op("Where", down, f.op("Neg", half), half)
    upright = f.op("Where", f.op("Equal", y, zero), zero, upright)
    level = f.op("Where", f.op("Equal", x, zero), upright, base)
    return f.op("Where", f.op("Less", x, zero), turned, level)


def _log_add_exp(f: OperatorForm) -> str:
    a, b = f.operand("self", 0), f.operand("other", 1)
    largest = f.op("Max", a, b)
    gap = f.op("Neg", f.op("Abs", f.op("Sub", a, b)))
    rest = f.op("Log", f.op("Add", f.op("Exp", gap), f.constant(1)))
    return f.op(
        "Where",
        f.op("Equal", a, b),
        f.op("Add", a, f.constant(math.log(2))),
        f.op("Add", largest, rest),
    )


def _axes(f: OperatorForm, name: str = "dim") -> list[int]:
    """The axes: a setting, or an operand that is a constant of integers."""
    value = f.setting(name, f.setting("axis"))
    if value is None:
        given = f.constants.get(1)
        named = len(f.operator.operands) > 1 and f.operator.operands[1].name not in ("", "1")
        if given is None or named or given.dtype.kind not in "iu":
            return []
        return [int(v) for v in given.reshape(-1)]
    return [int(v) for v in (value if isinstance(value, (list, tuple)) else [value])]


def _keeps(f: OperatorForm) -> bool:
    return bool(f.setting("keepdim", f.setting("keep_dims", False)))


def _reduction(operator: str) -> Callable[[OperatorForm], str]:
    def form(f: OperatorForm) -> str:
        x = f.operand("self", 0)
        if f.dtype != f.operator.value.dtype:
            x = f.cast(x, f.operator.value.dtype)
        return f.reduce(operator, x, _axes(f), _keeps(f))

    return form


def _log_sum_exp(f: OperatorForm) -> str:
    x, axes = f.operand("self", 0), _axes(f)
    largest = f.reduce("ReduceMax", x, axes, True)
    finite = f.op("Where", f.op("IsInf", largest), f.constant(0), largest)
    total = f.reduce("ReduceSum", f.op("Exp", f.op("Sub", x, finite)), axes, True)
    result = f.op("Add", f.op("Log", total), finite)
    return result if _keeps(f) else f.reduce("ReduceMax", result, axes, False)


def _softmax(f: OperatorForm) -> str:
    """By exponentials: before operator set 13 Softmax is of all axes from its own on."""
    x, axes = f.operand("self", 0), _axes(f) or [-1]
    shifted = f.op("Sub", x, f.reduce("ReduceMax", x, axes, True))
    raised = f.op("Exp", shifted)
    return f.op("Div", raised, f.reduce("ReduceSum", raised, axes, True))


def _log_softmax(f: OperatorForm) -> str:
    x, axes = f.operand("self", 0), _axes(f) or [-1]
    shifted = f.op("Sub", x, f.reduce("ReduceMax", x, axes, True))
    total = f.reduce("ReduceSum", f.op("Exp", shifted), axes, True)
    return f.op("Sub", shifted, f.op("Log", total))


def _variance(f: OperatorForm) -> str:
    x, axes = f.operand("self", 0), _axes(f)
    correction = f.setting("correction", 1)
    if f.setting("unbiased") is False:
        correction = 0
    off = f.op("Sub", x, f.reduce("ReduceMean", x, axes, True))
    keep = _keeps(f)
    squares = f.op("Mul", off, off)
    # The number of values is measured, since sizes may change.
    ones = f.op("Add", f.op("Mul", squares, f.constant(0)), f.constant(1))
    number = f.op("Sub", f.reduce("ReduceSum", ones, axes, keep), f.constant(float(correction)))
    return f.op("Div", f.reduce("ReduceSum", squares, axes, keep), number)


def _deviation(f: OperatorForm) -> str:
    return f.op("Sqrt", _variance(f))


def _cumulative_sum(f: OperatorForm) -> str:
    x = f.operand("self", 0)
    if f.dtype != f.operator.value.dtype:
        x = f.cast(x, f.operator.value.dtype)
    axes = _axes(f)
    if len(axes) != 1:
        raise UnknownForm("a cumulative sum has one axis")
    backwards, before = bool(f.setting("reverse", False)), bool(f.setting("exclusive", False))
    axis = f.constant(axes[0], np.int64)
    return f.op("CumSum", x, axis, reverse=int(backwards), exclusive=int(before))


def _attention(f: OperatorForm) -> str:
    """Scaled dot products; of a causal one, the mask is as large as the scores."""
    q, k, v = (f.operand(name, i) for i, name in enumerate(("query", "key", "value")))
    rank, scale = f.rank(), f.setting("scale")
    order = [*range(rank - 2), rank - 1, rank - 2]
    turned = f.op("Transpose", k, perm=order)
    if scale is None:
        width = f.op("Slice", f.op("Shape", q), f.shape(rank - 1), f.shape(rank))
        scores = f.op("Div", f.op("MatMul", q, turned), f.op("Sqrt", f.cast(width, f.dtype)))
    else:
        scores = f.op("Mul", f.op("MatMul", q, turned), f.constant(float(scale)))
    mask = f.optional("attn_mask")
    if f.setting("is_causal", False):
        lower = f.op(
            "Trilu", f.op("Add", f.op("Mul", scores, f.constant(0)), f.constant(1)), upper=0
        )
        seen = f.op("Equal", lower, f.constant(1))
        scores = f.op("Where", seen, scores, f.constant(-np.inf))
    elif mask:
        index = next(i for i, o in enumerate(f.operator.operands) if o.name == "attn_mask")
        if f.dtypes.get(index, f.dtype).kind == "b":
            scores = f.op("Where", mask, scores, f.constant(-np.inf))
        else:
            scores = f.op("Add", scores, mask)
    return f.op("MatMul", f.op("Softmax", scores, axis=rank - 1), v)


def _scatter_mean(f: OperatorForm) -> str:
    """The sum of what is scattered to a place, divided by its number."""
    x, index, source = f.operand("self", 0), f.operand("index", 2), f.operand("src", 3)
    axis = int(f.setting("dim", 0))
    zero = f.op("Mul", x, f.constant(0))
    ones = f.op("Add", f.op("Mul", source, f.constant(0)), f.constant(1))
    number = f.op("ScatterElements", zero, index, ones, axis=axis, reduction="add")
    total = f.op("ScatterElements", zero, index, source, axis=axis, reduction="add")
    if f.setting("include_self", True):
        number = f.op("Add", number, f.constant(1))
        total = f.op("Add", total, x)
        return f.op("Div", total, number)
    none = f.op("Equal", number, f.constant(0))
    return f.op("Where", none, x, f.op("Div", total, f.op("Where", none, f.constant(1), number)))


def _scatter_reduce(f: OperatorForm) -> str:
    ways = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    reduce = f.setting("reduce")
    if reduce == "mean":
        return _scatter_mean(f)
    if reduce not in ways or not f.setting("include_self", True):
        raise UnknownForm(f"reduce is {reduce!r}")
    x, index, source = f.operand("self", 0), f.operand("index", 2), f.operand("src", 3)
    about = {"axis": int(f.setting("dim", 0)), "reduction": ways[reduce]}
    return f.op("ScatterElements", x, index, source, **about)


def _scatter_nd(f: OperatorForm) -> str:
    """Updates at the same place are added up."""
    indices, updates = f.operand("indices", 0), f.operand("updates", 1)
    zeros = f.constant(np.zeros(f.operator.value.shape, f.operator.value.dtype))
    return f.op("ScatterND", zeros, indices, updates, reduction="add")


def _cast(f: OperatorForm) -> str:
    return f.cast(f.operand("self", 0), f.operator.value.dtype)


def _index_select(f: OperatorForm) -> str:
    return f.op(
        "Gather", f.operand("self", 0), f.operand("index", 2), axis=int(f.setting("dim", 0))
    )


def _bucketize(f: OperatorForm) -> str:
    """The number of boundaries at or below the value: each value is compared with all of them."""
    x, limits = f.operand("self", "input", 0), f.setting("boundaries")
    if isinstance(limits, Sequence):
        row = f.constant(np.asarray(limits, f.dtype))
    else:
        row = f.operand("boundaries", 1)
    wide = f.unsqueezed(x)
    # Some frameworks count a boundary that is the value; others say so by ``right``.
    counts = bool(f.setting("right", isinstance(limits, Sequence)))
    above = f.op("Not", f.op("Less", wide, row)) if counts else f.op("Greater", wide, row)
    kind = f.operator.value.dtype
    return f.reduce("ReduceSum", f.cast(above, kind), [f.rank()], False)


FORMS: Mapping[str, Callable[[OperatorForm], str]] = {
    "log1p": _log1p,
    "expm1": _expm1,
    "log_sigmoid": _log_sigmoid,
    "erfc": _erfc,
    "floor_divide": _floor_divide,
    "floor_mod": _floor_mod,
    "div": _divide,
    "fmod": _fmod,
    "trunc": _trunc,
    "frac": _frac,
    "round": _round,
    "xlogy": _xlogy,
    "xlog1py": _xlog1py,
    "xdivy": _xdivy,
    "gelu": _gelu,
    "clamp": _clamp,
    "softplus": _softplus,
    "sign": _sign,
    "silu": _silu,
    "mish": _mish,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": _hard_swish,
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "add": _scaled("Add"),
    "sub": _scaled("Sub"),
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "addmm": _addmm,
    "masked_fill": _masked_fill,
    "atan2": _atan2,
    "logaddexp": _log_add_exp,
    "sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "amax": _reduction("ReduceMax"),
    "amin": _reduction("ReduceMin"),
    "logsumexp": _log_sum_exp,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "var": _variance,
    "std": _deviation,
    "cumsum": _cumulative_sum,
    "native_batch_norm": batch_norm,
    "avg_pool1d": average_pool(1),
    "avg_pool2d": average_pool(2),
    "avg_pool3d": average_pool(3),
    "constant_pad_nd": pad("constant"),
    **{f"reflection_pad{n}d": pad("reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": pad("edge") for n in (1, 2, 3)},
    "upsample_nearest1d": resize("nearest", 1),
    "upsample_nearest2d": resize("nearest", 2),
    "upsample_linear1d": resize("linear", 1),
    "upsample_bilinear2d": resize("linear", 2),
    "upsample_bicubic2d": resize("cubic", 2),
    "resizearea": resize_area,
    "scaled_dot_product_attention": _attention,
    "scatter_reduce": _scatter_reduce,
    "scatternd": _scatter_nd,
    "to": _cast,
    "index_select": _index_select,
    "bucketize": _bucketize,
}
"""By the operator's name in lower letters, without the prefix of its framework."""

ALIASES: Mapping[str, str] = {
    "floordiv": "floor_divide",
    "floor_div": "floor_divide",
    "floormod": "floor_mod",
    "remainder": "floor_mod",
    "truncatemod": "fmod",
    "truncatediv": "div",
    "realdiv": "div",
    "true_divide": "div",
    "logsigmoid": "log_sigmoid",
    "log_sigmoid_forward": "log_sigmoid",
    "special_xlog1py": "xlog1py",
    "rint": "round",
    "fix": "trunc",
    "hardtanh": "clamp",
    "clipbyvalue": "clamp",
    "batch_norm": "native_batch_norm",
    "_native_batch_norm_legit": "native_batch_norm",
    "leakyrelu": "leaky_relu",
    "_prelu_kernel": "prelu",
    "rsub": "",
    "_to_copy": "to",
    "cast": "to",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "logsoftmax": "log_softmax",
    "selectv2": "masked_fill",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math": "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math_for_mps": "scaled_dot_product_attention",
    "_scaled_dot_product_fused_attention_overrideable": "scaled_dot_product_attention",
    "reducesum": "sum",
    "max": "amax",
    "min": "amin",
}
"""Other names of the same operators."""

POINTWISE = frozenset(
    "log1p expm1 log_sigmoid erfc trunc frac round sign gelu softplus silu mish hardsigmoid "
    "hardswish leaky_relu to".split()
)
"""Operators of one operand that do the same in every layout."""
