"""Warnings of optimizer and runtime: which of them came after optimization only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from optvet.engine.work.sandbox.remote import LEFT_OUT
from optvet.engine.work.trials.library_warnings import Warned, pattern_of
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph.outline import outline_of
from optvet.graph.walk import all_names, nodes_of
from optvet.spec.records import WarningRecord
from optvet.spec.symptoms import Stage
from optvet.spec.types import Sample


def warnings_of(
    runner: TrialRunner, base: tuple[str, ...] | None, samples: Sequence[Sample]
) -> list[WarningRecord]:
    """Warnings of the whole pipeline's trial beside those of the reference's, new ones first.

    Args:
        runner: Has made both trials.
        base: The passes that the reference is made by; None if it is the original.
        samples: What both ran on.
    """
    candidate = runner.warnings_of(runner.case.passes.pipeline, samples)
    reference = runner.warnings_of(base, samples)
    if not (candidate or reference):
        return []
    names = _names_in(runner.model.blob)
    runtime = runner.case.candidate.runtime.name
    speakers = {"build": runner.case.optimizer.name, "check": "onnx"}
    unknown = any(LEFT_OUT in w.text for w in reference)
    before: Counter[tuple[Stage, str]] = Counter()
    anywhere: Counter[str] = Counter()
    after: Counter[tuple[Stage, str]] = Counter()
    first: dict[tuple[Stage, str], Warned] = {}
    for each, counts in ((candidate, after), (reference, before)):
        for w in each:
            about = (w.stage, pattern_of(w.text, names))
            counts[about] += w.count
            first.setdefault(about, w)
    for (_, pattern), count in before.items():
        anywhere[pattern] = max(anywhere[pattern], count)
    records = []
    for (stage, pattern), w in first.items():
        # The optimizer says of the model what the runtime says of it: nothing new.
        known = anywhere[pattern] if stage == "build" else before[stage, pattern]
        records.append(
            WarningRecord(
                stage=stage,
                by=w.by or speakers.get(stage, runtime),
                message=w.text,
                reference=None if unknown and not known else known,
                candidate=after[stage, pattern],
            )
        )
    return sorted(records, key=lambda r: (-r.new, -r.candidate))


def _names_in(model: Path) -> frozenset[str]:
    """The names of all nodes and values of a model."""
    proto = outline_of(model)
    declared = (*proto.graph.input, *proto.graph.initializer, *proto.graph.output)
    nodes = list(nodes_of(proto.graph))
    return frozenset({*(v.name for v in declared), *all_names(nodes), *(n.name for n in nodes)})
