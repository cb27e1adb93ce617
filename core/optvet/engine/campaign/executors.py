"""What runs the jobs of a campaign, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from optvet.engine.campaign.local import LocalExecutor
from optvet.engine.discovery import Plugins
from optvet.engine.options import parse_options
from optvet.spec.errors import UnknownName
from optvet.spec.executor import Executor


def executor_named(
    name: str, plugins: Plugins, given: Mapping[str, Any]
) -> tuple[Executor, BaseModel]:
    """The executor of that name, under the options ``given``.

    That of this machine is a part of the engine; others come from plugins.

    Raises:
        UsageError: There is none, or an option does not fit.
        PluginError: It cannot be used.
    """
    local = LocalExecutor()
    if name == local.name:
        return local, parse_options(name, local.options, given)
    if name not in {p.name for p in plugins.all() if p.family == "executor"}:
        known = {local.name, *plugins.names("executor")}
        raise UnknownName("executor", name, known, "(see: optvet plugins)")
    executor = plugins.executor(name)
    return executor, parse_options(name, executor.options, given)
