"""Releases of a plugin's library, which ``optvet bisect`` puts in place of the installed one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReleasedPackage:
    """A distribution of which several releases can be tried, one after the other.

    Attributes:
        distribution: Its name for installers, such as "apache-tvm".
        module: What Python imports of it.
        probe: Python statements that must run where a release works beside the other installed
            packages; importing ``module`` is tried in any case.
        beside: Requirements such as ``("numpy<2",)`` that are put beside a release which does not
            work with what is installed; it is then tried once more.
    """

    distribution: str
    module: str
    probe: str = ""
    beside: tuple[str, ...] = ()
