"""The values that all stages of one vet share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.models import large
from optvet.engine.models.sources import with_suggestion
from optvet.engine.user_models import with_user_model
from optvet.engine.vet.find.probing import Probing
from optvet.engine.vet.impact.comparator_options import comparator_options
from optvet.engine.vet.impact.requirements import check_metrics, required_of
from optvet.engine.vet.ledger import FindingsLedger
from optvet.engine.work.cache.disk import Cache, cache_root
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.timing.stopwatch import MEASURES
from optvet.engine.work.trials.calibration import write_inputs
from optvet.engine.work.trials.case import Case, case_of
from optvet.engine.work.trials.inputs import Inputs, Slice
from optvet.engine.work.trials.participants import check_options, configure, fit_to_model
from optvet.engine.work.trials.server_modules import preload_for
from optvet.engine.work.trials.trial_runner import Progress, TrialRunner
from optvet.spec.optimizer_protocols import LowersPrecision
from optvet.spec.records import Finding, Witness
from optvet.spec.request import VetRequest
from optvet.spec.types import Model, Sample


@dataclass(frozen=True)
class VetSession:
    """One vet: the request, the trial runner that makes trials, and the findings so far."""

    request: VetRequest
    plugins: Plugins
    runner: TrialRunner
    ledger: FindingsLedger = field(default_factory=FindingsLedger)

    @property
    def case(self) -> Case:
        """The case that the trial runner tries."""
        return self.runner.case

    def at(self, runner: TrialRunner) -> VetSession:
        """The same session with another trial runner."""
        return replace(self, runner=runner)

    def runner_of(self, finding: Finding) -> TrialRunner:
        """The trial runner in which ``finding`` showed: mended models, as shipped, as it was."""
        runner, mends = self.runner, tuple(finding.mended)
        if finding.as_deployed:
            runner = runner.on(runner.case.shipped(self.request.runtime_options))
        return runner if mends == self.case.checks.mends else runner.under(mends=mends)

    def with_options(self, options: BaseModel) -> VetSession:
        """The same session with other options of its optimizer."""
        case = self.case
        optimizer = fit_to_model(configure(case.optimizer, options), options, case.model)
        return self.at(self.runner.on(replace(case, optimizer=optimizer, options=options)))

    def inputs(self) -> Inputs:
        """The samples of the request."""
        request = self.request
        return Inputs(
            self.case.model,
            self.plugins,
            request.dataset,
            request.dataset_options,
            cut=Slice(request.start, request.limit, request.shuffle, request.on_bad),
            seed=request.seed,
            probe=Probing(self.runner, request.timeout),
            memory_bytes=request.memory,
            trust=request.trust,
        )

    def find_samples(self, names: Iterable[str | None]) -> dict[str | None, Sample]:
        """The samples of these ids; None means the first sample."""
        wanted = set(names)
        found: dict[str | None, Sample] = {}
        for sample in self.inputs():
            if None in wanted:
                found[None] = sample
            if sample.id in wanted:
                found[sample.id] = sample
            wanted -= found.keys()
            if not wanted:
                break
        return found

    def witness(self, sample: Sample | None) -> Witness | None:
        """Where ``sample`` comes from, so that it can be made again; None for None."""
        if sample is None:
            return None
        return Witness(dataset=sample.origin, sample=sample.id, seed=self.request.seed)


@contextmanager
def open_session(
    model: Model,
    request: VetRequest,
    plugins: Plugins,
    *,
    progress: Progress = lambda text, done, total: None,
    sandbox: Sandbox | None = None,
) -> Iterator[VetSession]:
    """A session, closed at the end; starts a sandbox if none is given or the model is large.

    Raises:
        UsageError: A name or an option is wrong; raised before any trial.
    """
    request, plugins = with_user_model(request, plugins)
    model = with_suggestion(model, plugins)
    case = case_of(request, plugins, model)
    _check_names(request, plugins, model)
    preload = preload_for(case.optimizer, case.candidate.runtime)
    if request.measure:
        preload += (MEASURES,)
    wanted = request.jobs or default_jobs()
    jobs, fewer = large.jobs_that_fit(model, case.optimizer, wanted)
    root = request.cache_dir or cache_root()
    cache = Cache(root if request.cache else None)
    limits = Limits(
        request.timeout,
        request.memory,
        single_task=not large.keeps_workers(model, case.optimizer),
        keeps_memory=large.keeps_memory(model, case.optimizer),
        writable=(str(root / "scratch"),),
    )
    own = sandbox is None or large.is_large(model)
    if sandbox is None or own:
        sandbox = Sandbox(jobs=jobs, limits=limits, preload=preload)
    try:
        check_options(sandbox, case.optimizer, case.options, cache)
        check_options(sandbox, case.candidate.runtime, case.candidate.options, cache)
        with large.scratch_folder(model, root / "scratch") as scratch:
            runner = TrialRunner(
                case, sandbox, cache, jobs=jobs, progress=progress, scratch=scratch
            )
            session = VetSession(request, plugins, runner)
            if fewer:
                session.ledger.control("jobs", "limited", fewer)
            yield _with_ranges(session, root / "scratch")
    finally:
        cache.close()
        if own:
            sandbox.close()


def _with_ranges(session: VetSession, folder: Path) -> VetSession:
    """The session whose optimizer measures ranges on its samples, if it does and none are named.

    The options then name a file of ``folder`` with the first samples.
    """
    optimizer, options = session.case.optimizer, session.case.options
    if not isinstance(optimizer, LowersPrecision) or optimizer.on_inputs(options, folder) is None:
        return session
    samples = next(iter(session.inputs().chunks()), [])
    file = write_inputs(folder, [sample.feeds for sample in samples])
    ranged = optimizer.on_inputs(options, file)
    return session if ranged is None else session.with_options(ranged)


def default_jobs() -> int:
    """One worker per processor, at most eight."""
    return min(os.cpu_count() or 1, 8)


def _check_names(request: VetRequest, plugins: Plugins, model: Model) -> None:
    """Check the comparator and metrics now, since they are used only later, after a fault.

    Raises:
        UsageError: An option of the comparator, or a metric, does not exist.
    """
    wanted = request.comparator or model.config.comparator
    if request.comparator is not None or wanted in plugins.names("comparator"):
        comparator_options(plugins.comparator(str(wanted)), model, request)
    check_metrics(required_of(request, model), model, request, plugins)
