"""Operations of a model that the ONNX standard leaves undefined on the given inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from optvet.engine.standard.defined import Undefined, may_be, needs_inner_values, undefined_in
from optvet.engine.standard.shapes import describe_wrong_shape
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_in_loops, record_values
from optvet.graph.functions import without_functions
from optvet.graph.types import value_info
from optvet.graph.walk import between, bodies_of, graphs, reads

Values = Mapping[str, np.ndarray]


def undefined_on(
    config: RuntimeConfig, model: ModelProto, feeds: Values, outputs: Values | None = None
) -> list[Undefined]:
    """Like ``undefined_in``; runs the model once more where a rule needs an inner value.

    Or where something was found: values may show that there is an answer all the same.

    Called in workers. A runtime that cannot return inner values leaves it at what is known without.
    """
    model = without_functions(model)
    found = undefined_in(model, feeds, outputs)
    if not found and not needs_inner_values(model, feeds):
        return found
    inner = _record_all(model, feeds, config)
    return _by_all_values(model, feeds, inner, config) if inner else found


def undefined_kinds(
    data: bytes, feeds: Values, config: RuntimeConfig, outputs: Values | None = None
) -> frozenset[str]:
    """In which ways a serialized model is undefined. Called in a worker.

    ``outputs`` are looked at where no rule needs inner values.
    """
    model = ModelProto.FromString(data)
    if needs_inner_values(model, feeds):
        found = undefined_on(config, model, feeds)
    else:
        found = undefined_in(model, feeds, outputs)
    return frozenset(u.kind for u in found)


def undefined_by_inputs(data: bytes, feeds: Values) -> frozenset[str]:
    """In which ways inputs and weights alone make a model undefined. Called in a worker."""
    return frozenset(u.kind for u in undefined_in(ModelProto.FromString(data), feeds))


def refusable(data: bytes, feeds: Values, config: RuntimeConfig) -> str:
    """Why a runtime may refuse a model, in words; empty if the standard has an answer for it.

    Called in a worker.
    """
    model = without_functions(ModelProto.FromString(data))
    inner = _record_all(model, feeds, config)
    wrong = describe_repeated_name(model.graph) or describe_wrong_shape(model, feeds, inner)
    return wrong or next((u.words() for u in _by_all_values(model, feeds, inner, config)), "")


def unanswered(data: bytes, feeds: Values, config: RuntimeConfig) -> str:
    """For what value of a serialized model the standard has no answer; empty if for none.

    By all values of a run, also where no rule is worth one by itself. Called in a worker.
    """
    model = without_functions(ModelProto.FromString(data))
    found = _by_all_values(model, feeds, _record_all(model, feeds, config), config)
    return next((u.words() for u in found if u.values), "")


def _by_all_values(
    model: ModelProto, feeds: Values, inner: Values, config: RuntimeConfig
) -> list[Undefined]:
    return undefined_in(model, feeds, inner, _recorded(record_in_loops, model, feeds, config))


def _record_all(model: ModelProto, feeds: Values, config: RuntimeConfig) -> Values:
    """All values of a run; none of a runtime that cannot return them."""
    return _recorded(record_values, model.SerializeToString(), feeds, config)


def _recorded(record: Callable[..., Values], *about: object) -> Values:
    try:
        return record(*about)
    except Exception as error:  # runtimes raise what they like of a model with more outputs
        if isinstance(error, MemoryError):
            raise
        return {}


def describe_repeated_name(graph: GraphProto) -> str:
    """The first name that several nodes of a graph have, in words; empty if there is none.

    Source: ONNX's IR, "Names Within a Graph": the name of a node is unique within its graph.
    """
    for each in graphs(graph):
        names = Counter(node.name for node in each.node if node.name)
        for name, count in names.items():
            if count > 1:
                return f"{count} nodes of a graph have the name {name!r}"
    return ""


def with_answers(
    data: bytes, feeds: Values, config: RuntimeConfig
) -> tuple[bytes, dict[str, np.ndarray]] | None:
    """A model in which inputs stand for what the standard leaves open, and its feeds.

    They are fed with what the runtime answered. None if there is no such model: what is open is
    inside of a body, or nothing but open values is left. Called in a worker.
    """
    model = without_functions(ModelProto.FromString(data))
    open_ = {v for u in undefined_on(config, model, feeds) for v in u.values}
    values = record_values(model.SerializeToString(), feeds, config)
    added = fed_with(model, open_, values)
    if added is None:
        return None
    answered = {**feeds, **{name: values[name] for name in added}}
    taken = {i.name for i in model.graph.input}
    return model.SerializeToString(), {n: v for n, v in answered.items() if n in taken}


def fed_with(model: ModelProto, open_: Collection[str], values: Values) -> list[str] | None:
    """Make inputs of ``open_`` in place, of those that are read; their names.

    None, and nothing is changed, where one is inside of a body or no other output is left.
    """
    outputs = [o for o in model.graph.output if o.name not in open_]
    if not outputs or not {*open_} <= values.keys():
        return None
    nodes = [n for n in model.graph.node if not {*open_} & {*n.output}]
    needed, kept = {o.name for o in outputs}, list[NodeProto]()
    for node in reversed(nodes):
        if needed & {*node.output}:
            kept.insert(0, node)
            needed |= {*reads(node)}
    known = {i.name for i in model.graph.input} | {t.name for t in model.graph.initializer}
    added = [v for v in sorted({*open_} & needed) if v not in known]
    for field, items in (("node", kept), ("output", outputs)):
        model.graph.ClearField(field)
        getattr(model.graph, field).extend(items)
    for name in added:
        kind = helper.np_dtype_to_tensor_dtype(values[name].dtype)
        info = helper.make_tensor_value_info(name, kind, values[name].shape)
        model.graph.input.append(info)
    return added


@dataclass(frozen=True)
class Misdeclared:
    """A model without the shapes that it declares of values and does not compute.

    ``words`` say of one of them what it is declared to be, and what it is.
    """

    data: bytes
    words: str


def without_wrong_shapes(data: bytes, feeds: Values, config: RuntimeConfig) -> Misdeclared | None:
    """The model without wrong declarations of inner values; None if none is wrong on these inputs.

    Called in a worker.
    """
    model = ModelProto.FromString(data)
    wrong = []
    if model.graph.value_info:
        wrong += _drop_wrong(model.graph, _record_all(model, feeds, config))
    wrong += _drop_wrong_in_branches(model.graph, model, feeds, config)
    return Misdeclared(model.SerializeToString(), wrong[0]) if wrong else None


def _drop_wrong(graph: GraphProto, values: Values) -> list[str]:
    """Remove wrong declarations of inner values; a line about each."""
    kept, wrong = list[ValueInfoProto](), list[str]()
    for info in graph.value_info:
        words = _contradiction(info, values)
        if words:
            wrong.append(words)
        else:
            kept.append(info)
    if wrong:
        graph.ClearField("value_info")
        graph.value_info.extend(kept)
    return wrong


def _drop_wrong_in_branches(
    graph: GraphProto, model: ModelProto, feeds: Values, config: RuntimeConfig
) -> list[str]:
    """The same in the branches of each If of ``graph``, where outputs are inner values too.

    A branch that is not taken runs here as well: what it declares, checkers compare with what they
    infer, whatever the condition is. ``model`` ends with the nodes of ``graph``.
    """
    wrong = []
    for i, node in enumerate(graph.node, len(model.graph.node) - len(graph.node)):
        for branch in bodies_of(node) if node.op_type == "If" else ():
            inlined = _with_branch(model, i, branch)
            values = _record_all(inlined, feeds, config)
            wrong += _drop_wrong(branch, values)
            for info in branch.output:
                words = _contradiction(info, values)
                if words:
                    wrong.append(words)
                    info.type.tensor_type.ClearField("shape")
            wrong += _drop_wrong_in_branches(branch, inlined, feeds, config)
    return wrong


def _with_branch(model: ModelProto, place: int, branch: GraphProto) -> ModelProto:
    """A model that always computes ``branch``, which is one of the If at ``place``."""
    inlined = ModelProto()
    inlined.CopyFrom(model)
    graph = inlined.graph
    del graph.node[place:], graph.output[:], graph.value_info[:]
    graph.node.extend(branch.node)
    graph.output.extend(branch.output)
    graph.initializer.extend(branch.initializer)
    graph.sparse_initializer.extend(branch.sparse_initializer)
    return inlined


def _contradiction(declared: ValueInfoProto, values: Values) -> str:
    """How a declared shape differs from that of the computed value; empty if it may be it."""
    info, value = value_info(declared), values.get(declared.name)
    if value is None or may_be(info.shape, value.shape):
        return ""
    shape = [*(info.shape or ())]
    return f"{info.name!r} is declared with the shape {shape} and computed with {[*value.shape]}"


def region_of(model: ModelProto, begins: Collection[str], ends: Collection[str]) -> set[str]:
    """Names of the values from which ``ends`` are computed, back to ``begins``."""
    nodes = [model.graph.node[i] for end in ends for i in between(model.graph, end, begins)]
    found = {name for node in nodes for name in (*node.output, *reads(node))}
    return (found | {*ends}) - {*begins}
