"""Which nodes of a float32 model can compute in a half type, and what a converter leaves of them.

Only nodes of the outermost graph are told apart: what is inside a node goes with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from onnx import ModelProto, NodeProto, TensorProto

from optvet.graph.tidy import tidy
from optvet.graph.types import element_types
from optvet.graph.walk import attribute_of, domain_of, is_onnx, opset_versions, reads, schema_of

_FLOAT = TensorProto.FLOAT
_NUMBERED = re.compile(r"[._]\d+$")
_WITHOUT_VALUES = frozenset({"Constant", "Shape", "Size"})
"""Operators that no type of what they read matters to, and constants."""


def half_nodes(
    model: ModelProto, blocked: Collection[str] = (), types: Mapping[str, int] | None = None
) -> list[NodeProto]:
    """Nodes that compute with float32 and that the standard lets compute with float16.

    Constants are left out: they go with the nodes that read them. ``blocked`` are operators that
    a converter leaves in float32. ``types`` are those of ``element_types``, which are inferred
    unless they are given: inference is native code.
    """
    types = element_types(model) if types is None else types
    versions = opset_versions(model)
    return [
        node
        for node in model.graph.node
        if node.op_type not in {*blocked, *_WITHOUT_VALUES} and _may_be_half(node, types, versions)
    ]


def float_nodes(model: ModelProto, types: Mapping[str, int] | None = None) -> list[NodeProto]:
    """Nodes that read or make float32, without constants; ``types`` as of ``half_nodes``."""
    types = element_types(model) if types is None else types
    return [
        node
        for node in model.graph.node
        if node.op_type != "Constant"
        and any(types.get(name) == _FLOAT for name in (*reads(node), *node.output))
    ]


def group_nodes(nodes: Iterable[NodeProto], by: str) -> dict[str, tuple[str, ...]]:
    """Names of nodes by group.

    Args:
        nodes: Nodes that have names.
        by: "node"; "operator"; "layer", which is the name before its last slash, if it has any; or
            "block", which is the layer up to its first numbered part, such as "/encoder/layer.0".
    """
    groups: dict[str, list[str]] = {}
    for node in nodes:
        scope = node.name.rpartition("/")[0] or node.name
        names = {"node": node.name, "operator": node.op_type, "layer": scope}
        group = _block_of(scope) if by == "block" else names[by]
        groups.setdefault(group, []).append(node.name)
    return {group: tuple(names) for group, names in groups.items()}


def _block_of(scope: str) -> str:
    parts = scope.split("/")
    numbered = (end for end, part in enumerate(parts, 1) if _NUMBERED.search(part))
    return "/".join(parts[: next(numbered, None)])


def constants_beside(model: ModelProto, kept: Collection[str]) -> list[str]:
    """Names of constants that nodes named in ``kept`` read.

    In a half type they would lose what their readers keep.
    """
    read = {name for node in model.graph.node if node.name in kept for name in reads(node)}
    return [
        node.name
        for node in model.graph.node
        if node.op_type == "Constant" and is_onnx(node) and read.intersection(node.output)
    ]


def half_block_list(
    model: ModelProto,
    kept: Collection[str],
    blocked: Collection[str] = (),
    types: Mapping[str, int] | None = None,
) -> list[str]:
    """Names of the nodes that a converter must be told to leave in float32.

    Args:
        model: A model whose nodes have names.
        kept: Nodes to leave, by name.
        blocked: Operators that the converter leaves in float32 itself.
        types: As of ``half_nodes``.

    Returns:
        ``kept``; nodes that can never be of float16; and the constants beside any of these.
    """
    types = element_types(model) if types is None else types
    able = {node.name for node in half_nodes(model, blocked, types)}
    nodes = [
        node.name
        for node in float_nodes(model, types)
        if node.op_type not in blocked and (node.name in kept or node.name not in able)
    ]
    fixed = [node.name for node in model.graph.node if node.op_type in blocked]
    return [*nodes, *constants_beside(model, [*nodes, *fixed])]


def join_casts(model: ModelProto) -> ModelProto:
    """``model`` without casts of float32 to a half type and back, which round what was kept.

    A converter writes one pair between any two neighbours that it leaves in float32.
    """
    types = element_types(model)
    made_by = {name: node for node in model.graph.node for name in node.output}
    source_of: dict[str, str] = {}
    for node in model.graph.node:
        first = made_by.get(node.input[0]) if _casts_to(node, _FLOAT) else None
        if first is None or not _casts_to(first, TensorProto.FLOAT16, TensorProto.BFLOAT16):
            continue
        if types.get(first.input[0]) == _FLOAT:
            source_of[node.output[0]] = first.input[0]
            node.input[0] = first.input[0]
    outputs = {value.name for value in model.graph.output}
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            while name in source_of:
                name = source_of[name]
            node.input[index] = name
    read = {name for node in model.graph.node for name in reads(node)} | outputs
    for node in reversed(list(model.graph.node)):
        casts = _casts_to(node, _FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
        if casts and not read.intersection(node.output):
            model.graph.node.remove(node)
    return tidy(model)


def _casts_to(node: NodeProto, *types: int) -> bool:
    return node.op_type == "Cast" and is_onnx(node) and attribute_of(node, "to") in types


def _may_be_half(node: NodeProto, types: Mapping[str, int], versions: Mapping[str, int]) -> bool:
    """Whether every type of the node that is float32 now may be float16, and there is one."""
    schema = schema_of(domain_of(node), node.op_type, versions)
    if schema is None:
        # An operator of another domain: its converter knows.
        return any(types.get(n) == _FLOAT for n in (*node.input, *node.output))
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    variables = set[str]()
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for index, name in enumerate(names):
            formal = formals[min(index, len(formals) - 1)] if formals else None
            if formal is not None and types.get(name) == _FLOAT and formal.type_str in allowed:
                variables.add(formal.type_str)
    return bool(variables) and all("tensor(float16)" in allowed[v] for v in variables)
