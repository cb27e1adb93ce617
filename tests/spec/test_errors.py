"""Errors that people read."""

from hypothesis import given
from hypothesis import strategies as st

from optvet import InputError
from optvet.spec.errors import LONGEST_MESSAGE


@given(st.integers(0, 3 * LONGEST_MESSAGE))
def test_a_message_is_whole_or_cut_in_the_middle(length: int) -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(length))
    said = str(InputError(text))
    assert len(said) == min(length, LONGEST_MESSAGE)
    head, _, tail = said.partition("…")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert (said == text) == (length <= LONGEST_MESSAGE)
