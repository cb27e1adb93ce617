"""How the layers of a quantized model were judged, each on its own inputs; part of ``vet``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record


class LayerRecord(Record):
    """One layer of a quantized model that is not plainly right.

    ``name`` is the quantized tensor that ends it, by its name in the original, or an output that is
    computed from the last of these. ``steps`` is how far the optimized model is, at most, from the
    exact result of the layer's own inputs, in steps of that tensor (0.5 is rounding), and ``share``
    the share of elements that are further off than rounding; both None for an output. ``operators``
    are those of the original there and ``node`` the last of its nodes. ``skipped`` are quantized
    tensors of the original whose rounding the optimized model leaves out, ``hidden`` those that
    could not be seen.

    ``outcome`` is "skipped" (right but for the roundings left out), "coarse" (a kernel that
    computes so in all layers alike), "noise" (explained by rounding that cannot be seen), "open"
    (not explained, but too much is hidden to call it a fault), "saturation" (a quantizer was left
    out that also cut values off, such as one that stands for Relu) or "fault".
    """

    name: str
    outcome: Literal["skipped", "coarse", "noise", "open", "saturation", "fault"]
    sample: str
    steps: float | None = None
    share: float | None = None
    operators: list[str] = Field(default_factory=list)
    node: str = ""
    skipped: list[str] = Field(default_factory=list)
    hidden: list[str] = Field(default_factory=list)


class MovedOutput(Record):
    """By how much an output differs, and by how much rounding alone moves it.

    ``difference`` and ``rounding`` are the largest over elements; ``unit`` is what they count:
    "steps" of the quantized tensor that the output is, or its "largest value". ``rounding`` is None
    where it was not measured. ``flipped`` tells that the index of the largest element changed on
    some sample, and ``margin`` the most by which the original preferred the old one.
    """

    name: str
    difference: float
    rounding: float | None = None
    unit: Literal["steps", "largest value"] = "largest value"
    flipped: int = 0
    margin: float | None = None


class Quantized(Record):
    """How a quantized model was judged: where the two models could be compared layer by layer.

    ``method`` is "layers" where every output is computed from quantized tensors that both models
    have; "some layers" where roundings between them could not be seen; "whole run" where none
    could, of which ``reason`` tells why: then an error that is smaller than what rounding does to
    the whole model is not found. ``quantizers`` counts the places of the original at which
    activations are rounded, ``compared`` those that were found in the optimized model too,
    ``samples`` those that were looked at. ``largest`` is the largest distance of a layer that is
    right from the exact result of its own inputs, in steps. ``layers`` are those that are not
    plainly right.
    """

    method: Literal["layers", "some layers", "whole run"]
    reason: str = ""
    quantizers: int
    compared: int = 0
    samples: int = 0
    largest: float | None = None
    layers: list[LayerRecord] = Field(default_factory=list)
    outputs: list[MovedOutput] = Field(default_factory=list)
