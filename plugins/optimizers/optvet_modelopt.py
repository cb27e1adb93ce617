"""ModelOpt's AutoCast to float16: each node that it may convert is a pass.

AutoCast itself keeps nodes whose values exceed 512, and looks for no other losses. Here it converts
exactly the nodes that it is told to, unless an option says otherwise.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import onnx
from onnx import ModelProto
from pydantic import BaseModel, ConfigDict, Field

from optvet.graph import group_nodes, half_nodes, join_casts, name_nodes, round_half_types, tidy
from optvet.plugin import Artifact, Optimizer, Pass, Traits, UnknownName, hookimpl, version_of

_BLOCKED = ("Upsample", "NonMaxSuppression", "Celu")
"""Operators that AutoCast leaves in float32."""


class AutoCastOptions(BaseModel):
    """How the model is converted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: Literal["node", "operator", "layer", "block"] = "node"
    """What a pass is: a node, all nodes of an operator, of a layer, which is what their names have
    before the last slash, or of a block, which ends at the first numbered part of the layer."""
    data_max: float = Field(default=math.inf, gt=0)
    """Nodes whose values exceed this on random inputs stay in float32; AutoCast's own is 512."""
    join_casts: bool = True
    """Whether values between two nodes that stay in float32 stay so too."""
    emulated: bool = False
    """Make a model of float32 that rounds each value to float16, for runtimes without kernels."""
    sum_block: int | None = Field(default=None, ge=1)
    """Products that an emulated model adds in float32 before it rounds the running sum; by default
    sums are accumulated in float32."""
    tolerance: float = Field(default=0.01, gt=0)
    """The error that the conversion may cause, as a share of an output's largest value."""


class AutoCastFp16:
    """``convert_to_mixed_precision`` of ``modelopt.onnx.autocast``."""

    name = "autocast_fp16"
    precision = "fp16"
    requirement = "max_change<=0.01"
    always: Sequence[str] = ("nonfinite<=0",)
    preload: Sequence[str] = ("onnx", "modelopt.onnx.autocast")
    options: AutoCastOptions = AutoCastOptions()
    traits = Traits(ordered=False, composable=True, max_model_bytes=2**31 - 1)

    def __init__(
        self, parts: Mapping[str, Sequence[str]] | None = None, tolerance: float = 0.01
    ) -> None:
        self.parts, self._tolerance = parts or {}, tolerance

    def version(self) -> str:
        """Version of the library."""
        return version_of("nvidia-modelopt", extra="optvet[autocast]")

    def for_model(self, source: Artifact, options: AutoCastOptions) -> AutoCastFp16:
        """One pass for each part that may be of float16."""
        model = onnx.load_from_string(source.data)
        name_nodes(model)
        return AutoCastFp16(_parts(model, options), options.tolerance)

    def passes(self) -> Sequence[Pass]:
        """The parts of the model."""
        return [Pass(name, "convert", lossy=True, tolerance=self._tolerance) for name in self.parts]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """All that may be converted."""
        return {"default": tuple(self.parts)}

    def apply(self, source: Artifact, passes: Sequence[str], options: AutoCastOptions) -> Artifact:
        """Convert the parts ``passes``, and no others."""
        half = onnx.load_from_string(source.data)
        name_nodes(half)
        parts = self.parts or _parts(half, options)
        for name in passes:
            if name not in parts:
                raise UnknownName(f"node of the model for {self.name}", name, parts)
        converted = {node for name in passes for node in parts[name]}
        if converted:
            half = _convert(half, converted, options)
        half = join_casts(half) if options.join_casts else tidy(half)
        half = round_half_types(half, options.sum_block) if options.emulated else half
        return Artifact("onnx", half.SerializeToString(deterministic=True))

    def emulated(self, options: AutoCastOptions, sum_block: int | None = None) -> AutoCastOptions:
        """Options with which a model of float32 rounds as float16 does."""
        return options.model_copy(update={"emulated": True, "sum_block": sum_block})

    def on_inputs(self, options: AutoCastOptions, inputs: Path) -> None:
        """None: ranges are not what a list is made of."""

    def recipes(
        self, source: Artifact, kept: Sequence[str], options: AutoCastOptions
    ) -> Mapping[str, str]:
        """``nodes_to_exclude``, whose entries are patterns that match the beginnings of names."""
        nodes = [node for name in kept for node in self.parts[name]]
        return {"nodes_to_exclude": repr([f"{re.escape(node)}$" for node in nodes])}


def _convert(model: ModelProto, converted: set[str], options: AutoCastOptions) -> ModelProto:
    """``model`` with the nodes ``converted`` in float16, by the library, which reads a file."""
    from modelopt.onnx.autocast import convert_to_mixed_precision
    from modelopt.onnx.logging_config import configure_logging

    # It matches the beginning of a name: here of every name but these.
    others = f"(?!(?:{'|'.join(map(re.escape, sorted(converted)))})$)"
    # It tells of every node that stays.
    configure_logging(logging.WARNING)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(model, file)
        half: ModelProto = convert_to_mixed_precision(
            str(file),
            keep_io_types=True,
            data_max=options.data_max,
            init_max=math.inf,
            nodes_to_exclude=[others],
        )
    return half


def _parts(model: ModelProto, options: AutoCastOptions) -> dict[str, tuple[str, ...]]:
    return group_nodes(half_nodes(model, _BLOCKED), options.by)


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The converter."""
    return [AutoCastFp16()]
