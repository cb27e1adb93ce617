"""What a difference means: the comparator for a model, chosen and applied to all samples.

The verdict stays the oracle's. A comparator that does not understand what it was given is left
out with its reason; it never stops a vet.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import BaseModel

from optvet.engine import contract
from optvet.engine.discovery import Plugins
from optvet.engine.numerics.oracle import is_float, unit_roundoff
from optvet.engine.vet.details import kept_detail
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trial import Outputs
from optvet.spec.errors import ContractError, InputError, OptvetError
from optvet.spec.protocols import Comparator, Ragged
from optvet.spec.records import ComparisonRecord, Impact
from optvet.spec.types import Comparison, Failure, Model, Sample, Summary

Answers = tuple[Mapping[str, Outputs | Failure], Mapping[str, Outputs | Failure]]
"""What was decoded of reference and candidate, by sample."""
MAX_DETAILS = 100
"""Per-sample records kept in a result; changed samples first."""


@dataclass(frozen=True)
class Choice:
    """A comparator and the reason for it."""

    comparator: Comparator
    reason: str


NUMBERS = "numeric"
"""The suggested kind that says nothing of the task: outputs are numbers, which any may be."""


def choose(
    plugins: Plugins, model: Model, outputs: Mapping[str, np.ndarray], wanted: str | None
) -> Choice:
    """The caller's comparator, else the declared one, else the one that matches best.

    What only says that outputs are numbers stands back behind a comparator that claims the task.

    Raises:
        UnknownName: There is no comparator of the name that was wanted.
    """
    if wanted is not None:
        return Choice(plugins.comparator(wanted), "--comparator")
    names = plugins.names("comparator")
    if model.config.comparator in names:
        origin = model.config.origin or "the model's configuration"
        return Choice(plugins.comparator(model.config.comparator), f"declared in {origin}")
    scores = {n: _score(plugins.comparator(n), model, outputs) for n in names}
    # The default understands every model; it is taken where no comparator recognises the task.
    best = max(sorted(scores), key=lambda name: scores[name], default="")
    if scores.get(best, 0.0) <= 0.0:
        best = plugins.default("comparator")
    claimed = model.task is not None and scores.get(best, 0.0) >= 0.9
    reason = f"task {model.task!r}" if claimed else "inferred from the outputs"
    if not claimed and model.config.suggestion.get("kind") == NUMBERS:
        best, reason = plugins.default("comparator"), f"declared in {model.config.origin}"
    return Choice(plugins.comparator(best), reason)


def _score(comparator: Comparator, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
    try:
        return contract.score(comparator, lambda: comparator.matches(model, outputs))
    except Exception as error:
        # One comparator's mistake about one model's outputs is no reason to lose the verdict.
        warnings.warn(f"comparator {comparator.name!r}: {error!r}", RuntimeWarning, stacklevel=2)
        return 0.0


def fallback(plugins: Plugins) -> Choice | None:
    """The comparator that understands every model, if it is installed."""
    name = plugins.default("comparator")
    if name not in plugins.names("comparator"):
        return None
    return Choice(plugins.comparator(name), "no other comparator understood the outputs")


class Assessment:
    """What a comparator says of reference and candidate, gathered over chunks of samples.

    Attributes:
        begun: Whether it understood a chunk.
    """

    def __init__(self, choice: Choice, options: BaseModel, model: Model) -> None:
        self.choice, self.options, self.model = choice, options, model
        self.begun = False
        self._left_out = 0
        self._reason = ""
        self._comparisons: list[Comparison] = []
        self._reshaped: list[Comparison] = []
        self._failures = _Failures()

    def add(
        self,
        samples: Sequence[Sample],
        reference: Mapping[str, Outputs],
        candidate: Mapping[str, Outputs],
        noise: Mapping[str, Mapping[str, float]],
        answers: Answers | None = None,
    ) -> None:
        """Compare every sample that both sides ran on; nothing is added where one fails.

        ``answers`` are what a comparator that decodes made of reference and candidate; it compares
        these in place of the outputs.

        Raises:
            InputError: The comparator does not understand these outputs, or broke on them.
            ContractError: It gave no Comparison.
        """
        comparisons: list[Comparison] = []
        try:
            for sample in samples:
                ours, theirs = reference.get(sample.id), candidate.get(sample.id)
                if ours is None or theirs is None or ours.keys() != theirs.keys():
                    continue
                compared = self._compare(sample, ours, theirs, noise.get(sample.id, {}), answers)
                if compared is not None:
                    comparisons.append(replace(compared, sample=sample.id))
        except (InputError, ContractError) as error:
            self._leave_out(samples, error)
            raise
        except OptvetError:
            raise
        except Exception as error:
            broken = self._broken(error)
            self._leave_out(samples, broken)
            raise broken from error
        self.begun = True
        self._comparisons += comparisons

    def _leave_out(self, samples: Sequence[Sample], error: OptvetError) -> None:
        self._left_out += len(samples)
        self._reason = str(error)

    def _compare(
        self,
        sample: Sample,
        ours: Outputs,
        theirs: Outputs,
        noise: Mapping[str, float],
        answers: Answers | None,
    ) -> Comparison | None:
        comparator = self.choice.comparator
        allowed = {n: noise.get(n, _roundoff(v)) for n, v in ours.items()}
        if answers is not None:
            first, second = (side[sample.id] for side in answers)
            if isinstance(first, Failure) or isinstance(second, Failure):
                self._failures.add(sample.id, first, second)
                return None
            ours, theirs = first, second
        ragged = isinstance(comparator, Ragged) and comparator.ragged
        if not ragged and not _same_layout(ours, theirs):
            shapes = {n: [list(v.shape), list(theirs[n].shape)] for n, v in ours.items()}
            self._reshaped.append(Comparison(sample.id, {}, True, detail={"shapes": shapes}))
            return None
        sample = replace(sample, feeds=_sealed(sample.feeds))
        compared = comparator.compare(
            self.model, sample, _sealed(ours), _sealed(theirs), self.options, noise=allowed
        )
        return contract.comparison(comparator, compared)

    def _broken(self, error: Exception) -> InputError:
        return InputError(
            f"comparator {self.choice.comparator.name!r} broke: {type(error).__name__}: {error}"
        )

    def impact(self) -> Impact:
        """All samples together.

        Raises:
            InputError: There is none to compare, or the comparator broke.
            ContractError: It gave no Summary.
        """
        comparisons, reshaped, failures = self._comparisons, self._reshaped, self._failures
        if not (comparisons or reshaped or failures.seen_in_candidate):
            why = failures.words() or "no sample has outputs on both sides"
            raise InputError(f"comparator {self.choice.comparator.name!r}: {why}")
        summary = self._summary()
        parts = [summary.headline] if summary.headline else []
        if reshaped:
            total = len(comparisons) + len(reshaped)
            parts.append(f"{len(reshaped)} of {total} samples have outputs of another shape")
        if failures.words():
            parts.append(failures.words())
        if self._left_out:
            parts.append(f"{self._left_out} samples not compared: {self._reason}")
        every = [*comparisons, *reshaped, *failures.of_candidate]
        shown = sorted(every, key=lambda c: not (c.changed or c.sensitive))[:MAX_DETAILS]
        return Impact(
            comparator=self.choice.comparator.name,
            chosen_by=self.choice.reason,
            headline="; ".join(parts),
            metrics=_finite(summary.metrics),
            changed=sum(c.changed for c in every),
            sensitive=sum(c.sensitive for c in every),
            samples=len(every),
            details=[
                ComparisonRecord(
                    sample=c.sample,
                    metrics=_finite(c.metrics),
                    changed=c.changed,
                    sensitive=c.sensitive,
                    detail=kept_detail(c.detail),
                )
                for c in shown
            ],
        )

    def metrics(self) -> dict[str, float]:
        """Metrics over all samples, and how many samples changed or are undecided.

        Raises:
            InputError: The comparator broke.
            ContractError: It gave no Summary.
        """
        every = [*self._comparisons, *self._reshaped, *self._failures.of_candidate]
        counts = {
            "samples_changed": float(sum(c.changed for c in every)),
            "samples_undecided": float(sum(c.sensitive for c in every)),
        }
        return counts | dict(self._summary().metrics)

    @property
    def unlike(self) -> str:
        """What of the candidate's answers has no metrics because it is of another form."""
        parts = []
        if self._reshaped:
            parts.append(f"{len(self._reshaped)} samples have outputs of another shape")
        if self._failures.of_candidate:
            parts.append(self._failures.words())
        return "; ".join(parts)

    @property
    def gaps(self) -> str:
        """Why samples were left out on both sides; empty if none was."""
        if self._left_out:
            return f"{self._left_out} samples not compared: {self._reason}"
        return self._failures.words() if self._failures.skipped else ""

    def by_sample(self, metric: str) -> dict[str, float]:
        """What ``metric`` is of each sample alone, where it has one."""
        found: dict[str, float] = {}
        for comparison in self._comparisons:
            one = self.choice.comparator.summarise([comparison], self.options).metrics
            value = one.get(metric, comparison.metrics.get(metric))
            if value is not None:
                found[comparison.sample] = float(value)
        return found

    def _summary(self) -> Summary:
        if not self._comparisons:
            return Summary({}, "")
        try:
            summarised = self.choice.comparator.summarise(self._comparisons, self.options)
            return contract.summary(self.choice.comparator, summarised)
        except OptvetError:
            raise
        except Exception as error:
            raise self._broken(error) from error


@dataclass
class _Failures:
    """Samples without an answer. One that the original alone can answer is a changed one."""

    of_candidate: list[Comparison] = field(default_factory=list)
    skipped: int = 0
    seen_in_candidate: bool = False
    reason: str = ""

    def add(self, sample: str, ours: Outputs | Failure, theirs: Outputs | Failure) -> None:
        failure = ours if isinstance(ours, Failure) else theirs
        assert isinstance(failure, Failure)
        self.reason = self.reason or describe(failure)
        self.seen_in_candidate |= not isinstance(ours, Failure)
        # What a slow or crowded machine may cause tells nothing of the optimized model.
        if isinstance(ours, Failure) or failure.kind in ("timeout", "out-of-memory", "killed"):
            self.skipped += 1
            return
        detail = {"failure": describe(failure)}
        self.of_candidate.append(Comparison(sample, {}, True, detail=detail))

    def words(self) -> str:
        parts = []
        if self.of_candidate:
            parts.append(f"{len(self.of_candidate)} decoded by the original alone")
        if self.skipped:
            parts.append(f"{self.skipped} not decoded")
        return f"{', '.join(parts)}: {self.reason}" if parts else ""


def _sealed(arrays: Mapping[str, np.ndarray]) -> Outputs:
    """The same arrays, which cannot be written: the verdict rests on them too."""
    views = {name: value.view() for name, value in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def _same_layout(ours: Outputs, theirs: Outputs) -> bool:
    """Whether all shapes agree."""
    return all(ours[n].shape == theirs[n].shape for n in ours)


def _roundoff(value: np.ndarray) -> float:
    """Absolute uncertainty that rounding alone leaves in ``value``."""
    if not is_float(value.dtype) or value.size == 0:
        return 0.0
    wide = value.astype(np.float64)
    top = float(np.max(np.abs(wide), where=np.isfinite(wide), initial=0.0))
    return 8 * unit_roundoff(value.dtype) * top


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as JSON holds them; None where there is no number."""
    return {k: float(v) if np.isfinite(v) else None for k, v in metrics.items()}
