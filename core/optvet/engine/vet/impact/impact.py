"""Effect of a difference on the model's task: applies a comparator to all samples.

The verdict does not depend on it. If a comparator rejects the outputs, the result has the reason
in place of its metrics.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import BaseModel

from optvet.engine.contract import checked_calls, comparator_returns
from optvet.engine.discovery import Plugins
from optvet.engine.numerics.floats import is_float, unit_roundoff
from optvet.engine.vet.impact.bounded_details import kept_detail
from optvet.engine.vet.impact.comparator_options import in_declared_order
from optvet.engine.vet.impact.comparisons import pack_comparison
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import Outputs
from optvet.spec.comparators import ComparatorExtras
from optvet.spec.errors import ContractError, InputError, OptvetError
from optvet.spec.extras import extras
from optvet.spec.protocols import Comparator
from optvet.spec.records import ComparisonRecord, Impact
from optvet.spec.types import Comparison, Failure, Model, Sample, Summary

Answers = tuple[Mapping[str, Outputs | Failure], Mapping[str, Outputs | Failure]]
"""Decoded outputs of reference and candidate, by sample id; a Failure where decoding failed."""
UNJUDGED = "not judged"
"""Key of the details of a sample of which it is open whether noise explains the difference."""
MAX_DETAILS = 100
"""Per-sample records kept in a result; changed samples first."""


@dataclass(frozen=True)
class ComparatorChoice:
    """A comparator and the reason for it."""

    comparator: Comparator
    reason: str


NUMBERS = "numeric"
"""The suggested kind that names no task: it says only that outputs are numbers."""


def choose(
    plugins: Plugins, model: Model, outputs: Mapping[str, np.ndarray], wanted: str | None
) -> ComparatorChoice:
    """The comparator: ``wanted``, else the declared one, else the one with the best score.

    A suggestion of the kind ``NUMBERS`` is used only if no comparator recognises the task.

    Raises:
        UnknownName: There is no comparator named ``wanted``.
    """
    if wanted is not None:
        return ComparatorChoice(plugins.comparator(wanted), "--comparator")
    names = plugins.names("comparator")
    if model.config.comparator in names:
        origin = model.config.origin or "the model's configuration"
        return ComparatorChoice(
            plugins.comparator(model.config.comparator), f"declared in {origin}"
        )
    scores = {n: _score(plugins.comparator(n), model, outputs) for n in names}
    # The default accepts every model; it is used if no comparator recognises the task.
    best = max(sorted(scores), key=lambda name: scores[name], default="")
    if scores.get(best, 0.0) <= 0.0:
        best = plugins.default("comparator")
    claimed = model.task is not None and scores.get(best, 0.0) >= 0.9
    reason = f"task {model.task!r}" if claimed else "inferred from the outputs"
    if not claimed and model.config.suggestion.get("kind") == NUMBERS:
        best, reason = plugins.default("comparator"), f"declared in {model.config.origin}"
    return ComparatorChoice(plugins.comparator(best), reason)


def _score(comparator: Comparator, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
    try:
        return comparator_returns.score(comparator, lambda: comparator.matches(model, outputs))
    except Exception as error:
        # An exception of a comparator must not cost the verdict.
        warnings.warn(f"comparator {comparator.name!r}: {error!r}", RuntimeWarning, stacklevel=2)
        return 0.0


def fallback(plugins: Plugins) -> ComparatorChoice | None:
    """The default comparator, which accepts every model; None if it is not installed."""
    name = plugins.default("comparator")
    if name not in plugins.names("comparator"):
        return None
    return ComparatorChoice(plugins.comparator(name), "no other comparator understood the outputs")


class Assessment:
    """Comparisons of reference and candidate by one comparator, collected over chunks of samples.

    Attributes:
        begun: Whether the comparator has accepted a chunk.
        calibrated: Whether ``options`` have the scale that all samples share.
    """

    def __init__(
        self,
        choice: ComparatorChoice,
        options: BaseModel,
        model: Model,
        *,
        calibrated: bool = False,
    ) -> None:
        self.choice, self.options, self.model = choice, options, model
        self.calibrated = calibrated
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
        unjudged: Collection[str] = (),
    ) -> None:
        """Compare each sample that both models ran on; if one comparison raises, none is added.

        Args:
            samples: The chunk.
            reference: Outputs of the original by sample id.
            candidate: Outputs of the optimized model by sample id.
            noise: Absolute noise of each output, by sample id and output.
            answers: Decoded outputs of both, to be compared in place of the outputs.
            unjudged: Ids of samples of which it is open whether noise explains the difference.

        Raises:
            InputError: The comparator rejects these outputs.
            ContractError: It did not return a Comparison, or raised another exception.
        """
        comparisons: list[Comparison] = []
        try:
            for sample in samples:
                expected, actual = reference.get(sample.id), candidate.get(sample.id)
                if expected is None or actual is None or expected.keys() != actual.keys():
                    continue
                compared = self._compare(
                    sample, expected, actual, noise.get(sample.id, {}), answers
                )
                if compared is not None and sample.id in unjudged:
                    compared = replace(compared, detail={**compared.detail, UNJUDGED: True})
                if compared is not None:
                    comparisons.append(pack_comparison(replace(compared, sample=sample.id)))
        except (InputError, ContractError) as error:
            self._leave_out(samples, error)
            raise
        except OptvetError:
            raise
        except Exception as error:
            broken = self._comparator_error("compare", error)
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
        reference: Outputs,
        candidate: Outputs,
        noise: Mapping[str, float],
        answers: Answers | None,
    ) -> Comparison | None:
        comparator = self.choice.comparator
        allowed = {n: noise.get(n, _roundoff(v)) for n, v in reference.items()}
        if answers is not None:
            first, second = (side[sample.id] for side in answers)
            if isinstance(first, Failure) or isinstance(second, Failure):
                self._failures.add(sample.id, first, second)
                return None
            reference, candidate = first, second
        if not extras(comparator, ComparatorExtras).ragged and not _same_layout(
            reference, candidate
        ):
            shapes = {n: [list(v.shape), list(candidate[n].shape)] for n, v in reference.items()}
            self._reshaped.append(Comparison(sample.id, {}, True, detail={"shapes": shapes}))
            return None
        sample = replace(sample, feeds=_make_read_only(sample.feeds))
        compared = comparator.compare(
            self.model,
            sample,
            _make_read_only(reference),
            _make_read_only(candidate),
            self.options,
            noise=allowed,
        )
        return comparator_returns.comparison(comparator, compared)

    def _comparator_error(self, method: str, error: Exception) -> ContractError:
        raised = f"{method}() raised {type(error).__name__}: {error}"
        return checked_calls.blame("comparator", self.choice.comparator, raised)

    def impact(self) -> Impact:
        """The impact over all samples.

        Raises:
            InputError: There is no sample to compare, or the comparator rejects the samples.
            ContractError: It did not return a Summary, or raised another exception.
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
        comparator = self.choice.comparator
        return Impact(
            comparator=comparator.name,
            chosen_by=self.choice.reason,
            headline="; ".join(parts),
            metrics=_finite(in_declared_order(comparator, self.options, summary.metrics)),
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
        """Metrics over all samples, and the numbers of changed and of undecided samples.

        Raises:
            InputError: The comparator raised an exception.
            ContractError: It did not return a Summary.
        """
        every = [*self._comparisons, *self._reshaped, *self._failures.of_candidate]
        return _counts(every) | dict(self._summary().metrics)

    def without_undecided(self, metric: str) -> float | None:
        """``metric`` over the samples that rounding alone does not change.

        None if all are such, none is, or the comparator does not have it.
        """
        decided = [c for c in self._comparisons if not c.sensitive]
        if not decided or len(decided) == len(self._comparisons):
            return None
        summary = self.choice.comparator.summarise(decided, self.options)
        value = summary.metrics.get(metric)
        return None if value is None else float(value)

    @property
    def unlike(self) -> str:
        """How many samples have no metrics since shapes or decoding differ; empty if none."""
        parts = []
        if self._reshaped:
            parts.append(f"{len(self._reshaped)} samples have outputs of another shape")
        if self._failures.of_candidate:
            parts.append(self._failures.words())
        return "; ".join(parts)

    @property
    def gaps(self) -> str:
        """Why samples were not compared; empty if all were."""
        if self._left_out:
            return f"{self._left_out} samples not compared: {self._reason}"
        return self._failures.words() if self._failures.skipped else ""

    def changed(self) -> dict[str, bool]:
        """Whether a user would see another answer, by the ids of the compared samples."""
        return {c.sample: c.changed for c in (*self._comparisons, *self._reshaped)}

    def by_sample(self, metric: str) -> dict[str, float]:
        """``metric`` of each sample that has it, by sample id."""
        found: dict[str, float] = {}
        for comparison in self._comparisons:
            one = _counts([comparison]) | dict(
                self.choice.comparator.summarise([comparison], self.options).metrics
            )
            value = one.get(metric, comparison.metrics.get(metric))
            if value is not None:
                found[comparison.sample] = float(value)
        return found

    def _summary(self) -> Summary:
        if not self._comparisons:
            return Summary({}, "")
        try:
            summarised = self.choice.comparator.summarise(self._comparisons, self.options)
            return comparator_returns.summary(self.choice.comparator, summarised)
        except OptvetError:
            raise
        except Exception as error:
            raise self._comparator_error("summarise", error) from error


def _counts(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """How many samples changed, and how many are undecided."""
    return {
        "samples_changed": float(sum(c.changed for c in comparisons)),
        "samples_undecided": float(sum(c.sensitive for c in comparisons)),
    }


@dataclass
class _Failures:
    """Samples that were not decoded; if only the candidate's failed, the sample is changed."""

    of_candidate: list[Comparison] = field(default_factory=list)
    skipped: int = 0
    seen_in_candidate: bool = False
    reason: str = ""

    def add(self, sample: str, reference: Outputs | Failure, candidate: Outputs | Failure) -> None:
        failure = reference if isinstance(reference, Failure) else candidate
        assert isinstance(failure, Failure)
        self.reason = self.reason or describe(failure)
        self.seen_in_candidate |= not isinstance(reference, Failure)
        # A slow or busy machine may cause these failures too, so they do not count as a change.
        if isinstance(reference, Failure) or failure.kind in ("timeout", "out-of-memory", "killed"):
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


def _make_read_only(arrays: Mapping[str, np.ndarray]) -> Outputs:
    """Read-only views, so that a comparator cannot change the arrays that the oracle compares."""
    views = {name: value.view() for name, value in arrays.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def _same_layout(reference: Outputs, candidate: Outputs) -> bool:
    """Whether all shapes agree."""
    return all(reference[n].shape == candidate[n].shape for n in reference)


def _roundoff(value: np.ndarray) -> float:
    """Absolute rounding uncertainty of ``value``: 8 unit roundoffs of its largest magnitude."""
    if not is_float(value.dtype) or value.size == 0:
        return 0.0
    wide = value.astype(np.float64)
    top = float(np.max(np.abs(wide), where=np.isfinite(wide), initial=0.0))
    return 8 * unit_roundoff(value.dtype) * top


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics for JSON; None in place of NaN and infinity."""
    return {k: float(v) if np.isfinite(v) else None for k, v in metrics.items()}
