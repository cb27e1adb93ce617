"""Trains the small models of the zoo on data that scikit-learn ships, in plain numpy.

::

    python plugins/models/optvet_zoo/recipes/train.py [NAME ...]

Writes ``NAME.onnx`` and its entry in ``recipes.json``. The graphs are written the way exporters
write them (BatchNormalization behind Conv, Dropout and Identity left in, Reshape fed by Shape),
so that an optimizer finds work in them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from optvet_zoo.recipes.layers import (
    BatchNorm,
    Cells,
    Conv3x3,
    Dense,
    Dropout,
    Flatten,
    MaxPool2,
    Relu,
    Tanh,
    TrainableLayer,
)
from optvet_zoo.recipes.training import (
    accuracy,
    classification_gradient,
    detection_gradient,
    f1,
    predict,
    r_squared,
    regression_gradient,
    train,
)
from optvet_zoo.recipes.training_data import (
    CELL,
    CONTEXT,
    DIGIT,
    LETTERS,
    SIDE,
    TEST_FRACTION,
    canvases,
    held_out,
    letter_windows,
)

SEED = 20240501
_HERE = Path(__file__).parent


def main(arguments: Sequence[str]) -> int:
    """Trains the models that are named, or all."""
    arguments_parser = argparse.ArgumentParser(description=__doc__)
    arguments_parser.add_argument("names", nargs="*", default=list(RECIPES))
    record = _HERE / "recipes.json"
    entries = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    for name in arguments_parser.parse_args(arguments).names:
        model, entries[name] = RECIPES[name]()
        onnx.checker.check_model(model, full_check=True)
        (_HERE / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))
        print(name, entries[name])
        record.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


Recipe = tuple[onnx.ModelProto, dict[str, Any]]


def digits_cnn() -> Recipe:
    """Conv → BatchNormalization → Relu, three times, MaxPool between, Gemm on top."""
    rng = np.random.default_rng(SEED)
    x_train, x_test, y_train, y_test = held_out("digits")
    x_train, x_test = ((x / 16).reshape(-1, 1, 8, 8) for x in (x_train, x_test))
    conv = [Conv3x3(rng, 1, 16), Conv3x3(rng, 16, 24), Conv3x3(rng, 24, 32)]
    norm = [BatchNorm(16), BatchNorm(24), BatchNorm(32)]
    dense = Dense(rng, 128, 10)
    layers: list[TrainableLayer] = [conv[0], norm[0], Relu(), MaxPool2(), conv[1], norm[1], Relu()]
    layers += [conv[2], norm[2], Relu(), MaxPool2(), Flatten(), Dropout(rng, 0.25), dense]
    train(layers, x_train, y_train, classification_gradient, rng, epochs=25)
    weights = {"fc_w": dense.parameters[0].T, "fc_b": dense.parameters[1]}
    weights |= normalized_convolutions(conv, norm)
    text = """
        <ir_version: 7, opset_import: ["": 13], producer_name: "optvet-zoo">
        digits_cnn (float[N,1,8,8] image) => (float[N,10] probabilities) {
            c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, conv1_w)
            b1 = BatchNormalization <epsilon = 1e-5> (c1, bn1_scale, bn1_b, bn1_mean, bn1_var)
            r1 = Relu (b1)
            p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
            c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p1, conv2_w)
            b2 = BatchNormalization <epsilon = 1e-5> (c2, bn2_scale, bn2_b, bn2_mean, bn2_var)
            r2 = Relu (b2)
            pads = Constant <value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}> ()
            padded = Pad (r2, pads)
            c3 = Conv <kernel_shape = [3, 3]> (padded, conv3_w)
            b3 = BatchNormalization <epsilon = 1e-5> (c3, bn3_scale, bn3_b, bn3_mean, bn3_var)
            r3 = Relu (b3)
            p3 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r3)
            shape = Shape (p3)
            zero = Constant <value = int64 {0}> ()
            batch = Gather <axis = 0> (shape, zero)
            axes = Constant <value = int64[1] {0}> ()
            rows = Unsqueeze (batch, axes)
            rest = Constant <value = int64[1] {-1}> ()
            target = Concat <axis = 0> (rows, rest)
            flat = Reshape (p3, target)
            kept = Dropout (flat)
            logits = Gemm <transB = 1> (kept, fc_w, fc_b)
            probabilities = Softmax <axis = 1> (logits)
        }"""
    found = accuracy(predict(layers, x_test), y_test)
    note = "pixels / 16, as [N, 1, 8, 8]"
    return _model(text, weights), _entry("digits", "accuracy", found, note, epochs=25)


def digits_mlp() -> Recipe:
    """Three fully connected layers, spelled as MatMul and Add."""
    rng = np.random.default_rng(SEED + 1)
    x_train, x_test, y_train, y_test = held_out("digits")
    dense = [Dense(rng, 64, 64), Dense(rng, 64, 32), Dense(rng, 32, 10)]
    layers: list[TrainableLayer] = [dense[0], Relu(), Dropout(rng, 0.1), dense[1], Relu(), dense[2]]
    train(layers, x_train / 16, y_train, classification_gradient, rng, epochs=40)
    weights = {f"w{i}": d.parameters[0] for i, d in enumerate(dense, 1)}
    weights |= {f"b{i}": d.parameters[1] for i, d in enumerate(dense, 1)}
    text = """
        <ir_version: 8, opset_import: ["": 17], producer_name: "optvet-zoo">
        digits_mlp (float[N,64] pixels) => (float[N,10] probabilities) {
            sixteen = Constant <value = float {16.0}> ()
            scaled = Div (pixels, sixteen)
            m1 = MatMul (scaled, w1)
            a1 = Add (b1, m1)
            r1 = Relu (a1)
            kept = Dropout (r1)
            same = Identity (kept)
            m2 = MatMul (same, w2)
            a2 = Add (m2, b2)
            r2 = Relu (a2)
            as_float = Cast <to = 1> (r2)
            m3 = MatMul (as_float, w3)
            logits = Add (m3, b3)
            scores = LogSoftmax <axis = -1> (logits)
            probabilities = Exp (scores)
        }"""
    found = accuracy(predict(layers, x_test / 16), y_test)
    return _model(text, weights), _entry("digits", "accuracy", found, "pixels, 0 to 16", epochs=40)


def wine_logreg() -> Recipe:
    """Logistic regression with its standardization; label and probabilities as outputs."""
    rng = np.random.default_rng(SEED + 2)
    x_train, x_test, y_train, y_test = held_out("wine")
    mean, scale = x_train.mean(axis=0), 1 / x_train.std(axis=0)
    dense = Dense(rng, 13, 3)
    normal_train, normal_test = ((x - mean) * scale for x in (x_train, x_test))
    rate, decay = 1e-2, 1e-3
    train(
        [dense],
        normal_train,
        y_train,
        classification_gradient,
        rng,
        epochs=200,
        rate=rate,
        decay=decay,
    )
    weights = {"mean": mean, "scale": scale, "w": dense.parameters[0], "b": dense.parameters[1]}
    text = """
        <ir_version: 7, opset_import: ["": 13], producer_name: "optvet-zoo">
        wine_logreg (float[N,13] features) => (int64[N] label, float[N,3] probabilities) {
            centred = Sub (features, mean)
            normal = Mul (centred, scale)
            product = MatMul (normal, w)
            logits = Add (product, b)
            probabilities = Softmax <axis = -1> (logits)
            label = ArgMax <axis = 1, keepdims = 0> (probabilities)
        }"""
    found = accuracy(predict([dense], normal_test), y_test)
    return _model(text, weights), _entry("wine", "accuracy", found, "raw features", epochs=200)


def diabetes_mlp() -> Recipe:
    """Regression by two hidden layers; its target is scaled back inside."""
    rng = np.random.default_rng(SEED + 3)
    x_train, x_test, y_train, y_test = held_out("diabetes")
    mean, scale = x_train.mean(axis=0), x_train.std(axis=0)
    middle, spread = y_train.mean(), y_train.std()
    dense = [Dense(rng, 10, 16), Dense(rng, 16, 8), Dense(rng, 8, 1)]
    layers: list[TrainableLayer] = [dense[0], Tanh(), dense[1], Tanh(), dense[2]]
    normal_train, normal_test = ((x - mean) / scale for x in (x_train, x_test))
    goal = (y_train - middle) / spread
    train(layers, normal_train, goal, regression_gradient, rng, epochs=30, decay=0.5)
    weights = {"mean": mean, "deviation": scale, "middle": middle, "spread": spread}
    weights |= {f"w{i}": d.parameters[0].T for i, d in enumerate(dense, 1)}
    weights |= {f"b{i}": d.parameters[1] for i, d in enumerate(dense, 1)}
    text = """
        <ir_version: 8, opset_import: ["": 15], producer_name: "optvet-zoo">
        diabetes_mlp (float[N,10] features) => (float[N] progression) {
            centred = Sub (features, mean)
            normal = Div (centred, deviation)
            g1 = Gemm <transB = 1> (normal, w1, b1)
            t1 = Tanh (g1)
            turned = Transpose <perm = [1, 0]> (w2)
            m2 = MatMul (t1, turned)
            a2 = Add (m2, b2)
            t2 = Tanh (a2)
            kept = Dropout (t2)
            g3 = Gemm <transB = 1> (kept, w3, b3)
            axes = Constant <value = int64[1] {1}> ()
            column = Squeeze (g3, axes)
            scaled = Mul (column, spread)
            progression = Add (scaled, middle)
        }"""
    found = r_squared(predict(layers, normal_test)[:, 0] * spread + middle, y_test)
    note = "features as scikit-learn scales them"
    return _model(text, weights), _entry("diabetes", "r_squared", found, note, epochs=30)


def canvas_detector() -> Recipe:
    """A detector of digits on canvases: a class and a box for each cell of a map."""
    rng = np.random.default_rng(SEED + 4)
    x_train, x_test, y_train, y_test = held_out("digits")
    images, targets, _ = canvases(rng, x_train, y_train, 2000)
    conv = [Conv3x3(rng, 1, 8), Conv3x3(rng, 8, 16), Conv3x3(rng, 16, 32)]
    norm = [BatchNorm(8), BatchNorm(16), BatchNorm(32)]
    head = Dense(rng, 32, 13)
    layers: list[TrainableLayer] = [conv[0], norm[0], Relu(), MaxPool2(), conv[1], norm[1], Relu()]
    layers += [MaxPool2(), conv[2], norm[2], Relu(), Cells(), head]
    train(layers, images, targets, detection_gradient, rng, epochs=40)
    cells = np.arange(SIDE // CELL) + 0.5
    grid = np.stack(np.meshgrid(cells, cells), axis=-1).reshape(1, -1, 2)
    weights: dict[str, Any] = {
        "head_w": head.parameters[0].T[..., None, None],
        "head_b": head.parameters[1],
    }
    weights |= {"grid": grid, "cell": np.float32(CELL), "half": np.float32(DIGIT / 2)}
    weights |= normalized_convolutions(conv, norm)
    text = """
        <ir_version: 7, opset_import: ["": 12], producer_name: "optvet-zoo">
        canvas_detector (float[N,1,20,20] image) => (float[N,25,4] boxes, float[N,25,11] scores) {
            c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, conv1_w)
            b1 = BatchNormalization <epsilon = 1e-5> (c1, bn1_scale, bn1_b, bn1_mean, bn1_var)
            r1 = Relu (b1)
            p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
            c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p1, conv2_w)
            b2 = BatchNormalization <epsilon = 1e-5> (c2, bn2_scale, bn2_b, bn2_mean, bn2_var)
            r2 = Relu (b2)
            p2 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
            c3 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p2, conv3_w)
            b3 = BatchNormalization <epsilon = 1e-5> (c3, bn3_scale, bn3_b, bn3_mean, bn3_var)
            r3 = Relu (b3)
            map = Conv <kernel_shape = [1, 1]> (r3, head_w, head_b)
            turned = Transpose <perm = [0, 2, 3, 1]> (map)
            target = Constant <value = int64[3] {0, 25, 13}> ()
            rows = Reshape (turned, target)
            logits, offsets = Split <axis = 2, split = [11, 2]> (rows)
            scores = Softmax <axis = 2> (logits)
            moved = Add (offsets, grid)
            centres = Mul (moved, cell)
            first = Sub (centres, half)
            last = Add (centres, half)
            boxes = Concat <axis = 2> (first, last)
        }"""
    images, targets, _ = canvases(rng, x_test, y_test, 200)
    found = f1(predict(layers, images)[:, :11], targets)
    note = "pixels / 16, one to four digits on [N, 1, 20, 20]"
    return _model(text, weights), _entry("digits", "f1", found, note, epochs=40)


def letters_lm() -> Recipe:
    """A language model of letters that sees the last eight: a convolution over the text."""
    rng = np.random.default_rng(SEED + 5)
    wide = len(LETTERS)
    windows = letter_windows(rng)
    inputs = np.eye(wide, dtype=np.float32)[windows[:, :-1]].reshape(len(windows), -1)
    cut = int(len(windows) * TEST_FRACTION)
    dense = [Dense(rng, CONTEXT * wide, 64), Dense(rng, 64, wide)]
    layers: list[TrainableLayer] = [dense[0], Relu(), Dropout(rng, 0.1), dense[1]]
    train(layers, inputs[cut:], windows[cut:, -1], classification_gradient, rng, epochs=12)
    kernel = dense[0].parameters[0].reshape(CONTEXT, wide, 64).transpose(2, 1, 0)
    weights = {"table": np.eye(wide), "conv_w": kernel, "conv_b": dense[0].parameters[1]}
    weights |= {"out_w": dense[1].parameters[0], "out_b": dense[1].parameters[1]}
    text = f"""
        <ir_version: 7, opset_import: ["": 10], producer_name: "optvet-zoo">
        letters_lm (int64[N,T] input_ids) => (float[N,T,{wide}] logits) {{
            embedded = Gather (table, input_ids)
            turned = Transpose <perm = [0, 2, 1]> (embedded)
            padded = Pad <pads = [0, 0, {CONTEXT - 1}, 0, 0, 0]> (turned)
            c = Conv <kernel_shape = [{CONTEXT}]> (padded, conv_w, conv_b)
            r = Relu (c)
            back = Transpose <perm = [0, 2, 1]> (r)
            same = Identity (back)
            scored = MatMul (same, out_w)
            logits = Add (scored, out_b)
        }}"""
    found = accuracy(predict(layers, inputs[:cut]), windows[:cut, -1])
    entry = _entry("*", "accuracy of the next letter", found, "letters by number", epochs=12)
    return _model(text, weights), entry | {"data": "descriptions of scikit-learn's data sets"}


RECIPES: dict[str, Callable[[], Recipe]] = {
    "canvas-detector": canvas_detector,
    "diabetes-mlp": diabetes_mlp,
    "digits-cnn": digits_cnn,
    "digits-mlp": digits_mlp,
    "letters-lm": letters_lm,
    "wine-logreg": wine_logreg,
}


def normalized_convolutions(conv: list[Conv3x3], norm: list[BatchNorm]) -> dict[str, Any]:
    """Weights of convolutions, each with its normalization, by their names in the model."""
    weights: dict[str, Any] = {}
    for i, (c, b) in enumerate(zip(conv, norm, strict=True), 1):
        weights |= {f"conv{i}_w": c.parameters[0], f"bn{i}_scale": b.parameters[0]}
        weights |= {f"bn{i}_b": b.parameters[1], f"bn{i}_mean": b.mean, f"bn{i}_var": b.variance}
    return weights


def _model(text: str, weights: dict[str, Any]) -> onnx.ModelProto:
    model = parser.parse_model(text)
    for name, values in weights.items():
        tensor = numpy_helper.from_array(np.ascontiguousarray(values, dtype=np.float32), name)
        tensor.dims[:] = np.shape(values)  # ascontiguousarray makes a scalar a vector
        model.graph.initializer.append(tensor)
    return model


def _entry(data: str, metric: str, found: float, note: str, *, epochs: int) -> dict[str, Any]:
    return {
        "data": f"sklearn.datasets.load_{data}",
        "inputs": note,
        "metric": metric,
        "held_out": round(found, 4),
        "epochs": epochs,
        "split": {"test_fraction": TEST_FRACTION, "random_state": 0},
        "seed": SEED,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
