"""Operands whose shape the ONNX standard fixes, and that no checker looks at.

A runtime that refuses a model in which such an operand has another shape is right.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, TensorProto

from optvet.graph.functions import without_functions
from optvet.graph.walk import ONNX_DOMAIN, attribute_of, domain_of, nodes_of

_SCALARS: Mapping[str, tuple[int, ...]] = {
    "Clip": (1, 2),
    "CumProd": (1,),
    "CumSum": (1,),
    "Dropout": (1, 2),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (2,),
    "Range": (0, 1, 2),
    "Trilu": (1,),
}
"""Places of operands of one element and no dimension."""
_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
_VECTORS: Mapping[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "NegativeLogLikelihoodLoss": (2,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "SoftmaxCrossEntropyLoss": (2,),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **{f"Reduce{name}": (1,) for name in _REDUCTIONS.split()},
}
"""Places of operands of one dimension.

Source: the descriptions of operators in ONNX's operator schemas.
"""


def describe_wrong_shape(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> str:
    """The first operand of another rank than the standard allows, in words; empty if none is.

    Only shapes of inputs, weights and constants are known.

    >>> import onnx.parser
    >>> text = '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) {'
    >>> model = onnx.parser.parse_model(text + 'y = Clip(x, x)}')
    >>> describe_wrong_shape(model, {"x": np.ones(2, np.float32)})
    "Clip 'y': the standard wants a scalar as input 1, which has the shape [2]"
    """
    model = without_functions(model)
    shapes = {name: value.shape for name, value in feeds.items()}
    shapes |= {t.name: tuple(t.dims) for t in model.graph.initializer}
    for node in nodes_of(model.graph):
        if node.op_type == "Constant" and node.output:
            value = attribute_of(node, "value")
            if isinstance(value, TensorProto):
                shapes[node.output[0]] = tuple(value.dims)
    for node in nodes_of(model.graph):
        if domain_of(node) != ONNX_DOMAIN:
            continue
        for places, rank, kind in ((_SCALARS, 0, "a scalar"), (_VECTORS, 1, "one dimension")):
            for place in places.get(node.op_type, ()):
                name = node.input[place] if place < len(node.input) else ""
                shape = shapes.get(name)
                if shape is not None and len(shape) != rank:
                    label = node.name or node.output[0]
                    return (
                        f"{node.op_type} {label!r}: the standard wants {kind} as input {place}, "
                        f"which has the shape {list(shape)}"
                    )
    return ""
