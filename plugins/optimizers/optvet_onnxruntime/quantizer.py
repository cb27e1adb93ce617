"""ONNX Runtime's quantizer: weights in 8 bits, and activations too, which loses precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import Artifact, ConversionStage, PartScript, Unsupported
from optvet_onnxruntime.installed_version import installed_version

_IMPORTS = """\
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process"""
_READER = """\
class Reader(quantization.CalibrationDataReader):
    left = iter([example_inputs])

    def get_next(self):
        return next(self.left, None)

"""
_PREPARE = ConversionStage("prepare", "optimize", "onnx")
Width = Literal["QInt8", "QUInt8", "QInt16", "QUInt16"]


class _Options(BaseModel):
    """What both ways to quantize share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tolerance: float = Field(default=0.5, gt=0)
    """The error that quantization may cause, as a share of an output's largest value over the
    source's usual inputs."""
    prepare: bool = True
    """Whether a stage precedes that infers shapes and optimizes, as ONNX Runtime advises."""
    per_channel: bool = False
    """A scale for each channel of a weight."""
    reduce_range: bool = False
    """Weights in 7 bits."""
    weights: Width = "QInt8"
    """Type of the weights."""
    operators: tuple[str, ...] = ()
    """Operators that are quantized; by default all that can be."""


class DynamicOptions(_Options):
    """How ``onnxruntime.quantization.quantize_dynamic`` is called."""

    weights: Width = "QUInt8"
    """Type of the weights. ONNX Runtime has no kernel of ConvInteger for signed ones on CPU."""


class StaticOptions(_Options):
    """How ``onnxruntime.quantization.quantize_static`` is called."""

    activations: Width = "QUInt8"
    """Type of the activations."""
    format: Literal["QDQ", "QOperator"] = "QDQ"
    """Operators between pairs of QuantizeLinear and DequantizeLinear, or operators of integers."""
    method: Literal["MinMax", "Entropy", "Percentile"] = "MinMax"
    """How ranges of activations follow from what the inputs give."""


class _OrtQuantizer:
    """What both ways to quantize share."""

    name = ""

    consumes = frozenset({"onnx"})
    produces = "onnx"
    preload: Sequence[str] = ("onnxruntime.quantization",)
    libraries: Mapping[str, str] = {"onnxruntime": "onnxruntime"}

    def version(self) -> str:
        """Version of ONNX Runtime."""
        return installed_version()

    def stages(self, options: Any) -> Sequence[ConversionStage]:
        """Preparation, and quantization."""
        quantize = ConversionStage("quantize", "lossy", "onnx", options.tolerance)
        return [_PREPARE, quantize] if options.prepare else [quantize]

    def _prepare(self, source: Artifact, options: _Options, folder: Path) -> Path:
        """The model in a file, prepared if that is asked for."""
        plain = folder / "source.onnx"
        plain.write_bytes(source.data)
        if not options.prepare:
            return plain
        from onnxruntime.quantization.shape_inference import quant_pre_process

        file = folder / "prepared.onnx"
        # Symbolic shapes need sympy, and serve models of transformers alone.
        quant_pre_process(str(plain), str(file), skip_symbolic_shape=True)
        return file

    def _script(self, options: _Options, opening: str, arguments: Sequence[str]) -> PartScript:
        """The model is prepared if that is asked for, and quantized with these arguments."""
        given = [*arguments, f"weight_type=quantization.QuantType.{options.weights}"]
        if options.operators:
            given.append(f"op_types_to_quantize={list(options.operators)}")
        given += [f"{n}=True" for n in ("per_channel", "reduce_range") if getattr(options, n)]
        lines = ['file = str(HERE / "part.onnx")']
        if options.prepare:
            lines.append('prepared = str(HERE / "prepared.onnx")')
            lines.append("quant_pre_process(file, prepared, skip_symbolic_shape=True)")
        file = "prepared" if options.prepare else "file"
        words = "".join(f"    {each},\n" for each in (file, "str(target)", *given))
        lines.append(f"quantization.{self.name}(\n{words})")
        needs = ("onnx", "onnxruntime")
        return PartScript(self.name, needs, _IMPORTS, "", opening + "\n".join(lines))


class DynamicQuantizer(_OrtQuantizer):
    """Weights in 8 bits; the range of activations is found as the model runs."""

    name = "quantize_dynamic"
    options: DynamicOptions = DynamicOptions()

    def convert(
        self, source: Artifact, options: DynamicOptions, folder: Path
    ) -> Iterator[Artifact]:
        """The prepared model, and the quantized one."""
        from onnxruntime import quantization

        file, target = self._prepare(source, options, folder), folder / "quantized.onnx"
        if options.prepare:
            yield Artifact("onnx", file.read_bytes())
        quantization.quantize_dynamic(
            str(file),
            str(target),
            op_types_to_quantize=list(options.operators) or None,
            per_channel=options.per_channel,
            reduce_range=options.reduce_range,
            weight_type=quantization.QuantType[options.weights],
        )
        yield Artifact("onnx", target.read_bytes())

    def part_script(self, options: DynamicOptions) -> PartScript:
        """The part is quantized as it is here."""
        return self._script(options, "", ())


class StaticQuantizer(_OrtQuantizer):
    """Weights and activations in 8 bits; the range of these is measured on the source's inputs."""

    name = "quantize_static"
    options: StaticOptions = StaticOptions()

    def convert(self, source: Artifact, options: StaticOptions, folder: Path) -> Iterator[Artifact]:
        """Refused: there are no inputs to measure ranges on."""
        raise Unsupported("quantize_static needs inputs that ranges are measured on")

    def convert_on(
        self,
        source: Artifact,
        options: StaticOptions,
        folder: Path,
        inputs: Sequence[Mapping[str, np.ndarray]],
    ) -> Iterator[Artifact]:
        """The prepared model, and the quantized one."""
        from onnxruntime import quantization

        file, target = self._prepare(source, options, folder), folder / "quantized.onnx"
        if options.prepare:
            yield Artifact("onnx", file.read_bytes())
        quantization.quantize_static(
            str(file),
            str(target),
            calibration_reader(inputs),
            quant_format=quantization.QuantFormat[options.format],
            op_types_to_quantize=list(options.operators) or None,
            per_channel=options.per_channel,
            reduce_range=options.reduce_range,
            activation_type=quantization.QuantType[options.activations],
            weight_type=quantization.QuantType[options.weights],
            calibrate_method=quantization.CalibrationMethod[options.method],
        )
        yield Artifact("onnx", target.read_bytes())

    def part_script(self, options: StaticOptions) -> PartScript:
        """The part is quantized with ranges measured on its inputs."""
        arguments = (
            "Reader()",
            f"quant_format=quantization.QuantFormat.{options.format}",
            f"activation_type=quantization.QuantType.{options.activations}",
            f"calibrate_method=quantization.CalibrationMethod.{options.method}",
        )
        return self._script(options, _READER, arguments)


def calibration_reader(inputs: Sequence[Mapping[str, np.ndarray]]) -> Any:
    """What ``quantize_static`` reads the inputs by."""
    from onnxruntime.quantization import CalibrationDataReader

    left = iter([dict(feeds) for feeds in inputs])

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """One set of inputs after the other."""

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(left, None)

    return Reader()
