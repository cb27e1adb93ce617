"""Runs a hunt: rounds of batches, learning from them, and confirming suspects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optvet
from optvet.engine.bundle.write import Draw
from optvet.engine.discovery import Plugins
from optvet.engine.hunt.as_campaign import write_campaign
from optvet.engine.hunt.batch import STANDSTILL_S, Batch, run_batch, without_killers
from optvet.engine.hunt.confirm import MEMORY_BYTES, Confirmer, refuse_shortage
from optvet.engine.hunt.known_faults import known_fingerprints
from optvet.engine.hunt.learn import (
    avoided_passes,
    covered_passes,
    covered_rewrites,
    full_passes,
    is_needless,
    learn,
    operators_of_seeds,
    passes_together,
    settled_keys,
    take_findings,
)
from optvet.engine.hunt.progress_log import CandidateOutcome, LoggedStep, read_journal, read_log
from optvet.engine.hunt.resolve_optimizer import hunted_passes, resolve_optimizer
from optvet.engine.hunt.round_plan import ROUND, in_batches, plan_round
from optvet.engine.hunt.sources.run import hunt_in_converter
from optvet.engine.hunt.sources.target import is_converter
from optvet.engine.hunt.state import NAME, HuntState, HuntStore, Suspect
from optvet.engine.hunt.summary import OnProgress, progress_of, write_summary
from optvet.engine.hunt.suspicions import Complaint, label_of
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.engine.hunt.vocabulary import PoolChoice, fragments_folder, gather, read_vocabulary
from optvet.engine.vet.session import default_jobs
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.participants import check_options
from optvet.spec.errors import InfrastructureError, OptvetError, PluginError, UsageError
from optvet.spec.extras import extras
from optvet.spec.files import folder_without_links
from optvet.spec.generators import Mutator, MutatorExtras
from optvet.spec.hunt import HuntRequest, budget_of
from optvet.spec.records import HuntFinding, HuntSummary
from optvet.spec.scratch import temporary_folder

Wanted = Callable[[Suspect], bool]
"""Whether a suspect is to be vetted."""
_BATCH = 40
_BATCH_S = 900.0


def hunt(
    request: HuntRequest,
    plugins: Plugins,
    *,
    draw: Draw | None = None,
    progress: OnProgress = lambda event: None,
    wanted: Wanted = lambda suspect: True,
    follows_code: bool = True,
) -> HuntSummary:
    """Hunt until the budget is used up and every suspect that is ``wanted`` is vetted.

    The folder of the request holds the state after every round and every suspect, so that a process
    that dies loses only the current one. Models that run new lines of the passes' code are edited
    if it ``follows_code``.

    Raises:
        UsageError: The request cannot be answered, or the folder holds another hunt.
        KeyboardInterrupt: Ctrl-C; ``summary_of`` the folder tells what there is.
    """
    if is_converter(request):
        return hunt_in_converter(request, plugins, progress)
    tested = resolve_optimizer(request, plugins)
    known = frozenset(known_fingerprints(request.known))
    choices = _choices(request, plugins)
    with _open_store(request, tested) as (store, state):
        jobs = request.jobs or default_jobs()
        runtimes = {tested.candidate.runtime.name: tested.candidate.runtime}
        for config in filter(None, (tested.reference, tested.arbiter)):
            runtimes[config.runtime.name] = config.runtime
        preload = ("numpy.random", "onnx", "onnx.checker", *tested.optimizer.preload)
        mutators = tuple(plugins.mutators())
        # A worker that died is replaced by a fork of a process that has all of it loaded.
        preload += (run_batch.__module__, *{type(m).__module__ for m in mutators})
        preload += tuple(m for r in runtimes.values() for m in r.preload)
        fragments = fragments_folder(request.cache_dir)
        limits = Limits(_BATCH_S, MEMORY_BYTES, writable=(str(fragments),))
        with (
            Sandbox(jobs=jobs, limits=limits, preload=preload) as sandbox,
            temporary_folder("optvet-hunt-") as folder,
        ):
            check_options(sandbox, tested.optimizer, tested.options)
            progress(progress_of("gathering fragments", request, tested, state))
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
            confirmer = Confirmer(tested, request.seed, plugins, request.folder, jobs, known, draw)
            hunter = _Hunter(
                request,
                tested,
                tuple(files),
                mutators,
                sandbox,
                Path(folder),
                jobs,
                store,
                confirmer,
                known,
                progress,
                wanted,
                follows_code,
            )
            return hunter.run(state)


def _choices(request: HuntRequest, plugins: Plugins) -> list[PoolChoice]:
    """The pools of the request; by default all that need no argument."""
    named = request.pools or tuple(n for n in plugins.pools() if not plugins.pool(n).needs_argument)
    if not named:
        raise UsageError("there is no pool of fragments; see: optvet plugins")
    choices = []
    for text in named:
        name, colon, argument = text.partition(":")
        choices.append(PoolChoice(plugins.pool(name), argument if colon else None))
    return choices


@contextmanager
def _open_store(
    request: HuntRequest, tested: TestedOptimizer
) -> Iterator[tuple[HuntStore, HuntState]]:
    """The store of the folder, and its state.

    Raises:
        UsageError: It holds another hunt, or one that is not to be resumed.
    """
    optimizer = tested.optimizer
    identity: dict[str, Any] = {
        "optimizer": optimizer.name,
        "version": optimizer.version(),
        "options": request.optimizer_options,
        "runtime options": request.runtime_options,
        "passes": list(request.passes),
        "pools": list(request.pools),
        "seed": request.seed,
    }
    folder = request.folder
    exists = (folder / NAME).exists()
    if request.resume and not exists:
        raise UsageError(f"--resume: {folder} holds no hunt; leave --resume out to begin one")
    if exists and not request.resume:
        raise UsageError(
            f"{folder} holds a hunt already; say --resume to continue it, or another --out"
        )
    folder_without_links(folder)
    store = HuntStore(folder)
    try:
        stored = store.identity()
        if stored is None:
            store.begin(identity)
        elif stored != identity:
            changed = sorted(k for k in {*identity, *stored} if stored.get(k) != identity.get(k))
            raise UsageError(
                f"--resume: {folder} holds a hunt with another {', '.join(changed)}; use "
                "the same options, or give another --out"
            )
        yield store, store.load()
    finally:
        store.close()


def size_of_next_round(request: HuntRequest, state: HuntState) -> int:
    """Candidates of the next round; 0 if the budget is used up.

    Of a time, no more than are likely to fit: an optimizer that compiles takes minutes for a round.
    """
    candidates, seconds = budget_of(request.budget)
    if candidates is not None:
        return min(ROUND, max(candidates - state.number, 0))
    assert seconds is not None
    left = seconds - state.seconds
    if left <= 0:
        return 0
    fit = left * state.number / state.seconds if state.seconds else 0.0
    return int(min(ROUND, max(fit, _BATCH)))


@dataclass(frozen=True)
class _Hunter:
    """Does rounds, and vets suspects."""

    request: HuntRequest
    tested: TestedOptimizer
    files: tuple[Path, ...]
    mutators: tuple[Mutator, ...]
    sandbox: Sandbox
    folder: Path
    jobs: int
    store: HuntStore
    confirmer: Confirmer
    known: frozenset[str]
    progress: OnProgress
    wanted: Wanted
    follows_code: bool

    def run(self, state: HuntState) -> HuntSummary:
        """Hunt until the budget is used up; what there is then is written, however this ends."""
        try:
            self.confirm_suspects(state)
            while (size := size_of_next_round(self.request, state)) > 0:
                self.do_round(state, size)
                self.confirm_suspects(state)
        finally:
            summary = write_summary(self.request, self.tested, state)
            rare = self.tested.rare
            write_campaign(summary, self.request.folder, {} if rare is None else rare.given)
        return summary

    def do_round(self, state: HuntState, size: int) -> None:
        """Make and judge ``size`` candidates, and learn from them."""
        vocabulary, mutators = read_vocabulary(self.files).vocabulary, self.mutators
        recipes = plan_round(
            state,
            size,
            seed=self.request.seed,
            fragments=len(vocabulary.fragments),
            patterns=vocabulary.patterns,
            mutators={m.name: m.weight for m in mutators},
        )
        tested = replace(self.tested, together=passes_together(state, self.tested))
        prepared = frozenset(m.name for m in mutators if extras(m, MutatorExtras).prepares)
        known, settled = covered_rewrites(state, self.tested), settled_keys(state)
        avoided, tried = avoided_passes(state, self.tested), frozenset(state.tried)
        operators = operators_of_seeds(state)
        batches = [
            Batch(
                seed=self.request.seed,
                first=state.number + first,
                recipes=part,
                tested=tested,
                mutators=mutators,
                prepared=prepared,
                vocabulary=self.files,
                known=known,
                covered=covered_passes(state, self.tested),
                explored=covered_passes(state, self.tested, prepared),
                resembled=covered_passes(state, self.tested, prepared, edited=True),
                full=full_passes(state, self.tested, prepared),
                operators=operators,
                seeded=frozenset(state.seeded),
                settled=settled,
                avoided=avoided,
                left_out=frozenset(),
                tried=tried,
                reached=frozenset(state.reached) if self.follows_code else None,
                journal=self.folder / f"{state.rounds}-{first}.journal",
                log=self.folder / f"{state.rounds}-{first}.log",
            )
            for first, part in in_batches(recipes, _BATCH)
        ]
        results: list[CandidateOutcome | LoggedStep] = []
        with ThreadPoolExecutor(self.jobs, "optvet-hunt") as threads:
            try:
                for found, seconds in threads.map(self._results, batches):
                    results += found
                    state.seconds += seconds
                    self._tell("hunting", state, results)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                # What runs is ended with the sandbox; else its threads would be waited for.
                self.sandbox.close()
                raise
        learn(state, results, self.tested, prepared)
        state.rounds += 1
        self.store.save(state)
        write_summary(self.request, self.tested, state)
        self._tell("hunting", state)

    def _results(self, batch: Batch) -> tuple[list[CandidateOutcome | LoggedStep], float]:
        """Results of a batch in order; after the death of a worker, the next one continues."""
        results: list[CandidateOutcome | LoggedStep] = []
        seconds = 0.0
        while len(results) < len(batch.recipes):
            start = len(results)
            outcome = self.sandbox.call(run_batch, batch, start)
            # The sandbox repeats a task whose process was killed: the first record of each counts.
            records = list(read_journal(batch.journal))
            fresh = {record.number: record for record, _ in reversed(records)}
            results += [fresh[number] for number in sorted(fresh)]
            batch.journal.unlink(missing_ok=True)
            seconds += records[-1][1] if records else 0.0
            failure = outcome.failure
            if failure is None and len(results) == len(batch.recipes):
                break
            if failure is None:
                raise InfrastructureError(
                    f"results of a batch of models cannot be read ({batch.journal.name}); run it "
                    "again with --resume"
                )
            if failure.kind == "error":
                words = failure.message.partition("\n")[0][:300]
                raise InfrastructureError(
                    f"a batch of models failed: {failure.error_type}: {words}; run it again with "
                    "--resume, and without a plugin that is named here"
                )
            logged = read_log(batch.log, failure.signal or failure.kind)
            if failure.kind == "killed" or logged is None or logged[0] != len(results):
                raise InfrastructureError(
                    f"a worker ended, but not because of a model: {failure.message}; run it again "
                    "with --resume"
                )
            results.append(logged[1])
            batch = without_killers(batch, results)
            # A model that stood still has used the budget too, though it left no record.
            seconds += STANDSTILL_S if failure.signal == "SIGALRM" else 0
        batch.log.unlink(missing_ok=True)
        return results, seconds

    def confirm_suspects(self, state: HuntState) -> None:
        """Vet every suspect, and keep what is confirmed."""
        while state.suspects:
            suspect = state.suspects[0]
            if is_needless(state, suspect) or not self.wanted(suspect):
                state.suspects.remove(suspect)
                continue
            label = label_of(suspect.passes) or "import and export"
            self._tell(f"vetting {suspect.key.symptom} of {label}", state)
            began = time.monotonic()
            findings = self._confirm(suspect, state)
            state.vetting_seconds += time.monotonic() - began
            for finding in take_findings(state, suspect, findings or [], self.known):
                self._tell("hunting", state, found=finding)
            self.store.save(state)
            write_summary(self.request, self.tested, state)

    def _confirm(self, suspect: Suspect, state: HuntState) -> list[HuntFinding] | None:
        try:
            return self.confirmer.confirm(suspect, lambda text, done, total: None)
        except Exception as error:
            if isinstance(error, OptvetError) and not isinstance(error, PluginError):
                raise
            refuse_shortage(error)
            # What foreign code returned broke what reads it: that ends no hunt, and is told.
            state.complain(Complaint.of("a suspicion cannot be vetted:", error))
            return None

    def _tell(
        self,
        doing: str,
        state: HuntState,
        results: Sequence[CandidateOutcome | LoggedStep] = (),
        found: HuntFinding | None = None,
    ) -> None:
        self.progress(progress_of(doing, self.request, self.tested, state, results, found))
