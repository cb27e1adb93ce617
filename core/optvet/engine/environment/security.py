"""``optvet doctor --security``: what runs where, under which limits, and what was tried here."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from optvet.engine.environment import confinement_tries
from optvet.engine.environment.machine import environment
from optvet.engine.work.sandbox import Limits, Sandbox, landlock
from optvet.engine.work.sandbox.outcome import describe
from optvet.spec.records.doctor import Check, Diagnosis
from optvet.spec.scratch import run_folder

_TRY_S = 30.0
_MEANS = {
    "user_namespace": "user namespaces: a container without privileges (docs/security.md)",
    "seccomp": "seccomp filters: those of a container; workers install none",
    "no_new_privs": "no_new_privs: confined workers gain no privileges by programs they start",
    "death_with_parent": "PR_SET_PDEATHSIG: workers and pip are killed when their parent ends",
    "memory": "RLIMIT_AS: address space of each task (--memory)",
    "file_size": "RLIMIT_FSIZE: size of files; workers set none",
    "processes": "RLIMIT_NPROC: number of processes; workers set none",
}
_NOT_PROTECTED = (
    "a malicious worker can answer with any values: it can falsify what it is asked",
    "the main process runs code of plugins: their declarations (passes, options), comparators and "
    "datasets",
    "workers can read whatever you can read: optvet does not use Landlock against reading",
    "UDP and Unix sockets: Landlock does not cover them",
    "/dev/shm: workers can write there, and their files stay (optvet cannot tell whose they are)",
    "workers of one run can write into each other's temporary files",
    "sources that are code (convert FILE.py:FUNCTION, --trust), commands (reduce --check), "
    "and pip (env make) run unconfined",
    "a task has no limit on the size of files and the number of processes",
)


def examine() -> Diagnosis:
    """Try each means of confinement in a child process, and tell what is not protected."""
    checks = [*_confinement(), *map(_try, _MEANS)]
    unprotected = [Check(name="not protected", status="absent", message=m) for m in _NOT_PROTECTED]
    return Diagnosis(
        schema="optvet.doctor/1",
        environment={**_processes(), "platform": environment()["platform"]},
        libraries={},
        checks=[*checks, *unprotected],
    )


def _processes() -> dict[str, str]:
    """What runs in which process, and with which limits."""
    limits, inherited = Limits(), _limit(resource.RLIMIT_NPROC)
    confined = "can only write to temporary files, no TCP" if landlock.is_active() else "unconfined"
    bounds = (
        f"{limits.timeout_s:g} s and {limits.memory_bytes >> 30} GiB a task unless --timeout or "
        f"--memory say otherwise; size of files {_limit(resource.RLIMIT_FSIZE)}, processes "
        f"{inherited}; no core files"
    )
    return {
        "main process": "commands, search and judgement; parses models with onnx; asks plugins",
        "server": "imports libraries once, forks workers, and kills and reaps them; runs no task",
        "tested workers": f"optimizers, and runtimes of live artifacts: {confined}",
        "judging workers": f"runtimes, checker, comparators that decode: {confined}",
        "limits of workers": bounds,
        "job workers": "jobs of campaigns, which start their own workers; unconfined",
    }


def _limit(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def _try(name: str) -> Check:
    """Try one means by an interpreter of its own."""
    command = [sys.executable, "-I", "-S", str(confinement_tries.__file__), name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TRY_S)
        answer = done.stdout.strip() or f"ended with status {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        answer = type(error).__name__
    if answer == "1":
        return Check(name="tried here", status="ok", message=_MEANS[name])
    return Check(name="tried here", status="absent", message=f"{_MEANS[name]}: not here: {answer}")


# --- Landlock ------------------------------------------------------------------------------------


def _confinement() -> Iterator[Check]:
    """Whether workers are confined: one of them tries to write elsewhere, and to connect."""
    version, setting = landlock.version(), landlock.setting()
    name = f"Landlock version {version}"
    if version < landlock.OLDEST:
        words = "not in this kernel" if not version else "too old: it forbids moving files"
        cure = "run in a container (docs/security.md), or with Linux 5.19 or later"
        message = f"Landlock is {words}; workers write wherever you can, and connect"
        yield Check(name="tried here", status="warning", message=message, cure=cure)
        return
    if setting == "off":
        message = f"{name}: turned off by {landlock.VARIABLE}={os.environ[landlock.VARIABLE]}"
        yield Check(name="tried here", status="warning", message=message)
        return
    with tempfile.TemporaryDirectory(prefix="optvet-probe-", dir=_outside()) as folder:
        yield _check_refusal(f"{name}: a worker writes outside of its folder", _write, folder)
    if version < landlock.NETWORK:
        message = f"{name}: sockets are not covered before version {landlock.NETWORK} (Linux 6.7)"
        yield Check(name="tried here", status="absent", message=message)
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield _check_refusal(f"{name}: a worker connects", _connect, server.getsockname()[1])
    if setting:
        message = f"{landlock.VARIABLE} also lets workers write in {setting}"
        yield Check(name="tried here", status="ok", message=message)


def _outside() -> Path | None:
    """A folder that is not of this run, on the disk where temporary files are."""
    folder = run_folder()
    return folder.parent if folder is not None else None


def _check_refusal(what: str, function: Callable[[Any], bool], argument: object) -> Check:
    with Sandbox(jobs=1) as sandbox:
        outcome = sandbox.call(function, argument, fresh=True)
    if outcome.failure is not None:
        message = f"{what}: not tried: {describe(outcome.failure)}"
        return Check(name="tried here", status="warning", message=message)
    if outcome.value:
        return Check(name="tried here", status="ok", message=f"{what}: refused")
    return Check(name="tried here", status="warning", message=f"{what}: allowed")


def _write(folder: str) -> bool:
    """Whether a file cannot be made in ``folder``."""
    try:
        (Path(folder) / "file").write_text("optvet")
    except PermissionError:
        return True
    return False


def _connect(port: int) -> bool:
    """Whether no connection can be opened to this machine itself."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except PermissionError:
        return True
    return False
