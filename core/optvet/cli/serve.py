"""``optvet serve``: keep what commands import in memory, so that the next ones start at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from optvet.cli import resident
from optvet.cli.options import Debug, parse_seconds
from optvet.cli.terminal import Terminal
from optvet.engine.work.sandbox.standby import MARK, MARK_CHARS
from optvet.engine.work.sandbox.threads import one_thread
from optvet.spec.errors import InfrastructureError, UsageError
from optvet_resident import is_private, socket_path, surroundings

_SOCKET_CHARS = 100
"""The system allows 107."""


def command(
    context: typer.Context,
    idle: Annotated[
        float,
        typer.Option(
            parser=parse_seconds, metavar="S", help="End after this many seconds without a command."
        ),
    ] = "1800",  # type: ignore[assignment]  # parsed, as what is typed
    debug: Debug = False,
) -> None:
    """Keep what commands import in memory, so that the next ones start at once.

    Commands that are typed meanwhile, with the same Python, user and environment variables, run in
    forks of a process that has imported everything. It stays in the foreground; Ctrl-C ends it.
    """
    terminal = context.ensure_object(Terminal)
    terminal.keeps = True
    variables = _started_with()
    path = socket_path(variables)
    _prepare(path)
    around = json.dumps(surroundings(variables))
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from optvet.cli.resident import main; "
        f"sys.exit(main({around!r}, {idle!r}))"
    )
    environment = {**one_thread(variables), MARK: "-" * MARK_CHARS}
    while True:
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            cwd="/",
        ) as process:
            ended = _serve(terminal, process)
        if ended != resident.STALE:
            break
        terminal.write("installed code has changed; starting again\n")
    if ended == resident.TAKEN:
        raise UsageError(f"another process serves at {path} already; end that one first")
    if ended != resident.IDLE:
        raise InfrastructureError(f"the process that serves ended with status {ended}")


def _serve(terminal: Terminal, process: subprocess.Popen[bytes]) -> int:
    """Wait until the process has ended; its exit code."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            terminal.write(line.decode("utf-8", "replace"))
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        return process.wait()


def _prepare(path: Path) -> None:
    """Make the folder of a socket, for this user alone, where that is safe."""
    if resident.is_confined(os.getpid()):
        raise UsageError(
            "this process cannot gain privileges (no_new_privs), nor can those that it starts; "
            "confined workers could not be told from commands. Start it outside of the container"
        )
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot be made: {error.strerror}") from error
    if not is_private(path.parent):
        raise UsageError(
            f"{path.parent}: others can open it; remove it, or let XDG_RUNTIME_DIR name a folder "
            "of yours alone"
        )
    if len(os.fsencode(path)) > _SOCKET_CHARS:
        raise UsageError(
            f"{path}: too long a name for a socket; let XDG_RUNTIME_DIR name a folder with a "
            "shorter one"
        )


def _started_with() -> dict[str, str]:
    """The variables that this process was started with; it has set its own TMPDIR since."""
    pairs = Path("/proc/self/environ").read_bytes().rstrip(b"\0").split(b"\0")
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)
