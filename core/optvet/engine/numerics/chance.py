"""Compares random outputs of two models, by equal seeds or by their distributions.

First both models are run with the same seeds. If the outputs are equal, no statistics are needed.
Else each is run with seeds of its own, and the two distributions are compared. A difference counts
only if a second test with four times as many new runs shows it too, and if each model's own runs
agree with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from optvet.engine.numerics.distribution import Runs, Unlike, most_unlike
from optvet.engine.numerics.oracle import Judgement, judge
from optvet.graph.randomness import SeedBy

SCREEN_RUNS, SCREEN_P = 48, 0.03
"""Runs per model in the first test, and the p-value below which the second test is made."""
PROOF_RUNS, PROOF_P = 192, 1e-4
"""New runs per model in the second test, and the p-value below which a difference counts.

Each test has two parts (permutations, and values that vary in one model only), so that two equal
models are called different in at most 12 of 1,000,000 trials.
"""
SELF_P = 1e-3
"""If two halves of one model's runs differ with a p-value below this, its runs are not independent,
and the judgement is "unsure"."""
FEWEST_RUNS = 8

Side = Literal["reference", "candidate"]
_OWN_SEEDS: dict[Side, int] = {"reference": 1_000_000, "candidate": 2_000_000}


class Draws(Protocol):
    """Runs the two models."""

    def seeded(self, side: Side, numbers: range, by: SeedBy) -> Runs | None:
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
        screen: Runs per model in the first test.
        proof: Runs per model in the second test.

    Returns:
        By output: "same" or "drift" if equal seeds give equal outputs, or equal except for
        rounding; "drift" with a detail for different runs of one distribution; "fault" for
        different distributions; "unsure" if the runs do not decide.
    """
    ways: tuple[SeedBy, ...] = ("name", "place")
    for by in ways:
        known = _paired(draws, names, by, screen)
        if known is not None:
            return known
    reference, candidate = (_own(draws, side, 0, screen) for side in _OWN_SEEDS)
    why = _unusable([reference, candidate], names)
    if why:
        return _unsure(names, why)
    seen = most_unlike(reference, candidate, names, permutations=999, seed=0)
    if seen is None or seen.p > SCREEN_P:
        return _alike(names, screen)
    return _proven(draws, names, proof)


def _proven(draws: Draws, names: Sequence[str], runs: int) -> dict[str, Judgement]:
    """The judgement of the second test, from new runs."""
    ours, theirs = ([_own(draws, side, n, runs // 2) for n in (1, 2)] for side in _OWN_SEEDS)
    why = _unusable([*ours, *theirs], names)
    if why:
        return _unsure(names, why)
    reference, candidate = [*ours[0], *ours[1]], [*theirs[0], *theirs[1]]
    seen = most_unlike(reference, candidate, names, permutations=19_999, seed=1)
    if seen is None or seen.p > PROOF_P:
        return _alike(names, runs)
    for words, halves in (("original", ours), ("optimized model", theirs)):
        own = most_unlike(halves[0], halves[1], names, permutations=4_999, seed=2)
        if own is not None and own.p < SELF_P:
            return _unsure(names, f"the draws of the {words} depend on each other")
    return _alike(names, runs) | {seen.output: _fault(seen, runs)}


def _own(draws: Draws, side: Side, part: int, runs: int) -> Runs:
    """Independent runs: each with its own seed, or in turn in one session without seeds."""
    first = _OWN_SEEDS[side] + part * 10_000
    made = draws.seeded(side, range(first, first + runs), "place")
    return draws.in_turn(side, part, runs) if made is None else made


def _paired(
    draws: Draws, names: Sequence[str], by: SeedBy, runs: int
) -> dict[str, Judgement] | None:
    """The judgement if equal seeds give equal outputs; None if statistics are needed."""
    ours = draws.seeded("reference", range(runs), by)
    theirs = None if ours is None else draws.seeded("candidate", range(runs), by)
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None
    worst: dict[str, Judgement] = {}
    for mine, other in zip(ours, theirs, strict=True):
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


def _alike(names: Iterable[str], runs: int) -> dict[str, Judgement]:
    detail = f"random: other draws of one distribution, as {runs} runs of each model tell"
    return {name: Judgement(name, "drift", detail=detail) for name in names}


def _unsure(names: Iterable[str], why: str) -> dict[str, Judgement]:
    return {name: Judgement(name, "unsure", detail=f"random, and {why}") for name in names}


def _fault(seen: Unlike, runs: int) -> Judgement:
    p = f", p {seen.p:.1g}" if seen.p else ""
    detail = f"{seen.detail} ({runs} runs of each model{p})"
    return Judgement(seen.output, "fault", exceeds=float("inf"), detail=detail)
