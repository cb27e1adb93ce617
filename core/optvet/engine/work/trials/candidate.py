"""Artifacts are checked, loaded and run in processes that never ran the optimizer.

An optimizer may change its process: memory, modules, the rounding mode, signal handlers. So a
worker of role "tested" applies it and writes the artifact into a memory file; a worker of role
"judging" reads the file and does the rest::

    build_spec: apply ── bytes ──> memory file ──> referee: digest, check, load, run

An artifact that is a live object (its ``handle`` is set) cannot leave its process, and is loaded
and run there. The reference outputs are computed in another process in any case.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from optvet.engine.work.sandbox import Outcome, Role, Sandbox, enter, handed_file
from optvet.engine.work.sandbox.messages import SEALS, write_all
from optvet.engine.work.trials.artifact_graph import find_equal
from optvet.engine.work.trials.building import BuildSpec, build
from optvet.engine.work.trials.raised_errors import failure_of
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
    """A memory file that workers get with their task; freed by ``close``."""

    def __init__(self) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.fd = os.memfd_create("optvet-artifact", flags)

    def seal(self) -> None:
        """Let nobody change it any more: the process that wrote it may have kept it open."""
        with contextlib.suppress(OSError):  # It may have mapped it, too; see ``_read``.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)

    def close(self) -> None:
        os.close(self.fd)


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
                payload.seal()
                second = sandbox.submit(
                    _take_then, value, then, args, role=role, file=payload.fd, **limits
                )
                _forward(second, result, built=outcome)
        except BaseException as error:
            result.set_exception(error)

    made = sandbox.submit(_make, build_spec, role="tested", file=payload.fd, **limits)
    made.add_done_callback(submit_trial)
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


def _make(build_spec: BuildSpec) -> BuiltArtifact | Failure:
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
    target = handed_file()
    inline = target is None or len(data) <= _INLINE_BYTES
    if target is not None and not inline:
        os.ftruncate(target, 0)  # What an attempt before this one wrote.
        os.lseek(target, 0, os.SEEK_SET)
        write_all(target, data)
    return BuiltArtifact(
        artifact.format,
        len(data),
        data if inline else None,
        artifact.fingerprint,
        artifact.changing_passes,
        live,
    )


def _take_then(built: BuiltArtifact, then: Callable[..., T], args: tuple[Any, ...]) -> T | Failure:
    enter("check")
    data = built.data
    if data is None:
        source = handed_file()
        assert source is not None
        data = _read(source, built.size)
        if data is None:
            return Failure("abort", "build", "changed its artifact after it had handed it over")
    artifact = Artifact(
        built.format, data, None, built.fingerprint, built.changing_passes, built.path
    )
    return then(artifact, *args)


def _read(source: int, size: int) -> bytes | None:
    """What was handed over in the file ``source``; None if it has another size now."""
    if os.fstat(source).st_size != size:
        return None
    if (known := find_equal(source, size)) is not None:
        return known
    with open(source, "rb", buffering=0, closefd=False) as file:
        file.seek(0)
        data = file.readall()
    return data if len(data) == size else None


def _build_then(
    build_spec: BuildSpec, then: Callable[..., T], args: tuple[Any, ...]
) -> T | Failure:
    enter("build")
    try:
        artifact = build(build_spec)
    except Exception as error:
        return failure_of(error)
    return then(artifact, *args)
