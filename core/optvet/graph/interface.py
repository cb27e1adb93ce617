"""Inputs and outputs of an ONNX model, and matching those of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from onnx import ModelProto, TypeProto

from optvet.graph.types import dtype_name, value_info
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


Shape = tuple[int | str | None, ...] | None
"""A declared shape; None if even the rank is unknown."""


@dataclass(frozen=True)
class Interface:
    """What a caller of a model sees of it."""

    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    optional: tuple[ValueInfo, ...] = ()


def interface_of(model: ModelProto, *, by_habit: bool = True) -> Interface:
    """The interface of a model.

    Args:
        model: The model.
        by_habit: Whether weights that it lists among its inputs by habit are optional inputs: of
            the original of a comparison, they are none that a caller would miss.
    """
    listed = by_habit or not lists_weights(model)
    optional = optional_inputs(model) if listed else ()
    pairs = zip(graph_outputs(model), model.graph.output, strict=True)
    outputs = tuple(replace(v, dtype=_element_type(o.type) or v.dtype) for v, o in pairs)
    return Interface(graph_inputs(model), outputs, optional)


def _element_type(kind: TypeProto) -> str:
    """The element type of a tensor, inside the types around it; empty for other types."""
    if kind.HasField("sequence_type"):
        return f"sequence({_element_type(kind.sequence_type.elem_type)})"
    if kind.HasField("optional_type"):
        return f"optional({_element_type(kind.optional_type.elem_type)})"
    return dtype_name(kind.tensor_type.elem_type) if kind.HasField("tensor_type") else ""


@dataclass(frozen=True)
class Alignment:
    """How inputs and outputs of a candidate map to the reference's, or why they cannot.

    ``lost`` are optional inputs that the candidate does not have any more. ``disputed`` are the
    outputs whose declared shapes contradict each other, with the reference's declaration and the
    candidate's: which of the two is wrong, only a run tells; see ``describe_misdeclared_outputs``.
    """

    inputs: Mapping[str, str]
    casts: Mapping[str, str]
    outputs: Mapping[str, str]
    problem: str = ""
    lost: tuple[str, ...] = ()
    disputed: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict)

    @property
    def changed(self) -> str:
        """What a caller can no longer do, in words; empty if nothing."""
        return self.problem or (f"optional inputs are gone: {self.lost}" if self.lost else "")


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

    Names, order, element types and static dimensions of inputs must agree, except for changes in
    ``allowed``, which the applied passes declare. A dimension that became unknown, or an output
    dimension that became known, does not count as a change; ``shape_changes`` returns these.
    Shapes of outputs that contradict each other are ``disputed``: one of the two models declares
    what it does not compute, and that may be the reference.
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
    disputed = {
        was.name: (was.shape, now.shape)
        for was, now in zip(before.outputs, after.outputs, strict=True)
        if not _shapes_agree("output", was.shape, now.shape)
    }
    return Alignment(inputs, casts, outputs, lost=lost, disputed=disputed)


def describe_misdeclared_outputs(alignment: Alignment, computed: Mapping[str, np.ndarray]) -> str:
    """Which disputed outputs the candidate declares otherwise than it computes them, in words.

    Args:
        alignment: Of the candidate.
        computed: Outputs that the candidate gave, by the reference's names. One that is not among
            them proves nothing, so the reference's declaration holds.
    """
    return "; ".join(
        f"output {name!r}: shape {was} became {now}"
        for name, (was, now) in alignment.disputed.items()
        if name not in computed or not _shapes_agree("output", now, computed[name].shape)
    )


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


Place = tuple[str, int]
"""An input and one of its axes."""


def fixed_sizes(before: HasInterface, after: HasInterface) -> dict[Place, int]:
    """The sizes of inputs that ``after`` fixes and ``before`` leaves open."""
    taken = {v.name: v.shape or () for v in after.inputs}
    return {
        (old.name, axis): new
        for old in before.inputs
        if old.shape and len(old.shape) == len(taken.get(old.name, ()))
        for axis, (was, new) in enumerate(zip(old.shape, taken[old.name], strict=True))
        if isinstance(new, int) and not isinstance(was, int)
    }


def with_sizes(inputs: Sequence[ValueInfo], sizes: Mapping[Place, int]) -> tuple[ValueInfo, ...]:
    """The inputs with these sizes fixed."""
    return tuple(
        v
        if v.shape is None
        else replace(v, shape=tuple(sizes.get((v.name, i), d) for i, d in enumerate(v.shape)))
        for v in inputs
    )


def feeds_of_size(
    inputs: Sequence[ValueInfo], feeds: Mapping[str, np.ndarray], place: Place, size: int
) -> dict[str, np.ndarray]:
    """The feeds with another size at ``place`` and wherever the inputs name the same one.

    Values are repeated, or left out.
    """
    shapes = {v.name: v.shape for v in inputs if v.shape is not None}
    name = shapes[place[0]][place[1]]
    changed = dict(feeds)
    for key, array in feeds.items():
        axes = [i for i, d in enumerate(shapes.get(key, ())) if d == name and d is not None]
        for axis in {*axes, *([place[1]] if key == place[0] else [])}:
            array = np.take(array, np.arange(size) % max(array.shape[axis], 1), axis)
        changed[key] = array
    return changed


ShapeChange = tuple[str, str]
"""A declared shape before and after, as text."""


def shape_changes(before: HasInterface, after: HasInterface) -> dict[str, dict[str, ShapeChange]]:
    """Shapes that say less, or more, than they did.

    Returns:
        Under "weaker" and "stronger", by input or output, what became what. A size that became
        open, or the other way round, counts; the name of an open size does not. Under "corrected"
        outputs whose shapes contradict each other: see ``describe_misdeclared_outputs``.
    """
    found: dict[str, dict[str, ShapeChange]] = {"weaker": {}, "stronger": {}, "corrected": {}}
    for what, was, now in (
        ("input", before.inputs, after.inputs),
        ("output", before.outputs, after.outputs),
    ):
        by_name = {v.name: v.shape for v in now}
        for old in was:
            new = by_name.get(old.name, old.shape)
            change = _shape_text(old.shape), _shape_text(new)
            if not _shapes_agree(what, old.shape, new):
                if what == "output":  # of an input it is more than a note
                    found["corrected"][f"{what} {old.name!r}"] = change
                continue
            known, still = _sizes(old.shape), _sizes(new)
            for direction, changed in (("weaker", known - still), ("stronger", still - known)):
                if changed:
                    found[direction][f"{what} {old.name!r}"] = change
    return found


def find_weaker_shapes(before: HasInterface, after: HasInterface) -> dict[str, tuple[str, str]]:
    """Whether inputs, or outputs, declare less of their shapes, as a change of metadata.

    That they declare more is what shape inference is for.
    """
    changed = shape_changes(before, after)["weaker"]
    return {f"shape of {k.split()[0]}s": pair for k, pair in changed.items()}


def _sizes(shape: Shape) -> set[tuple[int, int | None]]:
    """What a shape says: its rank, and the sizes that are fixed."""
    if shape is None:
        return set()
    fixed: set[tuple[int, int | None]] = {(-1, len(shape))}
    return fixed | {(i, d) for i, d in enumerate(shape) if isinstance(d, int)}


def _shape_text(shape: Shape) -> str:
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
    if was != now and ("names" not in allowed or len(was) != len(now) or _repeats(now)):
        return [f"{what}s {was} became {now}"]
    problems = []
    for old, new in zip(before, after, strict=True):
        legal = what == "input" and "input-dtypes" in allowed
        if old.dtype != new.dtype and not (legal and (old.dtype, new.dtype) == ("int64", "int32")):
            problems.append(f"{what} {old.name!r}: {old.dtype} became {new.dtype}")
        elif what == "input" and not _shapes_agree(what, old.shape, new.shape):
            problems.append(f"{what} {old.name!r}: shape {old.shape} became {new.shape}")
    return problems


def _repeats(names: Sequence[str]) -> bool:
    return len(set(names)) != len(names)


def _shapes_agree(what: str, old: Shape, new: Shape) -> bool:
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
