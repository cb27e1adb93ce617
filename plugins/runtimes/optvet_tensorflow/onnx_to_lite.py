"""onnx2tf: ONNX models to TFLite, in an environment with a TensorFlow of its own."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx
from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, ConversionStage, PythonEnvironment, UsageError, version_of
from optvet_tensorflow.home import PRELOAD
from optvet_tensorflow.lite import TFLITE

# It requires exact releases of TensorFlow, onnx and numpy.
_ENVIRONMENT = PythonEnvironment(
    "onnx2tf", ("onnx2tf==1.29.24",), ("tensorflow", "onnx2tf", "ai_edge_litert")
)
_SET_HERE = ("input_onnx_file_path", "onnx_graph", "output_folder_path")


class Onnx2TfOptions(BaseModel):
    """How ``onnx2tf.convert`` is called."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arguments: dict[str, bool | int | float | str] = {}
    """Further keyword arguments, as they are, such as ``not_use_onnxsim``."""


class Onnx2Tf:
    """Converts ONNX to a float32 TFLite model that keeps the input shapes.

    By default onnx2tf moves the second axis of inputs with three to five axes to the end, even if
    it holds no channels; ``keep_shape_absolutely_input_names`` prevents that.
    """

    name = "onnx2tf"
    consumes = frozenset({"onnx"})
    produces = TFLITE
    preload: Sequence[str] = (*PRELOAD, "onnx2tf")
    libraries: Mapping[str, str] = {"onnx2tf": "onnx2tf"}
    python_environment = _ENVIRONMENT
    options: Onnx2TfOptions = Onnx2TfOptions()

    def version(self) -> str:
        """Version of onnx2tf."""
        return version_of("onnx2tf", extra="it by: optvet env make onnx2tf")

    def stages(self, options: Onnx2TfOptions) -> Sequence[ConversionStage]:
        """One stage."""
        return [ConversionStage("convert", "convert", TFLITE)]

    def convert(
        self, source: Artifact, options: Onnx2TfOptions, folder: Path
    ) -> Iterator[Artifact]:
        """Yield the TFLite file. Its outputs have the order of the source."""
        import onnx2tf

        known = set(inspect.signature(onnx2tf.convert).parameters).difference(_SET_HERE)
        for name in options.arguments:
            if name not in known:
                raise UsageError(f"arguments: onnx2tf.convert has no {name!r}; check its spelling")
        model = onnx.load_from_string(source.data)
        weights = {tensor.name for tensor in model.graph.initializer}
        inputs = [value.name for value in model.graph.input if value.name not in weights]
        file, made = folder / "model.onnx", folder / "made"
        file.write_bytes(source.data)
        settings: dict[str, object] = {
            "keep_shape_absolutely_input_names": inputs,
            "non_verbose": True,
            "verbosity": "error",
        }
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                onnx2tf.convert(
                    input_onnx_file_path=str(file),
                    output_folder_path=str(made),
                    **settings | options.arguments,
                )
        except SystemExit as error:  # It prints the reason, and exits.
            raise RuntimeError(_last_words(printed.getvalue())) from error
        yield Artifact(TFLITE, path=made / "model_float32.tflite")


def _last_words(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return " ".join(lines[-3:]) or "onnx2tf exited without a message"
