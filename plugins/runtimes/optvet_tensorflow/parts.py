"""Takes Keras models apart: single layers with what they are given, and beginnings of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from optvet import Feeds, InputError, SourcePart
from optvet_tensorflow.program import Program, tensorflow

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
_SCRIPT = '''\
"""Shows that tf2onnx changes what part.keras computes: exit code 1 as long as it does.

It needs tensorflow, keras, tf2onnx, onnx, and onnxruntime or else onnx's own evaluator.
"""

import sys

import keras
import numpy as np
import onnx
import tensorflow as tf
import tf2onnx.convert

from part import HERE, example_inputs, part

TOLERANCE = {tolerance:.3g}  # relative to the largest magnitude

model = part()
given = list(example_inputs)
returned = model(given[0] if len(given) == 1 else given, training=False)
expected = [np.asarray(v) for v in tf.nest.flatten(returned)]
target = HERE / "part.onnx"
try:
    {call}
except Exception as error:
    print(f"refused: {{type(error).__name__}}: {{error}}")
    sys.exit(2)
try:
    onnx.checker.check_model(str(target), full_check=True)
except Exception as error:
    print(f"the model is invalid: {{type(error).__name__}}: {{error}}")
    print("the fault is there")
    sys.exit(1)
try:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    inputs = [i.name for i in session.get_inputs()]
except ImportError:
    from onnx.reference import ReferenceEvaluator

    session = ReferenceEvaluator(str(target))
    inputs = session.input_names
try:
    got = session.run(None, dict(zip(inputs, given)))
except Exception as error:
    print(f"the model cannot be run: {{type(error).__name__}}: {{error}}")
    sys.exit(3)
wrong = len(expected) != len(got)
for number, (a, b) in enumerate(zip(expected, got)):
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        print(f"output {{number}}: {{a.dtype}} {{a.shape}} became {{b.dtype}} {{b.shape}}")
        wrong = True
    elif a.dtype.kind == "f" and a.size:
        known = np.isfinite(a)
        top = float(np.max(np.abs(a), where=known, initial=0.0)) or 1.0
        error = float(np.max(np.abs(a - b), where=known & np.isfinite(b), initial=0.0)) / top
        same = np.array_equal(a[~known], b[~known], equal_nan=True) and np.isfinite(b[known]).all()
        print(f"output {{number}}: differs by {{error:.3g}} of its largest value")
        wrong |= error > TOLERANCE or not same
    else:
        print(f"output {{number}}: {{int(np.sum(a != b))}} of {{a.size}} elements differ")
        wrong |= not np.array_equal(a, b)
print("the fault is there" if wrong else "the fault is not there")
sys.exit(int(wrong))
'''
_CALLS = {
    "keras_export": 'model.export(str(target), format="onnx", verbose=False{opset})',
    "tf2onnx": "tf2onnx.convert.from_keras(model{opset}, output_path=str(target))",
}
_OPSETS = {"keras_export": "opset_version", "tf2onnx": "opset"}


def parts_of(program: Program) -> list[SourcePart]:
    """Layers, beginnings, and the whole."""
    return [part for part, _, _ in _parts(program)]


def write_part(program: Program, feeds: Feeds, name: str, folder: Path) -> str:
    """Write a part as a file of Keras, with what it is given on ``feeds`` beside it."""
    _, model, reads = next(found for found in _parts(program) if found[0].name == name)
    values = [feeds[spec.name] for spec in program.specs]
    if reads is not None:
        values = [np.asarray(reads(values[0] if len(values) == 1 else values, training=False))]
    model.save(folder / "part.keras")
    np.savez(folder / "inputs.npz", *values)
    (folder / "part.py").write_text(_SOURCE)
    return "part.py"


def script_for(converter: str, options: Mapping[str, object], tolerance: float) -> str:
    """A script that converts by Keras or tf2onnx itself; empty for other converters."""
    if converter not in _CALLS:
        return ""
    opset = options.get("opset")
    words = f", {_OPSETS[converter]}={opset}" if opset else ""
    return _SCRIPT.format(call=_CALLS[converter].format(opset=words), tolerance=tolerance)


def _parts(program: Program) -> Iterator[tuple[SourcePart, Any, Any]]:
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
        given = layer.input
        if isinstance(given, keras.KerasTensor):
            entry = keras.Input(given.shape[1:], dtype=given.dtype)
            alone = keras.Model(entry, layer(entry))
            reads = keras.Model(model.inputs, given)
            yield SourcePart(layer.name, 1, frozenset({layer.name})), alone, reads
        if 0 < number < len(layers) - 1:
            held = frozenset(names[: number + 1])
            beginning = keras.Model(model.inputs, layer.output)
            yield SourcePart(f":{layer.name}", number + 1, held), beginning, None
