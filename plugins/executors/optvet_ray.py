"""Runs jobs as tasks of an existing Ray cluster.

A task that loses its node or its worker raises ``WorkerLost``; the campaign runs it again and
counts its attempts, so Ray's own retries are off. Crashes, hangs and full memory under test happen
in a child process of the worker, and are answers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Executor,
    InfrastructureError,
    Report,
    WorkerLost,
    Workers,
    hookimpl,
    version_of,
)

T = TypeVar("T")

_REACH_S = 10.0


class RayOptions(BaseModel):
    """The address of the cluster, and the resources of one job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = "auto"
    """The cluster, `HOST:PORT` or `ray://HOST:PORT`; `auto` is the one that this machine is of."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors that one job takes."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs that one job takes."""
    memory_gib: float = Field(default=2.0, gt=0)
    """Memory that one job is counted with, GiB."""


class RayExecutor:
    """The ``ray`` package."""

    name = "ray"
    options: BaseModel = RayOptions()
    shares_disk = False
    libraries: Mapping[str, str] = {"ray": "ray"}
    environment: Mapping[str, str] = {"RAY_USAGE_STATS_ENABLED": "0"}

    def version(self) -> str:
        """Version of the installed package."""
        return version_of("ray", extra="optvet[ray]")

    def start(self, options: BaseModel, *, jobs: int | None) -> Workers:
        """Start workers on the cluster, at most one per processor.

        Raises:
            InfrastructureError: There is no such cluster, or it has no room for a single job.
        """
        assert isinstance(options, RayOptions)
        import ray

        joined = not ray.is_initialized()
        try:
            if joined:
                _reach(options.address)
                ray.init(address=options.address, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise InfrastructureError(
                f"executor 'ray': no cluster at {options.address!r}: {error}; start one with "
                "`ray start --head`, or name it with --executor-option address=HOST:PORT"
            ) from error
        return RayWorkers(options, jobs or _room(options), leaves=joined)


def _reach(address: str) -> None:
    """Raise OSError if nothing listens at ``HOST:PORT``: Ray itself tries for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()


def _room(options: RayOptions) -> int:
    """The number of jobs that the cluster has resources for."""
    import ray

    has = ray.cluster_resources()
    needs = {"CPU": options.cpus, "GPU": options.gpus, "memory": options.memory_gib * (1 << 30)}
    fitting = int(min(has.get(name, 0.0) // amount for name, amount in needs.items() if amount))
    if not fitting:
        amounts = ", ".join(f"{name} {has.get(name, 0.0):g}" for name in needs)
        raise InfrastructureError(
            f"executor 'ray': the cluster has no room for one job of {options}; it has {amounts}"
        )
    return fitting


class RayWorkers:
    """Tasks of one driver."""

    def __init__(self, options: RayOptions, count: int, *, leaves: bool) -> None:
        import ray

        self.count = count
        self._leaves = leaves
        self._running: dict[Future[Any], Any] = {}
        self._task = ray.remote(
            num_cpus=options.cpus,
            num_gpus=options.gpus or None,
            memory=int(options.memory_gib * (1 << 30)),
            max_retries=0,
            retry_exceptions=False,
        )(_call)

    def submit(
        self, function: Callable[..., T], /, *arguments: Any, report: Report | None = None
    ) -> Future[T]:
        """Run ``function`` as a task; progress is not reported."""
        reference = self._task.remote(function, arguments)
        future: Future[Any] = Future()
        self._running[future] = reference
        reference.future().add_done_callback(lambda done: self._settle(future, done))
        return cast("Future[T]", future)

    def _settle(self, future: Future[Any], done: Future[Any]) -> None:
        self._running.pop(future, None)
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(_translate(error))

    def close(self) -> None:
        """Cancel running tasks, and disconnect if ``start`` connected."""
        import ray

        for reference in list(self._running.values()):
            with suppress(Exception):  # it may have ended, or its node may be gone
                ray.cancel(reference, force=True)
        if self._leaves:
            ray.shutdown()


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run ``function`` in a task."""
    return function(*arguments, lambda text: None)


def _translate(error: BaseException) -> BaseException:
    """The exception of a task; ``WorkerLost`` if the task died without one."""
    from ray.exceptions import RayTaskError

    if isinstance(error, RayTaskError):
        return cast(BaseException, error.cause)
    return WorkerLost(f"the Ray task of this job was lost: {type(error).__name__}")


@hookimpl
def optvet_executors() -> Iterable[Executor]:
    """Ray."""
    return [RayExecutor()]
