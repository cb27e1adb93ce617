"""Which Python runs a server and its workers: this one, or that of another environment."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_GUEST = str(Path(__file__).with_name("guest.py"))
OWN_VARIABLES = ("PYTHONPATH", "PYTHONHOME")
"""Variables that name this interpreter's libraries, which another one cannot import."""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter of another environment.

    Attributes:
        executable: Its path.
        lent: Modules of this environment that are imported there too, by name: their files. The
            packages of this environment are not visible there otherwise.
    """

    executable: str
    lent: tuple[tuple[str, str], ...]


def command(interpreter: Interpreter | None, serve: str) -> list[str]:
    """The command that runs ``serve``, code that uses ``server``."""
    imported = "from optvet.engine.work.sandbox import server; "
    if interpreter is None:
        return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {imported}{serve}"]
    lend = (
        "import importlib.util; "
        f"spec = importlib.util.spec_from_file_location('optvet_guest', {_GUEST!r}); "
        "guest = importlib.util.module_from_spec(spec); spec.loader.exec_module(guest); "
        f"guest.lend({dict(interpreter.lent)!r}); "
    )
    return [interpreter.executable, "-I", "-c", f"{lend}{imported}{serve}"]
