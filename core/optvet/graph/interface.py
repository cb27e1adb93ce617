"""Inputs and outputs of an ONNX model, and matching those of two models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from onnx import ModelProto

from optvet.graph.types import value_info
from optvet.spec.types import InterfaceChange, ValueInfo


def graph_inputs(model: ModelProto) -> tuple[ValueInfo, ...]:
    """Inputs that must be fed, without the weights that IR 3 lists among the inputs."""
    names = {t.name for t in model.graph.initializer}
    names |= {t.values.name for t in model.graph.sparse_initializer}
    return tuple(value_info(i) for i in model.graph.input if i.name not in names)


def graph_outputs(model: ModelProto) -> tuple[ValueInfo, ...]:
    """Graph outputs, in order."""
    return tuple(value_info(o) for o in model.graph.output)


@dataclass(frozen=True)
class Alignment:
    """How inputs and outputs of a candidate map to the reference's, or why they cannot."""

    inputs: Mapping[str, str]
    casts: Mapping[str, str]
    outputs: Mapping[str, str]
    problem: str = ""


class HasInterface(Protocol):
    """A model, or facts about one."""

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Inputs that must be fed."""
        ...

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Graph outputs."""
        ...


def align(
    before: HasInterface, after: HasInterface, allowed: frozenset[InterfaceChange]
) -> Alignment:
    """Match the interface of a candidate with the reference's.

    Names, order, element types and static dimensions must agree, except for changes in ``allowed``,
    which the applied passes declare. A dimension that became unknown, or an output dimension that
    became known, does not count as a change.
    """
    problems = _align_values("input", before.inputs, after.inputs, allowed)
    problems += _align_values("output", before.outputs, after.outputs, allowed)
    if problems:
        return Alignment({}, {}, {}, "; ".join(problems))
    pairs = list(zip(before.inputs, after.inputs, strict=True))
    inputs = {was.name: now.name for was, now in pairs}
    casts = {was.name: now.dtype for was, now in pairs if was.dtype != now.dtype}
    outputs = {n.name: w.name for w, n in zip(before.outputs, after.outputs, strict=True)}
    return Alignment(inputs, casts, outputs)


def _align_values(
    what: str,
    before: tuple[ValueInfo, ...],
    after: tuple[ValueInfo, ...],
    allowed: frozenset[InterfaceChange],
) -> list[str]:
    was, now = [v.name for v in before], [v.name for v in after]
    if len(was) != len(now) or len(set(now)) != len(now):
        return [f"{what}s {was} became {now}"]
    if was != now and "names" not in allowed:
        return [f"{what}s {was} became {now}"]
    problems = []
    for old, new in zip(before, after, strict=True):
        legal = what == "input" and "input-dtypes" in allowed
        if old.dtype != new.dtype and not (legal and (old.dtype, new.dtype) == ("int64", "int32")):
            problems.append(f"{what} {old.name!r}: {old.dtype} became {new.dtype}")
        elif not _shapes_agree(what, old.shape, new.shape):
            problems.append(f"{what} {old.name!r}: shape {old.shape} became {new.shape}")
    return problems


def _shapes_agree(
    what: str,
    old: tuple[int | str | None, ...] | None,
    new: tuple[int | str | None, ...] | None,
) -> bool:
    if old is None or new is None:
        return True
    if len(old) != len(new):
        return False
    for a, b in zip(old, new, strict=True):
        if isinstance(a, int) and isinstance(b, int) and a != b:
            return False
        if what == "input" and not isinstance(a, int) and isinstance(b, int):
            return False
    return True
