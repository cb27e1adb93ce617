"""ONNX Runtime's converter to float16: each node that it may convert is a pass.

It rounds what flows between two nodes that stay in float32, which undoes what they are kept for
(onnxruntime#21345); the option ``join_casts`` takes these casts out again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx
from onnx import ModelProto
from pydantic import BaseModel, ConfigDict, Field

from optvet.graph import (
    Outlined,
    group_nodes,
    half_block_list,
    half_code,
    half_nodes,
    join_casts,
    name_nodes,
    round_half_types,
    tidy,
    to_bfloat16,
    without_weights,
)
from optvet.plugin import Artifact, Pass, Traits, UnknownName
from optvet_onnxruntime.bfloat16_code import AFTER, BEFORE
from optvet_onnxruntime.installed_version import installed_version
from optvet_onnxruntime.other_forms import autocast_command, polygraphy_script

By = Literal["node", "operator", "layer", "block"]


_IMPORTS = """\
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel
"""


class HalfOptions(BaseModel):
    """How the model is converted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: By = "node"
    """What a pass is: a node, all nodes of an operator, of a layer, which is what their names have
    before the last slash, or of a block, which ends at the first numbered part of the layer."""
    join_casts: bool = True
    """Whether values between two nodes that stay in float32 stay so too."""
    emulated: bool = False
    """Make a model of float32 that rounds each value to float16, for runtimes without kernels."""
    sum_block: int | None = Field(default=None, ge=1)
    """Products that an emulated model adds in float32 before it rounds the running sum; by default
    sums are accumulated in float32."""
    tolerance: float = Field(default=0.01, gt=0)
    """The error that the conversion may cause, as a share of an output's largest value."""


class OrtFp16:
    """``convert_float_to_float16`` of ``onnxruntime.transformers.float16``."""

    name = "ort_fp16"
    precision = "fp16"
    preference = 10
    requirement = "max_change<=0.01"
    always: Sequence[str] = ("nonfinite<=0",)
    preload: Sequence[str] = ("onnx", "onnxruntime.transformers.float16")
    environment: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
    options: HalfOptions = HalfOptions()
    traits = Traits(ordered=False, composable=True, max_model_bytes=2**31 - 1)

    def __init__(
        self,
        parts: Mapping[str, Sequence[str]] | None = None,
        tolerance: float = 0.01,
        outlined: Outlined | None = None,
    ) -> None:
        self.parts, self._tolerance = parts or {}, tolerance
        self._outlined = outlined or Outlined()

    def version(self) -> str:
        """Version of ONNX Runtime."""
        return installed_version()

    def for_model(self, source: Artifact, options: HalfOptions) -> OrtFp16:
        """One pass for each part that may be of float16."""
        model = onnx.load_from_string(source.data)
        outlined = without_weights(model)
        name_nodes(model)
        parts = group_nodes(half_nodes(model, self.blocked_operators()), options.by)
        return type(self)(parts, options.tolerance, outlined)

    def passes(self) -> Sequence[Pass]:
        """The parts of the model."""
        return [Pass(name, "convert", lossy=True, tolerance=self._tolerance) for name in self.parts]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """All that may be converted."""
        return {"default": tuple(self.parts)}

    def apply(self, source: Artifact, passes: Sequence[str], options: HalfOptions) -> Artifact:
        """Convert exactly the parts ``passes``."""
        model = onnx.load_from_string(source.data)
        name_nodes(model)
        parts = self.parts or group_nodes(half_nodes(model, self.blocked_operators()), options.by)
        for name in passes:
            if name not in parts:
                raise UnknownName(f"node of the model for {self.name}", name, parts)
        converted = {node for name in passes for node in parts[name]}
        if not converted and not options.emulated:
            return Artifact("onnx", source.data)
        kept = [node.name for node in model.graph.node if node.name not in converted]
        half = model
        if converted:
            block = half_block_list(model, kept, self.blocked_operators())
            half = self.shorten(self.convert(model, block), source)
        half = join_casts(half) if options.join_casts else tidy(half)
        half = round_half_types(half, options.sum_block) if options.emulated else half
        return Artifact("onnx", half.SerializeToString(deterministic=True))

    # What is done before and after the library's call, as code.
    before, after = "", ""

    def snippet(self, passes: Sequence[str], options: HalfOptions) -> str:
        """The call of the library; none for an emulated model, which it does not make."""
        if options.emulated or not self._outlined.data:
            return ""
        return half_code(
            self._outlined,
            {node for name in passes for node in self.parts[name]},
            _IMPORTS + self.before,
            "convert_float_to_float16(model, keep_io_types=True, node_block_list=kept)",
            blocked=self.blocked_operators(),
            join=options.join_casts,
            after=f"OnnxModel(half).topological_sort()\n{self.after}",
        )

    def emulated(self, options: HalfOptions, sum_block: int | None = None) -> HalfOptions:
        """Options with which a model of float32 rounds as float16 does."""
        return options.model_copy(update={"emulated": True, "sum_block": sum_block})

    def on_inputs(self, options: HalfOptions, inputs: Path) -> None:
        """None: no range is measured."""

    def recipes(
        self, source: Artifact, kept: Sequence[str], options: HalfOptions
    ) -> Mapping[str, str]:
        """``node_block_list``, ``op_block_list`` of operators, and the forms of other tools."""
        model = onnx.load_from_string(source.data)
        name_nodes(model)
        nodes = [node for name in kept for node in self.parts[name]]
        types, blocked = self._outlined.types, self.blocked_operators()
        found = {"node_block_list": repr(half_block_list(model, nodes, blocked, types))}
        if options.by == "operator":
            found["op_block_list"] = f"[*DEFAULT_OP_BLOCK_LIST, {', '.join(map(repr, kept))}]"
        return {**found, **self.other_forms(nodes)}

    def other_forms(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """The list for tools that convert to this type too."""
        return {
            "polygraphy": polygraphy_script(nodes, self.precision),
            "autocast": autocast_command(nodes, self.precision),
        }

    def convert(self, model: ModelProto, kept: Sequence[str]) -> ModelProto:
        """``model`` in float16 but for the nodes ``kept``, by the library."""
        from onnxruntime.transformers.float16 import convert_float_to_float16

        half: ModelProto = convert_float_to_float16(
            model, keep_io_types=True, node_block_list=list(kept)
        )
        return half

    def shorten(self, half: ModelProto, source: Artifact) -> ModelProto:
        """The converted model in the type of this optimizer."""
        return half

    def blocked_operators(self) -> Collection[str]:
        """Operators that the library leaves in float32 unless it is told otherwise."""
        from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

        blocked: list[str] = DEFAULT_OP_BLOCK_LIST
        return blocked


class OrtBf16(OrtFp16):
    """The same nodes in bfloat16: the converter's model, with the type replaced.

    It has the range of float32 and three digits. ONNX Runtime has no converter to it.
    """

    name = "ort_bf16"
    precision = "bf16"
    requirement = "max_change<=0.05"
    before, after = BEFORE, AFTER

    def shorten(self, half: ModelProto, source: Artifact) -> ModelProto:
        """bfloat16 in place of float16, with the weights of the source."""
        return to_bfloat16(half, onnx.load_from_string(source.data))

    def recipes(
        self, source: Artifact, kept: Sequence[str], options: HalfOptions
    ) -> Mapping[str, str]:
        """The names of the nodes, which no call of this library takes, and other tools' forms."""
        nodes = [node for name in kept for node in self.parts[name]]
        return {"nodes": repr(nodes), **self.other_forms(nodes)}
