"""How nodes join a model: they read its values as they are, or in another type or shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import NodeProto, TensorProto, helper

from optvet.graph.compose import rename_node_values, type_of

_FEW = 16
_STRETCH = 4.0
"""How much larger than in its fragment a number may be that may stand for a size or a scale."""


@dataclass(frozen=True)
class AddedNodes:
    """Nodes that are added at once.

    Attributes:
        nodes: In topological order.
        places: What the nodes read from outside, with values on which they run.
        constant: Those of ``places`` that are weights; the others are inputs of the model.
        reads: What the nodes read of the model.
        outputs: What they make and others may read.
        opsets: Versions of operator sets beside ONNX's own.
    """

    nodes: tuple[NodeProto, ...]
    places: Mapping[str, np.ndarray]
    constant: frozenset[str] = frozenset()
    reads: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    opsets: Mapping[str, int] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Values that the model holds."""
        return {n: v for n, v in self.places.items() if n in self.constant}

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """Values that callers give."""
        return {n: v for n, v in self.places.items() if n not in self.constant}

    @property
    def result(self) -> str:
        """What a step of one output makes."""
        return self.outputs[-1]


Fresh = Callable[[str], str]
"""A name that the model does not have, for a kind of value."""


def fitting(value: np.ndarray, place: np.ndarray) -> int:
    """How well a value fits where another was: 3 in type and shape, 2 in rank, 1 in type, else 0.

    Few numbers may be sizes, axes or scales: a value of larger ones does not fit there, since it
    could ask for any amount of memory.
    """
    if type_of(value) != type_of(place):
        return 0
    if place.size <= _FEW and place.ndim <= 1 and not _is_within(value, place):
        return 0
    return 3 if value.shape == place.shape else 2 if value.ndim == place.ndim else 1


def _is_within(value: np.ndarray, place: np.ndarray) -> bool:
    if place.dtype.kind not in "iuf" or not value.size or not place.size:
        return True
    low, high = place.min(), place.max()
    if place.dtype.kind in "iu":
        return bool(low <= value.min() and value.max() <= high)
    return bool(np.abs(value).max() <= _STRETCH * max(abs(low), abs(high)))


def adapted(name: str, value: np.ndarray, place: np.ndarray, fresh: Fresh) -> AddedNodes:
    """Nodes that make of ``value`` one of the type and shape of ``place``, and in its range."""
    numbers = np.arange(place.size, dtype=np.int64).reshape(place.shape) % value.size
    nodes: list[NodeProto] = []
    weights = {fresh("flat"): np.array([-1], np.int64), fresh("at"): numbers}
    if value.shape == place.shape:
        weights, last = {}, name
    else:
        last = fresh("picked")
        nodes = [
            helper.make_node("Reshape", [name, fresh("flat")], [fresh("line")]),
            helper.make_node("Gather", [fresh("line"), fresh("at")], [last]),
        ]
    if type_of(value) != type_of(place):
        nodes.append(helper.make_node("Cast", [last], [fresh("cast")], to=type_of(place)))
        last = fresh("cast")
    if place.dtype.kind in "iuf" and place.size:
        weights |= {fresh("low"): np.array(place.min()), fresh("high"): np.array(place.max())}
        nodes.append(
            helper.make_node("Clip", [last, fresh("low"), fresh("high")], [fresh("clipped")])
        )
        last = fresh("clipped")
    return AddedNodes(tuple(nodes), weights, frozenset(weights), (name,), (last,))


def merged(
    ours: tuple[str, np.ndarray], theirs: tuple[str, np.ndarray], fresh: Fresh
) -> AddedNodes:
    """Nodes that put two values in a row, in the type of one of them."""
    (mine, value), (other, more) = ours, theirs
    kinds = type_of(value), type_of(more)
    # Not all words are numbers, but all numbers can be words.
    to = TensorProto.STRING if TensorProto.STRING in kinds else kinds[0]
    flat = fresh("flat")
    nodes, parts = [], []
    for number, (name, kind) in enumerate(zip((mine, other), kinds, strict=True)):
        if kind != to:
            cast = fresh(f"cast{number}")
            nodes.append(helper.make_node("Cast", [name], [cast], to=to))
            name = cast
        parts.append(fresh(f"line{number}"))
        nodes.append(helper.make_node("Reshape", [name, flat], [parts[-1]]))
    nodes.append(helper.make_node("Concat", parts, [fresh("row")], axis=0))
    weights = {flat: np.array([-1], np.int64)}
    return AddedNodes(tuple(nodes), weights, frozenset(weights), (mine, other), (fresh("row"),))


def bound(step: AddedNodes, names: Mapping[str, str]) -> AddedNodes:
    """``step`` reading values of the model in some of its places, by their names."""
    nodes = tuple(rename_node_values(node, names) for node in step.nodes)
    places = {n: v for n, v in step.places.items() if n not in names}
    reads = (*step.reads, *dict.fromkeys(names.values()))
    return replace(step, nodes=nodes, places=places, reads=reads)
