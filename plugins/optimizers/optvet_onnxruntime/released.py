"""ONNX Runtime's releases, and what tells that one works here."""

from __future__ import annotations

from optvet.plugin import ReleasedPackage

_PROBE = """\
import numpy, onnx.parser
text = '<ir_version: 7, opset_import: ["": 13]> g (float[1] x) => (float[1] y) { y = Identity(x) }'
model = onnx.parser.parse_model(text).SerializeToString()
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.ones(1, numpy.float32)})"""

# Wheels from before numpy 2 cannot be loaded beside it.
RELEASED = ReleasedPackage("onnxruntime", "onnxruntime", _PROBE, ("numpy<2",))
