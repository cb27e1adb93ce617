"""Makes the value that reporters get from a stored campaign; it does not refer to the store."""

from __future__ import annotations

import shlex
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import optvet
from optvet.engine.campaign.artifacts import artifacts, content_of
from optvet.engine.campaign.display_names import questions, short_model, short_models
from optvet.engine.campaign.documents import groups_of, summary_of, summary_of_trial
from optvet.engine.campaign.leases import Clock
from optvet.engine.campaign.plan import question
from optvet.engine.campaign.results import (
    JobResult,
    StoredCampaign,
    StoredFinding,
    findings,
    trials,
    verdict_of,
)
from optvet.engine.campaign.store import CampaignStore
from optvet.engine.campaign.store_answers import identity
from optvet.engine.campaign.tables.rows import in_short
from optvet.engine.contract import checked_calls
from optvet.engine.work.cache.cache_key import key
from optvet.spec import foreign
from optvet.spec.campaign import JobRequest, kind_of
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import InputError, OptvetError
from optvet.spec.precision import PrecisionRequest
from optvet.spec.protocols import FindingFiles, Reporter
from optvet.spec.records import ErrorRecord, FindingGroup, TrialSummary
from optvet.spec.records.campaign import CampaignSummary
from optvet.spec.records.charts import Chart
from optvet.spec.records.report import (
    CampaignReport,
    ReportedFinding,
    ReportedTrial,
    Sighting,
)
from optvet.spec.records.report_table import ReportTable
from optvet.spec.records.verified import verified_of, verified_parts
from optvet.spec.records.vet import Finding, VetResult
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
    found = findings(store, campaign)
    # Not a list: one answer is in memory at a time.
    return _report_of_jobs(summary, trials(store, campaign), found, tables, charts)


def report_of_answers(
    answers: Sequence[tuple[VetRequest, VetResult | ErrorRecord]],
    fail_on: Collection[str] = (),
    clock: Clock = time.time,
) -> CampaignReport:
    """The value that reporters get for answers of ``vet`` that no store holds.

    Args:
        answers: Each request with its answer.
        fail_on: Symptoms of notes that count as faults.
        clock: The time, in seconds since 1970.
    """
    jobs = [_answered(request, answer) for request, answer in answers]
    rows = [row for job in jobs for row in _rows_of(job)]
    versions: dict[str, str] = {}
    for job in jobs:
        versions |= job.versions
    names = list(dict.fromkeys(job.model for job in jobs))
    summary = CampaignSummary(
        schema="optvet.campaign/1",
        name=short_model(names[0]) if len(names) == 1 else f"{len(names)} models",
        number=1,
        created=clock(),
        finished=clock(),
        versions=dict(sorted(versions.items())),
        trials=[summary_of_trial(job) for job in jobs],
        findings=groups_of(rows, set(fail_on)),
    )
    return _report_of_jobs(summary, jobs, rows)


def _answered(request: VetRequest, answer: VetResult | ErrorRecord) -> JobResult:
    """The job that a campaign would have had for ``request``."""
    asked = request.optimizer or ""
    versions: dict[str, str] = {}
    if isinstance(answer, VetResult):
        asked = answer.optimizer.name
        used = (answer.optimizer, answer.runtime)
        versions = {each.name: each.version for each in used if each.version}
    failed = isinstance(answer, ErrorRecord) and answer.exit_code == OptvetError.exit_code
    return JobResult(
        key=key("answer", question(request)),
        cell="",
        model=request.model,
        model_digest="",
        optimizer=asked,
        pipeline=request.pipeline,
        dataset=" + ".join(request.dataset),
        runtime=request.runtime or "",
        comparator=request.comparator or "",
        versions=versions,
        bundles=False,
        state="failed" if failed else "done",
        verdict=verdict_of(answer),
        exit_code=answer.exit_code if isinstance(answer, ErrorRecord) else None,
        wall_s=answer.cost.wall_s if isinstance(answer, VetResult) else None,
        finished=None,
        attempts=1,
        request_json=request.model_dump_json(),
        compressed=zlib.compress(answer.to_json().encode()),
    )


def _rows_of(job: JobResult) -> Iterator[StoredFinding]:
    """The findings of a job's answer, as a store has them."""
    result = job.result
    for number, finding in enumerate(result.findings if result is not None else ()):
        assert result is not None
        yield StoredFinding(
            job.key,
            number,
            identity(result, finding),
            job.model,
            job.optimizer,
            job.pipeline,
            job.runtime,
            finding,
        )


def _report_of_jobs(
    summary: CampaignSummary,
    answered: Iterable[JobResult],
    found: Iterable[StoredFinding],
    tables: Sequence[ReportTable] = (),
    charts: Sequence[Chart] = (),
) -> CampaignReport:
    names = short_models(t.model for t in summary.trials)
    columns = questions(summary.trials)
    jobs: dict[str, tuple[ReportedTrial, JobRequest]] = {}
    for short, trial in zip(summary.trials, answered, strict=True):
        asked = ", ".join(columns[short.key])
        jobs[trial.key] = _trial(short, trial, names[trial.model], asked), trial.request
    rows: dict[str, list[StoredFinding]] = {}
    for row in found:
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


def files_in(folder: Path, finding: ReportedFinding) -> dict[str, bytes]:
    """Files of the bundle of ``finding`` below ``folder``, if it was written."""
    bundle = finding.finding.bundle
    if bundle is None:
        return {}
    kept = foreign.files_in(folder / bundle)
    return {p.relative_to(folder / bundle).as_posix(): foreign.read_file(p) for p in kept}


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
