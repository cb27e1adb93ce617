"""The content of a store as values: campaigns, trials with their answers, findings, metrics.

Answers are the records of ``vet``, ``convert`` and ``precision``: a ``VetResult``,
``ConversionResult`` or ``PrecisionResult``, or an ``ErrorRecord`` if the job failed. Those of
earlier versions of optvet are converted to the current version::

    with open_store(Path("store")) as store:
        campaign = find_campaign(store)
        for trial in trials(store, campaign):
            print(trial.model, trial.optimizer, trial.verdict)
        for row in findings(store, campaign):
            print(row.fingerprint, row.finding.culprit, row.trial)
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field

from optvet.engine.campaign.damage import reading
from optvet.engine.campaign.store import CampaignStore
from optvet.engine.database import MOST_VALUE_BYTES
from optvet.engine.discovery import Plugins
from optvet.engine.trust import check_request
from optvet.spec.campaign import STORE_BYTES, JobKind, JobRequest, ReleaseRequest
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.parsing import parse_json
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records import ErrorRecord, Finding, VetResult
from optvet.spec.records.campaign import Baseline
from optvet.spec.records.convert import ConversionResult
from optvet.spec.records.precision import PrecisionResult
from optvet.spec.records.reading import read_document
from optvet.spec.request import VetRequest
from optvet.spec.symptoms import Symptom

JobAnswered = VetResult | ConversionResult | PrecisionResult | ErrorRecord
"""What a job is answered with."""
State = Literal["queued", "running", "done", "failed"]
Row = sqlite3.Row | Mapping[str, Any]
STATES: tuple[State, ...] = ("queued", "running", "done", "failed")

_TRIAL = (
    "key, cell, request, versions, model, model_digest, optimizer, pipeline, dataset, runtime, "
    "comparator, bundles, kind, state, verdict, exit_code, wall_s, finished, document, "
    "(SELECT count(*) FROM attempts WHERE job = key) AS attempts"
)


@dataclass(frozen=True)
class StoredCampaign:
    """One campaign of a store.

    Attributes:
        id: Its number, from 1.
        name: Its name; several campaigns may have the same.
        source: The text of its file.
        settings: ``baseline``, ``store_size``, ``fail_on``.
        created: Seconds since 1970, as is ``finished``.
        finished: When its last job was answered; None while some wait.
    """

    id: int
    name: str
    source: str
    settings: Mapping[str, Any]
    created: float
    finished: float | None


@dataclass(frozen=True)
class JobResult:
    """One job of a campaign, and its answer if there is one.

    ``kind`` is "vet", "convert" or "precision"; of a conversion, ``optimizer`` is the chain of
    converters, of a search for precision what is converted to.
    ``model``, ``optimizer``, ``pipeline``, ``dataset``, ``runtime`` and ``comparator`` are those of
    the request; empty if the request leaves the choice open: the answer has what was chosen.
    ``verdict`` is that of the answer, None without one; of an ``ErrorRecord`` it is "refused" if
    the program under test does not take the model, else "error".
    ``attempts`` is how often it was started, ``wall_s`` the seconds of the last attempt.
    """

    key: str
    cell: str
    model: str
    model_digest: str
    optimizer: str
    pipeline: str
    dataset: str
    runtime: str
    comparator: str
    versions: Mapping[str, str]
    bundles: bool
    state: State
    verdict: str | None
    exit_code: int | None
    wall_s: float | None
    finished: float | None
    attempts: int
    request_json: str
    compressed: bytes | None
    kind: JobKind = "vet"
    store: Path = Path()

    @cached_property
    def request(self) -> JobRequest:
        """The request of the job.

        Raises:
            InputError: It cannot be read; the store is damaged.
        """
        with reading(self.store, f"the request of job {self.key[:12]!r}"):
            return request_from(self.kind, self.request_json)

    @cached_property
    def answer(self) -> JobAnswered | None:
        """The answer; None if there is none yet.

        Raises:
            InputError: It cannot be read; the store is damaged.
        """
        if self.document is None:
            return None
        with reading(self.store, f"the answer of job {self.key[:12]!r}"):
            answer = answer_from(self.document)
            if verdict_of(answer) != self.verdict:
                raise ValueError(f"it says {verdict_of(answer)!r}, its row {self.verdict!r}")
            return answer

    @property
    def document(self) -> str | None:
        """The answer as it was written, JSON; raises as ``answer``."""
        if self.compressed is None:
            return None
        with reading(self.store, f"the answer of job {self.key[:12]!r}"):
            return _decompress(self.compressed).decode()

    @property
    def result(self) -> VetResult | None:
        """The answer, if it is a ``VetResult``."""
        return self.answer if isinstance(self.answer, VetResult) else None

    @property
    def conversion(self) -> ConversionResult | None:
        """The answer, if it is a ``ConversionResult``."""
        return self.answer if isinstance(self.answer, ConversionResult) else None

    @property
    def precision(self) -> PrecisionResult | None:
        """The answer, if it is a ``PrecisionResult``."""
        return self.answer if isinstance(self.answer, PrecisionResult) else None

    @property
    def error(self) -> ErrorRecord | None:
        """Why there is no result, if there is none."""
        return self.answer if isinstance(self.answer, ErrorRecord) else None


@dataclass(frozen=True)
class StoredFinding:
    """One finding, with the key of its trial and its index in the answer."""

    trial: str
    number: int
    fingerprint: str
    model: str
    optimizer: str
    pipeline: str
    runtime: str
    finding: Finding


@dataclass(frozen=True)
class Metric:
    """One number of an answer.

    ``kind`` is "impact", "output", "stage", "precision", "cost" or "model".
    """

    trial: str
    kind: str
    name: str
    value: float | None


def _decompress(compressed: bytes) -> bytes:
    """The text of an answer, which is bounded: a few bytes may unpack to any number."""
    unpack = zlib.decompressobj()
    try:
        content = unpack.decompress(compressed, MOST_VALUE_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpack.eof:
        over = unpack.unconsumed_tail
        raise ValueError(f"it has more than {MOST_VALUE_BYTES:,} bytes" if over else "it is cut")
    return content


def verdict_of(answer: JobAnswered) -> str:
    """What the row of a job says of its answer."""
    if not isinstance(answer, ErrorRecord):
        return answer.verdict
    return "refused" if answer.symptom is Symptom.REFUSED else "error"


def request_from(kind: JobKind, document: str) -> JobRequest:
    """The request of a job in a JSON document."""
    fields = parse_json(document, "the request", "record")
    if isinstance(fields, dict):
        fields.pop("as_deployed", None)  # asked for in version 1; what is shipped is always judged
    if kind == "convert":
        return ConvertRequest.model_validate(fields)
    if kind == "precision":
        return PrecisionRequest.model_validate(fields)
    of_release = isinstance(fields, dict) and "release" in fields
    return (ReleaseRequest if of_release else VetRequest).model_validate(fields)


def answer_from(document: str) -> JobAnswered:
    """The answer in a JSON document; one of an earlier version is converted."""
    data = parse_json(document, "the answer", "listing")
    if not isinstance(data, dict):
        raise InputError("the answer is no object")
    name = str(data.get("schema")).partition("/")[0]
    if name == "optvet.error":
        return read_document(ErrorRecord, data)
    if name == "optvet.convert":
        return read_document(ConversionResult, data)
    if name == "optvet.precision":
        return read_document(PrecisionResult, data)
    return read_document(VetResult, data)


def campaigns(store: CampaignStore) -> list[StoredCampaign]:
    """All campaigns of a store, the oldest first."""
    rows = store.database.execute("SELECT * FROM campaigns ORDER BY id")
    return [campaign_from(row, store.path) for row in rows]


def find_campaign(store: CampaignStore, name: str = "") -> StoredCampaign:
    """The campaign with this number, or the last one with this name; for "", the last one.

    Raises:
        UsageError: There is no such campaign.
    """
    found = campaigns(store)
    if not found:
        raise UsageError(f"store {store.path} has no campaign; run one with --store {store.path}")
    fitting = [c for c in found if name in ("", c.name, str(c.id))]
    if not fitting:
        raise UnknownName("campaign", name, {c.name for c in found}, f"(in {store.path})")
    return fitting[-1]


def trials(store: CampaignStore, campaign: StoredCampaign) -> Iterator[JobResult]:
    """The jobs of a campaign in the order of its plan; one answer is in memory at a time."""
    query = (
        f"SELECT {_TRIAL} FROM campaign_jobs JOIN jobs ON key = job WHERE campaign = ? "
        "ORDER BY position"
    )
    for row in store.database.execute(query, (campaign.id,)):
        yield trial_from(row, store.path)


def trial(store: CampaignStore, key: str) -> JobResult:
    """The job of that key, or of the only key that begins so.

    Args:
        store: Where it is.
        key: Of a job; or the fingerprint of a finding, or its beginning, for the first that has it.

    Raises:
        UsageError: There is no such job, or several keys begin so.
    """
    query = f"SELECT {_TRIAL} FROM jobs WHERE substr(key, 1, ?) = ?"
    rows = store.database.execute(query, (len(key), key)).fetchall()
    rows = [row for row in rows if row["key"] == key] or rows
    if not rows:
        found = "SELECT job FROM findings WHERE substr(fingerprint, 1, ?) = ? ORDER BY job LIMIT 1"
        query = f"SELECT {_TRIAL} FROM jobs WHERE key = ({found})"
        rows = store.database.execute(query, (len(key), key)).fetchall()
    if len(rows) != 1:
        number = f"{len(rows)} trials have" if rows else "no trial and no finding has"
        raise UsageError(
            f"{number} a key that begins with {key!r} in {store.path}; `optvet campaign show "
            f"{store.path} --json -` lists all keys"
        )
    return trial_from(rows[0], store.path)


def findings(store: CampaignStore, campaign: StoredCampaign) -> Iterator[StoredFinding]:
    """All findings of a campaign, notes too, in the order of its plan."""
    query = (
        "SELECT f.*, model, optimizer, pipeline, runtime FROM campaign_jobs c "
        "JOIN jobs ON key = c.job JOIN findings f ON f.job = c.job WHERE campaign = ? "
        "ORDER BY position, number"
    )
    for row in store.database.execute(query, (campaign.id,)):
        with reading(store.path, f"a finding of job {row['job'][:12]!r}"):
            finding = Finding.model_validate_json(row["document"])
        yield StoredFinding(
            row["job"],
            row["number"],
            row["fingerprint"],
            row["model"],
            row["optimizer"],
            row["pipeline"],
            row["runtime"],
            finding,
        )


def metrics(store: CampaignStore, campaign: StoredCampaign) -> Iterator[Metric]:
    """All numbers of a campaign's answers, in the order of its plan."""
    query = (
        "SELECT m.* FROM campaign_jobs c JOIN metrics m ON m.job = c.job WHERE campaign = ? "
        "ORDER BY position, kind, name"
    )
    for row in store.database.execute(query, (campaign.id,)):
        yield Metric(row["job"], row["kind"], row["name"], row["value"])


def stored_requests(
    store: CampaignStore,
    campaign: StoredCampaign,
    plugins: Plugins,
    *,
    cache_dir: Path | None,
    trust: bool = False,
) -> dict[str, JobRequest]:
    """The requests of the jobs of a store that are not done, by key, as they may be executed.

    Where answers are cached and written is the user's choice, never the store's.

    Args:
        store: The store.
        campaign: The campaign of the jobs.
        plugins: What is installed.
        cache_dir: Where models and results are cached; None for the store's choice.
        trust: Whether requests may name code and commands.

    Raises:
        InputError: A request trusts files or names code, and ``trust`` is false; or it is damaged.
    """
    query = (
        "SELECT key, kind, request FROM campaign_jobs JOIN jobs ON key = job "
        "WHERE campaign = ? AND state != 'done'"
    )
    found: dict[str, JobRequest] = {}
    for row in store.database.execute(query, (campaign.id,)):
        with reading(store.path, f"the request of job {row['key'][:12]!r}"):
            request = request_from(_kind(row["kind"]), row["request"])
        if not trust:
            check_request(str(store.path), json.loads(row["request"]), plugins)
        more: dict[str, Any] = {"out": None, "jobs": 1}
        if cache_dir is not None:
            more["cache_dir"] = cache_dir
        found[row["key"]] = request.model_copy(update=more)
    return found


def states(store: CampaignStore, campaign: StoredCampaign) -> dict[State, int]:
    """Number of jobs of a campaign by state."""
    query = (
        "SELECT state, count(*) FROM campaign_jobs JOIN jobs ON key = job WHERE campaign = ? "
        "GROUP BY state"
    )
    counted = dict(store.database.execute(query, (campaign.id,)).fetchall())
    return {state: counted.get(state, 0) for state in STATES}


class _Settings(BaseModel):
    """What a campaign was run with."""

    baseline: dict[str, Any] | None = None
    store_size: int = Field(STORE_BYTES, ge=0)
    fail_on: list[str] = []


def campaign_from(row: Row, store: Path) -> StoredCampaign:
    """A campaign from its row; raises ``InputError`` if the row is damaged."""
    with reading(store, f"the settings of campaign {row['id']}"):
        stored = parse_json(row["settings"], "they", "listing")
        settings = _Settings.model_validate(stored).model_dump()
        if settings["baseline"] is not None:
            read_document(Baseline, settings["baseline"])
    return StoredCampaign(
        row["id"], row["name"], row["source"], settings, row["created"], row["finished"]
    )


def _kind(name: str) -> JobKind:
    if name not in get_args(JobKind):
        raise ValueError(f"{name[:40]!r} is no kind of job")
    return name  # type: ignore[return-value]  # mypy does not see that it is one of them


def trial_from(row: Row, store: Path) -> JobResult:
    """A job from its row; raises ``InputError`` if the row is damaged."""
    with reading(store, f"job {row['key'][:12]!r}"):
        kind = _kind(row["kind"])
        if row["state"] not in STATES:
            raise ValueError(f"{row['state'][:40]!r} is no state")
        if (row["document"] is None) == (row["state"] in ("done", "failed")):
            raise ValueError(f"it is {row['state']}, which does not go with its answer")
        versions = parse_json(row["versions"], "its versions", "record")
        if not isinstance(versions, dict) or not all(
            isinstance(version, str) for version in versions.values()
        ):
            raise ValueError("its versions are no object of texts")
    return JobResult(
        key=row["key"],
        cell=row["cell"],
        model=row["model"],
        model_digest=row["model_digest"],
        optimizer=row["optimizer"],
        pipeline=row["pipeline"],
        dataset=row["dataset"],
        runtime=row["runtime"],
        comparator=row["comparator"],
        versions=versions,
        bundles=bool(row["bundles"]),
        state=row["state"],
        verdict=row["verdict"],
        exit_code=row["exit_code"],
        wall_s=row["wall_s"],
        finished=row["finished"],
        attempts=row["attempts"],
        request_json=row["request"],
        compressed=row["document"],
        kind=kind,
        store=store,
    )
