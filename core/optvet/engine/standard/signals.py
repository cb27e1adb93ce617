"""Rules about signals and their frequencies; see ``rules``."""

from __future__ import annotations

import numpy as np

from optvet.engine.standard.call import Array, OperatorCall


def infinite_signal(call: OperatorCall) -> str:
    """Sums of products with sines, which are 0 at some places: times infinity they are NaN."""
    value = call.operand(0)
    finite = value is None or bool(np.isfinite(value.astype(np.float64)).all())
    return "" if finite else "a frequency of a signal that is not finite"


def transformed(call: OperatorCall) -> str:
    """An axis of the signal, of which there is a part, in real or complex numbers."""
    signal, length, axis = (call.operand(n) for n in range(3))
    if length is not None and bool(np.any(length < 1)):
        return f"a signal of {length.min()} places"
    if signal is None or signal.ndim < 2:
        return ""
    if signal.shape[-1] not in (1, 2):
        return f"numbers of {signal.shape[-1]} parts"
    one_sided, inverse = (call.attribute(name, 0) for name in ("onesided", "inverse"))
    if one_sided and not inverse and signal.shape[-1] == 2:
        return "one side of the frequencies of complex numbers"
    least = 2 if one_sided and inverse else 1
    if length is None and min(signal.shape[1:-1], default=1) < least:
        return "a signal of 0 places"
    inside = axis is None or all(_is_of_signal(n, signal.ndim) for n in axis.ravel().tolist())
    return "" if inside else "an axis that is not one of the signal"


def _is_of_signal(axis: int, rank: int) -> bool:
    return -rank <= axis <= -2 or 0 <= axis <= rank - 2


def frames(call: OperatorCall) -> str:
    """Frames inside of the signal, as long as their window, and steps that lead on."""
    signal, step, window, length = (call.operand(n) for n in range(4))
    if step is not None and bool(np.any(step < 1)):
        return "a step that is not positive"
    if signal is None or signal.ndim != 3:
        return ""
    if signal.shape[-1] not in (1, 2):
        return f"numbers of {signal.shape[-1]} parts"
    if call.attribute("onesided", 1) and signal.shape[-1] == 2:
        return "one side of the frequencies of complex numbers"
    sizes = {n for n in (_length(length), None if window is None else window.size) if n is not None}
    if len(sizes) > 1:
        return f"a window and a frame of {sorted(sizes)} places"
    fits = all(1 <= size <= signal.shape[1] for size in sizes)
    return "" if fits else f"frames of {sizes.pop()} places in a signal of {signal.shape[1]}"


def _length(length: Array | None) -> int | None:
    return int(length.item(0)) if length is not None and length.size == 1 else None


def bands(call: OperatorCall) -> str:
    """Bands of frequencies that a signal of this rate has."""
    given = [call.operand(n) for n in range(5)]
    numbers = [float(v.item(0)) for v in given if v is not None and v.size == 1]
    if len(numbers) < len(given):
        return ""
    bins, length, rate, low, high = numbers
    if bins < 0 or length < 1 or rate <= 0 or not 0 <= low <= high:
        return "bands of negative frequencies, of no signal, or in the wrong order"
    return "" if high <= rate / 2 else "bands above half of the rate"
