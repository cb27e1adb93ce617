"""OpenVINO: its CPU path as an optimizer and a runtime, its importers as a converter.

Each family is a module, imported when its plugins are asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from optvet.plugin import Converter, Optimizer, Runtime, hookimpl

# From every process that imports it OpenVINO sends an event, and it writes to the home folder,
# unless this package cannot be imported (None). There is no variable for OpenVINO alone.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


@hookimpl
def optvet_converters() -> Iterable[Converter]:
    """The converters of this library."""
    from optvet_openvino.converter import OpenVinoConverter

    return [OpenVinoConverter()]


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The optimizers of this library."""
    from optvet_openvino.optimizer import OpenVinoOptimizer

    return [OpenVinoOptimizer()]


@hookimpl
def optvet_runtimes() -> Iterable[Runtime]:
    """The runtimes of this library."""
    from optvet_openvino.converter import OpenVinoIrRuntime
    from optvet_openvino.runtime import OpenVinoRuntime

    return [OpenVinoIrRuntime(), OpenVinoRuntime()]
