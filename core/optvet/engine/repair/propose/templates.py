"""Operators that are known, written rightly in ONNX's own operators in place of a wrong value."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator

import numpy as np
from onnx import ModelProto

from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.candidates import RepairCandidate, declaration, propose
from optvet.engine.repair.propose.forms import OperatorForm, UnknownForm
from optvet.engine.repair.propose.known_forms import ALIASES, FORMS, POINTWISE
from optvet.engine.repair.propose.regions import replaceable_values
from optvet.graph.walk import ONNX_DOMAIN, opset_versions
from optvet.spec.converters import SourceOperand, SourceValue
from optvet.spec.records.repair import Operation, ReplaceRegion

_OPERATORS = 6
_NAMES = 2
_NODES = 4
_LEAST_SET = 11
"""Operator set below which forms are not written: their operators mean something else."""


def templates(aligned: AlignedRun, nodes: tuple[int, ...]) -> Iterator[RepairCandidate]:
    """The first missing operators that are known, in place of a wrong value of their form."""
    version = opset_versions(aligned.model).get(ONNX_DOMAIN, 0)
    for operator in aligned.operators(_OPERATORS):
        name = operator_name(operator)
        if name not in FORMS or version < _LEAST_SET:
            continue
        place = next(i for i in aligned.missing if aligned.inside.values[i] is operator)
        form = form_of(aligned, operator, version)
        try:
            model, places = form.model(FORMS[name](form), aligned.model.ir_version)
        except UnknownForm:
            continue
        operands = [operator.operands[i] for i in places]
        for inputs in _inputs(aligned, operands, turned=name in POINTWISE):
            for value in _replaced(aligned, nodes, place, operator.value):
                about = f"{value} computed by a template of {name} ({operator.operator})"
                yield propose(
                    "template", about, *replacement(aligned, value, inputs, model, operator)
                )


def operator_name(operator: SourceValue) -> str:
    """An operator's name in lower letters, without the prefix of its framework."""
    plain = operator.operator.partition(" ")[0].rpartition(".")[2].lower().removeprefix("tfl_")
    for name in (plain, plain.strip("_"), plain.rstrip("_")):
        if name in ALIASES:
            return ALIASES[name]
    return plain.strip("_")


def form_of(aligned: AlignedRun, operator: SourceValue, version: int) -> OperatorForm:
    """An empty form of an operator of this run."""
    constants, dtypes = {}, {}
    for i, operand in enumerate(operator.operands):
        array = aligned.array_of(operand)
        if array is not None:
            constants[i] = array
            continue
        dtype = aligned.dtype_of(operand)
        if dtype is not None:
            dtypes[i] = dtype
    return OperatorForm(operator, version, constants, dtypes)


def _inputs(
    aligned: AlignedRun, operands: list[SourceOperand], *, turned: bool
) -> Iterator[list[str]]:
    """Values of this model that the operands are."""
    ways = [aligned.names_of(operand, turned=turned)[:_NAMES] for operand in operands]
    if ways and all(ways):
        yield from (list(each) for each in itertools.product(*ways))


def _replaced(
    aligned: AlignedRun, nodes: tuple[int, ...], place: int, value: np.ndarray
) -> Iterator[str]:
    """Values that the form may replace: those like it, then what the first wrong nodes compute."""
    found = dict.fromkeys(replaceable_values(aligned, nodes, place, value))
    for index in nodes[:_NODES]:
        found.update(dict.fromkeys(name for name in aligned.node_of(index).output if name))
    yield from found


def replacement(
    aligned: AlignedRun,
    value: str,
    inputs: list[str],
    model: ModelProto,
    operator: SourceValue,
) -> Iterator[Operation]:
    """Compute ``value`` by ``model``; an output is then declared as the source's is."""
    encoded = base64.b64encode(model.SerializeToString()).decode()
    yield ReplaceRegion(node=value, inputs=inputs, model=encoded)
    yield from declaration(aligned.model, value, operator.value)
