"""ONNX Runtime's tools that prepare a model: ``quant_pre_process``, then fixed dimensions.

Each step of ``quant_pre_process`` is a pass: symbolic shape inference, the runtime's basic
optimization, and onnx's shape inference. Without any, it replaces Upsample in old models and notes
in the metadata that it ran. Its result is what ``quantize_static`` starts from, whose faults are
often those of this preparation.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import onnx
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Artifact,
    KnownLimit,
    MissingLibrary,
    Optimizer,
    Pass,
    Symptom,
    Traits,
    UnknownName,
    hookimpl,
    version_of,
)

_STEPS = {
    "symbolic_shape_infer": "skip_symbolic_shape",
    "optimize": "skip_optimization",
    "onnx_shape_infer": "skip_onnx_shape",
}
"""The argument of ``quant_pre_process`` that leaves out each step."""
_FIXED = "make_dynamic_shape_fixed"
_NOTES = KnownLimit(frozenset({Symptom.METADATA_CHANGE}), "is there to declare other shapes")


class OrtToolsOptions(BaseModel):
    """Options of the tools."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    auto_merge: bool = False
    """Merge symbolic dimensions that are in conflict."""
    guess_output_rank: bool = False
    """Guess that operators that are not known keep the rank of their first input."""
    dimensions: tuple[Annotated[str, Field(pattern=r"^.+=[1-9]\d*$")], ...] = ()
    """Sizes of symbolic dimensions, such as ``N=4``, for the pass ``make_dynamic_shape_fixed``."""


class OrtTools:
    """``quant_pre_process``, then ``make_dynamic_shape_fixed``."""

    name = "ort_tools"
    preload: Sequence[str] = ("onnx", "onnxruntime.quantization.shape_inference")
    libraries: Mapping[str, str] = {"onnxruntime": "onnxruntime"}
    environment: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
    options: OrtToolsOptions = OrtToolsOptions()
    traits = Traits(ordered=False, composable=False, dialect=True, max_model_bytes=2**31 - 1)

    def version(self) -> str:
        """Version of ONNX Runtime; without sympy, its symbolic shape inference fails."""
        if importlib.util.find_spec("sympy") is None:
            raise MissingLibrary("sympy", "optvet[transformers]")
        return version_of("onnxruntime", extra="optvet")

    def passes(self) -> Sequence[Pass]:
        """The steps, and the pass that fixes the sizes that the options give."""
        steps = [Pass(name, "step", known_limits=(_NOTES,)) for name in _STEPS]
        return [*steps, Pass(_FIXED, "rewrite", default=False, known_limits=(_NOTES,))]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """What ``quant_pre_process`` does by default."""
        return {"default": tuple(_STEPS)}

    def apply(self, source: Artifact, passes: Sequence[str], options: OrtToolsOptions) -> Artifact:
        """Skip the steps that are not among ``passes``."""
        from onnxruntime.quantization.shape_inference import quant_pre_process
        from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_dim_param_fixed

        model = onnx.load_from_string(source.data)
        with tempfile.TemporaryDirectory(prefix="optvet-") as folder:
            target = Path(folder, "prepared.onnx")
            quant_pre_process(model, target, **_arguments(passes, options))
            model = onnx.load(target)
        if _FIXED in passes:
            for name, size in _sizes(options):
                make_dim_param_fixed(model.graph, name, size)
            fix_output_shapes(model)
        return Artifact("onnx", model.SerializeToString(deterministic=True))

    def snippet(self, passes: Sequence[str], options: OrtToolsOptions) -> str:
        """The calls of the library."""
        given = ", ".join(f"{n}={v!r}" for n, v in _arguments(passes, options).items() if v)
        prepared = 'f"{folder}/prepared.onnx"'
        lines = [
            "import tempfile\n",
            "import onnx",
            "from onnxruntime.quantization.shape_inference import quant_pre_process",
            "from onnxruntime.tools import onnx_model_utils as utils\n",
            "with tempfile.TemporaryDirectory() as folder:",
            f"    quant_pre_process(model, {prepared}{given and ', '}{given})",
            f"    model = onnx.load({prepared})",
        ]
        if _FIXED in passes:
            fixed = [
                f"utils.make_dim_param_fixed(model.graph, {n!r}, {v})" for n, v in _sizes(options)
            ]
            lines += [*fixed, "utils.fix_output_shapes(model)"]
        return "\n".join([*lines, "return model"])


def _sizes(options: OrtToolsOptions) -> list[tuple[str, int]]:
    """Symbolic dimensions and their sizes."""
    pairs = (text.rpartition("=") for text in options.dimensions)
    return [(name, int(size)) for name, _, size in pairs]


def _arguments(passes: Sequence[str], options: OrtToolsOptions) -> dict[str, bool]:
    """Arguments of ``quant_pre_process``."""
    for name in passes:
        if name not in (*_STEPS, _FIXED):
            raise UnknownName("pass of ort_tools", name, (*_STEPS, _FIXED))
    skipped = {argument: name not in passes for name, argument in _STEPS.items()}
    guesses = {"auto_merge": options.auto_merge, "guess_output_rank": options.guess_output_rank}
    return {**skipped, **guesses}


@hookimpl
def optvet_optimizers() -> Iterable[Optimizer]:
    """The tools of ONNX Runtime."""
    return [OrtTools()]
