"""What runtimes read into a model that ONNX's checker refuses: an order, and operator sets."""

from __future__ import annotations

import graphlib

from onnx import GraphProto, ModelProto, NodeProto

from optvet.graph.walk import ONNX_DOMAIN, domain_of, graphs, opset_versions, reads


def tidy(model: ModelProto) -> ModelProto:
    """``model``, or a copy of it with its nodes in order and every operator domain imported.

    Walks through a graph, and ONNX's shape inference, rely on both. Nodes that read each other in
    a circle stay as they are.
    """
    missing = _domains(model) - opset_versions(model).keys()
    if not missing and all(_is_sorted(graph) for graph in graphs(model.graph)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for domain in sorted(missing):
        copy.opset_import.add(domain=domain, version=1)
    # Inner graphs first: what a node reads does not depend on their order.
    for graph in graphs(copy.graph):
        if not _is_sorted(graph):
            _sort(graph)
    return copy


def _domains(model: ModelProto) -> set[str]:
    own = {domain_of(function) for function in model.functions}
    used = {domain_of(node) for graph in graphs(model.graph) for node in graph.node}
    return used - own - {ONNX_DOMAIN}


def _is_sorted(graph: GraphProto) -> bool:
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    return all(
        makers.get(name, -1) < i for i, node in enumerate(graph.node) for name in reads(node)
    )


def _sort(graph: GraphProto) -> None:
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needed = {
        i: {makers[name] for name in reads(node) if name in makers}
        for i, node in enumerate(graph.node)
    }
    try:
        order = list(graphlib.TopologicalSorter(needed).static_order())
    except graphlib.CycleError:
        return
    nodes = [NodeProto.FromString(graph.node[i].SerializeToString()) for i in order]
    del graph.node[:]
    graph.node.extend(nodes)
