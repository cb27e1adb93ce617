"""Making what is left plain: attributes, optional inputs, dimensions, contents, names.

Steps that may change the type of a value say so by ``stale``; the caller finds the types out anew
before it offers such a graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TypeProto, defs, numpy_helper

from optvet.engine.reduce.graph import (
    Feed,
    Graph,
    Node,
    Weight,
    bodies_of,
    is_cuttable,
    local_names,
    reached,
    renamed,
    same_type,
    without_dead,
)

_WEIGHTS_MAX = 1 << 22
"""Larger tensors are sliced but not otherwise rewritten."""


# --- attributes and inputs of nodes ---------------------------------------------------------------


def fewer_attributes(graph: Graph) -> Iterator[Graph | None]:
    """``op(x; a=1, b=2) → op(x)``, then ``→ op(x; b=2)``: attributes to their defaults.

    Not those that the operator's schema requires, nor subgraphs.
    """
    for index, node in enumerate(graph.nodes):
        optional = _optional_attributes(graph, node)
        if len(optional) > 1:
            yield _without_attributes(graph, index, frozenset(optional))
        for name in optional:
            yield _without_attributes(graph, index, frozenset([name]))


def _optional_attributes(graph: Graph, node: Node) -> list[str]:
    schema = _schema(graph, node)
    graphs = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    names = [a.name for a in node.proto.attribute if a.type not in graphs]
    if schema is None:
        return names
    required = {name for name, a in schema.attributes.items() if a.required}
    # A Constant has exactly one of several attributes that the schema calls optional.
    return [] if node.proto.op_type == "Constant" else [n for n in names if n not in required]


def _schema(graph: Graph, node: Node) -> Any:
    versions = {o.domain: o.version for o in graph.shell.opset_import}
    domain, name = node.type
    version = versions.get(domain, versions.get("ai.onnx" if not domain else domain))
    if version is None:
        return None
    try:
        return defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return None


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
        schema = _schema(graph, node)
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
    """(y1 … yn) → one output alone; then without one, and without the nodes only it needed."""
    if len(graph.outputs) < 2:
        return
    # Keeping one is tried before dropping one: of many outputs one is mostly what matters.
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
    """An initializer → an input that is fed its contents: less to store, as much to feed."""
    for name, weight in graph.weights.items():
        kind = graph.type_of(name)
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
    """Size d → 1, 2, d/2: everywhere a dimension, shape or attribute is d; then one axis alone.

    ``x[d] → x[:1]`` for inputs, initializers and feeds alike; whole numbers in shapes and in
    attributes that equal d go with it, so that a Reshape to [n, d] or a Conv of d groups still
    fits. What does not fit is found out by whoever runs the result.
    """
    for size in sorted(_sizes(graph), reverse=True):
        for new in dict.fromkeys((1, 2, size // 2)):
            if 0 < new < size:
                yield _resized(graph, size, new, None)
    for name in (*graph.inputs, *graph.weights):
        for axis, size in enumerate(_shape(graph, name) or ()):
            for new in dict.fromkeys((1, 2, size // 2)):
                if 0 < new < size:
                    yield _resized(graph, size, new, (name, axis))


def concrete_dimensions(graph: Graph) -> Iterator[Graph | None]:
    """[N, 3] → [1, 3]: all open dimensions of inputs take the size they are fed, else 1."""
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


def _resized(graph: Graph, old: int, new: int, only: tuple[str, int] | None) -> Graph | None:
    inputs, weights = dict(graph.inputs), dict(graph.weights)
    feeds = None if graph.feeds is None else dict(graph.feeds)
    for name in (*graph.inputs, *graph.weights):
        if only is not None and only[0] != name:
            continue
        shape = _shape(graph, name)
        if shape is None:
            continue
        axes = [a for a, d in enumerate(shape) if d == old and only in (None, (name, a))]
        window = tuple(slice(0, new) if a in axes else slice(None) for a in range(len(shape)))
        small = tuple(new if a in axes else d for a, d in enumerate(shape))
        if name in weights:
            try:
                array = weights[name].array
            except (ValueError, TypeError):
                return None
            cut = array[window] if axes else array
            if only is None and cut.dtype == np.int64 and cut.ndim == 1 and cut.size <= 16:
                cut = np.where(cut == old, new, cut)
            if axes or not np.array_equal(cut, array):
                proto = numpy_helper.from_array(np.ascontiguousarray(cut).reshape(cut.shape), name)
                if proto.data_type != weights[name].proto.data_type:
                    return None
                weights[name] = Weight(proto)
            continue
        if axes:
            inputs[name] = _with_shape(inputs[name], small, keep_open=True)
            if feeds is not None and name in feeds:
                feeds[name] = Feed(np.ascontiguousarray(feeds[name].array[window]))
    nodes = graph.nodes
    if only is None:
        nodes = tuple(_with_numbers(node, old, new) for node in nodes)
    return graph.with_(nodes=nodes, inputs=inputs, weights=weights, feeds=feeds)


def _with_shape(kind: TypeProto, shape: Sequence[int], *, keep_open: bool) -> TypeProto:
    if not is_cuttable(kind) or len(kind.tensor_type.shape.dim) != len(shape):
        return kind
    copy = TypeProto()
    copy.CopyFrom(kind)
    for dim, size in zip(copy.tensor_type.shape.dim, shape, strict=True):
        if dim.HasField("dim_value") or not keep_open:
            dim.dim_value = size
    return copy


def _with_numbers(node: Node, old: int, new: int) -> Node:
    """Whole-number attributes that equal ``old`` become ``new``; axes are never that large."""
    hits = [
        a
        for a in node.proto.attribute
        if a.name not in ("axis", "axes", "perm", "to")
        and ((a.type == AttributeProto.INT and a.i == old) or old in a.ints)
    ]
    if not hits:
        return node
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    names = {a.name for a in hits}
    for attribute in proto.attribute:
        if attribute.name in names:
            if attribute.type == AttributeProto.INT:
                attribute.i = new
            attribute.ints[:] = [new if i == old else i for i in attribute.ints]
    return Node(proto)


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
    """Contents x → 0, 1, 0 1 2 …, round(x): of all float tensors at once, then of one.

    Whole numbers stay: they are shapes, axes and indices.
    """
    names = [n for n in (*(graph.feeds or {}), *graph.weights) if _is_float(graph, n)]
    for level, make in _PLAIN:
        if len(names) > 1:
            yield _with_contents(graph, names, level, make)
    for name in names:
        for level, make in _PLAIN:
            yield _with_contents(graph, [name], level, make)


def _is_float(graph: Graph, name: str) -> bool:
    if name in graph.weights:
        weight = graph.weights[name]
        return weight.proto.data_type in (1, 10, 11) and weight.elements <= _WEIGHTS_MAX
    return (graph.feeds or {})[name].array.dtype.kind == "f"


def _with_contents(
    graph: Graph, names: Sequence[str], level: int, make: Callable[[np.ndarray], np.ndarray]
) -> Graph | None:
    weights, feeds = dict(graph.weights), dict(graph.feeds or {})
    changed = False
    for name in names:
        if name in weights:
            if weights[name].grade > level:
                proto = numpy_helper.from_array(np.array(make(weights[name].array)), name)
                weights[name], changed = Weight(proto), True
        elif feeds[name].grade > level:
            feeds[name], changed = Feed(np.array(make(feeds[name].array))), True
    if not changed:
        return None
    return graph.with_(weights=weights, feeds=None if graph.feeds is None else feeds)


# --- names and text -------------------------------------------------------------------------------


def cleaner(graph: Graph) -> Iterator[Graph | None]:
    """Everything that is no computation, at once and then piece by piece.

    Unread inputs and initializers, unused functions and operator sets, declared types of inner
    values, doc strings and metadata, names of nodes, names of values (t0, t1 …).
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
    for name in graph.value_info:
        yield graph.with_(value_info={n: k for n, k in graph.value_info.items() if n != name})
    for index, node in enumerate(graph.nodes):
        if node.proto.name:
            yield _with_node(graph, index, _nameless(node.proto))


def _without_text(graph: Graph) -> Graph:
    shell = ModelProto(ir_version=graph.shell.ir_version)
    used = {node.type[0] for node in graph.nodes} | {""}
    used |= {_domain(n.domain) for node in graph.nodes for n in _inner(node.proto)}
    used |= {_domain(n.domain) for f in graph.functions for n in f.node}
    shell.opset_import.extend(o for o in graph.shell.opset_import if _domain(o.domain) in used)
    shell.graph.name = "g"
    return graph.with_(shell=shell)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _inner(node: NodeProto) -> Iterator[NodeProto]:
    for body in bodies_of(node):
        for inner in body.node:
            yield inner
            yield from _inner(inner)


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
        nodes=tuple(
            Node(_nameless(n.proto)) if n.proto.name or n.proto.doc_string else n
            for n in graph.nodes
        )
    )


def _nameless(proto: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(proto)
    for field in ("name", "doc_string", "metadata_props"):
        copy.ClearField(field)
    return copy


def short_names(graph: Graph) -> Graph | None:
    """Values become x0 … (inputs), w0 … (initializers), t0 … (inner), y0 … (outputs).

    Only where no subgraph defines a name of its own that would hide one of these.
    """
    names: dict[str, str] = {}
    for stem, values in (
        ("y", graph.outputs),
        ("x", graph.inputs),
        ("w", (*graph.weights, *graph.sparse)),
        ("t", [n for node in graph.nodes for n in node.makes]),
    ):
        fresh = [n for n in values if n not in names]
        names |= {n: f"{stem}{i}" for i, n in enumerate(fresh)}
    inner = {
        name for node in graph.nodes for body in bodies_of(node.proto) for name in local_names(body)
    }
    if any(re.fullmatch(r"[xywt]\d+", name) for name in inner):
        return None
    return _renamed_all(graph, names)


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
