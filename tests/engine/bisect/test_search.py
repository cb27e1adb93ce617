"""The search over releases, without any release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optvet.engine.bisect.search import Change, NoneDecided, ReleaseSearch, State

NAMES: Mapping[str, State] = {"g": "good", "b": "bad", ".": "skipped"}


class Line:
    """Releases as letters, which counts what is asked."""

    def __init__(self, letters: str) -> None:
        self.letters, self.asked = letters, list[int]()

    def __call__(self, numbers: Sequence[int]) -> Mapping[int, State]:
        self.asked += numbers
        return {number: NAMES[self.letters[number]] for number in numbers}


def changes_of(letters: str, width: int = 1) -> tuple[list[Change], Line]:
    line = Line(letters)
    search = ReleaseSearch(len(letters), line, width)
    low, high = search.ends()
    found = search.changes(low, high)
    search.check_within(low, high, found)
    return search.changes(low, high), line


@pytest.mark.parametrize("width", [1, 2, 5])
@given(count=st.integers(2, 60), data=st.data())
def test_the_first_bad_release_of_a_monotone_range_is_found(
    width: int, count: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(1, count - 1))
    found, line = changes_of("g" * first + "b" * (count - first), width)
    assert found == [Change(first - 1, first, "bad")]
    assert len(line.asked) == len(set(line.asked))


def test_a_hundred_releases_need_ten_trials_and_two_to_check() -> None:
    found, line = changes_of("g" * 37 + "b" * 63)
    assert found == [Change(36, 37, "bad")]
    assert len(line.asked) <= 12


def test_what_was_mended_is_found_too() -> None:
    assert changes_of("bbbbbggg")[0] == [Change(4, 5, "good")]


def test_skipped_releases_beside_the_change_are_part_of_it() -> None:
    assert changes_of("ggg...bbb")[0] == [Change(2, 6, "bad")]


def test_old_releases_that_are_skipped_are_passed_in_few_steps() -> None:
    found, line = changes_of("." * 40 + "g" * 20 + "b" * 4)
    assert found == [Change(59, 60, "bad")]
    assert sum(number < 40 for number in line.asked) <= 8


def test_a_range_that_is_bad_in_its_middle_has_two_changes() -> None:
    assert changes_of("ggggbbbbbbgggg")[0] == [Change(3, 4, "bad"), Change(9, 10, "good")]


def test_a_second_change_is_found_where_a_release_within_says_so() -> None:
    # Good, bad from 2, good in 8 to 11: the halves find one change, the check within the others.
    found, _ = changes_of("ggbbbbbbggggbbbb")
    assert found[0] == Change(1, 2, "bad")
    assert [c.to for c in found] == ["bad", "good", "bad"]


@given(st.text("gb.", min_size=2, max_size=40))
def test_every_change_lies_between_releases_of_different_answers(letters: str) -> None:
    try:
        found, line = changes_of(letters)
    except NoneDecided:
        assert set(letters) == {"."}
        return
    for change in found:
        assert NAMES[letters[change.first]] == change.to != NAMES[letters[change.last]]
        between = letters[change.last + 1 : change.first]
        assert set(between) <= {"."}
    assert len(line.asked) == len(set(line.asked))
