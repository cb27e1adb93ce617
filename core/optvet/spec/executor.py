"""What an executor provides: processes, here or on other machines, in which jobs are run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from optvet.spec.errors import InfrastructureError

T = TypeVar("T")
Report = Callable[[str], None]


class WorkerLost(InfrastructureError):
    """The process or node that ran a job is gone, and with it what it computed.

    Whatever runs foreign code is a process below the worker, whose death is an answer. So a lost
    worker is no evidence against the job, which is run again.
    """


@runtime_checkable
class Workers(Protocol):
    """Processes that wait for jobs.

    Attributes:
        count: How many jobs run at once.
    """

    count: int

    def submit(
        self, function: Callable[..., T], /, *arguments: Any, report: Report | None = None
    ) -> Future[T]:
        """Run ``function(*arguments, report)`` in a worker, as soon as one is free.

        Args:
            function: Importable in a worker.
            arguments: Picklable, as is the result.
            report: Called here, in any thread, with what the function reports of its progress; an
                executor that cannot bring it here leaves it out.

        Returns:
            The result; the future raises what the function raised, or ``WorkerLost``.
        """
        ...

    def close(self) -> None:
        """End all workers and what they run; futures that are not done raise ``WorkerLost``."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Starts workers; ``optvet campaign run --executor NAME``.

    Attributes:
        name: Unique in the family.
        options: The options with their defaults; a frozen pydantic model.
        shares_disk: Whether workers see the files of this machine. Where they do not, models and
            artifacts travel with the jobs.
    """

    name: str
    options: BaseModel
    shares_disk: bool

    def start(self, options: BaseModel, *, jobs: int | None) -> Workers:
        """Workers for ``jobs`` jobs at a time; as many as fit if None.

        Raises:
            UsageError: An option does not fit.
            InfrastructureError: No worker can be started.
        """
        ...
