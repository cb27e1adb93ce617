"""Small models that still make a pass fire: around those, single edits say most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from onnx import ModelProto, helper

from optvet.engine.hunt.make_candidates import MadeCandidate, complete
from optvet.engine.work.trials.inner_values import record_values
from optvet.engine.work.trials.trial import RuntimeConfig
from optvet.graph.compose import type_of
from optvet.graph.walk import nodes_of
from optvet.spec.generators import Candidate

_PROBES = 40
Values = Mapping[str, np.ndarray]


def shrunk(
    made: MadeCandidate, reference: RuntimeConfig, fires: Callable[[MadeCandidate], bool]
) -> MadeCandidate:
    """``made`` with outputs and nodes taken away as long as it ``fires``.

    A node goes by what it makes becoming an input, with the value of a run, or by what it reads
    becoming an output.
    """
    try:
        values = record_values(made.model, made.feeds, reference)
    except Exception:
        return made  # such as: with every value as an output it cannot be run
    left = _PROBES
    smaller = True
    while smaller and left > 0:
        smaller = False
        for tried in _smaller(made, values):
            left -= 1
            if smaller := fires(tried):
                made = tried
            if smaller or left <= 0:
                break
    return made


def _smaller(made: MadeCandidate, values: Values) -> Iterator[MadeCandidate]:
    model = ModelProto.FromString(made.model)
    outputs = len(model.graph.output)
    for number in range(outputs if outputs > 1 else 0):
        candidate = _candidate(made)
        del candidate.model.graph.output[number]
        yield from _complete_if_smaller(candidate, made)
    for number in range(outputs):
        candidate = _candidate(made)
        if _raise_output(candidate, number):
            yield from _complete_if_smaller(candidate, made)
    for number in range(len(model.graph.node)):
        candidate = _candidate(made)
        if _cut(candidate, number, values):
            yield from _complete_if_smaller(candidate, made)


def _candidate(made: MadeCandidate) -> Candidate:
    return Candidate(ModelProto.FromString(made.model), dict(made.feeds))


def _complete_if_smaller(candidate: Candidate, made: MadeCandidate) -> Iterator[MadeCandidate]:
    _drop_unread(candidate)
    data = complete(candidate)
    if data is not None and len(data) < len(made.model):
        yield MadeCandidate(data, candidate.feeds, made.mutators)


def _cut(candidate: Candidate, number: int, values: Values) -> bool:
    """Make what a node makes an input; its other outputs must be unread."""
    graph = candidate.model.graph
    made = [o for o in graph.node[number].output if o]
    outputs = {o.name for o in graph.output}
    read = [o for o in made if any(o in n.input for n in nodes_of(graph))]
    if not read or outputs & set(made) or any(o not in values for o in read):
        return False
    del graph.node[number]
    for name in read:
        candidate.feeds[name] = values[name]
        shape = values[name].shape
        graph.input.append(helper.make_tensor_value_info(name, type_of(values[name]), shape))
    return True


def _raise_output(candidate: Candidate, number: int) -> bool:
    """Make what the last node before an output reads outputs in its place."""
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
