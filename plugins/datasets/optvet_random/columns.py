"""Which column of which input a value inside a graph holds, and how it was shifted and scaled.

Every input has columns: its elements behind the first axis, which counts rows. The numbers of these
columns take the place of the values and go through the graph as values do: operators that only
move values are evaluated on them, those that shift or scale by constants are noted down. What a
model compares with a constant can so be computed back to inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from optvet.graph import ONNX_DOMAIN, attribute_of
from optvet.plugin import ValueInfo
from optvet_random.graph import ConsumerGraph
from optvet_random.values import FLOATS

MOST_COLUMNS = 1 << 16
"""Inputs with more columns are left alone: pictures, not records."""
_SAME = frozenset(
    {
        *("Identity", "Cast", "CastLike", "Dropout", "StringNormalizer", "Tokenizer"),
        *("StringSplit", "Imputer", "Relu", "Clip", "Scaler", "Normalizer", "LpNormalization"),
    }
)
_MOVES = frozenset(
    {
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Gather"),
        *("Concat", "Expand", "ArrayFeatureExtractor", "FeatureVectorizer"),
    }
)
_ARITHMETIC: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}


@dataclass(frozen=True)
class ColumnView:
    """A value that holds ``columns`` of inputs: ``value = input * scale + shift``, elementwise.

    The first axis of all three arrays is that of the rows, and has one element. ``words``: texts
    were split into words on the way.
    """

    columns: np.ndarray
    scale: np.ndarray
    shift: np.ndarray
    words: bool = False

    @property
    def exact(self) -> bool:
        """Whether the values are those of the inputs to the bit."""
        return bool((self.scale == 1).all() and (self.shift == 0).all())


@dataclass(frozen=True)
class InputColumns:
    """The columns of one input: ``count`` of them from ``first``; ``axis``: one is the rows'."""

    info: ValueInfo
    first: int
    count: int
    axis: bool

    @property
    def whole(self) -> bool:
        """Whether the values are integers."""
        return self.info.dtype not in FLOATS and self.info.dtype != "string"


def columns_of(inputs: Sequence[ValueInfo]) -> list[InputColumns]:
    """All inputs with their columns, which are numbered from 0; none of an input of many."""
    found, first = [], 0
    for info in inputs:
        shape = info.shape or ()
        axis = len(shape) > 1 or (len(shape) == 1 and not isinstance(shape[0], int))
        sizes = [d if isinstance(d, int) and d > 0 else 1 for d in shape[1 if axis else 0 :]]
        count = math.prod(sizes) if info.shape is not None else 0
        count = count if count <= MOST_COLUMNS else 0
        found.append(InputColumns(info, first, count, axis))
        first += count
    return found


def views_of(graph: ConsumerGraph, inputs: Sequence[InputColumns]) -> dict[str, ColumnView]:
    """The view of each value that holds inputs, by name."""
    views: dict[str, ColumnView] = {}
    for each in inputs:
        if each.count:
            shape = each.info.shape or ()
            sizes = [d if isinstance(d, int) and d > 0 else 1 for d in shape]
            ids = np.arange(each.first, each.first + each.count)
            ids = ids.reshape([1, *sizes[1:]] if each.axis else sizes)
            views[each.info.name] = ColumnView(ids, np.ones(ids.shape), np.zeros(ids.shape))
    for name in [*views]:
        _hand_on(graph, name, views)
    for node in graph.nodes:
        known = [n for n in node.input if n in views]
        if known:
            for name, view in zip(node.output, _pass(graph, node, views), strict=False):
                if view is not None and view.columns.size:
                    views[name] = view
                    _hand_on(graph, name, views)
    return views


def _hand_on(graph: ConsumerGraph, name: str, views: dict[str, ColumnView]) -> None:
    """Give the view of a value to the inputs of the loops that it goes into."""
    for inner in graph.flows.get(name, ()):
        views.setdefault(inner, views[name])


def _pass(
    graph: ConsumerGraph, node: onnx.NodeProto, views: Mapping[str, ColumnView]
) -> list[ColumnView | None]:
    """The views of what a node makes of them; none where it computes something new."""
    try:
        with np.errstate(all="ignore"):
            if node.op_type in _ARITHMETIC:
                return [_shifted(graph, node, views)]
            moved = _moved(graph, node, views) if node.op_type in _MOVES else None
            if moved is None and node.op_type in _SAME and node.input[0] in views:
                moved = [views[node.input[0]]]
            return [_scaled(node, v) for v in moved] if moved is not None else []
    except Exception:  # shapes that are not known, an operator at other inputs than it can have
        return []


def _scaled(node: onnx.NodeProto, view: ColumnView) -> ColumnView:
    if node.op_type == "Scaler":
        offset = np.array(attribute_of(node, "offset", [0.0]))
        scale = np.array(attribute_of(node, "scale", [1.0]))
        return ColumnView(view.columns, view.scale * scale, (view.shift - offset) * scale)
    if node.op_type in ("Tokenizer", "StringSplit"):
        return ColumnView(view.columns, view.scale, view.shift, words=True)
    return view


def _shifted(
    graph: ConsumerGraph, node: onnx.NodeProto, views: Mapping[str, ColumnView]
) -> ColumnView | None:
    """The view behind a sum or product of a view and a constant that has no rows of its own."""
    index = 0 if node.input[0] in views else 1
    view, other = views[node.input[index]], graph.constant_behind(node.input[1 - index])
    if other is None or other.dtype.kind not in "fiu":
        return None
    other = np.broadcast_to(other.astype(np.float64), view.columns.shape)
    if index == 1 and node.op_type == "Div":
        return None
    if index == 1 and node.op_type == "Sub":
        return ColumnView(view.columns, -view.scale, other - view.shift)
    do = _ARITHMETIC[node.op_type]
    scale = do(view.scale, other) if node.op_type in ("Mul", "Div") else view.scale
    return ColumnView(view.columns, scale, do(view.shift, other))


def _moved(
    graph: ConsumerGraph, node: onnx.NodeProto, views: Mapping[str, ColumnView]
) -> list[ColumnView] | None:
    """The views behind an operator that moves values: it is evaluated on all three arrays."""
    from onnx.reference import ReferenceEvaluator

    joins = node.op_type in ("Concat", "FeatureVectorizer")
    sources = list(node.input) if joins else [node.input[0]]
    if any(n not in views for n in sources):
        return None
    graph_inputs = [onnx.ValueInfoProto(name=n) for n in dict.fromkeys(node.input) if n]
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "moves", graph_inputs, outputs),
        opset_imports=[
            onnx.helper.make_opsetid("" if d == ONNX_DOMAIN else d, v)
            for d, v in graph.opsets.items()
        ],
    )
    run = ReferenceEvaluator(model).run
    constants = {n: graph.constant_behind(n) for n in node.input if n and n not in sources}
    if any(c is None for c in constants.values()):
        return None
    parts = [
        run(None, {**constants, **{n: getattr(views[n], field) for n in sources}})
        for field in ("columns", "scale", "shift")
    ]
    words = any(views[n].words for n in sources)
    return [
        ColumnView(np.asarray(columns), np.asarray(scale), np.asarray(shift), words)
        for columns, scale, shift in zip(*parts, strict=True)
    ]
