"""Operators of PyTorch that are one operator of ONNX, with the attributes that these then have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Arguments = Mapping[str, Any]
Attributes = dict[str, object]


def alike_in_onnx(function: Any, args: Sequence[Any], kwargs: Arguments) -> tuple[str, Attributes]:
    """The operator of ONNX and its attributes; an empty name if there is none of one operator."""
    rule = _RULES.get(str(function._schema.name).partition("::")[2])
    if rule is None:
        return "", {}
    arguments = {a.name: a.default_value for a in function._schema.arguments}
    given = zip((a.name for a in function._schema.arguments), args, strict=False)
    operator, attributes = rule({**arguments, **dict(given), **kwargs})
    return operator, {name: value for name, value in attributes.items() if value is not None}


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


def _renamed(operator: str, **names: str) -> Callable[[Arguments], tuple[str, Attributes]]:
    """Attributes of other names; numbers as they are."""

    def rule(a: Arguments) -> tuple[str, Attributes]:
        return operator, {ours: a[theirs] for ours, theirs in names.items()}

    return rule


def _put(a: Arguments) -> tuple[str, Attributes]:
    return "ScatterND", {"reduction": "add" if a["accumulate"] else "none"}


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scatter(a: Arguments) -> tuple[str, Attributes]:
    return "ScatterElements", {"axis": a["dim"], "reduction": _REDUCTIONS.get(a["reduce"])}


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
    "gelu": _renamed("Gelu", approximate="approximate"),
    "leaky_relu": _renamed("LeakyRelu", alpha="negative_slope"),
    "elu": _renamed("Elu", alpha="alpha"),
    "native_batch_norm": _renamed("BatchNormalization", epsilon="eps"),
    "_native_batch_norm_legit_no_training": _renamed("BatchNormalization", epsilon="eps"),
    "native_layer_norm": _renamed("LayerNormalization", epsilon="eps"),
    "native_group_norm": _renamed("GroupNormalization", epsilon="eps", num_groups="group"),
    "_softmax": _renamed("Softmax", axis="dim"),
    "_log_softmax": _renamed("LogSoftmax", axis="dim"),
    "pixel_shuffle": _renamed("DepthToSpace", blocksize="upscale_factor"),
    "cat": _renamed("Concat", axis="dim"),
    "index_put": _put,
    "index_put_": _put,
    "_index_put_impl_": _put,
    "scatter_reduce": _scatter,
    "gather": _renamed("GatherElements", axis="dim"),
}
