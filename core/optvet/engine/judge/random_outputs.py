"""Compares random outputs of two models, by equal seeds or by their distributions.

First both models are run with the same seeds. If the outputs are equal, no statistics are needed.
Else each is run with seeds of its own, and the two distributions are compared. A difference counts
only if a second test with new runs shows it too, and if each model's own runs agree with each
other. Each test compares a few runs first, and more only while these do not decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, Protocol

import numpy as np

from optvet.engine.judge.dependence import Runs
from optvet.engine.judge.distribution import Unlike, most_unlike
from optvet.engine.judge.flips import REACH
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.outputs import judge
from optvet.graph.randomness import SeedBy

FIRST_PAIRS = 2
"""Runs with equal seeds before the others: where seeds do not carry over, the first pair tells."""
SCREEN: Sequence[tuple[int, float]] = ((12, 3e-3), (48, 0.03))
PROOF: Sequence[tuple[int, float]] = ((16, 2e-5), (48, 4e-5), (192, 1e-4))
"""The looks of the two tests: runs of each model so far, and the p-value that ends the test.

Every look has two parts (permutations, and values that vary in one model only), so by adding up all
of them two equal models pass the first test in at most 66 of 1,000 trials, and both tests in 22 of
1,000,000: far below one false alarm in 1,000 vets, of which each has a few such trials.
"""
SCREEN_RUNS, PROOF_RUNS = SCREEN[-1][0], PROOF[-1][0]
SELF_P = 1e-3
"""If two halves of one model's runs differ with a p-value below this, its runs are not independent,
and the judgement is "unsure"."""
FEWEST_RUNS = 8
_STATISTICS = 50
"""About as many statistics of an output are compared: see ``distribution``."""

Side = Literal["reference", "candidate"]
_OWN_SEEDS: dict[Side, int] = {"reference": 1_000_000, "candidate": 2_000_000}


class Draws(Protocol):
    """Runs the two models."""

    def run_seeds(self, side: Side, numbers: range, by: SeedBy) -> Runs | None:
        """One run for each number, with the seeds of ``graph.randomness``; None if there are none.

        Runs of equal numbers get the same random values in both models; others are independent.
        """
        ...

    def in_turn(self, side: Side, session: int, runs: int) -> Runs:
        """``runs`` runs of session number ``session``; empty if it fails."""
        ...


def judge_random(
    draws: Draws, names: Sequence[str], *, screen: int = SCREEN_RUNS, proof: int = PROOF_RUNS
) -> dict[str, Judgement]:
    """A judgement on each random output.

    Args:
        draws: Runs both models.
        names: The random outputs.
        screen: Runs per model in the first test, at most.
        proof: Runs per model in the second test, at most.

    Returns:
        By output: "same" or "drift" if equal seeds give equal outputs, or equal except for
        rounding; "drift" with a detail for different runs of one distribution; "fault" for
        different distributions; "unsure" if the runs do not decide.
    """
    ways: tuple[SeedBy, ...] = ("name", "place")
    # By name before place: passes that keep names keep seeds, and those that rename keep the order.
    for by in ways:
        known = _judge_equal_seeds(draws, names, by, screen)
        if known is not None:
            return known
    first = _run_test(draws, names, _within(SCREEN, screen), sessions=range(1))
    if first.unusable:
        return _unsure(names, first.unusable)
    if first.seen is None:
        return _alike(names, first.runs, SCREEN[-1][1])
    # New runs, so that a chance in the first test is not counted twice.
    second = _run_test(draws, names, _within(PROOF, proof), sessions=range(1, 3))
    if second.unusable:
        return _unsure(names, second.unusable)
    if second.seen is None:
        return _alike(names, second.runs, PROOF[-1][1])
    for words, side in (("original", second.reference), ("optimized model", second.candidate)):
        # A test of two models presumes independent runs. Halves of one model's runs differ by
        # chance alone; if they do not, the difference between the models proves nothing.
        half = len(side) // 2
        own = most_unlike(side[:half], side[half:], names, permutations=4_999, seed=2)
        if own is not None and own.p < SELF_P and second.seen.effect <= REACH * own.effect:
            apart = f": its halves are {own.effect:.2g} deviations apart"
            apart = apart if math.isfinite(own.effect) else ""
            return _unsure(names, f"the draws of the {words} depend on each other{apart}")
    fault = {second.seen.output: _fault(second.seen, second.runs)}
    return _alike(names, second.runs, PROOF[-1][1]) | fault


@dataclass(frozen=True)
class _Tested:
    """A test at its end: its runs, the difference if it is significant, or why it has none."""

    reference: Runs
    candidate: Runs
    seen: Unlike | None = None
    unusable: str = ""

    @property
    def runs(self) -> int:
        """Runs of each model."""
        return len(self.reference)


def _within(looks: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """The looks with at most ``most`` runs; the last one always counts."""
    return [look for look in looks[:-1] if look[0] < most] + [(most, looks[-1][1])]


def _run_test(
    draws: Draws, names: Sequence[str], looks: Sequence[tuple[int, float]], sessions: range
) -> _Tested:
    """One test: looks until a difference is significant.

    Successive runs of one session may depend on each other, which only many runs show: if seeds
    cannot be set, all runs are made in ``sessions``, and only the last look counts.
    """
    first = sessions.start * 10_000
    sides: dict[Side, list[Mapping[str, np.ndarray]]] = {"reference": [], "candidate": []}
    # Few runs first: a wrong distribution mostly shows at once, and right ones pay for all looks.
    for runs, limit in looks:
        for side, outputs_of_side in sides.items():
            begin = _OWN_SEEDS[side] + first
            more = draws.run_seeds(side, range(begin + len(outputs_of_side), begin + runs), "place")
            if more is None:
                return _in_turn(draws, names, looks[-1], sessions)
            outputs_of_side += more
        tested = _look(sides["reference"], sides["candidate"], names, limit)
        if tested.seen is not None or tested.unusable:
            break
    return tested


def _in_turn(
    draws: Draws, names: Sequence[str], look: tuple[int, float], sessions: range
) -> _Tested:
    runs, limit = look[0] // len(sessions), look[1]
    reference, candidate = (
        [run for n in sessions for run in draws.in_turn(side, n, runs)] for side in _OWN_SEEDS
    )
    # A runtime that seeds its operators one after another may make two of them draw alike.
    return _look(reference, candidate, names, limit, joint=False)


def _look(
    reference: Runs, candidate: Runs, names: Sequence[str], limit: float, *, joint: bool = True
) -> _Tested:
    """One look: the most significant difference, if its p-value is at most ``limit``."""
    why = _unusable([reference, candidate], names)
    if why:
        return _Tested(reference, candidate, unusable=why)
    permutations = round(2 / limit) - 1
    dealt = max(999, permutations)
    seen = most_unlike(reference, candidate, names, permutations=dealt, seed=0, joint=joint)
    if seen is None or seen.p > limit:
        return _Tested(reference, candidate)
    return _Tested(reference, candidate, seen)


def _judge_equal_seeds(
    draws: Draws, names: Sequence[str], by: SeedBy, runs: int
) -> dict[str, Judgement] | None:
    """The judgement if equal seeds give equal outputs; None if statistics are needed."""
    worst: dict[str, Judgement] = {}
    for numbers in (range(FIRST_PAIRS), range(FIRST_PAIRS, runs)):
        reference = draws.run_seeds("reference", numbers, by)
        candidate = None if reference is None else draws.run_seeds("candidate", numbers, by)
        if reference is None or candidate is None or len(reference) != len(candidate):
            return None
        for mine, other in zip(reference, candidate, strict=True):
            for j in judge({n: mine[n] for n in names if n in mine}, other):
                if j.call not in ("same", "drift"):
                    return None
                if j.output not in worst or (j.error or 0) > (worst[j.output].error or 0):
                    worst[j.output] = j
    return worst if set(names) <= worst.keys() else None


def _unusable(sides: Sequence[Runs], names: Sequence[str]) -> str:
    """Why runs cannot be compared; empty if they can."""
    if any(len(side) < FEWEST_RUNS // 2 for side in sides):
        return "it could not be drawn often enough"
    if any(name not in run for side in sides for run in side for name in names):
        return "it has not the same parts in every run"
    return ""


def _alike(names: Iterable[str], runs: int, p: float) -> dict[str, Judgement]:
    # By so much must one of many statistics differ for this p-value of the largest of them.
    shift = NormalDist().inv_cdf(1 - p / 2 / _STATISTICS) * math.sqrt(2 / max(runs, 1))
    detail = f"random: draws of one distribution, as {runs} runs of each model show"
    detail += (
        f"; a mean that is off by less than {shift:.1g} of its deviation between runs may hide"
    )
    return {name: Judgement(name, "drift", detail=detail) for name in names}


def _unsure(names: Iterable[str], why: str) -> dict[str, Judgement]:
    return {name: Judgement(name, "unsure", detail=f"random, and {why}") for name in names}


def _fault(seen: Unlike, runs: int) -> Judgement:
    p = f", p {seen.p:.1g}" if seen.p else ""
    detail = f"{seen.detail} ({runs} runs of each model{p})"
    return Judgement(seen.output, "fault", exceeds=float("inf"), detail=detail)
