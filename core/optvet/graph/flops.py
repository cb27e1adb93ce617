"""How many arithmetic operations a model takes, and of which operators that is not known.

A multiply-accumulate counts as two, whatever its element type, and an operator that computes each
element on its own as one per element. Normalizations and softmax count as what their definitions
spell out. What only moves or reshapes data costs nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from onnx import ModelProto, NodeProto

from optvet.graph.cost import MACS, Rule, Shapes, fed_shapes, static_shapes
from optvet.graph.types import infer_types
from optvet.graph.walk import attribute_of, graphs, is_onnx, qualified_name


def flops_of(model: ModelProto, shapes: Shapes | None = None) -> tuple[int, dict[str, int]]:
    """Operations of one inference, and the nodes that are not among them, by operator.

    Graphs inside ``If``, ``Loop`` and ``Scan`` are counted once each, and these three are always
    among the others; so are calls of functions.

    Args:
        model: Any model; of its weights only shapes are read, and the values of small ones.
        shapes: Shapes of graph inputs, in place of the declared ones.
    """
    # Without inference weights and declared values have shapes all the same.
    inferred = infer_types(_light(model, shapes or {}), data_prop=True) or model
    known = static_shapes(inferred)
    total, unknown = 0, Counter[str]()
    for graph in graphs(inferred.graph):
        for node in graph.node:
            count = _RULES.get(node.op_type) if is_onnx(node) else None
            try:
                if count is None:
                    raise KeyError(node.op_type)
                total += count(known, node)
            except (KeyError, IndexError):  # no rule, or a shape or an input is missing
                unknown[qualified_name(node.domain, node.op_type)] += 1
    return total, dict(unknown.most_common())


def _light(model: ModelProto, shapes: Shapes) -> ModelProto:
    light = fed_shapes(model, shapes)
    # Before IR version 4 inference takes the types of weights from the inputs only.
    light.ir_version = max(light.ir_version, 4)
    return light


# --- by operator ---------------------------------------------------------------------------------


def _per_output(factor: int) -> Rule:
    return lambda shapes, node: factor * math.prod(shapes[node.output[0]])


def _per_input(factor: int) -> Rule:
    return lambda shapes, node: factor * math.prod(shapes[node.input[0]])


def _twice(rule: Rule) -> Rule:
    return lambda shapes, node: 2 * rule(shapes, node)


def _count_quantized_conv(shapes: Shapes, node: NodeProto) -> int:
    return 2 * math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[3]][1:])


def _recurrent(shapes: Shapes, node: NodeProto) -> int:
    """Products with both weights, at each step; those of gates with each other are left out."""
    steps, batch = shapes[node.input[0]][:2]
    weights = sum(math.prod(shapes[name]) for name in node.input[1:3])
    return 2 * steps * batch * weights


def _pool(shapes: Shapes, node: NodeProto) -> int:
    window: int = math.prod(attribute_of(node, "kernel_shape", ()))
    return math.prod(shapes[node.output[0]]) * window


_FREE = (
    "Cast CastLike Concat Constant ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten "
    "Gather GatherElements GatherND Identity Pad Range Reshape ReverseSequence ScatterElements "
    "ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where"
).split()
_ELEMENTWISE = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil "
    "Celu Clip Cos Cosh DequantizeLinear Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual "
    "HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul "
    "Neg Not Or PRelu Pow QuantizeLinear Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh "
    "Softplus Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu Xor"
).split()
_REDUCING = (
    "ArgMax ArgMin CumSum GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
).split()
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_FREE, lambda shapes, node: 0),
    **dict.fromkeys(_ELEMENTWISE, _per_output(1)),
    **dict.fromkeys(_REDUCING, _per_input(1)),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    # One multiplication and one addition: what it scales by is constant in inference.
    "BatchNormalization": _per_output(2),
    # Largest value, difference, exponential, sum, quotient.
    **dict.fromkeys(("Softmax", "LogSoftmax"), _per_input(5)),
    # Mean, difference, square, mean of it, quotient, scale, bias.
    **dict.fromkeys(
        ("LayerNormalization", "InstanceNormalization", "GroupNormalization"), _per_input(7)
    ),
    **{operator: _twice(rule) for operator, rule in MACS.items()},
    "ConvInteger": _twice(MACS["Conv"]),
    "QLinearConv": _count_quantized_conv,
    **dict.fromkeys(("MatMulInteger", "QLinearMatMul"), _twice(MACS["MatMul"])),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
