"""The trial runner: makes trials on demand, unless their results are known, and counts the work."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.disk import Cache
from optvet.engine.work.sandbox import Outcome, Sandbox
from optvet.engine.work.sandbox.messages import qualified_name
from optvet.engine.work.trials import candidate
from optvet.engine.work.trials.building import (
    BuildSpec,
    ask_changing_passes,
    ask_of,
    change_without_weights,
    mendable,
)
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.from_file import stamp_of
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.known_results import KnownResults
from optvet.engine.work.trials.library_warnings import Warned, without_warnings
from optvet.engine.work.trials.open_sizes import with_only_sizes
from optvet.engine.work.trials.trial import TrialReport, TrialSpec, run_poisoned_trial, run_trial
from optvet.engine.work.trials.trial_results import (
    Build,
    Ledger,
    Purpose,
    Trial,
    fits,
    is_circumstantial,
    is_late,
    read_outcome,
    replay_from_bytes,
    replay_to_bytes,
)
from optvet.engine.work.trials.undefined_values import refusable
from optvet.graph.interface import align
from optvet.spec.errors import REFUSALS, InfrastructureError
from optvet.spec.extras import extras, given
from optvet.spec.mends import Mend
from optvet.spec.optimizer_protocols import OptimizerExtras
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.types import Failure, LogFormat, Model, Sample

_GUESS_S = 10.0
"""Of a guess; without one, passes are tried all the same."""
Progress = Callable[[str, int, int | None], None]
T = TypeVar("T")


class TrialRunner:
    """Makes trials of one optimizer on one model under one runtime."""

    def __init__(
        self,
        case: Case,
        sandbox: Sandbox,
        cache: Cache,
        *,
        jobs: int = 1,
        ledger: Ledger | None = None,
        progress: Progress = lambda text, done, total: None,
        scratch: Path | None = None,
    ) -> None:
        self.case, self.sandbox, self.cache, self.jobs = case, sandbox, cache, jobs
        self.ledger = ledger or Ledger()
        self.progress = progress
        self.known = KnownResults(case, cache)
        model = case.model
        stamp = None if scratch is None else stamp_of(model.blob)
        self._original = BuildSpec(model.blob, model.digest, scratch=scratch, stamp=stamp)
        self.isolated = False

    @property
    def model(self) -> Model:
        """The original model."""
        return self.case.model

    @property
    def scratch(self) -> Path | None:
        """The folder for results of a large model; None for other models."""
        return self._original.scratch

    def on(self, case: Case) -> TrialRunner:
        """A trial runner for another case that shares sandbox, cache and costs."""
        runner = TrialRunner(
            case,
            self.sandbox,
            self.cache,
            jobs=self.jobs,
            ledger=self.ledger,
            progress=self.progress,
            scratch=self._original.scratch,
        )
        return isolate(runner) if self.isolated else runner

    def under(self, **checks: Any) -> TrialRunner:
        """A trial runner with other ``Checks`` that shares the known results."""
        runner = copy.copy(self)
        runner.case = self.case.under(**checks)
        other = bool({"full", "plain", "ignored_complaint", "mends"} & checks.keys())
        runner.known = self.known.under(runner.case, other_checks=other)
        return runner

    # --- questions ---------------------------------------------------------------------------

    def reference(self, samples: Sequence[Sample], purpose: Purpose = "reference") -> Trial:
        """The original model on ``samples``."""
        return self._finish(self._start(self.build_spec(None), samples, purpose))

    def trial(self, passes: Sequence[str], samples: Sequence[Sample], purpose: Purpose) -> Trial:
        """The model after ``passes``, on ``samples``."""
        return self._finish(self._start(self.build_spec(passes), samples, purpose))

    def trials(
        self, sequences: Iterable[Sequence[str]], samples: Sequence[Sample], purpose: Purpose
    ) -> Iterator[Trial]:
        """Trials of many sequences, some at a time, in the order given."""
        waiting = [self.build_spec(s) for s in sequences]
        running: dict[int, _Pending] = {}
        done: dict[int, Trial] = {}
        started = handed = 0
        while handed < len(waiting):
            while started < len(waiting) and len(running) < self.jobs:
                running[started] = self._start(waiting[started], samples, purpose)
                started += 1
            futures = [p.future for p in running.values() if p.future is not None]
            if futures and all(p.future is not None for p in running.values()):
                wait(futures, return_when=FIRST_COMPLETED)
            for index in [i for i, p in running.items() if p.future is None or p.future.done()]:
                done[index] = self._finish(running.pop(index))
                self.progress(purpose, len(done), len(waiting))
            while handed in done:
                yield done[handed]
                handed += 1

    def both(
        self, passes: Sequence[str], samples: Sequence[Sample], purpose: Purpose
    ) -> tuple[Trial, Trial | None]:
        """Trials of reference and candidate, made in parallel.

        The candidate is None if the reference reached the time limit: nothing can be compared.
        """
        original = self._start(self.build_spec(None), samples, "reference")
        candidate = self._start(self.build_spec(passes), samples, purpose)
        reference = self._finish(original)
        return reference, None if is_late(reference) else self._finish(candidate)

    def fresh(
        self,
        passes: Sequence[str] | None,
        samples: Sequence[Sample],
        purpose: Purpose = "confirm",
    ) -> Trial:
        """Repeat a trial in a new process, without using cached builds and runs.

        ``passes`` None is the original model. The result is cached for this purpose, so that
        repeating the same call costs nothing.
        """
        build_spec = self.build_spec(passes)
        digests = [self.sample_digest(s) for s in samples]
        about = self.identity if build_spec.optimizer else self.reference_identity
        key = cache_key.key("fresh", purpose, self.known.build_key(build_spec), about, digests)
        kept = self.cache.read(key, lambda data: replay_from_bytes(data, samples))
        if kept is not None and all(fits(run, self.model, kept[0]) for run in kept[1].values()):
            return self._compose(build_spec, *kept, samples)
        order = self.order(build_spec, samples, known=frozenset())
        # Poisoned memory shows whether running the original reads uninitialized memory.
        task = run_trial if build_spec.optimizer else run_poisoned_trial
        outcome = _result(self.submit(build_spec, task, order, fresh=True), self.known.formats)
        refuse_misuse(_failure_in(outcome))
        self._count(purpose, build_spec, outcome)
        build, runs = read_outcome(outcome, samples, self.known.build_key(build_spec))
        failures = [build.failure, *(r for r in runs.values() if isinstance(r, Failure))]
        if not any(is_circumstantial(f) for f in failures):
            self.cache.put(key, "fresh", replay_to_bytes(build, runs, samples))
        return self._compose(build_spec, build, runs, samples)

    # --- how they are answered ---------------------------------------------------------------

    def submit(
        self,
        build_spec: BuildSpec,
        then: Callable[..., T],
        /,
        *args: object,
        fresh: bool = False,
        timeout_s: float | None = None,
    ) -> Future[Outcome[T]]:
        """Start ``then(artifact, *args)`` outside the optimizer's process; see ``candidate``."""
        live = build_spec.optimizer is not None and self.known.memory.live
        # The empty pipeline is the reference then: no optional pass may have run in its process.
        fresh = fresh or (live and self.case.passes.required.issuperset(build_spec.passes))
        fresh = fresh or (self.isolated and build_spec.optimizer is not None)
        return candidate.submit(
            self.sandbox,
            build_spec,
            then,
            *args,
            live=live,
            on_live=self._learn_live,
            fresh=fresh,
            timeout_s=timeout_s,
        )

    def changing_passes(self, passes: Sequence[str]) -> list[str] | None:
        """Passes that changed the model, as the optimizer reports; None if unknown. Cached."""
        known, name = self.known.memory.changing_passes, tuple(passes)
        if not given(self.case.optimizer, OptimizerExtras.changing_passes):
            return None
        if name not in known:
            known[name] = self.sandbox.call(ask_changing_passes, self.build_spec(name)).value
            self.ledger.add("walk", applications=1)
        return known[name]

    def guess_changing(self, names: Sequence[str]) -> frozenset[str]:
        """Passes among ``names`` that change the model if it loses its weights; none if unknown."""
        table = self.case.passes
        spec = self.build_spec(table.base)
        if spec.scratch is not None:
            return frozenset()  # a guess is not worth loading a large model
        alone = [table.complete((name,)) for name in names]
        key = cache_key.key("guess", self.known.build_key(spec), alone)
        changes = self.cache.read(key, json.loads)
        if changes is None:
            about = (spec, table.base, alone)
            # What a library does to its process over such a model is no trial's fault.
            guessed = self.sandbox.call(
                change_without_weights, *about, fresh=True, timeout_s=_GUESS_S
            )
            changes = guessed.value
            self.cache.put(key, "guess", json.dumps(changes or []).encode())
        return frozenset(n for n, changed in zip(names, changes or (), strict=False) if changed)

    def knows_changing_passes(self, passes: Sequence[str]) -> bool:
        """Whether ``changing_passes(passes)`` is known, so that it needs no application."""
        return tuple(passes) in self.known.memory.changing_passes

    def _learn_live(self) -> None:
        self.known.memory.live = True

    def build_spec(self, passes: Sequence[str] | None) -> BuildSpec:
        """What to build for ``passes``; None stands for the original model."""
        if passes is None:
            return self._original
        case, names = self.case, tuple(passes)
        return replace(
            self._original,
            optimizer=case.optimizer,
            options=case.options,
            passes=names,
            mends=case.checks.mends,
        )

    def mendable(self, passes: Sequence[str]) -> list[Mend]:
        """What the model lacks after ``passes`` and could get back; none if that is not known."""
        self.ledger.add("control", applications=1)
        return self.sandbox.call(mendable, self.build_spec(passes), fresh=self.isolated).value or []

    def forget_original(self) -> None:
        """Build the original again on the next call: its failure may have been by chance."""
        self.known.forget_build(self.build_spec(None))

    def order(
        self,
        build_spec: BuildSpec,
        samples: Sequence[Sample],
        known: frozenset[str] = frozenset(),
        first_outputs: Mapping[str, str] | None = None,
    ) -> TrialSpec:
        """The specification of a trial of ``build_spec`` on ``samples``."""
        return TrialSpec(
            build_spec,
            (self.case.candidate if build_spec.optimizer else self.case.reference)
            if samples
            else None,
            tuple(samples),
            self.model if build_spec.optimizer is not None else None,
            self.case.passes.interface(build_spec.passes),
            known,
            self.known.reads(build_spec),
            first_outputs or {},
            self.case.checks.full,
            self.case.checks.plain,
            self.case.checks.ignored_complaint if build_spec.optimizer is not None else "",
        )

    def sample_digest(self, sample: Sample) -> str:
        """Digest of the sample's feeds, computed once."""
        return self.known.memory.digest_of(sample)

    def forget(self, samples: Sequence[Sample]) -> None:
        """Drop the results of ``samples`` from memory; they may still be in the cache."""
        self.known.memory.forget(samples)

    def content_key(self, passes: Sequence[str] | None, sample: Sample) -> str | None:
        """Cache key of a run of ``passes`` on ``sample``; see ``KnownResults.run_key``.

        None if what the passes make is not known: they were tried in fresh processes alone.
        """
        build_spec = self.build_spec(passes)
        build = self.known.recall_build(build_spec)
        if build is None or not build.contents.computation:
            return None
        return self.known.run_key(build_spec, build, sample)

    def are_equal(self, one: Trial, other: Trial) -> bool:
        """Whether the runtime of the optimized model reads nothing that differs between them."""
        reads = extras(self.case.candidate.runtime, RuntimeExtras).reads
        return one.build.contents.read_by(reads) == other.build.contents.read_by(reads)

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything that all results of this runner depend on, as part of cache keys."""
        return self.known.identity

    @property
    def reference_identity(self) -> tuple[object, ...]:
        """The key of results of the original alone, which other optimizers share."""
        return self.known.reference_identity

    def _start(
        self, build_spec: BuildSpec, samples: Sequence[Sample], purpose: Purpose
    ) -> _Pending:
        build = self.known.recall_build(build_spec)
        if build is not None and self.known.is_settled(build_spec, build, samples):
            return _Pending(build_spec, tuple(samples), purpose, None)
        known = self.known.known_artifacts(build_spec, samples)
        first = self.known.first_outputs(build_spec, samples)
        order = self.order(build_spec, samples, known, first)
        future = self.submit(build_spec, run_trial, order, timeout_s=self.case.checks.timeout_s)
        return _Pending(build_spec, tuple(samples), purpose, future)

    def _finish(self, pending: _Pending) -> Trial:
        build_spec, samples = pending.build_spec, pending.samples
        if pending.future is not None:
            outcome = _result(pending.future, self.known.formats)
            refuse_misuse(_failure_in(outcome))
            if build_spec.optimizer is None:
                _refuse_killed_original(outcome.failure)
            self._count(pending.purpose, build_spec, outcome)
            if (
                _died_running(outcome)
                and len(samples) > 1
                and not self.known.memory.is_second(outcome)
            ):
                return self._one_by_one(pending)
            self.known.remember(build_spec, samples, outcome)
        build = self.known.recall_build(build_spec)
        assert build is not None
        runs = self.known.recall_runs(build_spec, build, samples) or {}
        trial = self._compose(build_spec, build, runs, samples)
        if trial.alignment is None or not trial.alignment.problem or not samples:
            return trial
        model = with_only_sizes(self.model, build.facts or self.model, samples, self._refuses)
        if model is self.model:
            return trial
        self.case = self.known.case = replace(self.case, model=model)
        return self._finish(self._start(build_spec, samples, pending.purpose))

    def _refuses(self, sample: Sample) -> bool:
        """Whether the original raises an error on a further sample, or has no answer for it."""
        run = self.reference([sample]).runs.get(sample.id)
        if isinstance(run, Failure):
            return run.kind == "error"
        return bool(self.ask(refusable, dict(sample.feeds), self.case.reference))

    def ask(self, question: Callable[..., T], *about: object) -> T | None:
        """What a worker answers to a question about the bytes of the original.

        None if the model is too large for memory, or the worker dies of the question.
        """
        return self.sandbox.call(
            ask_of, self.build_spec(None), question, *about, role="judging"
        ).value

    def _one_by_one(self, pending: _Pending) -> Trial:
        """Find the sample that killed the worker: try the build first, then each sample alone."""
        build_spec = pending.build_spec
        order = replace(self.order(build_spec, (), frozenset()), config=None)
        outcome = _result(self.submit(build_spec, run_trial, order), self.known.formats)
        self._count(pending.purpose, build_spec, outcome)
        self.known.remember(build_spec, (), outcome)
        runs: dict[str, Outputs | Failure] = {}
        for sample in pending.samples:
            trial = self._finish(self._start(build_spec, (sample,), pending.purpose))
            runs.update(trial.runs)
            if any(isinstance(r, Failure) for r in trial.runs.values()):
                break
        build = self.known.recall_build(build_spec)
        assert build is not None
        return self._compose(build_spec, build, runs, pending.samples)

    def _compose(
        self,
        build_spec: BuildSpec,
        build: Build,
        runs: Mapping[str, Outputs | Failure],
        samples: Sequence[Sample],
    ) -> Trial:
        alignment = None
        if build_spec.optimizer is not None and build.facts:
            allowed = self.case.passes.interface(build_spec.passes)
            alignment = align(self.model, build.facts, allowed)
        ordered = {s.id: runs[s.id] for s in samples if s.id in runs}
        return Trial(build_spec.passes, build, alignment, ordered, build_spec.optimizer is not None)

    def _count(self, purpose: str, build_spec: BuildSpec, outcome: Outcome[TrialReport]) -> None:
        builds = int(build_spec.optimizer is not None)
        self.ledger.add(purpose, applications=builds, inferences=_inferences(outcome))

    def warnings_of(self, passes: Sequence[str] | None, samples: Sequence[Sample]) -> list[Warned]:
        """The warnings of a trial that was made: of one build, one load, and a run per sample."""
        return self.known.warnings_of(self.build_spec(passes), samples)


def isolate(runner: TrialRunner) -> TrialRunner:
    """``runner`` with every trial of the optimizer in a process that makes no other.

    What is known of trials that shared a process is not used: one may have changed another.
    """
    alone = copy.copy(runner)
    alone.isolated, alone.known = True, runner.known.drop_shared_trials()
    return alone


def _result(
    future: Future[Outcome[TrialReport]], formats: Mapping[str, LogFormat]
) -> Outcome[TrialReport]:
    """The outcome; a message of a crash has no warnings, which would stand for its cause."""
    outcome = future.result()
    failure = outcome.failure
    if failure is None:
        return outcome
    words = without_warnings(failure.message, formats)
    words = words or f"died of {failure.signal} without a message"
    return replace(outcome, failure=replace(failure, message=words))


def _inferences(outcome: Outcome[TrialReport]) -> int:
    """Number of samples that a trial ran, including a failed one."""
    report = outcome.value
    ran = len(report.outputs) + bool(report.failed_sample) if report else 0
    return ran + bool(outcome.failure and outcome.failure.stage == "run")


@dataclass(frozen=True)
class _Pending:
    build_spec: BuildSpec
    samples: tuple[Sample, ...]
    purpose: Purpose
    future: Future[Outcome[TrialReport]] | None


_REFUSALS = {qualified_name(kind): kind for kind in REFUSALS}
"""By full name: an InputError class of another library is a symptom of the optimizer."""


def refuse_misuse(failure: Failure | None) -> None:
    """Re-raise errors by which a plugin rejects its input; these are not findings."""
    misuse = _REFUSALS.get(failure.error_type) if failure is not None else None
    if misuse is not None and failure is not None:
        raise misuse(failure.message)


def _failure_in(outcome: Outcome[TrialReport]) -> Failure | None:
    """The failure of a trial: of its process, or in its report."""
    return outcome.failure or (outcome.value.failure if outcome.value is not None else None)


def _refuse_killed_original(failure: Failure | None) -> None:
    """Raise if the original's process was killed from outside: nothing can be compared then."""
    if failure is not None and failure.kind == "killed":
        raise InfrastructureError(
            f"the original model could not be run: {failure.message}; find out who kills processes "
            "here (an operator, a memory watchdog, a batch system) and run again"
        )


def _died_running(outcome: Outcome[TrialReport]) -> bool:
    return outcome.failure is not None and outcome.failure.stage in ("load", "run")
