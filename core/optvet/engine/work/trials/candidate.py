"""Artifacts are checked, loaded and run in processes that never ran the optimizer.

An optimizer may change its process: memory, modules, the rounding mode, signal handlers. So a
worker of role "tested" applies it and writes the artifact into a memory file; a worker of role
"judging" reads the file and does the rest::

    build_spec: apply ── bytes ──> memory file ──> referee: digest, check, load, run

An artifact that is a live object (its ``handle`` is set) cannot leave its process, and is loaded
and run there. The reference outputs are computed in another process in any case.

Most passes do not change the model. A worker that made the same bytes as the last time says so, and
the file of that time is read again, or known to the worker that judges. A worker that says so of
other bytes gains nothing: it could hand over those of that time as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import uuid
import weakref
from collections import OrderedDict
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
from optvet.spec.removal import remove_folder
from optvet.spec.types import Artifact, Failure

T = TypeVar("T")

_INLINE_BYTES = 64 << 10
"""Artifacts up to this size are sent in the answer itself, without a memory file."""
_KEPT_BYTES = 256 << 20
"""Artifacts up to this size are kept, to be compared with the next one."""
_KEPT = 3
"""Files that are kept: one for each of two workers, and what one of them made before."""


@dataclass(frozen=True)
class BuiltArtifact:
    """The artifact as the optimizer's worker reports it; ``data`` is None if in the memory file.

    ``live``: the artifact is a live object, which cannot leave its process. ``content``: names what
    is in the memory file; it is in an earlier one if it is said ``again``.
    """

    format: str
    size: int
    data: bytes | None
    fingerprint: str | None
    changing_passes: tuple[str, ...] | None
    live: bool = False
    path: Path | None = None
    content: str = ""
    again: bool = False


class _MemoryFile:
    """A memory file that workers get with their tasks; freed when its last user drops it."""

    def __init__(self) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self.fd = os.memfd_create("optvet-artifact", flags)
        self.is_sealed = False
        self._users, self._lock = 1, threading.Lock()

    def seal(self) -> None:
        """Let nobody change it any more: the process that wrote it may have kept it open."""
        with contextlib.suppress(OSError):  # It may have mapped it, too; see ``_read``.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            self.is_sealed = True

    def share(self) -> _MemoryFile:
        """The same file, for one more user."""
        with self._lock:
            self._users += 1
        return self

    def drop(self) -> None:
        """Free it, if nobody else uses it."""
        with self._lock:
            self._users -= 1
            unused = self._users == 0
        if unused:
            os.close(self.fd)


class _LastFiles:
    """The memory files of the last artifacts that workers of a sandbox wrote, by content."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, _MemoryFile] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, content: str, file: _MemoryFile) -> None:
        """Keep a sealed file, and drop the one that is unused for longest."""
        with self._lock:
            self._files[content] = file.share()
            dropped = self._files.popitem(last=False)[1] if len(self._files) > _KEPT else None
        if dropped is not None:
            dropped.drop()

    def take(self, content: str) -> _MemoryFile | None:
        """The file with this content, which the caller drops; None if it is not kept."""
        with self._lock:
            if (file := self._files.get(content)) is None:
                return None
            self._files.move_to_end(content)
            return file.share()

    def clear(self) -> None:
        """Drop all files."""
        with self._lock:
            files, self._files = self._files, OrderedDict()
        for file in files.values():
            file.drop()


_last_files: weakref.WeakKeyDictionary[Sandbox, _LastFiles] = weakref.WeakKeyDictionary()


def _last_files_of(sandbox: Sandbox) -> _LastFiles:
    if (files := _last_files.get(sandbox)) is None:
        files = _last_files.setdefault(sandbox, _LastFiles())
        weakref.finalize(sandbox, files.clear)
    return files


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
        result.add_done_callback(lambda _: remove_folder(folder))
    if build_spec.optimizer is None or live:
        where: Role = "tested" if live else role
        first = sandbox.submit(_build_then, build_spec, then, args, role=where, **limits)
        _forward(first, result)
        return result
    payload, kept = _MemoryFile(), _last_files_of(sandbox)
    result.add_done_callback(lambda _: payload.drop())

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
            elif (file := _file_of(value, payload, kept)) is None:
                make(whole=True)
            else:
                result.add_done_callback(lambda _: file.drop())
                value = value if file.is_sealed else replace(value, content="")
                second = sandbox.submit(
                    _take_then, value, then, args, role=role, file=file.fd, **limits
                )
                _forward(second, result, built=outcome)
        except BaseException as error:
            result.set_exception(error)

    def make(*, whole: bool) -> None:
        about = (build_spec, whole)
        made = sandbox.submit(_make, *about, role="tested", file=payload.fd, **limits)
        made.add_done_callback(submit_trial)

    make(whole=False)
    return result


def _file_of(built: BuiltArtifact, written: _MemoryFile, kept: _LastFiles) -> _MemoryFile | None:
    """The file that has the artifact, which the caller drops; None if it is not kept any more."""
    if built.again:
        return kept.take(built.content)
    written.seal()
    if written.is_sealed and built.content:
        kept.keep(built.content, written)
    return written.share()


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


_made: tuple[str, bytes] = ("", b"")
"""The last artifact that this worker has written into a memory file, after its name."""


def _make(build_spec: BuildSpec, whole: bool) -> BuiltArtifact | Failure:
    """Apply the optimizer and hand over what it made: all of it, or that it is the last again."""
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
    again = not inline and not whole and _is_last(data)
    if target is not None and not inline and not again:
        _write(target, data)
    return BuiltArtifact(
        artifact.format,
        len(data),
        data if inline else None,
        artifact.fingerprint,
        artifact.changing_passes,
        live,
        content="" if inline else _made[0],
        again=again,
    )


def _is_last(data: bytes) -> bool:
    """Whether this worker has written the same bytes before; the same object may have changed."""
    return data is not _made[1] and data == _made[1]


def _write(target: int, data: bytes) -> None:
    global _made
    os.ftruncate(target, 0)  # What an attempt before this one wrote.
    os.lseek(target, 0, os.SEEK_SET)
    write_all(target, data)
    _made = (uuid.uuid4().hex, data) if len(data) <= _KEPT_BYTES else ("", b"")


def _take_then(built: BuiltArtifact, then: Callable[..., T], args: tuple[Any, ...]) -> T | Failure:
    enter("check")
    data = built.data
    if data is None:
        source = handed_file()
        assert source is not None
        data = _read(source, built.size, built.content)
        if data is None:
            return Failure("abort", "build", "changed its artifact after it had handed it over")
    artifact = Artifact(
        built.format, data, None, built.fingerprint, built.changing_passes, built.path
    )
    return then(artifact, *args)


_taken: OrderedDict[str, bytes] = OrderedDict()
"""The last artifacts that this worker has read from sealed files, by the content's name."""


def _read(source: int, size: int, content: str) -> bytes | None:
    """What was handed over in the file ``source``; None if it has another size now."""
    if content in _taken:
        return _taken[content]
    if os.fstat(source).st_size != size:
        return None
    data = find_equal(source, size)
    if data is None:
        with open(source, "rb", buffering=0, closefd=False) as file:
            file.seek(0)
            data = file.readall()
        if len(data) != size:
            return None
    if content:
        _taken[content] = data
        while len(_taken) > _KEPT:
            _taken.popitem(last=False)
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
