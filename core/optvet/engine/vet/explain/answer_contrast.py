"""Layers that differ where two models give other answers, and not where their answers are alike.

::

    samples → both models, all shared values   → per layer and sample: how far it differs
            → a comparator: alike, or not      → analysis of variance between the two groups
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from optvet.engine.numerics.group_test import compare_groups
from optvet.engine.vet.impact.impact import Assessment
from optvet.engine.vet.observe.layer_statistics import activation_of
from optvet.engine.vet.observe.observation import finite
from optvet.engine.vet.observe.recorded_values import as_graph, rename_feeds
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.sandbox.outcome import Outcome, describe
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig
from optvet.engine.work.trials.inner_values import record_values
from optvet.spec.errors import NothingTested
from optvet.spec.records import AnswerContrast, Layer, LayerContrast
from optvet.spec.runtime_protocols import ReadsFiles
from optvet.spec.types import Sample


@dataclass(frozen=True)
class ComparedSides:
    """Two models, and what runs each: ``b`` is ONNX, or a file that its runtime reads."""

    a: bytes
    b: bytes | Path
    by_a: RuntimeConfig
    by_b: RuntimeConfig


@dataclass(frozen=True)
class SampleRun:
    """Outputs of both models under the first one's names, and how far each layer differs."""

    outputs: tuple[Outputs, Outputs]
    differences: tuple[float | None, ...]


def run_sides(
    sides: ComparedSides, layers: Sequence[Layer], sandbox: Sandbox, sample: Sample
) -> Outcome[SampleRun]:
    """Both models on one sample, in a worker."""
    names = [(layer.name, layer.name_in_b) for layer in layers]
    return sandbox.call(_run, sides, names, dict(sample.feeds))


def contrast(
    run: Callable[[Sample], Outcome[SampleRun]],
    layers: Sequence[Layer],
    samples: Sequence[Sample],
    assess: Callable[[Outputs], Assessment],
) -> AnswerContrast:
    """Rank ``layers`` by how far they differ where the answers differ, against where they do not.

    Args:
        run: Runs both models on a sample.
        layers: What they share, in the order of what ``run`` tells.
        samples: The samples, of which one is in memory with its values at a time.
        assess: Chooses, by the first model's outputs, what says whether two answers are alike.

    Raises:
        NothingTested: No sample could be run on both models.
        UsageError: There is no comparator for these models.
        InputError: The comparator does not understand the outputs.
    """
    differences: dict[str, tuple[float | None, ...]] = {}
    assessment: Assessment | None = None
    reason = "there are none"
    for sample in samples:
        outcome = run(sample)
        if outcome.value is None:
            reason = describe(outcome.failure) if outcome.failure else "no answer"
            continue
        reference, candidate = ({sample.id: side} for side in outcome.value.outputs)
        assessment = assessment or assess(outcome.value.outputs[0])
        assessment.add([sample], reference, candidate, {})
        differences[sample.id] = outcome.value.differences
    if assessment is None:
        raise NothingTested(f"no sample ran on both models: {reason}")
    changed = assessment.changed()
    groups = [[s for s in differences if changed.get(s) is side] for side in (False, True)]
    tested = [
        _contrast_of(layer, [_of(differences, group, place) for group in groups])
        for place, layer in enumerate(layers)
    ]
    return AnswerContrast(
        comparator=assessment.choice.comparator.name,
        similar=groups[0],
        dissimilar=groups[1],
        layers=sorted(tested, key=_significance),
    )


def _of(
    differences: Mapping[str, tuple[float | None, ...]], group: Sequence[str], place: int
) -> list[float]:
    return [value for sample in group if (value := differences[sample][place]) is not None]


def _contrast_of(layer: Layer, groups: Sequence[Sequence[float]]) -> LayerContrast:
    found = compare_groups(*groups)
    return LayerContrast(
        name=layer.name,
        operator=layer.op_a,
        similar=found.similar,
        dissimilar=found.dissimilar,
        f=finite(found.f),
        p=found.p,
        rank_p=found.rank_p,
    )


def _significance(found: LayerContrast) -> tuple[float, float]:
    """Smaller is more significant; among equals, what differs more on dissimilar samples."""
    larger = (found.dissimilar or 0.0) - (found.similar or 0.0)
    return 2.0 if found.p is None else found.p, -larger


# --- in the worker --------------------------------------------------------------------------------


def _run(sides: ComparedSides, names: Sequence[tuple[str, str]], feeds: Outputs) -> SampleRun:
    """Both models on one sample; raises what a runtime raises."""
    a = onnx.load_from_string(sides.a)
    reference = record_values(sides.a, feeds, sides.by_a)
    if isinstance(sides.b, bytes):
        b = onnx.load_from_string(sides.b)
        candidate = record_values(sides.b, rename_feeds(a, b, feeds), sides.by_b)
    else:
        assert isinstance(sides.by_b.runtime, ReadsFiles)
        inside = sides.by_b.runtime.inner_values(sides.b, feeds, sides.by_b.options)
        b, candidate = as_graph(inside, reference.keys())
    pairs = [(x.name, y.name) for x, y in zip(a.graph.output, b.graph.output, strict=False)]
    outputs = {x: reference[x] for x, y in pairs}, {x: candidate[y] for x, y in pairs}
    return SampleRun(
        outputs, tuple(difference_of(reference.get(x), candidate.get(y)) for x, y in names)
    )


def difference_of(one: np.ndarray | None, other: np.ndarray | None) -> float | None:
    """Root mean square of the difference, relative to that of ``one``; None if there is none."""
    if one is None or other is None:
        return None
    activation = activation_of(one, other)
    return None if activation is None else activation.rms_difference
