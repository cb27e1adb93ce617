"""IREE, a compiler on MLIR: its passes as an optimizer, its virtual machine as a runtime.

Each family is a module, imported when its plugins are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from optvet.plugin import Optimizer, Runtime, hookimpl


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The optimizer of this library."""
    from optvet_iree.optimizer import IreeOptimizer

    return [IreeOptimizer()]


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """The runtime of this library."""
    from optvet_iree.runtime import IreeRuntime

    return [IreeRuntime()]
