"""Triggers look at what decides: they fire where the fault can be, and nowhere else."""

from __future__ import annotations

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest

from optvet.engine.known.documents import shipped, with_declared
from optvet.graph.pattern import parse_pattern, search
from optvet.graph.types import inferred_types

POOLED = """
<ir_version: 7, opset_import: ["" : 10]>
g (float[1,1,4,4] x) => (float[a,b,c,d] y)
{{ m = {before}(x)  p = Pad<{pad}>(m)  y = MaxPool<{pool}>(p) }}
"""
CONVOLVED = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[1,1,6,6] x) => (float[a,b,c,d] y)
<int64[{n}] pads = {{{pads}}}, int64[{half}] axes = {{{axes}}},
 float v = {{{value}}}, float[1,1,3,3] w>
{{ p = Pad(x, pads, v, axes)  y = Conv(p, w) }}
"""
FEW = {"n": 4, "half": 2, "pads": "1, 0, 0, 1"}
ALL = {"n": 8, "half": 4, "pads": "0, 0, 1, 0, 0, 0, 0, 1"}
SIZES = "pads = [0, 0, 1, 1, 0, 0, 1, 1]"
TWICE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,6,4] x) => (float[a,b] y)
<int64[3] s1 = {{{first}}}, int64[2] s2 = {{0, -1}}>
{{ r = Reshape(x, s1)  y = Reshape{more}(r, s2) }}
"""
RANDOM = """
<ir_version: 7, opset_import: ["" : 13]>
g (float[4,4] x) => (float[4,4] y)
{{ a = RandomUniformLike<{one}>(x)  b = RandomUniformLike<{other}>(x)  y = Sub(a, b) }}
"""
CHANNELS = """
<ir_version: 8, opset_import: ["" : 15]>
g (float[4,3] x) => (float[4,4] y)
<float[3,4] w, float[4] s, float[4] b, float[4] m, float[4] v>
{{ a = MatMul(x, w)  t = Transpose<perm = [{perm}]>(a)  y = BatchNormalization(t, s, b, m, v) }}
"""
ZEROS, AXES = "onnxoptimizer-pad-zeros-max-pool", "onnxoptimizer-pad-axes-conv"
COPIED, MOVED = (
    "onnxoptimizer-reshape-copied-dimension",
    "onnxruntime-matmul-batchnorm-moved-channel",
)
LOWEST = "value = -3.4028234e+38"


@pytest.mark.parametrize(
    ("name", "fires", "text"),
    [
        (ZEROS, True, POOLED.format(before="Neg", pad=SIZES, pool="kernel_shape = [2, 2]")),
        # What is smaller than any number is what a MaxPool pads with.
        (
            ZEROS,
            False,
            POOLED.format(before="Neg", pad=f"{SIZES}, {LOWEST}", pool="kernel_shape = [2, 2]"),
        ),
        (ZEROS, False, POOLED.format(before="Relu", pad=SIZES, pool="kernel_shape = [2, 2]")),
        (
            ZEROS,
            False,
            POOLED.format(
                before="Neg", pad="pads = [0, 0, 0, 0, 0, 0, 0, 0]", pool="kernel_shape = [2, 2]"
            ),
        ),
        (
            ZEROS,
            False,
            POOLED.format(
                before="Neg", pad=f'{SIZES}, mode = "edge"', pool="kernel_shape = [2, 2]"
            ),
        ),
        # Its padding is another fault.
        (
            ZEROS,
            False,
            POOLED.format(
                before="Neg", pad=SIZES, pool='kernel_shape = [2, 2], auto_pad = "VALID"'
            ),
        ),
        (AXES, True, CONVOLVED.format(**ALL, axes="0, 1, 3, 2", value=0)),
        (AXES, False, CONVOLVED.format(**ALL, axes="0, 1, 2, 3", value=0)),
        (AXES, False, CONVOLVED.format(**ALL, axes="0, 1, 3, 2", value=1)),
        (AXES, False, CONVOLVED.format(**FEW, axes="2, 3", value=0)),
        (COPIED, True, TWICE.format(first="4, 3, 4", more="")),
        (COPIED, False, TWICE.format(first="2, 4, 6", more="")),
        (COPIED, False, TWICE.format(first="4, 3, 4", more="<allowzero = 1>")),
        ("onnxoptimizer-common-random", True, RANDOM.format(one="high = 2.0", other="high = 2.0")),
        ("onnxoptimizer-common-random", False, RANDOM.format(one="high = 2.0", other="high = 3.0")),
        ("onnxoptimizer-common-random", False, RANDOM.format(one="seed = 1.0", other="seed = 1.0")),
        (MOVED, True, CHANNELS.format(perm="1, 0")),
        (MOVED, False, CHANNELS.format(perm="0, 1")),
    ],
)
def test_a_trigger_fires_where_its_fault_can_be(name: str, fires: bool, text: str) -> None:
    model = onnx.parser.parse_model(text)
    for value in list(model.graph.value_info):  # Weights whose values do not matter.
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        zeros = onnx.numpy_helper.from_array(np.zeros(shape, np.float32), value.name)
        model.graph.initializer.append(zeros)
    (fault,) = (f for f in shipped() if f.id == name)
    types = with_declared(inferred_types(model) or {}, model)
    assert bool(search(parse_pattern(fault.trigger), model, types).places) is fires
