"""Which rewritten regions no sample exercised: what was not reached is not verified.

The original runs once more in the clean room, with the values as outputs that tell which side its
decisions take, sample by sample, until every rewritten region has shown all of its sides. Then both
models run with what their regions give as outputs: values that differ there, and that nothing shows
that follows, are *masked*, as by units that never are above 0; and so are changed numbers of which
even the region shows nothing, as weights of what is always 0.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from pydantic import TypeAdapter

from optvet.engine.vet.session import VetSession
from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.environment_fingerprint import fingerprint_environment
from optvet.engine.work.sandbox import enter
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.building import BuildSpec, build, saved_artifact
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import session_with
from optvet.graph.decisions import Decision, Region, name_of, rewritten_regions, unseen
from optvet.graph.types import inferred_types
from optvet.graph.walk import reads
from optvet.spec.extras import given
from optvet.spec.optimizer_protocols import LowersPrecision, OptimizerExtras
from optvet.spec.records.vet import Exercise, UnexercisedRegion
from optvet.spec.runtime_protocols import Session
from optvet.spec.types import Artifact, Sample

VERSION = 4
"""Increased when the meaning of a cached answer changes."""
MASKED = 5e-3
"""Values inside that move by this share of their size do not so by rounding."""
SHOWN = 1e-2
"""An output that moves by this share of that much shows it."""
_EXERCISE: TypeAdapter[Exercise] = TypeAdapter(Exercise)


@dataclass(frozen=True)
class ExerciseTask:
    """What a worker needs: the model before and after, what runs it, and the inputs.

    ``lossy``: values inside differ because they shall.
    """

    original: BuildSpec
    optimized: BuildSpec
    reference: RuntimeConfig
    feeds: tuple[Mapping[str, np.ndarray], ...]
    lossy: bool = False


def exercise(
    session: VetSession, passes: Sequence[str], samples: Sequence[Sample]
) -> Exercise | None:
    """What ``samples`` leave untried of what ``passes`` rewrite; None if they rewrite nothing."""
    runner, case = session.runner, session.case
    whole = case.optimizer.traits.produces == "onnx"
    hidden = not whole and not given(case.optimizer, OptimizerExtras.saved)
    original = runner.build_spec(None)
    if not set(passes) - case.passes.required or hidden or original.scratch is not None:
        return None
    before = runner.reference(samples).build
    after = runner.trial(passes, samples, "verify").build
    made = after.contents.computation
    if not made or made == before.contents.computation:
        return None
    digests = [runner.sample_digest(s) for s in samples]
    about = (runner.identity, list(passes), digests)
    key = cache_key.key("exercise", VERSION, fingerprint_environment(), *about)
    kept = runner.cache.read(key, _EXERCISE.validate_json, _EXERCISE.dump_json)
    if kept is not None:
        return kept
    task = ExerciseTask(
        original,
        runner.build_spec(passes),
        case.reference,
        tuple(s.feeds for s in samples),
        isinstance(case.optimizer, LowersPrecision),
    )
    runner.progress("looking for what inputs did not reach", 0, None)
    if whole:
        outcome = runner.submit(task.optimized, find_unexercised, task).result()
    else:
        outcome = runner.sandbox.call(find_in_saved, task, role="tested")
    if outcome.value is None:
        words = describe(outcome.failure) if outcome.failure else "no answer"
        return Exercise(note=f"could not be looked at: {' '.join(words.split())[:300]}")
    runner.ledger.add("exercise", applications=1, inferences=outcome.value.samples)
    runner.cache.put(key, "exercise", _EXERCISE.dump_json(outcome.value))
    return outcome.value


# --- in the worker --------------------------------------------------------------------------------


def find_in_saved(task: ExerciseTask) -> Exercise:
    """The regions of a format that can be saved as ONNX. Called in a worker."""
    enter("build")
    artifact = saved_artifact(task.optimized)
    if artifact is None:
        return Exercise(note="the optimizer makes a format whose graph is hidden")
    return find_unexercised(artifact, task)


def find_unexercised(artifact: Artifact, task: ExerciseTask) -> Exercise:
    """The regions that the inputs leave untried. Called in a worker."""
    before = onnx.load_from_string(build(task.original).data)
    after = onnx.load_from_string(artifact.data)
    enter("compare")
    regions = rewritten_regions(before, after)
    decisions = [d for region in regions for d in region.decisions]
    seen: list[set[Hashable]] = [set() for _ in decisions]
    count = _watch(before, decisions, seen, task) if decisions else 0
    rest = {id(d): unseen(d, s) for d, s in zip(decisions, seen, strict=True)}
    masked = {} if task.lossy else _masked(before, after, regions, task)
    untried = [
        (r, [f"{d.node} {d.words(rest[id(d)])}" for d in r.decisions if rest[id(d)]])
        for r in regions
    ]
    untried = [(r, why or masked.get(i, [])) for i, (r, why) in enumerate(untried)]
    return Exercise(
        regions=len(regions),
        samples=count,
        unexercised=[_record(before, region, why) for region, why in untried if why],
    )


def _watch(
    model: ModelProto,
    decisions: Sequence[Decision],
    seen: Sequence[set[Hashable]],
    task: ExerciseTask,
) -> int:
    """Add to ``seen`` what each decision shows, and return how many inputs that took."""
    order = _order(task)
    names, session = set[str](), None
    for number, feeds in enumerate(order):
        pairs = zip(decisions, seen, strict=True)
        left = {d.value for d, known in pairs if unseen(d, known)}
        if not left:
            return number
        if session is None or 2 * len(left) < len(names):
            enter("load")
            names, session = left, _session(model, left, task.reference)
        enter("run")
        values = {**feeds, **session.run(feeds)}
        for decision, known in zip(decisions, seen, strict=True):
            if decision.value in left:
                # What the runtime does not show is not said to be untried.
                value = values.get(decision.value)
                known.update(
                    decision.seen(value) if isinstance(value, np.ndarray) else decision.sides
                )
    return len(order)


def _order(task: ExerciseTask) -> list[Mapping[str, np.ndarray]]:
    # The last ones are the rarest: of few samples the first and the last tell most.
    return [*task.feeds[:1], *task.feeds[:0:-1]]


def _masked(
    before: ModelProto, after: ModelProto, regions: Sequence[Region], task: ExerciseTask
) -> dict[int, list[str]]:
    """By number, of which regions changes show in nothing, and in which way."""
    try:
        moved, same = _compared(before, after, regions, task)
    except Exception:  # what the runtime does not show is not said to be masked
        return {}
    nodes, behind = before.graph.node, set[str]()
    found = {i: [f"{name_of(nodes[regions[i].nodes[0]])} {_SAME}"] for i in same}
    for number, region in enumerate(regions):
        given = {name for i in region.nodes for name in reads(nodes[i])}
        results = [(i, name) for i, name in region.results if name in moved]
        # A region that gets other values than before is not the one that makes them others.
        if results and behind.isdisjoint(given):
            found[number] = [f"{name_of(nodes[i])} {_shown_nowhere(moved[n])}" for i, n in results]
            behind |= _behind(before, {name for _, name in results})
    return found


_SAME = "gives the same to the bit although it was changed"


def _shown_nowhere(move: float) -> str:
    return f"gives other values, by {move:.2g} of their size, that no output shows"


def _compared(
    before: ModelProto, after: ModelProto, regions: Sequence[Region], task: ExerciseTask
) -> tuple[dict[str, float], set[int]]:
    """Values that moved inside, while no output did, and which regions never gave others at all.

    The second are the numbers of those that read other numbers than before.
    """
    made = {name for node in after.graph.node for name in node.output}
    results = [[name for _, name in r.results if name in made] for r in regions]
    outputs = {o.name for o in before.graph.output}
    names = {name for those in results for name in those} | outputs
    moved: dict[str, float] = {}
    same = {i for i, r in enumerate(regions) if r.relearned and results[i]}
    if names == outputs and not same:
        return {}, same
    sessions = [_session(m, names - outputs, task.reference) for m in (before, after)]
    for number, feeds in enumerate(_order(task)):
        if number and not same:
            break
        was, now = (session.run(feeds) for session in sessions)
        moves = {name: _move(was[name], now[name]) for name in names & was.keys() & now.keys()}
        shown = max((moves.get(name, 0.0) for name in outputs), default=0.0)
        for name in moves.keys() - outputs:
            real = isinstance(was[name], np.ndarray) and was[name].dtype.kind == "f"
            if real and moves[name] > MASKED and shown < SHOWN * moves[name]:
                moved[name] = max(moves[name], moved.get(name, 0.0))
        same = {i for i in same if not any(moves.get(name, 0.0) for name in results[i])}
    return moved, same


def _move(was: Any, now: Any) -> float:
    """How far an array moved, relative to its size; infinitely where it is of another kind."""
    if not isinstance(was, np.ndarray) or not isinstance(now, np.ndarray):
        return 0.0 if str(was) == str(now) else np.inf
    if (was.shape, was.dtype) != (now.shape, now.dtype) or was.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(was, now) else np.inf
    a, b = was.astype(np.float64), now.astype(np.float64)
    known = np.isfinite(a) & np.isfinite(b)
    size, move = (float(np.linalg.norm(v[known])) for v in (a, b - a))
    return move / size if size else np.inf if move else 0.0


def _behind(model: ModelProto, names: Collection[str]) -> set[str]:
    """These values, and all that depend on them."""
    found = set(names)
    for node in model.graph.node:
        if not found.isdisjoint(reads(node)):
            found.update(name for name in node.output if name)
    return found


def _session(model: ModelProto, names: set[str], config: RuntimeConfig) -> Session:
    try:
        return session_with(model, names, config)
    except Exception:  # the runtime cannot return some value: ask for plain tensors only
        known = inferred_types(model, strict=False) or {}
        plain = {n for n, k in known.items() if k.WhichOneof("value") == "tensor_type"}
        return session_with(model, names & plain, config)


def _record(model: ModelProto, region: Region, why: Sequence[str]) -> UnexercisedRegion:
    nodes = [model.graph.node[i] for i in region.nodes]
    named = [n.name for n in nodes if n.name] or [n.output[0] for n in nodes]
    kinds = dict.fromkeys(n.op_type for n in nodes)
    return UnexercisedRegion(
        operators=" + ".join(kinds), node=named[0], nodes=len(nodes), why=list(dict.fromkeys(why))
    )
