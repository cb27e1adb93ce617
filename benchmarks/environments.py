"""What workers of another environment cost: to start, to keep, and to talk to.

    python benchmarks/environments.py [--environment NAME=PATH ...]

For each environment of ``optvet env list`` that is made, beside optvet's own: seconds until the
first worker has answered (its libraries imported), memory of the server from which workers are
forked, milliseconds for a new worker, and for a megabyte there and back; and how an abort is told.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import environments
import numpy as np

from optvet.engine.work.sandbox import Interpreter, Sandbox

MEGABYTE = np.zeros(1 << 18, np.float32)
ROUNDS = 20


def echo(array: np.ndarray) -> np.ndarray:
    """What was sent."""
    return array


def server_bytes() -> int:
    """Resident memory of the server that this worker was forked from."""
    pages = int(Path(f"/proc/{os.getppid()}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measured(name: str, interpreter: Interpreter | None, preload: tuple[str, ...]) -> str:
    """One line of the table."""
    started = time.perf_counter()
    with Sandbox(jobs=1, preload=preload, interpreter=interpreter) as sandbox:
        first = sandbox.call(environments.server_bytes)
        start_s = time.perf_counter() - started
        if first.value is None:
            return f"{name:10} {first.failure}"
        fresh = _mean_ms(sandbox, fresh=True)
        warm = _mean_ms(sandbox, fresh=False)
        died = sandbox.call(os.abort, fresh=True).failure
    told = "nothing" if died is None else f"{died.kind}, {died.signal}"
    rss = first.value / (1 << 20)
    return f"{name:10} {start_s:8.1f} {rss:10.0f} {fresh:12.1f} {warm:12.1f}   {told}"


def _mean_ms(sandbox: Sandbox, *, fresh: bool) -> float:
    started = time.perf_counter()
    for _ in range(ROUNDS):
        sandbox.call(environments.echo, MEGABYTE, fresh=fresh)
    return (time.perf_counter() - started) / ROUNDS * 1e3


def main() -> None:
    """Print the table."""
    # Not at the top: workers of another environment import this module too.
    import machine

    from optvet.engine.discovery import Plugins
    from optvet.engine.environment.environments import (
        Pythons,
        declared_environments,
        environments_root,
    )

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=PATH")
    named = (each.partition("=") for each in parser.parse_args().environment)
    pythons = Pythons({name: Path(place) for name, _, place in named}, environments_root())
    print(machine.describe(machine.environment()))
    print("            start, s    RSS, MB  new worker, ms  warm, ms   an abort is told as")
    print(measured("optvet", None, ("environments", "onnx")))
    plugins = Plugins()
    for name in declared_environments(plugins.all()):
        if pythons.python_of(name) is None:
            print(f"{name:10} not made: optvet env make {name}")
            continue
        python = pythons.interpreter_of(name, plugins)
        lent = (*python.lent, ("environments", __file__))
        libraries = {
            library
            for entry in plugins.all()
            if entry.elsewhere == name
            for library in entry.plugin.preload
        }
        print(measured(name, replace(python, lent=lent), ("environments", *sorted(libraries))))


if __name__ == "__main__":
    main()
