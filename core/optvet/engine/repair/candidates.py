"""What an edit is proposed as, and helpers to write one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from optvet.engine.repair.aligned_run import AlignedRun
from optvet.engine.repair.edits import BEFORE, fresh_name, tensor_of
from optvet.graph.unfold import Unfolded
from optvet.spec.records.repair import (
    Edit,
    EditKind,
    InsertNode,
    Operation,
    RemoveNode,
    SetAttribute,
    SetInput,
    SetOutputType,
    SetWeight,
)


@dataclass(frozen=True)
class RepairCandidate:
    """Edits that belong together.

    Attributes:
        explains: Whether it must explain a missing value before it is tried on the whole model.
        depth: The last place of the source that it explains; -1 if that was not asked.
    """

    edits: tuple[Edit, ...]
    explains: bool = True
    depth: int = -1


def propose(kind: EditKind, about: str, *operations: Operation) -> RepairCandidate:
    """One edit that must explain a missing value."""
    return RepairCandidate((Edit(kind=kind, about=about, operations=list(operations)),))


def attribute(node: str, name: str, value: Any) -> SetAttribute:
    """An attribute in the types that a patch has."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, (list, tuple)):
        value = list(value)
    return SetAttribute(node=node, name=name, value=value)


def declaration(model: ModelProto, name: str, wanted: np.ndarray) -> Iterator[SetOutputType]:
    """That an output is declared as ``wanted`` is, if it is not."""
    for output in model.graph.output:
        kind = output.type.tensor_type
        declared = tuple(d.dim_value or None for d in kind.shape.dim)
        fits = len(declared) == wanted.ndim and all(
            a in (None, b) for a, b in zip(declared, wanted.shape, strict=True)
        )
        same = kind.elem_type == helper.np_dtype_to_tensor_dtype(wanted.dtype)
        if output.name == name and not (fits and same):
            yield SetOutputType(output=name, type=wanted.dtype.name, axes=wanted.ndim)


def declare_output(aligned: AlignedRun, candidate: RepairCandidate) -> RepairCandidate:
    """The candidate, which declares the wrong output in the size that the source gives it.

    The checker refuses a model that gives what it does not declare. An output of the right size
    keeps its type and its axes, which need not be those of the source.
    """
    every = [operation for edit in candidate.edits for operation in edit.operations]
    if any(isinstance(operation, SetOutputType) for operation in every):
        return candidate
    wanted, given = aligned.inside.values[aligned.place].value, aligned.values.get(aligned.output)
    if given is not None:
        if given.size == wanted.size:
            return candidate
        wanted = wanted.astype(given.dtype)
    more = list(declaration(aligned.model, aligned.output, wanted))
    *before, last = candidate.edits
    edit = last.model_copy(update={"operations": [*last.operations, *more]})
    return replace(candidate, edits=(*before, edit))


def in_original_names(unfolded: Unfolded, candidate: RepairCandidate) -> RepairCandidate:
    """The candidate for the model that was laid flat: an iteration's values are its body's."""
    edits = []
    for edit in candidate.edits:
        operations = [_in_original_names(unfolded, operation) for operation in edit.operations]
        edits.append(edit.model_copy(update={"operations": operations}))
    return replace(candidate, edits=tuple(edits))


def _in_original_names(unfolded: Unfolded, operation: Operation) -> Operation:
    fields = ["name"] if isinstance(operation, SetWeight) else ["node"]
    if isinstance(operation, SetInput | RemoveNode):
        fields.append("value")
    named = {f: unfolded.name_of(getattr(operation, f)) for f in fields if hasattr(operation, f)}
    inputs = [unfolded.name_of(name) for name in getattr(operation, "inputs", ())]
    more: dict[str, object] = {"inputs": inputs} if inputs else {}
    return operation.model_copy(update={**named, **more})


def give_constant(
    aligned: AlignedRun, index: int, place: int, value: np.ndarray
) -> list[Operation]:
    """Give input ``place`` of a node a constant; one that others read too is not changed."""
    node = aligned.node_of(index)
    name = node.input[place] if place < len(node.input) else ""
    tensor = tensor_of(value)
    if name in aligned.constants and aligned.uses.get(name, 0) == 1:
        return [SetWeight(name=name, tensor=tensor)]
    fresh = fresh_name(aligned.model, name or f"{node.output[0]}_{place}")
    return [
        SetWeight(name=fresh, tensor=tensor),
        SetInput(node=node.output[0], index=place, value=fresh),
    ]


def insert_operator(
    aligned: AlignedRun,
    node: str,
    index: int | None,
    operator: str,
    more: Sequence[tuple[str, np.ndarray]] = (),
    attributes: dict[str, Any] | None = None,
    domain: str = "",
) -> list[Operation]:
    """Insert an operator of the value that was there and of constants, each with a name."""
    output = fresh_name(aligned.model, f"{node}_{operator}")
    names = [f"{output}_{label}" for label, _ in more]
    weights: list[Operation] = [
        SetWeight(name=name, tensor=tensor_of(value))
        for name, (_, value) in zip(names, more, strict=True)
    ]
    insertion = InsertNode(
        node=node,
        index=index,
        operator=operator,
        domain=domain,
        inputs=[BEFORE, *names],
        output=output,
        attributes=attributes or {},
    )
    return [*weights, insertion]


def short(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
