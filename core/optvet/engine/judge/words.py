"""What is different about a wrong output, in words."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from optvet.engine.judge.judgement import DECLARED, OTHER_PLACES, Judgement
from optvet.engine.numerics import texts
from optvet.engine.numerics.floats import is_float

_ELEMENT_CHARS = 60
LARGE = 1e6
"""A ratio beyond this says less than the two numbers that it is made of."""


def wrong_output(expected: np.ndarray, actual: np.ndarray | None, found: Judgement) -> str:
    """What is wrong with an output, as a clause whose subject is the output."""
    if actual is None or actual.shape != expected.shape:
        return found.detail
    if texts.type_name(actual.dtype) != texts.type_name(expected.dtype):
        return found.detail
    if not is_float(expected.dtype):
        return (
            f"{found.detail}{': ' * bool(found.detail)}{_describe_first_change(expected, actual)}"
        )
    if found.part and found.error is not None:
        known = noise_remark(found.noise)
        words = f"differs in {found.part} by {found.error:.2g} of the range of that part{known}"
        return "; ".join(part for part in (words, found.detail) if part)
    declared = found.detail == DECLARED
    noise = None if found.structural or declared else found.noise
    unit = "its range" if declared else "its largest value"
    words = difference(expected, actual, found.error, noise, unit=unit)
    detail = "" if found.detail == OTHER_PLACES else found.detail
    if declared and found.noise is not None:
        detail = f"{found.noise:.2g} is declared"
    link = ": " if found.layered else "; "
    return link.join(part for part in (words, detail) if part)


def _describe_first_change(expected: np.ndarray, actual: np.ndarray) -> str:
    places = np.flatnonzero(np.asarray(expected != actual))
    if not len(places):
        return ""
    pair = [str(side.flat[places[0]])[:_ELEMENT_CHARS] for side in (expected, actual)]
    return " became ".join(pair)


def difference(
    reference: np.ndarray,
    candidate: np.ndarray,
    error: float | None,
    noise: float | None,
    *,
    unit: str = "its largest value",
) -> str:
    """How floats of one shape differ: new NaN or infinities first, then the size.

    Args:
        reference: Output of the original.
        candidate: Output of the optimized model.
        error: The largest difference relative to the reference's largest magnitude.
        noise: The reference's own, in the same unit.
        unit: What both are relative to.
    """
    y, z = reference.astype(np.float64), candidate.astype(np.float64)
    clauses = []
    if kinds := _kinds(y, z):
        clauses.append(kinds)
    both = np.isfinite(y) & np.isfinite(z)
    with np.errstate(invalid="ignore", over="ignore"):
        max_error = float(np.max(np.abs(z - y), where=both, initial=0.0))
    scale = float(np.max(np.abs(y), where=both, initial=0.0))
    if max_error and not scale:
        largest = float(np.max(np.abs(z), where=both, initial=0.0))
        clauses.append(f"is 0 in the reference and up to {largest:.2g} in size here")
    elif max_error and (error is None or not error < LARGE):
        size = f"{max_error:.2g}" if math.isfinite(max_error) else "more than a double holds"
        clauses.append(f"differs by up to {size}, where its largest value is {scale:.2g}")
    elif max_error:
        absolute = "" if unit == "its range" else f", {scale:.2g}"
        clauses.append(f"differs by {error:.2g} of {unit}{absolute}{noise_remark(noise)}")
    return "; ".join(clauses)


def noise_remark(noise: float | None) -> str:
    """The noise of an output, as it follows its error; empty if it is not known."""
    return f" (its own noise: {noise:.2g})" if noise is not None else ""


def _kinds(y: np.ndarray, z: np.ndarray) -> str:
    """The most frequent change among NaN, infinities and numbers."""
    with np.errstate(invalid="ignore"):
        same = (np.isfinite(y) & np.isfinite(z)) | (np.isnan(y) & np.isnan(z)) | (y == z)
    places = np.argwhere(~same)
    if not len(places):
        return ""
    pairs = [(_kind(float(y[tuple(p)])), _kind(float(z[tuple(p)]))) for p in places[:10_000]]
    (was, now), _ = Counter(pairs).most_common(1)[0]
    first = places[pairs.index((was, now))].tolist()
    values = f"{float(y[tuple(first)]):.6g} became {float(z[tuple(first)]):.6g}"
    share = f"{len(places)} of {y.size} elements" if len(set(pairs)) == 1 else "elements"
    more = "" if len(set(pairs)) == 1 else f", {len(places)} of {y.size} in all"
    return f"has {now} in {share} where the reference has {was} (at {first}: {values}{more})"


def _kind(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "infinity" if math.isinf(value) else "numbers"
