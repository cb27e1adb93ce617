"""Converters of TensorFlow's models: tf2onnx, Keras' own export, TFLite."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import Artifact, ConversionStage, Unsupported, UsageError, version_of
from optvet_tensorflow.frozen import GRAPH, Frozen
from optvet_tensorflow.home import ENVIRONMENT, EXTRA, PRELOAD
from optvet_tensorflow.lite import TFLITE, bytes_of, names_in_order
from optvet_tensorflow.program import TF, TensorFlowProgram, program_of, tensorflow

_OPTIMIZE = ConversionStage("optimize", "optimize", "onnx")
_CONVERT = ConversionStage("convert", "convert", "onnx")
_FREEZE = ConversionStage("freeze", "load", GRAPH)


class OnnxOptions(BaseModel):
    """How tf2onnx is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    opset: int | None = Field(default=None, ge=7)
    """ONNX's operator set; by default what tf2onnx chooses."""


class LiteOptions(BaseModel):
    """How ``TFLiteConverter`` is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concrete: bool = False
    """Convert the concrete function of a Keras model, in place of the model."""
    optimize: bool = False
    """Set ``optimizations``: weights are quantized, to 8 bits unless ``float16``."""
    float16: bool = False
    """Weights in float16."""
    select_tf_ops: bool = False
    """Keep operators that TFLite has no equivalent of as those of TensorFlow."""
    allow_custom_ops: bool = False
    """Keep operators that nothing has an equivalent of."""
    calibrate: bool = False
    """Quantize activations too, by the ranges that they have on the source's inputs."""
    attributes: dict[str, bool | int | float | str] = {}
    """Attributes of the converter, set as they are."""
    tolerance: float | None = Field(default=None, gt=0)
    """The relative error that quantization may cause; without one it is judged like any stage."""

    @property
    def quantizes(self) -> bool:
        """Whether weights or activations become smaller."""
        return self.optimize or self.float16 or self.calibrate


@dataclass
class Watched:
    """What tf2onnx had in its hands: the frozen graph with its outputs, and the raw model."""

    graph: Any = None
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    raw: bytes = b""

    def frozen(self, program: TensorFlowProgram) -> Artifact:
        """The graph as an artifact; one without data where there was none."""
        if self.graph is None:
            return Artifact(GRAPH, b"")
        # What the graph asks for beyond the inputs of the source has no name there.
        names = [spec.name for spec in program.specs]
        fed = dict(zip([*names, *self.inputs[len(names) :]], self.inputs, strict=True))
        return Frozen(self.graph, fed, self.outputs).artifact()


@contextlib.contextmanager
def _watching() -> Iterator[Watched]:
    """Look on while tf2onnx converts, by whichever function it was called."""
    from unittest.mock import patch

    from tf2onnx import optimizer, tf_loader

    watched = Watched()
    freeze, optimize = tf_loader.from_function, optimizer.optimize_graph

    def frozen(func: Any, input_names: Any, output_names: Any, *args: Any, **more: Any) -> Any:
        graph = freeze(func, input_names, output_names, *args, **more)
        watched.graph = copy.deepcopy(graph)
        watched.inputs, watched.outputs = list(input_names), list(output_names)
        return graph

    def optimized(graph: Any, *args: Any, **more: Any) -> Any:
        raw = copy.deepcopy(graph).make_model("before tf2onnx's optimizers")
        watched.raw = raw.SerializeToString()
        return optimize(graph, *args, **more)

    with (
        patch.object(tf_loader, "from_function", frozen),
        patch.object(optimizer, "optimize_graph", optimized),
    ):
        yield watched


class _ToOnnx:
    """What converters through tf2onnx share."""

    produces = "onnx"
    preload: Sequence[str] = (*PRELOAD, "tf2onnx.convert")
    libraries: Mapping[str, str] = {"tf2onnx": "tf2onnx"}
    python_environment = ENVIRONMENT
    options: OnnxOptions = OnnxOptions()

    def version(self) -> str:
        """Version of tf2onnx."""
        return version_of("tf2onnx", extra=EXTRA)


class Tf2Onnx(_ToOnnx):
    """``tf2onnx.convert.from_function`` of the model's function."""

    name = "tf2onnx"
    consumes = frozenset({TF})

    def stages(self, options: OnnxOptions) -> Sequence[ConversionStage]:
        """Freezing, conversion node by node, and tf2onnx's optimizers."""
        return (_FREEZE, _CONVERT, _OPTIMIZE)

    def convert(self, source: Artifact, options: OnnxOptions, folder: Path) -> Iterator[Artifact]:
        """The frozen graph, the raw model, and the optimized one."""
        import tf2onnx

        program = program_of(source)
        yield from _iter_stages(
            program,
            lambda: tf2onnx.convert.from_function(
                program.function, program.signature, opset=options.opset
            )[0].SerializeToString(),
        )


class KerasExport(_ToOnnx):
    """``Model.export(format="onnx")``, which calls tf2onnx."""

    name = "keras_export"
    consumes = frozenset({TF})

    def stages(self, options: OnnxOptions) -> Sequence[ConversionStage]:
        """Freezing, conversion node by node, and tf2onnx's optimizers."""
        return (_FREEZE, _CONVERT, _OPTIMIZE)

    def convert(self, source: Artifact, options: OnnxOptions, folder: Path) -> Iterator[Artifact]:
        """The frozen graph, the raw model, and the optimized one."""
        import tf2onnx.convert  # noqa: F401  (Keras imports it late)

        program = program_of(source)
        if not program.is_keras:
            raise Unsupported(
                f"{type(program.model).__name__} has no export of Keras; give a Keras model"
            )
        program(*program.facts.inputs.values())  # It refuses a model that was never called.
        file = folder / "model.onnx"

        def export() -> bytes:
            program.model.export(
                str(file), format="onnx", verbose=False, opset_version=options.opset
            )
            return file.read_bytes()

        yield from _iter_stages(program, export)


def _iter_stages(program: TensorFlowProgram, convert: Any) -> Iterator[Artifact]:
    """The artifacts of three stages, those before a failure too."""
    with _watching() as watched:
        try:
            final = convert()
        except Exception:
            if watched.graph is not None:
                yield watched.frozen(program)
            if watched.raw:
                yield Artifact("onnx", watched.raw)
            raise
    yield watched.frozen(program)
    yield Artifact("onnx", watched.raw)
    yield Artifact("onnx", final)


class LiteToOnnx(_ToOnnx):
    """``tf2onnx.convert.from_tflite``."""

    name = "tflite2onnx"
    consumes = frozenset({TFLITE})

    def stages(self, options: OnnxOptions) -> Sequence[ConversionStage]:
        """Conversion node by node, and tf2onnx's optimizers."""
        return (_CONVERT, _OPTIMIZE)

    def convert(self, source: Artifact, options: OnnxOptions, folder: Path) -> Iterator[Artifact]:
        """The raw model, and the optimized one."""
        return self.convert_on(source, options, folder, ())

    def convert_on(
        self,
        source: Artifact,
        options: OnnxOptions,
        folder: Path,
        inputs: Sequence[Mapping[str, np.ndarray]],
    ) -> Iterator[Artifact]:
        """The same, with inputs and outputs in the order of the source of a chain."""
        import tf2onnx

        tensorflow()
        file = folder / "model.tflite"
        data = bytes_of(source)
        file.write_bytes(data)
        # A converter's own file has its inputs and outputs in any order, and tf2onnx keeps it.
        known = source.data and inputs
        names = names_in_order(data, inputs[0]) if known else (None, None)
        with _watching() as watched:
            try:
                proto = tf2onnx.convert.from_tflite(str(file), *names, opset=options.opset)[0]
            except Exception:
                if watched.raw:
                    yield Artifact("onnx", watched.raw)
                raise
        yield Artifact("onnx", watched.raw)
        yield Artifact("onnx", proto.SerializeToString())


class ToLite:
    """``tf.lite.TFLiteConverter``."""

    name = "tflite"
    consumes = frozenset({TF})
    produces = TFLITE
    preload: Sequence[str] = PRELOAD
    libraries: Mapping[str, str] = {"tensorflow": "tensorflow"}
    python_environment = ENVIRONMENT
    options: LiteOptions = LiteOptions()

    def version(self) -> str:
        """Version of TensorFlow."""
        return tensorflow_version()

    def stages(self, options: LiteOptions) -> Sequence[ConversionStage]:
        """Conversion, and quantization where it is asked for."""
        stages = [ConversionStage("convert", "convert", TFLITE)]
        if options.quantizes:
            stages.append(ConversionStage("quantize", "lossy", TFLITE, options.tolerance))
        return stages

    def convert(self, source: Artifact, options: LiteOptions, folder: Path) -> Iterator[Artifact]:
        """The model in float32, and the quantized one."""
        program = program_of(source)
        yield Artifact(TFLITE, _lite(program, options, quantized=False))
        if options.quantizes:
            yield Artifact(TFLITE, _lite(program, options, quantized=True))


def _lite(program: TensorFlowProgram, options: LiteOptions, *, quantized: bool) -> bytes:
    tf = tensorflow()
    if program.is_keras and not options.concrete:
        converter = tf.lite.TFLiteConverter.from_keras_model(program.model)
    else:
        concrete = program.function.get_concrete_function()
        tracked = program.model if program.is_keras else None
        converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], tracked)
    converter.allow_custom_ops = options.allow_custom_ops
    for name, value in options.attributes.items():
        if not hasattr(converter, name):
            raise UsageError(f"attributes: TFLiteConverter has no {name!r}; check its spelling")
        setattr(converter, name, value)
    if options.select_tf_ops:
        kinds = tf.lite.OpsSet
        converter.target_spec.supported_ops = [kinds.TFLITE_BUILTINS, kinds.SELECT_TF_OPS]
    if quantized:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if options.float16:
            converter.target_spec.supported_types = [tf.float16]
        if options.calibrate:
            converter.representative_dataset = lambda: _calibration(program)
    return bytes(converter.convert())


def _calibration(program: TensorFlowProgram) -> Iterator[list[Any]]:
    for feeds in (program.facts.inputs, *program.facts.others):
        yield list(feeds.values())


def tensorflow_version() -> str:
    """Version of TensorFlow, whichever of its distributions is installed."""
    with contextlib.suppress(ImportError):
        return version_of("tensorflow", extra=EXTRA)
    return version_of("tensorflow-cpu", extra=EXTRA)
