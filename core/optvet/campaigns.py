"""Campaigns in Python: many models and optimizers, with all answers kept in a store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optvet.api import Progress, ignore_progress
from optvet.engine.work.cache.disk import cache_root
from optvet.spec.keywords import PathLike

if TYPE_CHECKING:
    from optvet.engine.campaign import Digests, Event, StoredCampaign
    from optvet.engine.campaign.plan import Plan
    from optvet.engine.campaign.store import CampaignStore
    from optvet.spec.records import CampaignSummary
    from optvet.spec.records.convert import ConversionResult
    from optvet.spec.records.precision import PrecisionResult
    from optvet.spec.records.vet import VetResult


class Campaign:
    """A campaign file and its store; see docs/campaigns.md.

    Attributes:
        file: The campaign file.
        store: The folder with the answers.
    """

    def __init__(
        self, file: PathLike, *, store: PathLike | None = None, trust: bool = False
    ) -> None:
        """Name a campaign; nothing is read or written yet.

        Args:
            file: The campaign file.
            store: Where answers are kept; by default a folder beside the file, with its name.
            trust: Whether the file, and records beside models, may name code.
        """
        self.file = Path(os.fspath(file))
        self.store = self.file.with_suffix(".store") if store is None else Path(os.fspath(store))
        self._trust = trust

    def __repr__(self) -> str:
        return f"<Campaign: {self.file}, answers in {self.store}>"

    def run(
        self,
        *,
        jobs: int | None = None,
        executor: str = "local",
        executor_options: Mapping[str, Any] = {},
        retry: bool = False,
        cache_dir: PathLike | None = None,
        progress: Progress = ignore_progress,
    ) -> CampaignSummary:
        """Run every job that has no answer yet, as ``optvet campaign run`` does.

        Args:
            jobs: Jobs at a time; None for what the executor takes to be right.
            executor: Where jobs run.
            executor_options: Options of the executor, by name.
            retry: Whether jobs that ended in an error are run again.
            cache_dir: Where models and results are cached.
            progress: Called with what has just happened, the jobs that are answered, and all.

        Raises:
            UsageError: The file is wrong, or the store cannot be used.
            InfrastructureError: No worker can be started.
        """
        from optvet.engine.campaign import (
            add_campaign,
            plan_campaign,
            planned_store,
            read_campaign,
            run_on_executor,
            states,
            summary_of,
        )
        from optvet.engine.discovery import Plugins
        from optvet.report.graph_svg import draw

        plugins = Plugins()

        def plan_with(digests: Digests) -> Plan:
            source = read_campaign(self.file, plugins, trust=self._trust)
            return plan_campaign(
                source,
                plugins,
                digests,
                cache_dir=Path(cache_dir or cache_root()),
                trust=self._trust,
                progress=progress,
            )

        with planned_store(self.store, plan_with) as (store, plan):
            campaign = add_campaign(store, plan)
            total = sum(states(store, campaign).values())

            def follow(event: Event) -> None:
                about = event.trial.model if event.trial is not None else event.kind
                progress(f"{event.kind} {about}", total - event.left, total)

            run_on_executor(
                store,
                campaign,
                plan.requests,
                plugins,
                executor=executor,
                executor_options=executor_options,
                jobs=jobs,
                retry_failed=retry,
                draw=draw,
                on_event=follow,
            )
            return summary_of(store, campaign)

    def summary(self) -> CampaignSummary:
        """What the last run found, as ``optvet campaign show`` has it.

        Raises:
            UsageError: There is no store yet.
        """
        from optvet.engine.campaign import summary_of

        with self._open() as (store, campaign):
            return summary_of(store, campaign)

    def results(self) -> Iterator[VetResult | ConversionResult | PrecisionResult]:
        """The answers of the last run, one in memory at a time; jobs without one are left out."""
        from optvet.engine.campaign import trials

        with self._open() as (store, campaign):
            for job in trials(store, campaign):
                answer = job.result or job.conversion or job.precision
                if answer is not None:
                    yield answer

    @contextmanager
    def _open(self) -> Iterator[tuple[CampaignStore, StoredCampaign]]:
        from optvet.engine.campaign import find_campaign, open_store

        with open_store(self.store, to_read=True) as store:
            yield store, find_campaign(store)
