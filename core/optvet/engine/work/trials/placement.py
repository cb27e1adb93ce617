"""Where a runtime executes the nodes of a model, as the runtime itself tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

from optvet.engine.contract import runtime_returns
from optvet.engine.work.sandbox import Outcome, enter
from optvet.engine.work.sandbox.messages import NAME_CHARS, cut
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials import from_file
from optvet.engine.work.trials.inference import align_feeds
from optvet.engine.work.trials.trial import TrialSpec, alignment_of
from optvet.engine.work.trials.trial_runner import TrialRunner, refuse_misuse
from optvet.spec.errors import InputError, Unsupported
from optvet.spec.extras import extras, given
from optvet.spec.records.placement import OperatorTime, PlacedNode, Placement
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.scratch import temporary_folder
from optvet.spec.types import Artifact, NodeTime, Profile, Sample

T = TypeVar("T")
_KEPT = 50
"""Single nodes that a placement keeps of each kind."""
_RUNS = 5
"""Runs that are profiled. Few, since the profile of a large graph is long."""


def find_placement(
    runner: TrialRunner, passes: Sequence[str] | None, samples: Sequence[Sample]
) -> Placement | str:
    """Where the model after ``passes`` is executed, under the case of ``runner``; or why not.

    Args:
        runner: Its case says which runtime runs the models, and with which options.
        passes: None is the original model.
        samples: At least one. Five runs are profiled: the first samples, or all of them in turn.
    """
    build_spec = runner.build_spec(passes)
    order = runner.order(build_spec, list(islice(cycle(samples), _RUNS)))
    assert order.config is not None
    runtime = order.config.runtime
    if not given(runtime, RuntimeExtras.profile):
        return f"runtime {runtime.name} does not report where it executes nodes"
    # Made and removed here: a worker that is killed removes nothing.
    with temporary_folder("optvet-profile-") as folder:
        outcome = runner.submit(build_spec, profile, order, Path(folder)).result()
    found = value_or_reason(outcome)
    return found if isinstance(found, str) else placement_of(found)


def value_or_reason(outcome: Outcome[T]) -> T | str:
    """The value of a side measurement, or why there is none; it decides no verdict."""
    try:
        refuse_misuse(outcome.failure)
    except (Unsupported, InputError) as error:
        return str(error)
    if outcome.value is None:
        return describe(outcome.failure) if outcome.failure else "there was no answer"
    return outcome.value


def profile(artifact: Artifact, order: TrialSpec, folder: Path) -> Profile:
    """The runtime's profile of ``artifact`` on the samples of ``order``. Called in a worker."""
    assert order.config is not None
    runtime, options = order.config.runtime, order.config.options
    alignment = alignment_of(order, artifact)
    feeds = [align_feeds(sample.feeds, alignment) for sample in order.samples]
    if artifact.path is not None and not given(runtime, RuntimeExtras.load_file):
        artifact = replace(artifact, data=from_file.whole(artifact.path), path=None)
    enter("run")
    profiled = extras(runtime, RuntimeExtras).profile(artifact, feeds, options, folder)
    return runtime_returns.profile(runtime, profiled)


def placement_of(profile: Profile) -> Placement:
    """The figures of a profile: numbers of nodes, and times."""
    nodes = sorted(profile.nodes, key=lambda node: -node.seconds)
    total = sum(node.seconds for node in nodes)
    seconds, counts = Counter[str](), Counter[str]()
    for node in nodes:
        seconds[node.operator] += node.seconds  # type: ignore[assignment]  # of floats
        counts[node.operator] += 1
    elsewhere = [node for node in nodes if node.provider != profile.wanted]
    return Placement(
        wanted=profile.wanted,
        runs=profile.runs,
        providers=dict(Counter(node.provider for node in nodes).most_common()),
        seconds=total,
        operators=[
            OperatorTime(
                operator=operator,
                nodes=counts[operator],
                seconds=spent,
                share=spent / total if total else 0.0,
            )
            for operator, spent in seconds.most_common()
        ],
        slowest=[_shorten_names(node) for node in nodes[:_KEPT]],
        elsewhere=[_shorten_names(node) for node in elsewhere[:_KEPT]],
    )


def _shorten_names(node: NodeTime) -> PlacedNode:
    return PlacedNode(
        name=cut(node.name, NAME_CHARS),
        operator=cut(node.operator, NAME_CHARS),
        provider=cut(node.provider, NAME_CHARS),
        calls=node.calls,
        seconds=node.seconds,
    )
