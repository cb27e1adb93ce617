"""Python that a user pastes around a converter's call, where that takes the names of nodes.

It needs onnx alone, and does to a model what the functions named below do here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import ModelProto

from optvet.graph.half_nodes import half_block_list
from optvet.graph.types import element_types
from optvet.graph.walk import graphs, name_nodes, reads
from optvet.graph.weights import SHAPE_ELEMENTS, clear_large_weights, without_large_weights

_ALL_NODES = """\
def nodes_of(graph):
    inner = [g for n in graph.node for a in n.attribute for g in (a.g, *a.graphs)]
    return [*graph.node, *(node for g in inner for node in nodes_of(g))]
"""
_NAMES = """\
# Every node gets a name of its own, which the list below may have.
nodes, seen = {nodes}, set()
taken = {{node.name for node in nodes}}
for node in nodes:
    if not node.name or node.name in seen:
        names = (f"{{node.op_type}}_{{i}}" for i in range(len(nodes) + 1))
        node.name = next(name for name in names if name not in taken)
    seen.add(node.name)
    taken.add(node.name)
"""
_JOINED = """\
# What two nodes in float32 pass on is not rounded in between.
inferred = half.graph
with contextlib.suppress(onnx.shape_inference.InferenceError):
    inferred = onnx.shape_inference.infer_shapes(half).graph
values = (*inferred.input, *inferred.value_info, *inferred.output)
float32 = {v.name for v in values if v.type.tensor_type.elem_type == 1}
float32 |= {t.name for t in inferred.initializer if t.data_type == 1}
casts = {n.output[0]: n for n in half.graph.node if n.op_type == "Cast"}
to = {name: [a.i for a in n.attribute if a.name == "to"] for name, n in casts.items()}
for name, back in casts.items():
    there = casts.get(back.input[0])
    if to[name] == [1] and there and to[there.output[0]] in ([10], [16]):
        if there.input[0] in float32:
            back.input[0] = there.input[0]
"""


@dataclass(frozen=True)
class Outlined:
    """A model without its large weights: enough to write code for it, without native code.

    Attributes:
        data: The serialized model; empty if there is none.
        types: The element types of its values, as ``element_types`` infers them.
    """

    data: bytes = b""
    types: Mapping[str, int] = field(default_factory=dict)


def without_weights(model: ModelProto) -> Outlined:
    """``model`` without its large weights."""
    light = ModelProto()
    light.CopyFrom(without_large_weights(model, SHAPE_ELEMENTS))
    clear_large_weights(light, SHAPE_ELEMENTS)
    return Outlined(bytes(light.SerializeToString(deterministic=True)), element_types(model))


def naming_code(model: ModelProto) -> str:
    """Code that names the nodes of ``model`` as ``name_nodes`` does; empty if all have names."""
    named = ModelProto()
    named.CopyFrom(model)
    if not name_nodes(named):
        return ""
    if len(list(graphs(model.graph))) == 1:
        return _NAMES.format(nodes="model.graph.node")
    return _ALL_NODES + _NAMES.format(nodes="nodes_of(model.graph)")


def list_code(name: str, nodes: Sequence[str]) -> str:
    """``name = [...]``, on lines that fit a screen."""
    words = textwrap.fill(
        f"{name} = {list(nodes)!r}",
        92,
        subsequent_indent=" " * 4,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{words}\n"


def joining_code(model: ModelProto, kept: Collection[str], blocked: Collection[str] = ()) -> str:
    """Code that does to ``half`` what ``join_casts`` does, if it has to; else none.

    It has to where a node that stays in float32 reads what another one makes, or an input of the
    model, or makes an output of it: all these are float32 on both sides.
    """
    graph = model.graph
    stay = [n for n in graph.node if n.name in kept or n.op_type in blocked]
    made = {name for n in stay for name in n.output} | {value.name for value in graph.input}
    read = {name for n in stay for name in reads(n)} | {value.name for value in graph.output}
    return _JOINED if made & read else ""


def half_code(
    outlined: Outlined,
    converted: Collection[str],
    imports: str,
    call: str,
    *,
    blocked: Collection[str],
    join: bool,
    after: str = "",
) -> str:
    """Body of ``def optimize(model)`` that converts nodes to a half type.

    Args:
        outlined: what ``without_weights`` gives of the model.
        converted: Names of the nodes to convert, as ``name_nodes`` names them.
        imports: Lines that import the library.
        call: Its call, which names its arguments ``model`` and ``kept``.
        blocked: Operators that the library leaves in float32.
        join: Whether what two nodes in float32 pass on stays so.
        after: What else is done to ``half``.
    """
    if not converted:
        return "return model"
    model = ModelProto.FromString(outlined.data)
    names = naming_code(model)
    name_nodes(model)
    kept = [node.name for node in model.graph.node if node.name not in converted]
    listed = half_block_list(model, kept, blocked, outlined.types)
    joined = joining_code(model, listed, blocked) if join else ""
    needed = "import contextlib\n\nimport onnx\n" if joined else ""
    first = f"{needed}{imports}\n{names}{list_code('kept', listed)}"
    return f"{first}half = {call}\n{after}{joined}return half"
