"""Servers that outlive their sandbox, in a process that vets one model after the other.

Importing an optimizer's libraries takes longer than vetting a small model. Workers never outlive
their sandbox: every vet begins with new forks of a server that has run nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from optvet.engine.work.sandbox.forks import Servers, origins, variables
from optvet.engine.work.sandbox.interpreter import Interpreter

_Variables = frozenset[tuple[str, str]]
_Origins = frozenset[tuple[str, str | None]]
_Key = tuple[tuple[str, ...], Interpreter | None, _Variables, _Origins]
"""The modules, the interpreter, the variables that the server was started with, the files of these
modules."""

IDLE_BYTES = 1 << 30
"""Memory of the servers that wait, of all kinds together."""


class KeptServers:
    """Servers that wait for a sandbox with the same modules and variables; thread-safe."""

    def __init__(self, most_bytes: int = IDLE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._idle: OrderedDict[_Key, Servers] = OrderedDict()

    def take(self, preload: tuple[str, ...], interpreter: Interpreter | None = None) -> Servers:
        """A server that waits, or a new one."""
        key = (preload, interpreter, variables(), origins(preload))
        with self._lock:
            kept = self._idle.pop(key, None)
        return kept or Servers(preload, interpreter)

    def put_back(
        self,
        preload: tuple[str, ...],
        servers: Servers,
        interpreter: Interpreter | None = None,
    ) -> None:
        """Keep ``servers``, which runs no task; those used longest ago end if memory is short."""
        key = (preload, interpreter, servers.variables, servers.origins)
        gone = []
        with self._lock:
            if (namesake := self._idle.pop(key, None)) is not None:
                gone.append(namesake)
            self._idle[key] = servers
            while self._idle and self._bytes() > self._most_bytes:
                gone.append(self._idle.popitem(last=False)[1])
        for one in gone:
            one.stop()

    def close(self) -> None:
        """End all servers that wait."""
        with self._lock:
            waiting, self._idle = list(self._idle.values()), OrderedDict()
        for one in waiting:
            one.stop()

    def _bytes(self) -> int:
        return sum(servers.shared.own_bytes() for servers in self._idle.values())


_kept: KeptServers | None = None


def keep_servers() -> None:
    """From now on, sandboxes of this process leave their servers to the next ones.

    They end with this process, whatever ends it.
    """
    global _kept
    _kept = _kept or KeptServers()


def take_servers(preload: tuple[str, ...], interpreter: Interpreter | None = None) -> Servers:
    """A server for one sandbox."""
    if _kept is None:
        return Servers(preload, interpreter)
    return _kept.take(preload, interpreter)


def leave_servers(
    preload: tuple[str, ...],
    servers: Servers,
    *,
    idle: bool,
    interpreter: Interpreter | None = None,
) -> None:
    """End ``servers``, or keep it for the next sandbox if it runs no task."""
    if _kept is None or not idle:
        servers.stop()
    else:
        _kept.put_back(preload, servers, interpreter)
