"""Constants of the source that the converted model asks its callers for."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, helper

from optvet.engine.repair.candidates import RepairCandidate
from optvet.engine.repair.edits import tensor_of
from optvet.graph.interface import graph_inputs
from optvet.spec.converters import SourceInside
from optvet.spec.records.repair import Edit, SetWeight
from optvet.spec.types import ValueInfo

_WAYS = 8
_NAMES = 2


def lost_constants(
    model: ModelProto, inside: SourceInside, inputs: Collection[str]
) -> Iterator[RepairCandidate]:
    """Inputs that no input of the source is, as weights: each with a constant of its part's.

    Args:
        model: The converted model.
        inside: One run of the source.
        inputs: Names of the inputs of the source.
    """
    asked = graph_inputs(model)
    unknown = [info for info in asked if info.name not in inputs]
    known = {info.name: _constants_for(info, inside)[:_NAMES] for info in unknown}
    lost = {name: found for name, found in known.items() if found}
    if not lost or len(asked) - len(lost) != len(inputs):
        return
    for values in itertools.islice(itertools.product(*lost.values()), _WAYS):
        operations = [
            SetWeight(name=name, tensor=tensor_of(value))
            for name, value in zip(lost, values, strict=True)
        ]
        about = f"{', '.join(lost)} from constants of the source"
        edit = Edit(kind="parameter", about=about, operations=list(operations))
        yield RepairCandidate((edit,), explains=False)


def _constants_for(info: ValueInfo, inside: SourceInside) -> Sequence[np.ndarray]:
    """The parameter of this name; else constants of the part of the source that is named so."""
    if info.name in inside.parameters:
        return [inside.parameters[info.name]]
    part = info.name.rpartition("/")[0]
    return [
        each.value
        for each in inside.values
        if each.constant
        and part
        and each.module == part
        and each.value.shape == info.shape
        and _onnx_type(each.value) == info.dtype
    ]


def _onnx_type(value: np.ndarray) -> str:
    if value.dtype == object:
        return "string"
    return str(TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(value.dtype)).lower())
