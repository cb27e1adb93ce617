import itertools
import math
from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optvet.engine.pipelines import complete
from optvet.engine.vet.find.localize import (
    Answer,
    ddmin,
    first_bad_prefix,
    minimal_sequence,
    minimal_set,
    with_required_passes,
)

Passes = tuple[str, ...]
Fails = Callable[[Passes], bool]


class Counted:
    """A test that counts its distinct questions, as the engine's memo does."""

    def __init__(self, fails: Fails, unresolved: Fails = lambda passes: False) -> None:
        self.fails, self.unresolved = fails, unresolved
        self.asked: list[Passes] = []

    def __call__(self, passes: Passes) -> Answer:
        if passes not in self.asked:
            self.asked.append(passes)
        if self.unresolved(passes):
            return "unresolved"
        return "fails" if self.fails(passes) else "passes"


def has(needle: Sequence[str], passes: Sequence[str]) -> bool:
    """Whether ``needle`` is a subsequence of ``passes``."""
    rest = iter(passes)
    return all(name in rest for name in needle)


def needs(*culprit: str) -> Fails:
    return lambda passes: has(culprit, passes)


def together(*culprit: str) -> Fails:
    return lambda passes: set(culprit) <= set(passes)


def masked(fails: Fails, by: str, what: str) -> Fails:
    """``by`` after the last ``what`` undoes the fault."""

    def still(passes: Passes) -> bool:
        if not fails(passes):
            return False
        after = len(passes) - 1 - passes[::-1].index(what)
        return by not in passes[after:]

    return still


def names(count: int) -> Passes:
    return tuple(f"p{i:02}" for i in range(count))


FORTY = names(40)
pipelines = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12).map(tuple)


@st.composite
def failing(draw: st.DrawFn) -> tuple[Passes, Fails]:
    """A pipeline, which may repeat passes, and a predicate that it fulfils and () does not."""
    pipeline = draw(pipelines)
    subsets = st.lists(st.integers(0, len(pipeline) - 1), min_size=1, max_size=4, unique=True)
    wanted = [tuple(pipeline[i] for i in sorted(s)) for s in draw(st.lists(subsets, min_size=1))]
    ordered = draw(st.booleans())

    def fails(passes: Passes) -> bool:
        if ordered:
            return any(has(w, passes) for w in wanted)
        return any(all(passes.count(n) >= w.count(n) for n in w) for w in wanted)

    return pipeline, fails


def leaving_one_out(passes: Passes) -> list[Passes]:
    return [passes[:i] + passes[i + 1 :] for i in range(len(passes))]


def assert_minimal(culprit: Passes, test: Counted) -> None:
    assert test(culprit) == "fails"
    for rest in leaving_one_out(culprit):
        if rest:  # that the empty pipeline is innocent is the caller's to know
            assert test(rest) != "fails"


# first_bad_prefix


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_bisection_ends_at_a_real_step_from_good_to_bad(answers: list[bool]) -> None:
    # Any pattern between the good empty prefix and the bad whole, monotone or not.
    answers = [False, *answers[1:], True]
    pipeline = names(len(answers) - 1)
    test = Counted(lambda passes: answers[len(passes)])
    step = first_bad_prefix(pipeline, test)
    assert answers[step]
    assert not answers[step - 1]
    assert len(test.asked) <= math.ceil(math.log2(len(pipeline) + 1)) + 1


@pytest.mark.parametrize("position", [0, 1, 19, 20, 38, 39])
def test_bisection_finds_a_single_culprit(position: int) -> None:
    test = Counted(needs(FORTY[position]))
    assert first_bad_prefix(FORTY, test) == position + 1
    assert len(test.asked) <= 6


def test_bisection_of_one_pass_asks_nothing() -> None:
    test = Counted(needs("a"))
    assert first_bad_prefix(("a",), test) == 1
    assert test.asked == []


def test_bisection_does_not_take_unresolved_for_a_failure() -> None:
    test = Counted(needs("p30"), unresolved=lambda passes: len(passes) == 20)
    assert first_bad_prefix(FORTY, test) == 31


def test_bisection_of_a_fault_that_is_healed_and_comes_back_ends_at_either_culprit() -> None:
    def fails(passes: Passes) -> bool:
        return "p35" in passes or ("p05" in passes and "p15" not in passes)

    assert first_bad_prefix(FORTY, Counted(fails)) in (6, 36)


@given(failing(), st.sets(st.sampled_from("abcdefgh"), max_size=3))
def test_bisection_keeps_required_passes_behind_the_prefix(
    case: tuple[Passes, Fails], required: set[str]
) -> None:
    pipeline, fails = case
    kept = tuple(n for n in pipeline if n in required)
    if fails(kept):
        return
    test = Counted(fails)
    step = first_bad_prefix(pipeline, test, required=required)
    assert all(tuple(n for n in asked if n in required) == kept for asked in test.asked)
    assert pipeline[step - 1] not in required
    assert fails(with_required_passes(pipeline, step, required))
    assert not fails(with_required_passes(pipeline, step - 1, required))


@given(failing(), st.sets(st.sampled_from("abcdefgh")))
def test_suspects_are_a_hint_that_may_be_wrong(
    case: tuple[Passes, Fails], suspects: set[str]
) -> None:
    pipeline, fails = case
    test = Counted(fails)
    step = first_bad_prefix(pipeline, test, suspects=suspects)
    assert fails(pipeline[:step])
    assert fails(minimal_sequence(pipeline[:step], test))


def test_few_suspects_take_few_tests() -> None:
    test = Counted(needs("p20"))
    assert first_bad_prefix(FORTY, test, suspects={"p03", "p20", "p31"}) == 21
    assert len(test.asked) <= 2


# completed


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), ("lower", "link")),
        (("a", "z"), ("a", "lower", "link", "z")),
        (("b", "a"), ("lower", "b", "a", "link")),
        (("link", "b"), ("lower", "link", "b")),
    ],
)
def test_required_passes_come_before_what_follows_them(names: Passes, expected: Passes) -> None:
    assert complete(names, ("a", "lower", "b", "link", "z"), {"lower", "link"}) == expected


# minimal_sequence and minimal_set


@given(failing())
def test_a_minimal_sequence_fails_and_no_member_can_be_left_out(
    case: tuple[Passes, Fails],
) -> None:
    pipeline, fails = case
    test = Counted(fails)
    step = first_bad_prefix(pipeline, test)
    culprit = minimal_sequence(pipeline[:step], test)
    assert has(culprit, pipeline)
    assert_minimal(culprit, test)


@given(failing())
def test_a_minimal_set_fails_and_no_member_can_be_left_out(case: tuple[Passes, Fails]) -> None:
    pipeline, fails = case
    test = Counted(fails)
    culprit = minimal_set(pipeline, test)
    assert has(culprit, pipeline)
    assert_minimal(culprit, test)


@given(failing(), st.integers(0, 2**32 - 1))
@settings(max_examples=200)
def test_answers_that_are_unresolved_do_not_spoil_the_culprit(
    case: tuple[Passes, Fails], seed: int
) -> None:
    pipeline, fails = case

    def unresolved(passes: Passes) -> bool:
        # Pseudo-random, but a function of the passes; the whole pipeline is resolved.
        return passes != pipeline and sum(map(ord, "".join(passes))) * seed % 5 == 0

    for search in (minimal_sequence, minimal_set):
        test = Counted(fails, unresolved)
        culprit = search(pipeline, test)
        assert has(culprit, pipeline)
        assert_minimal(culprit, test)


@given(failing(), st.sets(st.sampled_from("abcdefgh"), max_size=3))
def test_required_passes_are_in_every_test_and_in_no_answer(
    case: tuple[Passes, Fails], required: set[str]
) -> None:
    pipeline, fails = case
    kept = tuple(n for n in pipeline if n in required)
    for search in (minimal_sequence, minimal_set):
        test = Counted(fails)
        culprit = search(pipeline, test, required=required)
        assert not required & set(culprit)
        assert all(tuple(n for n in asked if n in required) == kept for asked in test.asked)
        assert any(fails(merged) for merged in merges(pipeline, culprit, required))


def merges(pipeline: Passes, culprit: Passes, required: Collection[str]) -> list[Passes]:
    """Ways to pick ``culprit`` out of ``pipeline`` together with all that is required."""
    optional = [i for i, n in enumerate(pipeline) if n not in required]
    fixed = [i for i, n in enumerate(pipeline) if n in required]
    return [
        tuple(pipeline[i] for i in sorted([*fixed, *chosen]))
        for chosen in itertools.combinations(optional, len(culprit))
        if tuple(pipeline[i] for i in chosen) == culprit
    ]


@given(failing())
def test_the_search_is_deterministic(case: tuple[Passes, Fails]) -> None:
    pipeline, fails = case
    for search in (minimal_sequence, minimal_set):
        once, again = Counted(fails), Counted(fails)
        assert search(pipeline, once) == search(pipeline, again)
        assert once.asked == again.asked


@given(failing())
def test_the_number_of_tests_is_quadratic_at_worst(case: tuple[Passes, Fails]) -> None:
    pipeline, fails = case
    for search in (minimal_sequence, minimal_set):
        test = Counted(fails)
        search(pipeline, test)
        assert len(test.asked) <= len(pipeline) ** 2 + 3 * len(pipeline) + 2


# Known culprits among forty passes


def walk(test: Counted, required: Collection[str] = ()) -> Passes:
    step = first_bad_prefix(FORTY, test)
    test.asked.clear()
    return minimal_sequence(FORTY[:step], test, required=required)


@pytest.mark.parametrize("position", [0, 1, 17, 39])
def test_a_single_culprit_takes_one_test(position: int) -> None:
    test = Counted(needs(FORTY[position]))
    assert walk(test) == (FORTY[position],)
    assert len(test.asked) <= 2


@pytest.mark.parametrize("pair", [("p00", "p01"), ("p03", "p37"), ("p20", "p39"), ("p38", "p39")])
def test_a_pair_takes_few_tests(pair: tuple[str, str]) -> None:
    test = Counted(needs(*pair))
    assert walk(test) == pair
    assert len(test.asked) <= 30


def test_a_pair_in_order_is_not_confused_with_its_reverse() -> None:
    pipeline = ("b", "x", "a", "y", "b", "z")
    assert minimal_sequence(pipeline[:5], Counted(needs("a", "b"))) == ("a", "b")
    assert minimal_set(pipeline, Counted(needs("b", "a"))) == ("b", "a")


def test_a_triple_is_found_in_order() -> None:
    test = Counted(needs("p02", "p21", "p33"))
    assert walk(test) == ("p02", "p21", "p33")
    assert len(test.asked) <= 60


def test_a_set_that_needs_no_order_is_found_too() -> None:
    assert minimal_set(FORTY, Counted(together("p33", "p02", "p21"))) == ("p02", "p21", "p33")


def test_a_culprit_that_a_later_pass_masks_is_found_before_it() -> None:
    pipeline = ("a", "bad", "b", "heal", "c", "bad", "d")
    test = Counted(masked(needs("bad"), by="heal", what="bad"))
    step = first_bad_prefix(pipeline, test)
    assert pipeline[step - 1] == "bad"
    assert minimal_sequence(pipeline[:step], test) == ("bad",)


def test_a_pass_that_only_fails_the_second_time_is_blamed_twice() -> None:
    pipeline = ("a", "again", "b", "again", "c")
    test = Counted(needs("again", "again"))
    assert minimal_sequence(pipeline[: first_bad_prefix(pipeline, test)], test) == (
        "again",
        "again",
    )
    assert minimal_set(pipeline, test) == ("again", "again")


def test_of_two_occurrences_one_is_enough() -> None:
    pipeline = ("bad", "a", "bad")
    assert minimal_sequence(pipeline, Counted(needs("bad"))) == ("bad",)


def test_two_independent_culprits_are_found_one_after_the_other() -> None:
    def either(passes: Passes) -> bool:
        return "p07" in passes or "p31" in passes

    pipeline, found = FORTY, set()
    for _ in range(2):
        test = Counted(either)
        (culprit,) = minimal_sequence(pipeline[: first_bad_prefix(pipeline, test)], test)
        found.add(culprit)
        pipeline = tuple(n for n in pipeline if n != culprit)
    assert found == {"p07", "p31"}


def test_a_culprit_that_cannot_be_tested_alone_keeps_what_resolves_it() -> None:
    # Without p10 the pass p20 crashes in another way.
    test = Counted(needs("p20"), unresolved=lambda p: "p20" in p and "p10" not in p)
    assert walk(test) == ("p10", "p20")


def test_a_required_pass_alone_to_blame_leaves_an_empty_answer() -> None:
    pipeline = ("a", "lower", "b")
    fails = needs("lower")
    assert minimal_sequence(pipeline[:2], Counted(fails), required={"lower"}) == ()
    assert minimal_set(pipeline, Counted(fails), required={"lower"}) == ()


def test_a_culprit_that_a_required_pass_completes_is_found() -> None:
    pipeline = ("a", "bad", "b", "lower")
    fails = needs("bad", "lower")
    assert minimal_sequence(pipeline, Counted(fails), required={"lower"}) == ("bad",)


# ddmin


@given(st.integers(1, 24), st.data())
def test_ddmin_keeps_exactly_what_is_needed(size: int, data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.integers(0, size - 1)))
    assert ddmin(range(size), lambda part: wanted <= set(part)) == sorted(wanted)


def test_ddmin_of_nothing_is_nothing() -> None:
    assert ddmin([], lambda part: True) == []
