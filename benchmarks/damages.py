"""Damage that is done to whole models of any kind, as the passes of an optimizer.

``DAMAGES`` is an optimizer in optvet's sense: each of its passes does one kind of damage, to floats
and to quantized weights, to nodes in subgraphs and functions, to trees and linear models. What a
kind damages is drawn from the seed, its option, so that the same model is made each time. It is a
module of its own because workers import it; ``damage.py`` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from damage_regions import KINDS
from plants import NotApplicable
from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, Optimizer, Pass, Traits


class DamageOptions(BaseModel):
    """What decides which place is damaged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0


class Damages:
    """An optimizer whose passes damage models."""

    name = "damages"
    preload: Sequence[str] = ("onnx", "plants", "damages")
    options: BaseModel = DamageOptions()
    traits = Traits()

    def version(self) -> str:
        """Raised when a kind of damage changes."""
        return "2"

    def passes(self) -> Sequence[Pass]:
        """All kinds of damage."""
        return [Pass(name, "damage") for name in KINDS]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """None of use."""
        return {"default": ()}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        """Do the damage."""
        assert isinstance(options, DamageOptions)
        return Artifact("onnx", damaged(source.data, passes, options.seed))


DAMAGES = Damages()


class DamagesBefore(Damages):
    """The same, before another optimizer does its work on the damaged model."""

    def __init__(self, other: Optimizer) -> None:
        self.other = other
        self.preload = (*Damages.preload, *other.preload)
        self.traits = other.traits

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        """Do the damage, if any, and what the other optimizer does by default then."""
        assert isinstance(options, DamageOptions)
        data = damaged(source.data, passes, options.seed) if passes else source.data
        own = self.other.pipelines()["default"] if passes else ()
        return self.other.apply(Artifact("onnx", data), own, self.other.options)


def damaged(data: bytes, kinds: Sequence[str], seed: int) -> bytes:
    """The model with damage of these kinds.

    Raises:
        NotApplicable: There is nothing to damage in this way.
    """
    model = onnx.load_from_string(data)
    for kind in kinds:
        KINDS[kind](model, np.random.default_rng([seed, list(KINDS).index(kind)]))
    made: bytes = model.SerializeToString(deterministic=True)
    # Ten times the largest of saturated integers is the same integer.
    if kinds and made == onnx.load_from_string(data).SerializeToString(deterministic=True):
        raise NotApplicable("nothing is changed")
    return made
