"""Which operators of a source only prepare its inputs: those before the first that has weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from optvet.spec.converters import SourceInside, SourceValue


def prepares_input(inside: SourceInside, place: int) -> bool:
    """Whether weights are used only on what is computed from the value at ``place``.

    Weights have two axes at least: means and scales by channel are part of the preparation.
    """
    weighted = {i for i, v in enumerate(inside.values) if _has_weights(v, inside)}
    before = {place}
    for i in range(place, -1, -1):
        if i in before:
            before.update(inside.values[i].reads)
    if weighted & before:
        return False
    after = {place}
    for i in range(place + 1, len(inside.values)):
        if after.intersection(inside.values[i].reads):
            after.add(i)
    return bool(weighted) and weighted <= after


def _has_weights(value: SourceValue, inside: SourceInside) -> bool:
    if value.constant:
        return False
    return any(
        sum(size > 1 for size in read.shape) > 1 for read in _iter_constant_operands(value, inside)
    )


def _iter_constant_operands(value: SourceValue, inside: SourceInside) -> Iterator[np.ndarray]:
    """What an operator reads that no input changes."""
    yield from (inside.values[i].value for i in value.reads if inside.values[i].constant)
    for operand in value.operands:
        if operand.parameter in inside.parameters:
            yield inside.parameters[operand.parameter]
