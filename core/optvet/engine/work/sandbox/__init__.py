"""Foreign native code runs here: in worker processes that may abort, hang or eat memory.

A small server process imports the ``preload`` modules once; every worker is a fork of it, so a
fresh one costs milliseconds. A worker serves tasks one after the other until it dies; then the
next task gets a new one. Whatever happens in a worker comes back as an ``Outcome``.

Why not a library. pebble's ``ProcessPool`` is fast enough (0.1 ms for a task that does nothing,
103 ms from a segfault to the next result), but all its workers share one pipe and one lock, so the
misfortune of one ends them all. Measured with pebble 5.2: an argument that does not unpickle breaks
the pool for good ("All workers expired"), and after a worker is killed while it sends a large
result the next task never ends. The fork server of ``multiprocessing`` runs the caller's
``__main__`` again, which recurses in a script without a main guard, is one per process whatever
its preload list, and lets ``active_children()`` of any thread steal an exit code. Here each worker
has a socket of its own whose messages are atomic, and the server does nothing but fork, kill and
reap: 0.1 ms for a task that does nothing, 2.4 ms in a fresh worker, 3 ms from a segfault to the
next result (two cores, onnx, onnxruntime and onnxoptimizer preloaded).

Processes and how they end::

    caller ──socket── server (own session; imports preload)
      │                 └── fork: worker (own session, dies with the server)
      └──── socket, output file, stage file, status pipe ────┘

The server kills a worker's whole process group when asked, when the worker dies, and when the
caller's end of the socket closes, which the kernel does even for a caller that was SIGKILLed. It
and the workers are subreapers, so what a task leaves in sessions of its own is found and killed
too; if the server itself is killed, the caller kills what bears the server's mark in its
environment. What escapes: a child that has another environment and another session, of a server
that was SIGKILLed. A PID namespace would hold that too, but needs privileges that few machines
give, and an answer must not depend on them.

No file has a name: output, stage and large messages are memory files, gone with their last user.
Nothing that a worker holds can make the caller wait: it reads without blocking, and each message
carries the ticket of its task.

A worker that somebody else killed is no evidence. A task whose process was killed is tried again,
twice at most, beside a process that does nothing; only if that lives and the task dies each time is
it blamed. A task during which the server died is repeated under a server of its own.

``pool`` is what callers use, ``remote`` and ``forks`` their side of worker and server; ``server``
and ``worker`` run in the processes themselves, and ``messages`` is what goes between them.
"""

from __future__ import annotations

from optvet.engine.work.sandbox.outcome import Limits, Outcome, Role
from optvet.engine.work.sandbox.pool import Sandbox
from optvet.engine.work.sandbox.worker import enter, entered, poison_memory

__all__ = ["Limits", "Outcome", "Role", "Sandbox", "enter", "entered", "poison_memory"]
