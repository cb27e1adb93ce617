"""How an artifact does on each input, beside the source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from optvet.engine.convert.interface import Matched, matched
from optvet.engine.convert.noise import NoiseMeter
from optvet.engine.convert.steps import Observed
from optvet.engine.judge.outputs import DECLARED, OTHER_KERNELS, Judgement, Noise, judge
from optvet.engine.judge.words import difference
from optvet.engine.numerics.floats import is_float, unit_roundoff
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trial import Outputs
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Failure, Sample

_DEATHS: Mapping[str, Symptom] = {
    "abort": Symptom.CRASH,
    "timeout": Symptom.TIMEOUT,
    "out-of-memory": Symptom.OUT_OF_MEMORY,
}


@dataclass(frozen=True)
class Seen:
    """What one artifact did on one sample; a wrong output is ``apart`` by so much at most."""

    state: Literal["same", "drift", "unsure", "fault", "fails"]
    symptom: Symptom | None = None
    outputs: tuple[str, ...] = ()
    error: float | None = None
    noise: float | None = None
    message: str = ""
    notes: tuple[str, ...] = ()
    apart: float = math.inf

    @property
    def right(self) -> bool:
        """Whether there is no fault; also if that is not certain."""
        return self.symptom is None


def symptom_of(failure: Failure, otherwise: Symptom) -> Symptom:
    """What a failure is called: how a process ended, or else which step raised an error."""
    return _DEATHS.get(failure.kind, otherwise)


@dataclass(frozen=True)
class Judge:
    """Compares artifacts with one source.

    Attributes:
        reference: Outputs of the source by sample, without those that are random.
        meter: Measures the noise where it matters.
        usual: Samples that the source is meant for: no edge values.
    """

    reference: Mapping[str, Outputs]
    random: frozenset[str]
    meter: NoiseMeter
    usual: frozenset[str] = frozenset()

    def see(
        self, observed: Observed, samples: Sequence[Sample], tolerance: float | None = None
    ) -> dict[str, Seen]:
        """What an artifact did on each of ``samples``.

        ``tolerance`` is the share of an output's range over usual samples that a stage declares to
        be off by: what is quantized is off by a share of the range, however small a value is.
        """
        seen: dict[str, Seen] = {}
        pairs: dict[str, Matched] = {}
        for s in samples:
            if observed.load is not None:
                seen[s.id] = _not_loaded(observed.load, observed.complaint)
                continue
            run = observed.runs[s.id]
            if isinstance(run, Failure):
                symptom = symptom_of(run, Symptom.RUN_FAILURE)
                seen[s.id] = Seen("fails", symptom, message=describe(run))
                continue
            pair = self._matched(s.id, run)
            if pair.problem:
                at = (pair.place,) if pair.place else ()
                seen[s.id] = Seen("fault", Symptom.INTERFACE_CHANGE, at, message=pair.problem)
                continue
            pairs[s.id] = pair
            seen[s.id] = _judged(pair, judge(pair.reference, pair.candidate, None, OTHER_KERNELS))
        unclear = [s for s in samples if s.id in pairs and seen[s.id].state not in _CLEAR]
        for name, noise in self.meter.of(unclear).items() if unclear else ():
            if tolerance is None:
                seen[name] = judged_with(pairs[name], noise)
            else:
                seen[name] = self._judged_loosely(pairs[name], noise, tolerance)
        return seen

    def is_lost_in_usual(self, sample: str, seen: Seen) -> bool:
        """Whether a wrong output is off by less than outputs of usual samples are rounded by.

        So are outputs of inputs that are a millionth of the usual ones, of a kernel that rounds
        near 1: it matters to no input that the source is meant for.
        """
        if seen.symptom != Symptom.WRONG_OUTPUT:
            return False
        values = ((name, self.reference[sample][name]) for name in seen.outputs)
        # Integers are not rounded.
        return all(
            is_float(value.dtype)
            and seen.apart <= _USUAL * unit_roundoff(value.dtype) * self._ranges.get(name, 0.0)
            for name, value in values
        )

    def _judged_loosely(self, pair: Matched, noise: Noise, tolerance: float) -> Seen:
        judgements: list[Judgement] = []
        for name, value in pair.reference.items():
            wider = self._ranges.get(name, 0.0) / (_top(value) or math.inf)
            declared = replace(noise, tolerance=tolerance * max(1.0, wider))
            sides = ({name: value}, {name: pair.candidate[name]})
            judgements += judge(*sides, declared, OTHER_KERNELS)
        return _judged(pair, judgements)

    @cached_property
    def _ranges(self) -> dict[str, float]:
        """The largest magnitude of each output over the usual samples."""
        found: dict[str, float] = {}
        for sample in self.usual & self.reference.keys():
            for name, value in self.reference[sample].items():
                found[name] = max(found.get(name, 0.0), _top(value))
        return found

    def _matched(self, sample: str, run: Outputs) -> Matched:
        pair = matched(self.reference[sample], run)
        if pair.problem or not self.random:
            return pair
        kept = [name for name in pair.reference if name not in self.random]
        return replace(
            pair,
            reference={n: pair.reference[n] for n in kept},
            candidate={n: pair.candidate[n] for n in kept},
        )


_CLEAR = ("same", "drift")
_USUAL = 4.0
"""Roundoffs of the largest usual output, which edge values may be off by."""


def _top(value: np.ndarray) -> float:
    """The largest finite magnitude; 0 of what is no float."""
    if not is_float(value.dtype) or not value.size:
        return 0.0
    wide = np.abs(value.astype(np.float64))
    return float(np.max(wide, where=np.isfinite(wide), initial=0.0))


def _not_loaded(failure: Failure, complaint: str) -> Seen:
    """A model that the checker refuses too is an invalid one."""
    if complaint:
        words = f"{complaint}\n{describe(failure)}"
        return Seen("fails", symptom_of(failure, Symptom.INVALID_MODEL), message=words)
    return Seen("fails", symptom_of(failure, Symptom.LOAD_FAILURE), message=describe(failure))


def judged_with(pair: Matched, noise: Noise) -> Seen:
    """The answer with measured noise."""
    return _judged(pair, judge(pair.reference, pair.candidate, noise, OTHER_KERNELS))


def _judged(pair: Matched, judgements: Sequence[Judgement]) -> Seen:
    faults = [j for j in judgements if j.call == "fault"]
    error = max((j.error for j in judgements if j.error is not None), default=None)
    noise = max((j.noise for j in judgements if j.noise is not None), default=None)
    if faults:
        first = faults[0]
        names = tuple(j.output for j in faults)
        return Seen(
            "fault",
            Symptom.WRONG_OUTPUT,
            names,
            first.error,
            first.noise,
            _words(pair, first),
            pair.notes,
            max(_apart(pair.reference[n], pair.candidate[n]) for n in names),
        )
    if any(j.call == "unsure" for j in judgements):
        detail = next(j.detail for j in judgements if j.call == "unsure")
        return Seen("unsure", None, (), error, noise, detail, pair.notes)
    state: Literal["same", "drift"] = "same"
    if any(j.call != "same" for j in judgements):
        state = "drift"
    return Seen(state, None, (), error, noise, "", pair.notes)


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference; infinite where it has no size."""
    if not is_float(one.dtype) or one.shape != other.shape:
        return math.inf
    with np.errstate(invalid="ignore"):
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        apart = np.where(same, 0.0, np.abs(one.astype(np.float64) - other.astype(np.float64)))
    largest = float(np.max(apart, initial=0.0))
    return math.inf if math.isnan(largest) else largest


def _words(pair: Matched, found: Judgement) -> str:
    name = found.output
    expected, value = pair.reference[name], pair.candidate[name]
    if is_float(expected.dtype):
        declared = found.detail == DECLARED
        words = difference(expected, value, found.error, None if declared else found.noise)
        if declared and found.noise is not None:
            words = f"{words}; {found.noise:.2g} is declared"
        return f"{name} {words or found.detail}"
    places = [i for i, (a, b) in enumerate(zip(expected.flat, value.flat, strict=True)) if a != b]
    shown = f"{expected.flat[places[0]]} became {value.flat[places[0]]}" if places else ""
    return f"{name}: {found.detail}{': ' * bool(shown)}{shown}"
