"""Makes the value that reporters get from a stored campaign; it does not refer to the store."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress

import optvet
from optvet.engine.campaign.artifacts import artifacts, content_of
from optvet.engine.campaign.display_names import questions, short_models
from optvet.engine.campaign.documents import summary_of
from optvet.engine.campaign.results import (
    JobResult,
    StoredCampaign,
    StoredFinding,
    findings,
    trials,
)
from optvet.engine.campaign.store import CampaignStore
from optvet.engine.campaign.tables.rows import in_short
from optvet.engine.contract import checked_calls
from optvet.spec.campaign import JobRequest, kind_of
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import InputError
from optvet.spec.precision import PrecisionRequest
from optvet.spec.protocols import FindingFiles, Reporter
from optvet.spec.records import FindingGroup, TrialSummary
from optvet.spec.records.charts import Chart
from optvet.spec.records.report import (
    CampaignReport,
    ReportedFinding,
    ReportedTrial,
    Sighting,
)
from optvet.spec.records.report_table import ReportTable
from optvet.spec.records.verified import verified_of, verified_parts
from optvet.spec.records.vet import Finding
from optvet.spec.request import VetRequest, arguments_of
from optvet.spec.words import printable

_OF_THE_STORE = ("cache_dir", "jobs", "trust", "reduce", "out", "save")
"""Fields that the printed command for one finding leaves out."""


def render_report(reporter: Reporter, report: CampaignReport, files: FindingFiles) -> str:
    """The document that ``reporter`` makes, without control characters.

    Raises:
        ContractError: The reporter did not return text.
    """
    return printable(
        checked_calls.ask(
            "reporter",
            reporter,
            "render",
            lambda: reporter.render(report, files),
            str,
            "a text",
        )
    )


def report_of(
    store: CampaignStore,
    campaign: StoredCampaign,
    tables: Sequence[ReportTable] = (),
    charts: Sequence[Chart] = (),
) -> CampaignReport:
    """The value that reporters get; ``tables`` and ``charts`` are shown as they are."""
    summary = summary_of(store, campaign)
    names = short_models(t.model for t in summary.trials)
    columns = questions(summary.trials)
    jobs: dict[str, tuple[ReportedTrial, JobRequest]] = {}
    for short, trial in zip(summary.trials, trials(store, campaign), strict=True):
        question = ", ".join(columns[short.key])
        jobs[trial.key] = _trial(short, trial, names[trial.model], question), trial.request
    rows: dict[str, list[StoredFinding]] = {}
    for row in findings(store, campaign):
        rows.setdefault(row.fingerprint, []).append(row)
    return CampaignReport(
        schema="optvet.report/1",
        optvet=optvet.__version__,
        name=summary.name,
        number=summary.number,
        created=summary.created,
        finished=summary.finished,
        versions=summary.versions,
        trials=[trial for trial, _ in jobs.values()],
        findings=[_finding(g, rows[g.fingerprint], jobs) for g in summary.findings],
        fixed=summary.fixed,
        unseen=summary.unseen,
        tables=list(tables),
        charts=list(charts),
    )


def files_of(store: CampaignStore, finding: ReportedFinding) -> dict[str, bytes]:
    """Files of the first stored bundle of ``finding``, without damaged ones."""
    for sighting in finding.sightings:
        kept = artifacts(store, sighting.trial, sighting.number)
        if not kept:
            continue
        contents = {}
        for file in kept:
            with suppress(InputError):
                contents[file.name] = content_of(file)
        return contents
    return {}


def _trial(
    summary: TrialSummary, trial: JobResult, short_name: str, question: str
) -> ReportedTrial:
    fields = {
        **dict(summary),
        "short_name": short_name,
        "question": question,
        "command": _again(trial.request),
    }
    if (conversion := trial.conversion) is not None:
        return ReportedTrial(
            **fields,
            optimizer_version=", ".join(f"{c.name} {c.version}" for c in conversion.converters),
            judged_by=f"{conversion.source.runtime} {conversion.source.version}",
            samples=conversion.samples,
            outputs=conversion.outputs,
            impact=in_short(conversion.impact),
        )
    answer = trial.result or trial.precision
    if answer is None:
        return ReportedTrial(**fields)
    fields |= {
        "task": answer.model.task,
        "nodes": answer.model.nodes,
        "size_bytes": answer.model.size_bytes,
        "opsets": answer.model.opsets,
        "optimizer_version": answer.optimizer.version,
        "judged_by": f"{answer.runtime.name} {answer.runtime.version}",
        "samples": answer.samples,
    }
    result = trial.result
    if trial.precision is not None:
        return ReportedTrial(**fields, verified=verified_parts(trial.precision))
    if result is None:
        return ReportedTrial(**fields)
    assert isinstance(trial.request, VetRequest)
    return ReportedTrial(
        **fields,
        outputs=result.outputs,
        impact=in_short(result.impact),
        new_warnings=[w for w in result.warnings if w.new],
        verified=verified_of(result, trial.request.pipeline),
    )


def _finding(
    group: FindingGroup,
    rows: Sequence[StoredFinding],
    jobs: dict[str, tuple[ReportedTrial, JobRequest]],
) -> ReportedFinding:
    sightings = []
    for row in rows:
        trial, request = jobs[row.trial]
        sightings.append(
            Sighting(
                trial=row.trial,
                number=row.number,
                model=row.model,
                short_name=trial.short_name,
                question=trial.question,
                error=row.finding.error,
                noise_floor=row.finding.noise_floor,
                message=row.finding.message,
                command=_again(request, row.finding),
            )
        )
    return ReportedFinding(**dict(group), finding=rows[0].finding, sightings=sightings)


def _again(request: JobRequest, finding: Finding | None = None) -> str:
    """The shortest command that repeats a job, or shows a finding of it again."""
    if isinstance(request, ConvertRequest | PrecisionRequest):
        arguments = arguments_of(request, request.model, _OF_THE_STORE)
        return _command(kind_of(request), arguments)
    if finding is None:
        return _command("vet", request.arguments(_OF_THE_STORE))
    more: dict[str, object] = {}
    leave_out: tuple[str, ...] = _OF_THE_STORE
    if finding.culprit:
        request = request.with_pipeline(",".join(finding.culprit))
        leave_out = (*leave_out, "strategy", "pairs")
    if finding.witness is not None and request.dataset:
        more["dataset"] = (finding.witness.dataset,)
    return _command("vet", request.model_copy(update=more).arguments(leave_out))


def _command(name: str, arguments: Iterable[str]) -> str:
    return shlex.join(["optvet", name, *arguments])
