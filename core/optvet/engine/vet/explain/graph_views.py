"""The graphs before and after a pass, with the nodes that a picture marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto

from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.building import BuildSpec, build, visible
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph.sites import find_rewrites
from optvet.graph.types import inferred_types
from optvet.graph.weights import clear_large_weights
from optvet.spec.records import Divergence

# --- for pictures ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class GraphView:
    """One graph without its weights: what was rewritten in it, and where it goes wrong.

    ``graph`` is a serialized model whose ``value_info`` has the types that inference knows; large
    weights have lost their content. ``changed`` and ``region`` are indices of nodes: all that were
    rewritten, and those of the place that makes ``wrong``.
    """

    graph: bytes
    changed: tuple[int, ...] = ()
    region: tuple[int, ...] = ()
    wrong: str | None = None


def graph_views(
    runner: TrialRunner, passes: Sequence[str], found: Divergence | None
) -> tuple[GraphView, ...]:
    """The original and, if it can be made and is ONNX, the optimized model."""
    optimized = runner.build_spec(passes)
    value = None if found is None else found.value
    outcome = runner.sandbox.call(
        _graph_view, runner.build_spec(None), optimized, value, fresh=True
    )
    if outcome.value is None:  # what killed the worker was the optimizer
        outcome = runner.sandbox.call(_graph_view, runner.build_spec(None), None, value, fresh=True)
    return outcome.value or ()


def _graph_view(
    original: BuildSpec, optimized: BuildSpec | None, wrong: str | None
) -> tuple[GraphView, ...]:
    """Called in a worker."""
    enter("build")
    before = onnx.load_from_string(build(original).data)
    after = None
    if optimized is not None:
        try:
            after = visible(optimized)
        except Exception as error:  # it is what the finding tells of
            if isinstance(error, MemoryError):
                raise
    if after is None:
        return (GraphView(_bare(before)),)
    sites = find_rewrites(before, after)
    there = _twin(before, after, wrong)
    guilty = [s for s in sites if makes(before, s.before, wrong) or makes(after, s.after, there)]
    old = _indices([s.before for s in sites], [s.before for s in guilty])
    new = _indices([s.after for s in sites], [s.after for s in guilty])
    return GraphView(_bare(before), *old, wrong), GraphView(_bare(after), *new, there)


def _twin(before: ModelProto, after: ModelProto, name: str | None) -> str | None:
    """The name in ``after`` of an output of ``before``; inner values keep their names."""
    outputs = [o.name for o in before.graph.output]
    if name in outputs and outputs.index(name) < len(after.graph.output):
        return str(after.graph.output[outputs.index(name)].name)
    return name


def makes(model: ModelProto, nodes: Sequence[int], name: str | None) -> bool:
    """Whether one of these nodes computes the value."""
    return any(name in model.graph.node[i].output for i in nodes)


def _indices(
    every: Sequence[tuple[int, ...]], some: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    flat, few = (tuple(sorted(i for s in sites for i in s)) for sites in (every, some))
    return flat, few or next((s for s in every if s), ())  # one site shows what all are like


_SHOWN_IN_PICTURE = 16
"""Weights of up to this many elements keep their values in pictures."""


def _bare(model: ModelProto) -> bytes:
    """``model`` without the content of large weights, with the types of its values."""
    types = inferred_types(model) or inferred_types(model, strict=False) or {}
    clear_large_weights(model, _SHOWN_IN_PICTURE)
    del model.graph.value_info[:]
    for name, kind in types.items():
        model.graph.value_info.add(name=name).type.CopyFrom(kind)
    return bytes(model.SerializeToString())
