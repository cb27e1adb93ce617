"""Measures ``calibration.json``: run by hand after a change of ``light.py``; needs onnxruntime.

::

    python plugins/models/optvet_zoo/recipes/calibrate.py

For each network: the power of two that brings the output of each Conv and Gemm to an rms of about
1 on standard normal images, then the bias of the last layer. Random networks give all images
nearly the same logits; the bias takes most of what they share away, so that the last weights can be
large enough for images to differ, and Softmax still does not saturate.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from optvet_zoo import light

SHARED_STD = 1.5
"""Standard deviation over classes of what the logits of all images share."""
OWN_STD = 0.3
"""Standard deviation of what an image adds (reached within a factor of sqrt 2)."""
OFFSET_EXPONENT = -6
IMAGES = 8


def main(arguments: Sequence[str]) -> int:
    """Calibrates the networks that are named, or all, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(light.PUBLISHED))
    file = Path(light.__file__).with_name("calibration.json")
    entries = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name in parser.parse_args(arguments).names:
        exponents = calibrate_layers(name)
        entries[name] = {"exponents": exponents, **calibrate_classes(name, exponents)}
        print(name, report(name, exponents, entries[name]))
        file.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def calibrate_layers(name: str) -> dict[str, int]:
    """Exponents by weight name; those that are 0 are left out."""
    exponents: dict[str, int] = {}
    images = _images(2)
    while True:
        model = _build(name, exponents, None)
        layers = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm")]
        outputs = [n.output[0] for n in layers]
        runs = [_run(model, outputs, image) for image in images]
        rms = {o: float(np.sqrt(np.mean([np.square(r[o]).mean() for r in runs]))) for o in outputs}
        if not _rescale(model.graph, rms, exponents):
            return {key: value for key, value in exponents.items() if value}


def _rescale(graph: onnx.GraphProto, rms: dict[str, float], exponents: dict[str, int]) -> bool:
    """Changes the exponents of the layers that no other change of this round reaches."""
    moved: set[str] = set()
    source = {n.output[0]: n.input[0] for n in graph.node if n.op_type in ("Reshape", "Unsqueeze")}
    for node in graph.node:
        reached = any(value in moved for value in node.input)
        if node.op_type in ("Conv", "Gemm") and not reached:
            step = -round(float(np.log2(rms[node.output[0]])))
            weight = source.get(node.input[1], node.input[1])
            exponents[weight] = exponents.get(weight, 0) + step
            reached = step != 0
        if reached:
            moved.update(node.output)
    return bool(moved)


def calibrate_classes(name: str, exponents: dict[str, int]) -> dict[str, Any]:
    """Exponent of the last layer (into ``exponents``) and offsets of its classes."""
    zero = np.zeros(1000, dtype=np.float32)
    logits, _, _ = _logits(name, exponents, zero)
    shared = logits.mean(axis=0)
    own = float(np.sqrt(np.square(logits - shared).mean()))
    step = round(float(np.log2(OWN_STD / own)))
    model = _build(name, exponents, zero)
    weight = _last(model.graph).input[1]
    weight = next((n.input[0] for n in model.graph.node if n.output[0] == weight), weight)
    exponents[weight] = exponents.get(weight, 0) + step
    logits, spread, clipped = _logits(name, exponents, zero)
    shared = logits.mean(axis=0)
    wanted = (shared - shared.mean()) * (SHARED_STD / shared.std())
    # SqueezeNet has a Relu behind the last layer: keep it from cutting most positions off.
    wanted += 2 * spread if clipped else 0.0
    steps = np.round((wanted - shared) * 2.0**-OFFSET_EXPONENT).astype("<i2")
    text = base64.b64encode(steps.tobytes()).decode("ascii")
    return {"offset": text, "offset_exponent": OFFSET_EXPONENT}


def report(name: str, exponents: dict[str, int], entry: dict[str, Any]) -> str:
    """What the calibrated network does on images that it was not calibrated with."""
    steps = np.frombuffer(base64.b64decode(entry["offset"]), dtype="<i2")
    model = _build(name, exponents, steps.astype(np.float32) * np.float32(2.0**OFFSET_EXPONENT))
    output = model.graph.output[0].name
    rng = np.random.default_rng(3)
    shape = (1, 3, 224, 224)
    lines = []
    for kind, images in {
        "normal": [rng.standard_normal(shape) for _ in range(4)],
        "uniform": [rng.random(shape) for _ in range(4)],
        "coarse": [
            rng.standard_normal((1, 3, 7, 7)).repeat(32, axis=2).repeat(32, axis=3)
            for _ in range(4)
        ],
    }.items():
        runs = [_run(model, [output], image.astype(np.float32))[output] for image in images]
        scores = np.array([run.reshape(-1) for run in runs])
        if scores.min() < 0:
            scores = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        varied = (np.log(scores + 1e-30) - np.log(scores + 1e-30).mean(axis=0)).std()
        lines.append(f"{kind}: max {scores.max(axis=1).round(3).tolist()}, varied {varied:.2f}")
    return "; ".join(lines)


def _logits(
    name: str, exponents: dict[str, int], offset: np.ndarray
) -> tuple[np.ndarray, float, bool]:
    """Mean over positions of the last layer's output, std over positions, whether Relu follows."""
    model = _build(name, exponents, offset)
    output = _last(model.graph).output[0]
    runs = [_run(model, [output], image)[output].reshape(1000, -1) for image in _images(IMAGES)]
    values = np.array(runs, dtype=np.float64)
    clipped = any(n.op_type == "Relu" and n.input[0] == output for n in model.graph.node)
    return values.mean(axis=2), float(values.std(axis=2).mean()), clipped


def _last(graph: onnx.GraphProto) -> onnx.NodeProto:
    last: onnx.NodeProto = [n for n in graph.node if n.op_type in ("Conv", "Gemm")][-1]
    return last


def _build(name: str, exponents: dict[str, int], offset: np.ndarray | None) -> onnx.ModelProto:
    model = light.published(name)
    light.fill(model.graph, name, light.Calibration(exponents, offset))
    model.ir_version = 8
    return model


def _images(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((1, 3, 224, 224)).astype(np.float32) for _ in range(count)]


_SESSIONS: dict[bytes, Any] = {}


def _run(model: onnx.ModelProto, outputs: Sequence[str], image: np.ndarray) -> dict[str, Any]:
    """Outputs by name, inner values among them. The session of the last model is kept."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime as ort

    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    del exposed.graph.output[:]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    data = exposed.SerializeToString()
    if data not in _SESSIONS:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        _SESSIONS.clear()
        _SESSIONS[data] = ort.InferenceSession(data, options)
    values = _SESSIONS[data].run(list(outputs), {model.graph.input[0].name: image})
    return dict(zip(outputs, values, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
