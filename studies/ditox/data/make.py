"""Makes the data of the offline variant: digits that no model of the zoo was trained on, in chunks.

::

    python studies/ditox/data/make.py

Needs scikit-learn. Each chunk, an ``.npz``, has four samples; letters are in ``letters-N.txt``.
It also writes two models of the zoo in other, equally valid forms, on which ONNX Optimizer 0.4.2
fails: a ``Transpose`` that leaves its permutation to the default, and a ``Pad`` that names its
axes in another order. Of a third model, a pass leaves a weight that nothing reads.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser, version_converter

from optvet_zoo.recipes import train

_HERE = Path(__file__).parent
_SAMPLES = 4
_IMAGES = 16


def main() -> None:
    """Write the chunks beside this file."""
    _, digits, _, labels = train.held_out("digits")
    canvases, _, _ = train.canvases(np.random.default_rng(0), digits, labels, 2 * _SAMPLES)
    images = (digits[: 2 * _SAMPLES] / 16).reshape(-1, 1, 8, 8).astype(np.float32)
    for name, arrays in (("digits", images), ("canvas", canvases)):
        for chunk in (1, 2):
            some = arrays[(chunk - 1) * _SAMPLES : chunk * _SAMPLES]
            named = {f"{i}/image": image[None] for i, image in enumerate(some)}
            np.savez_compressed(_HERE / f"{name}-{chunk}.npz", **named)
    onnx.save(transposed(), _HERE.with_name("digits-transposed.onnx"))
    onnx.save(padded(), _HERE.with_name("digits-padded.onnx"))
    onnx.save(reshaped(), _HERE.with_name("reshaped.onnx"))
    # For the study fetafix: what the optimizer makes of it, and images that show it.
    import onnxoptimizer

    fetafix = _HERE.parents[1] / "fetafix"
    lost = onnxoptimizer.optimize(padded(), ["fuse_pad_into_conv"])
    onnx.save(lost, fetafix / "digits-lost.onnx")
    some = (digits[:_IMAGES] / 16).reshape(-1, 1, 1, 8, 8).astype(np.float32)
    np.savez_compressed(fetafix / "digits.npz", **{f"{i}/image": x for i, x in enumerate(some)})


def _of_zoo(name: str) -> onnx.ModelProto:
    return onnx.load(Path(train.__file__).with_name(f"{name}.onnx"))


def transposed() -> onnx.ModelProto:
    """``digits-mlp`` whose last layer is a Gemm of a transposed weight."""
    model = _of_zoo("digits-mlp")
    graph = model.graph
    kept = [n for n in graph.node if n.output[0] not in ("m3", "logits")]
    at = next(i for i, n in enumerate(kept) if "logits" in n.input)
    kept.insert(at, helper.make_node("Gemm", ["as_float", "w3_back", "b3"], ["logits"]))
    kept.insert(at, helper.make_node("Transpose", ["w3"], ["w3_back"]))
    del graph.node[:]
    graph.node.extend(kept)
    (weight,) = (t for t in graph.initializer if t.name == "w3")
    turned = numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(weight).T), "w3")
    weight.CopyFrom(turned)
    onnx.checker.check_model(model, full_check=True)
    return model


def reshaped() -> onnx.ModelProto:
    """A model with a ``Reshape`` to the shape that its value has already."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 13]>
        reshaped (float[2,3] x) => (float[2,3] y) <int64[2] same = {2, 3}>
        { flat = Reshape(x, same)  y = Relu(flat) }""")
    onnx.checker.check_model(model, full_check=True)
    return model


def padded() -> onnx.ModelProto:
    """``digits-cnn`` in operator set 18: its Pad names axes, and leaves two sides to the Conv."""
    model = version_converter.convert_version(_of_zoo("digits-cnn"), 18)
    graph = model.graph
    at = next(i for i, n in enumerate(graph.node) if n.op_type == "Pad")
    pad, conv = graph.node[at], graph.node[at + 1]
    # Left and bottom here, top and right there: one pixel on each side, as in the zoo.
    pads, axes = np.array([0, 0, 1, 0, 0, 0, 0, 1], np.int64), np.array([0, 1, 3, 2], np.int64)
    conv.attribute.append(helper.make_attribute("pads", [1, 0, 0, 1]))
    graph.initializer.append(numpy_helper.from_array(pads, "some_pads"))
    graph.initializer.append(numpy_helper.from_array(axes, "pad_axes"))
    graph.node.remove(next(n for n in graph.node if n.output[0] == pad.input[1]))
    del pad.input[1:]
    pad.input.extend(["some_pads", "", "pad_axes"])
    del graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    return model


main()
