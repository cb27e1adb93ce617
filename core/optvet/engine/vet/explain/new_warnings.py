"""Warnings of optimizer and runtime: which of them came after optimization only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from optvet.engine.work.sandbox.remote import LEFT_OUT
from optvet.engine.work.trials.library_warnings import Warned, pattern_of
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph.outline import outline_of
from optvet.graph.walk import all_names, nodes_of
from optvet.spec.records import PassRecord, WarningRecord
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
    return _compare(runner, runner.case.passes.pipeline, base, samples)


def with_warnings(
    runner: TrialRunner, records: Sequence[PassRecord], samples: Sequence[Sample]
) -> list[PassRecord]:
    """Records of passes that were tried alone, with the warnings that only they bring.

    Args:
        runner: Has made the trial of each, and of import and export alone.
        records: What each did.
        samples: What all ran on.
    """
    table = runner.case.passes
    found = []
    for record in records:
        new = _compare(runner, table.complete((record.name,)), table.base, samples)
        messages = [w.message for w in new if w.new and LEFT_OUT not in w.message]
        found.append(record.model_copy(update={"warnings": messages}) if messages else record)
    return found


def _compare(
    runner: TrialRunner,
    passes: tuple[str, ...],
    base: tuple[str, ...] | None,
    samples: Sequence[Sample],
) -> list[WarningRecord]:
    """Warnings after ``passes`` beside those of the reference, new ones first."""
    candidate = runner.warnings_of(passes, samples)
    reference = runner.warnings_of(base, samples)
    if not (candidate or reference):
        return []
    names = _names_in(runner.model.blob, runner.model.digest)
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


@lru_cache(maxsize=1)
def _names_in(model: Path, digest: str) -> frozenset[str]:
    """The names of all nodes and values of a model, whose content has ``digest``."""
    proto = outline_of(model)
    declared = (*proto.graph.input, *proto.graph.initializer, *proto.graph.output)
    nodes = list(nodes_of(proto.graph))
    return frozenset({*(v.name for v in declared), *all_names(nodes), *(n.name for n in nodes)})
