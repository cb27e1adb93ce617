"""What generators provide: pieces of models, and changes of models, for ``optvet hunt``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, runtime_checkable

import numpy as np
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from optvet.spec.types import Pass
from optvet.spec.words import summarize_arrays

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Fragment:
    """A few connected nodes with the values that they read and make.

    Attributes:
        name: Where it comes from, such as the name of a test.
        nodes: In topological order; they read nothing but ``inputs`` and each other.
        inputs: A value for every name that the nodes read from outside.
        outputs: The values of some names that the nodes make, as a run gave them.
        opsets: Version by domain; ONNX's own domain is "ai.onnx".
        functions: Functions of the model that the nodes call.
        weights: Names of ``inputs`` that are constants where the fragment comes from; if it names
            some, models of the fragment mostly have the same. If it names none, chance decides.
        open_sizes: Of inputs, the axes whose sizes the model leaves open, and what it calls them.
    """

    name: str
    nodes: tuple[NodeProto, ...]
    inputs: Values
    outputs: Values
    opsets: Mapping[str, int]
    functions: tuple[FunctionProto, ...] = ()
    weights: frozenset[str] = frozenset()
    open_sizes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pattern:
    """Operators to chain, in this order, because a pass may look for them.

    Attributes:
        operators: Names of operators of ONNX's own domain.
        about: Name of the pass; models of the pattern are made until it has changed one.
    """

    operators: tuple[str, ...]
    about: str


@dataclass
class Candidate:
    """A model to be tried, and inputs for it.

    Attributes:
        model: Whole and serializable, at most 64 KiB.
        feeds: A value for each input that has no initializer.
    """

    model: ModelProto
    feeds: dict[str, np.ndarray]

    def __repr__(self) -> str:
        operators = " ".join(node.op_type for node in self.model.graph.node[:8])
        return f"<Candidate: {operators}, {summarize_arrays(self.feeds)}>"


@dataclass(frozen=True)
class Vocabulary:
    """What all pools gave, for composing and mutating models.

    Attributes:
        fragments: In the order of the pools.
        patterns: In the order of the pools.
        attributes: Values of attributes in fragments, by domain, operator and attribute; each once.
        invented: Names that the optimizer gave to values that it made of the candidate.
    """

    fragments: Sequence[Fragment]
    patterns: Sequence[Pattern] = ()
    attributes: Mapping[tuple[str, str, str], tuple[AttributeProto, ...]] = field(
        default_factory=dict
    )
    invented: Sequence[str] = ()


@dataclass(frozen=True)
class PoolRequest:
    """What a pool is asked for.

    Attributes:
        argument: The part after the colon of ``--pool NAME:ARGUMENT``; None without one.
        passes: Passes of the optimizer that is hunted in.
        seed: Seed of all random choices.
        limit: Maximal number of fragments.
        values: Runs a serialized model on the given inputs; all values by name, also inner ones.
    """

    argument: str | None
    passes: Sequence[Pass]
    seed: int
    limit: int
    values: Callable[[bytes, Values], Values]


@runtime_checkable
class Generator(Protocol):
    """A pool or a mutator.

    Attributes:
        name: Unique among generators, pools and mutators together.
    """

    name: str


@runtime_checkable
class Pool(Generator, Protocol):
    """A source of fragments and patterns; ``optvet hunt --pool NAME`` or ``NAME:ARGUMENT``.

    Attributes:
        needs_argument: Whether it gives nothing without an argument; other pools are used if the
            user names none.
    """

    needs_argument: bool

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        """Fragments and patterns, the same for the same request.

        Called once per hunt, in a worker process. Fragments of more than 20,000 elements in one
        value are left out by the caller.

        Raises:
            UsageError: The argument cannot be used.
        """
        ...


@runtime_checkable
class Mutator(Generator, Protocol):
    """One kind of change of a model.

    Attributes:
        weight: How often it is used, relative to other mutators; 1 for most.
    """

    weight: float

    def mutate(
        self, candidate: Candidate, vocabulary: Vocabulary, random: Random
    ) -> Candidate | None:
        """A changed model; None if there is nothing to change.

        Called in a worker process, very often. ``candidate`` is the mutator's own and may be
        changed in place. The result may be invalid: the caller checks and runs it. Equal arguments
        give equal results, so that all randomness comes from ``random``: of its methods ``choice``,
        ``random``, ``randrange`` and ``sample`` are also driven through all that they can give.
        """
        ...


class MutatorExtras:
    """Optional members of a mutator."""

    prepares: bool = False
    """Whether models that it has changed are worth changing further: they are kept as seeds.

    Single changes find most around models whose wrong results show: with equal dimensions a wrong
    axis is no error of shapes, with different weights a wrong order is no equal result.
    """
