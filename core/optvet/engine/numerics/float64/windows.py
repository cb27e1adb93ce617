"""Convolution and pooling in double precision.

All take arrays of shape (batch, channels, *spatial), for any number of spatial axes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from optvet.engine.numerics.float64.float_arrays import Array, is_float

Pads = list[tuple[int, int]]

# Blocks of this size bound the memory of the patch matrix: without blocks one convolution of
# VGG-19 takes 230 MB, and the model 7.7 GB.
_PATCH_BYTES = 32 * 2**20


def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **_: Any,
) -> Array:
    """Conv as a matrix product: the evaluator's own is 10 to 100 times slower."""
    kernel = w.shape[2:]
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    x = _pad(x, _pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad), 0)
    sizes = [
        (size - _extent(k, d)) // s + 1
        for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    ]
    if group == x.shape[1] == w.shape[0]:
        y = _depthwise(x, w, sizes, strides, dilations)
    else:
        y = _convolve_groups(x, w, sizes, strides, dilations, group)
    return y if b is None else y + b.reshape(-1, *[1] * len(kernel))


def _depthwise(
    x: Array, w: Array, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    # Depthwise convolution: a matrix product would have rows of one element.
    y = np.zeros((*x.shape[:2], *sizes))
    taps = w.reshape(w.shape[0], -1)
    for tap, values in enumerate(_taps(x, w.shape[2:], sizes, strides, dilations)):
        y += taps[:, tap].reshape(-1, *[1] * len(sizes)) * values
    return y


def _convolve_groups(
    x: Array,
    w: Array,
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Array:
    rank, kernel = len(sizes), w.shape[2:]
    weights = w.reshape(group, w.shape[0] // group, -1)
    y = np.empty((x.shape[0], w.shape[0], *sizes))
    windows = _windows(x, kernel, strides, dilations)
    # (channels, rows, …, taps) → (channels, taps, rows, …)
    order = (0, *range(rank + 1, 2 * rank + 1), *range(1, rank + 1))
    row_bytes = 8 * x.shape[1] * math.prod(kernel) * math.prod(sizes[1:])
    rows = max(1, _PATCH_BYTES // max(1, row_bytes))
    for image in range(x.shape[0]):
        for start in range(0, sizes[0], rows):
            part = windows[image, :, start : start + rows]
            patches = part.transpose(order).reshape(
                group, weights.shape[2], math.prod(part.shape[1 : rank + 1])
            )
            product = np.matmul(weights, patches)
            y[image, :, start : start + rows] = product.reshape(
                w.shape[0], *part.shape[1 : rank + 1]
            )
    return y


def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **_: Any,
) -> Array:
    """ConvTranspose: the evaluator's own loops in Python and is wrong for some groups."""
    kernel, rank = w.shape[2:], w.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    extra = output_padding or [0] * rank
    spatial = x.shape[2:]
    full = [
        s * (n - 1) + p + _extent(k, d)
        for n, k, s, d, p in zip(spatial, kernel, strides, dilations, extra, strict=True)
    ]
    if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [n * s for n, s in zip(spatial, strides, strict=True)]
    if output_shape is not None:
        output_shape = output_shape[-rank:]
        totals = [max(0, f - o) for f, o in zip(full, output_shape, strict=True)]
        halves = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals]
        pads = [*halves, *(t - h for t, h in zip(totals, halves, strict=True))]
    pads = pads if pads is not None and auto_pad != "VALID" else [0] * 2 * rank
    batch, channels = x.shape[:2]
    weights = w.reshape(group, channels // group, -1).transpose(0, 2, 1)
    columns = np.matmul(weights, x.reshape(batch, group, channels // group, -1))
    taps = math.prod(kernel)
    columns = columns.reshape(batch, group * w.shape[1], taps, *spatial)
    reach = [max(f, o + p) for f, o, p in zip(full, output_shape or full, pads, strict=False)]
    y = np.zeros((batch, group * w.shape[1], *reach))
    for tap, target in enumerate(_taps(y, kernel, spatial, strides, dilations)):
        target += columns[:, :, tap]
    ends = output_shape or [f - pads[i] - pads[rank + i] for i, f in enumerate(full)]
    y = _at(y, [slice(pads[i], pads[i] + end) for i, end in enumerate(ends)])
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def max_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    outputs: int = 1,
    **_: Any,
) -> tuple[Array, ...]:
    """MaxPool by shifted maxima: the evaluator's own loops in Python over every output."""
    strides, dilations = strides or [1] * len(kernel_shape), dilations or [1] * len(kernel_shape)
    borders = _pads(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    sizes = _pool_sizes(x.shape[2:], kernel_shape, strides, dilations, borders, ceil_mode, auto_pad)
    lowest = -np.inf if is_float(x.dtype) else np.iinfo(x.dtype).min
    wide = _reaching(x, kernel_shape, sizes, strides, dilations, borders, lowest)
    taps = _taps(wide, kernel_shape, sizes, strides, dilations)
    y = functools.reduce(np.maximum, taps)
    y = np.array(y)  # a copy: for a kernel of size 1 the reduction is a view
    if outputs == 1:
        return (y,)
    positions = np.arange(x.size).reshape(x.shape)
    if storage_order:
        plane = math.prod(x.shape[2:])
        columns = np.arange(plane).reshape(x.shape[2:][::-1]).T
        positions = positions - positions % plane + columns
    wide_positions = _reaching(positions, kernel_shape, sizes, strides, dilations, borders, -1)
    indices = np.full(y.shape, -1, np.int64)
    pairs = zip(
        _taps(wide, kernel_shape, sizes, strides, dilations),
        _taps(wide_positions, kernel_shape, sizes, strides, dilations),
        strict=True,
    )
    for values, places in pairs:  # the first maximum wins
        np.copyto(indices, places, where=(indices < 0) & (values == y) & (places >= 0))
    return y, indices


def average_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **_: Any,
) -> Array:
    """AveragePool by shifted sums; elements beyond the padded input are not counted."""
    strides, dilations = strides or [1] * len(kernel_shape), dilations or [1] * len(kernel_shape)
    borders = _pads(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    sizes = _pool_sizes(x.shape[2:], kernel_shape, strides, dilations, borders, ceil_mode, auto_pad)
    counted = np.ones((1, 1, *x.shape[2:]))
    if count_include_pad:
        counted = _pad(counted, borders, 1)
        around = [(0, 0)] * len(borders)
    else:
        around = borders
    places = _reaching(counted, kernel_shape, sizes, strides, dilations, around, 0)
    wide = _reaching(x, kernel_shape, sizes, strides, dilations, borders, 0)
    total = functools.reduce(np.add, _taps(wide, kernel_shape, sizes, strides, dilations))
    count = functools.reduce(np.add, _taps(places, kernel_shape, sizes, strides, dilations))
    return np.asarray(total / count)


def global_pool(x: Array, reduce: Callable[..., Any]) -> Array:
    """Global pooling over all spatial axes; the evaluator's own leaves a wrong rank in 1-D."""
    return np.asarray(reduce(x, axis=tuple(range(2, x.ndim)), keepdims=True))


def global_average_pool(x: Array, **_: Any) -> Array:
    """GlobalAveragePool."""
    return global_pool(x, np.mean)


def global_max_pool(x: Array, **_: Any) -> Array:
    """GlobalMaxPool."""
    return global_pool(x, np.max)


def _extent(kernel: int, dilation: int) -> int:
    return (kernel - 1) * dilation + 1


def _pads(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Pads:
    """Padding in front of and behind each spatial axis."""
    rank = len(spatial)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max(0, (-(-n // s) - 1) * s + _extent(k, d) - n)
            for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True)
        ]
        smaller = [(total // 2, total - total // 2) for total in totals]
        return smaller if auto_pad == "SAME_UPPER" else [(b, a) for a, b in smaller]
    if pads is None or auto_pad == "VALID":
        return [(0, 0)] * rank
    return [(pads[i], pads[rank + i]) for i in range(rank)]


def _pool_sizes(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    borders: Pads,
    ceil_mode: int,
    auto_pad: str,
) -> list[int]:
    """Output sizes; with ``ceil_mode`` no window may start in the padding behind the input."""
    sizes = []
    for n, k, s, d, (front, back) in zip(spatial, kernel, strides, dilations, borders, strict=True):
        room = n + front + back - _extent(k, d)
        size = room // s + 1
        if ceil_mode and not auto_pad.startswith("SAME"):
            size = -(-room // s) + 1
            size -= (size - 1) * s >= n + front
        sizes.append(size)
    return sizes


def _pad(x: Array, borders: Pads, fill: Any) -> Array:
    if all(border == (0, 0) for border in borders):
        return x
    # Negative padding crops; np.pad refuses it.
    crop = [
        slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape[2:], borders, strict=True)
    ]
    grown = [(0, 0), (0, 0), *((max(0, a), max(0, b)) for a, b in borders)]
    return np.pad(_at(x, crop), grown, constant_values=fill)


def _reaching(
    x: Array,
    kernel: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    borders: Pads,
    fill: Any,
) -> Array:
    """``x`` padded in front by ``borders``, and behind up to the end of the last window."""
    ends = [
        max(0, (size - 1) * s + _extent(k, d) - n - front)
        for n, k, size, s, d, (front, _) in zip(
            x.shape[2:], kernel, sizes, strides, dilations, borders, strict=True
        )
    ]
    return _pad(x, [(a, end) for (a, _), end in zip(borders, ends, strict=True)], fill)


def _windows(
    x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    """A view of shape (batch, channels, *sizes, *kernel)."""
    extents = tuple(_extent(k, d) for k, d in zip(kernel, dilations, strict=True))
    views = sliding_window_view(x, extents, axis=tuple(range(2, x.ndim)))
    steps = (slice(None, None, step) for step in (*strides, *dilations))
    return views[(slice(None), slice(None), *steps)]


def _taps(
    x: Array,
    kernel: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Iterator[Array]:
    """For each kernel element, the view of ``x`` that it is multiplied with; shape ``sizes``."""
    for offsets in itertools.product(*(range(k) for k in kernel)):
        starts = [offset * d for offset, d in zip(offsets, dilations, strict=True)]
        ends = [a + (n - 1) * s + 1 for a, n, s in zip(starts, sizes, strides, strict=True)]
        yield _at(x, [slice(*each) for each in zip(starts, ends, strides, strict=True)])


def _at(x: Array, spatial: Sequence[slice]) -> Array:
    return x[(slice(None), slice(None), *spatial)]
