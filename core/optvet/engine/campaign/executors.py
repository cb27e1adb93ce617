"""What runs the jobs of a campaign, by name."""

from __future__ import annotations

from optvet.engine.campaign.local import LocalExecutor
from optvet.spec.errors import UnknownName
from optvet.spec.executor import Executor


def executor_named(name: str) -> Executor:
    """The executor of that name.

    Raises:
        UnknownName: There is none.
    """
    local = LocalExecutor()
    if name != local.name:
        raise UnknownName("executor", name, [local.name])
    return local
