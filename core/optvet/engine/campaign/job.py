"""One job, in a worker: a request in, a document out."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from optvet.engine.api import Answer, vet_request
from optvet.engine.discovery import Plugins
from optvet.spec.errors import OptvetError
from optvet.spec.records import ErrorRecord
from optvet.spec.records.error import ErrorSource
from optvet.spec.request import VetRequest

BUG = "BugInOptvet"
"""``error`` of a job that ended by an exception that nobody raises on purpose."""


@dataclass(frozen=True)
class JobAnswer:
    """What came of a job.

    Attributes:
        document: A ``VetResult`` or an ``ErrorRecord``, as JSON.
        wall_s: Seconds that it took.
    """

    document: str
    wall_s: float


def run_job(request: VetRequest, report: Callable[[str], None]) -> JobAnswer:
    """Answer ``request``; whatever is wrong is an answer too.

    Args:
        request: About one model.
        report: Called with what is being done.
    """
    started = time.monotonic()
    try:
        document = _vetted(request, report)
    except OptvetError as error:
        document = Answer(request, None, error).document().to_json()
    except Exception as error:
        document = _bug(request, error).to_json()
    return JobAnswer(document, time.monotonic() - started)


def _vetted(request: VetRequest, report: Callable[[str], None]) -> str:
    def progress(text: str, done: int, total: int | None) -> None:
        report(f"{text} {done}/{total}" if total else text)

    return vet_request(request, _plugins(), progress=progress).to_json()


@cache
def _plugins() -> Plugins:
    """What is installed; looked for once in the life of a worker."""
    return Plugins()


def _bug(request: VetRequest, error: Exception) -> ErrorRecord:
    return ErrorRecord(
        schema="optvet.error/1",
        model=ErrorSource(source=request.model),
        error=BUG,
        message="".join(traceback.format_exception(error)),
        exit_code=OptvetError.exit_code,
    )
