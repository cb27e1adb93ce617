"""ONNX Runtime's quantizers: each node that they may quantize is a pass.

The converters of ``quantizer`` quantize a whole model, by stages; these leave nodes out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zipfile import BadZipFile, is_zipfile

import numpy as np
import onnx
from onnx import ModelProto
from pydantic import BaseModel, ConfigDict, Field

from optvet.graph import (
    Outlined,
    float_nodes,
    group_nodes,
    list_code,
    name_nodes,
    naming_code,
    without_weights,
)
from optvet.plugin import (
    Artifact,
    InfrastructureError,
    MissingLibrary,
    Pass,
    Sensitive,
    Traits,
    UnknownName,
    Unsupported,
    UsageError,
    open_file,
    read_file,
    write_file,
)
from optvet_onnxruntime.half import By
from optvet_onnxruntime.installed_version import installed_version
from optvet_onnxruntime.quantizer import Width, calibration_reader


class NodeQuantizerOptions(BaseModel):
    """What all ways to quantize share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: By = "node"
    """What a pass is: a node, all nodes of an operator, of a layer, which is what their names have
    before the last slash, or of a block, which ends at the first numbered part of the layer."""
    operators: tuple[str, ...] = ()
    """Operators that are quantized; by default all that can be."""
    tolerance: float = Field(default=0.1, gt=0)
    """The error that quantization may cause, as a share of an output's largest value."""


class DynamicNodeOptions(NodeQuantizerOptions):
    """How ``onnxruntime.quantization.quantize_dynamic`` is called."""

    weights: Width = "QUInt8"
    """Type of the weights. ONNX Runtime has no kernel of ConvInteger for signed ones on CPU."""
    per_channel: bool = False
    """A scale for each channel of a weight."""
    reduce_range: bool = False
    """Weights in 7 bits."""


class StaticNodeOptions(NodeQuantizerOptions):
    """How ``onnxruntime.quantization.quantize_static`` is called."""

    weights: Width = "QInt8"
    """Type of the weights."""
    activations: Width = "QUInt8"
    """Type of the activations."""
    per_channel: bool = False
    """A scale for each channel of a weight."""
    reduce_range: bool = False
    """Weights in 7 bits."""
    format: Literal["QDQ", "QOperator"] = "QDQ"
    """Operators between pairs of QuantizeLinear and DequantizeLinear, or operators of integers."""
    method: Literal["MinMax", "Entropy", "Percentile"] = "MinMax"
    """How ranges of activations follow from what the inputs give."""
    inputs: Annotated[str, Sensitive("reads a file", reads_data=True)] = ""
    """File of inputs that ranges are measured on: ``.npz``, with arrays named ``0/NAME``. By
    default the first samples of the dataset."""


class FourBitOptions(NodeQuantizerOptions):
    """How ``onnxruntime.quantization.matmul_nbits_quantizer`` is called."""

    block_size: int = Field(default=32, ge=16, le=256)
    """Weights that share a scale."""
    symmetric: bool = False
    """Whether 0 is in the middle of the range."""
    tolerance: float = Field(default=0.1, gt=0)
    """The error that quantization may cause, as a share of an output's largest value."""


class _NodeQuantizer:
    """What all ways to quantize share."""

    name: str
    precision: str
    requirement = "max_change<=0.1"
    always: Sequence[str] = ("nonfinite<=0",)
    preload: Sequence[str] = ("onnx", "onnxruntime.quantization")
    environment: Mapping[str, str] = {"ORT_DISABLE_TELEMETRY": "1"}
    options: Any
    import_lines = "import tempfile\n\nimport onnx\nfrom onnxruntime import quantization\n"
    traits = Traits(ordered=False, composable=True, max_model_bytes=2**31 - 1, dialect=True)

    def __init__(
        self,
        parts: Mapping[str, Sequence[str]] | None = None,
        tolerance: float = 0.1,
        outlined: Outlined | None = None,
    ) -> None:
        self.parts, self._tolerance = parts or {}, tolerance
        self._outlined = outlined or Outlined()

    def version(self) -> str:
        """Version of ONNX Runtime."""
        return installed_version()

    def for_model(self, source: Artifact, options: Any) -> Self:
        """One pass for each part that may be quantized."""
        model = onnx.load_from_string(source.data)
        outlined = without_weights(model)
        name_nodes(model)
        return type(self)(self._parts(model, options), options.tolerance, outlined)

    def passes(self) -> Sequence[Pass]:
        """The parts of the model."""
        return [
            Pass(name, "quantize", lossy=True, tolerance=self._tolerance) for name in self.parts
        ]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """All that may be quantized."""
        return {"default": tuple(self.parts)}

    def apply(self, source: Artifact, passes: Sequence[str], options: Any) -> Artifact:
        """Quantize exactly the parts ``passes``."""
        model = onnx.load_from_string(source.data)
        name_nodes(model)
        parts = self.parts or self._parts(model, options)
        for name in passes:
            if name not in parts:
                raise UnknownName(f"node of the model for {self.name}", name, parts)
        chosen = {node for name in passes for node in parts[name]}
        if not chosen:
            return Artifact("onnx", source.data)
        kept = [node.name for node in model.graph.node if node.name not in chosen]
        with tempfile.TemporaryDirectory(prefix="optvet-") as folder:
            quantized = self.quantize(model, kept, options, Path(folder))
        return Artifact("onnx", quantized.SerializeToString(deterministic=True))

    def emulated(self, options: Any, sum_block: int | None = None) -> None:
        """None: any runtime that has the operators computes with integers."""

    def on_inputs(self, options: Any, inputs: Path) -> Any:
        """None: no range is measured."""
        return None

    def recipes(self, source: Artifact, kept: Sequence[str], options: Any) -> Mapping[str, str]:
        """``nodes_to_exclude``, as all quantizers of ONNX Runtime take it."""
        return {"nodes_to_exclude": repr([node for name in kept for node in self.parts[name]])}

    def snippet(self, passes: Sequence[str], options: Any) -> str:
        """The call of the library, which is told the nodes that it would quantize too."""
        chosen = {node for name in passes for node in self.parts.get(name, ())}
        if not chosen:
            return "return model"
        model = ModelProto.FromString(self._outlined.data)
        names, able = naming_code(model), self.operators()
        name_nodes(model)
        nodes = (n for n in model.graph.node if n.op_type in able)
        excluded = list_code("excluded", [n.name for n in nodes if n.name not in chosen])
        return f"{self.import_lines}\n{names}{excluded}{self.call(options)}"

    def call(self, options: Any) -> str:
        """Lines that quantize ``model`` but for the nodes ``excluded``, and return the result."""
        raise NotImplementedError

    def quantize(
        self, model: ModelProto, kept: Sequence[str], options: Any, folder: Path
    ) -> ModelProto:
        """``model`` quantized but for the nodes ``kept``, by the library."""
        raise NotImplementedError

    def operators(self) -> Collection[str]:
        """Operators that the library quantizes."""
        raise NotImplementedError

    def _parts(self, model: ModelProto, options: Any) -> dict[str, tuple[str, ...]]:
        able = set(options.operators or self.operators())
        return group_nodes((n for n in float_nodes(model) if n.op_type in able), options.by)


class OrtStaticQuantizer(_NodeQuantizer):
    """Weights and activations in 8 bits; ranges are measured on inputs."""

    name = "ort_static_quantizer"
    precision = "int8"
    options: StaticNodeOptions = StaticNodeOptions()

    def check_options(self, options: StaticNodeOptions) -> None:
        """Whether the file of inputs can be read."""
        if not options.inputs:
            return
        try:
            _samples(options.inputs)
        except (OSError, ValueError, BadZipFile) as error:
            raise UsageError(
                f"optimizer 'ort_static_quantizer': option 'inputs' = {options.inputs!r}: {error}; "
                "give an .npz file of arrays named 0/INPUT, 1/INPUT, …"
            ) from error

    def on_inputs(self, options: StaticNodeOptions, inputs: Path) -> StaticNodeOptions | None:
        """Options with which ranges are measured on ``inputs``; None if they name a file."""
        if options.inputs and options.inputs != str(inputs):
            return None
        return options.model_copy(update={"inputs": str(inputs)})

    import_lines = (
        "import tempfile\n\nimport numpy as np\nimport onnx\nfrom onnxruntime import quantization\n"
    )

    def call(self, options: StaticNodeOptions) -> str:
        """``quantize_static``, with a reader of the file of inputs."""
        arguments = [
            "Reader()",
            f"quant_format=quantization.QuantFormat.{options.format}",
            f"activation_type=quantization.QuantType.{options.activations}",
            f"calibrate_method=quantization.CalibrationMethod.{options.method}",
        ]
        return _READER.format(file=options.inputs) + _call("quantize_static", arguments, options)

    def quantize(
        self, model: ModelProto, kept: Sequence[str], options: StaticNodeOptions, folder: Path
    ) -> ModelProto:
        """By ``quantize_static``."""
        from onnxruntime import quantization

        if not options.inputs:
            raise Unsupported(
                "ort_static_quantizer needs inputs that ranges are measured on: say "
                "--option inputs=FILE.npz"
            )
        target, new = folder / "quantized.onnx", folder / "ranges.json"
        known = _ranges_file(model, options)
        ranges = new if known is None or not known.exists() else known
        more = {} if known is None else {"calibration_cache_path": ranges}
        quantization.quantize_static(
            model,
            str(target),
            calibration_reader(_samples(options.inputs)),
            quant_format=quantization.QuantFormat[options.format],
            op_types_to_quantize=list(options.operators) or None,
            nodes_to_exclude=list(kept),
            per_channel=options.per_channel,
            reduce_range=options.reduce_range,
            activation_type=quantization.QuantType[options.activations],
            weight_type=quantization.QuantType[options.weights],
            calibrate_method=quantization.CalibrationMethod[options.method],
            **more,
        )
        if known is not None and new.exists():
            with suppress(OSError, InfrastructureError):  # it is measured again then
                write_file(known, read_file(new))
        return onnx.load(target)

    def operators(self) -> Collection[str]:
        """Operators of both forms of a quantized model."""
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        return {*QDQRegistry, *QLinearOpsRegistry}


class OrtDynamicQuantizer(_NodeQuantizer):
    """Weights in 8 bits; ranges of activations are found as the model runs."""

    name = "ort_dynamic_quantizer"
    precision = "int8-dynamic"
    options: DynamicNodeOptions = DynamicNodeOptions()

    def call(self, options: DynamicNodeOptions) -> str:
        """``quantize_dynamic``."""
        return _call("quantize_dynamic", [], options)

    def quantize(
        self, model: ModelProto, kept: Sequence[str], options: DynamicNodeOptions, folder: Path
    ) -> ModelProto:
        """By ``quantize_dynamic``."""
        from onnxruntime import quantization

        target = folder / "quantized.onnx"
        quantization.quantize_dynamic(
            model,
            str(target),
            op_types_to_quantize=list(options.operators) or None,
            nodes_to_exclude=list(kept),
            per_channel=options.per_channel,
            reduce_range=options.reduce_range,
            weight_type=quantization.QuantType[options.weights],
        )
        return onnx.load(target)

    def operators(self) -> Collection[str]:
        """Operators of integers."""
        from onnxruntime.quantization.registry import IntegerOpsRegistry

        return set(IntegerOpsRegistry)


class OrtFourBits(_NodeQuantizer):
    """Weights of MatMul in 4 bits, in blocks; activations stay as they are."""

    name = "ort_matmul_4bits"
    precision = "int4"
    options: FourBitOptions = FourBitOptions()

    def version(self) -> str:
        """Version of ONNX Runtime, whose 4-bit quantizer needs a library more."""
        if importlib.util.find_spec("onnx_ir") is None:
            raise MissingLibrary("onnx_ir", "optvet[onnxscript]")
        return super().version()

    import_lines = (
        "from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer\n"
    )

    def call(self, options: FourBitOptions) -> str:
        """``MatMulNBitsQuantizer``."""
        return (
            "quantizer = MatMulNBitsQuantizer(\n"
            f"    model, bits=4, block_size={options.block_size},\n"
            f"    is_symmetric={options.symmetric}, nodes_to_exclude=excluded,\n)\n"
            "quantizer.process()\nreturn quantizer.model.model"
        )

    def quantize(
        self, model: ModelProto, kept: Sequence[str], options: FourBitOptions, folder: Path
    ) -> ModelProto:
        """By ``MatMulNBitsQuantizer``."""
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            model,
            bits=4,
            block_size=options.block_size,
            is_symmetric=options.symmetric,
            nodes_to_exclude=list(kept),
        )
        quantizer.process()
        quantized: ModelProto = quantizer.model.model
        return quantized

    def operators(self) -> Collection[str]:
        """MatMul alone."""
        return {"MatMul"}

    def _parts(self, model: ModelProto, options: FourBitOptions) -> dict[str, tuple[str, ...]]:
        """Products by a matrix of weights, which alone can be quantized."""
        matrices = {t.name for t in model.graph.initializer if len(t.dims) == 2}
        able = (n for n in float_nodes(model) if n.op_type == "MatMul" and n.input[1] in matrices)
        return group_nodes(able, options.by)


_READER = """\
# The inputs that ranges are measured on: arrays named NUMBER/INPUT.
samples = {{}}
for key, value in np.load({file!r}).items():
    number, _, name = key.partition("/")
    samples.setdefault(int(number), {{}})[name] = value

class Reader(quantization.CalibrationDataReader):
    rows = iter([samples[number] for number in sorted(samples)])

    def get_next(self):
        return next(self.rows, None)

"""


def _call(name: str, arguments: Sequence[str], options: Any) -> str:
    """A call that writes a file, and the model in it."""
    given = [
        "model",
        'f"{folder}/quantized.onnx"',
        *arguments,
        f"op_types_to_quantize={list(options.operators) or None}",
        "nodes_to_exclude=excluded",
        f"per_channel={options.per_channel}",
        f"reduce_range={options.reduce_range}",
        f"weight_type=quantization.QuantType.{options.weights}",
    ]
    lines = "".join(f"        {each},\n" for each in given)
    return (
        "with tempfile.TemporaryDirectory() as folder:\n"
        f"    quantization.{name}(\n{lines}    )\n"
        '    return onnx.load(f"{folder}/quantized.onnx")'
    )


def _samples(file: str) -> list[dict[str, np.ndarray]]:
    """Inputs by sample, as they are numbered in the file."""
    samples: dict[int, dict[str, np.ndarray]] = {}
    with open_file(file) as opened:
        if not is_zipfile(opened):
            raise BadZipFile("it is no .npz file")
        opened.seek(0)
        arrays = np.load(opened, allow_pickle=False)
        for key, value in _numbered(arrays):
            number, _, name = key.partition("/")
            samples.setdefault(int(number), {})[name] = value
    return [samples[number] for number in sorted(samples)]


def _numbered(arrays: Any) -> Iterator[tuple[str, np.ndarray]]:
    for key in arrays.files:
        if not key.partition("/")[0].isdecimal():
            raise ValueError(f"array {key!r} is not named NUMBER/NAME, such as 0/image")
        yield key, arrays[key]


def _ranges_file(model: ModelProto, options: StaticNodeOptions) -> Path | None:
    """Where ranges are kept, which depend on model and inputs, not on the nodes left out.

    None where the library keeps none, and for a file of the user's, beside which nothing is put.
    """
    from onnxruntime import quantization

    known = inspect.signature(quantization.quantize_static).parameters
    file = Path(options.inputs)
    if "calibration_cache_path" not in known or not file.stem.startswith("calibration-"):
        return None
    about = f"{quantization.__file__} {options.method} {options.operators}".encode()
    digest = hashlib.sha256(model.SerializeToString(deterministic=True) + about).hexdigest()
    return file.with_name(f"{file.stem}-{digest[:24]}.json")
