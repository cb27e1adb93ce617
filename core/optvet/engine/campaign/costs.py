"""Estimates the remaining time of a campaign by the measured times of its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean

from optvet.engine.campaign.results import JobResult

_OLD_S = 2.0


@dataclass
class Costs:
    """Times of the answered jobs, in seconds, and the models and optimizers of the others."""

    clock: Callable[[], float] = time.monotonic
    took: dict[str, float] = field(default_factory=dict)
    about: dict[str, tuple[str, str]] = field(default_factory=dict)
    _estimate: float | None = None
    _at: float = float("-inf")

    @classmethod
    def of(cls, trials: Iterable[JobResult]) -> Costs:
        """The costs of a campaign's jobs."""
        costs = cls()
        for trial in trials:
            costs.about[trial.key] = (trial.model, trial.optimizer)
            if trial.state in ("done", "failed"):
                costs.took[trial.key] = trial.wall_s or 0.0
        return costs

    def learn(self, trial: JobResult, wall_s: float) -> None:
        """Add the time of an answered job."""
        self.took[trial.key] = wall_s

    def eta_s(self, workers: int) -> float | None:
        """Estimated seconds until all jobs are answered; None before the first answer."""
        # Called for every event, and takes time for every job.
        if self.clock() - self._at > _OLD_S:
            self._estimate, self._at = self._estimate_s(), self.clock()
        return None if self._estimate is None else self._estimate / workers

    def _estimate_s(self) -> float | None:
        if not self.took:
            return None
        overall = fmean(self.took.values())
        by_model, by_optimizer = self._means(0), self._means(1)
        left = [about for key, about in self.about.items() if key not in self.took]
        # The time is modelled as a factor of the model times a factor of the optimizer.
        return sum(
            by_model.get(model, overall) * by_optimizer.get(optimizer, overall) / (overall or 1.0)
            for model, optimizer in left
        )

    def _means(self, which: int) -> dict[str, float]:
        groups: dict[str, list[float]] = {}
        for key, took in self.took.items():
            groups.setdefault(self.about[key][which], []).append(took)
        return {name: fmean(values) for name, values in groups.items()}
