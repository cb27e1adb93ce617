"""The search: where along a line of releases the answer changes.

Releases are numbers from 0, oldest first. Each is good, bad or skipped; skipped ones say nothing
and lie on neither side. The search finds changes between releases that were decided; where skipped
ones lie between two, the change may be in any of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["good", "bad", "skipped"]
Ask = Callable[[Sequence[int]], Mapping[int, State]]
"""The states of some releases, which are tried at the same time."""


class NoneDecided(Exception):
    """Every release was skipped."""


@dataclass(frozen=True)
class Change:
    """The answer changes after release ``last``: ``first`` has another one.

    Attributes:
        last: The last release of the old answer.
        first: The first release that has the new one.
        to: The new answer.
    """

    last: int
    first: int
    to: State


class ReleaseSearch:
    """A search over ``count`` releases, ``width`` at a time; ``states`` has what is known."""

    def __init__(self, count: int, ask: Ask, width: int = 1) -> None:
        self.states: dict[int, State] = {}
        self._count, self._ask_many, self._width = count, ask, max(1, width)

    def ends(self) -> tuple[int, int]:
        """The outermost releases that are decided; old ones are often skipped in a row.

        Raises:
            NoneDecided: All are skipped.
        """
        self._ask([0, self._count - 1])
        return self._outermost(range(self._count)), self._outermost(range(self._count - 1, -1, -1))

    def changes(self, low: int, high: int) -> list[Change]:
        """All changes between the decided releases so far, each narrowed down.

        Args:
            low: A decided release.
            high: Another one above it.
        """
        while True:
            decided = [i for i in sorted(self.states) if low <= i <= high and self._is_decided(i)]
            pairs = list(itertools.pairwise(decided))
            apart = [(a, b) for a, b in pairs if self.states[a] != self.states[b]]
            wide = next(((a, b) for a, b in apart if self._untested(a, b)), None)
            if wide is None:
                return [Change(a, b, self.states[b]) for a, b in apart]
            self._ask(_spread(self._untested(*wide), self._width))

    def check_within(self, low: int, high: int, changes: Sequence[Change]) -> None:
        """Try two releases more, each far from all that were tried: is the range monotone?

        Without a change they lie at a third and two thirds; with one, amid either side.
        """
        if changes:
            spans = [(low, changes[0].last), (changes[-1].first, high)]
            within = [_spread(self._untested(a, b), 1) for a, b in spans]
        else:
            within = [_spread(self._untested(low, high), 2)]
        self._ask([i for part in within for i in part])

    def _ask(self, numbers: Sequence[int]) -> None:
        new = [i for i in dict.fromkeys(numbers) if i not in self.states]
        for start in range(0, len(new), self._width):
            self.states |= self._ask_many(new[start : start + self._width])

    def _is_decided(self, number: int) -> bool:
        return self.states.get(number) in ("good", "bad")

    def _untested(self, low: int, high: int) -> list[int]:
        return [i for i in range(low + 1, high) if i not in self.states]

    def _outermost(self, order: Sequence[int]) -> int:
        """The first decided release of ``order``, with steps that double, then back by halves."""
        skipped, step = -1, 1
        while True:
            place = min(skipped + step, len(order) - 1)
            self._ask([order[place]])
            if self._is_decided(order[place]):
                break
            if place == len(order) - 1:
                # What the doubled steps passed over may still be decided.
                known = [p for p, i in enumerate(order) if self._is_decided(i)]
                rest = [p for p, i in enumerate(order) if i not in self.states]
                if not known and not rest:
                    raise NoneDecided
                if known:
                    place = known[0]
                    break
                self._ask([order[rest[len(rest) // 2]]])
                continue
            skipped, step = place, 2 * step
        while place - skipped > 1:
            middle = (skipped + place) // 2
            self._ask([order[middle]])
            if self._is_decided(order[middle]):
                place = middle
            else:
                skipped = middle
        return order[place]


def _spread(numbers: Sequence[int], amount: int) -> list[int]:
    """``amount`` of ``numbers``, evenly spread, without the ends where there are others."""
    if len(numbers) <= amount:
        return list(numbers)
    return [numbers[len(numbers) * (k + 1) // (amount + 1)] for k in range(amount)]
