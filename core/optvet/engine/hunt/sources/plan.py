"""Which sources a hunt makes: every operator once, then other samples, types and compositions."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from optvet.spec.converters import SourceStep

_SAMPLES = 10_000
_MOST_STEPS = 3
_USUAL, _OPEN, _COMPOSED = 0.6, 0.25, 0.6


@dataclass(frozen=True)
class SourceRecipe:
    """Steps of a source, and whether sizes of its inputs are left open.

    Attributes:
        settings: What a fault needs of each step besides what is usual, as far as that is known.
    """

    steps: tuple[SourceStep, ...]
    dynamic: bool = False
    settings: tuple[tuple[str, ...], ...] = ()

    @property
    def operators(self) -> tuple[str, ...]:
        """Those of its steps."""
        return tuple(step.operator for step in self.steps)

    @property
    def names(self) -> tuple[str, ...]:
        """Operators with the settings that a fault needs, as ``Clip(max=0)``."""
        each = self.settings or ((),) * len(self.steps)
        pairs = zip(self.operators, each, strict=True)
        return tuple(f"{name}({', '.join(needed)})" if needed else name for name, needed in pairs)

    @property
    def parts(self) -> tuple[str, ...]:
        """Its operators, and each setting that a fault needs with its operator."""
        each = zip(self.operators, self.settings, strict=False)
        return *self.operators, *(f"{name} {setting}" for name, s in each for setting in s)

    def leaving_out(self, place: int, setting: str) -> SourceRecipe:
        """The recipe without a setting of a step."""
        step = self.steps[place]
        plainer = replace(step, without=step.without | {setting})
        return replace(self, steps=(*self.steps[:place], plainer, *self.steps[place + 1 :]))

    def smaller(self) -> Iterator[SourceRecipe]:
        """Recipes with fewer steps, the smallest first, then one of fixed sizes."""
        count = len(self.steps)
        for size in range(1, count):
            for first in range(count - size + 1):
                part = slice(first, first + size)
                yield SourceRecipe(self.steps[part], settings=self.settings[part])
        if self.dynamic:
            yield replace(self, dynamic=False)


@dataclass(frozen=True)
class SuspectedSource:
    """A source that looks wrong after its conversion, and the input that shows it, by its name."""

    recipe: SourceRecipe
    sample: str


def recipe_of(
    number: int,
    seed: int,
    operators: Mapping[str, Sequence[str]],
    last: Collection[str] = frozenset(),
) -> SourceRecipe:
    """The recipe of a number: it follows from the seed and the operators alone.

    The first of as many recipes as there are operators have one operator each, in their usual type.
    One of ``last`` is never followed by another step.
    """
    names = sorted(operators)
    random.Random(seed).shuffle(names)
    wave, place = divmod(number, len(names))
    rng = random.Random(f"{seed} {number}")
    first = names[place]
    usual = operators[first][0]
    dtype = usual if not wave or rng.random() < _USUAL else rng.choice(operators[first])
    chosen = [first]
    if wave and rng.random() < _COMPOSED:
        fitting = [name for name in names if dtype in operators[name] and name not in last]
        chosen += rng.choices(fitting, k=rng.randint(1, _MOST_STEPS - 1)) if fitting else []
        rng.shuffle(chosen)
        chosen.sort(key=lambda name: name in last)
    steps = tuple(SourceStep(name, dtype, rng.randrange(_SAMPLES)) for name in chosen)
    return SourceRecipe(steps, rng.random() < _OPEN)
