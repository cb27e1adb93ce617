"""Small models made of fragments: one alone, or several in a chain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TypeProto, helper, numpy_helper

from optvet.graph.opsets import at_opset
from optvet.graph.types import infer_types
from optvet.graph.walk import ONNX_DOMAIN, all_names, bodies_of, domain_of
from optvet.spec.generators import Candidate, Fragment

_FEW = 16
"""Integers up to this number are mostly shapes, axes and the like, which models hold as weights."""
_LARGEST = 4096
"""Elements of an input of a fragment that is refitted."""
_AS_IT_WAS = 0.8
"""Share of the models of a fragment whose weights are as they were where it comes from."""
_OLDEST_IR = 4
"""From this version on, weights need not be listed among the inputs."""

Typed = Mapping[str, tuple[int, tuple[int | None, ...]]]
"""Element type and shape by name."""


def candidate_of(fragment: Fragment, random: Random) -> Candidate:
    """A model of one fragment; whether a value is an input or a weight is drawn."""
    empty = helper.make_graph([], "hunted", [], [])
    versions = dict(fragment.opsets)
    versions.setdefault(ONNX_DOMAIN, 1)
    model = helper.make_model(empty, opset_imports=_imports(versions))
    model.ir_version = ir_version_of(versions)
    candidate = Candidate(model, {})
    _append(candidate, fragment, {}, random)
    return candidate


def join(candidate: Candidate, fragment: Fragment, random: Random) -> Candidate | None:
    """``candidate`` with ``fragment`` behind it; None if no value of it fits an input.

    One of its values becomes an input of the fragment: of equal type, if possible of equal shape.
    Nodes of the older operator set are written in the newer one.
    """
    model = candidate.model
    typed = types_of(model)
    typed_outputs = [o for node in model.graph.node for o in node.output if o in typed]
    best: list[tuple[str, str]] = []
    score = -1
    for name in typed_outputs:
        for wanted, value in fragment.inputs.items():
            found = _fit(typed[name], value)
            if found > score:
                best, score = [], found
            if found == score and found >= 0:
                best.append((name, wanted))
    if not best:
        return None
    name, wanted = random.choice(best)
    _raise_opsets(candidate, fragment)
    _append(candidate, fragment, {wanted: name}, random)
    outputs = model.graph.output
    # A value that is read is mostly no output, else nothing could be fused.
    if len(outputs) > 1 and random.random() < 0.85:
        for output in [o for o in outputs if o.name == name]:
            outputs.remove(output)
    return candidate


def fit_to_shape(fragment: Fragment, wanted: tuple[int, ...], random: Random) -> Fragment | None:
    """``fragment`` on a first input of another shape, so that an output has the shape ``wanted``.

    Without this most patterns would never be made: two fragments of random tests seldom fit.
    """
    if len(fragment.nodes) != 1 or not fragment.inputs:
        return None
    name, value = next(iter(fragment.inputs.items()))
    if not value.size or value.dtype == object:
        return None
    shapes = [wanted, wanted[::-1], (1, *wanted), wanted[1:], (*wanted, 1), wanted[:-1]]
    for shape in shapes:
        if np.prod(shape, dtype=np.int64) > _LARGEST:
            continue
        inputs = {**fragment.inputs, name: np.resize(value, shape)}
        nodes = (_of_rank(fragment.nodes[0], value.ndim, len(shape)),)
        fitted = replace(fragment, nodes=nodes, inputs=inputs)
        types = types_of(candidate_of(fitted, random).model)
        if any(types.get(o, (0, None))[1] == wanted for o in fragment.outputs):
            return fitted
    return None


def _of_rank(node: NodeProto, was: int, now: int) -> NodeProto:
    """``node`` with lists of one number per dimension made as long as the new rank."""
    changed = NodeProto()
    changed.CopyFrom(node)
    for attribute in changed.attribute:
        numbers = list(attribute.ints)
        if was == now or not numbers:
            continue
        if sorted(numbers) == list(range(was)):
            attribute.ints[:] = reversed(range(now))
        elif len(numbers) == was:
            attribute.ints[:] = [*numbers, *numbers[-1:] * now][:now]
        elif len(numbers) == 2 * was:  # begins and ends
            begins, ends = numbers[:was], numbers[was:]
            attribute.ints[:] = [*([0] * now + begins)[-now:], *([0] * now + ends)[-now:]]
    return changed


def types_of(model: ModelProto) -> dict[str, tuple[int, tuple[int | None, ...]]]:
    """Element type and shape of the values of the outer graph, as far as they can be inferred."""
    inferred = infer_types(model)
    if inferred is None:
        return {}
    graph = inferred.graph
    infos = (*graph.input, *graph.value_info, *graph.output)
    found = {i.name: shape for i in infos if (shape := _shape(i.type)) is not None}
    return found | {t.name: (t.data_type, tuple(t.dims)) for t in graph.initializer}


def _shape(type: TypeProto) -> tuple[int, tuple[int | None, ...]] | None:
    if not (type.tensor_type.elem_type and type.tensor_type.HasField("shape")):
        return None
    dims = type.tensor_type.shape.dim
    # Inference makes sizes below 0 of some invalid models.
    known = (d.HasField("dim_value") and d.dim_value >= 0 for d in dims)
    shape = tuple(d.dim_value if k else None for d, k in zip(dims, known, strict=True))
    return type.tensor_type.elem_type, shape


def type_of(value: np.ndarray) -> int:
    """ONNX's element type of an array."""
    if value.dtype == object or value.dtype.kind in "US":
        return onnx.TensorProto.STRING
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


def _fit(found: tuple[int, tuple[int | None, ...]], value: np.ndarray) -> int:
    """How well a value fits in the place of another; -1 if not at all."""
    element, shape = found
    if element != type_of(value):
        return -1
    return 2 if shape == value.shape else 1 if len(shape) == value.ndim else 0


def ir_version_of(versions: Mapping[str, int]) -> int:
    """The oldest IR version for these operator sets that lets weights be no inputs."""
    known = helper.find_min_ir_version_for(_imports(versions), True)
    return max(known, _OLDEST_IR)


def _imports(versions: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    spelled = {"" if d == ONNX_DOMAIN else d: v for d, v in versions.items()}
    return [helper.make_opsetid(d, v) for d, v in spelled.items()]


def _raise_opsets(candidate: Candidate, fragment: Fragment) -> None:
    """Import what the fragment needs; own nodes are written in the newer operator sets."""
    model = candidate.model
    imports = {domain_of(entry): entry for entry in model.opset_import}
    for domain, version in fragment.opsets.items():
        entry = imports.get(domain)
        if entry is None:
            spelled = "" if domain == ONNX_DOMAIN else domain
            model.opset_import.append(helper.make_opsetid(spelled, version))
        elif entry.version < version:
            to_opset(candidate, domain, version)
    versions = {domain_of(e): e.version for e in model.opset_import}
    if model.ir_version >= _OLDEST_IR:
        model.ir_version = max(model.ir_version, ir_version_of(versions))


def to_opset(candidate: Candidate, domain: str, version: int) -> None:
    """Write the nodes of the outer graph in another operator-set version, in place."""
    model = candidate.model
    (entry,) = (e for e in model.opset_import if domain_of(e) == domain)
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        foreign = domain_of(node) != domain
        nodes += [node] if foreign else at_opset(node, entry.version, version, values)
    copies = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    entry.version = version


def _append(
    candidate: Candidate, fragment: Fragment, existing: Mapping[str, str], random: Random
) -> None:
    """Add the nodes of ``fragment`` under new names; ``existing`` are inputs that are there."""
    graph = candidate.model.graph
    names = dict(existing)
    number = len(graph.node)
    for name in (*fragment.inputs, *(o for n in fragment.nodes for o in n.output if o)):
        names.setdefault(name, f"{name}_{number}" if number else name)
    # Most models hold all weights of a layer as constants, and most fusions ask for that.
    trained = random.random() < 0.5
    known = fragment.weights if random.random() < _AS_IT_WAS else frozenset[str]()
    for place, (name, value) in enumerate(fragment.inputs.items()):
        if name not in existing and known:
            _place_as(candidate, names[name], value, "weight" if name in known else "input")
        elif name not in existing:
            first = place == 0 and not existing
            _place(candidate, names[name], value, random, first=first, trained=trained)
    for name, axes in fragment.open_sizes.items():
        for declared in (i for i in graph.input if i.name == names[name]):
            for axis, size in axes.items():
                declared.type.tensor_type.shape.dim[axis].dim_param = size
    ours = {domain_of(e): e.version for e in candidate.model.opset_import}
    values = {names[n]: v for n, v in fragment.inputs.items()}
    for node in fragment.nodes:
        renamed = rename_node_values(node, names)
        was = fragment.opsets.get(domain_of(node), 1)
        graph.node.extend(at_opset(renamed, was, ours.get(domain_of(node), was), values))
    outputs = [names[o] for o in fragment.outputs if o in names]
    graph.output.extend(helper.make_empty_tensor_value_info(o) for o in outputs)
    there = {(f.domain, f.name) for f in candidate.model.functions}
    new = [f for f in fragment.functions if (f.domain, f.name) not in there]
    candidate.model.functions.extend(new)


def rename_node_values(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy whose values are called by ``names``; so are captured ones in nested graphs."""
    renamed = NodeProto()
    renamed.CopyFrom(node)
    for body in bodies_of(renamed):
        inner = all_names(body.node) & names.keys()
        if inner:
            _rename_captured_values(body.node, {n: names[n] for n in inner})
            for output in body.output:
                output.name = names.get(output.name, output.name)
    renamed.input[:] = [names.get(n, n) for n in renamed.input]
    renamed.output[:] = [names.get(n, n) for n in renamed.output]
    return renamed


def _rename_captured_values(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> None:
    for node in nodes:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
        for body in bodies_of(node):
            _rename_captured_values(body.node, names)


def _place(
    candidate: Candidate,
    name: str,
    value: np.ndarray,
    random: Random,
    *,
    first: bool,
    trained: bool,
) -> None:
    """Draw what a value is."""
    few = value.dtype.kind in "iu" and value.size <= _FEW
    fixed = 0.05 if first else 0.97 if trained else 0.7 if few else 0.3
    drawn = random.random()
    if drawn >= fixed:
        _place_as(candidate, name, value, "input")
    elif drawn < 0.2 * fixed and few:
        _place_as(candidate, name, value, "constant")
    else:
        _place_as(candidate, name, value, "default" if drawn > 0.96 * fixed else "weight")


def _place_as(candidate: Candidate, name: str, value: np.ndarray, role: str) -> None:
    """Make a value an input, a weight, a Constant node, or a weight that callers may replace."""
    graph = candidate.model.graph
    if role in ("input", "default"):
        graph.input.append(helper.make_tensor_value_info(name, type_of(value), value.shape))
    if role == "input":
        candidate.feeds[name] = value
        return
    tensor = numpy_helper.from_array(np.asarray(value), name)
    if role == "constant":
        graph.node.append(helper.make_node("Constant", [], [name], value=tensor))
    else:
        graph.initializer.append(tensor)
