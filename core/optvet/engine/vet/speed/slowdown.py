"""Which passes make a model slower, and why.

::

    the whole pipeline is slower than the original
      ├─ import and export alone, timed against the original: slower? twice? ── yes ─→ blamed
      └─ the pipeline, timed against import and export alone: slower?
            └─ yes ─→ search the passes ─→ a minimal sequence, timed once more in new processes
                          ↑                        └─ blamed; its last pass leaves the pipeline
                          └── still slower? ───────────────┘

Passes are timed against import and export, not against the original: what import and export cost is
never blamed on a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from optvet.engine.vet.find.blame import blame
from optvet.engine.vet.properties.slower import Slower, answer_of
from optvet.engine.work.timing.stopwatch import Passes, Stopwatch, Timed
from optvet.engine.work.trials.placement import find_placement
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph import structure
from optvet.graph.structure import Facts
from optvet.spec.records.placement import Placement
from optvet.spec.request import Strategy
from optvet.spec.types import Sample

_MOST_CULPRITS = 4
_LISTED = 3
_SHARE = 0.1


@dataclass(frozen=True)
class Blamed:
    """A culprit of a slowdown, confirmed by a second timing.

    Attributes:
        culprit: The minimal pass sequence; empty for import and export alone.
        watch: The stopwatch of the second timing, which knows what was timed against what.
        timed: The second timing, of the culprit alone.
        reasons: What explains it, in words; empty if nothing was found.
    """

    culprit: Passes
    watch: Stopwatch
    timed: Timed
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inquiry:
    """Who is to blame for a slowdown.

    Attributes:
        blamed: The culprits.
        safe: The passes that are left without the culprits, if these are no slower than import and
            export alone; else None.
        undecided: Why nobody, or not everybody, could be blamed; empty if that is not so.
    """

    blamed: tuple[Blamed, ...]
    safe: Passes | None
    undecided: str = ""


def inquire(runner: TrialRunner, watch: Stopwatch, pipeline: Passes, strategy: Strategy) -> Inquiry:
    """Find who is to blame for a slowdown of ``pipeline``.

    Args:
        runner: Makes trials of pass sequences, under the runtime's options that ``watch`` times.
        watch: Times pass sequences; it found ``pipeline`` slower.
        pipeline: The passes.
        strategy: Of the search; "auto" chooses by the optimizer's traits.
    """
    blamed: list[Blamed] = []
    empty, undecided = runner.case.passes.base, ""
    if watch.base is None:
        first = watch.time(empty)
        answer = answer_of(first, watch.threshold)
        if answer == "fails":
            again = watch.again(empty)
            answer = answer_of(again, watch.threshold)
            if answer == "fails":
                blamed.append(Blamed((), watch, again, explain(runner, watch, empty)))
        if answer == "unresolved" or (answer == "passes" and first.call == "slower"):
            undecided = "whether import and export alone are slower is within the noise"
    within = watch.against(empty)
    left, more, unsure = _search(runner, within, pipeline, strategy)
    blamed += more
    if not blamed and not (undecided or unsure):
        undecided = (
            f"neither import and export alone nor the passes beside them are slower by more than "
            f"{watch.threshold:.0%}; it takes both"
        )
    return Inquiry(tuple(blamed), left, unsure or ("" if more else undecided))


def _search(
    runner: TrialRunner, watch: Stopwatch, pipeline: Passes, strategy: Strategy
) -> tuple[Passes | None, list[Blamed], str]:
    """The passes that are left, the culprits, and what could not be decided.

    ``watch`` compares with the empty pipeline.
    """
    table, blamed = runner.case.passes, list[Blamed]()
    while True:
        answer = answer_of(watch.time(pipeline, sequential=True), watch.threshold)
        if answer == "passes":
            return pipeline, blamed, ""
        if answer == "unresolved":
            return None, blamed, "whether the passes that are left are slower is within the noise"
        if len(blamed) == _MOST_CULPRITS:
            return None, blamed, f"more passes are slower; stopped after {_MOST_CULPRITS} culprits"
        culprit = blame(runner, pipeline, Slower(watch), strategy)
        applied = table.complete(culprit)
        again = watch.again(applied)
        if answer_of(again, watch.threshold) != "fails":
            names = " then ".join(culprit)
            return None, blamed, f"{names} seemed slower, and not when timed once more"
        blamed.append(Blamed(culprit, watch, again, explain(runner, watch, applied)))
        optional = [name for name in culprit if name not in table.required]
        if not optional or strategy == "none":
            return None, blamed, ""
        pipeline = tuple(name for name in pipeline if name != optional[-1])


# --- why ------------------------------------------------------------------------------------------


def explain(runner: TrialRunner, watch: Stopwatch, passes: Passes) -> tuple[str, ...]:
    """Explain a slowdown by the structure and the runtime's own profile, in a few lines."""
    reasons = []
    before, after = watch.facts(watch.base), watch.facts(passes)
    if before is not None and after is not None:
        reasons += of_structure(before, after)
    reasons += _of_profile(runner, watch, passes)
    return tuple(reasons)


def of_structure(before: Facts, after: Facts) -> list[str]:
    """Changes of the structure that are known to cost time."""
    reasons = []
    more = structure.more_replaceable(before, after)
    if more > 0:
        reasons.append(
            f"{more} weights became graph inputs that a caller may "
            "replace (since IR version 4), so the runtime neither folds nor pre-packs them; take "
            "the weights out of the graph inputs before optimizing"
        )
    change = Counter(after.operators)
    change.subtract(before.operators)
    added = [(amount, name) for name, amount in change.items() if amount > 0]
    if after.nodes > before.nodes and added:
        names = ", ".join(f"{amount:+} {name}" for amount, name in sorted(added)[-_LISTED:][::-1])
        reasons.append(f"{before.nodes} nodes became {after.nodes}: {names}")
    return reasons


def _of_profile(runner: TrialRunner, watch: Stopwatch, passes: Passes) -> list[str]:
    samples: Sequence[Sample] = watch.samples
    deployed = runner.on(watch.case)
    sides = [find_placement(deployed, side, samples) for side in (watch.base, passes)]
    before, after = sides
    if not isinstance(before, Placement) or not isinstance(after, Placement):
        return []
    return of_profiles(before, after)


def of_profiles(before: Placement, after: Placement) -> list[str]:
    """The operators whose time grew most, of those that grew by a tenth of the whole time.

    Times of single operators are told as the runtime's profiler gave them, once: they explain, and
    prove nothing.
    """
    was = {o.operator: o for o in before.operators}
    grown = []
    for operator in after.operators:
        old = was.get(operator.operator)
        more = operator.seconds - (old.seconds if old else 0.0)
        if more > _SHARE * before.seconds:
            had = f"{old.nodes} took {old.seconds * 1e3:.3g} ms" if old else "there were none"
            now = f"{operator.nodes} {operator.operator} take {operator.seconds * 1e3:.3g} ms"
            grown.append((more, f"{now}, where {had}"))
    lines = [words for _, words in sorted(grown, reverse=True)[:_LISTED]]
    return [f"by the runtime's profile, {'; '.join(lines)}"] if lines else []
