"""A batch of candidates, made and judged in a worker that may die of any of them."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from random import Random

from onnx import ModelProto

from optvet.engine.hunt.make_candidates import (
    BrokenMutator,
    CandidateMaker,
    CandidateRecipe,
    MadeCandidate,
    Spent,
)
from optvet.engine.hunt.outcome import CandidateOutcome, Seed
from optvet.engine.hunt.probable_causes import contrived_parts, needs
from optvet.engine.hunt.progress_log import LoggedStep, ProgressLog, StepLimit
from optvet.engine.hunt.quick_oracle import Examined, examine
from optvet.engine.hunt.reached_code import ReachedCode
from optvet.engine.hunt.rewrites import changing_passes, rewrite_of
from optvet.engine.hunt.shrink import shrink
from optvet.engine.hunt.suspicions import (
    ANY,
    CONTRIVED,
    REACHED,
    UNSEEN,
    Complaint,
    Rewrite,
    Suspicion,
    SuspicionKey,
)
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.hunt.vocabulary import read_vocabulary
from optvet.graph.features import (
    Placed,
    edit_between,
    integer_constants,
    placed_features,
    without_places,
)
from optvet.graph.walk import nodes_of
from optvet.spec.generators import Mutator
from optvet.spec.symptoms import Symptom

_SEEDS = 3
_LABELLED = 0.2
"""Share of plain edits of which it is asked what changed, where asking costs as much as judging."""
EDITED = ("edit", "corpus")
"""Recipes of models that resemble others."""
AS_THEY_ARE = ("sweep", "pattern")
"""Recipes of models that come from the pools."""
_STANDSTILL = StepLimit(15.0)
"""Of one step of a candidate, which mostly takes milliseconds."""
_ASKED = 0.25
_TRIED_RARELY = 0.25
"""Share of passes that are tried under rare options, which may be slow: of files, not of bytes."""
_AGAIN = 0.1
"""Share of edits that are judged although one like it was: numbers may matter after all."""


@dataclass(frozen=True)
class ModelBatch:
    """Models to make and judge, in order.

    Attributes:
        seed: The hunt's seed.
        first: Number of the first candidate within the hunt.
        recipes: One per candidate.
        tested: What is hunted in.
        mutators: All mutators.
        prepared: Names of those that prepare models for further edits.
        vocabulary: Files of the vocabulary.
        known: Rewrites that need no further seed.
        covered: Passes that have seeds enough, or need none.
        explored: Passes that have seeds enough that no mutator prepared.
        resembled: Passes that have enough of them for those that come of changing other models.
        full: Passes that need none even of a model with an operator that is new for them.
        operators: Operators of the seeds of each pass.
        seeded: Rewrites of which there is a seed, with its way.
        settled: Keys of suspicions that need no further example.
        avoided: Passes that kill workers; they are tried on one candidate in ten.
        left_out: Those that have killed workers of this batch; they are tried no more.
        tried: Digests of edits that were judged; see ``digests_of_edit``.
        reached: Lines of the passes' code that some model has reached; None if that is not asked.
        place: Where its files lie; see ``Batch``.
        limit: Of a step.
    """

    seed: int
    first: int
    recipes: tuple[CandidateRecipe, ...]
    tested: TestedOptimizer
    mutators: tuple[Mutator, ...]
    prepared: frozenset[str]
    vocabulary: tuple[Path, ...]
    known: frozenset[Rewrite]
    covered: frozenset[str]
    explored: frozenset[str]
    resembled: frozenset[str]
    full: frozenset[str]
    operators: Mapping[str, frozenset[str]]
    seeded: frozenset[tuple[Rewrite, str]]
    settled: frozenset[SuspicionKey]
    avoided: frozenset[str]
    left_out: frozenset[str]
    tried: frozenset[int]
    reached: frozenset[str] | None
    place: Path
    limit: StepLimit = _STANDSTILL
    record: type[CandidateOutcome] = CandidateOutcome

    @property
    def count(self) -> int:
        """How many candidates there are."""
        return len(self.recipes)

    @contextmanager
    def opened(self, log: ProgressLog) -> Iterator[Callable[[int], CandidateOutcome]]:
        """What makes and judges the candidate of an index. Called in a worker."""
        maker = CandidateMaker(read_vocabulary(self.vocabulary), self.mutators)
        code = ReachedCode(self.tested, self.reached)
        # What was loaded before the batch is not looked through again and again.
        gc.freeze()
        try:
            yield lambda index: _one(self, maker, index, log, code)
        finally:
            gc.unfreeze()

    def after_death(self, results: Sequence[CandidateOutcome | LoggedStep]) -> ModelBatch:
        """The rest without the passes that killed its workers; see ``left_out``.

        Each of these deaths costs a worker, and hides what other passes do to the same model. Of
        passes that were tried together, each is tried alone from then on, so that it is known which
        it was.
        """
        died = [r.passes for r in results if isinstance(r, LoggedStep)]
        killed = Counter(passes[0] for passes in died if len(passes) == 1)
        many = {name for name, n in killed.items() if n >= _KILLED or name in self.avoided}
        together = () if any(len(p) > 2 for p in died) else self.tested.together  # more than a pair
        tested = replace(self.tested, together=together)
        return replace(self, tested=tested, left_out=self.left_out | many)


_KILLED = 2
"""Workers that a pass may kill in a batch; one, if it killed some before."""


def _one(
    batch: ModelBatch, maker: CandidateMaker, index: int, log: ProgressLog, code: ReachedCode
) -> CandidateOutcome:
    batch = replace(batch, tested=batch.tested.for_one_candidate())
    number, recipe = batch.first + index, batch.recipes[index]
    log.note("make", ())
    random = Random(f"{batch.seed}/{number}")
    try:
        candidate = maker.make(recipe, random)
    except Spent:
        return CandidateOutcome(number, recipe.kind, spent=(recipe.entry, recipe.number))
    except BrokenMutator as error:
        return CandidateOutcome(number, recipe.kind, complaint=error.complaint)
    except Exception as error:
        # Fragments come from plugins too; one that nothing can be made of costs its models.
        complaint = Complaint.of("a fragment cannot be used:", error)
        return CandidateOutcome(number, recipe.kind, complaint=complaint)
    if candidate is None:
        return CandidateOutcome(number, recipe.kind)
    edit, digests = _compare_with_entry(batch, recipe, candidate)
    # Before anything is run: judging it would cost far more than the digests did.
    if digests and batch.tried.issuperset(digests) and random.random() >= _AGAIN:
        return CandidateOutcome(number, recipe.kind, candidate.mutators)
    # From here on foreign code sees it: what kills the worker is to be found in the log.
    log.keep(candidate)
    try:
        outcome = _judge_candidate(batch, recipe, number, candidate, edit, random, log, code)
        # What gave no valid model was not judged: the same with other numbers may give one.
        judged = outcome.examined is not None and outcome.examined.valid
        return replace(outcome, tried=digests if judged else ())
    except Exception as error:
        # Whatever foreign code returns may break what reads it; it costs the model, not the hunt.
        complaint = Complaint.of("a model cannot be judged:", error)
        return CandidateOutcome(number, recipe.kind, candidate.mutators, complaint=complaint)


def _compare_with_entry(
    batch: ModelBatch, recipe: CandidateRecipe, candidate: MadeCandidate
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What was changed in the model that the candidate was made of, and the digests of that."""
    if not recipe.model:
        return (), ()
    model = ModelProto.FromString(candidate.model)
    was, now = _features_of_entry(recipe.model), placed_features(model)
    edit = edit_between(without_places(was), without_places(now))
    about = [node.op_type for node in nodes_of(model.graph)]
    about += map(str, sorted(integer_constants(model) - _integers_of_entry(recipe.model)))
    digests = digests_of_edit(batch.prepared, recipe, was, now, about)
    return edit, digests if edit else ()


@lru_cache(maxsize=1024)
def _features_of_entry(data: bytes) -> frozenset[Placed]:
    return placed_features(ModelProto.FromString(data))


@lru_cache(maxsize=1024)
def _integers_of_entry(data: bytes) -> Counter[tuple[float, ...]]:
    return integer_constants(ModelProto.FromString(data))


def digests_of_edit(
    prepared: frozenset[str],
    recipe: CandidateRecipe,
    was: frozenset[Placed],
    now: frozenset[Placed],
    about: Sequence[str],
) -> tuple[int, ...]:
    """A number of 64 bits for each pass that the edit concerns, with how the model was prepared.

    Many entries have the same operators, and many edits of them are the same: each is judged once.
    Among other operators, in another order of them, or at another node, the same edit may show what
    it did not; so may other integers that operators read. ``about`` are operators and integers.
    """
    if recipe.kind != "edit":
        return ()
    way = recipe.way if recipe.way in prepared else ""
    # A pass at a time: what an edit says of one pass, it does not say of another.
    labels = sorted({rewrite.label for rewrite in recipe.rewrites}) or [REACHED]
    edit = sorted(
        [f"- {f} {node}" for f, node in was - now] + [f"+ {f} {node}" for f, node in now - was]
    )
    words = ("|".join((label, way, *edit, *about)).encode() for label in labels)
    digests = (blake2b(w, digest_size=8).digest() for w in words)
    return tuple(int.from_bytes(d, "big", signed=True) for d in digests)


def _judge_candidate(
    batch: ModelBatch,
    recipe: CandidateRecipe,
    number: int,
    candidate: MadeCandidate,
    edit: tuple[str, ...],
    random: Random,
    log: ProgressLog,
    code: ReachedCode,
) -> CandidateOutcome:
    skip = batch.left_out | (batch.avoided if random.random() >= 0.1 else frozenset[str]())
    # By the number, so that vetting finds the same options again.
    tested = batch.tested.for_candidate(batch.seed, number)
    if tested is not batch.tested:
        tried = random.sample(tested.each, math.ceil(_TRIED_RARELY * len(tested.each)))
        skip |= set(tested.each).difference(tried)
    # Of a model that was only edited it is mostly known what fires: what it was made of.
    labelled = not _is_plain_edit(batch, recipe) or random.random() < _LABELLED
    (explored, known), prepares = (
        _needless(batch, recipe, candidate.model),
        _prepares(batch, recipe),
    )
    with code.watching(number):
        examined = examine(
            tested,
            candidate.model,
            candidate.feeds,
            log.note,
            skip,
            random,
            labelled=labelled,
            known=frozenset() if prepares else known,
            covered=explored & batch.covered if prepares else explored,
            is_new=code.has_new,
        )
    reached = code.take()
    examined = _with_passes(batch, recipe, candidate, examined, random, log)
    examined = replace(examined, suspicions=_with_edit(recipe, edit, examined.suspicions))
    # A model is kept only where it may be vetted: records of thousands are read in one process.
    suspected = any(s.edit or s.key not in batch.settled for s in examined.suspicions)
    kept = candidate if suspected else None
    seeds = _seeds(batch, recipe, candidate, examined, log)
    # Where something is wrong, all that is made of the model would show just that.
    if reached and examined.valid and not _wrong(examined):
        seeds += (_seed(candidate, examined.rewrites, REACHED, examined),)
    complaint = examined.complaint or code.complaint
    outcome = CandidateOutcome(
        number, recipe.kind, candidate.mutators, examined, kept, complaint, seeds
    )
    return replace(outcome, reached=reached)


def _with_edit(
    recipe: CandidateRecipe, edit: tuple[str, ...], suspicions: tuple[Suspicion, ...]
) -> tuple[Suspicion, ...]:
    """With what was changed, where the model that it was made of does not show them."""
    return tuple(s if s.key.place in recipe.shown else replace(s, edit=edit) for s in suspicions)


def _with_passes(
    batch: ModelBatch,
    recipe: CandidateRecipe,
    candidate: MadeCandidate,
    examined: Examined,
    random: Random,
    log: ProgressLog,
) -> Examined:
    """With the passes that made the pipeline do what it did.

    A change of a model of which the same comes is one of the same passes. Of others it is asked
    which: of those that come from the pools each time, since two passes may do alike, and of some
    of the rest where something is new. Asking costs as much as judging ten models.
    """
    whole = next((r for r in examined.rewrites if r.label == ANY), None)
    if whole is None:
        return examined
    inherited = recipe.rewrites if batch.tested.takes_sets else ()
    more = tuple(r for r in inherited if r.label != ANY and r.change == whole.change)
    complaint = None
    new = whole not in batch.known
    if not more and (recipe.kind in AS_THEY_ARE or (new and random.random() < _ASKED)):
        log.note("reference", ())
        names, complaint = changing_passes(batch.tested, candidate.model, batch.tested.whole)
        more = tuple(whole._replace(label=name) for name in names)
    rewrites = tuple(dict.fromkeys((*examined.rewrites, *more)))
    return replace(examined, rewrites=rewrites, complaint=examined.complaint or complaint)


def _needless(
    batch: ModelBatch, recipe: CandidateRecipe, model: bytes
) -> tuple[frozenset[str], Set[Rewrite]]:
    """Passes, and rewrites, that need no seed of ``model``, which was made by the recipe."""
    if recipe.kind not in AS_THEY_ARE:
        return batch.resembled if recipe.kind in EDITED else batch.explored, batch.known
    operators = {node.op_type for node in nodes_of(ModelProto.FromString(model).graph)}
    passes = batch.explored | {rewrite.label for rewrite in batch.known}
    closed = without_new(passes, batch.full, batch.operators, operators)
    return closed & batch.explored, {r for r in batch.known if r.label in closed}


def without_new(
    passes: Set[str],
    full: Set[str],
    known: Mapping[str, Set[str]],
    operators: Set[str],
) -> frozenset[str]:
    """The ``passes``, less those of whose seeds none has one of the ``operators``.

    Models of the pools differ on purpose: what comes first must not keep out those in which a pass
    meets other operators. Those that are ``full`` need none of them either.
    """
    return frozenset(n for n in passes if n in full or operators <= known.get(n, set()))


def _prepares(batch: ModelBatch, recipe: CandidateRecipe) -> bool:
    """Whether the recipe is an edit that prepares a model for further ones."""
    return recipe.kind == "edit" and not _is_plain_edit(batch, recipe)


def _is_plain_edit(batch: ModelBatch, recipe: CandidateRecipe) -> bool:
    """Whether the recipe is an edit that does not prepare a model for further ones."""
    return recipe.kind == "edit" and batch.mutators[recipe.number].name not in batch.prepared


def _seeds(
    batch: ModelBatch,
    recipe: CandidateRecipe,
    candidate: MadeCandidate,
    examined: Examined,
    log: ProgressLog,
) -> tuple[Seed, ...]:
    """Models worth editing: small ones that fire in a new way, and prepared ones that still fire.

    What fires on them shows no fault, for all that is made of them would show the same one. Faults
    of other passes do not matter: there are passes that are wrong for every third model.
    """
    seeds: list[Seed] = []
    wrong = _wrong(examined)
    if recipe.kind == "edit" and candidate.mutators:
        mutator = batch.mutators[recipe.number]
        again = _unhidden((f for f in examined.rewrites if f in batch.known), wrong | batch.covered)
        if _prepares(batch, recipe) and any((f, mutator.name) not in batch.seeded for f in again):
            seeds.append(_seed(candidate, again, mutator.name, examined))
    explored, known = _needless(batch, recipe, candidate.model)
    new = _unhidden((f for f in examined.rewrites if f not in known), wrong | explored)
    for rewrite in new[: _SEEDS if batch.tested.each else 1]:
        if rewrite.change == UNSEEN and batch.tested.lowers:
            # Of a format that is not ONNX it is not seen what became of the operators, so nothing
            # says what a smaller model must keep.
            seeds.append(_seed(candidate, (rewrite,), _way(candidate), examined))
            continue

        def fires(tried: MadeCandidate, rewrite: Rewrite = rewrite) -> bool:
            log.keep(tried)
            log.note("optimize", (rewrite.label,) if rewrite.label != ANY else batch.tested.whole)
            return rewrite_of(batch.tested, tried.model, rewrite.label) == rewrite

        # Single edits of a small model are complete within the budget; of a large one they are not.
        small = shrink(candidate, batch.tested.reference, fires)
        log.keep(small)
        explored, known = _needless(batch, recipe, small.model)
        if rewrite.label in explored or rewrite in known:
            continue  # what was new about it does not matter to the pass
        skip = batch.avoided | batch.left_out
        found = examine(batch.tested, small.model, small.feeds, log.note, skip, Random(0))
        hidden = _wrong(found) | explored
        if found.valid and _unhidden((rewrite,), hidden):
            alike = (r for r in examined.rewrites if r.change == rewrite.change)
            shown = dict.fromkeys((*found.rewrites, *alike))
            rewrites = _unhidden(shown, hidden)
            seeds.append(_seed(small, rewrites, _way(small), found))
        else:
            seeds.append(_seed(candidate, (rewrite,), _way(candidate), examined))
    return tuple(seeds)


def _seed(
    candidate: MadeCandidate, rewrites: tuple[Rewrite, ...], way: str, examined: Examined
) -> Seed:
    shown = frozenset(s.key.place for s in examined.suspicions)
    return Seed(candidate, rewrites, way, examined.invented, shown)


def _way(candidate: MadeCandidate) -> str:
    """Its operators, or that it is contrived: a plain model shows more of what a pass does."""
    model, feeds = ModelProto.FromString(candidate.model), candidate.feeds
    if contrived_parts(model, feeds, needs(model, feeds, "")):
        return CONTRIVED
    return " ".join(n.op_type for n in model.graph.node)


_EVERY = frozenset({"*every*"})


def _wrong(examined: Examined) -> frozenset[str]:
    """Passes that look wrong, or _EVERY if import and export do; lost metadata does not count."""
    found = [s for s in examined.suspicions if s.symptom != Symptom.METADATA_CHANGE]
    names = frozenset(name for s in found for name in s.passes)
    return names | _EVERY if any(not s.passes for s in found) else names


def _unhidden(rewrites: Iterable[Rewrite], hidden: frozenset[str]) -> tuple[Rewrite, ...]:
    """Rewrites by passes that are not hidden."""
    return () if hidden >= _EVERY else tuple(r for r in rewrites if r.label not in hidden)
