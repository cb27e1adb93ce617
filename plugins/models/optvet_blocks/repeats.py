"""Find blocks that a graph repeats, such as the layers of a decoder, and leave all but two out.

Two blocks follow each other in the order of the nodes and are equal: the same operators with the
same attributes, weights of the same types and shapes, and operands that come from the same places,
in the block itself, in the one before, or from outside of both; what is computed from weights alone
counts as a weight. Each reads what the one before has made: branches side by side, such as the
three of an attention, are no row. What follows the last block then reads the last one that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto

from optvet.graph import reads, rename_node_values

KEPT = 2
"""So that a pass sees how one block ends and the next begins."""
_PERIODS = 12
"""Lengths of a block whose operands are looked at, the most promising first."""
_WORTH = 20
"""A row is cut if that leaves out one node of so many: less is not worth what is not seen then."""


@dataclass(frozen=True)
class BlockRow:
    """A block that stands ``count`` times in a row, the first time from node ``start`` on."""

    start: int
    length: int
    count: int

    @property
    def left_out(self) -> range:
        """The nodes that are left out: of all blocks but the first and the last of the row."""
        first = self.start + (KEPT - 1) * self.length
        return range(first, self.start + (self.count - 1) * self.length)


def leave_out_repeats(model: ModelProto) -> list[BlockRow]:
    """Cut ``model``, whose weights need not be loaded; what was cut, one after the other."""
    found, most = list[BlockRow](), len(model.graph.node)
    while (row := _largest(model.graph)) is not None:
        if len(row.left_out) * _WORTH < most or not _cut(model.graph, row):
            break
        found.append(row)
    return found


def _largest(graph: GraphProto) -> BlockRow | None:
    """The row that leaves out the most nodes; None if no block stands more than ``KEPT`` times.

    Blocks are first compared by their operators alone, which is quick.
    """
    kinds: dict[bytes, int] = {}
    keys = np.array([kinds.setdefault(_kind(n, i), len(kinds)) for i, n in enumerate(graph.node)])
    longest = [
        (row, period)
        for period in range(1, len(keys) // (KEPT + 1) + 1)
        if (row := _longest_row(keys[:-period] == keys[period:], period)) is not None
    ]
    longest.sort(key=lambda found: (-len(found[0].left_out), found[1]))
    operands = _BlockOperands(graph)
    best = None
    for rough, period in longest[:_PERIODS]:
        if best is not None and len(rough.left_out) <= len(best.left_out):
            break
        same = keys[:-period] == keys[period:]
        for i in np.flatnonzero(same):
            same[i] = operands.correspond(int(i), int(i) + period)
        row = _longest_row(same, period)
        if row is None or not operands.are_linked(row):
            continue
        if best is None or len(row.left_out) > len(best.left_out):
            best = row
    return best


def _kind(node: NodeProto, index: int) -> bytes:
    """What two nodes have in common that may correspond; a node with a nested graph is alone."""
    if any(a.HasField("g") or a.graphs for a in node.attribute):
        return b"%d" % index
    attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
    return b"\0".join([node.domain.encode(), node.op_type.encode(), *attributes])


def _longest_row(same: np.ndarray, period: int) -> BlockRow | None:
    """The longest row of blocks, if node i corresponds to node i + period where ``same``."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    if not len(edges):
        return None
    begins, ends = edges[::2], edges[1::2]
    at = int(np.argmax(ends - begins))
    count = int(ends[at] - begins[at]) // period + 1
    return BlockRow(int(begins[at]), period, count) if count > KEPT else None


class _BlockOperands:
    """Where the operands of nodes come from."""

    def __init__(self, graph: GraphProto) -> None:
        self._nodes = graph.node
        self._makers = {
            name: (i, slot)
            for i, node in enumerate(graph.node)
            for slot, name in enumerate(node.output)
            if name
        }
        self._given: dict[str, tuple[object, ...]] = {
            value.name: (value.type.tensor_type.elem_type, len(value.type.tensor_type.shape.dim))
            for value in graph.input
        }
        self._given |= {w.name: ("weight", w.data_type, *w.dims) for w in graph.initializer}
        inputs = {value.name for value in graph.input} - {w.name for w in graph.initializer}
        numbers: dict[tuple[object, ...], int] = {}
        for i, node in enumerate(graph.node):
            keys = [self._given.get(name) for name in node.input]
            if None not in keys and not inputs.intersection(node.input):
                number = numbers.setdefault((_kind(node, i), *keys), len(numbers))
                self._given |= {name: ("made", number, at) for at, name in enumerate(node.output)}

    def are_linked(self, row: BlockRow) -> bool:
        """Whether the second block reads what the first one has made."""
        second = range(row.start + row.length, row.start + 2 * row.length)
        makers = (self._makers.get(n) for i in second for n in self._nodes[i].input)
        return any(m is not None and row.start <= m[0] < second.start for m in makers)

    def correspond(self, first: int, second: int) -> bool:
        """Whether two nodes read the same, each in its own block."""
        one, other = self._nodes[first], self._nodes[second]
        if len(one.input) != len(other.input) or len(one.output) != len(other.output):
            return False
        pairs = zip(one.input, other.input, strict=True)
        return all(a == b or self._are_alike(a, b, second - first) for a, b in pairs)

    def _are_alike(self, first: str, second: str, apart: int) -> bool:
        makers = self._makers.get(first), self._makers.get(second)
        if makers[0] and makers[1]:
            if makers[0][1] == makers[1][1] and makers[1][0] - makers[0][0] == apart:
                return True
        given = self._given.get(first), self._given.get(second)
        return given[0] is not None and given[0] == given[1]


def _cut(graph: GraphProto, row: BlockRow) -> bool:
    """Leave the nodes out; False, and nothing changed, if something else reads what they make."""
    gone, step = row.left_out, len(row.left_out)
    names: dict[str, str] = {}
    for i in gone:
        if i - step >= row.start:
            names |= dict(zip(graph.node[i].output, graph.node[i - step].output, strict=True))
    made = {name for i in gone for name in graph.node[i].output if name}
    rest = [node for i, node in enumerate(graph.node) if i not in gone]
    later = graph.node[gone.stop :]
    wanted = {name for node in later for name in reads(node)} & made
    outputs = [value for value in graph.output if value.name not in made]
    if not wanted <= names.keys() or not outputs:
        return False
    unread = _unread(graph)
    kept = [rename_node_values(n, _chosen(n, names)) for n in rest]
    del graph.node[:], graph.output[:]
    graph.node.extend(kept)
    graph.output.extend(outputs)
    _forget_unused(graph, unread)
    return True


def _chosen(node: NodeProto, names: Mapping[str, str]) -> dict[str, str]:
    return {name: names[name] for name in reads(node) if name in names}


def _unread(graph: GraphProto) -> set[str]:
    """What nodes make that neither an output nor another node needs."""
    used = {value.name for value in graph.output}
    unread = set[str]()
    for node in reversed(graph.node):
        if used.isdisjoint(node.output):
            unread.update(node.output)
        else:
            used.update(reads(node))
    return unread


def _forget_unused(graph: GraphProto, before: AbstractSet[str]) -> None:
    """Remove nodes, weights, inputs and types of what is not there any more.

    What nothing has read ``before`` stays: it is for the optimizer to remove.
    """
    unread = _unread(graph) - before
    _keep(graph.node, (n for n in graph.node if not unread.issuperset(filter(None, n.output))))
    used = {name for node in graph.node for name in reads(node)}
    used |= {value.name for value in graph.output}
    made = {name for node in graph.node for name in node.output}
    for values in (graph.initializer, graph.input):
        _keep(values, (v for v in values if v.name in used))
    _keep(graph.sparse_initializer, (v for v in graph.sparse_initializer if v.values.name in used))
    _keep(graph.value_info, (v for v in graph.value_info if v.name in made))


def _keep(values: Any, wanted: Iterable[Any]) -> None:
    chosen = list(wanted)
    del values[:]
    values.extend(chosen)
