"""What a benchmark ran on: machine and versions, printed with every set of numbers."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported

_PREFIX = "PYTHONPYCACHEPREFIX"
PACKAGES = ("numpy", "onnx", "onnxruntime", "onnxoptimizer")


def environment() -> dict[str, str]:
    """Processor, operating system, interpreter and library versions, and the load at start."""
    found = {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "optvet": _optvet_version(),
    }
    return found | {name: library_version(name) for name in PACKAGES}


def describe(found: dict[str, str]) -> str:
    """One paragraph of ``environment()``."""
    where = f"{found['processor']}; {found['system']}; load {found['load']}"
    rest = [f"{k} {v}" for k, v in found.items() if k not in ("processor", "system", "load")]
    return f"{where}\n{', '.join(rest)}"


@contextmanager
def as_installed() -> Iterator[None]:
    """Processes that are started here keep compiled modules, as those of an installed package do.

    What this environment says may be otherwise (PYTHONDONTWRITEBYTECODE, a checkout that nobody may
    write to), and compiling takes longer than most that is measured.
    """
    before = {n: os.environ.pop(n, None) for n in ("PYTHONDONTWRITEBYTECODE", _PREFIX)}
    with tempfile.TemporaryDirectory(prefix="optvet-bytecode-") as folder:
        os.environ[_PREFIX] = folder
        try:
            yield
        finally:
            del os.environ[_PREFIX]
            os.environ |= {name: value for name, value in before.items() if value is not None}


def library_version(name: str) -> str:
    """Version of what ``import name`` gives, which an overlay on PYTHONPATH may change."""
    try:
        module = __import__(name)
        return str(getattr(module, "__version__", None) or version(name))
    except (ImportError, PackageNotFoundError):
        return "absent"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _optvet_version() -> str:
    import optvet

    return optvet.__version__
