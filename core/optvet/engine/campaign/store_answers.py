"""Writes plans and answers to a store, each in one transaction."""

from __future__ import annotations

import json
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from optvet.engine.campaign.artifacts import NewArtifact, add_artifacts
from optvet.engine.campaign.conversion_findings import findings_of, numbers_of
from optvet.engine.campaign.leases import Clock, Owner, end_attempt, owns
from optvet.engine.campaign.plan import Job, Plan, tool_of
from optvet.engine.campaign.precision_findings import findings_of_search, numbers_of_search
from optvet.engine.campaign.results import JobAnswered, StoredCampaign, campaigns, verdict_of
from optvet.engine.campaign.store import CampaignStore
from optvet.engine.database import MOST_VALUE_BYTES
from optvet.engine.work.cache.cache_key import key
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.campaign import kind_of
from optvet.spec.errors import OptvetError
from optvet.spec.records import ErrorRecord, Finding, VetResult
from optvet.spec.records.convert import ConversionResult
from optvet.spec.records.error import ErrorSource
from optvet.spec.records.precision import PrecisionResult
from optvet.spec.request import VetRequest

_CALLED = re.compile(r"= ([\w.]+)")
"""The operator in the text of a node."""
_NUMBERS = ("applications", "inferences", "wall_s")


def add_campaign(store: CampaignStore, plan: Plan, clock: Clock = time.time) -> StoredCampaign:
    """The campaign of ``plan``; added with its jobs if the store does not have it yet.

    Jobs of an earlier campaign with the same key are shared, and not run again.
    """
    with store.transaction() as database:
        query = "SELECT id FROM campaigns WHERE plan = ?"
        row = database.execute(query, (plan.digest,)).fetchone()
        if row is None:
            database.execute(
                "INSERT INTO campaigns (name, plan, source, settings, created) "
                "VALUES (?, ?, '', '{}', ?)",
                (plan.name, plan.digest, clock()),
            )
            row = database.execute(query, (plan.digest,)).fetchone()
        # A new baseline or size limit changes no job.
        update = "UPDATE campaigns SET name = ?, source = ?, settings = ? WHERE id = ?"
        about = (plan.name, plan.text, json.dumps(plan.settings), row["id"])
        database.execute(update, about)
        _settle(database, row["id"], plan)
    return next(campaign for campaign in campaigns(store) if campaign.id == row["id"])


def _settle(database: sqlite3.Connection, campaign: int, plan: Plan) -> None:
    """Make the jobs of a campaign those of its plan, whatever the store says they are."""
    rows = [_job_row(job) for job in plan.jobs]
    database.executemany(_INSERT_JOB, rows)
    database.executemany(_UPDATE_JOB, [(*row[1:], row[0]) for row in rows])
    positions = [(campaign, number, job.key) for number, job in enumerate(plan.jobs)]
    query = "SELECT campaign, position, job FROM campaign_jobs WHERE campaign = ? ORDER BY position"
    if list(map(tuple, database.execute(query, (campaign,)))) != positions:
        database.execute("DELETE FROM campaign_jobs WHERE campaign = ?", (campaign,))
        database.executemany("INSERT INTO campaign_jobs VALUES (?, ?, ?)", positions)
    database.execute(
        "UPDATE jobs SET expected_s = coalesce((SELECT max(wall_s) FROM jobs AS others "
        "WHERE others.model_digest = jobs.model_digest), 0) WHERE state = 'queued'"
    )


_UPDATE_JOB = (
    "UPDATE jobs SET cell = ?, request = ?, versions = ?, model = ?, model_digest = ?, "
    "optimizer = ?, pipeline = ?, dataset = ?, runtime = ?, comparator = ?, bundles = ?, kind = ? "
    "WHERE key = ?"
)
_INSERT_JOB = (
    "INSERT OR IGNORE INTO jobs (key, cell, request, versions, model, model_digest, optimizer, "
    "pipeline, dataset, runtime, comparator, bundles, kind) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _job_row(job: Job) -> tuple[object, ...]:
    request = job.request
    pipeline = request.pipeline if isinstance(request, VetRequest) else ""
    return (
        job.key,
        job.cell,
        request.model_dump_json(),
        json.dumps(job.versions),
        request.model,
        job.model_digest,
        tool_of(request),
        pipeline,
        " + ".join(request.dataset),
        request.runtime or "",
        request.comparator or "",
        int(job.bundles),
        kind_of(request),
    )


def retry(store: CampaignStore, campaign: StoredCampaign) -> int:
    """Queue the failed jobs of a campaign again; returns their number."""
    with store.transaction() as database:
        return database.execute(
            "UPDATE jobs SET state = 'queued', owner = NULL, document = NULL, verdict = NULL "
            "WHERE state = 'failed' AND key IN (SELECT job FROM campaign_jobs WHERE campaign = ?)",
            (campaign.id,),
        ).rowcount


def record(
    store: CampaignStore,
    owner: Owner,
    job: str,
    answer: JobAnswered,
    wall_s: float,
    files: Sequence[NewArtifact] = (),
    clock: Clock = time.time,
) -> bool:
    """Store the answer of ``job``, all of it or nothing; False if ``owner`` has lost its claim.

    Raises:
        WorkerLost: One of ``files`` is missing in the store's folder.
    """
    text = answer.to_json().encode()
    if len(text) > MOST_VALUE_BYTES:
        words = f"the answer has {len(text):,} bytes, and a store takes {MOST_VALUE_BYTES:,}"
        answer = ErrorRecord(
            schema="optvet.error/1",
            model=ErrorSource(source=job),
            error="InfrastructureError",
            message=words,
            exit_code=OptvetError.exit_code,
        )
        text = answer.to_json().encode()
    failed = isinstance(answer, ErrorRecord) and answer.exit_code == OptvetError.exit_code
    verdict = verdict_of(answer)
    code = answer.exit_code if isinstance(answer, ErrorRecord) else None
    document = zlib.compress(text)
    with store.transaction() as database:
        if not owns(database, job, owner):
            return False
        for table in ("findings", "metrics", "finding_artifacts"):
            database.execute(f"DELETE FROM {table} WHERE job = ?", (job,))
        state = "failed" if failed else "done"
        database.execute(
            "UPDATE jobs SET state = ?, owner = NULL, verdict = ?, exit_code = ?, wall_s = ?, "
            "finished = ?, document = ? WHERE key = ?",
            (state, verdict, code, wall_s, clock(), document, job),
        )
        database.execute(
            "UPDATE jobs SET expected_s = :took WHERE expected_s < :took "
            "AND model_digest = (SELECT model_digest FROM jobs WHERE key = :job)",
            {"took": wall_s, "job": job},
        )
        end_attempt(database, job, "failed" if failed else "done", clock())
        if isinstance(answer, VetResult):
            _add_findings(database, job, answer.findings, lambda f: identity(answer, f))
            _add_metrics(database, job, _metrics(answer))
            add_artifacts(store, job, files, clock)
        elif isinstance(answer, ConversionResult):
            _add_findings(database, job, findings_of(answer), lambda f: str(f.fingerprint))
            _add_metrics(database, job, [*_on_task(answer), *numbers_of(answer)])
        elif isinstance(answer, PrecisionResult):
            found = findings_of_search(answer)
            _add_findings(database, job, found, lambda f: str(f.fingerprint))
            _add_metrics(database, job, numbers_of_search(answer))
    return True


def finish(store: CampaignStore, campaign: StoredCampaign, clock: Clock = time.time) -> None:
    """Store the current time as the time at which a campaign finished, unless it has one."""
    with store.transaction() as database:
        database.execute(
            "UPDATE campaigns SET finished = ? WHERE id = ? AND finished IS NULL",
            (clock(), campaign.id),
        )


def identity(result: VetResult, finding: Finding) -> str:
    """A key that findings of one defect share: the fingerprint, or a substitute for it.

    The substitute consists of optimizer, culprit, symptom, stage, the message without names and
    numbers, and the operator that computes the wrong value.
    """
    if finding.fingerprint is not None:
        return finding.fingerprint
    shape: list[str] = []
    if finding.divergence is not None:
        shape = sorted(
            {line.partition("(")[0].split("=")[-1] for line in finding.divergence.before}
        )
    words = "" if finding.stage == "compare" else normalized_message(finding.message)
    about = (result.optimizer.name, finding.culprit, str(finding.symptom), finding.stage)
    return key("finding", *about, words, shape)[:16]


def _add_findings(
    database: sqlite3.Connection,
    job: str,
    found: Sequence[Finding],
    known_as: Callable[[Finding], str],
) -> None:
    rows = [
        (
            job,
            number,
            known_as(finding),
            str(finding.symptom),
            finding.severity,
            finding.stage,
            json.dumps(finding.culprit),
            int(finding.confirmed),
            finding.error,
            finding.noise_floor,
            finding.message,
            finding.model_dump_json(by_alias=True),
        )
        for number, finding in enumerate(found)
    ]
    database.executemany(f"INSERT INTO findings VALUES ({', '.join('?' * 12)})", rows)


def _add_metrics(
    database: sqlite3.Connection, job: str, numbers: Iterable[tuple[str, str, float | None]]
) -> None:
    unique = {(kind, name): value for kind, name, value in numbers}
    rows = [(job, kind, name, value) for (kind, name), value in unique.items()]
    database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", rows)


def _metrics(result: VetResult) -> Iterable[tuple[str, str, float | None]]:
    """Kind, name and value of each number of a result."""
    yield from _on_task(result)
    for name in _NUMBERS:
        yield "cost", name, float(getattr(result.cost, name))
    yield "model", "nodes", result.model.nodes
    yield "model", "size_bytes", result.model.size_bytes
    yield "model", "samples", result.samples


def _on_task(
    result: VetResult | ConversionResult,
) -> Iterator[tuple[str, str, float | None]]:
    """Errors of outputs, and what they mean for the task."""
    for output in result.outputs:
        yield "output", f"{output.name}.error", output.error
        yield "output", f"{output.name}.noise_floor", output.noise_floor
    if result.impact is None:
        return
    yield "impact", "changed", result.impact.changed
    yield "impact", "sensitive", result.impact.sensitive
    yield "impact", "samples", result.impact.samples
    for name, value in result.impact.metrics.items():
        yield "impact", f"{result.impact.comparator}.{name}", value
