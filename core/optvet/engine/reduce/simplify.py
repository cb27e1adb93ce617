"""Simplifying a graph: attributes, optional inputs, dimensions, contents, names.

Steps that may change the type of a value set ``stale``; the caller then infers types again before
it tests such a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto, defs, numpy_helper

from optvet.engine.reduce.cut import reached, without_dead
from optvet.engine.reduce.graph import Feed, Graph, Node, Weight, renamed, with_constant
from optvet.graph.plain import is_plain_name
from optvet.graph.types import is_cuttable, same_type
from optvet.graph.walk import (
    ONNX_DOMAIN,
    bodies_of,
    domain_of,
    inner_nodes,
    local_names,
    opset_versions,
    schema_of,
)

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_WEIGHTS_MAX = 1 << 22
"""Maximal number of elements of tensors whose contents are simplified; larger ones are sliced."""


# --- attributes and inputs of nodes ---------------------------------------------------------------


def fewer_attributes(graph: Graph) -> Iterator[Graph | None]:
    """``op(x; a=1, b=2) → op(x)``, then ``→ op(x; b=2)``: remove attributes.

    Attributes that the operator's schema requires, and subgraphs, are kept.
    """
    for index, node in enumerate(graph.nodes):
        optional = _optional_attributes(graph, node)
        if len(optional) > 1:
            yield _without_attributes(graph, index, frozenset(optional))
        for name in optional:
            yield _without_attributes(graph, index, frozenset([name]))


def _optional_attributes(graph: Graph, node: Node) -> list[str]:
    schema = schema_of(*node.type, opset_versions(graph.shell))
    graphs = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    names = [a.name for a in node.proto.attribute if a.type not in graphs]
    if schema is None:
        return names
    required = {name for name, a in schema.attributes.items() if a.required}
    # A Constant has exactly one of several attributes that the schema calls optional.
    return [] if node.proto.op_type == "Constant" else [n for n in names if n not in required]


def _without_attributes(graph: Graph, index: int, names: frozenset[str]) -> Graph:
    proto = NodeProto()
    proto.CopyFrom(graph.nodes[index].proto)
    for i in reversed(range(len(proto.attribute))):
        if proto.attribute[i].name in names:
            del proto.attribute[i]
    return _with_node(graph, index, proto)


def _with_node(graph: Graph, index: int, proto: NodeProto) -> Graph:
    return graph.with_(nodes=(*graph.nodes[:index], Node(proto), *graph.nodes[index + 1 :]))


def fewer_arguments(graph: Graph) -> Iterator[Graph | None]:
    """``op(x, b) → op(x)`` for an optional b, ``op(x1 … xn) → op(x1 … xn-1)`` for a variadic."""
    for index, node in enumerate(graph.nodes):
        schema = schema_of(*node.type, opset_versions(graph.shell))
        if schema is None:
            continue
        for position in reversed(range(len(node.proto.input))):
            formal = schema.inputs[min(position, len(schema.inputs) - 1)] if schema.inputs else None
            if formal is None or not node.proto.input[position]:
                continue
            variadic = formal.option == defs.OpSchema.FormalParameterOption.Variadic
            optional = formal.option == defs.OpSchema.FormalParameterOption.Optional
            if optional or (variadic and len(node.proto.input) - len(schema.inputs) + 1 > 1):
                yield _without_argument(graph, index, position, drop=variadic)


def _without_argument(graph: Graph, index: int, position: int, *, drop: bool) -> Graph | None:
    proto = NodeProto()
    proto.CopyFrom(graph.nodes[index].proto)
    lost = proto.input[position]
    if drop:
        del proto.input[position]
    else:
        proto.input[position] = ""
        while proto.input and not proto.input[-1]:
            del proto.input[-1]
    changed = _with_node(graph, index, proto)
    if lost in changed.consumers:
        return changed
    return without_idle(without_dead(graph, changed, [lost]), {lost})


def without_idle(graph: Graph | None, names: set[str] | None = None) -> Graph | None:
    """``graph`` without inputs and initializers that nothing reads (those in ``names`` only)."""
    if graph is None:
        return None
    idle = {
        n
        for n in (*graph.inputs, *graph.weights, *graph.sparse)
        if n not in graph.consumers and n not in graph.outputs and (names is None or n in names)
    }
    return graph.with_(
        inputs={n: k for n, k in graph.inputs.items() if n not in idle},
        weights={n: w for n, w in graph.weights.items() if n not in idle},
        sparse={n: t for n, t in graph.sparse.items() if n not in idle},
        listed=graph.listed - idle,
        feeds=None
        if graph.feeds is None
        else {n: f for n, f in graph.feeds.items() if n not in idle},
    )


def fewer_outputs(graph: Graph) -> Iterator[Graph | None]:
    """(y1 … yn) → one of the outputs; then all but one, without the nodes that only it needed."""
    if len(graph.outputs) < 2:
        return
    # Keeping one is tried before dropping one: usually only one of many outputs matters.
    chosen = [{n} for n in graph.outputs] if len(graph.outputs) > 2 else []
    chosen += [graph.outputs.keys() - {n} for n in graph.outputs]
    for names in chosen:
        kept = {n: k for n, k in graph.outputs.items() if n in names}
        lost = [n for n in graph.outputs if n not in names]
        yield graph.with_(outputs=kept)
        yield without_idle(without_dead(graph, graph.with_(outputs=kept), lost))


def merged_inputs(graph: Graph) -> Iterator[Graph | None]:
    """``op(a, b) → op(a, a)`` for inputs or initializers a, b of one type, b no output."""
    names = [*graph.inputs, *graph.weights]
    for j, b in enumerate(names):
        for a in names[:j]:
            if b in graph.outputs or not same_type(graph.type_of(a), graph.type_of(b)):
                continue
            nodes = tuple(renamed(node, {b: a}) for node in graph.nodes)
            yield without_idle(graph.with_(nodes=nodes), {b})
            break


def weights_fed(graph: Graph) -> Iterator[Graph | None]:
    """A float initializer → an input that is fed its contents: this makes the model smaller.

    Integer initializers are kept: they are shapes, axes and indices.
    """
    for name, weight in graph.weights.items():
        kind = graph.type_of(name)
        if not _is_float(graph, name):
            continue
        if kind is None or not is_cuttable(kind) or name in graph.outputs:
            continue
        feeds = None
        if graph.feeds is not None:
            try:
                feeds = {**graph.feeds, name: Feed(weight.array)}
            except (ValueError, TypeError):
                continue
        yield graph.with_(
            inputs={**graph.inputs, name: kind},
            weights={n: w for n, w in graph.weights.items() if n != name},
            listed=graph.listed - {name},
            feeds=feeds,
        )


# --- dimensions -----------------------------------------------------------------------------------


def smaller_dimensions(graph: Graph) -> Iterator[Graph | None]:
    """Size d → 1, 2, d/2: wherever a dimension, shape or attribute is d; then on one axis only.

    ``x[d] → x[:1]`` for inputs, initializers and feeds. Integers in shapes and attributes that
    equal d are replaced too, so that a Reshape to [n, d] or a Conv of d groups still fits; then
    also multiples of d, for flattened dimensions. The result may be invalid; running it shows that.
    """
    for size in sorted(_sizes(graph), reverse=True):
        for new in dict.fromkeys((1, 2, size // 2)):
            if 0 < new < size:
                yield _resized(graph, size, new, None)
                yield _resized(graph, size, new, None, multiples=True)
    for name in (*graph.inputs, *graph.weights):
        for axis, size in enumerate(_shape(graph, name) or ()):
            for new in dict.fromkeys((1, 2, size // 2)):
                if 0 < new < size:
                    yield _resized(graph, size, new, (name, axis))
                    yield _last(graph, name, axis, new)


def _last(graph: Graph, name: str, axis: int, count: int) -> Graph | None:
    """Keep the last elements of one axis of an input: these may be the ones that matter."""
    if graph.feeds is None or name not in graph.feeds:
        return None
    array = graph.feeds[name].array
    window = tuple(slice(-count if a == axis else None, None) for a in range(array.ndim))
    small = np.ascontiguousarray(array[window]).reshape(array[window].shape)
    kind = _with_shape(graph.inputs[name], small.shape, keep_open=True)
    return graph.with_(
        inputs={**graph.inputs, name: kind}, feeds={**graph.feeds, name: Feed(small)}
    )


def concrete_dimensions(graph: Graph) -> Iterator[Graph | None]:
    """[N, 3] → [1, 3]: unknown dimensions of inputs become the size that is fed, else 1."""
    inputs = dict(graph.inputs)
    for name, kind in graph.inputs.items():
        if not is_cuttable(kind):
            continue
        if graph.feeds is None:
            shape = tuple(d.dim_value or 1 for d in kind.tensor_type.shape.dim)
        elif name in graph.feeds:
            shape = tuple(graph.feeds[name].array.shape)
        else:
            continue
        inputs[name] = _with_shape(kind, shape, keep_open=False)
    yield graph.with_(inputs=inputs)


def _shape(graph: Graph, name: str) -> tuple[int, ...] | None:
    if name in graph.weights:
        return tuple(graph.weights[name].proto.dims)
    if graph.feeds is not None and name in graph.feeds:
        return tuple(graph.feeds[name].array.shape)
    kind = graph.inputs.get(name)
    if kind is None or not is_cuttable(kind):
        return None
    return tuple(d.dim_value for d in kind.tensor_type.shape.dim)


def _sizes(graph: Graph) -> set[int]:
    shapes = [_shape(graph, name) or () for name in (*graph.inputs, *graph.weights)]
    return {size for shape in shapes for size in shape if size > 1}


def _resized(
    graph: Graph, old: int, new: int, only: tuple[str, int] | None, *, multiples: bool = False
) -> Graph | None:
    """``graph`` with size ``old`` replaced by ``new``: on one axis of one value, or everywhere."""
    shapes = {n: s for n in (*graph.inputs, *graph.weights) if (s := _shape(graph, n)) is not None}
    power = max([s.count(old) for s in shapes.values()], default=1)

    def scaled(value: int) -> int:
        if value == old:
            return new
        for n in range(power if multiples else 0, 0, -1):
            if value > old and value % old**n == 0:
                return int(value // old**n * new**n)
        return value

    inputs, weights = dict(graph.inputs), dict(graph.weights)
    feeds = None if graph.feeds is None else dict(graph.feeds)
    for name, shape in shapes.items():
        if only is not None and only[0] != name:
            continue
        small = tuple(scaled(d) if only in (None, (name, a)) else d for a, d in enumerate(shape))
        if name in weights:
            weight = _sliced(weights[name], small, scaled if only is None else None)
            if weight is None:
                return None
            weights[name] = weight
        elif small != shape:
            inputs[name] = _with_shape(inputs[name], small, keep_open=True)
            if feeds is not None and name in feeds:
                window = tuple(slice(0, d) for d in small)
                small_array = feeds[name].array[window]
                feeds[name] = Feed(np.ascontiguousarray(small_array).reshape(small))
    nodes = graph.nodes
    if only is None:
        nodes = tuple(_resized_constant(_with_numbers(node, scaled), scaled) for node in nodes)
    return graph.with_(nodes=nodes, inputs=inputs, weights=weights, feeds=feeds)


def _resized_constant(node: Node, scaled: Callable[[int], int]) -> Node:
    if node.constant is None:
        return node
    shape = tuple(scaled(d) for d in node.constant.proto.dims)
    small = _sliced(node.constant, shape, scaled)
    return node if small is None or small is node.constant else with_constant(node, small.proto)


def _sliced(
    weight: Weight, shape: tuple[int, ...], scaled: Callable[[int], int] | None
) -> Weight | None:
    """The first elements of ``weight``; sizes are scaled if it is a shape. None if unreadable."""
    is_shape = (
        scaled is not None
        and weight.proto.data_type == TensorProto.INT64
        and len(weight.proto.dims) == 1
        and weight.elements <= 16
    )
    if tuple(weight.proto.dims) == shape and not is_shape:
        return weight
    try:
        array = weight.array[tuple(slice(0, d) for d in shape)]
    except (ValueError, TypeError):
        return None
    if scaled is not None and is_shape:
        array = np.array([scaled(int(v)) for v in array], np.int64)
    if array.shape == weight.array.shape and np.array_equal(array, weight.array):
        return weight
    proto = numpy_helper.from_array(np.array(array), weight.proto.name)
    return Weight(proto) if proto.data_type == weight.proto.data_type else None


def _with_shape(kind: TypeProto, shape: Sequence[int], *, keep_open: bool) -> TypeProto:
    if not is_cuttable(kind) or len(kind.tensor_type.shape.dim) != len(shape):
        return kind
    copy = TypeProto()
    copy.CopyFrom(kind)
    for dim, size in zip(copy.tensor_type.shape.dim, shape, strict=True):
        if dim.HasField("dim_value") or not keep_open:
            dim.dim_value = size
    return copy


_NO_SIZES = frozenset({"axis", "axes", "perm", "to", "allowzero", "keepdims"})


def _with_numbers(node: Node, scaled: Callable[[int], int]) -> Node:
    """``node`` with the sizes among its attributes scaled."""
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    for attribute in proto.attribute:
        if attribute.name in _NO_SIZES:
            continue
        if attribute.type == AttributeProto.INT:
            attribute.i = scaled(attribute.i)
        elif attribute.type == AttributeProto.INTS:
            attribute.ints[:] = [scaled(i) for i in attribute.ints]
    return node if proto == node.proto else Node(proto)


# --- contents -------------------------------------------------------------------------------------

_PLAIN: Sequence[tuple[int, Callable[[np.ndarray], np.ndarray]]] = (
    (0, np.zeros_like),
    (1, np.ones_like),
    (2, lambda a: (np.arange(a.size) % 10).reshape(a.shape).astype(a.dtype)),
    (2, lambda a: np.clip(np.round(_finite(a)), -999, 999).astype(a.dtype)),
    (3, lambda a: np.clip(np.round(_finite(a), 1), -999, 999).astype(a.dtype)),
)
"""Simpler contents, simplest first, with their grade."""


def _finite(array: np.ndarray) -> np.ndarray:
    return np.nan_to_num(array.astype(np.float64), posinf=100, neginf=-100)


def plainer_contents(graph: Graph) -> Iterator[Graph | None]:
    """Contents x → 0, 1, 0 1 2 …, round(x): of all float tensors together, then of each one.

    This applies to inputs, initializers and Constants. Integer tensors are kept: they are shapes,
    axes and indices.
    """
    grades = {n: feed.grade for n, feed in (graph.feeds or {}).items() if _is_float(graph, n)}
    grades |= {n: weight.grade for n, weight in graph.weights.items() if _is_float(graph, n)}
    for node in graph.nodes:
        if node.constant is not None and _is_float_tensor(node.constant):
            grades[node.makes[0]] = node.constant.grade
    for level, make in _PLAIN:
        changed = [name for name, grade in grades.items() if grade > level]
        if len(changed) > 1:
            yield _with_contents(graph, changed, make)
    for name, grade in grades.items():
        for level, make in _PLAIN:
            if grade > level:
                yield _with_contents(graph, [name], make)


def _is_float(graph: Graph, name: str) -> bool:
    if name in graph.weights:
        return _is_float_tensor(graph.weights[name])
    return (graph.feeds or {})[name].array.dtype.kind == "f"


def _is_float_tensor(weight: Weight) -> bool:
    return weight.proto.data_type in _FLOATS and weight.elements <= _WEIGHTS_MAX


def _with_contents(
    graph: Graph, names: Sequence[str], make: Callable[[np.ndarray], np.ndarray]
) -> Graph:
    weights, nodes = dict(graph.weights), list(graph.nodes)
    feeds = None if graph.feeds is None else dict(graph.feeds)
    for name in names:
        if name in weights:
            proto = numpy_helper.from_array(np.array(make(weights[name].array)), name)
            weights[name] = Weight(proto)
        elif feeds is not None and name in feeds:
            feeds[name] = Feed(np.array(make(feeds[name].array)))
        else:
            node = nodes[graph.producer[name]]
            assert node.constant is not None
            tensor = numpy_helper.from_array(np.array(make(node.constant.array)))
            nodes[graph.producer[name]] = with_constant(node, tensor)
    return graph.with_(nodes=tuple(nodes), weights=weights, feeds=feeds)


# --- names and text -------------------------------------------------------------------------------


def cleaner(graph: Graph) -> Iterator[Graph | None]:
    """Remove everything that is not computation, together and then one by one.

    That is: unread inputs and initializers, unused functions and operator sets, declared types of
    inner values, doc strings and metadata, names of nodes; values are renamed (t0, t1 …).
    """
    steps: Sequence[Callable[[Graph], Graph | None]] = (
        without_idle,
        _without_text,
        _without_functions,
        _without_value_info,
        _without_node_names,
        _unlisted,
        short_names,
    )
    everything: Graph | None = graph
    for step in steps:
        everything = step(everything) if everything is not None else None
    yield everything
    for step in steps:
        yield step(graph)
    yield from _less_text(graph)
    for name in graph.value_info:
        yield graph.with_(value_info={n: k for n, k in graph.value_info.items() if n != name})
    for index, node in enumerate(graph.nodes):
        if _has_text(node.proto):
            yield _with_node(graph, index, _nameless(node.proto))


def _without_text(graph: Graph) -> Graph:
    shell = ModelProto(ir_version=graph.shell.ir_version)
    used = {node.type[0] for node in graph.nodes} | {ONNX_DOMAIN}
    used |= {domain_of(n) for node in graph.nodes for n in inner_nodes(node.proto)}
    used |= {domain_of(n) for f in graph.functions for n in f.node}
    shell.opset_import.extend(o for o in graph.shell.opset_import if domain_of(o) in used)
    shell.graph.name = "g"
    return graph.with_(shell=shell)


def _less_text(graph: Graph) -> Iterator[Graph]:
    """``graph`` with one text field less, or with one metadata property without its value."""
    kept = {"ir_version", "opset_import", "graph", "name"}
    for index in (0, 1):
        message = (graph.shell, graph.shell.graph)[index]
        for descriptor, value in message.ListFields():
            field = descriptor.name
            if field in kept:
                continue
            shell, changed = _shell_copy(graph, index)
            changed.ClearField(field)
            yield graph.with_(shell=shell)
            for i in range(len(value) if not isinstance(value, (str, bytes, int)) else 0):
                shell, changed = _shell_copy(graph, index)
                del getattr(changed, field)[i]
                yield graph.with_(shell=shell)
                if field == "metadata_props" and value[i].value:
                    shell, changed = _shell_copy(graph, index)
                    changed.metadata_props[i].value = ""
                    yield graph.with_(shell=shell)


def _shell_copy(graph: Graph, index: int) -> tuple[ModelProto, Any]:
    """A copy of the shell, and the message in it to change: the model or its graph."""
    shell = ModelProto()
    shell.CopyFrom(graph.shell)
    return shell, (shell, shell.graph)[index]


def _without_functions(graph: Graph) -> Graph:
    called = reached(graph.functions, (node.proto for node in graph.nodes))
    kept = tuple(f for f in graph.functions if (f.domain, f.name) in called)
    return graph.with_(functions=kept)


def _without_value_info(graph: Graph) -> Graph:
    return graph.with_(value_info={})


def _unlisted(graph: Graph) -> Graph:
    return graph.with_(listed=frozenset()) if graph.shell.ir_version >= 4 else graph


def _without_node_names(graph: Graph) -> Graph:
    return graph.with_(
        nodes=tuple(Node(_nameless(n.proto)) if _has_text(n.proto) else n for n in graph.nodes)
    )


_TEXT = ("name", "doc_string", "metadata_props")


def _has_text(proto: NodeProto) -> bool:
    return any(getattr(node, field) for node in (proto, *inner_nodes(proto)) for field in _TEXT)


def _nameless(proto: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(proto)
    for node in (copy, *inner_nodes(copy)):
        for field in _TEXT:
            node.ClearField(field)
    return copy


def short_names(graph: Graph) -> Graph | None:
    """Values become x0 … (inputs), w0 … (initializers), t0 … (inner), y0 … (outputs).

    None if a subgraph defines a name that would hide one of these.
    """
    return None if _hidden(graph) else _renamed_all(graph, _short(graph))


_FEW = 24
"""Names up to which each is tried alone."""


def one_short_name(graph: Graph) -> Iterator[Graph | None]:
    """One value gets a short name, where not all may: then it is known whose names matter."""
    short = _short(graph)
    odd = [n for n in short if not is_plain_name(n)]
    if not odd or len(odd) > _FEW or _hidden(graph):
        return
    same = {n: n for n in short}
    for name in odd:
        stem, number = short[name][0], 0
        while f"{stem}{number}" in same:
            number += 1
        yield _renamed_all(graph, {**same, name: f"{stem}{number}"})


def _short(graph: Graph) -> dict[str, str]:
    names: dict[str, str] = {}
    for stem, values in (
        ("y", graph.outputs),
        ("x", graph.inputs),
        ("w", (*graph.weights, *graph.sparse)),
        ("t", [n for node in graph.nodes for n in node.makes]),
    ):
        fresh = [n for n in values if n not in names]
        names |= {n: f"{stem}{i}" for i, n in enumerate(fresh)}
    return names


def _hidden(graph: Graph) -> bool:
    """Whether a subgraph defines a name that values get here."""
    return any(
        is_plain_name(name)
        for node in graph.nodes
        for body in bodies_of(node.proto)
        for name in local_names(body)
    )


def _renamed_all(graph: Graph, names: Mapping[str, str]) -> Graph:
    weights: dict[str, Weight] = {}
    for name, weight in graph.weights.items():
        if names[name] == name:
            weights[name] = weight
            continue
        proto = type(weight.proto)()
        proto.CopyFrom(weight.proto)
        proto.name = names[name]
        weights[names[name]] = Weight(proto)
    sparse = {}
    for name, tensor in graph.sparse.items():
        copy = type(tensor)()
        copy.CopyFrom(tensor)
        copy.values.name = names[name]
        sparse[names[name]] = copy
    recorded = type(graph.recorded)(
        {names.get(n, n): k for n, k in graph.recorded.types.items() if n in names},
        {names.get(n, n): a for n, a in graph.recorded.values.items() if n in names},
    )
    return graph.with_(
        nodes=tuple(renamed(node, names) for node in graph.nodes),
        inputs={names[n]: k for n, k in graph.inputs.items()},
        outputs={names[n]: k for n, k in graph.outputs.items()},
        weights=weights,
        sparse=sparse,
        listed=frozenset(names[n] for n in graph.listed),
        value_info={names[n]: k for n, k in graph.value_info.items() if n in names},
        feeds=None
        if graph.feeds is None
        else {names[n]: f for n, f in graph.feeds.items() if n in names},
        recorded=recorded,
    )
