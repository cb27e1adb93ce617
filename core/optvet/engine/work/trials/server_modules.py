"""Names of the modules that the server of a sandbox imports once for all workers that it forks.

The caller needs the names alone: what the last of them imports is for the server.
"""

from __future__ import annotations

from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.runtime_protocols import Runtime

_TASKS = "optvet.engine.work.trials.preload"


def preload_for(optimizer: Optimizer | None, *runtimes: Runtime) -> tuple[str, ...]:
    """Modules for a sandbox whose tasks apply ``optimizer`` and run models under ``runtimes``."""
    plugins = [plugin for plugin in (optimizer, *runtimes) if plugin is not None]
    libraries = [name for plugin in plugins for name in plugin.preload]
    # A plugin's own module is imported with the first task that names it, in each worker.
    modules = [type(plugin).__module__ for plugin in plugins]
    return tuple(dict.fromkeys(("numpy", "onnx", "onnx.checker", *libraries, *modules, _TASKS)))
