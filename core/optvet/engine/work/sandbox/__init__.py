"""Runs foreign native code in worker processes, which may abort, hang or exhaust their memory.

A small server process imports the ``preload`` modules once. Every worker is a fork of it, so that a
fresh worker imports nothing. A worker serves tasks one after the other until it dies; then the next
task gets a new one. Whatever happens in a worker is returned as an ``Outcome``.

Why not a library. All workers of pebble's ``ProcessPool`` share one pipe and one lock, so that one
worker can break the pool. Seen with pebble 5.2: an argument that cannot be unpickled ends the pool
("All workers expired"), and after a worker is killed while it sends a large result, the next task
never ends. The fork server of ``multiprocessing`` runs the caller's ``__main__`` again, which
recurses in a script without a main guard; there is only one per process, whatever modules are to be
preloaded; and a call of ``active_children()`` in any thread may take an exit code that another
thread waits for. Here each worker has its own socket, whose messages are atomic, and the server
only forks, kills and reaps.

Processes and how they end::

    caller ──socket── server (own session; imports preload)
      │                 └── fork: worker (own session, dies with the server)
      └── socket, stdout, stderr and stage file, status pipe ─┘

The server kills a worker's whole process group when the caller requests it, when the worker dies,
and when the caller's end of the socket closes (the kernel closes it even if the caller gets a
SIGKILL). The server and the workers are subreapers (``prctl(2)``): processes that a task starts in
sessions of their own become children of these, and are killed too. If the server itself is killed,
the caller kills every process that has the server's mark in its environment. One case is left: the
server gets a SIGKILL, and the task has started a process with a changed environment in a session of
its own. A PID namespace would cover it, but few machines grant the privileges for one, and a result
must not depend on them.

No file has a name: stdout, stderr, stage and large messages are memory files (``memfd_create``),
which end with the last process that has them open. No worker can make the caller wait: the caller
reads without blocking, and each message has the ticket (a random number) of its task.

A worker that another process killed says nothing about its task. A task whose process was killed by
SIGKILL, SIGTERM or SIGHUP is repeated, at most twice, and an idle process runs as the control. This
is a failure of the task only if the task dies each time while the idle process lives. A task during
which the server died is repeated with a server of its own.

A process that vets one model after the other keeps its servers for the next sandbox (``kept``).

Callers use ``pool``. ``remote`` and ``forks`` are the caller's side of a worker and of the server;
``server`` and ``worker`` run in these processes; ``messages`` is the protocol between them.

Tasks may run under the ``interpreter`` of another environment: its server imports optvet and the
plugins from here (``guest``), and everything else from there.
"""

from __future__ import annotations

from optvet.engine.work.sandbox.interpreter import Interpreter
from optvet.engine.work.sandbox.kept import keep_servers
from optvet.engine.work.sandbox.outcome import Limits, Outcome, Role
from optvet.engine.work.sandbox.pool import Sandbox
from optvet.engine.work.sandbox.worker import (
    enter,
    handed_file,
    in_worker,
    last_stage,
    poison_memory,
)

__all__ = [
    "Interpreter",
    "Limits",
    "Outcome",
    "Role",
    "Sandbox",
    "enter",
    "handed_file",
    "in_worker",
    "keep_servers",
    "last_stage",
    "poison_memory",
]
