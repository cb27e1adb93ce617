"""Operators of PyTorch that are one operator of ONNX, with the attributes that these then have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Arguments = Mapping[str, Any]
Attributes = dict[str, object]


def alike_in_onnx(function: Any, args: Sequence[Any], kwargs: Arguments) -> tuple[str, Attributes]:
    """The operator of ONNX and its attributes; an empty name if there is none of one operator."""
    rule = _RULES.get(_name(function))
    if rule is None:
        return "", {}
    arguments = {a.name: a.default_value for a in function._schema.arguments}
    named = zip((a.name for a in function._schema.arguments), args, strict=False)
    operator, attributes = rule({**arguments, **dict(named), **kwargs})
    return operator, {name: value for name, value in attributes.items() if value is not None}


def inputs_in_onnx(function: Any, args: Sequence[Any], kwargs: Arguments) -> tuple[str, ...]:
    """The arguments that are inputs of that operator of ONNX, in its order; empty if unknown."""
    name = _name(function)
    if name == "cat":
        return tuple(f"tensors.{i}" for i in range(len(args[0])))
    return _INPUTS.get(name, ())


def _name(function: Any) -> str:
    """The operator's name; that of ``relu`` for ``relu_``, which writes into its argument."""
    return str(function._schema.name).partition("::")[2].removesuffix("_")


def _spatial(value: Any, rank: int) -> list[int]:
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(v) for v in (listed * rank if len(listed) == 1 else listed)]


def _convolution(a: Arguments) -> tuple[str, Attributes]:
    rank = a["weight"].ndim - 2
    pads = _spatial(a["padding"], rank)
    return "ConvTranspose" if a["transposed"] else "Conv", {
        "strides": _spatial(a["stride"], rank),
        "pads": pads + pads,
        "dilations": _spatial(a["dilation"], rank),
        "group": int(a["groups"]),
        "output_padding": _spatial(a["output_padding"], rank) if a["transposed"] else None,
    }


def _pool(operator: str, rank: int) -> Callable[[Arguments], tuple[str, Attributes]]:
    def rule(a: Arguments) -> tuple[str, Attributes]:
        pads = _spatial(a["padding"], rank)
        found: Attributes = {
            "kernel_shape": _spatial(a["kernel_size"], rank),
            "strides": _spatial(a["stride"] or a["kernel_size"], rank),
            "pads": pads + pads,
            "ceil_mode": int(a["ceil_mode"]),
        }
        if "dilation" in a:
            found["dilations"] = _spatial(a["dilation"], rank)
        if "count_include_pad" in a:
            found["count_include_pad"] = int(a["count_include_pad"])
        return operator, found

    return rule


def _resize(mode: str) -> Callable[[Arguments], tuple[str, Attributes]]:
    def rule(a: Arguments) -> tuple[str, Attributes]:
        found: Attributes = {"mode": mode}
        if "align_corners" in a:
            corners = "align_corners" if a["align_corners"] else None
            found["coordinate_transformation_mode"] = corners
        return "Resize", found

    return rule


def _rename(operator: str, **names: str) -> Callable[[Arguments], tuple[str, Attributes]]:
    """Attributes of other names; numbers as they are."""

    def rule(a: Arguments) -> tuple[str, Attributes]:
        return operator, {ours: a[theirs] for ours, theirs in names.items()}

    return rule


def _plain(operator: str) -> Callable[[Arguments], tuple[str, Attributes]]:
    """An operator without attributes; one that scales its second argument is none."""

    def rule(a: Arguments) -> tuple[str, Attributes]:
        scaled = a.get("alpha") not in (None, 1) or a.get("beta") not in (None, 1)
        rounded = a.get("rounding_mode") is not None
        return ("" if scaled or rounded else operator), {}

    return rule


def _layer_norm(a: Arguments) -> tuple[str, Attributes]:
    axis = -len(a["normalized_shape"])
    return "LayerNormalization", {"epsilon": a["eps"], "axis": axis}


def _elu(a: Arguments) -> tuple[str, Attributes]:
    plain = a["scale"] == a["input_scale"] == 1
    return ("Elu" if plain else ""), {"alpha": a["alpha"]}


def _put(a: Arguments) -> tuple[str, Attributes]:
    return "ScatterND", {"reduction": "add" if a["accumulate"] else "none"}


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scatter(a: Arguments) -> tuple[str, Attributes]:
    return "ScatterElements", {"axis": a["dim"], "reduction": _REDUCTIONS.get(a["reduce"])}


_UNARY: Mapping[str, str] = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "hardswish": "HardSwish",
    "softplus": "Softplus",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "neg": "Neg",
    "abs": "Abs",
    "erf": "Erf",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sign": "Sign",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "isnan": "IsNaN",
    "bitwise_not": "Not",
    "logical_not": "Not",
}
_BINARY: Mapping[str, str] = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
}
_SAME: Mapping[str, str] = {
    **_UNARY,
    **_BINARY,
    "mm": "MatMul",
    "bmm": "MatMul",
    "where": "Where",
}

_RULES: Mapping[str, Callable[[Arguments], tuple[str, Attributes]]] = {
    "convolution": _convolution,
    "max_pool2d_with_indices": _pool("MaxPool", 2),
    "max_pool3d_with_indices": _pool("MaxPool", 3),
    "avg_pool1d": _pool("AveragePool", 1),
    "avg_pool2d": _pool("AveragePool", 2),
    "avg_pool3d": _pool("AveragePool", 3),
    "upsample_linear1d": _resize("linear"),
    "upsample_bilinear2d": _resize("linear"),
    "upsample_trilinear3d": _resize("linear"),
    "upsample_bicubic2d": _resize("cubic"),
    "upsample_nearest1d": _resize("nearest"),
    "upsample_nearest2d": _resize("nearest"),
    "gelu": _rename("Gelu", approximate="approximate"),
    "leaky_relu": _rename("LeakyRelu", alpha="negative_slope"),
    "elu": _elu,
    "native_batch_norm": _rename("BatchNormalization", epsilon="eps"),
    "_native_batch_norm_legit_no_training": _rename("BatchNormalization", epsilon="eps"),
    "native_layer_norm": _layer_norm,
    "native_group_norm": _rename("GroupNormalization", epsilon="eps", num_groups="group"),
    "_softmax": _rename("Softmax", axis="dim"),
    "_log_softmax": _rename("LogSoftmax", axis="dim"),
    "pixel_shuffle": _rename("DepthToSpace", blocksize="upscale_factor"),
    "cat": _rename("Concat", axis="dim"),
    "index_put": _put,
    "_index_put_impl": _put,
    "scatter_reduce": _scatter,
    "gather": _rename("GatherElements", axis="dim"),
    "embedding": _rename("Gather"),
    "clamp": _plain("Clip"),
    "hardtanh": _plain("Clip"),
    "addmm": _plain("Gemm"),
    **{name: _plain(operator) for name, operator in _SAME.items()},
}

_INPUTS: Mapping[str, tuple[str, ...]] = {
    "convolution": ("input", "weight", "bias"),
    "native_batch_norm": ("input", "weight", "bias", "running_mean", "running_var"),
    "_native_batch_norm_legit_no_training": (
        *("input", "weight", "bias", "running_mean", "running_var"),
    ),
    "native_layer_norm": ("input", "weight", "bias"),
    "addmm": ("mat1", "mat2", "self"),
    "embedding": ("weight", "indices"),
    "gather": ("self", "index"),
    "where": ("condition", "self", "other"),
    "clamp": ("self", "min", "max"),
    "hardtanh": ("self", "min_val", "max_val"),
    **dict.fromkeys(("mm", "bmm"), ("self", "mat2")),
    **dict.fromkeys(_UNARY, ("self",)),
    **dict.fromkeys(_BINARY, ("self", "other")),
    **dict.fromkeys(
        (
            *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d"),
            *("avg_pool3d", "gelu", "leaky_relu", "elu", "_softmax", "_log_softmax"),
            "pixel_shuffle",
        ),
        ("self",),
    ),
}
"""Arguments that are inputs in ONNX, by operator."""
