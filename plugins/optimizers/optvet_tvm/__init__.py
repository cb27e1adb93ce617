"""Apache TVM: Relax as an optimizer and a runtime, its importers as a converter.

Each family is a module, imported when its plugins are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from optvet.plugin import Converter, Optimizer, Runtime, hookimpl


@hookimpl
def optvet_converters() -> Iterable[Converter]:
    """The converters of this library."""
    from optvet_tvm.converter import TvmConverter

    return [TvmConverter()]


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The optimizers of this library."""
    from optvet_tvm.optimizer import TvmOptimizer

    return [TvmOptimizer()]


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """The runtimes of this library."""
    from optvet_tvm.converter import RelaxRuntime
    from optvet_tvm.runtime import TvmRuntime

    return [RelaxRuntime(), TvmRuntime()]
