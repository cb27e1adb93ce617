"""Known forms of operators that see images: normalization, pooling, padding, resizing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from optvet.engine.repair.propose.forms import OperatorForm, UnknownForm


def average_pool(axes: int) -> Callable[[OperatorForm], str]:
    """Means over windows along the last axes, with any divisor."""

    def form(f: OperatorForm) -> str:
        kernel = f.numbers("kernel_size", axes)
        stride = f.numbers("stride", axes, kernel) if f.setting("stride") else kernel
        pads = f.numbers("padding", axes, 0)
        divisor = f.setting("divisor_override")
        with_pads = bool(f.setting("count_include_pad", True)) or divisor is not None
        ceiling = bool(f.setting("ceil_mode", False))
        x = f.operand("self", 0)
        if divisor is not None and ceiling:
            raise UnknownForm("windows that end outside have another size")
        pooled = f.op(
            "AveragePool",
            x,
            kernel_shape=kernel,
            strides=stride,
            pads=pads + pads,
            count_include_pad=int(with_pads),
            **({"ceil_mode": 1} if ceiling else {}),
        )
        if divisor is None:
            return pooled
        return f.op("Mul", pooled, f.constant(math.prod(kernel) / float(divisor)))

    return form


def pad(mode: str) -> Callable[[OperatorForm], str]:
    """Padding of the last axes."""

    def form(f: OperatorForm) -> str:
        x, wide = f.operand("self", 0), f.setting("padding", f.setting("pad"))
        if not isinstance(wide, (list, tuple)):
            raise UnknownForm(f"padding is {wide!r}")
        before, after = list(wide[::2])[::-1], list(wide[1::2])[::-1]
        free = [0] * (f.rank() - len(before))
        pads = f.shape(*free, *before, *free, *after)
        more = [f.constant(f.setting("value", 0))] if mode == "constant" else []
        return f.op("Pad", x, pads, *more, mode=mode)

    return form


def resize(mode: str, axes: int) -> Callable[[OperatorForm], str]:
    """Interpolation along the last axes to a size."""

    def form(f: OperatorForm) -> str:
        corners = bool(f.setting("align_corners", False))
        where = "align_corners" if corners else "half_pixel"
        more: dict[str, object] = {}
        if mode == "nearest":
            where, more["nearest_mode"] = "asymmetric", "floor"
        elif mode == "cubic":
            more["cubic_coeff_a"] = -0.75
        if not corners and mode != "nearest":
            where = "pytorch_half_pixel"
        x, size = f.operand("self", 0), f.operator.value.shape[-axes:]
        start = f.op("Slice", f.op("Shape", x), f.shape(0), f.shape(2))
        sizes = f.op("Concat", start, f.shape(*size), axis=0)
        return f.op(
            "Resize", x, "", "", sizes, mode=mode, coordinate_transformation_mode=where, **more
        )

    return form


def resize_area(f: OperatorForm) -> str:
    """Of images with channels last: each pixel is the mean over the area that it covers."""
    if f.setting("align_corners", False):
        raise UnknownForm("areas from corner to corner")
    x, (_, height, width, _) = f.operand("images", 0), f.operator.value.shape
    if f.dtype != f.operator.value.dtype:
        x = f.cast(x, f.operator.value.dtype)
    sizes = f.op("Shape", x)
    rows, columns = _shares(f, sizes, 1, height), _shares(f, sizes, 2, width)
    planes = f.op("Transpose", x, perm=[0, 3, 1, 2])
    narrow = f.op("MatMul", planes, f.op("Transpose", columns, perm=[1, 0]))
    return f.op("Transpose", f.op("MatMul", rows, narrow), perm=[0, 2, 3, 1])


def _shares(f: OperatorForm, sizes: str, axis: int, size: int) -> str:
    """What share each of the old pixels of an axis has in each of the ``size`` new ones."""
    kind = f.operator.value.dtype
    zero, one = f.constant(0, np.int64), f.constant(1, np.int64)
    old = f.op("Gather", sizes, f.constant(axis, np.int64))
    begin = f.cast(f.op("Range", zero, old, one), kind)
    end = f.op("Add", begin, f.constant(1, kind))
    scale = f.op("Div", f.cast(old, kind), f.constant(size, kind))
    new = np.arange(size, dtype=kind)[:, None]
    first, last = (f.op("Mul", f.constant(edge), scale) for edge in (new, new + 1))
    common = f.op("Sub", f.op("Min", end, last), f.op("Max", begin, first))
    return f.op("Div", f.op("Max", common, f.constant(0, kind)), scale)


def batch_norm(f: OperatorForm) -> str:
    """Values of each channel by their mean and variance in the batch, or by running ones."""
    x, rank = f.operand("input", 0), f.rank()
    by_channel = f.shape(1, -1, *[1] * (rank - 2))
    if f.setting("training", f.setting("train", False)):
        axes = [axis for axis in range(rank) if axis != 1]
        off = f.op("Sub", x, f.reduce("ReduceMean", x, axes, True))
        variance = f.reduce("ReduceMean", f.op("Mul", off, off), axes, True)
    else:
        mean, variance = (
            f.op("Reshape", f.operand(name, i), by_channel)
            for i, name in ((3, "running_mean"), (4, "running_var"))
        )
        off = f.op("Sub", x, mean)
    root = f.op("Sqrt", f.op("Add", variance, f.constant(float(f.setting("eps", 1e-5)))))
    y = f.op("Div", off, root)
    for i, name, operator in ((1, "weight", "Mul"), (2, "bias", "Add")):
        factor = f.optional(name, i)
        if factor:
            y = f.op(operator, y, f.op("Reshape", factor, by_channel))
    return y
