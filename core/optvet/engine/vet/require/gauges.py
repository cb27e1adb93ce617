"""Measure one requirement, a chunk of samples at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from optvet.engine.numerics.lost_parts import LostParts
from optvet.engine.numerics.tolerance import excess, round_up
from optvet.engine.vet.impact.assess import decode_answers
from optvet.engine.vet.impact.comparator_options import metrics_of
from optvet.engine.vet.impact.impact import Answers, Assessment, ComparatorChoice
from optvet.engine.vet.impact.requirements import (
    LAYER_ERROR,
    Candidate,
    belongs_to,
    fitting,
    is_of_layers,
    unknown_metric,
)
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import finite
from optvet.engine.vet.require.layer_errors import LayerError, layer_errors
from optvet.engine.work.trials import noise_floor
from optvet.engine.work.trials.inference import Outputs
from optvet.spec.errors import ContractError, InputError
from optvet.spec.records import RequirementRecord
from optvet.spec.requirement import Required, Requirement, Tolerance, select
from optvet.spec.types import Model, Sample

Runs = Mapping[str, Outputs]
Passes = tuple[str, ...] | None
"""A pass sequence; None is the original model."""


@dataclass(frozen=True)
class RequirementReading:
    """The measurement of one requirement.

    Attributes:
        met: Whether the requirement is met; None if it cannot be measured.
        value: The measured value; None if there is none.
        words: The value, or why there is none, as text.
        comparator: Name of the comparator; None for a tolerance.
        witness: The sample that is furthest from the requirement, without its feeds.
        outputs: Outputs that are beyond a tolerance.
        shortfalls: How far each sample is on the wrong side of a metric's bound, by its id.
    """

    met: bool | None
    value: float | None = None
    words: str = ""
    comparator: str | None = None
    witness: Sample | None = None
    outputs: tuple[str, ...] = ()
    shortfalls: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Chunk:
    """Samples with the outputs of both models.

    Attributes:
        model: The original.
        samples: The samples.
        reference: Outputs of the original.
        candidate: Outputs of the optimized model.
        unsteady: Outputs that differ between runs of one model: random or flaky ones.
        levels: Absolute noise of the reference's outputs by sample id and output, where measured.
        decode: What a comparator that decodes makes of both models; None for others.
        layers: Errors of the values that both models have inside, by sample id.
    """

    model: Model
    samples: Sequence[Sample]
    reference: Runs
    candidate: Runs
    unsteady: frozenset[str] = frozenset()
    levels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    decode: Callable[[Assessment], Answers | None] = lambda assessment: None
    layers: Callable[[], Mapping[str, Sequence[LayerError]]] = dict


def chunk_of(
    examiner: Examiner,
    required: Iterable[Required],
    passes: Passes,
    samples: Sequence[Sample],
    reference: Runs,
    candidate: Runs,
) -> Chunk:
    """A chunk with what ``examiner`` knows of the outputs; ``passes`` gave the candidate's."""
    runner = examiner.runner
    drawn = noise_floor.analysis(runner).random
    names = {n for run in reference.values() for n in run}
    random = {n for n in names if belongs_to(n, drawn)}
    has_metric = any(isinstance(r, Requirement) for r in required)
    return Chunk(
        runner.model,
        samples,
        reference,
        candidate,
        frozenset(examiner.flaky | random),
        examiner.levels(candidate, runner.case.passes.pipeline) if has_metric else {},
        partial(decode_answers, runner, passes, samples),
        partial(layer_errors, runner, passes, samples),
    )


class Gauge:
    """Measures one requirement, a chunk of samples at a time."""

    required: Required

    def add(self, chunk: Chunk) -> None:
        """Add a chunk of samples."""
        raise NotImplementedError

    def reading(self) -> RequirementReading:
        """The measurement over all added samples."""
        raise NotImplementedError


@dataclass
class _MetricGauge(Gauge):
    """Measures a metric, by the first comparator that has it and accepts the outputs."""

    required: Requirement
    among: list[Candidate]
    lost: LostParts | None = None
    _assessment: Assessment | None = None
    _reason: str = ""
    _unsteady: set[str] = field(default_factory=set)
    _origins: dict[str, str] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Compare by the first comparator that accepts the outputs; later chunks by the same."""
        self._unsteady |= {n for n in chunk.unsteady if self.required.tensor in (None, n)}
        self._origins |= {s.id: s.origin for s in chunk.samples}
        while self.among:
            comparator, options = self.among[0]
            if self._assessment is None:
                choice = ComparatorChoice(comparator, "--require")
                self._assessment = Assessment(choice, options, chunk.model)
            try:
                self._add(self._assessment, chunk)
            except (InputError, ContractError) as error:
                self._reason = str(error)
                if self._assessment.begun or len(self.among) == 1:
                    return
                self.among, self._assessment = self.among[1:], None
            else:
                return

    def _add(self, assessment: Assessment, chunk: Chunk) -> None:
        output = self.required.output
        sides = [
            {sample: select(output, run) for sample, run in runs.items()}
            for runs in (chunk.reference, chunk.candidate)
        ]
        if self.lost is not None:
            self.lost.add(*sides)
        answers = chunk.decode(assessment) if output is None else None
        assessment.add(chunk.samples, sides[0], sides[1], chunk.levels, answers)

    def reading(self) -> RequirementReading:
        """The metric over all samples."""
        assessment, required = self._assessment, self.required
        if self._unsteady:
            return _explain_no_agreement(self._unsteady)
        if assessment is None or not assessment.begun:
            return RequirementReading(
                None, words=self._reason or "no sample has outputs on both sides"
            )
        name = assessment.choice.comparator.name
        if assessment.unlike:
            return RequirementReading(False, words=assessment.unlike, comparator=name)
        try:
            metrics = assessment.metrics()
        except (InputError, ContractError) as error:
            return RequirementReading(None, words=str(error), comparator=name)
        comparator, options = self.among[0]
        if required.metric not in metrics and metrics_of(comparator, options) is None:
            raise unknown_metric(required, [(comparator, sorted(metrics))])
        if assessment.gaps or required.metric not in metrics:
            there = ", ".join(sorted(metrics))
            lacks = (
                f"comparator {name!r} has no {required.metric!r} for these samples, only {there}"
            )
            return RequirementReading(None, words=assessment.gaps or lacks, comparator=name)
        value = float(metrics[required.metric])
        met, shown = required.is_met(value), f"{value:.6g}"
        if required.is_met(float(shown)) is not met:
            shown = repr(value)
        words = f"{required.metric} is {shown}"
        decided = assessment.without_undecided(required.metric)
        if decided is not None and f"{decided:.6g}" != shown:
            words += f"; what is undecided counts as it came out, without it: {decided:.6g}"
        if self.lost is not None:
            words = "; ".join([words, *self.lost.words(required.output)])
        values = assessment.by_sample(required.metric)
        shortfalls = {sample: required.shortfall(value) for sample, value in values.items()}
        worst = max(shortfalls, key=shortfalls.__getitem__, default=None)
        witness = None if worst is None else Sample(worst, {}, origin=self._origins.get(worst, ""))
        return RequirementReading(met, value, words, name, witness, shortfalls=shortfalls)


@dataclass
class _ToleranceGauge(Gauge):
    """Measures the largest ``|candidate - original| / (atol + rtol * |original|)``; no unit."""

    required: Tolerance
    _worst: float = 0.0
    _words: str = ""
    _witness: Sample | None = None
    _least_atol: float = 0.0
    _left_out: set[str] = field(default_factory=set)
    _beyond: dict[str, None] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Compare every output that the tolerance covers, except random and flaky ones."""
        for sample in chunk.samples:
            reference, candidate = chunk.reference[sample.id], chunk.candidate.get(sample.id, {})
            for name, value in reference.items():
                if not self.required.covers(name):
                    continue
                if name in chunk.unsteady:
                    self._left_out.add(name)
                    continue
                self._take(sample, name, value, candidate)

    def _take(self, sample: Sample, name: str, value: np.ndarray, candidate: Outputs) -> None:
        if name not in candidate:
            self._worst, self._words = math.inf, f"there is no output {name!r}"
            return
        value, came = self._meant(name, value, candidate[name])
        found = excess(value, came, rtol=self.required.rtol, atol=self.required.atol)
        if found.beyond:
            self._beyond[name] = None
        self._least_atol = max(self._least_atol, found.least_atol)
        if self._witness is None or found.ratio > self._worst:
            self._worst, self._witness = found.ratio, replace(sample, feeds={})
            where = self.required.output or name
            self._words = (
                f"output {where!r}: {found.beyond:,} of {found.elements:,} elements exceed it"
                + (f", by up to {found.ratio:.3g} times" if math.isfinite(found.ratio) else "")
            )

    def _meant(
        self, name: str, value: np.ndarray, came: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the tolerance is about: a part, or all but the parts that have one of their own."""
        if value.shape != came.shape:
            return value, came
        if self.required.output not in (None, name):
            meant = (select(self.required.output, {name: v})[name] for v in (value, came))
            return next(meant), next(meant)
        for index in self.required.parts_of(name):
            came = came.copy()
            came[index] = value[index]
        return value, came

    def reading(self) -> RequirementReading:
        """Whether all elements of all samples are within the tolerance."""
        if self._left_out and (self._witness is None or self._worst <= 1):
            return _explain_no_agreement(self._left_out)
        met = self._worst <= 1
        words = self._words
        if not met and 0 < self._least_atol < math.inf:
            where = "" if self.required.output is None else f"{self.required.output}:"
            least = f"{where}{round_up(self._least_atol):g}"
            words += f"; the smallest that holds: --atol {least}, in units of the output"
        if met:
            words = f"the largest difference is {self._worst:.3g} of the allowed one"
            words = words if self._worst else "nothing differs"
        return RequirementReading(met, self._worst, words, None, self._witness, tuple(self._beyond))


@dataclass
class _LayerGauge(Gauge):
    """Measures the largest error of values inside of the model, relative to their magnitudes."""

    required: Requirement
    _errors: dict[str, LayerError] = field(default_factory=dict)
    _reason: str = ""

    def add(self, chunk: Chunk) -> None:
        """Keep the worst of the values that the requirement is about, for each sample."""
        try:
            found = chunk.layers()
        except InputError as error:
            self._reason = str(error)
            return
        wanted = self.required.output
        for sample, errors in found.items():
            if meant := [e for e in errors if e.is_of(wanted)]:
                self._errors[sample] = max(meant, key=lambda e: e.error)

    def reading(self) -> RequirementReading:
        """The largest error over all samples, and where it is."""
        if self._reason or not self._errors:
            wanted = self.required.output
            of = "" if wanted is None else f" of the name, operator or type {wanted!r}"
            words = f"the two models share no value{of}"
            return RequirementReading(None, words=self._reason or words)
        sample, worst = max(self._errors.items(), key=lambda item: item[1].error)
        words = f"{LAYER_ERROR} is {worst.error:.6g} at {worst.name} ({worst.operators[0]})"
        shortfalls = {s: self.required.shortfall(e.error) for s, e in self._errors.items()}
        met = self.required.is_met(worst.error)
        return RequirementReading(
            met, worst.error, words, None, Sample(sample, {}), shortfalls=shortfalls
        )


def _explain_no_agreement(outputs: Collection[str]) -> RequirementReading:
    names = ", ".join(map(repr, sorted(outputs)))
    return RequirementReading(None, words=f"two runs of the original may differ in {names}")


def gauge_of(
    required: Required, among: Sequence[Candidate] = (), *, tells_lost: bool = True
) -> Gauge:
    """The metric of ``required``, by the first of ``among`` that accepts the outputs.

    ``tells_lost``: whether the words of the reading say which parts of outputs lost their values.
    """
    if isinstance(required, Requirement):
        if is_of_layers(required):
            return _LayerGauge(required)
        return _MetricGauge(required, list(among), LostParts() if tells_lost else None)
    return _ToleranceGauge(required)


def gauges_of(
    required: Iterable[Required],
    among: Sequence[Candidate],
    calibrate: Callable[[Candidate, str | None], Candidate],
) -> list[Gauge]:
    """A gauge for each requirement.

    Args:
        required: The requirements.
        among: The comparators that may measure them.
        calibrate: Gives a comparator the scale that all samples of an output share, None for all.

    Raises:
        UsageError: No comparator has the metric of a requirement.
    """
    gauges, told = list[Gauge](), set[str | None]()
    for r in required:
        if not isinstance(r, Requirement) or is_of_layers(r):
            gauges.append(gauge_of(r))
            continue
        scaled = [calibrate(each, r.output) for each in fitting(r, among)]
        gauges.append(gauge_of(r, scaled, tells_lost=r.output not in told))
        told.add(r.output)
    return gauges


def record_of(required: Required, reading: RequirementReading) -> RequirementRecord:
    """A requirement and its reading, as documents have them."""
    return RequirementRecord(
        requirement=str(required),
        met=reading.met,
        measured=finite(reading.value),
        comparator=reading.comparator,
        origin=required.origin,
        detail=reading.words,
    )
