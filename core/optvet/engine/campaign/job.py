"""Runs one job in a worker: takes a request, returns a document."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from optvet.engine.bundle import with_fingerprints, write_bundles
from optvet.engine.bundle.write import Draw
from optvet.engine.campaign.artifacts import NewArtifact, keep
from optvet.engine.campaign.payloads import (
    ModelPayload,
    restore_model_name,
    restore_source_name,
    unpack_model,
)
from optvet.engine.campaign.versions import vet_release
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.known.naming import with_known
from optvet.engine.models.large import PROTOBUF_LIMIT
from optvet.engine.precision.run import find_precision
from optvet.engine.vet.session import VetSession
from optvet.engine.vetting import error_of, vetted
from optvet.engine.work.sandbox import keep_servers
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.campaign import JobRequest, ReleaseRequest
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import OptvetError
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records import ErrorRecord, VetResult
from optvet.spec.records.error import ErrorSource
from optvet.spec.request import VetRequest
from optvet.spec.scratch import temporary_folder

BUG = "BugInOptvet"
"""``error`` of a job that ended by an unexpected exception."""


@dataclass(frozen=True)
class JobAnswer:
    """The answer of a job.

    Attributes:
        document: A ``JobAnswered`` of ``results``, as JSON.
        wall_s: Seconds that it took.
        files: Files of its findings.
    """

    document: str
    wall_s: float
    files: tuple[NewArtifact, ...] = ()


@dataclass(frozen=True)
class Bundling:
    """How to make bundles.

    Attributes:
        folder: Where files are stored under their digests; None if this process does not share a
            disk with the store: then their contents are sent with the answer.
        draw: Makes pictures of graphs; see ``write_bundles``.
    """

    folder: Path | None
    draw: Draw | None = None


def run_job(
    request: JobRequest,
    bundling: Bundling | None,
    payload: ModelPayload | None,
    report: Callable[[str], None],
) -> JobAnswer:
    """Answer ``request``; errors are answers too.

    Args:
        request: The request, for one model.
        bundling: How to make bundles; None for no bundles.
        payload: The model's files, if this process cannot read them.
        report: Called with a text about the progress.
    """
    started = time.monotonic()
    files: tuple[NewArtifact, ...] = ()
    try:
        with unpack_model(request, payload) as here:
            if isinstance(here, ConvertRequest):
                conversion = convert_model(here, _plugins(), progress=_progress_to(report))
                document = (
                    restore_source_name(conversion, request) if payload else conversion
                ).to_json()
            elif isinstance(here, PrecisionRequest):
                search = find_precision(here, _plugins(), progress=_progress_to(report))
                document = (restore_model_name(search, request) if payload else search).to_json()
            elif isinstance(here, ReleaseRequest):
                answered, files = _vet_release(here, bundling)
                document = (
                    restore_model_name(answered, request)
                    if payload and isinstance(answered, VetResult)
                    else answered
                ).to_json()
            else:
                with vetted(here, _plugins(), progress=_progress_to(report)) as answer:
                    result = with_known(answer.result, here.cache_dir)
                    if bundling is not None:
                        about = (result, answer.session, here)
                        result, files = _write_bundles(*about, bundling, report)
                document = (restore_model_name(result, request) if payload else result).to_json()
    except OptvetError as error:
        document = error_of(request.model, error).to_json()
    except Exception as error:
        document = _bug(request, error).to_json()
    return JobAnswer(document, time.monotonic() - started, files)


def _progress_to(report: Callable[[str], None]) -> Progress:
    return lambda text, done, total: report(f"{text} {done}/{total}" if total else text)


def _vet_release(
    request: ReleaseRequest, bundling: Bundling | None
) -> tuple[VetResult | ErrorRecord, tuple[NewArtifact, ...]]:
    """The answer under a release, and the files of its bundles, which are written there."""
    with temporary_folder("optvet-job-") as folder:
        out = None if bundling is None else Path(folder)
        result = vet_release(request.model_copy(update={"out": out}), _plugins())
        if isinstance(result, ErrorRecord):
            return result, ()
        result = with_known(result, request.cache_dir)
        files = [
            _keep_file(number, path.relative_to(bundle).as_posix(), path.read_bytes(), kept)
            for number, finding in enumerate(result.findings)
            if bundling is not None and finding.bundle is not None
            for bundle, kept in [(Path(folder) / finding.bundle, bundling.folder)]
            for path in sorted(p for p in bundle.rglob("*") if p.is_file())
        ]
    return result, tuple(files)


def _write_bundles(
    result: VetResult,
    session: VetSession,
    request: VetRequest,
    bundling: Bundling,
    report: Callable[[str], None],
) -> tuple[VetResult, tuple[NewArtifact, ...]]:
    """The result with fingerprints, and the files of its bundles."""
    # A bundle holds its model in one message.
    if result.model.size_bytes > PROTOBUF_LIMIT:
        return result, ()
    files: list[NewArtifact] = []
    with temporary_folder("optvet-job-") as folder:
        bundles = write_bundles(
            result,
            request,
            Path(folder),
            _plugins(),
            session=session,
            draw=bundling.draw,
            progress=_progress_to(report),
        )
        for bundle in bundles:
            for path in sorted(p for p in bundle.path.rglob("*") if p.is_file()):
                name = path.relative_to(bundle.path).as_posix()
                files.append(_keep_file(bundle.index, name, path.read_bytes(), bundling.folder))
        return with_fingerprints(result, bundles), tuple(files)


def _keep_file(number: int, name: str, content: bytes, folder: Path | None) -> NewArtifact:
    if folder is None:
        digest = hashlib.sha256(content).hexdigest()
        return NewArtifact(number, name, digest, len(content), content)
    return NewArtifact(number, name, keep(folder, content), len(content))


@cache
def _plugins() -> Plugins:
    """The installed plugins; searched once per worker, which keeps servers for its next jobs."""
    keep_servers()
    return Plugins()


def _bug(request: JobRequest, error: Exception) -> ErrorRecord:
    return ErrorRecord(
        schema="optvet.error/1",
        model=ErrorSource(source=request.model),
        error=BUG,
        message="".join(traceback.format_exception(error)),
        exit_code=OptvetError.exit_code,
    )
