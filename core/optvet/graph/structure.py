"""Static facts about an ONNX model: interface, metadata, operators.

Everything here is Python on a parsed message; no native code is called, which a malformed model
could crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import ModelProto, NodeProto, StringStringEntryProto

from optvet.graph.interface import graph_inputs, graph_outputs, lists_weights, optional_inputs
from optvet.graph.walk import (
    ONNX_DOMAIN,
    RANDOM_OPERATORS,
    domain_of,
    graphs,
    node_count,
    operator_of,
    opset_versions,
    qualified_name,
    schema_of,
)
from optvet.spec.types import ValueInfo

Metadatum = int | tuple[str, ...] | Mapping[str, int]
"""What a model says about itself: a number, texts, or the versions of operator sets by domain."""


@dataclass(frozen=True)
class Facts:
    """Structure of one model, small enough to be sent between processes."""

    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    metadata: Mapping[str, Metadatum]
    operators: Mapping[str, int]
    nodes: int
    size_bytes: int
    random: bool = False
    foreign: Mapping[str, int] = field(default_factory=dict)
    optional: tuple[ValueInfo, ...] = ()
    lists_weights: bool = False


def facts(model: ModelProto, size_bytes: int) -> Facts:
    """Structure of ``model``, whose serialized size is ``size_bytes``."""
    nodes = node_count(model)
    inputs, outputs = graph_inputs(model), graph_outputs(model)
    return Facts(
        inputs,
        outputs,
        _metadata(model),
        dict(operator_counts(model)),
        nodes,
        size_bytes,
        draws_random(model),
        dict(Counter("::".join(operator_of(node)) for node in foreign_nodes(model))),
        optional_inputs(model),
        lists_weights(model),
    )


def brief_facts(model: ModelProto, size_bytes: int) -> Facts:
    """What ``is_bloated``, ``growth`` and ``lost_metadata`` compare, in a third of the time."""
    operators = dict(operator_counts(model))
    return Facts((), (), _metadata(model), operators, node_count(model), size_bytes)


def operator_counts(model: ModelProto) -> Counter[str]:
    """Nodes by operator, those of nested graphs and of functions too."""
    return Counter(
        qualified_name(n.domain, n.op_type)
        for body in (*graphs(model.graph), *model.functions)
        for n in body.node
    )


def foreign_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Nodes whose operator is defined neither by ONNX, at the model's opsets, nor by a function.

    Nodes of subgraphs and functions are included. Deprecated operators count as ONNX's.
    """
    functions = {(domain_of(f), f.name) for f in model.functions}
    bodies: list[tuple[Iterable[NodeProto], Mapping[str, int]]] = [
        (graph.node, opset_versions(model)) for graph in graphs(model.graph)
    ]
    for function in model.functions:
        bodies.append((function.node, opset_versions(function)))
    for nodes, opsets in bodies:
        known: dict[tuple[str, str], bool] = {}
        for node in nodes:
            kind = operator_of(node)
            if kind not in known:
                known[kind] = kind in functions or _is_defined(*kind, opsets)
            if not known[kind]:
                yield node


def undefined_operators(model: ModelProto) -> list[str]:
    """Operators that no version of ONNX's operator sets has, nor a function of the model."""
    kinds = dict.fromkeys(operator_of(node) for node in foreign_nodes(model))
    return [
        op_type if domain == ONNX_DOMAIN else f"{domain}::{op_type}"
        for domain, op_type in kinds
        if not onnx.defs.has(op_type, "" if domain == ONNX_DOMAIN else domain)
    ]


def _is_defined(domain: str, op_type: str, versions: Mapping[str, int]) -> bool:
    if domain not in versions:
        return onnx.defs.has(op_type, "" if domain == ONNX_DOMAIN else domain)
    return schema_of(domain, op_type, versions) is not None


def gained_operators(before: Facts, after: Facts) -> dict[str, dict[str, int]]:
    """Foreign operators that only ``after`` has: numbers of nodes by domain and operator."""
    gained: dict[str, dict[str, int]] = {}
    for name, count in sorted(after.foreign.items()):
        if name not in before.foreign:
            domain, _, op_type = name.partition("::")
            gained.setdefault(domain, {})[op_type] = count
    return gained


def portability(domain: str, operators: Mapping[str, int]) -> str:
    """A sentence about the operators that ``gained_operators`` found in one domain."""
    nodes = sum(operators.values())
    names = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in operators.items())
    where = (
        f"the domain {domain}" if domain != ONNX_DOMAIN else "ONNX's domain at this operator set"
    )
    return (
        f"{nodes} node{'s' * (nodes != 1)} of operators that ONNX does not define in {where} "
        f"({names}): only a runtime that has them can run the optimized model"
    )


def draws_random(model: ModelProto) -> bool:
    """Whether an operator may draw random numbers; Dropout does in training mode."""
    nodes = (n for body in (*graphs(model.graph), *model.functions) for n in body.node)
    return any(
        n.op_type in RANDOM_OPERATORS
        or (n.op_type == "Dropout" and len(n.input) > 2 and bool(n.input[2]))
        for n in nodes
    )


def _metadata(model: ModelProto) -> dict[str, Metadatum]:
    graph = model.graph
    used = {domain_of(n) for g in graphs(graph) for n in g.node}
    opsets = opset_versions(model)
    # An unused import of an operator set may be added or removed without consequence.
    relevant = {d: v for d, v in opsets.items() if d in used or d == ONNX_DOMAIN}
    denotations = [
        d.denotation for v in (*graph.input, *graph.output) for d in v.type.tensor_type.shape.dim
    ] + [v.type.denotation for v in (*graph.input, *graph.output)]
    return {
        "ir_version": model.ir_version,
        "opset_import": relevant,
        "functions": tuple(sorted(f"{f.domain}::{f.name}" for f in model.functions)),
        "training_info": len(model.training_info),
        "metadata_props": _entries(model.metadata_props),
        "graph metadata_props": _entries(graph.metadata_props),
        "quantization_annotation": len(graph.quantization_annotation),
        "sparse_initializer": len(graph.sparse_initializer),
        "denotations": tuple(sorted(filter(None, denotations))),
        "doc_string": (model.doc_string,) if model.doc_string else (),
        OVERRIDABLE: _overridable(model),
        UNLISTED: _count_unlisted(model),
    }


def _entries(props: Iterable[StringStringEntryProto]) -> tuple[str, ...]:
    return tuple(sorted(f"{p.key}={p.value}" for p in props))


OVERRIDABLE = "replaceable weights"
UNLISTED = "weights missing among the inputs"


def _overridable(model: ModelProto) -> int:
    """Number of initializers that callers can replace, since they are listed among the inputs.

    Source: onnx IR.md, "Graphs": before IR version 4 all initializers had to be listed.
    """
    if model.ir_version < 4:
        return 0
    return len({i.name for i in model.graph.input} & {t.name for t in model.graph.initializer})


def _count_unlisted(model: ModelProto) -> int:
    """Number of initializers that are not among the inputs though the IR version requires it."""
    if model.ir_version >= 4:
        return 0
    return len({t.name for t in model.graph.initializer} - {i.name for i in model.graph.input})


def lost_metadata(before: Facts, after: Facts) -> dict[str, tuple[str, str]]:
    """Metadata that ``after`` lost or changed, as {what: (before, after)}.

    Not reported: functions whose uses were all inlined, properties that an optimizer adds about
    itself, fewer weights that callers can replace or that should be listed among the inputs, and
    operator domains that one of the two does not use.
    """
    return {
        key: (_in_one(was), _in_one(after.metadata[key]))
        for key, was in before.metadata.items()
        if not _stays(key, was, after.metadata[key], after)
    }


def _stays(key: str, was: Metadatum, now: Metadatum, after: Facts) -> bool:
    """Whether an entry is equal, or changed in a way that ``lost_metadata`` does not report."""
    if was == now:
        return True
    if isinstance(was, int) and isinstance(now, int):
        return key in (OVERRIDABLE, UNLISTED) and was > now
    if isinstance(was, tuple) and isinstance(now, tuple):
        if key in ("metadata_props", "graph metadata_props"):
            return set(was) <= set(now)
        inlined = not (set(was) - set(now)) & after.operators.keys()
        return key == "functions" and set(now) <= set(was) and inlined
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        # Operators of new domains are reported by ``gained_operators``.
        return all(was[domain] == now[domain] for domain in was.keys() & now.keys())
    return False


def more_replaceable(before: Facts, after: Facts) -> int:
    """How many more weights a caller can replace than could be before; see ``facts``."""
    was, now = (side.metadata.get(OVERRIDABLE, 0) for side in (before, after))
    return now - was if isinstance(was, int) and isinstance(now, int) else 0


def _in_one(entry: Metadatum) -> str:
    if isinstance(entry, Mapping):
        return ", ".join(f"{domain} {version}" for domain, version in sorted(entry.items()))
    return str(entry) if isinstance(entry, int) else "; ".join(entry) or "none"


def in_words(changed: Mapping[str, tuple[str, str]]) -> str:
    """The result of ``lost_metadata`` in words, with known consequences."""
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
    """Numbers of nodes before and after, and which operators became more or fewer, in words."""
    change = Counter(after.operators)
    change.subtract(before.operators)
    ranked = sorted(change.items(), key=lambda item: (-abs(item[1]), item[0]))
    listed = [f"{amount:+} {name}" for name, amount in ranked if amount]
    more = ["…"] * (len(listed) > _LISTED_OPERATORS)
    operators = ", ".join(listed[:_LISTED_OPERATORS] + more)
    return f"{before.nodes} nodes became {after.nodes}: {operators}"
