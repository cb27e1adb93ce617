"""Two sets of random runs are told apart where their distributions differ, and only there."""

import math
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from optvet.engine.judge.dependence import Runs
from optvet.engine.judge.distribution import Unlike, most_unlike
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.random_outputs import Side, judge_random
from optvet.graph.randomness import SeedBy

F32 = np.float32
Made = list[dict[str, np.ndarray]]
Make = Callable[..., Made]


def normal(
    seed: int, runs: int = 48, size: int = 16, spread: float = 1.0, shift: float = 0.0
) -> Made:
    rng = np.random.default_rng(seed)
    return [{"y": (shift + spread * rng.normal(size=size)).astype(F32)} for _ in range(runs)]


def masks(seed: int, runs: int = 48, size: int = 16, kept: float = 0.5, value: float = 2.0) -> Made:
    """Draws of {0, value}, as Dropout makes of ones."""
    rng = np.random.default_rng(seed)
    draws = (rng.random((runs, size)) < kept) * value
    return [{"y": d.astype(F32)} for d in draws]


def unlike(reference: Made, candidate: Made) -> Unlike | None:
    return most_unlike(reference, candidate, ["y"], permutations=999, seed=0)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (normal, 16),
        (masks, 1),
        pytest.param(normal, 1, marks=pytest.mark.long),
        pytest.param(masks, 16, marks=pytest.mark.long),
    ],
)
def test_equal_distributions_are_told_apart_no_more_often_than_p_says(
    make: Make, size: int
) -> None:
    small = 0
    for seed in range(60):
        seen = unlike(make(2 * seed, size=size), make(2 * seed + 1, size=size))
        small += seen is not None and seen.p <= 0.05
    # Two tests at 0.05 each: 6 are expected at most, and 17 in one of 10,000 tries.
    assert small <= 9


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (normal(5, runs=1) * 48, "it no longer varies at all"),
        (normal(5, spread=0.0), "it no longer varies at all"),
        (normal(5, spread=2.0), "another distribution"),
        (normal(5, spread=0.5), "another distribution"),
        (normal(5, shift=1.0), "another distribution"),
        ([{"y": np.abs(r["y"])} for r in normal(5)], "another distribution"),
        ([{"y": np.repeat(r["y"][:1], 16)} for r in normal(5)], "another distribution"),
        (
            [{"y": np.where(np.arange(16) == 3, np.nan, r["y"])} for r in normal(5)],
            "share of NaN",
        ),
        ([{"y": np.where(np.arange(16) == 3, F32(0.3), r["y"])} for r in normal(5)], "no longer"),
    ],
    ids=[
        "constant",
        "zero",
        "wider",
        "narrower",
        "shifted",
        "rectified",
        "one draw for all",
        "nan",
        "one stuck",
    ],
)
def test_another_distribution_is_noticed(candidate: Made, words: str) -> None:
    seen = unlike(normal(4), candidate)
    assert seen is not None
    assert seen.p <= 0.002
    assert words in seen.detail


@pytest.mark.parametrize(
    "candidate",
    [masks(5, kept=0.8), masks(5, value=1.0), masks(5, kept=1.0), masks(5, runs=1) * 48],
    ids=["other ratio", "lost scaling", "never dropped", "stuck"],
)
def test_another_discrete_distribution_is_noticed(candidate: Made) -> None:
    seen = unlike(masks(4), candidate)
    assert seen is not None
    assert seen.p <= 0.002


def test_rounding_tells_no_two_distributions_apart() -> None:
    moved = F32(2) * (1 + np.finfo(F32).eps)
    for seed in range(10):
        seen = unlike(masks(seed), masks(100 + seed, value=float(moved)))
        assert seen is None or seen.p > 1e-3
    fixed = [{"y": np.full(4, 0.1, F32)}] * 48
    nearly = [{"y": np.full(4, np.nextafter(F32(0.1), F32(1)), F32)}] * 48
    assert unlike(fixed, nearly) is None
    assert unlike(fixed, fixed) is None


def test_a_rare_value_that_never_came_is_no_stuck_output() -> None:
    rare = [{"y": np.zeros(1, F32)}] * 47 + [{"y": np.ones(1, F32)}]
    seen = unlike(rare, [{"y": np.zeros(1, F32)}] * 48)
    assert seen is None or seen.p > 0.05


def test_shapes_that_vary_are_compared_by_size() -> None:
    rng = np.random.default_rng(0)
    few = [{"y": np.ones(rng.integers(1, 5), F32)} for _ in range(48)]
    many = [{"y": np.ones(rng.integers(5, 9), F32)} for _ in range(48)]
    seen = unlike(few, many)
    assert seen is not None
    assert (seen.p <= 0.002, "number of elements" in seen.detail) == (True, True)
    assert unlike(few, few) is None


def test_another_shape_needs_no_statistics() -> None:
    seen = unlike(normal(1), normal(2, size=8))
    assert seen == Unlike("y", 0.0, "shape [16] became [8]")
    assert unlike(normal(1, size=0), normal(2, size=0)) is None


def test_words_are_compared_too() -> None:
    rng = np.random.default_rng(0)
    some = [{"y": np.array([rng.choice(["a", "b"])], object)} for _ in range(48)]
    other = [{"y": np.array([rng.choice(["a", "c"])], object)} for _ in range(48)]
    seen = unlike(some, other)
    assert seen is not None
    assert seen.p <= 0.002


class Given:
    """Runs that are there already: seeds are taken, or only sessions that run on."""

    def __init__(self, reference: Make, candidate: Make, *, seeds: bool) -> None:
        self.made: dict[Side, Make] = {"reference": reference, "candidate": candidate}
        self.seeds = seeds
        self.drawn = 0

    def run_seeds(self, side: Side, numbers: range, by: SeedBy) -> Runs | None:
        if not self.seeds:
            return None
        self.drawn += len(numbers)
        return [self.made[side](n, runs=1)[0] for n in numbers]

    def in_turn(self, side: Side, session: int, runs: int) -> Runs:
        return list(self.made[side](7 * session + (side == "candidate") + 1, runs=runs))


def test_the_same_from_the_same_seeds_is_the_same_without_statistics() -> None:
    (judgement,) = judge_random(Given(masks, masks, seeds=True), ["y"]).values()
    assert (judgement.call, judgement.detail) == ("same", "")


def test_runs_that_continue_each_other_are_compared_by_distribution() -> None:
    (judgement,) = judge_random(Given(masks, masks, seeds=False), ["y"]).values()
    assert judgement.call == "drift"
    assert judgement.detail.startswith("random: draws of one distribution, as ")


@pytest.mark.parametrize("seeds", [True, False])
def test_a_fault_is_told_with_its_evidence(seeds: bool) -> None:
    def halved(seed: int, runs: int = 48) -> Made:
        return masks(seed, runs, value=1.0)

    (judgement,) = judge_random(Given(masks, halved, seeds=seeds), ["y"]).values()
    assert judgement.call == "fault"
    runs = r"(16|48|192) runs of each model, p " if seeds else "192 runs of each model, p "
    assert re.search(rf"has another distribution \({runs}", judgement.detail)


def test_a_fault_beyond_doubt_takes_few_runs() -> None:
    def zero(seed: int, runs: int = 48) -> Made:
        return normal(seed, runs, spread=0.0)

    draws = Given(normal, zero, seeds=True)
    (judgement,) = judge_random(draws, ["y"]).values()
    assert judgement.call == "fault"
    assert "it no longer varies at all (16 runs of each model" in judgement.detail
    # Of each model two pairs by name and by place, a first look, and a second one with new runs.
    assert draws.drawn == 2 * (2 + 2 + 12 + 16)


@pytest.mark.parametrize("make", [pytest.param(normal, marks=pytest.mark.long), masks])
def test_equal_distributions_from_other_seeds_are_never_a_fault(make: Make) -> None:
    calls = set()
    for first in range(50):

        def shifted(seed: int, runs: int = 48, by: int = first) -> Made:
            return make(seed + 10_000_000 * (by + 1), runs, size=1 + by % 8)

        def plain(seed: int, runs: int = 48, by: int = first) -> Made:
            return make(seed, runs, size=1 + by % 8)

        calls |= {j.call for j in judge_random(Given(plain, shifted, seeds=True), ["y"]).values()}
    assert calls == {"drift"}


@pytest.mark.parametrize("size", [1, 16, 400])
def test_a_difference_larger_than_what_may_hide_is_found(size: int) -> None:
    def shifted(by: float) -> Judgement:
        # A mean of so many deviates by 1 / sqrt(size) between runs.
        def moved(seed: int, runs: int = 48) -> Made:
            made = normal(seed + 1_000_000, runs, size=size)
            return [{"y": (r["y"] + by / math.sqrt(size)).astype(F32)} for r in made]

        def plain(seed: int, runs: int = 48) -> Made:
            return normal(seed, runs, size=size)

        (judgement,) = judge_random(Given(plain, moved, seeds=True), ["y"]).values()
        return judgement

    same = shifted(0.0)
    assert same.call == "drift"
    found = re.search(r"off by less than ([0-9.e-]+) of its deviation", same.detail)
    assert found
    for times in (2.0, 10.0, 1e3, 1e6):
        assert shifted(times * float(found[1])).call == "fault", times


def test_runs_that_depend_on_each_other_explain_no_more_than_they_differ_by() -> None:
    def drifting(seed: int, runs: int = 48, off: float = 0.0) -> Made:
        """The second half of a session draws a little more than the first."""
        later = np.arange(runs) >= runs // 2
        made = normal(seed, runs)
        return [{"y": r["y"] + F32(0.5 * h + off)} for r, h in zip(made, later, strict=True)]

    far = partial(drifting, off=1e3)
    (judgement,) = judge_random(Given(drifting, far, seeds=False), ["y"]).values()
    assert judgement.call == "fault"


def test_runs_that_depend_on_each_other_prove_nothing() -> None:
    def sticky(seed: int, runs: int = 48) -> Made:
        """A generator whose first number hardly moves while a session runs on."""
        return [{"y": np.full(3, F32(np.random.default_rng(seed).normal()))}] * runs

    (judgement,) = judge_random(Given(sticky, sticky, seeds=False), ["y"]).values()
    assert judgement.call == "unsure"
    assert judgement.detail == "random, and the draws of the original depend on each other"


def two_draws(seed: int, *, same: bool, size: int = 8, runs: int = 48) -> Made:
    """Runs of two outputs of Bernoulli, and of both joined; one draw or two."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(runs):
        a, b = (rng.random((2, size)) < 0.3).astype(F32)
        b = a if same else b
        made.append({"a": a, "b": b, "joined": np.concatenate([a, b])})
    return made


@pytest.mark.parametrize("names", [["a", "b"], ["joined"]])
@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("size", [1, 2, 8, 200])
def test_draws_that_became_one_and_one_that_became_two_are_noticed(
    names: list[str], merged: bool, size: int
) -> None:
    ours, theirs = (two_draws(i, same=i != merged, size=size) for i in (0, 1))
    seen = most_unlike(ours, theirs, names, permutations=9_999, seed=0)
    assert seen is not None
    assert seen.p <= 2e-3
    assert "relation" in seen.detail or "another distribution" in seen.detail


@pytest.mark.parametrize(("off", "noticed"), [(0.0, False), (1e-6, False), (0.1, True)])
def test_elements_that_are_not_random_are_compared_beyond_rounding(
    off: float, noticed: bool
) -> None:
    def joined(seed: int, value: float) -> Made:
        stable = np.linspace(0, 1, 500, dtype=F32)
        stable[77] += F32(value)
        return [{"y": np.concatenate([r["y"], stable])} for r in normal(seed, runs=12)]

    seen = unlike(joined(0, 0.0), joined(1, off))
    assert (seen is not None and seen.p < 1e-2) is noticed
    if noticed:
        assert seen is not None
        assert seen.detail == "elements that are not random have other values"


@pytest.mark.parametrize("same", [pytest.param(True, marks=pytest.mark.long), False])
def test_equal_dependences_are_told_apart_no_more_often_than_p_says(same: bool) -> None:
    small = 0
    for seed in range(60):
        ours, theirs = (two_draws(2 * seed + i, same=same) for i in (0, 1))
        seen = most_unlike(ours, theirs, ["a", "b", "joined"], permutations=999, seed=0)
        small += seen is not None and seen.p <= 0.05
    assert small <= 9
