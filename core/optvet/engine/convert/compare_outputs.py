"""Compares an artifact's outputs with the source's, per sample: a setting of the judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from optvet.engine.convert.match_interface import NO_FACTS, Matched, match_outputs, unfit
from optvet.engine.convert.open_labels import judge_labels
from optvet.engine.convert.source_noise import NoiseMeter
from optvet.engine.convert.worker_steps import Observed
from optvet.engine.judge.failures import CONVERTER
from optvet.engine.judge.flips import REACH
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.known_noise import Noise, uncertainty
from optvet.engine.judge.sample import (
    InterfaceProblem,
    Review,
    SampleVerdict,
    Setting,
    judge_failure,
    judge_sample,
    magnitude,
    refine,
)
from optvet.engine.judge.sizes import largest_difference, other_places
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.numerics.floats import is_float, unit_roundoff
from optvet.engine.numerics.texts import is_text
from optvet.engine.work.trials.inference import Outputs
from optvet.graph.interface import Interface, shape_changes
from optvet.spec.converters import SourceFacts
from optvet.spec.parts import OutputPart, parts_of_outputs
from optvet.spec.symptoms import Stage
from optvet.spec.types import Failure, Sample

SETTING = Setting(OTHER_KERNELS, CONVERTER)
"""A source and what is made of it are run by kernels of two libraries."""
_OPEN = ("undecided", "fault", "sensitivity")
"""States without measured noise that it may change."""
_USUAL = 4.0
"""Roundoffs of the largest usual output, which edge values may be off by."""


@dataclass(frozen=True)
class Judge:
    """Compares artifacts with one source.

    Attributes:
        reference: Outputs of the source by sample, without those that are random.
        meter: Measures the noise where it matters.
        usual: Samples without edge values.
        source: The interface of a source that is an ONNX model.
        facts: What the source says about its outputs.
    """

    reference: Mapping[str, Outputs]
    random: frozenset[str]
    meter: NoiseMeter
    usual: frozenset[str] = frozenset()
    source: Interface | None = None
    facts: SourceFacts = NO_FACTS

    def see(
        self, observed: Observed, samples: Sequence[Sample], tolerance: float | None = None
    ) -> dict[str, SampleVerdict]:
        """The verdict on an artifact for each of ``samples``.

        ``tolerance`` is the error that a stage declares, as a share of an output's range over usual
        samples.
        """
        seen: dict[str, SampleVerdict] = {}
        pairs: dict[str, Matched] = {}
        for s in samples:
            if observed.load is not None:
                # A model that the checker refuses too is an invalid one.
                stage: Stage = "check" if observed.complaint else "load"
                words = observed.why_invalid
                seen[s.id] = judge_failure(observed.load, CONVERTER, stage, earlier=words)
                continue
            run, inputs = observed.runs[s.id], observed.interface
            words = "" if inputs is None else unfit(self.source, inputs, s.feeds)
            if words:
                seen[s.id] = _judge_problem(InterfaceProblem(words))
            elif isinstance(run, Failure):
                seen[s.id] = judge_failure(run, CONVERTER, "run")
            else:
                pairs[s.id] = self.match(s.id, run)
                seen[s.id] = judge_pair(pairs[s.id])
        compared = [s for s in samples if s.id in pairs and not pairs[s.id].problem]
        unclear = [s for s in compared if seen[s.id].state in _OPEN]
        for name, rows in self.meter.open_rows(unclear).items():
            pairs[name] = _without_rows(pairs[name], rows, self._known)
        setting = SETTING
        if tolerance is not None:
            setting = replace(setting, tolerance=tolerance, ranges=self._ranges, parts=self._parts)
        by_id = {s.id: s for s in unclear}
        self.meter.of(unclear)  # all of them at once, which is quicker
        for s in unclear:

            def take(noise: Noise, name: str = s.id) -> bool:
                pair = pairs[name]
                if self.source is None:  # In float64 the source itself computed, not an evaluator.
                    pair = _without_unsettled(pair, noise.truth)
                    if name not in self.usual:
                        pair = _without_outgrown(pair, noise.truth)
                if tolerance is not None and _has_discrete(pair):
                    runs = self.meter.loosened(by_id[name], tolerance)
                    noise = replace(noise, loosened=runs)
                seen[name] = self.judge_with(name, pair, noise, setting)
                return seen[name].state in _OPEN

            refine(self.meter.refinements(s), take)
        weaker = _weaker(self.source, observed.interface)
        return {n: replace(found, notes=(*found.notes, *weaker)) for n, found in seen.items()}

    def judge_with(
        self, sample: str, pair: Matched, noise: Noise, setting: Setting = SETTING
    ) -> SampleVerdict:
        """The verdict on the matched outputs of a sample, given its measured noise.

        Labels are judged by what the source says of inputs that are moved by rounding.
        """
        further = self.meter.labels.get(sample, {})

        def review(judged: Judgement) -> Judgement:
            name = judged.output
            decided = judged.call == "same" or judged.structural or setting.tolerance is not None
            if decided or name not in self.facts.labels:
                return judged
            about = (pair.reference[name], pair.candidate[name])
            return judge_labels(judged, *about, further.get(name))

        return judge_pair(pair, noise, setting, review)

    def is_lost_in_usual(self, sample: str, seen: SampleVerdict) -> bool:
        """Whether the error of a wrong output is below the rounding of usual outputs.

        A kernel that rounds near 1 gives such errors for inputs a millionth of the usual size; they
        do not matter for usual inputs.
        """
        if seen.symptom is None or not seen.symptom.info.of_values:
            return False
        values = ((name, self.reference[sample][name]) for name in seen.outputs)
        # Integers are not rounded.
        return all(
            is_float(value.dtype)
            and seen.max_error <= _USUAL * unit_roundoff(value.dtype) * self._ranges.get(name, 0.0)
            for name, value in values
        )

    def level_of(self, sample: str, name: str, came: np.ndarray, judged: Judgement) -> float | None:
        """How far rounding may move an output of a sample; None if that was not measured.

        At least as far as it came to be off where that was judged right. What a stage declares to
        lose is no rounding.
        """
        noise, value = self.meter.known.get(sample), self.reference[sample][name]
        level = None if noise is None else uncertainty(name, value, noise)
        same = is_float(value.dtype) and is_float(came.dtype) and value.shape == came.shape
        if same and judged.call in ("drift", "sensitivity"):
            level = max(level or 0.0, largest_difference(value, came))
        return level

    @cached_property
    def _ranges(self) -> dict[str, float]:
        """The largest magnitude of each output over the usual samples."""
        found: dict[str, float] = {}
        for sample in self.usual & self.reference.keys():
            for name, value in self.reference[sample].items():
                found[name] = max(found.get(name, 0.0), magnitude(value))
        return found

    @cached_property
    def _known(self) -> dict[str, list[np.ndarray]]:
        """What the source gives in each output, on every sample."""
        found: dict[str, list[np.ndarray]] = {}
        for outputs in self.reference.values():
            for name, value in outputs.items():
                found.setdefault(name, []).append(value.reshape(-1))
        return found

    @cached_property
    def _parts(self) -> dict[str, tuple[OutputPart, ...]]:
        """Parts of each output whose ranges differ over the usual samples."""
        usual = sorted(self.usual & self.reference.keys())
        return parts_of_outputs(self.reference[sample] for sample in usual)

    def match(self, sample: str, run: Outputs) -> Matched:
        """The outputs of a sample beside the source's, without those that are random."""
        listed = () if self.source is None else [v.name for v in self.source.outputs]
        pair = match_outputs(self.reference[sample], run, listed, self.facts)
        if pair.problem or not self.random:
            return pair
        kept = [name for name in pair.reference if name not in self.random]
        return replace(
            pair,
            reference={n: pair.reference[n] for n in kept},
            candidate={n: pair.candidate[n] for n in kept},
        )


def _has_discrete(pair: Matched) -> bool:
    """Whether an output differs that is of no floats."""
    return any(
        not is_float(value.dtype) and not np.array_equal(value, pair.candidate[name])
        for name, value in pair.reference.items()
    )


def _without_unsettled(pair: Matched, truth: Mapping[str, np.ndarray]) -> Matched:
    """The outputs, where those agree that rounding decides.

    So it is where the source is grossly off from what it gives in float64: the logarithm of a
    determinant that is 0, say. Then one side may be no number, since the sign is rounding, and
    numbers may be apart by as much as the source is off. A number in place of none, or of one
    that should be infinite, is no larger than others of the source, or than ``REACH`` times the
    exact one.
    """
    limits, agreed = SETTING.thresholds, {}
    for name, value in pair.reference.items():
        came, exact = pair.candidate[name], truth.get(name)
        if exact is not None and is_float(value.dtype) and value.shape == came.shape == exact.shape:
            gross = max(limits.unmeasured, limits.believable * unit_roundoff(value.dtype))
            with np.errstate(invalid="ignore"):
                error = np.abs(value - exact)
                known = np.where(np.isfinite(exact), np.abs(exact), 0)
                sized = np.abs(came) <= np.maximum(REACH * known, magnitude(value))
                near = other_places(value, came) & (sized | ~np.isfinite(came))
                # Of a number where the exact result is infinite, any is as good.
                near |= np.isinf(exact) & np.isfinite(value) & sized
                near |= np.isfinite(error) & (np.abs(came - value) <= error)
            came = np.where((error > gross * magnitude(value)) & near, value, came)
        agreed[name] = came
    return replace(pair, candidate=agreed)


def _without_outgrown(pair: Matched, truth: Mapping[str, np.ndarray]) -> Matched:
    """The outputs of an edge value, where the source is infinite in float64 too.

    A program that rounds to float16, say, exceeds the range where a runtime with wider sums does
    not. How large the number should be, nothing says; it is larger than all others of the source.
    """
    agreed, notes = dict(pair.candidate), list(pair.notes)
    for name, value in pair.reference.items():
        came, exact = pair.candidate[name], truth.get(name)
        if (
            exact is None
            or not is_float(value.dtype)
            or not value.shape == came.shape == exact.shape
        ):
            continue
        beyond = np.isinf(value) & np.isinf(exact) & np.isfinite(came)
        beyond &= (np.sign(came) == np.sign(value)) & (np.abs(came) >= magnitude(value))
        if beyond.any():
            agreed[name] = np.where(beyond, value, came)
            sizes = np.abs(came[beyond])
            share = f"{int(beyond.sum())} of {beyond.size} elements of {name!r}"
            size = f"{sizes.min():.2g} to {sizes.max():.2g} in size"
            notes.append(f"on an edge value {share} are finite ({size}), infinite in the source")
    return replace(pair, candidate=agreed, notes=tuple(notes))


def _without_rows(
    pair: Matched, rows: np.ndarray, known: Mapping[str, Sequence[np.ndarray]]
) -> Matched:
    """The outputs, where those of one row for each of the table's agree in ``rows``.

    What comes there is of the same range as what the source gives elsewhere.
    """
    agreed, notes = {}, list(pair.notes)
    for name, value in pair.reference.items():
        came = pair.candidate[name]
        if value.ndim and value.shape == came.shape and len(value) == len(rows):
            tied = np.broadcast_to(rows.reshape(-1, *[1] * (value.ndim - 1)), value.shape)
            usual, words = _usual(np.concatenate(known[name]), came)
            open_ = tied & usual & np.asarray(value != came)
            if open_.any():
                share = f"{int(open_.sum())} of {value.size} elements of {name!r} are of rows"
                notes.append(f"{share} for which elements of the source tie; {words} is excused")
            came = np.where(open_, value, came)
        agreed[name] = came
    return replace(pair, candidate=agreed, notes=tuple(notes))


def _usual(known: np.ndarray, came: np.ndarray) -> tuple[np.ndarray, str]:
    """Which elements are of the range of known values, and that range in words."""
    if is_text(known.dtype):
        return np.isin(came.astype(str), known.astype(str)), "a text that it gives elsewhere"
    numbers, values = known.astype(np.float64), came.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return np.zeros(came.shape, bool), "nothing"
    low, high = float(numbers.min()), float(numbers.max())
    span = max(high - low, abs(low), abs(high))
    low, high = low - span, high + span
    with np.errstate(invalid="ignore"):
        return np.asarray((low <= values) & (values <= high)), f"what is in {low:.2g} to {high:.2g}"


def _weaker(source: Interface | None, artifact: Interface | None) -> list[str]:
    """Inputs and outputs whose declared shapes are less specific than the source's."""
    if source is None or artifact is None:
        return []
    changed = shape_changes(source, artifact)["weaker"]
    return [f"{k} declares less: {was} became {now}" for k, (was, now) in changed.items()]


def judge_pair(
    pair: Matched,
    noise: Noise | None = None,
    setting: Setting = SETTING,
    review: Review | None = None,
) -> SampleVerdict:
    """The verdict on matched outputs of both sides; ``review`` is that of ``judge_sample``."""
    if pair.problem:
        return _judge_problem(InterfaceProblem(pair.problem, (pair.place,) if pair.place else ()))
    about = (pair.reference, pair.candidate, noise, setting)
    found = judge_sample(*about) if review is None else judge_sample(*about, review=review)
    return replace(found, notes=pair.notes)


def _judge_problem(problem: InterfaceProblem) -> SampleVerdict:
    return replace(judge_sample({}, problem, setting=SETTING), stage="compare")
