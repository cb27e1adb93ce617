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
    names = _with_values(model)
    return tuple(value_info(i) for i in model.graph.input if i.name not in names)


def optional_inputs(model: ModelProto) -> tuple[ValueInfo, ...]:
    """Inputs that may be fed, since an initializer gives them a default.

    Source: onnx IR.md, "Graphs": before IR version 4 all initializers had to be listed.
    """
    if model.ir_version < 4:
        return ()
    names = _with_values(model)
    return tuple(value_info(i) for i in model.graph.input if i.name in names)


_HABIT = 4


def lists_weights(model: ModelProto) -> bool:
    """Whether the model lists its weights among the inputs by habit, not for a caller to feed.

    Exporters that come from IR version 3 list all of them: most weights, and no fewer than four.
    """
    listed = len(optional_inputs(model))
    return listed >= _HABIT and 2 * listed > len(_with_values(model))


def _with_values(model: ModelProto) -> set[str]:
    names = {t.name for t in model.graph.initializer}
    return names | {t.values.name for t in model.graph.sparse_initializer}


def graph_outputs(model: ModelProto) -> tuple[ValueInfo, ...]:
    """Graph outputs, in order."""
    return tuple(value_info(o) for o in model.graph.output)


@dataclass(frozen=True)
class Alignment:
    """How inputs and outputs of a candidate map to the reference's, or why they cannot.

    ``lost`` are optional inputs that the candidate does not have any more.
    """

    inputs: Mapping[str, str]
    casts: Mapping[str, str]
    outputs: Mapping[str, str]
    problem: str = ""
    lost: tuple[str, ...] = ()


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

    @property
    def optional(self) -> tuple[ValueInfo, ...]:
        """Inputs that may be fed."""
        ...


def align(
    before: HasInterface, after: HasInterface, allowed: frozenset[InterfaceChange]
) -> Alignment:
    """Match the interface of a candidate with the reference's.

    Names, order, element types and static dimensions must agree, except for changes in ``allowed``,
    which the applied passes declare. A dimension that became unknown, or an output dimension that
    became known, does not count as a change; ``shape_changes`` returns these.
    """
    problems = _align_values("input", before.inputs, after.inputs, allowed)
    problems += _align_values("output", before.outputs, after.outputs, allowed)
    if problems:
        return Alignment({}, {}, {}, "; ".join(problems))
    pairs = list(zip(before.inputs, after.inputs, strict=True))
    inputs = {was.name: now.name for was, now in pairs}
    casts = {was.name: now.dtype for was, now in pairs if was.dtype != now.dtype}
    outputs = {n.name: w.name for w, n in zip(before.outputs, after.outputs, strict=True)}
    lost = () if "names" in allowed else lost_inputs(before, after)
    return Alignment(inputs, casts, outputs, lost=lost)


def lost_inputs(before: HasInterface, after: HasInterface) -> tuple[str, ...]:
    """Optional inputs of ``before`` that ``after`` does not take as they were."""
    taken = {v.name: v for v in (*after.inputs, *after.optional)}
    return tuple(
        old.name
        for old in before.optional
        if (new := taken.get(old.name)) is None
        or new.dtype != old.dtype
        or not _shapes_agree("input", old.shape, new.shape)
    )


def shape_changes(before: HasInterface, after: HasInterface) -> dict[str, dict[str, str]]:
    """Shapes that say less, or more, than they did.

    Returns:
        Under "weaker" and "stronger", by input or output, what became what. A size that became
        open, or the other way round, counts; the name of an open size does not.
    """
    found: dict[str, dict[str, str]] = {"weaker": {}, "stronger": {}}
    for what, was, now in (
        ("input", before.inputs, after.inputs),
        ("output", before.outputs, after.outputs),
    ):
        by_name = {v.name: v.shape for v in now}
        for old in was:
            new = by_name.get(old.name, old.shape)
            if not _shapes_agree(what, old.shape, new):
                continue  # more than a note
            known, still = _sizes(old.shape), _sizes(new)
            words = f"{_shape_text(old.shape)} became {_shape_text(new)}"
            for direction, changed in (("weaker", known - still), ("stronger", still - known)):
                if changed:
                    found[direction][f"{what} {old.name!r}"] = words
    return found


def _sizes(shape: tuple[int | str | None, ...] | None) -> set[tuple[int, int | None]]:
    """What a shape says: its rank, and the sizes that are fixed."""
    if shape is None:
        return set()
    fixed: set[tuple[int, int | None]] = {(-1, len(shape))}
    return fixed | {(i, d) for i, d in enumerate(shape) if isinstance(d, int)}


def _shape_text(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "unknown rank"
    return f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


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
