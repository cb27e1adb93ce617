"""Takes Keras models apart: single layers with what they are given, and beginnings of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from optvet.plugin import Feeds, InputError, PartScript, SourcePart
from optvet_tensorflow.program import TensorFlowProgram, tensorflow

_SOURCE = '''\
"""A part of a model, and what it was called with."""

from pathlib import Path

import keras
import numpy as np

HERE = Path(__file__).resolve().parent
with np.load(HERE / "inputs.npz") as kept:
    example_inputs = tuple(kept[f"arr_{i}"] for i in range(len(kept.files)))


def part():
    return keras.models.load_model(HERE / "part.keras")
'''
_EXPECTED = """\
model = part()
given = list(example_inputs)
returned = model(given[0] if len(given) == 1 else given, training=False)
expected = [np.asarray(v) for v in tf.nest.flatten(returned)]"""
_IMPORTS = "import keras\nimport numpy as np\nimport tensorflow as tf\nimport tf2onnx.convert"
_NEEDS = ("tensorflow", "keras", "tf2onnx", "onnx", "onnxruntime or else onnx's own evaluator")
_CALLS = {
    "keras_export": 'model.export(str(target), format="onnx", verbose=False{opset})',
    "tf2onnx": "tf2onnx.convert.from_keras(model{opset}, output_path=str(target))",
}
_LITE = "return tf.lite.TFLiteConverter.from_keras_model(model).convert()"
_LITE_IMPORTS = "import keras\nimport numpy as np\nimport tensorflow as tf"
_RUN_LITE = """\
import re

from ai_edge_litert.interpreter import Interpreter


def natural(detail):
    return [int(t) if t.isdigit() else t for t in re.split(r"(\\d+)", detail["name"])]

interpreter = Interpreter(model_content=model)
details = sorted(interpreter.get_input_details(), key=natural)
for detail, value in zip(details, feeds.values(), strict=True):
    interpreter.resize_tensor_input(detail["index"], value.shape)
interpreter.allocate_tensors()
for detail, value in zip(details, feeds.values(), strict=True):
    interpreter.set_tensor(detail["index"], value)
interpreter.invoke()
outputs = sorted(interpreter.get_output_details(), key=natural)
return {i: interpreter.get_tensor(detail["index"]) for i, detail in enumerate(outputs)}"""
_OPSETS = {"keras_export": "opset_version", "tf2onnx": "opset"}


def parts_of(program: TensorFlowProgram) -> list[SourcePart]:
    """Layers, beginnings, and the whole."""
    return [part for part, _, _ in _parts(program)]


def write_part(program: TensorFlowProgram, feeds: Feeds, name: str, folder: Path) -> str:
    """Write a part as a file of Keras, with what it is given on ``feeds`` beside it."""
    _, model, reads = next(found for found in _parts(program) if found[0].name == name)
    values = [feeds[spec.name] for spec in program.specs]
    if reads is not None:
        values = [np.asarray(reads(values[0] if len(values) == 1 else values, training=False))]
    model.save(folder / "part.keras")
    np.savez(folder / "inputs.npz", *values)
    (folder / "part.py").write_text(_SOURCE)
    return "part.py"


def script_for(converter: str, options: Mapping[str, object]) -> PartScript | None:
    """A script that converts by Keras, tf2onnx or TensorFlow; None for other converters.

    None as well for options of TensorFlow's converter that are not the usual ones.
    """
    if converter == "tflite" and not any(options.values()):
        needs = ("tensorflow", "keras", "ai-edge-litert", "onnx")
        return PartScript("TFLite", needs, _LITE_IMPORTS, _EXPECTED, _LITE, run=_RUN_LITE)
    if converter not in _CALLS:
        return None
    opset = options.get("opset")
    words = f", {_OPSETS[converter]}={opset}" if opset else ""
    return PartScript("tf2onnx", _NEEDS, _IMPORTS, _EXPECTED, _CALLS[converter].format(opset=words))


def _parts(program: TensorFlowProgram) -> Iterator[tuple[SourcePart, Any, Any]]:
    """Parts with their models, and the model of what they are given; None for the whole's inputs.

    Raises:
        InputError: The model does not show its layers, or the file says how it is called.
    """
    import keras

    tensorflow()
    model = program.model
    functional = (keras.Sequential, keras.src.models.Functional)
    if program.call is not None or not isinstance(model, functional):
        raise InputError("only a sequential or functional Keras model can be taken apart")
    layers = [each for each in model.layers if not isinstance(each, keras.layers.InputLayer)]
    names = [each.name for each in layers]
    yield SourcePart("", max(1, len(layers)), frozenset(names)), model, None
    for number, layer in enumerate(layers if len(layers) > 1 else ()):
        layer_input = layer.input
        if isinstance(layer_input, keras.KerasTensor):
            entry = keras.Input(layer_input.shape[1:], dtype=layer_input.dtype)
            alone = keras.Model(entry, layer(entry))
            reads = keras.Model(model.inputs, layer_input)
            yield SourcePart(layer.name, 1, frozenset({layer.name})), alone, reads
        if 0 < number < len(layers) - 1:
            inner_names = frozenset(names[: number + 1])
            beginning = keras.Model(model.inputs, layer.output)
            yield SourcePart(f":{layer.name}", number + 1, inner_names), beginning, None
