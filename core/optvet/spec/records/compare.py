"""Two models compared value by value: document ``optvet.compare/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record


class Activation(Record):
    """Statistics of a value in both models, over its finite elements, in its own unit.

    ``rms_difference`` is relative to the root mean square of the first; ``cosine`` is that of the
    angle between the two. Both are None where shapes differ, or there is nothing to divide by.
    """

    mean: tuple[float, float]
    std: tuple[float, float]
    minimum: tuple[float, float]
    maximum: tuple[float, float]
    rms_difference: float | None = None
    cosine: float | None = None


class Parameter(Record):
    """A weight that both nodes read at the same place.

    The differences, largest and root mean square, are relative to the first weight's largest
    magnitude and root mean square; None where shapes differ.
    """

    name: str
    shape: list[int]
    shape_in_b: list[int]
    max_difference: float | None
    rms_difference: float | None

    @property
    def differs(self) -> bool:
        """Whether any element does."""
        return self.max_difference != 0


class Layer(Record):
    """A value that both models have, and the nodes that make it.

    ``error`` and ``noise`` are relative to the largest magnitude of the first model's value, which
    is ``magnitude``. ``attributes`` says what differs between the two nodes, by name;
    ``parameters`` are their weights, where both nodes are of one operator.
    """

    name: str
    name_in_b: str
    found_by: Literal["name", "position", "value"]
    op_a: str
    op_b: str
    shape: list[int]
    magnitude: float | None
    error: float | None
    noise: float | None
    call: Literal["same", "drift", "sensitivity", "fault", "unsure"]
    detail: str = ""
    attributes: dict[str, str] = Field(default_factory=dict)
    parameters: list[Parameter] = Field(default_factory=list)
    activation: Activation | None = None


class ModelComparison(Record):
    """Two models on one input; ``diverges_at`` names the earliest layer beyond its noise.

    ``before`` and ``after`` are the nodes of the two models in the region that was rewritten there,
    as text; ``agreeing`` the values that go into it and are still the same.
    """

    schema_: Literal["optvet.compare/1"] = Field("optvet.compare/1", alias="schema")
    nodes: tuple[int, int]
    layers: list[Layer]
    only_in_a: list[str]
    only_in_b: list[str]
    diverges_at: str | None = None
    before: list[str] = Field(default_factory=list)
    after: list[str] = Field(default_factory=list)
    agreeing: list[str] = Field(default_factory=list)
