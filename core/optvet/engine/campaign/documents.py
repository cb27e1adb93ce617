"""Makes the documents that commands show and write from the content of a store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optvet.engine.campaign.baseline import against
from optvet.engine.campaign.conversion_findings import findings_of, reason_of
from optvet.engine.campaign.costs import Costs
from optvet.engine.campaign.leases import Clock, running_jobs
from optvet.engine.campaign.precision_findings import findings_of_search
from optvet.engine.campaign.results import (
    JobResult,
    StoredCampaign,
    StoredFinding,
    campaigns,
    findings,
    states,
    trials,
)
from optvet.engine.campaign.store import CampaignStore
from optvet.spec.campaign import JobRequest, ReleaseRequest
from optvet.spec.convert import ConvertRequest
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records import Finding
from optvet.spec.records.campaign import (
    Baseline,
    CampaignState,
    CampaignStatus,
    CampaignSummary,
    FindingGroup,
    RunningJob,
    TrialSummary,
)
from optvet.spec.records.reading import read_document


def status_of(store: CampaignStore, clock: Clock = time.time) -> CampaignStatus:
    """The progress of all campaigns of a store."""
    now = clock()
    return CampaignStatus(
        schema="optvet.campaign-status/1",
        store=str(store.path),
        campaigns=[_state(store, campaign) for campaign in campaigns(store)],
        running=[
            RunningJob(
                model=row["model"],
                optimizer=row["optimizer"],
                pipeline=row["pipeline"],
                owner=row["owner"],
                alive=alive,
                since_s=max(0.0, now - row["started"]),
            )
            for row, alive in running_jobs(store, clock)
        ],
    )


def _state(store: CampaignStore, campaign: StoredCampaign) -> CampaignState:
    return CampaignState(
        name=campaign.name,
        number=campaign.id,
        created=campaign.created,
        finished=campaign.finished,
        **states(store, campaign),
        work_left_s=Costs.of(trials(store, campaign)).eta_s(1),
    )


def summary_of(
    store: CampaignStore, campaign: StoredCampaign, baseline: Baseline | None = None
) -> CampaignSummary:
    """The summary of a campaign; ``baseline`` replaces the one that it was run with."""
    stored = campaign.settings.get("baseline")
    if baseline is None and stored is not None:
        baseline = read_document(Baseline, stored)
    versions: dict[str, str] = {}
    listed: list[TrialSummary] = []
    for trial in trials(store, campaign):
        versions |= trial.versions
        listed.append(summary_of_trial(trial))
    found = CampaignSummary(
        schema="optvet.campaign/1",
        name=campaign.name,
        number=campaign.id,
        created=campaign.created,
        # ``campaign`` may have been read before it was run.
        finished=next(c.finished for c in campaigns(store) if c.id == campaign.id),
        versions=dict(sorted(versions.items())),
        trials=listed,
        findings=groups_of(findings(store, campaign), set(campaign.settings["fail_on"])),
    )
    return found if baseline is None else against(found, baseline)


def summary_of_trial(trial: JobResult) -> TrialSummary:
    """The summary of a job and its answer."""
    result, error, search = trial.result, trial.error, trial.precision
    found: Sequence[Finding] = result.findings if result else ()
    reason = result.reason if result else ""
    if search is not None:
        found, reason = findings_of_search(search), search.reason
    if trial.conversion is not None:
        found, reason = findings_of(trial.conversion), reason_of(trial.conversion)
    faults = [f for f in found if f.severity != "note"]
    return TrialSummary(
        key=trial.key,
        kind=trial.kind,
        model=trial.model,
        optimizer=trial.optimizer,
        pipeline=trial.pipeline,
        options=options_of(trial.request),
        dataset=trial.dataset,
        runtime=trial.runtime,
        comparator=trial.comparator,
        state=trial.state,
        verdict=trial.verdict,
        kept=None if search is None else len(search.kept),
        parts=None if search is None else search.parts,
        reason=reason,
        error=error.message if error else "",
        exit_code=trial.exit_code,
        faults=[f"{f.symptom}: {f.blamed()}" for f in faults],
        wall_s=trial.wall_s,
        attempts=trial.attempts,
    )


def options_of(request: JobRequest) -> str:
    """The release and the options of plugins in words; empty if none was asked for.

    Of a search for precision, what tells it from others of the precision comes first.
    """
    if isinstance(request, ConvertRequest):
        tables = (request.converter_options, request.comparator_options, request.dataset_options)
        return "; ".join(filter(None, (*request.require, options_in_words(tables))))
    if isinstance(request, PrecisionRequest):
        sums = "" if request.accumulate == "fp32" else f"sums in {request.accumulate}"
        tables = (request.optimizer_options, request.runtime_options, request.comparator_options)
        options = options_in_words((*tables, request.dataset_options))
        named = (request.optimizer, *request.require, sums, options)
        return "; ".join(words for words in named if words)
    options = options_in_words(request.plugin_options)
    return "; ".join(filter(None, (release_of(request), options)))


def release_of(request: JobRequest) -> str:
    """The release that a request asks about, such as "acme==1.30.0"; empty for the installed."""
    if not isinstance(request, ReleaseRequest):
        return ""
    return f"{request.package}=={request.release}"


def options_in_words(tables: Iterable[Mapping[str, Any]]) -> str:
    """Options by table in words; empty if there are none."""
    filled = filter(None, tables)
    words = (json.dumps(dict(each), sort_keys=True) for each in filled)
    return "; ".join(each.strip("{}").replace('"', "") for each in words)


def groups_of(found: Iterable[StoredFinding], counted: set[str]) -> list[FindingGroup]:
    """Findings grouped by fingerprint; faults first, then those in most models.

    Args:
        found: All findings.
        counted: Symptoms of notes that count as faults.
    """
    groups: dict[str, list[StoredFinding]] = {}
    for row in found:
        groups.setdefault(row.fingerprint, []).append(row)
    groups_made = [_group(rows, counted) for rows in groups.values()]
    return sorted(groups_made, key=lambda g: (not g.counts, -len(g.models)))


def _group(rows: list[StoredFinding], counted: set[str]) -> FindingGroup:
    first = rows[0].finding
    return FindingGroup(
        fingerprint=rows[0].fingerprint,
        optimizer=rows[0].optimizer,
        symptom=first.symptom,
        severity=first.severity,
        stage=first.stage,
        culprit=first.culprit,
        localized=first.localized,
        message=first.message,
        models=list(dict.fromkeys(row.model for row in rows)),
        trials=list(dict.fromkeys(row.trial for row in rows)),
        counts=first.severity != "note" or str(first.symptom) in counted,
    )
