"""Where a runtime executes the nodes of a model, and how long they take: part of other documents.

All times are seconds per run, under the runtime's profiler, which makes a run slower than it is
without.
"""

from __future__ import annotations

from pydantic import Field

from optvet.spec.records.base import Record


class PlacedNode(Record):
    """A node as it is executed, which may stand for several of the model that were fused."""

    name: str
    operator: str
    provider: str
    calls: float
    seconds: float


class OperatorTime(Record):
    """Nodes of one operator; ``share`` is their part of the time of all nodes, from 0 to 1."""

    operator: str
    nodes: int
    seconds: float
    share: float


class Placement(Record):
    """Where the nodes of a model are executed, over ``runs`` runs.

    ``wanted`` is the provider that was asked for first, ``providers`` the number of nodes on each,
    ``elsewhere`` those that are not on the wanted one, which has no kernel for them.
    ``operators`` and ``slowest`` begin with what takes longest; of single nodes only the first are
    kept, of ``elsewhere`` too, whose whole number is in ``providers``. ``seconds`` is the time of
    all nodes.
    """

    wanted: str
    runs: int
    providers: dict[str, int]
    seconds: float
    operators: list[OperatorTime]
    slowest: list[PlacedNode]
    elsewhere: list[PlacedNode] = Field(default_factory=list)

    @property
    def nodes(self) -> int:
        """The number of nodes that are executed."""
        return sum(self.providers.values())

    def share_of(self, provider: str) -> float:
        """Which part of the nodes ``provider`` executes, from 0 to 1."""
        return self.providers.get(provider, 0) / max(self.nodes, 1)


class Placements(Record):
    """Where the original and the optimized model are executed.

    ``reference`` is the empty pipeline where an optimizer makes sessions or a format of its own.
    What is not known is None, for the reason in ``unknown``.
    """

    reference: Placement | None = None
    optimized: Placement | None = None
    unknown: str = ""
