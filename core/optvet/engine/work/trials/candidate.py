"""Artifacts are checked, loaded and run in processes that never ran the optimizer.

An optimizer may change its process: memory, modules, the rounding mode, signal handlers. So a
worker of role "tested" applies it and writes the artifact into a memory file; a worker of role
"judging" reads the file and does the rest::

    build_spec: apply ── bytes ──> memory file ──> referee: digest, check, load, run

An artifact that is a live object (its ``handle`` is set) cannot leave its process, and is loaded
and run there. The reference outputs are computed in another process in any case.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from optvet.engine.work.sandbox import Outcome, Role, Sandbox, enter
from optvet.engine.work.trials.building import BuildSpec, build
from optvet.engine.work.trials.raised_errors import failure_of
from optvet.spec.errors import InfrastructureError
from optvet.spec.types import Artifact, Failure

T = TypeVar("T")

_INLINE_BYTES = 64 << 10
"""Artifacts up to this size are sent in the answer itself, without a memory file."""


@dataclass(frozen=True)
class BuiltArtifact:
    """The artifact as the optimizer's worker reports it; ``data`` is None if in the memory file.

    ``live``: the artifact is a live object, which cannot leave its process.
    """

    format: str
    size: int
    data: bytes | None
    fingerprint: str | None
    changing_passes: tuple[str, ...] | None
    live: bool = False
    path: Path | None = None


class _MemoryFile:
    """A memory file that workers open by its path; freed by ``close``."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("optvet-artifact")
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._fd}")

    def close(self) -> None:
        os.close(self._fd)


def submit(
    sandbox: Sandbox,
    build_spec: BuildSpec,
    then: Callable[..., T],
    /,
    *args: object,
    live: bool = False,
    on_live: Callable[[], None] = lambda: None,
    fresh: bool = False,
    role: Role = "judging",
    timeout_s: float | None = None,
) -> Future[Outcome[T]]:
    """Build ``build_spec`` and call ``then(artifact, *args)`` in workers; see ``Sandbox.submit``.

    Args:
        sandbox: Runs the tasks.
        build_spec: What to build; its optimizer runs in a worker of role "tested".
        then: Function of the artifact; importable in a worker.
        args: Further arguments of ``then``, picklable.
        live: Whether the artifact is known to be a live object; this saves building it twice.
        on_live: Called if the artifact turns out to be a live object.
        fresh: Use new processes that serve no other task.
        role: Role of the worker that runs ``then``, unless the artifact is a live object.
        timeout_s: Limit of each of the two steps, instead of the sandbox's own.
    """
    limits: dict[str, Any] = {"fresh": fresh, "timeout_s": timeout_s}
    result: Future[Outcome[T]] = Future()
    if build_spec.scratch is not None:
        # The result of a large model gets its own folder, which is removed with the answer.
        folder = Path(tempfile.mkdtemp(dir=build_spec.scratch))
        build_spec = replace(build_spec, scratch=folder)
        result.add_done_callback(lambda _: shutil.rmtree(folder, ignore_errors=True))
    if build_spec.optimizer is None or live:
        where: Role = "tested" if live else role
        first = sandbox.submit(_build_then, build_spec, then, args, role=where, **limits)
        _forward(first, result)
        return result
    payload = _MemoryFile()
    result.add_done_callback(lambda _: payload.close())

    def submit_trial(build: Future[Outcome[BuiltArtifact | Failure]]) -> None:
        try:
            outcome = build.result()
            value = outcome.value
            if not isinstance(value, BuiltArtifact):
                result.set_result(Outcome(None, outcome.failure or value))
            elif value.live:
                on_live()
                second = sandbox.submit(
                    _build_then, build_spec, then, args, role="tested", **limits
                )
                _forward(second, result)
            else:
                second = sandbox.submit(
                    _take_then, value, payload.path, then, args, role=role, **limits
                )
                _forward(second, result, built=outcome)
        except BaseException as error:
            result.set_exception(error)

    sandbox.submit(_make, build_spec, payload.path, role="tested", **limits).add_done_callback(
        submit_trial
    )
    return result


def _forward(
    source: Future[Outcome[Any]],
    target: Future[Outcome[Any]],
    *,
    built: Outcome[Any] | None = None,
) -> None:
    """Set ``target`` to the outcome of ``source``; a returned Failure becomes its failure.

    ``built`` is the outcome of the task before, which has built the artifact.
    """

    def copy(done: Future[Outcome[Any]]) -> None:
        try:
            outcome = done.result()
        except BaseException as error:
            target.set_exception(error)
            return
        failure = outcome.value if isinstance(outcome.value, Failure) else outcome.failure
        if failure is None:
            before = built.stderr if built is not None else ()
            target.set_result(replace(outcome, stderr=before + outcome.stderr))
            return
        # Every task begins in stage "build", but here the build is over.
        early = built is not None and failure.stage == "build"
        target.set_result(Outcome(None, replace(failure, stage="check") if early else failure))

    source.add_done_callback(copy)


# In a worker --------------------------------------------------------------------------------------


def _make(build_spec: BuildSpec, target: Path) -> BuiltArtifact | Failure:
    """Apply the optimizer and hand over what it made."""
    enter("build")
    try:
        artifact = build(build_spec)
    except Exception as error:
        return failure_of(error)
    live = artifact.handle is not None
    data = b"" if live else artifact.data
    if artifact.path is not None and not live:
        about = (artifact.fingerprint, artifact.changing_passes)
        return BuiltArtifact(artifact.format, 0, b"", *about, path=artifact.path)
    inline = len(data) <= _INLINE_BYTES or not _try_write(target, data)
    return BuiltArtifact(
        artifact.format,
        len(data),
        data if inline else None,
        artifact.fingerprint,
        artifact.changing_passes,
        live,
    )


def _try_write(target: Path, data: bytes) -> bool:
    """Write ``data``; returns False if the file cannot be opened, as in another mount namespace.

    That does not count as a failure of the optimizer.
    """
    try:
        with target.open("r+b", buffering=0) as file:
            file.truncate(0)
            view = memoryview(data)
            while view:
                view = view[file.write(view) or 0 :]
    except OSError:
        return False
    return True


def _take_then(
    built: BuiltArtifact, source: Path, then: Callable[..., T], args: tuple[Any, ...]
) -> T:
    enter("check")
    data = built.data if built.data is not None else _read(source, built.size)
    artifact = Artifact(
        built.format, data, None, built.fingerprint, built.changing_passes, built.path
    )
    return then(artifact, *args)


def _read(source: Path, size: int) -> bytes:
    try:
        with source.open("r+b", buffering=0) as file:
            data = file.readall()
            file.truncate(0)  # frees its memory
    except OSError as error:
        raise InfrastructureError(f"the artifact cannot be handed over: {error}") from error
    if len(data) != size:
        raise InfrastructureError(
            f"the artifact has {len(data):,} bytes where {size:,} were handed over"
        )
    return data


def _build_then(
    build_spec: BuildSpec, then: Callable[..., T], args: tuple[Any, ...]
) -> T | Failure:
    enter("build")
    try:
        artifact = build(build_spec)
    except Exception as error:
        return failure_of(error)
    return then(artifact, *args)
