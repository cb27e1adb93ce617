"""A model that is being edited, indexed: an edit costs what it changes, not the model's size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from optvet.graph.walk import bodies_of, nodes_of, opset_versions
from optvet.spec.errors import InputError

_MOST_MOVES = 5_000_000
"""Readers that all edits of a patch together may give another value."""


class DoesNotFit(InputError):
    """An edit names something that the model does not have."""


class EditedModel:
    """Which node makes and which nodes read each value, kept as nodes change.

    Names of values are those of ``name_apart``: one name is one value in all graphs. Nodes that
    are removed stay in their graph until ``finish``.
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.opsets = opset_versions(model)
        self.weights: dict[str, TensorProto] = {}
        self.outputs: dict[str, list[tuple[GraphProto, ValueInfoProto]]] = {}
        self.readers: dict[str, dict[int, NodeProto]] = {}
        self._makers: dict[str, list[tuple[GraphProto, NodeProto]]] = {}
        self._homes: dict[str, GraphProto] = {}
        self._given: Counter[str] = Counter()
        self._nodes: dict[int, NodeProto] = {}
        self._removed: set[int] = set()
        self._inputs_removed: set[str] = set()
        self._names = {n.name for n in nodes_of(model.graph)}
        self._numbers: Counter[str] = Counter()
        self._moves = 0
        self._enter(model.graph)

    def _enter(self, graph: GraphProto) -> None:
        for value in (*graph.initializer, *graph.input):
            self._given[value.name] += 1
            self._homes[value.name] = graph
        for tensor in graph.initializer:
            self.weights.setdefault(tensor.name, tensor)
        for output in graph.output:
            self.outputs.setdefault(output.name, []).append((graph, output))
        for node in graph.node:
            self._add(graph, node)

    def _leave(self, graph: GraphProto) -> None:
        for value in (*graph.initializer, *graph.input):
            self._given[value.name] -= 1
            self.weights.pop(value.name, None)
        for output in graph.output:
            # By name: what is read of a body anew is another object, and names are apart.
            self.outputs.pop(output.name, None)
        for node in graph.node:
            self._drop(node)

    def _add(self, graph: GraphProto, node: NodeProto) -> None:
        self._nodes[id(node)] = node  # Kept, so that its id stays its own.
        for name in filter(None, node.output):
            self._makers.setdefault(name, []).append((graph, node))
        for name in filter(None, node.input):
            self.readers.setdefault(name, {})[id(node)] = node
        for body in bodies_of(node):
            self._enter(body)

    def _drop(self, node: NodeProto) -> None:
        for name in filter(None, node.output):
            self._makers[name] = [
                pair for pair in self._makers.get(name, ()) if pair[1] is not node
            ]
        for name in filter(None, node.input):
            self.readers.get(name, {}).pop(id(node), None)
        for body in bodies_of(node):
            self._leave(body)

    # --- asking ----------------------------------------------------------------------------------

    def made(self, value: str) -> tuple[GraphProto, NodeProto]:
        """The node that makes ``value``, and its graph.

        Raises:
            DoesNotFit: There is none.
        """
        if found := self._makers.get(value):
            return found[0]
        raise DoesNotFit(f"no node of the model makes {value!r}; give the model the patch is for")

    def require(self, value: str) -> None:
        """Raise DoesNotFit if there is a name but no such value."""
        if value and not self._given[value]:
            self.made(value)

    def is_made(self, value: str) -> bool:
        """Whether a node makes it."""
        return bool(self._makers.get(value))

    def home(self, value: str) -> GraphProto:
        """The graph of a value; the outermost one if there is no such value."""
        if self.is_made(value):
            return self.made(value)[0]
        return self._homes.get(value, self.model.graph)

    def is_read(self, node: NodeProto) -> bool:
        """Whether something reads or gives a result of a node."""
        return any(self.readers.get(name) or self.outputs.get(name) for name in node.output if name)

    def is_output(self, graph: GraphProto, value: str) -> bool:
        """Whether a graph gives a value."""
        return any(owner is graph for owner, _ in self.outputs.get(value, ()))

    def fresh_name(self, like: str) -> str:
        """A name that no value and no node has."""
        while True:
            self._numbers[like] += 1
            name = f"{like}_repair{self._numbers[like]}"
            if not (self._given[name] or self.is_made(name) or name in self._names):
                return name

    # --- changing --------------------------------------------------------------------------------

    @contextmanager
    def changing(self, graph: GraphProto, node: NodeProto) -> Iterator[NodeProto]:
        """A node that is changed inside; what it reads and makes is read anew."""
        self._drop(node)
        try:
            yield node
        finally:
            self._add(graph, node)

    def append(self, graph: GraphProto, node: NodeProto) -> NodeProto:
        """Add a copy of a node to a graph."""
        copy: NodeProto = graph.node.add()
        copy.CopyFrom(node)
        self._names.add(copy.name)
        self._add(graph, copy)
        return copy

    def add_weight(self, tensor: TensorProto) -> None:
        """Add a copy of a weight to the outermost graph."""
        copy = self.model.graph.initializer.add()
        copy.CopyFrom(tensor)
        self.weights.setdefault(copy.name, copy)
        self._given[copy.name] += 1
        self._homes[copy.name] = self.model.graph

    def remove_input(self, name: str) -> None:
        """Remove an input of the outermost graph, if it has one of that name."""
        self._inputs_removed.add(name)

    def remove(self, node: NodeProto) -> None:
        """Remove a node."""
        self._drop(node)
        self._removed.add(id(node))

    def set_input(self, node: NodeProto, index: int, value: str) -> None:
        """Let a node read a value."""
        old = node.input[index]
        node.input[index] = value
        if old not in node.input:
            self.readers.get(old, {}).pop(id(node), None)
        if value:
            self.readers.setdefault(value, {})[id(node)] = node

    def redirect(self, graph: GraphProto, old: str, new: str) -> None:
        """Let all that read ``old``, and graphs inside that give it, take ``new``.

        Raises:
            DoesNotFit: The patch moves more readers than any repair does.
        """
        readers = self.readers.pop(old, {})
        self._moves += len(readers)
        if self._moves > _MOST_MOVES:
            raise DoesNotFit(f"the patch gives more than {_MOST_MOVES:,} readers another value")
        for node in readers.values():
            for index, name in enumerate(node.input):
                if name == old:
                    node.input[index] = new
        self.readers.setdefault(new, {}).update(readers)
        pairs = self.outputs.pop(old, [])
        for owner, output in pairs:
            if owner is not graph:
                output.name = new
            self.outputs.setdefault(output.name, []).append((owner, output))

    def finish(self, sort: Callable[[GraphProto, list[NodeProto]], None]) -> None:
        """Take out what was removed, and put the nodes of each graph in order.

        Args:
            sort: Is given each graph, and the nodes that it keeps.
        """
        graph = self.model.graph
        # A weight that was named as an input of old; its input goes.
        for index in reversed(range(len(graph.input))):
            if graph.input[index].name in self._inputs_removed:
                del graph.input[index]
        todo, kept = [graph], list[tuple[GraphProto, list[NodeProto]]]()
        while todo:
            each = todo.pop()
            nodes = [node for node in each.node if id(node) not in self._removed]
            kept.append((each, nodes))
            todo += [body for node in nodes for body in bodies_of(node)]
        for each, nodes in reversed(kept):  # Inner ones first: a node in order is a copy.
            sort(each, nodes)
