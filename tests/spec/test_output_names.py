"""Outputs are named by the keys that lead to them."""

from __future__ import annotations

import pytest

from optvet.plugin import output_names
from optvet_tensorflow import paths_to


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([(), ()], ["output_0", "output_1"]),
        ([(0,), (1, 0)], ["output_0", "output_1"]),
        ([("boxes",), ("heads", 0), ("heads", 1)], ["boxes", "heads.0", "heads.1"]),
        ([(0,), (1, "scores")], ["output_0", "1.scores"]),
        ([("a", "b"), ("a.b",)], ["output_0", "output_1"]),
        ([("",)], ["output_0"]),
    ],
)
def test_names(paths: list[tuple[object, ...]], names: list[str]) -> None:
    assert output_names(paths) == names


def test_keys_of_tensorflow_are_sorted_as_its_tensors_are() -> None:
    returned = {"b": 1, "a": [2, (None, 3)]}
    assert output_names(list(paths_to(returned))) == ["a.0", "a.1.1", "b"]
