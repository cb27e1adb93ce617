"""Plain parts in place of those that may not matter: what is then left of the others does matter.

A fault of one pass is met behind many operators, under many names, in old and new forms. These
steps make one model of them: its structure tells causes apart, and a reader is not misled.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, TypeProto, helper

from optvet.engine.reduce.cut import without_dead
from optvet.engine.reduce.graph import Graph, Node
from optvet.engine.reduce.simplify import without_idle
from optvet.graph.plain import is_aliased, is_namesake, is_plain, lists_weights
from optvet.graph.types import FLOATS, INTEGERS, element_bits
from optvet.graph.walk import ONNX_DOMAIN, domain_of, inner_nodes

_PLAIN_IR = 8
_NUMBERS = {*FLOATS, *(n for n in INTEGERS if (element_bits(n) or 0) >= 8)}
"""Element types that Abs accepts."""


def plain_operators(graph: Graph) -> Iterator[Graph | None]:
    """``y = op(x, …) → y = Abs(x)``, or Not of booleans: from the last node to the first.

    The type of y may change: it is inferred anew.
    """
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        used = [n for n in node.makes if n in graph.consumers or n in graph.outputs]
        if is_plain(node.proto) or len(used) != 1:
            continue
        for name in node.proto.input:
            operator = _stand_in(graph.type_of(name)) if name else None
            if operator is not None:
                yield _with_stand_in(graph, index, operator, name, used[0])


def _stand_in(kind: TypeProto | None) -> str | None:
    if kind is None or not kind.HasField("tensor_type"):
        return None
    element = kind.tensor_type.elem_type
    if element in _NUMBERS:
        return "Abs"
    return "Not" if element == TensorProto.BOOL else None


def _with_stand_in(graph: Graph, index: int, operator: str, read: str, output: str) -> Graph | None:
    lost = [n for n in graph.nodes[index].uses if n != read]
    plain = Node(helper.make_node(operator, [read], [output]))
    changed = graph.with_(nodes=(*graph.nodes[:index], plain, *graph.nodes[index + 1 :]))
    unread = [n for n in lost if n not in changed.consumers]
    return without_idle(without_dead(graph, changed, unread), set(unread))


def functions_of_their_own(graph: Graph) -> Iterator[Graph | None]:
    """Functions of the model that are named as operators of ONNX get names that are not."""
    for function in graph.functions:
        if is_namesake(function):
            old, new = (function.domain, function.name), f"{function.name}_"
            yield graph.with_(
                nodes=tuple(_calling(node, old, new) for node in graph.nodes),
                functions=tuple(_function_calling(f, old, new) for f in graph.functions),
            )


def _calling(node: Node, old: tuple[str, str], new: str) -> Node:
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    return Node(proto) if _rename_calls(proto, old, new) else node


def _function_calling(function: FunctionProto, old: tuple[str, str], new: str) -> FunctionProto:
    copy = FunctionProto()
    copy.CopyFrom(function)
    if (copy.domain, copy.name) == old:
        copy.name = new
    for node in copy.node:
        _rename_calls(node, old, new)
    return copy


def _rename_calls(proto: NodeProto, old: tuple[str, str], new: str) -> bool:
    calls = [n for n in (proto, *inner_nodes(proto)) if (n.domain, n.op_type) == old]
    for node in calls:
        node.op_type = new
    return bool(calls)


def plain_form(graph: Graph) -> Iterator[Graph | None]:
    """The usual name of ONNX's domain; an IR version that does not list weights among inputs."""
    if is_aliased(graph.shell):
        shell = _copy(graph.shell)
        for opset in shell.opset_import:
            opset.domain = "" if domain_of(opset) == ONNX_DOMAIN else opset.domain
        yield graph.with_(shell=shell)
    if lists_weights(graph.shell):
        shell = _copy(graph.shell)
        shell.ir_version = _PLAIN_IR
        yield graph.with_(shell=shell, listed=frozenset())


def _copy(shell: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(shell)
    return copy
