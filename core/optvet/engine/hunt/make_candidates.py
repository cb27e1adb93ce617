"""Making candidates: a recipe says of what, a random generator of its own says how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Literal

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto, helper

from optvet.engine.contract import other_returns
from optvet.engine.hunt.exhaustive import ExhaustiveDraws
from optvet.engine.hunt.suspicions import Complaint, Place, Rewrite
from optvet.engine.hunt.vocabulary import Stock
from optvet.graph.compose import candidate_of, fit_to_shape, join, type_of
from optvet.graph.types import infer_types
from optvet.spec.errors import OptvetError
from optvet.spec.generators import Candidate, Fragment, Mutator, Vocabulary

LARGEST_BYTES = 64 << 10
"""Limit of a serialized model: small ones are quick to judge, and are reduced quickly."""
_MOST_MUTATIONS = 3
_TRIES = 4
_WAYS = 12
"""In so many ways at most, what is drawn first may decide how many draws follow."""

Kind = Literal["sweep", "chain", "pattern", "corpus", "edit"]


class Spent(Exception):
    """A mutator has fewer variants than the one that was asked for."""


class BrokenMutator(Exception):
    """A mutator broke its contract. The candidate is lost, no more."""

    def __init__(self, complaint: Complaint) -> None:
        """What it did."""
        super().__init__(complaint.text)
        self.complaint = complaint


@dataclass(frozen=True)
class CandidateRecipe:
    """What a candidate is made of.

    Attributes:
        kind: "sweep", the fragment of this ``number``, as it is; "chain", random fragments;
            "pattern", fragments of ``operators``; "corpus", a model mutated at random; "edit", a
            model changed once, by the mutator of this ``number``, in its variant of this number.
        number: See ``kind``.
        variant: See ``kind``.
        entry: Index of the model in the corpus.
        operators: See ``kind``.
        model: Serialized, of kinds "corpus" and "edit".
        feeds: Its inputs.
        invented: Names that the optimizer gave to values that it made of it.
        rewrites: What fires on it.
        shown: What looks wrong on it already.
        way: How it was made; see ``CorpusEntry``.
    """

    kind: Kind
    number: int = 0
    variant: int = 0
    entry: int = -1
    operators: tuple[str, ...] = ()
    model: bytes = b""
    feeds: Mapping[str, np.ndarray] | None = None
    invented: tuple[str, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    shown: frozenset[Place] = frozenset()
    way: str = ""


@dataclass(frozen=True)
class MadeCandidate:
    """A candidate that can be tried: serialized, with its inputs, and how it was made."""

    model: bytes
    feeds: Mapping[str, np.ndarray]
    mutators: tuple[str, ...]


class CandidateMaker:
    """Makes candidates out of one vocabulary."""

    def __init__(self, stock: Stock, mutators: Sequence[Mutator]) -> None:
        self._vocabulary: Vocabulary = stock.vocabulary
        self._single = stock.single
        self._mutators = tuple(mutators)
        self._weights = [m.weight for m in self._mutators]

    def make(self, recipe: CandidateRecipe, random: Random) -> MadeCandidate | None:
        """A candidate; None where the recipe gives none that can be written down.

        Raises:
            BrokenMutator: A mutator raised an exception, or gave no candidate.
            Spent: There is no such variant of a single edit.
        """
        candidate = self._base(recipe, random)
        if candidate is None:
            return None
        used: list[str] = []
        if recipe.kind == "edit":
            chosen = [self._mutators[recipe.number]]
            random = draws = _draws_of(recipe)
        else:
            chosen, draws = self._draw(recipe, random), None
        for mutator in chosen:
            changed = self._mutate(mutator, candidate, recipe, random)
            if changed is not None:
                candidate = changed
                used.append(mutator.name)
        if draws is not None and draws.rest:
            if not self._has_later_variant(recipe, draws.ways):
                raise Spent
            return None
        if recipe.kind in ("corpus", "edit") and not used:
            return None
        data = complete(candidate)
        return None if data is None else MadeCandidate(data, candidate.feeds, tuple(used))

    def _mutate(
        self, mutator: Mutator, candidate: Candidate, recipe: CandidateRecipe, random: Random
    ) -> Candidate | None:
        vocabulary = replace(self._vocabulary, invented=recipe.invented)
        try:
            call = partial(mutator.mutate, candidate, vocabulary, random)
            return other_returns.check_mutated(mutator, call)
        except OptvetError as error:
            kind = type(error.__cause__ or error).__name__
            complaint = Complaint((f"mutator {mutator.name!r}", kind), str(error)[:300])
            raise BrokenMutator(complaint) from error

    def _has_later_variant(self, recipe: CandidateRecipe, ways: int) -> bool:
        """Whether another one of the ``ways`` to begin drawing has a variant left.

        Where that decides how many draws follow, the shorter way ends before the others do.
        """
        if ways > _WAYS:
            return False
        for number in range(recipe.variant + 1, recipe.variant + ways):
            candidate = self._base(recipe, Random())
            draws = _draws_of(replace(recipe, variant=number))
            if candidate is not None:
                self._mutate(self._mutators[recipe.number], candidate, recipe, draws)
                if not draws.rest:
                    return True
        return False

    def _draw(self, recipe: CandidateRecipe, random: Random) -> list[Mutator]:
        if recipe.kind == "sweep" or not self._mutators:
            return []
        few = 1 if recipe.kind == "corpus" else 0
        count = random.randint(few, _MOST_MUTATIONS)
        return random.choices(self._mutators, self._weights, k=count)

    def _base(self, recipe: CandidateRecipe, random: Random) -> Candidate | None:
        if recipe.kind in ("corpus", "edit"):
            return Candidate(ModelProto.FromString(recipe.model), dict(recipe.feeds or {}))
        fragments = self._vocabulary.fragments
        if not fragments:
            return None
        if recipe.kind == "sweep":
            return candidate_of(fragments[recipe.number % len(fragments)], random)
        if recipe.kind == "pattern":
            return self._pattern(recipe.operators, random)
        chosen = random.choices(fragments, k=random.randint(1, 4))
        return self._chain([[f] for f in chosen], random)

    def _pattern(self, operators: Sequence[str], random: Random) -> Candidate | None:
        fragments = self._vocabulary.fragments
        if not all(name in self._single for name in operators):
            return None
        tries = [
            [fragments[random.choice(self._single[n])] for _ in range(_TRIES)] for n in operators
        ]
        chosen = [random.choice(tries[-1])]
        for options in reversed(tries[:-1]):
            chosen.insert(0, _before(chosen[0], options, random))
        return self._chain([[f] for f in chosen], random)

    def _chain(self, choices: Sequence[Sequence[Fragment]], random: Random) -> Candidate | None:
        """One fragment of each of ``choices``, the next behind the one before where it fits."""
        candidate = candidate_of(random.choice(choices[0]), random)
        for options in choices[1:]:
            tried = (random.choice(options) for _ in range(_TRIES))
            found = next((c for f in tried if (c := join(candidate, f, random))), None)
            if found is None:
                # A part of the pattern is worth a try too.
                return candidate
            candidate = found
        return candidate


def _draws_of(recipe: CandidateRecipe) -> ExhaustiveDraws:
    return ExhaustiveDraws(recipe.variant, f"{recipe.entry}/{recipe.number}")


def _before(follower: Fragment, options: Sequence[Fragment], random: Random) -> Fragment:
    """One of ``options`` that makes what ``follower`` reads, if need be for another shape."""
    wanted = {(type_of(v), v.shape) for v in follower.inputs.values()}
    for option in options:
        if any((type_of(v), v.shape) in wanted for v in option.outputs.values()):
            return option
    if not wanted:
        return options[0]
    elements = {element for element, _ in wanted}
    first = next(iter(follower.inputs.values())).shape
    for option in options:
        if any(type_of(v) in elements for v in option.outputs.values()):
            if (fitted := fit_to_shape(option, first, random)) is not None:
                return fitted
    return options[0]


def complete(candidate: Candidate) -> bytes | None:
    """The model with all types declared; None if it is no whole model, or a large one.

    Inputs are declared as their values are, except for dimensions that are declared as open, and
    outputs as they are inferred, except for what they leave open. A declared inner value has its
    inferred type.
    """
    model = candidate.model
    weights = {t.name for t in model.graph.initializer}
    listed = {v.name for v in model.graph.input}
    if not listed <= weights | candidate.feeds.keys() or not model.graph.output:
        return None
    for name in candidate.feeds.keys() - listed:
        del candidate.feeds[name]
    for info in model.graph.input:
        if info.name in candidate.feeds:
            _declare(info, candidate.feeds[info.name])
    _clear_broken_names(candidate)
    declared = {o.name: o.type for o in model.graph.output}
    for output in model.graph.output:
        output.ClearField("type")
    typed = infer_types(model)
    if typed is None:
        return None  # an operator set or a nesting that onnx refuses
    inferred = typed.graph
    known = {
        t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in model.graph.initializer
    }
    known |= {v.name: v.type for v in model.graph.input}
    for output, found in zip(model.graph.output, inferred.output, strict=True):
        # Nothing is inferred of outputs that are inputs or weights.
        kind = known.get(output.name, found.type)
        if not kind.WhichOneof("value"):
            return None
        output.type.CopyFrom(_weaken(kind, declared[output.name]))
    if model.graph.value_info:
        wanted = {v.name for v in model.graph.value_info}
        del model.graph.value_info[:]
        inner = [v for v in inferred.value_info if v.name in wanted and v.HasField("type")]
        model.graph.value_info.extend(inner)
    data = model.SerializeToString()
    return data if len(data) <= LARGEST_BYTES else None


def _declare(info: ValueInfoProto, value: np.ndarray) -> None:
    denotation = info.type.denotation
    value_type = helper.make_tensor_type_proto(type_of(value), value.shape)
    info.type.CopyFrom(_weaken(value_type, info.type))
    info.type.denotation = denotation


def _clear_broken_names(candidate: Candidate) -> None:
    """Leave dimensions open whose name stands for another number elsewhere: one is one number."""
    sizes: dict[str, set[int]] = {}
    dims = [
        (dim, size)
        for info in candidate.model.graph.input
        if info.name in candidate.feeds
        for dim, size in zip(
            info.type.tensor_type.shape.dim, candidate.feeds[info.name].shape, strict=False
        )
        if dim.dim_param
    ]
    for dim, size in dims:
        sizes.setdefault(dim.dim_param, set()).add(size)
    for dim, _ in dims:
        if len(sizes[dim.dim_param]) > 1:
            dim.Clear()


def _weaken(inferred: onnx.TypeProto, declared: onnx.TypeProto) -> onnx.TypeProto:
    """``inferred``, with the dimensions left open that ``declared`` leaves open."""
    if not (inferred.HasField("tensor_type") and declared.HasField("tensor_type")):
        return inferred
    if not declared.tensor_type.elem_type:  # nothing was declared
        return inferred
    if not declared.tensor_type.HasField("shape"):
        inferred.tensor_type.ClearField("shape")
        return inferred
    dims, was = inferred.tensor_type.shape.dim, declared.tensor_type.shape.dim
    if len(dims) == len(was):
        for dim, old in zip(dims, was, strict=True):
            if not old.HasField("dim_value"):
                dim.CopyFrom(old)
            dim.denotation = old.denotation
    return inferred
