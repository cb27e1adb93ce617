"""onnxconverter-common's converter to float16: each node that it may convert is a pass.

It is the converter that ONNX Runtime's descends from. It cuts off constants at 10,000 unless it is
told otherwise, rounds the weights of nodes that stay in float32 too, and leaves Resize in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
    without_weights,
)
from optvet.plugin import Artifact, Optimizer, Pass, Traits, UnknownName, hookimpl, version_of


class CommonFp16Options(BaseModel):
    """How the model is converted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: Literal["node", "operator", "layer", "block"] = "node"
    """What a pass is: a node, all nodes of an operator, of a layer, which is what their names have
    before the last slash, or of a block, which ends at the first numbered part of the layer."""
    join_casts: bool = True
    """Whether values between two nodes that stay in float32 stay so too."""
    emulated: bool = False
    """Make a model of float32 that rounds each value to float16, for runtimes without kernels."""
    sum_block: int | None = Field(default=None, ge=1)
    """Products that an emulated model adds in float32 before it rounds the running sum; by default
    sums are accumulated in float32."""
    min_positive_val: float = Field(default=1e-7, gt=5.9e-8)
    """Constants that are nearer to 0 become this."""
    max_finite_val: float = Field(default=1e4, gt=0, le=65504)
    """Constants beyond this become this."""
    tolerance: float = Field(default=0.01, gt=0)
    """The error that the conversion may cause, as a share of an output's largest value."""


class CommonFp16:
    """``convert_float_to_float16`` of ``onnxconverter_common.float16``."""

    name = "onnxconverter_fp16"
    precision = "fp16"
    requirement = "max_change<=0.01"
    always: Sequence[str] = ("nonfinite<=0",)
    preload: Sequence[str] = ("onnx",)
    options: CommonFp16Options = CommonFp16Options()
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
        """Version of the library."""
        return version_of("onnxconverter-common", extra="optvet[half]")

    def for_model(self, source: Artifact, options: CommonFp16Options) -> CommonFp16:
        """One pass for each part that may be of float16."""
        model = onnx.load_from_string(source.data)
        outlined = without_weights(model)
        name_nodes(model)
        return CommonFp16(_parts(model, options), options.tolerance, outlined)

    def passes(self) -> Sequence[Pass]:
        """The parts of the model."""
        return [Pass(name, "convert", lossy=True, tolerance=self._tolerance) for name in self.parts]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """All that may be converted."""
        return {"default": tuple(self.parts)}

    def apply(
        self, source: Artifact, passes: Sequence[str], options: CommonFp16Options
    ) -> Artifact:
        """Convert exactly the parts ``passes``."""
        from onnxconverter_common.float16 import convert_float_to_float16

        half = onnx.load_from_string(source.data)
        name_nodes(half)
        parts = self.parts or _parts(half, options)
        for name in passes:
            if name not in parts:
                raise UnknownName(f"node of the model for {self.name}", name, parts)
        converted = {node for name in passes for node in parts[name]}
        if not converted and not options.emulated:
            return Artifact("onnx", source.data)
        kept = [node.name for node in half.graph.node if node.name not in converted]
        if converted:
            half = convert_float_to_float16(
                half,
                min_positive_val=options.min_positive_val,
                max_finite_val=options.max_finite_val,
                keep_io_types=True,
                node_block_list=half_block_list(half, kept, _blocked()),
                check_fp16_ready=False,
            )
        half = join_casts(half) if options.join_casts else tidy(half)
        half = round_half_types(half, options.sum_block) if options.emulated else half
        return Artifact("onnx", half.SerializeToString(deterministic=True))

    def snippet(self, passes: Sequence[str], options: CommonFp16Options) -> str:
        """The call of the library; none for an emulated model, which it does not make."""
        if options.emulated or not self._outlined.data:
            return ""
        return half_code(
            self._outlined,
            {node for name in passes for node in self.parts[name]},
            "from onnxconverter_common.float16 import convert_float_to_float16\n",
            "convert_float_to_float16(\n"
            f"    model, min_positive_val={options.min_positive_val!r}, "
            f"max_finite_val={options.max_finite_val!r}, keep_io_types=True,\n"
            "    node_block_list=kept, check_fp16_ready=False,\n)",
            blocked=_blocked(),
            join=options.join_casts,
        )

    def emulated(
        self, options: CommonFp16Options, sum_block: int | None = None
    ) -> CommonFp16Options:
        """Options with which a model of float32 rounds as float16 does."""
        return options.model_copy(update={"emulated": True, "sum_block": sum_block})

    def on_inputs(self, options: CommonFp16Options, inputs: Path) -> None:
        """None: no range is measured."""

    def recipes(
        self, source: Artifact, kept: Sequence[str], options: CommonFp16Options
    ) -> Mapping[str, str]:
        """``node_block_list``."""
        model = onnx.load_from_string(source.data)
        name_nodes(model)
        nodes = [node for name in kept for node in self.parts[name]]
        types = self._outlined.types
        return {"node_block_list": repr(half_block_list(model, nodes, _blocked(), types))}


def _blocked() -> Collection[str]:
    """Operators that the library leaves in float32."""
    from onnxconverter_common.float16 import DEFAULT_OP_BLOCK_LIST

    blocked: list[str] = DEFAULT_OP_BLOCK_LIST
    return blocked


def _parts(model: ModelProto, options: CommonFp16Options) -> dict[str, tuple[str, ...]]:
    return group_nodes(half_nodes(model, _blocked()), options.by)


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The converter."""
    return [CommonFp16()]
