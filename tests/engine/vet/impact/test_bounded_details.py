from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optvet.engine.vet.impact.bounded_details import MAX_DETAIL_BYTES, kept_detail

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_what_is_small_and_plain_is_kept_as_it_is() -> None:
    detail = {"rows": [{"row": 3, "reference": [[7, 0.5]]}], "text": "a", "none": None}
    assert kept_detail(detail) == detail


def test_arrays_and_foreign_values_become_plain() -> None:
    detail = {"a": np.arange(3), "b": np.float32(0.5), "c": (np.bool_(True), {1}), 4: 1 + 2j}
    kept = kept_detail(detail)  # type: ignore[arg-type]  # what a careless comparator may say
    assert kept == {"a": [0, 1, 2], "b": 0.5, "c": [True, "{1}"], "4": "(1+2j)"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("detail", "cut"),
    [
        ({"boxes": [[0.5] * 4] * 5000}, {"boxes": [[0.5] * 4] * 1000, "cut_to": 1000}),
        ({"images": [[0.25] * 900] * 900}, {"images": [[0.25] * 100] * 100, "cut_to": 100}),
        ({"classes": {str(i): i for i in range(9999)}}, None),
        ({"text": "x" * 10**6}, {"text": "x" * 20_000, "cut_to": 1000}),
    ],
    ids=["list", "nested", "mapping", "text"],
)
def test_what_is_too_large_is_cut_and_says_so(detail: Any, cut: Any) -> None:
    kept = kept_detail(detail)
    assert kept["cut_to"] in (1000, 100)
    assert cut is None or kept == cut


@pytest.mark.long
@settings(deadline=None, max_examples=25)
@given(st.dictionaries(st.text(), plain), st.integers(1, 12))
def test_whatever_it_is_it_fits(detail: dict[str, Any], times: int) -> None:
    many = {"many": [detail] * times**3}
    size = len(json.dumps(kept_detail(many)))
    assert size <= MAX_DETAIL_BYTES
