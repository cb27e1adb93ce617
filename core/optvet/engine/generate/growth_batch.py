"""Grow one synthetic model in a worker process; any operator may crash the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np
from onnx import helper

from optvet.engine.generate.execute import Refused, executed
from optvet.engine.generate.grow import Grown, Plot, Unproductive, grow
from optvet.engine.hunt.progress_log import ProgressLog, StepLimit
from optvet.engine.hunt.vocabulary import read_vocabulary
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.graph.walk import ONNX_DOMAIN, nodes_of, operator_of, qualified_name
from optvet.spec.generators import Fragment

_WORDS = 200
_NO_LIMIT = StepLimit()
"""Of a step, since a fragment takes milliseconds; the sandbox limits the whole."""


@dataclass(frozen=True)
class Growth:
    """What became of a model that was to grow.

    Attributes:
        opset: Its version of ONNX's own operators.
        nodes: The fewest and the most that it was to have.
        grown: The model; None if there is none.
        why: Why there is none.
        refused: Why operators are not in it that it was to have.
    """

    opset: int
    nodes: tuple[int, int]
    grown: Grown | None = None
    why: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """Whether the model was generated."""
        return self.grown is not None


@dataclass(frozen=True)
class GrowthBatch:
    """One model to grow. A batch of its own, so that each has the whole time limit of a task.

    Attributes:
        seed: That of the request.
        first: The model's number; seed and number decide what is drawn.
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
        place: Where its files lie; see ``Batch``.
    """

    seed: int
    first: int
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
    place: Path
    count: int = 1
    limit: StepLimit = _NO_LIMIT
    record: type[Growth] = Growth

    @contextmanager
    def opened(self, log: ProgressLog) -> Iterator[Callable[[int], Growth]]:
        """What grows the model. Called in a worker."""
        fragments = fragments_of(self.files, self.operators, self.avoided | self.excluded)
        yield lambda index: self._grow(fragments, log)

    def _grow(self, fragments: Mapping[str, Sequence[Fragment]], log: ProgressLog) -> Growth:
        random = Random(f"{self.seed}/{self.first}")
        tried = ""
        log.note("grow", ())

        def note(operator: str) -> None:
            nonlocal tried
            tried = operator
            # Before it runs: if it ends the worker, the log says which one it was.
            log.note("grow", (operator,))

        plot = Plot(fragments, self.config, self.opset, note, self.excluded, self.excluded_types)
        least, most = self.nodes
        try:
            size = random.randint(least, most)
            grown = grow(plot, self.wanted, self.weights, size, most, random)
        except (Unproductive, Refused) as error:
            return Growth(self.opset, self.nodes, why=str(error))
        except MemoryError:
            raise  # the sandbox tells it from other errors, and ends the worker
        except Exception as error:
            # Fragments come from plugins too: one that breaks what reads it costs its model.
            words = f"{type(error).__name__}: {error}"[:_WORDS]
            return Growth(self.opset, self.nodes, why=words, refused={tried: words})
        return Growth(self.opset, self.nodes, grown, refused=grown.refused)

    def after_death(self, results: Sequence[object]) -> GrowthBatch:
        """Nothing is left of it; what ended the worker is avoided from the next round on."""
        return self


@lru_cache(maxsize=2)
def fragments_of(
    files: tuple[Path, ...], operators: frozenset[str] | None, avoided: frozenset[str]
) -> Mapping[str, Sequence[Fragment]]:
    """Fragments by the operators in them; those of one node alone, where an operator has such.

    So an operator is not drowned in the expansions of others that use it.
    """
    # Asked for by every model of a worker, and the same for most of a round.
    alone: dict[str, list[Fragment]] = {}
    among: dict[str, list[Fragment]] = {}
    for fragment in read_vocabulary(files).vocabulary.fragments:
        # Functions of a model would have to be renamed and merged; the pools have few.
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
