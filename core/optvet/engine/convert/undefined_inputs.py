"""Inputs on which an operation of the source has no answer that anybody defines.

Integer division by zero, a shift by more bits than there are, a float that is no integer of the
type it is cast to: frameworks answer as their processor does, and ONNX leaves the answer open. Some
leave open which of equal elements comes first, or in which order elements come, or what a search in
numbers that are not sorted gives; a plugin may say of any other value that it is open. Elements
that were computed are equal if they are no further apart than rounding may move them. What a
conversion makes of such an input is no fault of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optvet.engine.convert.inside import inside_of, shows_inside
from optvet.engine.numerics.floats import is_float, unit_roundoff
from optvet.engine.standard.numbers import divides_outside, outside_of, shifts_outside
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.converters import SourceInside, SourceOperand, SourceValue
from optvet.spec.types import Artifact, Sample

_DIVIDES = re.compile(r"div|mod|rem(ainder)?\b")
_SHIFTS = re.compile(r"shift")
_CASTS = re.compile(r"cast|copy|convert|\bto\b|type")
TIED_ROUNDOFFS = 8
"""So far apart may computed values be whose order rounding decides: sums of a few terms."""


@dataclass(frozen=True)
class OpenOperation:
    """An operation in a run whose answer nobody defines: its operator, and why."""

    operator: str
    why: str

    def words(self) -> str:
        """A clause for a report."""
        return f"{self.operator}: {self.why}, which has no defined answer"


def undefined_inside(
    config: RuntimeConfig, source: Artifact, samples: Sequence[Sample]
) -> dict[str, str]:
    """What is undefined, of the samples on which something is. Called in a worker."""
    found = find_open_operations(config, source, samples)
    return {name: operations[0].words() for name, operations in found.items()}


def find_open_operations(
    config: RuntimeConfig, artifact: Artifact, samples: Sequence[Sample]
) -> dict[str, tuple[OpenOperation, ...]]:
    """The operations without a defined answer, of samples with some. Called in a worker.

    ``artifact`` is a source, or a converted model whose runtime shows what is inside.
    """
    if not shows_inside(config, artifact):
        return {}
    enter("run")
    found = {}
    for sample in samples:
        inside = inside_of(config, artifact, sample.feeds, None)
        operations = tuple(_iter_open_operations(inside, sample.feeds))
        if operations:
            found[sample.id] = operations
    return found


def open_rows(
    config: RuntimeConfig, source: Artifact, samples: Sequence[Sample]
) -> dict[str, np.ndarray]:
    """Rows of a table for which the source leaves its answer open, since elements are tied.

    Called in a worker; of the samples that have such rows.
    """
    if not shows_inside(config, source):
        return {}
    enter("run")
    found = {}
    for sample in samples:
        inside = inside_of(config, source, sample.feeds, None)
        tied = (_tied_rows(value, inside, sample.feeds) for value in inside.values)
        rows = [t for t in tied if t is not None and t.any()]
        if rows:
            found[sample.id] = np.logical_or.reduce(rows)
    return found


def _tied_rows(
    value: SourceValue, inside: SourceInside, feeds: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    read = next(_iter_operands(value, inside, feeds), None) if value.open_ties else None
    if read is None or read.ndim != 2:
        return None
    return _find_ties(value, read)


def undefined_in(inside: SourceInside, feeds: Mapping[str, np.ndarray]) -> str:
    """The first operation of a run whose answer nobody defines; empty if there is none."""
    first = next(_iter_open_operations(inside, feeds), None)
    return "" if first is None else first.words()


def _iter_open_operations(
    inside: SourceInside, feeds: Mapping[str, np.ndarray]
) -> Iterator[OpenOperation]:
    for value in inside.values:
        operands = list(_iter_operands(value, inside, feeds))
        why = (
            value.undefined
            or _explain_disorder(value, inside, feeds)
            or _explain_undefined(value, operands)
        )
        if why:
            yield OpenOperation(value.operator, why)


def _iter_operands(
    value: SourceValue, inside: SourceInside, feeds: Mapping[str, np.ndarray]
) -> Iterator[np.ndarray]:
    """What an operation reads, in its order; where operands are not told, values alone."""
    if not value.operands:
        yield from (inside.values[i].value for i in value.reads)
    for operand in value.operands:
        found = _array(operand, inside, feeds)
        if found is not None:
            yield found


def _array(
    operand: SourceOperand, inside: SourceInside, feeds: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    if operand.place is not None:
        return inside.values[operand.place].value
    if operand.input in feeds:
        return feeds[operand.input]
    if operand.parameter in inside.parameters:
        return inside.parameters[operand.parameter]
    constant = operand.constant
    return np.asarray(constant) if isinstance(constant, (int, float)) else None


def _explain_disorder(
    value: SourceValue, inside: SourceInside, feeds: Mapping[str, np.ndarray]
) -> str:
    if value.open_order and value.value.size > 1:
        return "elements in any order"
    for operand in value.operands:
        if operand.name == value.sorted_operand:
            read = _array(operand, inside, feeds)
            if read is not None and np.any(read[..., 1:] < read[..., :-1]):
                return f"unsorted {operand.name}"
    return ""


def _explain_undefined(value: SourceValue, operands: Sequence[np.ndarray]) -> str:
    if value.value.dtype.kind not in "iu" or not operands:
        return ""
    if value.open_ties and _has_ties(value, operands[0]):
        return "equal elements in any order"
    name = value.operator.rpartition(".")[2].lower()
    whole = len(operands) > 1 and all(g.dtype.kind in "iu" for g in operands)
    if whole and _DIVIDES.search(name) and (words := divides_outside(operands[0], operands[1])):
        return words
    if whole and _SHIFTS.search(name):
        return shifts_outside(operands[1], value.value.dtype.itemsize * 8)
    if _CASTS.search(name) and is_float(operands[0].dtype):
        return outside_of(operands[0], value.value.dtype)
    return ""


def _has_ties(value: SourceValue, read: np.ndarray) -> bool:
    """Whether elements are equal along the axis on which they are ordered."""
    return bool(read.ndim and np.any(_find_ties(value, read)))


def _find_ties(value: SourceValue, read: np.ndarray) -> np.ndarray:
    """Along the axis on which elements of ``read`` are ordered, whether two are equal."""
    named = next((o.constant for o in value.operands if o.name == "dim"), -1)
    axis = named if isinstance(named, int) and -read.ndim <= named < read.ndim else -1
    ordered = np.sort(read, axis=axis)
    before, after = np.delete(ordered, -1, axis), np.delete(ordered, 0, axis)
    tied = before == after
    computed = not value.operands or value.operands[0].place is not None
    if computed and is_float(read.dtype):
        one, other = before.astype(np.float64), after.astype(np.float64)
        with np.errstate(invalid="ignore"):
            size = np.maximum(np.abs(one), np.abs(other))
            tied |= other - one <= TIED_ROUNDOFFS * unit_roundoff(read.dtype) * size
    return np.asarray(np.any(tied, axis=axis))
