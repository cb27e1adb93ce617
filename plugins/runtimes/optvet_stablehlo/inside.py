"""What a module of StableHLO computes on the way, as it is and with values moved by a roundoff."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from optvet.plugin import SourceInside, SourceOperand, SourceValue, may_be_rounded
from optvet_stablehlo.modules import (
    Program,
    XlaSession,
    form_of,
    is_constant,
    line_of,
    name_of,
    reads_of,
)

Feeds = Mapping[str, np.ndarray]
_EXACT = frozenset(
    f"stablehlo.{name}"
    for name in (
        "abs broadcast_in_dim ceil clamp concatenate convert dynamic_slice dynamic_update_slice "
        "floor gather iota maximum minimum negate pad reshape reverse round_nearest_afz "
        "round_nearest_even select sign slice sort transpose"
    ).split()
)
"""Operators that do not round."""


def results_of(program: Program) -> list[Any]:
    """The tensors that operators compute, in order."""
    return [v for each in program.operators for v in each.results if form_of(v) is not None]


def recorded(text: str, feeds: Feeds) -> list[np.ndarray]:
    """What every operator computes, as ``results_of`` lists them."""
    program = Program(text)
    program.give(results_of(program))
    return XlaSession(program).values(list(feeds.values()))


def values_of(text: str, feeds: Feeds, seed: int | None) -> SourceInside:
    """The values of one run; with a seed, of one whose operators are moved."""
    program = Program(text)
    shown = results_of(program)
    outputs = program.outputs
    places = {value: i for i, value in enumerate(shown)}
    about = [_reads(value, places, program) for value in shown]
    ends = tuple(places.get(value) for value in outputs)
    given = shown if seed is None else move_operators(program, recorded(text, feeds), seed)
    program.give(given)
    arrays = XlaSession(program).values(list(feeds.values()))
    values: list[SourceValue] = []
    for value, (reads, operands), array in zip(shown, about, arrays, strict=True):
        of_weights = all(values[i].constant for i in reads)
        constant = of_weights and not any(each.input for each in operands)
        name, line = name_of(value.owner), line_of(value.owner)
        values.append(
            SourceValue(name, array, reads, constant=constant, line=line, operands=operands)
        )
    return SourceInside(tuple(values), ends)


def _reads(
    value: Any, places: Mapping[Any, int], program: Program
) -> tuple[tuple[int, ...], tuple[SourceOperand, ...]]:
    inputs = {argument: f"input_{i}" for i, argument in enumerate(program.arguments)}
    read = reads_of(value.owner)
    operands = tuple(
        SourceOperand(str(i), places.get(v), inputs.get(v, "")) for i, v in enumerate(read)
    )
    return tuple(places[v] for v in read if v in places), operands


def move_operators(program: Program, values: list[np.ndarray], seed: int) -> list[Any]:
    """Multiply what each operator gives by numbers a roundoff from 1; the moved values."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    rng = np.random.default_rng(seed)
    moved = []
    for result, value in zip(results_of(program), values, strict=True):
        maker = result.owner
        if name_of(maker) in _EXACT or value.dtype.name not in ("float32", "float64"):
            moved.append(result)
            continue
        factors = 1 + _steps(value, rng)
        with program.module.context, ir.Location.unknown(), ir.InsertionPoint.after(maker):
            attribute = ir.DenseElementsAttr.get(np.ascontiguousarray(factors), type=result.type)
            factor = stablehlo.ConstantOp(attribute).result
            new = stablehlo.MulOp(result, factor).result
        result.replace_all_uses_except(new, new.owner.operation)
        moved.append(new)
    return moved


def move_weights(program: Program, seed: int) -> None:
    """Move the numbers that the module holds."""
    from jaxlib.mlir import ir

    rng = np.random.default_rng(seed)
    for each in filter(is_constant, program.body):
        form = form_of(each.results[0])
        if form is None or form[1].name not in ("float32", "float64"):
            continue
        value = np.array(ir.DenseElementsAttr(each.attributes["value"])).reshape(form[0])
        moved = np.ascontiguousarray(value * (1 + _steps(value, rng)), value.dtype)
        with program.module.context:
            attribute = ir.DenseElementsAttr.get(moved, type=each.results[0].type)
            each.attributes["value"] = attribute


def _steps(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    step = value.dtype.type(np.finfo(value.dtype).eps)
    sign = rng.choice((-1, 1), value.shape).astype(value.dtype)
    return np.asarray(step * sign * may_be_rounded(value), value.dtype)
