"""What can be said of an ONNX model by looking: interface, metadata, canonical content.

All of it is Python on a parsed message; nothing here calls native code that a malformed model
could crash.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from optvet.spec.types import InterfaceChange, ValueInfo


@dataclass(frozen=True)
class Facts:
    """Structure of one model, small enough to be sent between processes."""

    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    metadata: Mapping[str, str]
    operators: Mapping[str, int]
    nodes: int
    size_bytes: int
    random: bool = False
    foreign: Mapping[str, int] = field(default_factory=dict)


def value_info(value: ValueInfoProto) -> ValueInfo:
    """Name, element type and shape of a graph input or output."""
    kind = value.type.WhichOneof("value")
    if kind == "tensor_type":
        tensor = value.type.tensor_type
        return ValueInfo(value.name, dtype_name(tensor.elem_type), _shape(tensor))
    if kind == "sparse_tensor_type":
        return ValueInfo(value.name, "sparse", _shape(value.type.sparse_tensor_type))
    return ValueInfo(value.name, (kind or "undefined").removesuffix("_type"), None)


def dtype_name(number: int) -> str:
    """ONNX's lower-case name of an element type; newer types than the library's get a number."""
    if number in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(number)).lower()
    return f"type{number}"


def _shape(
    tensor: TypeProto.Tensor | TypeProto.SparseTensor,
) -> tuple[int | str | None, ...] | None:
    if not tensor.HasField("shape"):
        return None
    return tuple(_dimension(d) for d in tensor.shape.dim)


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    # Some tools write -1 where they mean unknown; runtimes read it so.
    if dimension.HasField("dim_value") and dimension.dim_value >= 0:
        return int(dimension.dim_value)
    return dimension.dim_param or None


def graph_inputs(model: ModelProto) -> tuple[ValueInfo, ...]:
    """Inputs that must be fed: IR 3 lists the weights among the inputs too."""
    names = {t.name for t in model.graph.initializer}
    names |= {t.values.name for t in model.graph.sparse_initializer}
    return tuple(value_info(i) for i in model.graph.input if i.name not in names)


def graph_outputs(model: ModelProto) -> tuple[ValueInfo, ...]:
    """Graph outputs, in order."""
    return tuple(value_info(o) for o in model.graph.output)


def opset_versions(model: ModelProto) -> dict[str, int]:
    """Operator-set version by domain, the default domain spelled "ai.onnx"."""
    return {o.domain or "ai.onnx": o.version for o in model.opset_import}


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """``graph`` and every graph inside its nodes' attributes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)
            for inner in attribute.graphs:
                yield from graphs(inner)


def node_count(model: ModelProto) -> int:
    """Nodes of the graph and of all graphs inside it; functions count by their calls."""
    return sum(len(g.node) for g in graphs(model.graph))


def facts(model: ModelProto, size_bytes: int) -> Facts:
    """Structure of ``model``, whose serialized size is ``size_bytes``."""
    operators = Counter(
        f"{n.domain}::{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type
        for body in (*graphs(model.graph), *model.functions)
        for n in body.node
    )
    nodes = node_count(model)
    inputs, outputs = graph_inputs(model), graph_outputs(model)
    return Facts(
        inputs,
        outputs,
        _metadata(model),
        dict(operators),
        nodes,
        size_bytes,
        draws_random(model),
        dict(Counter("::".join(_kind(node)) for node in foreign_nodes(model))),
    )


def foreign_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Nodes whose operator neither ONNX nor a function of the model defines at its operator sets.

    Inside subgraphs and functions too. Deprecated operators are ONNX's.
    """
    functions = {(f.domain or "ai.onnx", f.name) for f in model.functions}
    bodies: list[tuple[Iterable[NodeProto], Mapping[str, int]]] = [
        (graph.node, opset_versions(model)) for graph in graphs(model.graph)
    ]
    for function in model.functions:
        versions = {o.domain or "ai.onnx": o.version for o in function.opset_import}
        bodies.append((function.node, versions))
    for nodes, opsets in bodies:
        known: dict[tuple[str, str], bool] = {}
        for node in nodes:
            kind = _kind(node)
            if kind not in known:
                known[kind] = kind in functions or _is_defined(*kind, opsets.get(kind[0]))
            if not known[kind]:
                yield node


def _kind(node: NodeProto) -> tuple[str, str]:
    return node.domain or "ai.onnx", node.op_type


def _is_defined(domain: str, op_type: str, version: int | None) -> bool:
    name = "" if domain == "ai.onnx" else domain
    if version is None:
        return onnx.defs.has(op_type, name)
    try:
        onnx.defs.get_schema(op_type, version, name)
    except onnx.defs.SchemaError:
        return False
    return True


def gained_operators(before: Facts, after: Facts) -> dict[str, dict[str, int]]:
    """Foreign operators that only ``after`` has: by domain, how many nodes of which."""
    gained: dict[str, dict[str, int]] = {}
    for name, count in sorted(after.foreign.items()):
        if name not in before.foreign:
            domain, _, op_type = name.partition("::")
            gained.setdefault(domain, {})[op_type] = count
    return gained


def portability(domain: str, operators: Mapping[str, int]) -> str:
    """What ``gained_operators`` told of one domain, for a person."""
    nodes = sum(operators.values())
    names = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in operators.items())
    where = f"the domain {domain}" if domain != "ai.onnx" else "ONNX's domain at this operator set"
    return (
        f"{nodes} node{'s' * (nodes != 1)} of operators that ONNX does not define in {where} "
        f"({names}): only a runtime that has them can run the optimized model"
    )


_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"}
_RANDOM |= {"Multinomial", "Bernoulli"}


def draws_random(model: ModelProto) -> bool:
    """Whether an operator may draw random numbers; Dropout does if it is told to train."""
    return any(
        n.op_type in _RANDOM or (n.op_type == "Dropout" and len(n.input) > 2 and n.input[2])
        for body in (*graphs(model.graph), *model.functions)
        for n in body.node
    )


def _metadata(model: ModelProto) -> dict[str, str]:
    graph = model.graph
    used = {n.domain or "ai.onnx" for g in graphs(graph) for n in g.node}
    opsets = opset_versions(model)
    # An import that nothing needs may come or go without anybody noticing.
    relevant = {d: v for d, v in opsets.items() if d in used or d == "ai.onnx"}
    functions = sorted(f"{f.domain}::{f.name}" for f in model.functions)
    denotations = [
        d.denotation for v in (*graph.input, *graph.output) for d in v.type.tensor_type.shape.dim
    ] + [v.type.denotation for v in (*graph.input, *graph.output)]
    facts = {
        "ir_version": str(model.ir_version),
        "opset_import": ", ".join(f"{d} {v}" for d, v in sorted(relevant.items())),
        "functions": _present(functions),
        "training_info": str(len(model.training_info)),
        "metadata_props": _present(f"{p.key}={p.value}" for p in model.metadata_props),
        "graph metadata_props": _present(f"{p.key}={p.value}" for p in graph.metadata_props),
        "quantization_annotation": str(len(graph.quantization_annotation)),
        "sparse_initializer": str(len(graph.sparse_initializer)),
        "denotations": _present(d for d in denotations if d),
        "doc_string": _present([model.doc_string] if model.doc_string else []),
        OVERRIDABLE: str(_overridable(model)),
        UNLISTED: str(_unlisted(model)),
    }
    return facts


OVERRIDABLE = "replaceable weights"
UNLISTED = "weights missing among the inputs"


def _overridable(model: ModelProto) -> int:
    """Initializers that a caller may replace, because they are listed among the inputs too.

    Source: onnx IR.md, "Graphs": before IR version 4 all initializers had to be listed.
    """
    if model.ir_version < 4:
        return 0
    return len({i.name for i in model.graph.input} & {t.name for t in model.graph.initializer})


def _unlisted(model: ModelProto) -> int:
    """Initializers that are not listed among the inputs, where the IR version demands it."""
    if model.ir_version >= 4:
        return 0
    return len({t.name for t in model.graph.initializer} - {i.name for i in model.graph.input})


def _present(items: Iterable[str]) -> str:
    return "; ".join(sorted(items)) or "none"


def lost_metadata(before: Facts, after: Facts) -> dict[str, tuple[str, str]]:
    """What ``after`` says differently about itself, as {what: (before, after)}.

    A function whose every use was inlined is no loss, nor is an operator set raised for it, nor
    are properties that an optimizer adds about itself, nor fewer weights that may be replaced or
    that should be listed, nor one more domain of operators.
    """
    changed = {
        key: (was, after.metadata[key])
        for key, was in before.metadata.items()
        if after.metadata[key] != was
    }
    for key in changed.keys() & {OVERRIDABLE, UNLISTED}:
        if int(changed[key][0]) > int(changed[key][1]):
            changed.pop(key)
    for key in changed.keys() & {"metadata_props", "graph metadata_props"}:
        had, has = (set(side.split("; ")) for side in changed[key])
        if had - {"none"} <= has:
            changed.pop(key)
    if "opset_import" in changed:
        had, has = (set(side.split(", ")) for side in changed["opset_import"])
        if had <= has:
            # What the new domains are imported for, ``gained_operators`` tells.
            changed.pop("opset_import")
    if "functions" in changed:
        had, has = (set(side.split("; ")) for side in changed["functions"])
        if has - {"none"} <= had and not (had - has) & after.operators.keys():
            changed.pop("functions")
    if before.operators.keys() - after.operators.keys() and "opset_import" in changed:
        kept = {s.split()[0] for s in after.metadata["opset_import"].split(", ")}
        was = [s for s in before.metadata["opset_import"].split(", ") if s.split()[0] in kept]
        if ", ".join(was) == after.metadata["opset_import"]:
            changed.pop("opset_import")
    return changed


def in_words(changed: Mapping[str, tuple[str, str]]) -> str:
    """What ``lost_metadata`` told, for a person; with what follows from it, where that is known."""
    pairs = sorted(changed.items())
    parts = [f"{what}: {_short(was)} became {_short(now)}" for what, (was, now) in pairs]
    if OVERRIDABLE in changed:
        parts.append(
            "weights that are listed among the inputs may be replaced by a caller from IR version "
            "4 on, so runtimes no longer fold or pre-pack them: the model may be slower and round "
            "differently; take them out of the inputs"
        )
    if UNLISTED in changed:
        parts.append(
            "before IR version 4 weights must be listed among the inputs, so the ONNX checker "
            "refuses the model; raise the IR version of the original to 4"
        )
    return "; ".join(parts)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{' '.join(text[:57].split())}…"


def is_bloated(before: Facts, after: Facts) -> bool:
    """Whether ``after`` has many more nodes: half as many again, and 16 more."""
    return after.nodes >= 1.5 * before.nodes + 16


_LISTED_OPERATORS = 8


def growth(before: Facts, after: Facts) -> str:
    """How many nodes became how many, and of which operators there are more and fewer now."""
    change = Counter(after.operators)
    change.subtract(before.operators)
    ranked = sorted(change.items(), key=lambda item: (-abs(item[1]), item[0]))
    listed = [f"{amount:+} {name}" for name, amount in ranked if amount]
    more = ["…"] * (len(listed) > _LISTED_OPERATORS)
    operators = ", ".join(listed[:_LISTED_OPERATORS] + more)
    return f"{before.nodes} nodes became {after.nodes}: {operators}"


@dataclass(frozen=True)
class Alignment:
    """How to feed a candidate and read it in the reference's terms, or why that is impossible."""

    inputs: Mapping[str, str]
    casts: Mapping[str, str]
    outputs: Mapping[str, str]
    problem: str = ""


class HasInterface(Protocol):
    """A model, or facts about one."""

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Inputs that must be fed."""
        ...

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Graph outputs."""
        ...


def align(
    before: HasInterface, after: HasInterface, allowed: frozenset[InterfaceChange]
) -> Alignment:
    """Match the interface of a candidate with the reference's.

    Names, order, element types and static dimensions must agree, save for what the applied passes
    change on purpose (``allowed``). A dimension that became unknown, or an output dimension that
    became known, is no change for a caller.
    """
    problems = _align_values("input", before.inputs, after.inputs, allowed)
    problems += _align_values("output", before.outputs, after.outputs, allowed)
    if problems:
        return Alignment({}, {}, {}, "; ".join(problems))
    pairs = list(zip(before.inputs, after.inputs, strict=True))
    inputs = {was.name: now.name for was, now in pairs}
    casts = {was.name: now.dtype for was, now in pairs if was.dtype != now.dtype}
    outputs = {n.name: w.name for w, n in zip(before.outputs, after.outputs, strict=True)}
    return Alignment(inputs, casts, outputs)


def _align_values(
    what: str,
    before: tuple[ValueInfo, ...],
    after: tuple[ValueInfo, ...],
    allowed: frozenset[InterfaceChange],
) -> list[str]:
    was, now = [v.name for v in before], [v.name for v in after]
    if len(was) != len(now) or len(set(now)) != len(now):
        return [f"{what}s {was} became {now}"]
    if was != now and "names" not in allowed:
        return [f"{what}s {was} became {now}"]
    problems = []
    for old, new in zip(before, after, strict=True):
        legal = what == "input" and "input-dtypes" in allowed
        if old.dtype != new.dtype and not (legal and (old.dtype, new.dtype) == ("int64", "int32")):
            problems.append(f"{what} {old.name!r}: {old.dtype} became {new.dtype}")
        elif not _shapes_agree(what, old.shape, new.shape):
            problems.append(f"{what} {old.name!r}: shape {old.shape} became {new.shape}")
    return problems


def _shapes_agree(
    what: str,
    old: tuple[int | str | None, ...] | None,
    new: tuple[int | str | None, ...] | None,
) -> bool:
    if old is None or new is None:
        return True
    if len(old) != len(new):
        return False
    for a, b in zip(old, new, strict=True):
        if isinstance(a, int) and isinstance(b, int) and a != b:
            return False
        if what == "input" and not isinstance(a, int) and isinstance(b, int):
            return False
    return True


_LARGE_BYTES = 1 << 12


def canonical_digest(model: ModelProto) -> str:
    """sha256 of what a runtime would compute: equal digests, equal results.

    Left out are node names, doc strings, inferred shapes, the producer and the order of
    initializers; values are renamed by position. Graph inputs and outputs keep their names.
    ``model`` is changed in place.
    """
    model.doc_string = model.producer_name = model.producer_version = model.domain = ""
    model.graph.name = "g"
    del model.metadata_props[:], model.training_info[:]
    tensors = hashlib.sha256()
    _canonicalize(model.graph, {}, tensors)
    return hashlib.sha256(
        model.SerializeToString(deterministic=True) + tensors.digest()
    ).hexdigest()


def _canonicalize(graph: GraphProto, outer: Mapping[str, str], tensors: hashlib._Hash) -> None:
    del graph.value_info[:], graph.quantization_annotation[:], graph.metadata_props[:]
    graph.doc_string = ""
    kept = {v.name for v in (*graph.input, *graph.output)}
    names = dict(outer) | {name: name for name in kept}
    depth = len(outer)
    # No model's own name begins like these: an input may well be called "v0_0".
    weight, value = f"\0w{depth}_", f"\0v{depth}_"
    initializers = sorted(graph.initializer, key=lambda t: t.name)
    used = Counter(i for g in graphs(graph) for n in g.node for i in n.input)
    order: dict[str, None] = {}
    for node in graph.node:
        order.update(dict.fromkeys(node.input))
    for inner in graphs(graph):
        for node in inner.node:
            order.update(dict.fromkeys(node.input))
    rank = {name: i for i, name in enumerate(order)}
    initializers = [t for t in initializers if used[t.name] or t.name in kept]
    initializers.sort(key=lambda t: rank.get(t.name, len(rank)))
    for i, tensor in enumerate(initializers):
        names.setdefault(tensor.name, f"{weight}{i}")
        tensor.doc_string = ""
        tensors.update(names[tensor.name].encode())
        if len(tensor.raw_data) > _LARGE_BYTES:
            tensors.update(str((tensor.data_type, *tensor.dims)).encode())
            tensors.update(tensor.raw_data)
        else:
            small = TensorProto()
            small.CopyFrom(tensor)
            small.name = ""
            tensors.update(small.SerializeToString(deterministic=True))
    del graph.initializer[:]
    counter = 0
    for node in graph.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        for output in node.output:
            if output and output not in names:
                names[output] = f"{value}{counter}"
                counter += 1
    for node in graph.node:
        for attribute in node.attribute:
            attribute.doc_string = ""
            if attribute.HasField("g"):
                _canonicalize(attribute.g, names, tensors)
            for inner in attribute.graphs:
                _canonicalize(inner, names, tensors)
        node.input[:] = [names.get(i, i) for i in node.input]
        node.output[:] = [names.get(o, o) for o in node.output]
        attributes = sorted(node.attribute, key=lambda a: a.name)
        del node.attribute[:]
        node.attribute.extend(attributes)


def parse(data: bytes) -> ModelProto:
    """Decode a serialized model; onnx.load_from_string with a clear name."""
    return onnx.load_from_string(data)
