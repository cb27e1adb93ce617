"""Loaders keep within bounds on what is almost right; ``fuzz_loaders`` is the long form."""

import pytest
from tests.assault.fuzz_loaders import TARGETS, fuzz, load

FOUND = [("model", b""), ("record", b"a = \x00"), ("bundle", b"[" * 100_000), ("cache", b"")]
"""Inputs that once went wrong, or nearly."""


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_a_file_holds_it_is_read_or_refused_in_words(name: str) -> None:
    if name in ("image", "annotations"):
        pytest.importorskip("PIL", reason="needs the extra images")
    fuzz(name, number=7, examples=60)


@pytest.mark.parametrize("name", TARGETS)
def test_well_formed_inputs_are_loaded(name: str) -> None:
    if name in ("image", "annotations"):
        pytest.importorskip("PIL", reason="needs the extra images")
    for data in TARGETS[name].seeds():
        load(name, data)


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_once_went_wrong_is_refused_in_words(name: str, data: bytes) -> None:
    load(name, data)
