"""The plan of a round: where the budget goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from optvet.engine.hunt.judge import ANY, Firing
from optvet.engine.hunt.make import Recipe
from optvet.engine.hunt.state import Entry, State
from optvet.spec.generators import Pattern

_Wanted = Callable[[int], bool]

ROUND = 320
"""Candidates of a round, after which the state follows: some seconds of one worker."""
EDITS = 3
"""How often each mutator is applied alone to a new model of the corpus."""
_SMALL_BYTES = 4096
"""Models up to this size are edited one change at a time."""


def planned(
    state: State,
    size: int,
    *,
    seed: int,
    fragments: int,
    patterns: Sequence[Pattern],
    mutators: int,
) -> list[Recipe]:
    """Recipes of the next round.

    Fragments as they are come first, then patterns of passes that have not fired. Of the models
    that made something fire, small ones are changed once in every way, and others at random.
    """
    random = Random(f"{seed}/plan/{state.rounds}")
    chooser = _Chooser(state, random, mutators)
    return [_recipe(state, chooser, random, fragments, patterns) for _ in range(size)]


def _recipe(
    state: State, chooser: _Chooser, random: Random, fragments: int, patterns: Sequence[Pattern]
) -> Recipe:
    drawn = random.random()
    if drawn < 0.2 and state.swept < fragments:
        state.swept += 1
        return Recipe("sweep", state.swept - 1)
    if drawn < 0.35 and patterns:
        return _pattern(state, random, patterns)
    if drawn < 0.65 and (edit := chooser.edit()) is not None:
        return edit
    if drawn < 0.9 and (entry := chooser.entry()) is not None:
        return Recipe("corpus", model=entry.model, feeds=entry.feeds)
    return Recipe("chain")


def _pattern(state: State, random: Random, patterns: Sequence[Pattern]) -> Recipe:
    """A pattern of a pass that has fired seldom, and was tried seldom."""
    fired: dict[str, int] = {}
    for (name, _, _), count in state.firings.items():
        fired[name] = fired.get(name, 0) + count
    weights = [1 / (1 + fired.get(p.about, 0) + 0.1 * state.tries[p.about]) for p in patterns]
    (chosen,) = random.choices(patterns, weights)
    state.tries[chosen.about] += 1
    return Recipe("pattern", operators=chosen.operators)


class _Chooser:
    """Chooses models of the corpus: a pass at random, then what it did most seldom.

    If models were drawn at random, nearly all would be those of the pass that fires most.
    """

    def __init__(self, state: State, random: Random, mutators: int) -> None:
        self._state, self._random, self._mutators = state, random, mutators
        self._by_pass: dict[str, dict[Firing, list[int]]] = {}
        for index, entry in enumerate(state.entries):
            for firing in entry.firings:
                self._by_pass.setdefault(firing[0], {}).setdefault(firing, []).append(index)
        # Of an optimizer that names its passes, what the whole pipeline did says less.
        if len(self._by_pass) > 1:
            self._by_pass.pop(ANY, None)

    def entry(self) -> Entry | None:
        """A model to mutate."""
        index = self._index(lambda i: True)
        return None if index is None else self._state.entries[index]

    def edit(self) -> Recipe | None:
        """The next single change of a small model."""
        index = self._index(lambda i: self._left(i) > 0)
        if index is None:
            return None
        done = self._state.edited.get(index, 0)
        self._state.edited[index] = done + 1
        entry = self._state.entries[index]
        return Recipe("edit", done, model=entry.model, feeds=entry.feeds)

    def _left(self, index: int) -> int:
        if len(self._state.entries[index].model) > _SMALL_BYTES:
            return 0
        return EDITS * self._mutators - self._state.edited.get(index, 0)

    def _index(self, wanted: _Wanted) -> int | None:
        names = sorted(self._by_pass)
        self._random.shuffle(names)
        for name in names:
            firings = self._by_pass[name]
            fitting = {f: good for f, all_ in firings.items() if (good := [*filter(wanted, all_)])}
            if fitting:
                weights = [1 / (1 + self._state.firings[f]) for f in fitting]
                (firing,) = self._random.choices(list(fitting), weights)
                return self._random.choice(fitting[firing])
        return None


def in_batches(recipes: Sequence[Recipe], size: int) -> Iterator[tuple[int, tuple[Recipe, ...]]]:
    """The recipes in batches of ``size``, each with the index of its first."""
    for start in range(0, len(recipes), size):
        yield start, tuple(recipes[start : start + size])
