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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from tests.assault.evil import PLAIN_FAULT
from tests.assault.harness import OWN_FAULT, Place, Ran
from tests.wheels import library as release
from tests.wheels import write_plugin, write_wheel

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
IDLE_S = 90.0
"""A command hangs whose processes have used no CPU time for so long."""


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
        keeps: Files of the work folder that are its answer, and folders of bundles.
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
    wheels, pool = place.root / "wheels", place.root / "pool"
    if not wheels.exists():
        wheels.mkdir()
        pool.mkdir()
        shutil.copy(place.model, pool)
        for version in ("1.0", "2.0"):
            write_wheel(wheels, version, release(version, faulty=version == "2.0"))
        write_plugin(place.root / "packages")
    hunt: list[object] = ["hunt", "--optimizer", "evil", "--passes", PLAIN_FAULT]
    hunt = [
        *hunt,
        "--pools",
        f"windows:{pool}",
        "--budget",
        4,
        "--out",
        place.work / "hunt",
        "--jobs",
        1,
    ]
    hunt = [*hunt, "--json", place.work / "hunt.json"]
    # Installation is tried: no vet of each release, and no faults in the user's command.
    code = 'import acme_opt, sys; sys.exit(acme_opt.__version__ > "1.0")'
    check = f"env -u LD_PRELOAD {sys.executable} -P -c '{code}'"
    bisect = ["bisect", place.model, "--package", "acme-opt", "--index", wheels]
    bisect = [*bisect, "--check", f"{check} {{model}}", "--json", place.work / "bisect.json"]
    return {
        "vet": Job(vet, vet, ["answer.json"]),
        "campaign": Job(run, [*run, "--retry"], ["summary.json"]),
        "hunt": Job(hunt, [*hunt, "--resume"], ["hunt.json", "hunt/findings"]),
        "bisect": Job(bisect, bisect, ["bisect.json"]),
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
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        command,
        cwd=place.work,
        env=environment,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        **pipes,
    ) as process:
        used, since = 0, time.monotonic()
        while True:
            try:
                out, err = process.communicate(timeout=5)
                break
            except subprocess.TimeoutExpired:
                now = cpu_ticks(place.living())
                if now != used:
                    used, since = now, time.monotonic()
                elif time.monotonic() - since > IDLE_S:
                    process.kill()
                    place.end_orphans()
                    raise
    seconds = time.monotonic() - started
    return Ran(process.returncode, out, err, seconds), log.exists()


def cpu_ticks(processes: Iterable[int]) -> int:
    """CPU time that these processes have used."""
    found = 0
    for pid in processes:
        try:
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found += int(after_name[11]) + int(after_name[12])
        except OSError:
            continue
    return found


def answers(place: Place, job: Job) -> dict[str, Any]:
    """What the command wrote, without what differs between two runs of it."""
    found = {}
    for name in job.keeps:
        if (kept := place.work / name).is_dir():
            found[name] = {b.name: sorted(f.name for f in b.iterdir()) for b in kept.iterdir()}
        elif kept.exists():
            found[name] = _comparable(json.loads(kept.read_text()))
    return found


# Keys of jobs depend on the code, which may be mended while a campaign of faults runs.
_TIMES = {"seconds", "wall_s", "cost", "started", "ended", "store", "path", "created", "controls"}
_TIMES |= {
    "trials",
    "warnings",
    "cpu_s",
    "vetting_seconds",
    "cached",
    "resumed",
    "shared",
    "reused",
    "ran",
}
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
    for folder in (place.cache, place.tmp, place.data):
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
    except (OSError, ValueError):
        found.append("a half-written answer")
        told = {}
    for name in job.keeps:
        whole, bundles = job.answer.get(name), told.get(name)
        if not Path(name).suffix and bundles and whole | bundles != whole:
            found.append(f"a half-written bundle: {bundles}")
    if ran.code == job.code and told != job.answer:
        found.append(f"another answer: {_difference(told, job.answer)}")
    left = [p.name for p in place.work.iterdir() if p.name.startswith((".", "tmp"))]
    if left:
        found.append(f"left behind: {left}")
    begun = any(
        (place.work / name).exists() for name in ("hunt/hunt.sqlite", "store/campaigns.sqlite3")
    )
    words = job.again if begun else job.words
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


def sampled(call: str, every: int) -> Iterator[tuple[Fault, ...]]:
    """For each number up to ``every``, then for numbers that grow by a half, one of its faults.

    Errors, and the processes in which they happen, take turns; both kinds of processes are tried
    at each number, since they end at different ones.
    """
    number, errors = 1, CALLS[call]
    for turn in count():
        yield tuple(
            Fault(call, errors[(turn + where) % len(errors)], number, bool(where))
            for where in (False, True)
        )
        number = number + 1 if number < every else number * 3 // 2 + (number == 1)
