"""The judgement of the layers of an optimized quantized model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Outcome = Literal["sound", "skipped", "noise", "coarse", "open", "saturation", "fault"]


@dataclass(frozen=True)
class LayerJudgement:
    """The judgement of one layer, or of the part that computes an output.

    Attributes:
        name: The quantized tensor at its end, or the output.
        outcome: The judgement.
        sample: Index of the sample on which it is worst.
        beyond: Indices of all samples on which it is beyond the limit, each with its steps there
            and the share of elements.
        steps: Distance from the exact result of its own inputs, in steps; for an output, its error.
        share: Share of elements beyond the limit; None for an output.
        skipped: Quantizers within it whose rounding was left out.
        hidden: Quantizers within it whose integers are not available.
        operators: Names of its operators.
        node: Name of its last node.
        begins: Quantized tensors that it is computed from.
        detail: Further details as text.
        excused: Steps by which roundings that cannot be seen may move it, of which an error is
            excused; None where none was needed.
    """

    name: str
    outcome: Outcome
    sample: int
    steps: float
    share: float | None = None
    skipped: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    node: str = ""
    begins: tuple[str, ...] = ()
    detail: str = ""
    beyond: tuple[tuple[int, float, float | None], ...] = ()
    excused: float | None = None

    def on(self, sample: int) -> LayerJudgement | None:
        """The same as it is on one sample; None if it is within the limit there."""
        for index, steps, share in self.beyond:
            if index == sample:
                return replace(self, sample=index, steps=steps, share=share)
        return None


WRONG: tuple[Outcome, ...] = ("saturation", "fault")


@dataclass(frozen=True)
class LocalAnswer:
    """The judgements of all layers.

    Attributes:
        layers: Those that end in a quantized tensor of both models.
        ends: The parts after the last of these, by output.
        quantizers: Number of quantizers of the original.
        reaching: Names of the layers from which each output is computed.
    """

    layers: tuple[LayerJudgement, ...]
    ends: tuple[LayerJudgement, ...]
    quantizers: int
    reaching: Mapping[str, frozenset[str]]
