"""The protocol of executors, which run jobs in processes, here or on other machines."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from optvet.spec.errors import InfrastructureError

T = TypeVar("T")
Report = Callable[[str], None]


class WorkerLost(InfrastructureError):
    """The process or node that ran a job has died before the job was answered.

    Foreign code runs in processes below the worker, whose deaths are part of the answer. A lost
    worker itself is not caused by the job, which is run again.
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
            report: Called in this process, in any thread, with the progress that the function
                reports; an executor that cannot send it back does not call it.

        Returns:
            The result; the future raises the exception of the function, or ``WorkerLost``.
        """
        ...

    def close(self) -> None:
        """End all workers and what they run; futures that are not done raise ``WorkerLost``."""
        ...


class WorkersExtras:
    """Optional members of workers."""

    def submit_to(
        self,
        number: int,
        function: Callable[..., T],
        /,
        *arguments: Any,
        report: Report | None = None,
    ) -> Future[T]:
        """As ``submit``, in the worker of this number, from 0 and below ``count``.

        A worker that ran one job has loaded what similar jobs need.
        """
        raise NotImplementedError


@runtime_checkable
class Executor(Protocol):
    """Starts workers; ``optvet campaign run --executor NAME``.

    Attributes:
        name: Unique in the family.
        options: The options with their defaults; a frozen pydantic model.
        shares_disk: Whether workers can read the files of this machine. If not, models and
            artifacts are sent with the jobs.
    """

    name: str
    options: BaseModel
    shares_disk: bool

    def start(self, options: BaseModel, *, jobs: int | None) -> Workers:
        """Workers for ``jobs`` jobs at a time; as many as fit if None.

        Raises:
            UsageError: An option is wrong.
            InfrastructureError: No worker can be started.
        """
        ...
