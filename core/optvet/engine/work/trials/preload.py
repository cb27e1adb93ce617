"""Modules that the server of a sandbox imports once for all workers that it forks.

Imported itself by that server, at the end.
"""

from __future__ import annotations

import onnx.defs

import optvet.engine.work.trials.candidate
import optvet.engine.work.trials.trial  # noqa: F401  (tasks are functions of these two)
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.runtime_protocols import Runtime

# ONNX registers its operators when it is first asked for one: 20 ms that every worker would take.
onnx.defs.has("Identity")


def preload_for(optimizer: Optimizer | None, *runtimes: Runtime) -> tuple[str, ...]:
    """Modules for a sandbox whose tasks apply ``optimizer`` and run models under ``runtimes``."""
    plugins = [plugin for plugin in (optimizer, *runtimes) if plugin is not None]
    libraries = [name for plugin in plugins for name in plugin.preload]
    # A plugin's own module is imported with the first task that names it, in each worker.
    modules = [type(plugin).__module__ for plugin in plugins]
    return tuple(dict.fromkeys(("numpy", "onnx", "onnx.checker", *libraries, *modules, __name__)))
