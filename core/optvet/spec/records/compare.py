"""Two models compared value by value: document ``optvet.compare/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record, Result


class Activation(Record):
    """Statistics of a value in both models, over its finite elements, in the value's unit.

    ``rms_difference`` is relative to the first model's root mean square; ``cosine`` is the cosine
    similarity of the two. Both are None if shapes differ or the divisor is 0.
    """

    mean: tuple[float, float]
    std: tuple[float, float]
    minimum: tuple[float, float]
    maximum: tuple[float, float]
    rms_difference: float | None = None
    cosine: float | None = None


class Parameter(Record):
    """A weight that both nodes read at the same input position.

    The largest difference is relative to the first weight's largest magnitude, the root mean square
    difference to its root mean square; None if shapes differ.
    """

    name: str
    shape: list[int]
    shape_in_b: list[int]
    max_difference: float | None
    rms_difference: float | None

    @property
    def differs(self) -> bool:
        """Whether any element differs."""
        return self.max_difference != 0


class Layer(Record):
    """A value that both models have, and the nodes that compute it.

    ``error`` and ``noise`` are relative to ``magnitude``, the largest magnitude of the first
    model's value. ``attributes`` are the attributes that differ between the two nodes, by name;
    ``parameters`` are the weights of the nodes, if both have the same operator.
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


class ModelComparison(Result):
    """Two models on one input; ``diverges_at`` names the first layer that differs beyond noise.

    ``before`` and ``after`` are the nodes of the two models in the rewritten region around it, as
    text; ``agreeing`` are the values that enter the region and are equal up to noise.
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

    def headline(self) -> str:
        """Where the two models differ first."""
        where = f"they differ first at {self.diverges_at}" if self.diverges_at else "they agree"
        return f"{len(self.layers)} layers compared: {where}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per layer."""
        shown = ("name", "name_in_b", "op_a", "op_b", "error", "noise", "call", "detail")
        return [{n: getattr(layer, n) for n in shown} for layer in self.layers]
