"""Makes ``nonzero.onnx``: places of positive numbers, whose NonZero onnx2torch 1.5 transposes."""

from pathlib import Path

import onnx
from onnx import parser

TEXT = """
<ir_version: 8, opset_import: ["": 16]>
places (float[3, 4] x) => (int64[n, 2] y) {
    positive = Relu (x)
    found = NonZero (positive)
    y = Transpose <perm = [1, 0]> (found)
}
"""
model = parser.parse_model(TEXT)
onnx.checker.check_model(model, full_check=True)
onnx.save(model, Path(__file__).with_name("nonzero.onnx"))
