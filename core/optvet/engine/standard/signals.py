"""Rules about signals and their frequencies."""

from __future__ import annotations

import numpy as np

from optvet.engine.standard.call import Array, OperatorCall
from optvet.engine.standard.numbers import is_finite
from optvet.engine.standard.rule import RuleTable, operands

rule = RuleTable()
"""The rules of this module, in the order in which they are told."""


@rule("DFT STFT", "a frequency of a signal that is not finite", recorded=operands)
def _infinite_signal(signal: Array) -> bool:
    # Frequencies are sums of products with sines, which are 0 somewhere: times infinity, NaN.
    return not is_finite(signal)


def _wrong_parts(signal: Array, is_one_sided: bool) -> str:
    """Why a signal is no real or complex one; empty if it is."""
    if signal.shape[-1] not in (1, 2):
        return f"numbers of {signal.shape[-1]} parts"
    complex_ = is_one_sided and signal.shape[-1] == 2
    return "one side of the frequencies of complex numbers" if complex_ else ""


@rule("DFT")
def _transformed(call: OperatorCall, *, onesided: int = 0, inverse: int = 0) -> str:
    signal, length, axis = (call.operand(place) for place in range(3))
    if length is not None and bool(np.any(length < 1)):
        return f"a signal of {length.min()} places"
    if signal is None or signal.ndim < 2:
        return ""
    if words := _wrong_parts(signal, bool(onesided and not inverse)):
        return words
    # One side of n frequencies comes of a real signal of 2 * (n - 1) places: one has none.
    least = 2 if onesided and inverse else 1
    if length is None and min(signal.shape[1:-1], default=1) < least:
        return "a signal of 0 places"
    inside = axis is None or all(_is_of_signal(n, signal.ndim) for n in axis.ravel().tolist())
    return "" if inside else "an axis that is not one of the signal"


def _is_of_signal(axis: int, rank: int) -> bool:
    # The last axis holds the parts of complex numbers.
    return -rank <= axis <= -2 or 0 <= axis <= rank - 2


@rule("STFT")
def _frames(call: OperatorCall, *, onesided: int = 1) -> str:
    signal, step, window, length = (call.operand(place) for place in range(4))
    if step is not None and bool(np.any(step < 1)):
        return "a step that is not positive"
    if signal is None or signal.ndim != 3:
        return ""
    if words := _wrong_parts(signal, bool(onesided)):
        return words
    # A frame is as long as its window, and lies inside of the signal.
    sizes = set() if window is None else {window.size}
    if length is not None and length.size == 1:
        sizes.add(int(length.item(0)))
    if len(sizes) > 1:
        return f"a window and a frame of {sorted(sizes)} places"
    fits = all(1 <= size <= signal.shape[1] for size in sizes)
    return "" if fits else f"frames of {sizes.pop()} places in a signal of {signal.shape[1]}"


@rule("MelWeightMatrix", agreed=True)
def _bands(bins: Array, length: Array, rate: Array, low: Array, high: Array) -> str:
    given = (bins, length, rate, low, high)
    if any(v.size != 1 for v in given):
        return ""
    count, places, per_second, least, most = (float(v.item(0)) for v in given)
    if count < 0 or places < 1 or per_second <= 0 or not 0 <= least <= most:
        return "bands of negative frequencies, of no signal, or in the wrong order"
    return "" if most <= per_second / 2 else "bands above half of the rate"
