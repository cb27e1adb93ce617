"""What follows from a round of models: rewrites, seeds, deaths, suspects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from optvet.engine.hunt.make_candidates import MadeCandidate
from optvet.engine.hunt.model_batch import AS_THEY_ARE, EDITED, without_new
from optvet.engine.hunt.outcome import CandidateOutcome
from optvet.engine.hunt.progress_log import LoggedStep
from optvet.engine.hunt.state import SPENT, CorpusEntry, HuntState, Sign, Suspect
from optvet.engine.hunt.suspects import is_needless, is_settled, of_one_pass
from optvet.engine.hunt.suspicions import (
    ANY,
    CONTRIVED,
    REACHED,
    UNSEEN,
    Rewrite,
    Suspicion,
    SuspicionKey,
    label_of,
    passes_of_key,
)
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.judge.failures import symptom_of
from optvet.spec.symptoms import Stage, Symptom
from optvet.spec.types import Failure

_OFTEN = 20
"""A pass that looked wrong on so many models, which were vetted, is tried on few."""


def avoided_passes(state: HuntState, tested: TestedOptimizer) -> frozenset[str]:
    """Passes that are tried on few models: they kill workers, or hide what others do.

    The latter are only known where passes are left out of a set to find the one that is wrong.
    """
    deadly = state.deadly_passes()
    if not tested.takes_sets:
        return frozenset(deadly)
    often = Counter[str]()
    for key, sign in state.signs.items():
        if len(key.passes) == 1 and is_settled(key, sign):
            often[key.passes[0]] += sign.seen
    return frozenset({*deadly} | {n for n, count in often.items() if count >= _OFTEN and n != ANY})


_SELDOM = 0.05
"""Share of the models up to which a pass is tried together with others."""
_OF_A_GROUP = 0.15
"""Share of the models that a group may change: then each of its passes is tried alone after all."""


def passes_together(state: HuntState, tested: TestedOptimizer) -> tuple[tuple[str, ...], ...]:
    """Groups of passes that change models seldom; none that may have killed a worker."""
    changed = Counter[str]()
    for rewrite, count in state.rewrites.items():
        changed[rewrite.label] += count
    limit = _SELDOM * state.valid
    deadly = {*state.alone, *state.deaths}
    few = [p for p in tested.each if changed[p] <= limit and p not in deadly]
    # Alike ones side by side: a model that one changes is often changed by the next.
    few.sort(key=lambda name: changed[name])
    groups: list[list[str]] = []
    total = 0
    for name in few:
        total += changed[name]
        if not groups or total > _OF_A_GROUP * state.valid:
            groups.append([])
            total = changed[name]
        groups[-1].append(name)
    return tuple(map(tuple, groups))


_EXAMPLES_OF_REWRITE = 8
"""A rewrite that so many models have shown without giving a seed, or another one, gets none."""
_SEEDS_OF_REWRITE = 3
"""Of different operators: what a pass does alike, it finds in different ways."""
_SEEDS_OF_UNSEEN = 8
"""Where the rewrite does not tell what a pass did, only the operators tell one way from another."""


def covered_rewrites(state: HuntState, tested: TestedOptimizer) -> frozenset[Rewrite]:
    """Rewrites that need no further seed."""
    named = tested.takes_sets  # which passes they are is asked once
    seeds = Counter(rewrite for rewrite, way in state.seeded if way != CONTRIVED)
    return frozenset(
        r
        for r, count in state.rewrites.items()
        if seeds[r] >= (_SEEDS_OF_UNSEEN if r.change == UNSEEN else _SEEDS_OF_REWRITE)
        or count >= (1 if named and r.label == ANY else _EXAMPLES_OF_REWRITE) * (1 + seeds[r])
    )


_SEEDS_OF_A_PASS = 16
"""A pass that removes whatever nothing reads does so in hundreds of ways, which say little."""
_SEEDS_WITH_NEW = 32
"""As many, if each of those beyond has an operator that is new for the pass."""
_SEEDS_OF_MANY = 6
"""Where what a pass does is only seen through what a whole pipeline does, nearly every model is a
new way: seeds would take all the time that is meant for changing them."""
_SEEDS_OF_EDITS = 2
"""Of these, as many may come of changing other models, which they resemble."""


def covered_passes(
    state: HuntState,
    tested: TestedOptimizer,
    prepared: frozenset[str] = frozenset(),
    *,
    edited: bool = False,
) -> frozenset[str]:
    """Passes that have seeds enough, or need none since nothing of what they make is compared.

    Args:
        state: What was learnt.
        tested: What is hunted in.
        prepared: Ways of seeds that do not count; mutators that prepare seeds.
        edited: Whether enough for models that come of changing other ones.
    """
    few = _SEEDS_OF_EDITS if edited else _SEEDS_OF_MANY
    most = few if prepared and tested.takes_sets else _SEEDS_OF_A_PASS
    return _passes_with(most, state, tested, prepared)


def full_passes(
    state: HuntState, tested: TestedOptimizer, prepared: frozenset[str]
) -> frozenset[str]:
    """Passes that need no further seed, not even one with operators that are new for them."""
    return _passes_with(_SEEDS_WITH_NEW, state, tested, prepared)


def _passes_with(
    most: int, state: HuntState, tested: TestedOptimizer, prepared: frozenset[str]
) -> frozenset[str]:
    uncounted = prepared | {CONTRIVED}
    counts = Counter(rewrite.label for rewrite, way in state.seeded if way not in uncounted)
    covered = {label for label, count in counts.items() if count >= most} - {ANY}
    covered |= {n for n, s in tested.excused.items() if Symptom.INTERFACE_CHANGE in s}
    # Where passes are known, what they do together says less.
    return frozenset(covered | {ANY} if tested.each or tested.takes_sets else covered)


def operators_of_seeds(state: HuntState) -> dict[str, frozenset[str]]:
    """Operators of the seeds of each pass; how a seed was made names them, or a mutator."""
    found: dict[str, frozenset[str]] = {}
    for rewrite, way in state.seeded:
        found[rewrite.label] = found.get(rewrite.label, frozenset()) | {*way.split()}
    return found


def learn(
    state: HuntState,
    results: Sequence[CandidateOutcome | LoggedStep],
    tested: TestedOptimizer,
    prepared: frozenset[str] = frozenset(),
) -> None:
    """Take the results of a round, in the order of the candidates.

    Args:
        state: Is changed.
        results: Of all candidates of the round.
        tested: What is hunted in.
        prepared: See ``covered_passes``.
    """
    # In order of the candidates: the state must not depend on which worker was quicker.
    found: dict[_Alike, Suspect] = {}
    for result in results:
        state.number += 1
        if isinstance(result, LoggedStep):
            _take_death(state, result, found)
        else:
            _take(state, result, found)
            _take_seeds(state, result, tested, prepared)
    # A hunt that is gone on with may still have suspects of the round before.
    waiting = {(s.key, s.edit) for s in state.suspects}
    state.suspects += [s for alike, s in found.items() if alike not in waiting]


_Alike = tuple[SuspicionKey, tuple[str, ...]]
"""A key, and an edit: of suspects that are equal in both one is enough."""


def _take(state: HuntState, outcome: CandidateOutcome, found: dict[_Alike, Suspect]) -> None:
    examined = outcome.examined
    state.tried.update(outcome.tried)
    # No variant was left: the candidate was planned, but never made.
    if outcome.spent is not None:
        index, mutator = outcome.spent
        state.edited[index][mutator] = SPENT
        return
    if outcome.complaint:
        state.complain(outcome.complaint)
    if examined is None or not examined.valid:
        return
    state.valid += 1
    state.refused += examined.refused
    state.rewrites.update(set(examined.rewrites))
    for suspicion in examined.suspicions:
        _suspect(state, suspicion, outcome, found)


def _take_seeds(
    state: HuntState, outcome: CandidateOutcome, tested: TestedOptimizer, prepared: frozenset[str]
) -> None:
    """Seeds of a candidate, unless others of the same round have been enough."""
    for seed in outcome.seeds:
        candidate = seed.candidate
        entry = CorpusEntry(
            candidate.model,
            candidate.feeds,
            seed.rewrites,
            seed.way,
            seed.invented,
            seed.shown,
        )
        # Lines of code are not counted by pass: one model for each new line is enough.
        if entry.way == REACHED:
            if not state.reached.issuperset(outcome.reached):
                state.entries.append(entry)
            continue
        new = [f for f in entry.rewrites if (f, entry.way) not in state.seeded]
        edited = outcome.kind in EDITED
        if seed.way not in prepared:
            covered = covered_passes(state, tested, prepared, edited=edited)
            if outcome.kind in AS_THEY_ARE:
                full, known = full_passes(state, tested, prepared), operators_of_seeds(state)
                covered = without_new(covered, full, known, {*entry.way.split()})
            new = [r for r in new if r.label not in covered]
        # Workers do not know what others have found in the same round.
        if new:
            state.seeded.update((f, entry.way) for f in entry.rewrites)
            state.entries.append(entry)
    state.reached.update(outcome.reached)


def _take_death(state: HuntState, logged: LoggedStep, found: dict[_Alike, Suspect]) -> None:
    candidate = logged.candidate
    if not logged.valid or not isinstance(candidate, MadeCandidate):
        state.deaths["reference"] += 1
        return
    state.valid += 1
    label = label_of(logged.passes)
    state.deaths[label] += 1
    if len(logged.passes) > 1:
        # From now on each is tried alone, so that it is known which of them it is.
        state.alone += [name for name in logged.passes if name not in state.alone]
    stage: Stage = "build" if logged.step == "optimize" else "load"
    symptom = symptom_of(Failure("abort", stage, logged.signal))
    key = SuspicionKey(passes_of_key(logged.passes), symptom, logged.signal)
    outcome = CandidateOutcome(logged.number, "", candidate.mutators, None, candidate)
    _suspect(state, Suspicion(logged.passes, key), outcome, found)


def _suspect(
    state: HuntState,
    suspicion: Suspicion,
    outcome: CandidateOutcome,
    found: dict[_Alike, Suspect],
) -> None:
    key, candidate = of_one_pass(state, suspicion.key), outcome.candidate
    state.signs.setdefault(key, Sign()).seen += 1
    if candidate is None:
        return
    suspect = Suspect(
        outcome.number,
        candidate.model,
        candidate.feeds,
        suspicion.passes,
        key,
        candidate.mutators,
        suspicion.edit,
        outcome.examined is not None and outcome.examined.by_arbiter,
    )
    other = found.get((key, suspicion.edit))
    # The smallest one of a round, which is quickest to reduce.
    if other is None or len(candidate.model) < len(other.model):
        if not is_needless(state, suspect):
            found[key, suspicion.edit] = suspect
