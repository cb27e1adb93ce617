"""Native code that reads foreign files, for callers outside workers.

A file can crash or hang such code (parsers, checkers, type inference of onnx; passes' libraries),
so it runs in a worker with limits. Protobuf's own parser is the exception: each process has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from onnx import ModelProto

from optvet.engine.work.sandbox import Limits, Sandbox, in_worker
from optvet.engine.work.sandbox.outcome import describe
from optvet.graph.functions import without_functions
from optvet.spec.errors import InputError

_LIMITS = Limits(timeout_s=60.0, memory_bytes=4 << 30)


@contextmanager
def native_code(*modules: str, limits: Limits = _LIMITS) -> Iterator[Callable[..., Any]]:
    """Calls a function in a worker, and returns what it returns.

    The first argument of the call says what is done with which file, for the InputError that is
    raised if the function fails: ``FILE: reading its model``.

    Args:
        modules: What the functions need, which workers import once.
        limits: Those of one call.
    """
    with Sandbox(jobs=1, limits=limits, preload=("onnx", *modules)) as sandbox:

        def call(what: object, function: Callable[..., Any], *arguments: object) -> Any:
            outcome = sandbox.call(function, *arguments)
            if outcome.failure is not None:
                raise InputError(f"{what}: {describe(outcome.failure)}")
            return outcome.value

        yield call


def inline_functions(model: ModelProto, source: object = "the model") -> ModelProto:
    """``model`` with calls of local functions replaced by their nodes; itself where it has none.

    Args:
        model: The model.
        source: What an error calls it.

    Raises:
        InputError: onnx's inliner, which is native code, crashes on it.
    """
    if not model.functions or in_worker():
        return without_functions(model)
    with native_code() as call:
        inlined: ModelProto = call(f"{source}: inlining its functions", without_functions, model)
    return inlined
