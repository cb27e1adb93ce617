"""A model in parts, each in a session of its own: some nodes on a device, the others on the CPU.

No setting of ONNX Runtime keeps a node from every provider, so the graph is cut where the device
changes. Parts are made for the shapes of the inputs: most providers take no open dimension, and
leave the whole model to the CPU without a word.

Scripts that reproduce a fault without optvet have this code too: it imports nothing of optvet's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import onnx


class CutModel:
    """A model whose nodes ``on_device`` run on a device; None is all, in one session.

    ``make`` opens a session for a serialized model, on the device if its second argument is true.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        make: Callable[[bytes, bool], Any],
        on_device: Collection[str] | None,
    ) -> None:
        self.model, self.make, self.on_device = model, make, on_device
        self.parts: dict[Any, list[tuple[Any, Sequence[str], Sequence[str]]]] = {}

    def get_outputs(self) -> Any:
        """The outputs of the model, which have names."""
        return self.model.graph.output

    def run(self, names: Sequence[str] | None, feeds: Any) -> list[Any]:
        """The outputs called ``names``, all of them by default."""
        fed = {name: np.asarray(value) for name, value in feeds.items()}
        key = tuple(sorted((name, value.shape) for name, value in fed.items()))
        if key not in self.parts:
            self.parts[key] = list(self._sessions(fed))
        values = dict(fed)
        for session, inputs, outputs in self.parts[key]:
            given = {name: values[name] for name in inputs}
            values.update(zip(outputs, session.run(outputs, given), strict=True))
        return [values[name] for name in names or [o.name for o in self.get_outputs()]]

    def _sessions(self, fed: dict[str, np.ndarray]) -> Iterator[tuple[Any, list[str], list[str]]]:
        graph = self.model.graph
        if self.on_device is None:
            weights = {t.name for t in graph.initializer}
            inputs = [i.name for i in graph.input if i.name in fed or i.name not in weights]
            outputs = [o.name for o in graph.output]
            whole = (list(graph.node), graph.initializer, graph.sparse_initializer)
            yield self._session(*whole, inputs, outputs, fed, True), inputs, outputs
            return
        runs = list(runs_of(graph, self.on_device))
        # The CPU runs the model once, for types and shapes at the cuts.
        cuts = sorted({name for run in runs for name in (*run[2], *run[3])} - set(fed))
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        known = {o.name for o in graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in cuts if n not in known)
        found = self.make(model.SerializeToString(), False).run(cuts, fed) if cuts else []
        values = {**fed, **dict(zip(cuts, found, strict=True))}
        for nodes, on_device, inputs, outputs in runs:
            read = {name for node in nodes for name in reads_of(node)}
            dense = [t for t in graph.initializer if t.name in read]
            sparse = [t for t in graph.sparse_initializer if t.values.name in read]
            about = (nodes, dense, sparse, inputs, outputs, values)
            yield self._session(*about, on_device), inputs, outputs

    def _session(
        self,
        nodes: Sequence[onnx.NodeProto],
        weights: Any,
        sparse: Any,
        inputs: Sequence[str],
        outputs: Sequence[str],
        values: dict[str, np.ndarray],
        on_device: bool,
    ) -> Any:
        types = [
            onnx.helper.make_tensor_value_info(
                name,
                onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype),
                values[name].shape,
            )
            for name in inputs
        ]
        untyped = [onnx.ValueInfoProto(name=name) for name in outputs]
        if self.on_device is None:
            untyped = list(self.model.graph.output)
        graph = onnx.helper.make_graph(
            nodes, "part", types, untyped, weights, sparse_initializer=sparse
        )
        made = onnx.helper.make_model(
            graph,
            opset_imports=self.model.opset_import,
            ir_version=self.model.ir_version,
            functions=self.model.functions,
        )
        return self.make(made.SerializeToString(), on_device)


def runs_of(
    graph: onnx.GraphProto, on_device: Collection[str]
) -> Iterator[tuple[list[onnx.NodeProto], bool, list[str], list[str]]]:
    """Nodes that run together, whether on the device, and the values that they read and give.

    Runs alternate between the device and the CPU, and each takes what it can before the device
    changes, so that there are few of them. A Constant belongs to each run that reads it.
    """
    constants = {n.output[0]: n for n in graph.node if n.op_type == "Constant"}
    left = [n for n in graph.node if n.op_type != "Constant"]
    given = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    ready = {i.name for i in graph.input} | given | set(constants)
    groups: list[tuple[list[onnx.NodeProto], bool]] = []
    device = bool(left) and left[0].name in on_device
    while left:
        taken: list[onnx.NodeProto] = []
        rest: list[onnx.NodeProto] = []
        for node in left:  # in the graph's order, which is topological
            fits = (node.name in on_device) == device and set(reads_of(node)) <= ready
            (taken if fits else rest).append(node)
            ready.update(node.output if fits else ())
        if taken:
            groups.append((taken, device))
        device, left = not device, rest
    read = [{name for node in nodes for name in reads_of(node)} for nodes, _ in groups]
    wanted = {o.name for o in graph.output}
    for number, (nodes, device) in enumerate(groups):
        own = {name for node in nodes for name in node.output if name}
        shared = [constants[name] for name in sorted(read[number] & set(constants))]
        inputs = sorted(read[number] - own - given - set(constants))
        outputs = sorted(own & wanted.union(*read[number + 1 :]))
        yield [*shared, *nodes], device, inputs, outputs
    if returned := sorted(wanted & set(constants)):
        yield [constants[name] for name in returned], False, [], returned


def reads_of(node: onnx.NodeProto) -> Iterator[str]:
    """Values that a node reads, including those that only its nested graphs read."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            known = {v.name for v in (*body.input, *body.initializer)}
            for inner in body.node:
                yield from (name for name in reads_of(inner) if name not in known)
                known.update(inner.output)
            yield from (o.name for o in body.output if o.name not in known)
