"""Counts operators before and after passes, in workers: see ``graph/inventory``."""

from __future__ import annotations

from collections.abc import Sequence

from optvet.engine.work.sandbox import enter
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.artifact_graph import graph_and_size
from optvet.engine.work.trials.building import BuildSpec, build, saved_artifact
from optvet.engine.work.trials.trial_runner import TrialRunner, refuse_misuse
from optvet.graph.cost import Shapes
from optvet.graph.inventory import inventory_of
from optvet.spec.errors import Unsupported
from optvet.spec.records.structure import Inventory
from optvet.spec.types import Sample


def take_inventory(
    runner: TrialRunner, passes: Sequence[str] | None, sample: Sample | None = None
) -> Inventory | str:
    """The inventory of the model after ``passes``; or why there is none.

    Args:
        runner: Makes the model; its results are not used, since they lack the graph.
        passes: None is the original model.
        sample: Its shapes stand for those that the model leaves open.
    """
    shapes = {name: value.shape for name, value in sample.feeds.items()} if sample else {}
    build_spec = runner.build_spec(passes)
    outcome = runner.sandbox.call(take_inventory_of_build, build_spec, shapes)
    if build_spec.optimizer is not None:
        runner.ledger.add("control", applications=1)
    try:
        refuse_misuse(outcome.failure)
    except Unsupported as error:
        return str(error)
    if outcome.failure is not None:
        return describe(outcome.failure)
    return outcome.value or "its format does not show its graph"


def take_inventory_of_build(build_spec: BuildSpec, shapes: Shapes) -> Inventory | None:
    """The inventory of what ``build`` makes; None if its graph is hidden. Called in a worker."""
    enter("build")
    artifact = build(build_spec)
    if artifact.format != "onnx":
        saved = saved_artifact(build_spec)
        if saved is None:
            return None
        artifact = saved
    enter("check")
    return inventory_of(*graph_and_size(artifact), shapes)
