"""Comparisons in little memory: one is made per sample, and all are kept until they are summarised.

A comparison of ten scores takes 6 KB as dictionaries and lists, which is 60 MB for 10,000 samples.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from optvet.spec.types import Comparison


def pack_comparison(comparison: Comparison) -> Comparison:
    """An equal comparison, whose metrics and details are packed until they are asked for."""
    try:
        detail: Mapping[str, Any] = _Packed(comparison.detail)
    except Exception:  # whatever a comparator's own objects raise: they are kept as they are
        detail = comparison.detail
    return replace(comparison, metrics=_Numbers(comparison.metrics), detail=detail)


class _Numbers(Mapping[str, float]):
    """Numbers by name; the names are shared by all that have the same ones."""

    __slots__ = ("_names", "_values")

    def __init__(self, numbers: Mapping[str, float]) -> None:
        self._names = _places(tuple(numbers))
        self._values = array("d", map(float, numbers.values()))

    def __getitem__(self, name: str) -> float:
        return self._values[self._names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@lru_cache(maxsize=1024)
def _places(names: tuple[str, ...]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


class _Packed(Mapping[str, Any]):
    """A mapping as bytes, read again whenever it is used."""

    __slots__ = ("_data",)

    def __init__(self, content: Mapping[str, Any]) -> None:
        # Made and read in this process alone.
        self._data = pickle.dumps(dict(content), protocol=5)

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = pickle.loads(self._data)
        return content

    def __getitem__(self, name: str) -> Any:
        return self._content()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())
