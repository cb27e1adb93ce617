"""Draws that count through all that can be drawn, in place of chance."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from random import Random
from typing import Any, TypeVar

_T = TypeVar("_T")
_PLAIN = (bool, int, float, str)
_EITHER = (0.0, 0.97)
_MANY = 100
_DECISIVE = 2


class ExhaustiveDraws(Random):
    """A generator whose draws are the digits of ``number``, the first of which is the lowest.

    A function that draws in turn from n, m, … things does each of its n * m * … variants for one
    number below that, and for larger numbers leaves a ``rest``: it has been through. The order of
    the things is that of ``seed`` and of what was drawn before, so that of many things not the
    first ones are always taken, and the first few numbers differ in all that is drawn.
    """

    def __init__(self, number: int, seed: str) -> None:
        super().__init__(seed)
        self.rest = number
        self.ways = 1
        """In how many ways the first two things could be drawn."""
        self._drawn, self._path = 0, seed

    def _digit(self, base: int) -> int:
        self._drawn += 1
        self.ways *= base if self._drawn <= _DECISIVE else 1
        turned = int(super().random() * base)
        self.rest, digit = divmod(self.rest, base)
        self._path = f"{self._path}/{digit}"
        self.seed(self._path)
        return (digit + turned) % base

    def random(self) -> float:
        """A low or a high number: what is done below some limit, and what is done above it."""
        return _EITHER[self._digit(2)]

    def choice(self, seq: Any) -> Any:
        """One thing; equal numbers or words count once."""
        if len(seq) > _MANY:
            return seq[self._digit(len(seq))]
        items = list(seq)
        if all(type(item) in _PLAIN for item in items):
            items = list({repr(item): item for item in items}.values())
        return items[self._digit(len(items))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """One number of a range."""
        numbers = range(start) if stop is None else range(start, stop, step)
        return numbers[self._digit(len(numbers))]

    def sample(
        self,
        population: Sequence[_T] | AbstractSet[_T],
        k: int,
        *,
        counts: Any = None,
    ) -> list[_T]:
        """Several things, in any order."""
        left: MutableSequence[_T] = list(population)
        return [left.pop(self._digit(len(left))) for _ in range(k)]
