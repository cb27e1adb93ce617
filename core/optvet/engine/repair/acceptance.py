"""How good a model is, and whether a changed one may take its place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from optvet.engine.convert.as_shipped import see_as_shipped
from optvet.engine.convert.compare_outputs import Judge
from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.session import Conversion
from optvet.engine.judge.sample import SampleVerdict
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.records.repair import InputPart, RepairNumbers
from optvet.spec.types import Artifact

FALLS = 4.0
"""By what the largest error on the witnesses must fall, where it does not leave the noise."""
_GROWS = 1.5
"""An error that grows by more makes a model worse; below it lies what kernels do."""
_NEEDLESS = 1.05


@dataclass(frozen=True)
class MeasuredModel:
    """What a model does on every input; ``complaint`` is the checker's."""

    seen: Mapping[str, SampleVerdict]
    complaint: str = ""

    def error(self, sample: str) -> float:
        """The error on a sample: 0 if it is equal, infinite if it does not run, or has no error."""
        seen = self.seen[sample]
        if seen.error is not None:
            return seen.error
        return 0.0 if seen.right else math.inf

    def is_right(self, samples: Sequence[ConversionInput]) -> bool:
        """Whether there is no fault on any of ``samples``."""
        return all(self.seen[d.sample.id].right for d in samples)

    def largest(self, samples: Sequence[ConversionInput]) -> float:
        """The largest error on ``samples``."""
        return max((self.error(d.sample.id) for d in samples), default=0.0)


@dataclass(frozen=True)
class AcceptanceCheck:
    """Measures models against one source, and compares them.

    Attributes:
        witnesses: Inputs that edits are chosen on; at least one of them is wrong before.
        held_out: All others, on which an edit may only be refused.
    """

    conversion: Conversion
    judge: Judge
    config: RuntimeConfig
    witnesses: tuple[ConversionInput, ...]
    held_out: tuple[ConversionInput, ...]

    def measure(self, data: bytes) -> MeasuredModel:
        """What a model does on the witnesses and the inputs held out, in a default session too."""
        inputs, artifact = (*self.witnesses, *self.held_out), Artifact("onnx", data)
        samples = [d.sample for d in inputs]
        observed = self.conversion.observe(self.config, artifact, samples)
        seen = self.judge.see(observed, samples)
        # A model that its users cannot run is not right.
        about = (self.conversion, self.judge, self.config, artifact, inputs, seen)
        return MeasuredModel({**seen, **see_as_shipped(*about)}, observed.complaint)

    def is_right(self, measured: MeasuredModel) -> bool:
        """Whether a model is right on all inputs."""
        return measured.is_right((*self.witnesses, *self.held_out))

    def is_worse(self, before: MeasuredModel, after: MeasuredModel) -> bool:
        """Whether any input is worse than before, or the checker refuses what it took before."""
        if after.complaint and not before.complaint:
            return True
        for each in (*self.witnesses, *self.held_out):
            name = each.sample.id
            if before.seen[name].right and not after.seen[name].right:
                return True
            wrong = not after.seen[name].right
            if wrong and after.error(name) > _GROWS * before.error(name):
                return True
        return False

    def is_better(self, before: MeasuredModel, after: MeasuredModel) -> bool:
        """Whether the error leaves the noise on the witnesses, or falls by the factor."""
        if after.is_right(self.witnesses) and not before.is_right(self.witnesses):
            return True
        wrong = [d for d in self.witnesses if not before.seen[d.sample.id].right]
        return after.largest(wrong) * FALLS <= before.largest(wrong) < math.inf or (
            before.largest(wrong) == math.inf and after.largest(wrong) < math.inf
        )

    def is_needless(self, whole: MeasuredModel, without: MeasuredModel) -> bool:
        """Whether no input is the worse for leaving an edit out."""
        if without.complaint and not whole.complaint:
            return False
        names = [d.sample.id for d in (*self.witnesses, *self.held_out)]
        return all(
            without.seen[n].right >= whole.seen[n].right
            and without.error(n) <= _NEEDLESS * whole.error(n)
            for n in names
        )

    def failing(self, now: MeasuredModel) -> tuple[ConversionInput, ...]:
        """The witnesses that are wrong."""
        return tuple(d for d in self.witnesses if not now.seen[d.sample.id].right)

    def with_more_inputs(self, now: MeasuredModel) -> AcceptanceCheck:
        """With one input more to choose edits on, where all witnesses are right and others not."""
        left = [d for d in self.held_out if not now.seen[d.sample.id].right]
        if self.failing(now) or not left:
            return self
        rest = tuple(d for d in self.held_out if d is not left[0])
        return replace(self, witnesses=(*self.witnesses, left[0]), held_out=rest)

    def numbers(self, measured: MeasuredModel) -> dict[InputPart, RepairNumbers]:
        """The figures of both parts."""
        return {
            "witnesses": numbers_of(measured, self.witnesses),
            "held_out": numbers_of(measured, self.held_out),
        }


def numbers_of(measured: MeasuredModel, inputs: Sequence[ConversionInput]) -> RepairNumbers:
    """The figures of a model on ``inputs``."""
    seen = [measured.seen[d.sample.id] for d in inputs]
    largest = measured.largest(inputs)
    noise = [s.noise for s in seen if s.noise is not None]
    return RepairNumbers(
        inputs=len(inputs),
        wrong=sum(not s.right for s in seen),
        error=None if math.isinf(largest) else largest,
        noise=max(noise, default=None),
    )


def parts(
    inputs: Sequence[ConversionInput], wrong: Sequence[ConversionInput], number: int
) -> tuple[tuple[ConversionInput, ...], tuple[ConversionInput, ...]]:
    """The witnesses, the plainest wrong inputs, and the rest; inputs of notes are neither."""
    names = {d.sample.id for d in wrong if not d.outside_domain}
    inside = [d for d in inputs if not d.outside_domain]
    chosen = [d for d in inside if d.sample.id in names][:number]
    taken = {d.sample.id for d in chosen}
    return tuple(chosen), tuple(d for d in inside if d.sample.id not in taken)
