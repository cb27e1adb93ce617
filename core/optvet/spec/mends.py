"""What import and export alone lose of a model, so that a copy can get it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Lost = Literal[
    "output name",
    "input name",
    "outputs",
    "inputs",
    "output type",
    "input type",
    "operator set",
    "function",
    "weight",
    "IR version",
    "inner types",
]
"""Kinds of things, in the order in which they are restored: names before order before types."""
_NAMED = 4


@dataclass(frozen=True)
class Mend:
    """One thing to restore.

    Attributes:
        lost: What kind of thing it is.
        name: Its name in the original; of an operator set its domain; empty if there is only one.
        now: What import and export made of it; empty if it is gone.
    """

    lost: Lost
    name: str = ""
    now: str = ""

    def __str__(self) -> str:
        """What the copy has then, in words."""
        if self.lost == "inner types":
            return "inner values without declared types"
        kind, _, part = self.lost.rpartition(" ")
        place = f" of {kind}" if kind in ("input", "output") else ""
        what = f"the {part}{place}" if place else f"the {self.lost}"
        name = f" {self.name!r}" if self.name else " as they were" if part in _SIDES else ""
        return f"{what}{name}" + (f" (became {self.now!r})" if self.now else "")


_SIDES = ("inputs", "outputs")


def in_words(mends: Sequence[Mend]) -> str:
    """What a copy got back; beyond a few, how many more."""
    named = [str(mend) for mend in mends[:_NAMED]]
    more = len(mends) - len(named)
    return ", ".join([*named, f"{more} more"] if more else named)
