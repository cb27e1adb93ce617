"""Commands under which the machine fails: one system call of one process, with one error."""

from __future__ import annotations

import atexit
import errno
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.assault.evil import PLAIN_FAULT
from tests.assault.harness import OWN_FAULT, Place, Ran

SOURCE = Path(__file__).with_name("failing_calls.c")
SHORT = 0
"""In place of an error: a write that writes one byte."""
CALLS: Mapping[str, Sequence[int]] = {
    "open": (errno.EMFILE, errno.EIO, errno.ENOSPC),
    "write": (errno.ENOSPC, errno.EIO, errno.EINTR, SHORT),
    "fsync": (errno.EIO,),
    "rename": (errno.ENOSPC, errno.EIO),
    "mkdir": (errno.ENOSPC, errno.EIO),
    "mmap": (errno.ENOMEM,),
    "fork": (errno.EAGAIN, errno.ENOMEM),
    "connect": (errno.ECONNREFUSED,),
}
LONGEST_S = 240.0


@dataclass(frozen=True)
class Fault:
    """The ``number``-th ``call`` fails with ``error``.

    ``everywhere``: in each process of the command, which counts its own calls; else in the first.
    """

    call: str
    error: int
    number: int
    everywhere: bool = False

    def __str__(self) -> str:
        name = errno.errorcode.get(self.error, "short")
        return f"{self.call} {self.number} {name}{' everywhere' * self.everywhere}"


COMPILER = shutil.which("cc") or shutil.which("gcc")


@cache
def library() -> Path:
    """The library that makes calls fail."""
    assert COMPILER is not None
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / "failing_calls.so"
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return target


@dataclass
class Job:
    """A command, what it must answer, and how it goes on after a fault.

    Attributes:
        words: The command.
        again: The command that goes on with it; the same where that is typed again.
        keeps: Files of the work folder that are its answer.
    """

    words: Sequence[object]
    again: Sequence[object]
    keeps: Sequence[str]
    answer: dict[str, Any] = field(default_factory=dict)
    code: int = 0


def jobs(place: Place) -> dict[str, Job]:
    """Commands by name; each writes below the place alone."""
    pipeline = ",".join(["keep_a", PLAIN_FAULT, "keep_b"])
    vet = ["vet", place.model, "--optimizer", "evil", "--pipeline", pipeline, "--limit", 2]
    vet = [*vet, "--json", place.work / "answer.json"]
    campaign = place.work / "c.toml"
    campaign.write_text(
        f"models = [{str(place.model)!r}]\noptimizers = ['evil']\n"
        f"pipelines = ['keep_a', '{pipeline}']\n[vet]\nlimit = 1\n"
    )
    run = ["campaign", "run", campaign, "--store", place.work / "store", "--quiet", "--jobs", 1]
    run = [*run, "--json", place.work / "summary.json"]
    hunt = ["hunt", "--optimizer", "onnxoptimizer", "--budget", 40, "--out", place.work / "hunt"]
    hunt = [*hunt, "--jobs", 1, "--json", place.work / "hunt.json"]
    return {
        "vet": Job(vet, vet, ["answer.json"]),
        "campaign": Job(run, run, ["summary.json"]),
        "hunt": Job(hunt, [*hunt, "--resume"], ["hunt.json"]),
    }


def run(place: Place, words: Sequence[object], fault: Fault | None = None) -> tuple[Ran, bool]:
    """One command, under ``fault``; whether the fault happened."""
    command = [sys.executable, "-m", "optvet_start", *map(str, words)]
    log, environment = place.root / "failed", dict(place.environment)
    if fault is not None:
        log.unlink(missing_ok=True)
        settings = {
            "FAIL_CALL": fault.call,
            "FAIL_ERRNO": str(fault.error),
            "FAIL_NUMBER": str(fault.number),
            "FAIL_UNDER": str(place.root),
            "FAIL_LOG": str(log),
            "FAIL_IN": "0" if fault.everywhere else "-1",
        }
        environment |= settings
        # The shell's id is that of the command: it is replaced by it.
        only = "" if fault.everywhere else "FAIL_IN=$$ "
        command = ["sh", "-c", f'{only}LD_PRELOAD={library()} exec "$@"', "sh", *command]
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=place.work,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LONGEST_S,
        check=False,
    )
    seconds = time.monotonic() - started
    return Ran(done.returncode, done.stdout, done.stderr, seconds), log.exists()


def answers(place: Place, job: Job) -> dict[str, Any]:
    """What the command wrote, without what differs between two runs of it."""
    found = {}
    for name in job.keeps:
        if (place.work / name).exists():
            found[name] = _comparable(json.loads((place.work / name).read_text()))
    return found


_TIMES = {"seconds", "wall_s", "cost", "started", "ended", "store", "path", "created", "controls"}
_TIMES |= {"warnings", "cpu_s", "vetting_seconds", "cached", "resumed", "shared", "reused", "ran"}
_TIMES |= {"summary", "versions", "environment", "config", "jobs", "finished", "elapsed_s"}


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _comparable(v) for k, v in value.items() if k not in _TIMES}
    return [_comparable(v) for v in value] if isinstance(value, list) else value


def undisturbed(place: Place, name: str) -> Job:
    """A job with the answer that it gives on a sound machine; the place is as before."""
    job = jobs(place)[name]
    ran, _ = run(place, job.words)
    assert ran.code in (0, 1), ran.said
    job.answer, job.code = answers(place, job), ran.code
    assert job.answer, ran.said
    clear(place)
    return job


def clear(place: Place) -> None:
    """Remove what commands have left."""
    for folder in (place.cache, place.tmp):
        shutil.rmtree(folder, ignore_errors=True)
    for each in place.work.iterdir():
        if each.suffix != ".toml":
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    place.tmp.mkdir(exist_ok=True)


def wrongs(place: Place, job: Job, fault: Fault) -> tuple[list[str], bool]:
    """What is wrong after a job ran under ``fault`` and was gone on with; whether it happened."""
    found: list[str] = []
    try:
        ran, happened = run(place, job.words, fault)
    except subprocess.TimeoutExpired:
        clear(place)
        return ["it hangs"], True
    if not happened:
        clear(place)
        return [], False
    if ran.code not in (job.code, 2, 3, 4, 5):
        found.append(f"exit code {ran.code}: {ran.said[-300:]}")
    for word in ("Traceback", OWN_FAULT):
        if word in ran.said:
            found.append(f"{word}: {ran.said[-600:]}")
    if ran.code != job.code and len(ran.err.strip().splitlines()) > 3:
        found.append(f"no clear message: {ran.err[-600:]}")
    try:
        told = answers(place, job)
    except ValueError:
        found.append("a half-written answer")
        told = {}
    if ran.code == job.code and told != job.answer:
        found.append(f"another answer: {_difference(told, job.answer)}")
    left = [p.name for p in place.work.iterdir() if p.name.startswith((".", "tmp"))]
    if left:
        found.append(f"left behind: {left}")
    words = job.again if (place.work / "hunt").exists() else job.words
    again, _ = run(place, words)
    if again.code != job.code:
        found.append(f"afterwards exit code {again.code}: {again.said[-400:]}")
    elif answers(place, job) != job.answer:
        found.append(f"afterwards: {_difference(answers(place, job), job.answer)}")
    clear(place)
    return found, True


def _difference(one: Any, other: Any, where: str = "") -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}, key=str):
            if one.get(key) != other.get(key):
                return _difference(one.get(key), other.get(key), f"{where}.{key}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            if a != b:
                return _difference(a, b, f"{where}[{i}]")
    return f"{where}: {str(one)[:120]} instead of {str(other)[:120]}"


def faults(call: str, numbers: Iterator[int] | Sequence[int]) -> Iterator[Fault]:
    """Each error of ``call`` at each of ``numbers``, in the first process and everywhere."""
    for number in numbers:
        for error in CALLS[call]:
            for everywhere in (False, True):
                yield Fault(call, error, number, everywhere)
