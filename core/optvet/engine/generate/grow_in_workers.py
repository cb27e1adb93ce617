"""Candidates made in workers, each from what the round before left to do."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np
from onnx import helper

from optvet.engine.generate.execute import Refused, executed
from optvet.engine.generate.grow import Grown, Plot, Unproductive, grow
from optvet.engine.hunt.vocabulary import read_vocabulary
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.walk import ONNX_DOMAIN, nodes_of, operator_of, qualified_name
from optvet.spec.generators import Fragment


@dataclass(frozen=True)
class Order:
    """A candidate to make.

    Attributes:
        seed: That of the request.
        number: Of the candidate; seed and number decide what is drawn.
        files: Of the vocabulary.
        config: The runtime.
        opset: Version of ONNX's own operators.
        operators: Those that may be used; None for all.
        avoided: Operators that ended workers.
        wanted: Operators that it is to have.
        weights: How readily each operator is drawn besides.
        nodes: The fewest and the most.
        excluded: Operators that it must not have.
        excluded_types: Element types that no value of it may have.
        logged: The file that names the operator that is being tried.
    """

    seed: int
    number: int
    files: tuple[Path, ...]
    config: RuntimeConfig
    opset: int
    operators: frozenset[str] | None
    avoided: frozenset[str]
    wanted: tuple[str, ...]
    weights: Mapping[str, float]
    nodes: tuple[int, int]
    excluded: frozenset[str]
    excluded_types: frozenset[str]
    logged: Path


@dataclass(frozen=True)
class GenerationResult:
    """A model, or why there is none; with the CPU seconds that it took."""

    grown: Grown | None
    why: str
    seconds: float


def make(order: Order) -> GenerationResult:
    """Make one candidate. Called in a worker."""
    began = time.process_time()
    random = Random(f"{order.seed}/{order.number}")
    fragments = fragments_of(order.files, order.operators, order.avoided | order.excluded)

    def note(operator: str) -> None:
        order.logged.write_text(operator)

    plot = Plot(fragments, order.config, order.opset, note, order.excluded, order.excluded_types)
    least, most = order.nodes
    try:
        size = random.randint(least, most)
        grown = grow(plot, order.wanted, order.weights, size, most, random)
    except (Unproductive, Refused) as error:
        return GenerationResult(None, str(error), time.process_time() - began)
    return GenerationResult(grown, "", time.process_time() - began)


@lru_cache(maxsize=2)
def fragments_of(
    files: tuple[Path, ...], operators: frozenset[str] | None, avoided: frozenset[str]
) -> Mapping[str, Sequence[Fragment]]:
    """Fragments by the operators in them; those of one node alone, where an operator has such.

    So an operator is not drowned in the expansions of others that use it.
    """
    alone: dict[str, list[Fragment]] = {}
    among: dict[str, list[Fragment]] = {}
    for fragment in read_vocabulary(files).vocabulary.fragments:
        if fragment.functions:
            continue
        graph = helper.make_graph(fragment.nodes, "", [], [])
        names = {qualified_name(*operator_of(node)) for node in nodes_of(graph)}
        if names & avoided or (operators is not None and not names <= operators):
            continue
        for name in sorted(names):
            (alone if len(names) == 1 else among).setdefault(name, []).append(fragment)
    return among | alone


def newest_opset(config: RuntimeConfig, newest: int, oldest: int) -> int | None:
    """The latest version of ONNX's operators that the runtime takes; None if it takes none."""
    node = helper.make_node("Identity", ["x"], ["y"])
    for opset in range(newest, oldest - 1, -1):
        try:
            executed(config, [node], {}, {"x": np.ones(2, np.float32)}, ["y"], {ONNX_DOMAIN: opset})
        except Refused:
            continue
        return opset
    return None
