"""A hunt in an optimizer: its candidates are models, which workers make, run and optimize."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import optvet
from optvet.engine.bundle.write import Draw
from optvet.engine.discovery import Plugins
from optvet.engine.hunt.confirm import MEMORY_BYTES, Confirmer
from optvet.engine.hunt.known_faults import known_fingerprints
from optvet.engine.hunt.learn import (
    avoided_passes,
    covered_passes,
    covered_rewrites,
    full_passes,
    learn,
    operators_of_seeds,
    passes_together,
)
from optvet.engine.hunt.loop import HuntBudget, HuntSetup, Part
from optvet.engine.hunt.model_batch import ModelBatch
from optvet.engine.hunt.outcome import CandidateOutcome
from optvet.engine.hunt.progress_log import LoggedStep
from optvet.engine.hunt.resolve_optimizer import hunted_passes, resolve_optimizer, seen_passes
from optvet.engine.hunt.round_plan import in_batches, plan_round
from optvet.engine.hunt.state import HuntState
from optvet.engine.hunt.summary import About, HuntProgress, OnProgress
from optvet.engine.hunt.suspects import settled_keys
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.hunt.vocabulary import (
    choices_of,
    fragments_folder,
    gather,
    read_vocabulary,
)
from optvet.engine.hunt.workers import do_batch, results_of
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.participants import check_options
from optvet.spec.extras import extras
from optvet.spec.generators import Mutator, MutatorExtras
from optvet.spec.hunt import HuntRequest
from optvet.spec.scratch import temporary_folder

_LARGEST_ROUND = 320
"""Candidates of a round, after which the state follows: some seconds of one worker."""
_BATCH = 40
_BATCH_S = 900.0


@dataclass(frozen=True)
class OptimizerTarget:
    """Makes models, and tries the passes of an optimizer on them.

    Attributes:
        request: The request.
        tested: The optimizer.
        files: Of the vocabulary.
        mutators: All mutators.
        sandbox: The workers.
        folder: For their files.
        follows_code: Whether models that run new lines of the passes' code are edited.
    """

    request: HuntRequest
    tested: TestedOptimizer
    files: tuple[Path, ...]
    mutators: tuple[Mutator, ...]
    sandbox: Sandbox
    folder: Path
    follows_code: bool

    @property
    def prepared(self) -> frozenset[str]:
        """Names of the mutators that prepare models for further edits."""
        return frozenset(m.name for m in self.mutators if extras(m, MutatorExtras).prepares)

    def plan(self, state: HuntState, size: int) -> list[Part[CandidateOutcome | LoggedStep]]:
        """The next models, in batches.

        A batch depends on the seed, the recipes, and what earlier rounds taught, and never on the
        batches beside it: so the number of workers changes nothing.
        """
        # Kept in memory for two calls: workers read the same files themselves, once each.
        vocabulary = read_vocabulary(self.files).vocabulary
        recipes = plan_round(
            state,
            size,
            seed=self.request.seed,
            fragments=len(vocabulary.fragments),
            patterns=vocabulary.patterns,
            mutators={m.name: m.weight for m in self.mutators},
        )
        # What was learned is worked out once a round, and is the same for all of its batches.
        whole = self._batch(state)
        return [
            partial(
                results_of,
                self.sandbox,
                replace(
                    whole,
                    first=state.number + first,
                    recipes=part,
                    place=self.folder / f"{state.rounds}-{first}",
                ),
            )
            for first, part in in_batches(recipes, _BATCH)
        ]

    def _batch(self, state: HuntState) -> ModelBatch:
        """What all batches of the next round have in common."""
        prepared = self.prepared
        return ModelBatch(
            seed=self.request.seed,
            first=state.number,
            recipes=(),
            tested=replace(self.tested, together=passes_together(state, self.tested)),
            mutators=self.mutators,
            prepared=prepared,
            vocabulary=self.files,
            known=covered_rewrites(state, self.tested),
            covered=covered_passes(state, self.tested),
            explored=covered_passes(state, self.tested, prepared),
            resembled=covered_passes(state, self.tested, prepared, edited=True),
            full=full_passes(state, self.tested, prepared),
            operators=operators_of_seeds(state),
            seeded=frozenset(state.seeded),
            settled=settled_keys(state),
            avoided=avoided_passes(state, self.tested),
            # Filled by deaths within the batch; passes that killed before are avoided instead.
            left_out=frozenset(),
            tried=frozenset(state.tried),
            reached=frozenset(state.reached) if self.follows_code else None,
            place=self.folder,
        )

    def learn(self, state: HuntState, records: Sequence[CandidateOutcome | LoggedStep]) -> None:
        """Take the records of a round."""
        learn(state, records, self.tested, self.prepared)

    def close(self) -> None:
        """End all workers."""
        self.sandbox.close()


@contextmanager
def open_optimizer(
    request: HuntRequest,
    plugins: Plugins,
    jobs: int,
    *,
    draw: Draw | None,
    progress: OnProgress,
    follows_code: bool,
) -> Iterator[HuntSetup[CandidateOutcome | LoggedStep]]:
    """What a hunt in an optimizer is in, with its workers and the vocabulary of the pools.

    Raises:
        UsageError: The request cannot be answered.
    """
    tested = resolve_optimizer(request, plugins)
    known = frozenset(known_fingerprints(request.known))
    choices = choices_of(request.pools, plugins)
    about = About(tested.optimizer.name, tested.optimizer.version(), seen_passes(tested))
    # In the order of their names, by which the state counts their edits.
    mutators = tuple(plugins.mutators())
    # Outside of the folder of a hunt: pools that take no argument are gathered once for all hunts.
    fragments = fragments_folder(request.cache_dir)
    limits = Limits(_BATCH_S, MEMORY_BYTES, writable=(str(fragments),))
    with (
        Sandbox(jobs=jobs, limits=limits, preload=_modules(tested, mutators)) as sandbox,
        temporary_folder("optvet-hunt-") as folder,
    ):
        # In a worker, which may die of it; before pools are gathered, which takes longer.
        check_options(sandbox, tested.optimizer, tested.options)
        progress(HuntProgress("gathering fragments", passes=len(about.parts)))
        files = gather(
            choices,
            [p for p in tested.optimizer.passes() if p.name in hunted_passes(tested)],
            tested.reference.runtime,
            tested.reference.options,
            seed=request.seed,
            sandbox=sandbox,
            folder=fragments,
            version=optvet.__version__,
        )
        target = OptimizerTarget(
            request, tested, tuple(files), mutators, sandbox, Path(folder), follows_code
        )
        confirmer = Confirmer(tested, request.seed, plugins, request.folder, jobs, known, draw)
        budget = HuntBudget.of(request.budget, _LARGEST_ROUND, _BATCH)
        # Findings made under rare options name them, so that a campaign can ask for them again.
        rare = {} if tested.rare is None else tested.rare.given
        yield HuntSetup(about, target, budget, confirmer, known, rare)


def _modules(tested: TestedOptimizer, mutators: Sequence[Mutator]) -> tuple[str, ...]:
    """What workers import before they fork: one that died is replaced by a fork that has it all."""
    runtimes = {tested.candidate.runtime.name: tested.candidate.runtime}
    for config in filter(None, (tested.reference, tested.arbiter)):
        runtimes[config.runtime.name] = config.runtime
    modules = {do_batch.__module__, ModelBatch.__module__, *(type(m).__module__ for m in mutators)}
    libraries = ("numpy.random", "onnx", "onnx.checker", *tested.optimizer.preload)
    return (*libraries, *modules, *(name for r in runtimes.values() for name in r.preload))
