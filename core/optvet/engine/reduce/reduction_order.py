"""The order in which reductions are tried.

Coarse first: on a model of hundreds of nodes, two bisections leave the few nodes between the ends
of the interesting region; then chunks; then every single node in every way. The remaining graph is
simplified. All of it is repeated until no step succeeds: a step that failed may succeed on a
smaller graph.

All candidates pass through ``_Reducer.offer``, which guarantees that none is tested twice, and that
an accepted candidate is smaller and interesting.

Source: Zeller and Hildebrandt 2002 (ddmin); the passes over single parts are as in C-Reduce
(Regehr et al. 2012) and shrinkray.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import ModelProto, TypeProto

from optvet.engine.reduce import (
    plain_parts,
    remove,
    simplify,
    simplify_dimensions,
    simplify_names,
    unfold,
)
from optvet.engine.reduce.graph import Graph, Recorded, Size
from optvet.graph.types import (
    agrees,
    correct_declaration,
    has_negative,
    inferred_types,
    type_of_array,
)
from optvet.spec.errors import UsageError

Feeds = Mapping[str, np.ndarray]
Progress = Callable[[str, int, int | None], None]
Recorder = Callable[[ModelProto, Feeds], "Mapping[str, np.ndarray] | None"]
"""Returns all values of a model by name, including inner ones; None if it does not run."""

TypeInference = Callable[[ModelProto, bool], "Mapping[str, TypeProto] | None"]


def infer_here(model: ModelProto, strict: bool) -> Mapping[str, TypeProto] | None:
    """``inferred_types``, in this process."""
    return inferred_types(model, strict=strict)


_BATCH = 8
_MANY = 64
"""Stretches are substituted in graphs up to this size: the number of pairs grows as its square."""


class ReductionCandidate:
    """A model and its inputs; the model is built when it is first used."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @property
    def model(self) -> ModelProto:
        """The model; do not change it."""
        return self._graph.model

    @property
    def feeds(self) -> dict[str, np.ndarray] | None:
        """Inputs by name; None if the condition does not run the model."""
        return None if self._graph.feeds is None else self._graph.arrays

    @property
    def nodes(self) -> int:
        """Number of nodes, including those of subgraphs and functions."""
        return self._graph.size[0]

    @property
    def size(self) -> Size:
        """The measure of size; every accepted candidate has a smaller one."""
        return self._graph.size

    @property
    def digest(self) -> bytes:
        """Digest of model and inputs."""
        return self._graph.digest


Interesting = Callable[[Sequence[ReductionCandidate]], Iterable[bool]]
"""Answers for candidates in their order; read only up to the first True, so it may be lazy."""


@dataclass(frozen=True)
class Budget:
    """When to stop with the best so far: after so many checks, or seconds of wall clock."""

    checks: int | None = None
    seconds: float | None = None


End = Literal["done", "budget", "interrupted"]


@dataclass(frozen=True)
class Reduction:
    """The answer.

    Attributes:
        model: The smallest interesting model that was found.
        feeds: Its inputs.
        nodes: Numbers of nodes before and after, including those of subgraphs and functions.
        checks: Number of tests of the condition.
        steps: Number of accepted candidates.
        end: Why it ended: no step succeeds any more, the budget is used up, or Ctrl-C.
    """

    model: ModelProto
    feeds: dict[str, np.ndarray] | None
    nodes: tuple[int, int]
    checks: int
    steps: int
    end: End

    @property
    def complete(self) -> bool:
        """Whether it ended because no step succeeds any more."""
        return self.end == "done"


Effort = Literal["nodes", "full"]


def reduce_model(
    model: ModelProto,
    feeds: Feeds | None,
    interesting: Interesting,
    *,
    record: Recorder | None = None,
    types: Mapping[str, TypeProto] | None = None,
    infer: TypeInference = infer_here,
    effort: Effort = "full",
    width: int = 1,
    budget: Budget | None = None,
    progress: Progress = lambda text, done, total: None,
    clock: Callable[[], float] = time.monotonic,
) -> Reduction:
    """Find a model, as small as possible, that is still interesting.

    Deterministic if ``interesting`` and ``record`` are. ``KeyboardInterrupt`` ends it early with
    the best model so far; it is raised if the original model was not tested yet.

    Args:
        model: The model to reduce; it is not changed, and must not be while this runs.
        feeds: Inputs by name. None if the condition looks at the graph alone: nothing is run
            then, and types come from ``types``, or else from ``infer``.
        interesting: Tests candidates; see ``Interesting``. The candidates of one call are
            independent and can be tested in parallel.
        record: Runs the reference with all values as outputs. This gives the types and contents of
            new inputs.
        types: Known types of inner values, by name.
        infer: Infers types of a model, strictly or not. onnx does in this process if it is left
            out: native code, which must not read a foreign model here.
        effort: "nodes" stops when no node can be removed; "full" simplifies the rest as well.
        width: Number of cuts that are tried at the same time in a bisection.
        budget: When to stop.
        progress: Called with what is being done, checks so far, and None.
        clock: Seconds; for the budget.

    Raises:
        UsageError: ``model`` itself is not interesting.
    """
    reducer = _Reducer(
        Graph.of_model(model, feeds), interesting, record, types, width, budget or Budget(), clock
    )
    reducer.infer, reducer.progress = infer, progress
    return reducer.run(effort)


class _Stop(Exception):
    """The budget is used up."""


class _Reducer:
    """The state of a reduction: the best graph so far, and the steps that improve it."""

    def __init__(
        self,
        graph: Graph,
        interesting: Interesting,
        record: Recorder | None,
        types: Mapping[str, TypeProto] | None,
        width: int,
        budget: Budget,
        clock: Callable[[], float],
    ) -> None:
        self.best = graph
        self.interesting, self.record, self.types = interesting, record, types
        self.width, self.budget, self.clock = max(1, width), budget, clock
        self.progress: Progress = lambda text, done, total: None
        self.infer: TypeInference = infer_here
        self.began = clock()
        self.checks = self.steps = 0
        self.doing = "checking"
        self.strict = True
        self._seen: set[bytes] = set()
        self._typed: set[bytes] = set()

    def run(self, effort: Effort) -> Reduction:
        before = self.best.size[0]
        self._begin()
        end: End = "done"
        try:
            self._ends()
            while True:
                steps = self.steps
                self._remove_nodes()
                if effort == "full":
                    self._make_plain()
                if self.steps == steps:
                    break
        except _Stop:
            end = "budget"
        except KeyboardInterrupt:
            end = "interrupted"
        best = self.best
        model = ModelProto()
        model.CopyFrom(best.model)
        feeds = None if best.feeds is None else dict(best.arrays)
        return Reduction(model, feeds, (before, best.size[0]), self.checks, self.steps, end)

    def _begin(self) -> None:
        candidate = ReductionCandidate(self.best)
        self._seen.add(self.best.digest)
        self.checks += 1
        if not next(iter(self.interesting([candidate])), False):
            raise UsageError("the model does not satisfy the condition; there is nothing to reduce")
        known = self._record_values(self.best)
        if known is None:
            # A model that strict inference refuses may still be interesting; the types that can be
            # inferred are enough for most cuts.
            self.strict = False
            known = self._record_values(self.best)
        if known is not None:
            self.best = self.best.with_(recorded=known)

    # --- offering ----------------------------------------------------------------------------

    def offer(self, candidates: Iterable[Graph | None], *, stale: bool = False) -> bool:
        """Test candidates in batches until one is interesting, which becomes the best.

        Args:
            candidates: Read lazily; None is skipped.
            stale: The types of values may have changed, and must be inferred again.
        """
        fresh = iter(self._worthwhile(candidates, stale=stale))
        while batch := list(itertools.islice(fresh, _BATCH)):
            if self._try_batch(batch):
                return True
        return False

    def _worthwhile(self, candidates: Iterable[Graph | None], *, stale: bool) -> Iterator[Graph]:
        offered: set[bytes] = set()
        for graph in candidates:
            if graph is None or not graph.size < self.best.size or graph.digest in self._typed:
                continue
            typed: Graph | None = graph
            if stale:
                self._typed.add(graph.digest)
                typed = self._infer_types(graph)
            if typed is None or not typed.size < self.best.size:
                continue
            if typed.digest not in self._seen and typed.digest not in offered:
                offered.add(typed.digest)
                yield typed

    def _try_batch(self, batch: Sequence[Graph]) -> bool:
        self._check_budget()
        answers = iter(self.interesting([ReductionCandidate(graph) for graph in batch]))
        try:
            for graph, answer in zip(batch, answers, strict=False):
                self._seen.add(graph.digest)
                self.checks += 1
                self.progress(self.doing, self.checks, None)
                if answer:
                    self.best = graph
                    self.steps += 1
                    return True
                self._check_budget()
        finally:
            close = getattr(answers, "close", None)
            if close is not None:
                close()
        return False

    def _check_budget(self) -> None:
        budget = self.budget
        if budget.checks is not None and self.checks >= budget.checks:
            raise _Stop
        if budget.seconds is not None and self.clock() - self.began >= budget.seconds:
            raise _Stop

    # --- types -------------------------------------------------------------------------------

    def _record_values(self, graph: Graph) -> Recorded | None:
        """Types and values of all values of ``graph``; None if it does not run or type-check."""
        if graph.feeds is None or self.record is None:
            types = self.infer(graph.model, self.strict)
            if types is None:
                return None
            return Recorded({**(self.types or {}), **types})
        values = self.record(graph.model, graph.arrays)
        if values is None:
            return None
        known = {**values, **graph.arrays}
        types = dict(self.types or {})
        for name, array in known.items():
            kind = type_of_array(array)
            # Dimensions that shape inference left unknown stay so, as for the optimizer.
            if kind is not None and not (name in types and agrees(types[name], kind)):
                types[name] = kind
        return Recorded(types, known)

    def _infer_types(self, graph: Graph) -> Graph | None:
        """``graph`` with the types of outputs and inner values inferred again."""
        # The declared types of inner values and outputs may be wrong now.
        untyped = {name: TypeProto() for name in graph.outputs}
        known = self._record_values(graph.with_(outputs=untyped, value_info={}))
        if known is None or not known.types.keys() >= graph.outputs.keys():
            return None
        outputs = {n: _now(k, known.types.get(n)) for n, k in graph.outputs.items()}
        inner = {n: _now(k, known.types.get(n)) for n, k in graph.value_info.items()}
        if any(map(has_negative, outputs.values())):
            return None
        return graph.with_(
            outputs=outputs,
            value_info={n: k for n, k in inner.items() if n in graph.producer},
            recorded=known,
        )

    # --- nodes -------------------------------------------------------------------------------

    def _ends(self) -> None:
        """Find the shortest interesting prefix, then the shortest interesting suffix of that.

        Bisection assumes that a part which contains an interesting part is interesting; if that is
        not so, it still ends at some interesting part.
        """
        self.doing = "cutting out"
        for part in (remove.first_nodes, remove.last_nodes):
            self._bisect(part)

    def _bisect(self, part: Callable[[Graph, int], Graph | None]) -> None:
        whole = self.best
        low, high = 0, len(whole.nodes)
        while high - low > 1:
            step = (high - low) / (self.width + 1)
            counts = sorted(
                {min(high - 1, low + max(1, round(step * (i + 1)))) for i in range(self.width)}
            )
            cuts = {n: part(whole, n) for n in counts}
            before = self.best
            # Ascending: a longer part is tested only if the shorter ones failed.
            self.offer(g for g in cuts.values() if g is not None)
            if self.best is before:
                low = counts[-1]
            else:
                high = next(n for n, g in cuts.items() if g is self.best)
                low = max([n for n in counts if n < high], default=low)

    def _remove_nodes(self) -> None:
        while True:
            steps = self.steps
            self._chunks()
            self.doing = "unfolding"
            while self.offer(unfold.unfold(self.best), stale=True):
                pass
            self.doing = "removing stretches"
            while len(self.best.nodes) <= _MANY and self.offer(remove.collapse_values(self.best)):
                pass
            self._singles()
            self.doing = "reducing subgraphs"
            while self.offer(unfold.smaller_bodies(self.best), stale=True):
                pass
            self.doing = "dropping outputs"
            while self.offer(simplify.fewer_outputs(self.best)):
                pass
            if self.steps == steps:
                return

    def _chunks(self) -> None:
        """Remove chunks of nodes, halves first, from the end: consumers before producers."""
        self.doing = "removing chunks"
        size = len(self.best.nodes) // 2
        while size > 1:
            end = len(self.best.nodes)
            while end > 0 and len(self.best.nodes) > 1:
                chunk = range(max(0, end - size), end)
                if len(chunk) == len(self.best.nodes):
                    break
                count = len(self.best.nodes)
                if self.offer(remove.without_chunk(self.best, chunk)):
                    # More or less than the chunk may have been removed; continue below it.
                    end = min(chunk.start, len(self.best.nodes))
                    end = max(end, 0) if count > len(self.best.nodes) else chunk.start
                else:
                    end = chunk.start
            size = min(size // 2, len(self.best.nodes) // 2)

    def _singles(self) -> None:
        self.doing = "removing nodes"
        index = len(self.best.nodes) - 1
        while index >= 0:
            self.offer(remove.without_node(self.best, index))
            # After a removal the index holds another node, which has been tried unless it is new.
            index = min(index, len(self.best.nodes)) - 1

    # --- what is left ------------------------------------------------------------------------

    def _make_plain(self) -> None:
        plan: Sequence[tuple[str, Callable[[Graph], Iterator[Graph | None]], bool]] = (
            ("cleaning", simplify_names.cleaner, False),
            ("dropping arguments", simplify.fewer_arguments, True),
            ("substituting plain operators", plain_parts.plain_operators, True),
            ("renaming functions", plain_parts.functions_of_their_own, False),
            ("writing the usual form", plain_parts.plain_form, False),
            ("renaming values", simplify_names.one_short_name, False),
            ("shrinking dimensions", simplify_dimensions.smaller_dimensions, True),
            ("fixing dimensions", simplify_dimensions.concrete_dimensions, True),
            ("merging inputs", simplify.merged_inputs, False),
            ("dropping attributes", simplify.fewer_attributes, True),
            ("feeding weights", simplify.feed_weights, False),
            ("simplifying contents", simplify.plainer_contents, True),
            ("cleaning", simplify_names.cleaner, False),
        )
        for self.doing, step, stale in plan:
            while self.offer(step(self.best), stale=stale):
                pass


def _now(declared: TypeProto, seen: TypeProto | None) -> TypeProto:
    return declared if seen is None else correct_declaration(declared, seen)
