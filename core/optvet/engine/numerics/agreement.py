"""How far two raters agree who give each item one of several names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Agreement:
    """Agreement of two raters.

    Attributes:
        items: How many items both rated.
        same: How many got the same name from both.
        kappa: Cohen's kappa: 1 is full agreement, 0 what chance gives; None if it is not defined,
            since both gave all items one name, or there are no items.
    """

    items: int
    same: int
    kappa: float | None

    def words(self) -> str:
        """The numbers on one line."""
        kappa = "not defined" if self.kappa is None else f"{self.kappa:.2f}"
        return f"κ {kappa}, the same in {self.same} of {self.items}"


def agreement(first: Sequence[str], second: Sequence[str]) -> Agreement:
    """The agreement of two raters over the same items in the same order.

    ``κ = (p_o − p_e) / (1 − p_e)``, where ``p_o`` is the share of equal names and ``p_e`` the share
    that raters with these frequencies of names would have by chance.

    Source: Cohen 1960, "A coefficient of agreement for nominal scales", Educational and
    Psychological Measurement 20(1), p. 40, formula (1).

    >>> agreement(["a", "a", "b", "b"], ["a", "a", "b", "a"]).words()
    'κ 0.50, the same in 3 of 4'
    """
    names = {name: i for i, name in enumerate(dict.fromkeys((*first, *second)))}
    table = np.zeros((len(names), len(names)))
    for a, b in zip(first, second, strict=True):
        table[names[a], names[b]] += 1
    items, same = int(table.sum()), int(np.trace(table))
    if not items:
        return Agreement(0, 0, None)
    chance = float(table.sum(0) @ table.sum(1)) / items**2
    if chance == 1:
        return Agreement(items, same, None)
    return Agreement(items, same, (same / items - chance) / (1 - chance))
