"""Plans a round: distributes the budget among kinds of candidates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from random import Random

from onnx import ModelProto

from optvet.engine.hunt.make_candidates import CandidateRecipe
from optvet.engine.hunt.state import SPENT, CorpusEntry, HuntState
from optvet.engine.hunt.suspicions import ANY, CONTRIVED, REACHED, UNSEEN, Rewrite
from optvet.graph.walk import nodes_of
from optvet.spec.generators import Pattern

EDITS = 32
"""Most variants of a mutator of weight 1 that are applied alone to a model of the corpus."""
_TRIES = 400
"""Edits that found nothing, after which their mutator, or their pass, has half of its weight."""
_LEAST = 0.2
"""What is left of the weight of one that never finds anything."""
_FIRST = 0.75
"""Share of the edits that are of the simplest model that shows a rewrite and has edits left.

So it is edited in every way within a few minutes; all models have ten times as many edits as fit
in a hunt.
"""
_OF_CODE = 0.15
"""Share of the edits that are of models that reached code of the passes first."""
_EARLY = 1000
"""So many fragments, those of small pools, make half of the models, and later ones a fifth.

Patterns written by hand are among them: of a slow optimizer a hunt judges few models, and a pass
that has not changed one shows no fault.
"""
_SMALL_BYTES = 4096
"""Models up to this size are edited one change at a time."""


def plan_round(
    state: HuntState,
    size: int,
    *,
    seed: int,
    fragments: int,
    patterns: Sequence[Pattern],
    mutators: Mapping[str, float],
) -> list[CandidateRecipe]:
    """Recipes of the next round; ``mutators`` are their weights by name, in their order.

    Fragments as they are come first, then patterns of passes that have changed no model. Of
    the models that a pass changed in a new way, small ones are edited once in every way,
    and others at random.
    """
    random = Random(f"{seed}/plan/{state.rounds}")
    chooser = _Chooser(state, random, learned_weights(state, mutators), list(mutators))
    return [_recipe(state, chooser, random, fragments, patterns) for _ in range(size)]


def learned_weights(state: HuntState, mutators: Mapping[str, float]) -> list[float]:
    """Weights of mutators, by what each has found alone.

    One that found many plausible faults for its edits is tried more often; each contrived one
    makes it rarer, for what is odd about its models breaks one pass after another.
    """
    plausible, contrived = Counter[str](), Counter[str]()
    for finding in state.findings:
        if len(finding.mutators) == 1:
            (plausible, contrived)[bool(finding.contrived)][finding.mutators[0]] += 1
    return [
        weight
        * max((1 + plausible[name]) / (1 + state.edits[name] / _TRIES), _LEAST)
        / (1 + contrived[name])
        for name, weight in mutators.items()
    ]


def _recipe(
    state: HuntState, chooser: _Chooser, random: Random, fragments: int, patterns: Sequence[Pattern]
) -> CandidateRecipe:
    # One number for all kinds, so that what one kind does not use falls to the next.
    drawn = random.random()
    if drawn < (0.5 if state.swept < _EARLY else 0.2) and state.swept < fragments:
        state.swept += 1
        return CandidateRecipe("sweep", state.swept - 1)
    if 0.2 <= drawn < 0.28 and patterns:
        return _pattern(state, random, patterns)
    # Single edits find several times as much as random changes; they get what the others leave.
    if drawn < 0.9 and (edit := chooser.edit()) is not None:
        return edit
    if drawn < 0.96 and (entry := chooser.entry()) is not None:
        return CandidateRecipe(
            "corpus",
            model=entry.model,
            feeds=entry.feeds,
            invented=entry.invented,
            rewrites=entry.rewrites,
            shown=entry.shown,
            way=entry.way,
        )
    return CandidateRecipe("chain")


def _pattern(state: HuntState, random: Random, patterns: Sequence[Pattern]) -> CandidateRecipe:
    """A pattern of a pass that has changed few models, and was tried seldom."""
    changed: dict[str, int] = {}
    for (name, *_), count in state.rewrites.items():
        changed[name] = changed.get(name, 0) + count
    # Never zero: a pass that changed a model by its first pattern may have others.
    weights = [1 / (1 + changed.get(p.about, 0) + 0.1 * state.tries[p.about]) for p in patterns]
    (chosen,) = random.choices(patterns, weights)
    state.tries[chosen.about] += 1
    return CandidateRecipe("pattern", operators=chosen.operators)


_Way = tuple[Rewrite, str]
"""A rewrite; with the operators of the model where it does not tell what was done."""
_Table = dict[str, dict[_Way, list[int]]]


class _Chooser:
    """Chooses models of the corpus: a pass, then what it did most seldom.

    Uniform draws would nearly always choose the pass that changes most models.
    """

    def __init__(
        self, state: HuntState, random: Random, weights: Sequence[float], mutators: Sequence[str]
    ) -> None:
        self._state, self._random, self._weights = state, random, weights
        self._mutators = mutators
        self._all, self._left = _table(state.entries), _table(state.entries)
        self._of_passes = _weights_of_passes(state)

    def entry(self) -> CorpusEntry | None:
        """A model to mutate."""
        drawn = self._draw(self._all)
        return None if drawn is None else self._state.entries[drawn[2]]

    def edit(self) -> CandidateRecipe | None:
        """The next single change of a small model."""
        while (drawn := self._draw(self._left, _FIRST)) is not None:
            name, way, index = drawn
            if mutators := self._unspent(index):
                done = self._state.edited[index]
                # The first edits of a mutator show more than its tenth.
                weights = [self._weights[m] / (1 + done[m]) for m in mutators]
                (mutator,) = self._random.choices(mutators, weights)
                done[mutator] += 1
                self._state.edits[self._mutators[mutator]] += 1
                entry = self._state.entries[index]
                variant = done[mutator] - 1
                return CandidateRecipe(
                    "edit",
                    mutator,
                    variant,
                    index,
                    model=entry.model,
                    feeds=entry.feeds,
                    invented=entry.invented,
                    rewrites=entry.rewrites,
                    shown=entry.shown,
                    way=entry.way,
                )
            _remove(self._left, name, way, index)
        return None

    def _draw(self, table: _Table, first: float = 0) -> tuple[str, _Way, int] | None:
        if not table:
            return None
        passes = [name for name in table if name != REACHED]
        if REACHED in table and (not passes or self._random.random() < _OF_CODE):
            passes = [REACHED]
        (name,) = self._random.choices(passes, [self._of_passes.get(p, 1.0) for p in passes])
        weights = [1 / (1 + self._state.rewrites[rewrite]) for rewrite, _ in table[name]]
        (way,) = self._random.choices(list(table[name]), weights)
        indices = table[name][way]
        index = indices[0] if self._random.random() < first else self._random.choice(indices)
        return name, way, index

    def _unspent(self, index: int) -> list[int]:
        """Mutators that have variants left."""
        if len(self._state.entries[index].model) > _SMALL_BYTES:
            return []
        done = self._state.edited.setdefault(index, [])
        done += [0] * (len(self._weights) - len(done))
        counts = enumerate(zip(done, self._weights, strict=False))
        return [m for m, (n, weight) in counts if SPENT < n < EDITS * max(weight, 1)]


def _weights_of_passes(state: HuntState) -> dict[str, float]:
    """How often models are edited that a pass changes: seldom if none of many looked wrong."""
    edits = Counter[str]()
    for index, done in state.edited.items():
        number = sum(count for count in done if count > 0)
        edits.update({r.label: number for r in state.entries[index].rewrites})
    suspected = {name for key in state.signs for name in key.passes}
    return {
        name: 1.0 if name in suspected else max(1 / (1 + number / _TRIES), _LEAST)
        for name, number in edits.items()
    }


def _table(entries: Sequence[CorpusEntry]) -> _Table:
    """Indices of the entries by pass, and by what it did, the simplest models first."""
    table: _Table = {}
    for index, entry in sorted(enumerate(entries), key=lambda pair: _complexity(pair[1])):
        rewrites = (Rewrite(REACHED),) if entry.way == REACHED else entry.rewrites
        for rewrite in rewrites:
            way = rewrite, entry.way if rewrite.change == UNSEEN else ""
            table.setdefault(rewrite.label, {}).setdefault(way, []).append(index)
    # Of an optimizer that names its passes, what the whole pipeline did says less.
    if len({*table} - {REACHED}) > 1:
        table.pop(ANY, None)
    return table


def _complexity(entry: CorpusEntry) -> tuple[bool, bool, int]:
    """Sorts models: contrived ones last, before them those that read nothing; by their nodes."""
    return entry.way == CONTRIVED, not entry.feeds, _count_nodes(entry.model)


@lru_cache(maxsize=4096)
def _count_nodes(data: bytes) -> int:
    return sum(1 for _ in nodes_of(ModelProto.FromString(data).graph))


def _remove(table: _Table, name: str, way: _Way, index: int) -> None:
    table[name][way].remove(index)
    if not table[name][way]:
        del table[name][way]
    if not table[name]:
        del table[name]


def in_batches(
    recipes: Sequence[CandidateRecipe], size: int
) -> Iterator[tuple[int, tuple[CandidateRecipe, ...]]]:
    """The recipes in batches of ``size``, each with the index of its first."""
    for start in range(0, len(recipes), size):
        yield start, tuple(recipes[start : start + size])
