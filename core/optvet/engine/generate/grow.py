"""One synthetic model, grown fragment by fragment; called in a worker.

Every fragment runs alone on the values that it is to read before it joins the model. So the values
and the types of all that a next fragment can read are known, also where they cannot be inferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from onnx import ModelProto, NodeProto, helper

from optvet.engine.generate.adapt import AddedNodes, adapted, bound, fitting, merged
from optvet.engine.generate.execute import Refused, Values, executed, is_finite, results, same
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.compose import rename_node_values
from optvet.graph.opsets import at_opset
from optvet.graph.types import dtype_name, element_types
from optvet.graph.walk import (
    ONNX_DOMAIN,
    RANDOM_OPERATORS,
    attribute_of,
    domain_of,
    nodes_of,
    operator_of,
    qualified_name,
    reads,
)
from optvet.spec.generators import Fragment

ELEMENTS = 16_384
"""Limit of one value."""
_BINDINGS = 6
"""Places of a fragment that are tried for values of the model as they are."""
_ADAPTED = 3
"""Values of the model that are tried in another type or shape."""
_FRAGMENTS = 3
"""Fragments of one operator that are tried for it."""
_DIRECT = 25
"""Operators in a row that could not read a value as it is, after which others may join them."""
_UNPRODUCTIVE = 80
"""Operators in a row of which no fragment could be used, after which a model is given up."""
_CONSTANT = 0.6
"""Share of weights among values that the model does not make."""
_RECENT = 6
_FEW = 16


class Unproductive(Exception):
    """No fragment could be used any more."""


@dataclass(frozen=True)
class Grown:
    """A model with inputs on which it runs, and why wanted operators are not in it."""

    model: bytes
    feeds: Mapping[str, np.ndarray]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class Plot:
    """What a model grows from.

    Attributes:
        fragments: Those that may be used, by each operator in them.
        config: The runtime, which has to run everything.
        opset: The version of ONNX's own operators.
        note: Called with the operator that is about to be tried, before it can kill the process.
        excluded: Operators that the model must not have.
        excluded_types: Element types that no value of it may have.
    """

    fragments: Mapping[str, Sequence[Fragment]]
    config: RuntimeConfig
    opset: int
    note: Callable[[str], None]
    excluded: frozenset[str] = frozenset()
    excluded_types: frozenset[str] = frozenset()


@dataclass
class _GrowingModel:
    """A model that grows; ``values`` are those of nodes, ``unread`` those that no node reads."""

    opsets: dict[str, int]
    nodes: list[NodeProto] = field(default_factory=list)
    weights: Values = field(default_factory=dict)
    feeds: Values = field(default_factory=dict)
    values: Values = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    size: int = 0

    def add(self, step: AddedNodes, computed: Mapping[str, np.ndarray]) -> None:
        """Add nodes that have run."""
        self.nodes += step.nodes
        self.size += count_of(step.nodes)
        self.weights |= step.weights
        self.feeds |= step.feeds
        self.opsets |= step.opsets
        self.values |= computed
        self.unread = [n for n in (*self.unread, *computed) if n not in step.reads]

    def recent(self) -> list[str]:
        """Values that nothing reads yet, and the latest of all."""
        return list(dict.fromkeys([*self.unread[-_RECENT:], *list(self.values)[-_RECENT:]]))

    def fresh(self, kind: str) -> str:
        """A name that the model does not have yet."""
        return f"{kind}.{len(self.nodes)}"


def grow(
    plot: Plot,
    wanted: Sequence[str],
    weights: Mapping[str, float],
    size: int,
    most: int,
    random: Random,
) -> Grown:
    """A model of at least ``size`` and at most ``most`` nodes.

    Args:
        plot: What it grows from.
        wanted: Operators that it is to have, as far as they can be used.
        weights: How readily each operator is drawn when those are done.
        size: Nodes from which on it is done.
        most: Limit of nodes.
        random: Source of everything random.

    Raises:
        Unproductive: It cannot grow any further.
        Refused: The whole is refused.
    """
    model = _GrowingModel({ONNX_DOMAIN: plot.opset})
    refused: dict[str, str] = {}
    names = [name for name, weight in weights.items() if weight and name in plot.fragments]
    if not names:
        raise Unproductive("no pool has a fragment of these operators alone")
    waiting = [name for name in wanted if name in plot.fragments]
    unproductive = 0
    while model.size < size:
        drawn = random.choices(names, [weights[n] for n in names])[0]
        # Wanted operators may be joined by others at once; the rest first try to read values as
        # they are, or models would be mostly Reshape, Gather and Cast.
        direct = not waiting and unproductive < _DIRECT
        operator = waiting.pop(0) if waiting else drawn
        why = _planted(plot, model, operator, most, random, direct=direct)
        unproductive = 0 if why is None else unproductive + 1
        if why:
            refused.setdefault(operator, why)
        if unproductive > _UNPRODUCTIVE + len(wanted):
            raise Unproductive(why or "no fragment is as small as what is missing")
    data = _whole(plot, model, random)
    return Grown(data, model.feeds, {n: why for n, why in refused.items() if n in wanted})


def _planted(
    plot: Plot, model: _GrowingModel, operator: str, most: int, random: Random, *, direct: bool
) -> str | None:
    """Add a fragment with ``operator``; the reason if none can be, "" if it does not fit now."""
    plot.note(operator)
    options = plot.fragments[operator]
    why = ""
    for fragment in random.sample(options, min(_FRAGMENTS, len(options))):
        try:
            _plant(plot, model, fragment, most - model.size, random, direct=direct)
            return None
        except Refused as error:
            why = why or str(error)
    return why


def _plant(
    plot: Plot, model: _GrowingModel, fragment: Fragment, room: int, random: Random, *, direct: bool
) -> None:
    """Add ``fragment``, connected with the model; if ``direct``, by values as they are.

    Raises:
        Refused: It cannot be added.
    """
    if count_of(fragment.nodes) > room:
        raise Refused("")
    # Alone first: what does not run on its own values runs on no others.
    base = _step_of(plot, model, fragment, random)
    own = _try_out(plot, base)
    if not model.nodes:
        model.add(base, own)
        return
    for binding in _bindings(model, base, random):
        step = bound(base, binding)
        computed = _run(plot, step, model.values)
        if computed is not None and (is_finite(computed) or not is_finite(own)):
            model.add(step, computed)
            return
    if direct:
        raise Refused("")
    if _adapt(plot, model, base, own, room, random):
        return
    if not _merge(plot, model, base, own, room, random):
        raise Refused("its results cannot be joined with those of other operators")


def _adapt(
    plot: Plot, model: _GrowingModel, base: AddedNodes, own: Values, room: int, random: Random
) -> bool:
    """Add a fragment that reads a value of the model in another type or shape."""
    pairs = [(n, p) for p in base.places for n in model.recent() if model.values[n].size]
    for name, place in random.sample(pairs, min(_ADAPTED, len(pairs))):
        change = adapted(name, model.values[name], base.places[place], model.fresh)
        if not change.nodes or count_of((*change.nodes, *base.nodes)) > room:
            continue
        between = _run(plot, change, model.values)
        if between is None:
            continue
        step = bound(base, {place: change.result})
        computed = _run(plot, step, between)
        if computed is not None and (is_finite(computed) or not is_finite(own)):
            model.add(change, between)
            model.add(step, computed)
            return True
    return False


def _merge(
    plot: Plot, model: _GrowingModel, base: AddedNodes, own: Values, room: int, random: Random
) -> bool:
    """Add a fragment that reads nothing of the model, and a Concat that reads both."""
    for theirs in random.sample(sorted(own), min(_ADAPTED, len(own))):
        ours = random.choice(model.recent())
        join = merged((ours, model.values[ours]), (theirs, own[theirs]), model.fresh)
        if count_of((*join.nodes, *base.nodes)) > room:
            continue
        computed = _run(plot, join, model.values | own)
        if computed is not None:
            model.add(base, own)
            model.add(join, computed)
            return True
    return False


def _step_of(plot: Plot, model: _GrowingModel, fragment: Fragment, random: Random) -> AddedNodes:
    """The fragment under new names, in the operator-set version of the model.

    Raises:
        Refused: It needs another version of an operator set than the model has.
    """
    versions = {d: v for d, v in fragment.opsets.items() if d != ONNX_DOMAIN}
    if any(model.opsets.get(d, v) != v for d, v in versions.items()):
        raise Refused("")
    computed = {o for n in fragment.nodes for o in n.output if o}
    # Other than those of what adapts values to it, which it may be joined by.
    names = {n: model.fresh(f"{n}.own") for n in (*fragment.inputs, *computed)}
    values = {names[n]: np.asarray(v) for n, v in fragment.inputs.items()}
    was = fragment.opsets.get(ONNX_DOMAIN, plot.opset)
    nodes: list[NodeProto] = []
    for index, node in enumerate(fragment.nodes):
        copy = rename_node_values(node, names)
        copy.name = f"{node.op_type}_{len(model.nodes) + index}"
        own = domain_of(copy) == ONNX_DOMAIN
        nodes += at_opset(copy, was, plot.opset, values) if own else [copy]
    read = {name for node in nodes for name in reads(node)}
    places = {n: v for n, v in values.items() if n in read}
    constant = frozenset(n for n, v in places.items() if _is_constant(v, random))
    if not model.feeds:  # a model without inputs is folded into constants
        constant -= set([n for n, v in places.items() if v.dtype.kind == "f"][:1])
    outputs = tuple(names[o] for o in fragment.outputs)
    return AddedNodes(tuple(nodes), places, constant, (), outputs, versions)


def _is_constant(value: np.ndarray, random: Random) -> bool:
    """Whether a value that the model does not make is a weight; else it is an input.

    Few integers are mostly shapes, axes or indices, which only some values may have.
    """
    few = value.dtype.kind in "iu" and value.size <= _FEW
    return few or random.random() < _CONSTANT


def _bindings(model: _GrowingModel, base: AddedNodes, random: Random) -> Iterator[dict[str, str]]:
    """Values of the model for places of the fragment, the best fit first.

    Other places are filled too where a value fits exactly: so branches join.
    """
    scored = [
        (score, random.random(), place, name)
        for place, value in base.places.items()
        for name in model.recent()
        if (score := fitting(model.values[name], value)) > 0
    ]
    # Equals in drawn order: else the first value of a model would be read by all.
    scored.sort(reverse=True)
    for _, _, place, name in scored[:_BINDINGS]:
        more = {p: n for score, drawn, p, n in scored if score == 3 and drawn < 0.5}
        bound = {**more, place: name}
        yield bound
        if len(bound) > 1:
            yield {place: name}


def count_of(nodes: Sequence[NodeProto]) -> int:
    """Number of nodes, with those in nested graphs."""
    return sum(1 for _ in nodes_of(helper.make_graph(nodes, "", [], [])))


# --- running -------------------------------------------------------------------------------------


def _try_out(plot: Plot, step: AddedNodes) -> Values:
    """What nodes make of their own values, twice alike.

    Raises:
        Refused: They cannot be used.
    """
    for node in step.nodes:
        if node.op_type in RANDOM_OPERATORS and attribute_of(node, "seed") is None:
            raise Refused("its random numbers differ between runs")
    computed = _results(plot, step, {})
    # Twice: models whose results differ between runs are of no use to tests.
    if not same(computed, _results(plot, step, {})):
        raise Refused("its results differ between runs")
    if any(v.size > ELEMENTS for v in computed.values()):
        raise Refused("its results are large")
    return computed


def _run(plot: Plot, step: AddedNodes, values: Mapping[str, np.ndarray]) -> Values | None:
    """What nodes make of values of the model; None if they refuse them or make too much."""
    try:
        computed = _results(plot, step, values)
    except Refused:
        return None
    return computed if all(v.size <= ELEMENTS for v in computed.values()) else None


def _results(plot: Plot, step: AddedNodes, values: Mapping[str, np.ndarray]) -> Values:
    feeds = step.feeds | {n: values[n] for n in step.reads}
    opsets = {ONNX_DOMAIN: plot.opset, **step.opsets}
    if plot.excluded:
        graph = helper.make_graph(step.nodes, "", [], [])
        if named := {qualified_name(*operator_of(n)) for n in nodes_of(graph)} & plot.excluded:
            raise Refused(f"it needs {', '.join(sorted(named))}, which is excluded")
    data, computed = executed(plot.config, step.nodes, step.weights, feeds, step.outputs, opsets)
    if plot.excluded_types:
        kinds = element_types(ModelProto.FromString(data)).values()
        if found := {dtype_name(kind) for kind in kinds} & plot.excluded_types:
            raise Refused(f"it has values of type {', '.join(sorted(found))}, which is excluded")
    return computed


def _whole(plot: Plot, model: _GrowingModel, random: Random) -> bytes:
    """The serialized model, which has run twice in sessions of its own.

    Raises:
        Refused: It is refused as a whole.
    """
    # A few inner values are returned too, as exporters do: they keep passes from fusing over them.
    inner = [n for n in model.values if n not in model.unread]
    few = random.sample(inner, min(len(inner), random.randint(0, 2)))
    outputs = [n for n in model.values if n in model.unread or n in few]
    data, first = executed(
        plot.config, model.nodes, model.weights, model.feeds, outputs, model.opsets
    )
    if not same(first, results(plot.config, data, model.feeds)):
        raise Refused("its results differ between runs")
    return data
