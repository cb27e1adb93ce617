"""Which passes change a model, and what they rewrite in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import ModelProto, NodeProto

from optvet.engine.hunt.suspicions import Complaint, Rewrite
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.graph.walk import nodes_of
from optvet.spec.extras import extras, given
from optvet.spec.optimizer_protocols import OptimizerExtras
from optvet.spec.types import Artifact

_TOLD = 12
"""Of so many passes at most it is believed that each changes a small model."""


def rewrite_of(tested: TestedOptimizer, data: bytes, label: str) -> Rewrite | None:
    """The rewrite of a model by one pass, or by the whole pipeline; None if unchanged."""
    source = Artifact("onnx", data)
    alone = label in tested.each
    try:
        plain = tested.apply(source, tested.base)
        names = (*tested.base, label) if alone else tested.whole
        artifact = tested.apply(source, names)
        saved = given(tested.optimizer, OptimizerExtras.saved)
        if artifact.format != "onnx" and saved:
            artifact = saved(source, names, tested.options)
    except Exception:  # an optimizer raises what it likes; then nothing is seen to fire
        return None
    if content_of(artifact) == content_of(plain):
        return None
    return compare_graphs(label, plain.data, artifact.data)


def content_of(artifact: Artifact) -> bytes:
    """What tells two artifacts apart: formats with a live object have no data, or the source's."""
    return artifact.data if artifact.fingerprint is None else artifact.fingerprint.encode()


def compare_graphs(label: str, was: bytes, now: bytes) -> Rewrite:
    """What became fewer and more: types of operators, or else which of them read which.

    A pass that only moves an operator past others leaves all types. Sets, since numbers would never
    repeat. What is no model counts as empty.
    """
    before, after = _nodes_in(was), _nodes_in(now)
    operators = [Counter(n.op_type for n in nodes) for nodes in (before, after)]
    old, new = operators if operators[0] != operators[1] else map(_links, (before, after))
    return Rewrite(label, tuple(sorted((old - new).keys())), tuple(sorted((new - old).keys())))


def _nodes_in(data: bytes) -> list[NodeProto]:
    """All nodes, those of nested graphs too."""
    try:
        return list(nodes_of(ModelProto.FromString(data).graph))
    except DecodeError:
        return []


def _links(nodes: Sequence[NodeProto]) -> Counter[str]:
    """Pairs of operators of which the second reads an output of the first."""
    made = {output: node.op_type for node in nodes for output in node.output}
    return Counter(f"{made[i]}>{n.op_type}" for n in nodes for i in n.input if i in made)


def changing_passes(
    tested: TestedOptimizer, data: bytes, passes: tuple[str, ...]
) -> tuple[tuple[str, ...], Complaint | None]:
    """Passes that change the model, by the optimizer's report; none if unknown or too many.

    Returns:
        The passes, and a complaint if the plugin raised an exception.
    """
    changing = extras(tested.optimizer, OptimizerExtras).changing_passes
    try:
        found = changing(Artifact("onnx", data), passes, tested.options)
    except Exception as error:
        return (), complaint_about(tested, "changing_passes", error)
    return tuple(found) if found and len(found) <= _TOLD else (), None


def complaint_about(tested: TestedOptimizer, method: str, error: Exception) -> Complaint:
    """A complaint about the plugin of the tested optimizer, whose ``method`` raised ``error``."""
    name = tested.optimizer.name
    return Complaint.of(f"{method} of optimizer {name!r} raised", error)
