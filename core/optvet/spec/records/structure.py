"""What graphs are made of: parts of other documents."""

from __future__ import annotations

from pydantic import Field

from optvet.spec.records.base import Record


class Structure(Record):
    """What a graph is made of; ``operators`` counts nodes by operator, in nested graphs too."""

    nodes: int
    size_bytes: int
    operators: dict[str, int]


class Inventory(Structure):
    """All that is counted of a model without running it.

    ``nodes`` are those of the graph and of graphs nested in it, of which there are ``nested``; a
    call of a function is one node. ``operators`` counts the nodes of functions too, and the most
    frequent comes first.

    ``initializers`` and ``unused_initializers`` count those of all graphs; together they are
    ``initializer_bytes`` long. ``parameters`` is the number of elements of initializers and of
    ``Constant`` nodes, with those that are shapes or axes. ``weight_inputs`` is the number of graph
    inputs that an initializer gives a value.

    ``flops`` is the number of arithmetic operations of one inference, as far as it is known:
    ``flops_unknown`` counts the nodes that are not in it, by operator.
    """

    nested: int
    initializers: int
    unused_initializers: int
    initializer_bytes: int
    parameters: int
    weight_inputs: int
    flops: int
    flops_unknown: dict[str, int] = Field(default_factory=dict)

    def share(self, operator: str) -> float:
        """Which part of all nodes is of ``operator``, from 0 to 1."""
        return self.operators.get(operator, 0) / max(sum(self.operators.values()), 1)


class Structures(Record):
    """The graph before and after the whole pipeline; more of it where that was asked for."""

    original: Inventory | Structure
    optimized: Inventory | Structure


class InventoryChange(Record):
    """What a model has more of than the original; negative where it has less.

    ``operators`` has those that differ, the largest difference first. ``flops`` is None if it is
    not known of all nodes of both models.
    """

    nodes: int
    size_bytes: int
    operators: dict[str, int]
    initializers: int
    unused_initializers: int
    initializer_bytes: int
    parameters: int
    weight_inputs: int
    flops: int | None
