"""Runs the queued jobs of a campaign: claims, runs and stores until none is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from optvet.engine.bundle.write import Draw
from optvet.engine.campaign.artifacts import NewArtifact, collect_garbage, folder_of, keep
from optvet.engine.campaign.costs import Costs
from optvet.engine.campaign.damage import damage_error
from optvet.engine.campaign.job import BUG, Bundling, JobAnswer, run_job
from optvet.engine.campaign.leases import (
    BEAT_S,
    Owner,
    beat,
    claim,
    join,
    leave,
    release,
    take_back,
    this_process,
)
from optvet.engine.campaign.payloads import pack_model
from optvet.engine.campaign.results import (
    JobAnswered,
    JobResult,
    StoredCampaign,
    answer_from,
    states,
    trial,
    trials,
)
from optvet.engine.campaign.store import CampaignStore
from optvet.engine.campaign.store_answers import finish, record, retry
from optvet.engine.contract import other_returns
from optvet.engine.discovery import Plugins
from optvet.engine.options import parse_options
from optvet.spec.campaign import STORE_BYTES, JobRequest
from optvet.spec.errors import OptvetError
from optvet.spec.executor import WorkerLost, Workers, WorkersExtras
from optvet.spec.extras import given
from optvet.spec.records import ErrorRecord
from optvet.spec.records.error import ErrorSource

_LOOK_S = 0.5
LOSSES = 3
"""After so many lost workers a job is recorded as failed."""


@dataclass(frozen=True)
class Event:
    """Something that happened while a campaign ran.

    Attributes:
        kind: A job was started; reports progress; was answered; lost its worker and is queued
            again; or other processes run the remaining jobs ("waiting").
        trial: The job, with its answer if there is one; None for "waiting".
        slot: Index of its worker, from 0.
        text: The progress, or why the worker was lost.
        left: Number of jobs of the campaign without an answer.
        eta_s: Estimated seconds until all are answered; None if unknown.
    """

    kind: Literal["started", "progress", "answered", "lost", "waiting"]
    trial: JobResult | None = None
    slot: int = 0
    text: str = ""
    left: int = 0
    eta_s: float | None = None


@dataclass
class _Running:
    trial: JobResult
    slot: int
    started: float


@dataclass
class _Runner:
    store: CampaignStore
    campaign: StoredCampaign
    requests: Mapping[str, JobRequest]
    workers: Workers
    owner: Owner
    on_event: Callable[[Event], None]
    costs: Costs
    bundling: Bundling
    running: dict[Future[JobAnswer], _Running] = field(default_factory=dict)
    near: dict[int, str] = field(default_factory=dict)
    """The optimizer of each slot's last job."""
    losses: dict[str, int] = field(default_factory=dict)
    beaten: float = 0.0

    def run(self) -> None:
        """Until every job of the campaign has an answer."""
        while True:
            self._beat()
            self._fill()
            if self.running:
                timeout_s = _LOOK_S if self._idle else BEAT_S
                done, _ = wait(self.running, timeout_s, return_when=FIRST_COMPLETED)
                for future in done:
                    self._take(future)
                continue
            left = states(self.store, self.campaign)
            if not left["queued"] and not left["running"]:
                return
            # Another process runs the remaining jobs; if it dies, they are queued again.
            self._tell("waiting", text=f"{left['running']} jobs are run by another process")
            time.sleep(_LOOK_S)

    @property
    def _idle(self) -> bool:
        return len(self.running) < self.workers.count

    def _beat(self) -> None:
        if time.monotonic() - self.beaten > BEAT_S:
            beat(self.store, self.owner)
            take_back(self.store)
            self.beaten = time.monotonic()

    def _fill(self) -> None:
        while self._idle:
            taken = {r.slot for r in self.running.values()}
            slot = next(n for n in range(self.workers.count) if n not in taken)
            near = self.near.get(slot, "")
            key = claim(self.store, self.campaign.id, self.owner, near=near)
            if key is None:
                return
            request = self.requests.get(key)
            if request is None:
                release(self.store, self.owner, [key])
                raise damage_error(self.store.path, f"no campaign has its job {key[:12]!r}")
            job = trial(self.store, key)
            self.near[slot] = job.optimizer
            self._tell("started", job, slot)

            def report(text: str, job: JobResult = job, slot: int = slot) -> None:
                self.on_event(Event("progress", job, slot, text))

            bundling = self.bundling if job.bundles else None
            payload = None if self.bundling.folder is not None else pack_model(request)
            submit: Callable[..., Future[JobAnswer]] = self.workers.submit
            if submit_to := given(self.workers, WorkersExtras.submit_to):
                submit = partial(submit_to, slot)
            future = submit(run_job, request, bundling, payload, report=report)
            self.running[future] = _Running(job, slot, time.monotonic())

    def _take(self, future: Future[JobAnswer]) -> None:
        """Store the answer of a job."""
        about = self.running.pop(future)
        waited_s = time.monotonic() - about.started
        try:
            answer = future.result()
            for file in answer.files:
                if file.content is not None:
                    keep(folder_of(self.store), file.content)
            document = answer_from(answer.document)
            self._record(about, document, answer.wall_s, answer.files)
        except WorkerLost as error:
            self._record_loss(about, error)
        except OptvetError:
            raise
        except Exception as error:  # a bug, or the executor's fault
            words = f"{type(error).__name__}: {error}"
            self._record(about, _error_record(about.trial, BUG, words), waited_s)

    def _record_loss(self, about: _Running, error: WorkerLost) -> None:
        """Queue a job whose worker was lost again; after ``LOSSES`` times record it as failed."""
        key = about.trial.key
        self.losses[key] = self.losses.get(key, 0) + 1
        if self.losses[key] < LOSSES:
            release(self.store, self.owner, [key], "lost")
            self._tell("lost", about.trial, about.slot, text=str(error))
            return
        words = f"{error}, each of {LOSSES} times; look for what kills processes here"
        failed = _error_record(about.trial, "WorkerLost", words)
        self._record(about, failed, time.monotonic() - about.started)

    def _record(
        self,
        about: _Running,
        answer: JobAnswered,
        wall_s: float,
        files: Sequence[NewArtifact] = (),
    ) -> None:
        record(self.store, self.owner, about.trial.key, answer, wall_s, files)
        self.costs.learn(about.trial, wall_s)
        self._tell("answered", trial(self.store, about.trial.key), about.slot)

    def _tell(
        self,
        kind: Literal["started", "answered", "lost", "waiting"],
        about: JobResult | None = None,
        slot: int = 0,
        text: str = "",
    ) -> None:
        counts = states(self.store, self.campaign)
        left = counts["queued"] + counts["running"]
        eta_s = self.costs.eta_s(self.workers.count)
        self.on_event(Event(kind, about, slot, text, left, eta_s))


def run_campaign(
    store: CampaignStore,
    campaign: StoredCampaign,
    requests: Mapping[str, JobRequest],
    start: Callable[[], Workers],
    *,
    shares_disk: bool = True,
    draw: Draw | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> None:
    """Answer every job of ``campaign`` that has no answer yet.

    Other processes may do the same at the same time; each job is run by one of them. Ctrl-C ends
    it, and so does any exception that ``on_event`` raises; answers are kept, other jobs are queued.

    Args:
        store: The store of the campaign.
        campaign: The campaign.
        requests: What is executed, by the key of the job: what a file says or the user trusts. The
            requests that stand in the store are not.
        start: Starts the workers; not called if no job is queued.
        shares_disk: Whether the workers can read the files of this machine and of the store.
        draw: Makes the pictures of bundles, if given; importable in a worker.
        on_event: Called with each event, in any thread.

    Raises:
        InfrastructureError: No worker can be started, or the store cannot be written.
        InputError: The store has a job that ``requests`` has not.
    """
    take_back(store)
    counts = states(store, campaign)
    if counts["queued"] or counts["running"]:
        with _owner(store) as owner, _start(start) as workers:
            costs = Costs.of(trials(store, campaign))
            bundling = Bundling(folder_of(store).absolute() if shares_disk else None, draw)
            _Runner(store, campaign, requests, workers, owner, on_event, costs, bundling).run()
    finish(store, campaign)
    collect_garbage(store, int(campaign.settings.get("store_size", STORE_BYTES)))


def run_on_executor(
    store: CampaignStore,
    campaign: StoredCampaign,
    requests: Mapping[str, JobRequest],
    plugins: Plugins,
    *,
    executor: str,
    executor_options: Mapping[str, Any],
    jobs: int | None,
    retry_failed: bool,
    draw: Draw,
    on_event: Callable[[Event], None],
) -> None:
    """Answer every job of ``campaign`` that has no answer yet on an executor that is named.

    Args:
        store: As for ``run_campaign``.
        campaign: As for ``run_campaign``.
        requests: As for ``run_campaign``.
        plugins: Where the executor is looked up.
        executor: Its name.
        executor_options: Its options, as they were given.
        jobs: Jobs at a time; None for what the executor takes to be right.
        retry_failed: Whether jobs that ended in an error are run again.
        draw: As for ``run_campaign``.
        on_event: As for ``run_campaign``.

    Raises:
        UsageError: There is no such executor, or it has no such option.
        InfrastructureError: As for ``run_campaign``.
        InputError: As for ``run_campaign``.
    """
    where = plugins.executor(executor)
    # Before jobs are queued again: a misspelt option leaves the store as it was.
    options = parse_options(executor, where.options, executor_options)
    if retry_failed:
        retry(store, campaign)
    run_campaign(
        store,
        campaign,
        requests,
        lambda: other_returns.check_workers(where, options, jobs),
        shares_disk=where.shares_disk,
        draw=draw,
        on_event=on_event,
    )


@contextmanager
def _owner(store: CampaignStore) -> Iterator[Owner]:
    owner = this_process()
    join(store, owner)
    try:
        yield owner
    finally:
        leave(store, owner)


@contextmanager
def _start(start: Callable[[], Workers]) -> Iterator[Workers]:
    workers = start()
    try:
        yield workers
    finally:
        workers.close()


def _error_record(job: JobResult, error: str, words: str) -> ErrorRecord:
    return ErrorRecord(
        schema="optvet.error/1",
        model=ErrorSource(source=job.model),
        error=error,
        message=words,
        exit_code=OptvetError.exit_code,
    )
