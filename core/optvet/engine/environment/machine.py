"""The machine: Python, system, processor, memory; whether workers and the cache work there."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import tempfile
from pathlib import Path

from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.spec.records.doctor import Check

FREE_BYTES = 1 << 30
_FEATURES = re.compile(r"^(avx|fma$|f16c$|amx|sse4_2$|asimd|sve|bf16$|i8mm$)")


def environment() -> dict[str, str]:
    """Python, system, processor and memory."""
    model, features = _processor()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    usable = len(os.sched_getaffinity(0))
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "processor": f"{model or platform.machine()}, {usable} of {os.cpu_count()} cores usable",
        "features": " ".join(features) or "unknown",
        "memory": f"{total / (1 << 30):.1f} GiB",
    }


def _processor() -> tuple[str, list[str]]:
    """Model name and the features that kernels are chosen by."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "", []
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    features = [f for f in flags[1].split() if _FEATURES.match(f)] if flags else []
    return (model[1] if model else ""), sorted(features)


def check_sandbox(sandbox: Sandbox) -> Check:
    """A worker starts, its crash is noticed, and the next one works."""

    def bad(message: str) -> Check:
        cure = "allow processes to fork, to be killed, and to use memory files (memfd_create)"
        return Check(name="sandbox", status="broken", message=message, cure=cure)

    try:
        first, crash, second = (sandbox.call(f) for f in (os.getpid, _crash, os.getpid))
    except Exception as error:
        return bad(f"no worker process can be started: {error}")
    if not (first.ok and second.ok):
        failure = first.failure or second.failure
        return bad(f"a worker fails at an empty task: {describe(failure) if failure else ''}")
    if crash.failure is None or crash.failure.kind != "abort":
        return bad("the crash of a worker is not noticed")
    words = "a worker started, crashed as requested, and was replaced"
    return Check(name="sandbox", status="ok", message=words)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGABRT)


def check_cache(root: Path) -> Check:
    """Whether results can be kept, and whether there is room."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"optvet")
            file.flush()
        free = shutil.disk_usage(root).free
    except OSError as error:
        return Check(
            name="cache",
            status="broken",
            message=f"{root} cannot be written: {error.strerror or error}",
            cure="choose another folder with --cache-dir or OPTVET_CACHE",
        )
    message = f"{root} can be written; {free / (1 << 30):.1f} GiB are free"
    if free < FREE_BYTES:
        cure = "make room, or choose another folder with --cache-dir or OPTVET_CACHE"
        return Check(name="cache", status="warning", message=message, cure=cure)
    return Check(name="cache", status="ok", message=message)
