"""Shrinks models that a pass changes: single edits of small models are most productive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from onnx import ModelProto, helper

from optvet.engine.hunt.make_candidates import MadeCandidate, complete
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.graph.compose import type_of
from optvet.graph.walk import nodes_of
from optvet.spec.generators import Candidate

_PROBES = 40
Values = Mapping[str, np.ndarray]


def shrink(
    current: MadeCandidate, reference: RuntimeConfig, fires: Callable[[MadeCandidate], bool]
) -> MadeCandidate:
    """Remove outputs and nodes from ``current`` while ``fires`` holds.

    Removing a node turns its outputs into inputs, with values of a run, or its inputs into outputs.
    """
    try:
        values = record_values(current.model, current.feeds, reference)
    except Exception:
        return current  # for example, it does not run with every value as an output
    left = _PROBES
    smaller = True
    while smaller and left > 0:
        smaller = False
        for tried in _smaller(current, values):
            left -= 1
            if smaller := fires(tried):
                current = tried
            if smaller or left <= 0:
                break
    return current


def _smaller(current: MadeCandidate, values: Values) -> Iterator[MadeCandidate]:
    model = ModelProto.FromString(current.model)
    outputs = len(model.graph.output)
    for number in range(outputs if outputs > 1 else 0):
        candidate = _candidate(current)
        del candidate.model.graph.output[number]
        yield from _complete_if_smaller(candidate, current)
    for number in range(outputs):
        candidate = _candidate(current)
        if _raise_output(candidate, number):
            yield from _complete_if_smaller(candidate, current)
    for number in range(len(model.graph.node)):
        candidate = _candidate(current)
        if _cut(candidate, number, values):
            yield from _complete_if_smaller(candidate, current)


def _candidate(current: MadeCandidate) -> Candidate:
    return Candidate(ModelProto.FromString(current.model), dict(current.feeds))


def _complete_if_smaller(candidate: Candidate, current: MadeCandidate) -> Iterator[MadeCandidate]:
    _drop_unread(candidate)
    data = complete(candidate)
    if data is not None and len(data) < len(current.model):
        yield MadeCandidate(data, candidate.feeds, current.mutators)


def _cut(candidate: Candidate, number: int, values: Values) -> bool:
    """Turn the outputs of a node into inputs; its other outputs must be unread."""
    graph = candidate.model.graph
    results = [o for o in graph.node[number].output if o]
    outputs = {o.name for o in graph.output}
    read = [o for o in results if any(o in n.input for n in nodes_of(graph))]
    if not read or outputs & set(results) or any(o not in values for o in read):
        return False
    del graph.node[number]
    for name in read:
        candidate.feeds[name] = values[name]
        shape = values[name].shape
        graph.input.append(helper.make_tensor_value_info(name, type_of(values[name]), shape))
    return True


def _raise_output(candidate: Candidate, number: int) -> bool:
    """Replace an output by the inputs of the node that computes it."""
    graph = candidate.model.graph
    maker = {o: node for node in graph.node for o in node.output if o}
    outputs = {o.name for o in graph.output}
    last = maker.get(graph.output[number].name)
    read = [n for n in dict.fromkeys(last.input) if n in maker] if last is not None else []
    if not read:
        return False
    del graph.output[number]
    new = (n for n in read if n not in outputs)
    graph.output.extend(helper.make_empty_tensor_value_info(n) for n in new)
    return True


def _drop_unread(candidate: Candidate) -> None:
    """Take away nodes, inputs and weights that no output depends on."""
    graph = candidate.model.graph
    needed = {o.name for o in graph.output}
    for number in reversed(range(len(graph.node))):
        node = graph.node[number]
        if needed.isdisjoint(node.output):
            del graph.node[number]
            continue
        needed.update(node.input)
        for body in (a.g for a in node.attribute if a.HasField("g")):
            needed.update(n for inner in nodes_of(body) for n in inner.input)
            needed.update(o.name for o in body.output)
    for items in (graph.input, graph.initializer):
        for item in [i for i in items if i.name not in needed]:
            items.remove(item)
            candidate.feeds.pop(item.name, None)
