"""The verdict on one sample: compares expected with actual results under one setting.

The actual result is outputs, a failure, or a problem of the interface that prevents a comparison.
The caller measures noise, and only while the verdict depends on it (``refine``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from optvet.engine.judge.by_part import hold_parts_to, judge_parts
from optvet.engine.judge.failures import OPTIMIZER, Producer, in_words, symptom_of
from optvet.engine.judge.judgement import OTHER_PLACES, Call, Judgement
from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.outputs import judge as judge_values
from optvet.engine.judge.thresholds import THRESHOLDS, Thresholds
from optvet.engine.judge.words import wrong_output
from optvet.engine.numerics.floats import is_float, unit_roundoff
from optvet.spec.parts import OutputPart
from optvet.spec.symptoms import Stage, Symptom
from optvet.spec.types import Failure

State = Literal["same", "drift", "sensitivity", "undecided", "fault"]
STATES: tuple[State, ...] = ("same", "drift", "sensitivity", "undecided", "fault")
"""From the best to the worst."""
Values = Mapping[str, np.ndarray]
Review = Callable[[Judgement], Judgement]


def _keep(judgement: Judgement) -> Judgement:
    return judgement


@dataclass(frozen=True)
class InterfaceProblem:
    """A problem with inputs or outputs that prevents a comparison of values."""

    message: str
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """How a sample is judged.

    Attributes:
        thresholds: Limits of drift.
        maker: What produced the model; it decides the names of failures.
        tolerance: Relative error that a lossy step declares.
        ranges: Largest magnitude of outputs over the samples that the model is meant for: what is
            quantized is off by a share of the range, however small a value is. Empty: the sample's.
        parts: Parts of outputs whose ranges differ, over the same samples.
        quick: In place of measured noise, how many times the square root of two roundoffs an output
            may be off; None where noise is measured. A quick look raises suspicions only.
    """

    thresholds: Thresholds = THRESHOLDS
    maker: Producer = OPTIMIZER
    tolerance: float | None = None
    ranges: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, Sequence[OutputPart]] = field(default_factory=dict)
    quick: float | None = None


@dataclass(frozen=True)
class SampleVerdict:
    """What a candidate did on one sample.

    Attributes:
        state: The worst of the outputs' states.
        symptom: What is wrong; None if nothing is.
        stage: Where it shows.
        message: What is wrong in words, or why it is undecided.
        outputs: The wrong outputs.
        error: Of the worst output, relative to its largest magnitude; of no fault, the largest.
        noise: That of the reference, likewise.
        judgements: One per output that was compared.
        unexplained: The process may have been killed from outside: never a finding.
        max_error: The largest difference of wrong outputs; infinite where it has no size.
        notes: Legal changes of the interface.
    """

    state: State
    symptom: Symptom | None = None
    stage: Stage = "compare"
    message: str = ""
    outputs: tuple[str, ...] = ()
    error: float | None = None
    noise: float | None = None
    judgements: tuple[Judgement, ...] = ()
    unexplained: bool = False
    max_error: float = math.inf
    notes: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether there is no fault; also if that is not certain."""
        return self.state != "fault"

    @property
    def failed(self) -> bool:
        """Whether a step failed, so that there is nothing to compare."""
        return self.symptom is not None and self.symptom.info.failed

    @property
    def faults(self) -> tuple[Judgement, ...]:
        """The judgements of wrong outputs."""
        return tuple(j for j in self.judgements if j.call == "fault")

    @property
    def wrong_form(self) -> bool:
        """Whether an output is missing or has another shape or type, so that nothing has a size."""
        return any(j.structural and j.error is None for j in self.faults)

    @property
    def exceeds(self) -> float:
        """Ratio of the worst output's error to what is allowed."""
        return max((j.exceeds for j in self.faults), default=0.0)


def judge_sample(
    expected: Values,
    came: Values | Failure | InterfaceProblem,
    noise: Noise | None = None,
    setting: Setting | None = None,
    *,
    review: Review = _keep,
) -> SampleVerdict:
    """The verdict on one sample.

    Args:
        expected: Outputs of the reference, without those that cannot be compared.
        came: The candidate's result: outputs, a failure or a problem of the interface.
        noise: The reference's known noise; without it unclear outputs are undecided.
        setting: How it is judged.
        review: Changes a judgement by what else the caller knows about the output.
    """
    setting = setting or Setting()
    # From the coarsest result to the finest: a step that failed left no interface, and another
    # interface leaves no values to compare.
    if isinstance(came, Failure):
        return judge_failure(came, setting.maker)
    if isinstance(came, InterfaceProblem):
        return SampleVerdict("fault", Symptom.INTERFACE_CHANGE, "check", came.message, came.outputs)
    judgements = judge_outputs(expected, came, noise, setting, review=review)
    return verdict_of(judgements, expected, came)


def judge_failure(
    failure: Failure, maker: Producer = OPTIMIZER, stage: Stage | None = None, *, earlier: str = ""
) -> SampleVerdict:
    """The verdict on a failed step; ``earlier`` is the message of an earlier step.

    The death of a process that another process may have killed is no evidence.
    """
    # A process may be killed by the machine, for want of memory; only its own death is evidence.
    killed = failure.kind == "killed"
    return SampleVerdict(
        "undecided" if killed else "fault",
        symptom_of(failure, maker, stage),
        stage or failure.stage,
        "\n".join(part for part in (earlier, in_words(failure)) if part),
        unexplained=killed,
    )


def judge_outputs(
    expected: Values,
    came: Values,
    noise: Noise | None,
    setting: Setting,
    *,
    review: Review = _keep,
) -> list[Judgement]:
    """One judgement for each expected output; arguments are those of ``judge_sample``."""
    # A declared loss is judged by its own size: measured noise knows nothing of it.
    if setting.tolerance is not None:
        judged = [_within_tolerance(n, v, came, noise, setting) for n, v in expected.items()]
    else:
        judged = judge_values(expected, came, noise, setting.thresholds)
        if setting.quick is None:
            judged = [_by_parts(j, expected, came, noise, setting) for j in judged]
    if setting.quick is not None:
        # Only open outputs are decided by a plain limit, so a quick look never acquits a certain
        # fault.
        judged = [_decide_quickly(j, expected[j.output], setting) for j in judged]
    # Last, since it replaces judgements by size with evidence from layers.
    return [review(j) for j in judged]


def verdict_of(judgements: Sequence[Judgement], expected: Values, came: Values) -> SampleVerdict:
    """The verdict that follows from those on each output."""
    faults = [j for j in judgements if j.call == "fault"]
    if faults:
        # By what is allowed, not by the error: outputs have noise of very different size.
        worst = max(faults, key=lambda j: j.exceeds)
        name = worst.output
        return SampleVerdict(
            "fault",
            Symptom.WRONG_OUTPUT,
            "compare",
            f"output {name!r} {wrong_output(expected[name], came.get(name), worst)}",
            tuple(j.output for j in faults),
            worst.error,
            worst.noise,
            tuple(judgements),
            max_error=max(_max_error(expected[j.output], came.get(j.output)) for j in faults),
        )
    states = [_state(j) for j in judgements]
    return SampleVerdict(
        max(states, key=STATES.index, default="same"),
        message=next((j.detail for j in judgements if j.call == "unsure"), ""),
        error=max((j.error for j in judgements if j.error is not None), default=None),
        noise=max((j.noise for j in judgements if j.noise is not None), default=None),
        judgements=tuple(judgements),
    )


def unlike(first: Values, again: Values, *, but: Call = "same") -> frozenset[str]:
    """Names of outputs that differ in a second run of the same model, by more than ``but``."""
    return frozenset(j.output for j in judge_values(first, again) if j.call not in ("same", but))


def telling_tolerance(error: float | None, noise: float | None) -> float:
    """A tolerance that separates right from wrong in a script that measures no noise.

    It lies between noise and error, relative to the largest magnitude; 1e-3 if the error is
    unknown.
    """
    if error is None or not 0 < error < math.inf:
        return 1e-3
    # The geometric mean: errors and noise are often orders of magnitude apart, and a script must
    # not fail by a little more noise, nor pass by a little less error.
    least = min(max(noise or 0.0, 1e-9), error)
    return min(math.sqrt(error * least), error / 2)


# --- noise, as far as it is needed ----------------------------------------------------------------


def refine(stages: Iterable[Noise], take: Callable[[Noise], bool]) -> None:
    """Take better noise as long as the verdict depends on it.

    Args:
        stages: Better and better noise of one sample, each costing more runs than the one before;
            measured on demand.
        take: Uses this noise; returns whether more noise could still change the verdict.
    """
    for noise in stages:
        # Nothing is measured that cannot change the verdict: a stage may take minutes, and most
        # samples need none.
        if not take(noise):
            return


# --- parts of a verdict ---------------------------------------------------------------------------


def _state(judgement: Judgement) -> State:
    return "undecided" if judgement.call == "unsure" else judgement.call


def _within_tolerance(
    name: str, value: np.ndarray, came: Values, noise: Noise | None, setting: Setting
) -> Judgement:
    """The judgement where an error is declared, as a share of the usual range or of the value."""
    assert setting.tolerance is not None
    # A quantizer is off by a share of the range it was made for, also on a sample of small values.
    wider = max(1.0, setting.ranges.get(name, 0.0) / (magnitude(value) or math.inf))
    declared = replace(noise or Noise(), tolerance=setting.tolerance * wider)
    (judged,) = judge_values({name: value}, came, declared, setting.thresholds)
    # In shares of the usual range, the unit in which the loss is declared.
    whole = replace(
        judged,
        error=None if judged.error is None else judged.error / wider,
        noise=None if judged.noise is None else judged.noise / wider,
    )
    # A large part of an output would hide the loss of a small one, so a pass has to hold in each.
    if whole.call != "drift" or not setting.parts.get(name):
        return whole
    about = (value, came[name], setting.parts[name])
    return hold_parts_to(setting.tolerance, whole, *about, noise or Noise(), setting.thresholds)


def _by_parts(
    judged: Judgement, expected: Values, came: Values, noise: Noise | None, setting: Setting
) -> Judgement:
    """The judgement of an output that is no fault as a whole, or that of its worst part."""
    value = expected[judged.output]
    # A fault of the whole stays one; equal bits have no part that differs.
    if judged.call not in ("drift", "sensitivity") or not is_float(value.dtype):
        return judged
    judge = partial(judge_values, thresholds=setting.thresholds)
    return judge_parts(judged, value, came[judged.output], noise, judge)


def _decide_quickly(judgement: Judgement, value: np.ndarray, setting: Setting) -> Judgement:
    """Decide an output that is unclear without noise by a plain limit."""
    if judgement.call != "unsure" or setting.quick is None:
        return judgement
    if setting.tolerance is not None:
        return replace(judgement, call="sensitivity")
    if is_float(value.dtype) and judgement.detail != OTHER_PLACES:
        # Between rounding and this no fault is looked for: noise would have to be measured.
        limit = setting.quick * float(np.sqrt(2 * unit_roundoff(value.dtype)))
        if judgement.error is not None and judgement.error <= limit:
            return replace(judgement, call="drift")
    return replace(judgement, call="fault")


def magnitude(value: np.ndarray) -> float:
    """The largest finite magnitude; 0 of what is no float."""
    if not is_float(value.dtype) or not value.size:
        return 0.0
    wide = np.abs(value.astype(np.float64))
    return float(np.max(wide, where=np.isfinite(wide), initial=0.0))


def _max_error(one: np.ndarray, other: np.ndarray | None) -> float:
    """The largest difference; infinite where it has no size."""
    if other is None or not is_float(one.dtype) or one.shape != other.shape:
        return math.inf
    with np.errstate(invalid="ignore"):
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        differences = np.where(same, 0.0, np.abs(one.astype(np.float64) - other.astype(np.float64)))
    largest = float(np.max(differences, initial=0.0))
    return math.inf if math.isnan(largest) else largest
