"""Whether the ONNX standard says what a model computes on given inputs.

Integer overflow, a scale of 0, a shift by more bits than there are, NaN cast to an integer: kernels
answer as their processor does, and two kernels may disagree. A change of such values is no fault of
an optimizer. Each rule looks at one node, and at those of its operands whose values are known:
weights, constants and inputs always, inner values where the caller has recorded them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from optvet.engine.standard.call import OperatorCall
from optvet.engine.standard.rules import RULES, broken_rules, wanted_values
from optvet.graph.functions import without_functions
from optvet.graph.types import element_types, value_info
from optvet.graph.walk import (
    LOOPS,
    ONNX_DOMAIN,
    attribute_of,
    bodies_of,
    domain_of,
    local_names,
    opset_versions,
)

Values = Mapping[str, np.ndarray]
_NONE: Values = {}
_MASKS = frozenset(
    """
    Add Attention Cast CastLike Clip Concat ConstantOfShape Equal Expand Gather Greater
    GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual LogSoftmax Max Min Mul Neg Pad
    ReduceMax ReduceMin Reshape
    ScatterElements ScatterND Slice Softmax Squeeze Sub Tile Transpose Trilu Unsqueeze Where
    """.split()
)
"""Operators that masks of infinity are made with, and read by."""
_CONSTANTS: Mapping[str, type] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}
_LEARNED = "ai.onnx.ml"
_PLAIN = "biuf"
"""Kinds of numbers that numpy has itself."""


@dataclass(frozen=True)
class Undefined:
    """Something that the standard does not say.

    Attributes:
        kind: Equal for what is undefined in one way: operator and rule, or what declares it.
        where: The node, weight or output.
        what: Why, in words.
    """

    kind: str
    where: str
    what: str
    values: tuple[str, ...] = ()
    """What has no answer for it: nothing where a declaration is wrong, a weight is not finite, or
    the standard is silent and all kernels do the same, since they have to agree on the values."""

    def words(self) -> str:
        """One sentence for a report."""
        return f"{self.where}: {self.what}"


def undefined_in(
    model: ModelProto, feeds: Values, inner: Values | None = None, in_loops: Values | None = None
) -> list[Undefined]:
    """Where the ONNX standard does not define ``model`` on ``feeds``; empty if nowhere.

    Args:
        model: A model that the checker accepts.
        feeds: Its inputs.
        inner: Values inside of the graph and its outputs, as far as they were recorded; of what
            functions compute, by the names that ``without_functions`` gives.
        in_loops: Values in the bodies of Loops and Scans, likewise; their first axis is the
            iteration.
    """
    # Of inlined functions all values are known that the graph's are.
    model = without_functions(model)
    known = {**_constants(model.graph), **feeds, **(inner or {})}
    versions = opset_versions(model)
    found = [*_weights(model), *_find_wrong_declarations(model, inner or {})]
    for node in model.graph.node:
        found += _of_node(node, known, versions, in_loops or {})
    for function in model.functions:  # of another operator set: calls of it are not inlined
        # Of values inside of it nothing is known, and attributes may be the caller's.
        own, versions = _constants(function), opset_versions(function)
        called = tuple(_outputs_of_calls(model.graph, function))
        for node in function.node:
            if not any(attribute.ref_attr_name for attribute in node.attribute):
                inside = _of_node(node, own, versions)
                found += [replace(u, values=called if u.values else ()) for u in inside]
    return found


def _outputs_of_calls(graph: GraphProto, function: FunctionProto) -> Iterator[str]:
    for node in graph.node:
        if (node.domain, node.op_type) == (function.domain, function.name):
            yield from node.output


def needs_inner_values(model: ModelProto, feeds: Values) -> bool:
    """Whether some rule needs a value that is neither a weight nor an input."""
    model = without_functions(model)
    known: Set[str] = {*_constants(model.graph), *feeds, ""}
    loops = [node for node in model.graph.node if node.op_type in LOOPS]
    inside = [node for loop in loops for body in bodies_of(loop) for node in body.node]
    nodes = [node for node in (*model.graph.node, *inside) if node.op_type in RULES]
    # Types are inferred only where it matters: that takes seconds for a large model.
    if all(name in known for node in nodes for name in node.input):
        return False
    types = element_types(model)
    return any(name not in known for node in nodes for name in wanted_values(node, types))


def _of_node(
    node: NodeProto, known: Values, versions: Mapping[str, int], in_loops: Values = _NONE
) -> Iterator[Undefined]:
    for body in _bodies_that_run(node, known):
        for iteration in _iterations(body, in_loops):
            inside = {**known, **_constants(body), **iteration}
            for inner in body.node:
                # What a body computes is seen at the outputs of its node alone.
                for found in _of_node(inner, inside, versions):
                    yield replace(found, values=tuple(node.output) if found.values else ())
    domain = domain_of(node)
    if domain not in (ONNX_DOMAIN, _LEARNED, "com.microsoft"):
        return
    operands = [known.get(name) if name else None for name in node.input]
    results = [known.get(name) if name else None for name in node.output]
    opset = versions.get(_LEARNED if domain == _LEARNED else ONNX_DOMAIN, 1)
    call = OperatorCall(node, operands, results, opset)
    for rule, words in broken_rules(call):
        where = f"{node.op_type} {node.name or (node.output[0] if node.output else '')!r}"
        values = () if rule.agreed else tuple(node.output)
        yield Undefined(f"{node.op_type}: {rule.name}", where, words, values)


def _iterations(body: GraphProto, in_loops: Values) -> Iterator[Values]:
    """What is known of each iteration of a body; once nothing where none was recorded."""
    recorded = {name: in_loops[name] for name in local_names(body) if name in in_loops}
    if not recorded:
        yield _NONE
    for each in zip(*recorded.values(), strict=True):
        yield dict(zip(recorded, each, strict=True))


def _bodies_that_run(node: NodeProto, known: Values) -> Iterator[GraphProto]:
    """The bodies of a node that run, as far as conditions are known."""
    condition = known.get(node.input[0]) if node.op_type == "If" and node.input else None
    if condition is None or not condition.size:
        yield from bodies_of(node)
        return
    taken = attribute_of(node, "then_branch" if condition.any() else "else_branch")
    if isinstance(taken, GraphProto):
        yield taken


def _constants(graph: GraphProto | FunctionProto) -> dict[str, np.ndarray]:
    weights = graph.initializer if isinstance(graph, GraphProto) else ()
    known = {t.name: _array(t) for t in weights}
    for node in graph.node:
        if node.op_type != "Constant" or not node.output:
            continue
        value = attribute_of(node, "value")
        if isinstance(value, TensorProto):
            known[node.output[0]] = _array(value)
            continue
        for given in node.attribute:
            if given.name in _CONSTANTS:
                numbers = helper.get_attribute_value(given)
                known[node.output[0]] = np.array(numbers, _CONSTANTS[given.name])
    return known


def _array(tensor: TensorProto) -> np.ndarray:
    """The values of a tensor; None if its data are in another file."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return np.zeros(0, np.float32)
    return np.asarray(numpy_helper.to_array(tensor))


def _weights(model: ModelProto) -> Iterator[Undefined]:
    """Weights that contain NaN; infinity is allowed, since masks use it."""
    readers: dict[str, set[str]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    for name, value in _constants(model.graph).items():
        if value.dtype.kind != "f" or not value.size:
            continue
        if bool(np.isnan(value).any()):
            yield Undefined("weight: NaN", f"weight {name!r}", "holds NaN")
        elif bool(np.isinf(value).any()) and not readers.get(name, set()) <= _MASKS:
            yield Undefined("weight: infinity", f"weight {name!r}", "holds infinity and is no mask")


def _find_wrong_declarations(model: ModelProto, values: Values) -> Iterator[Undefined]:
    """Outputs and inner values whose declared type or shape is not what the graph computes."""
    # Outputs of a body are told by place: one value may be several of them.
    names = [info.name for info in model.graph.output]
    for name in {n for n in names if names.count(n) > 1}:
        yield Undefined("output: listed twice", f"output {name!r}", "is listed twice")
    for info in (*model.graph.output, *model.graph.value_info):
        value = values.get(info.name)
        words = "" if value is None else _contradiction(info, value)
        if words:
            yield Undefined("declaration: contradicted", f"value {info.name!r}", words)


def _contradiction(info: ValueInfoProto, value: np.ndarray) -> str:
    if info.type.WhichOneof("value") != "tensor_type":
        return ""
    kind = info.type.tensor_type
    if kind.elem_type:
        declared = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if value.dtype.kind in _PLAIN and declared.kind in _PLAIN and value.dtype != declared:
            return f"is declared as {declared} and is {value.dtype}"
    sizes = value_info(info).shape
    if may_be(sizes, value.shape):
        return ""
    shown = [s if isinstance(s, int) else "?" for s in sizes or ()]
    return f"is declared as {shown} and has the shape {list(value.shape)}"


def may_be(declared: Sequence[int | str | None] | None, shape: Sequence[int]) -> bool:
    """Whether a value of ``shape`` is as declared, where some sizes or all may be unknown."""
    if declared is None:
        return True
    return len(declared) == len(shape) and all(
        not isinstance(d, int) or d == n for d, n in zip(declared, shape, strict=True)
    )
