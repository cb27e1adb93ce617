"""Which shapes of operands the standard allows; what it is tested by is in ``test_defined``."""

import numpy as np
import onnx.parser
import pytest

from optvet.engine.standard.shapes import describe_wrong_shape


def described(node: str, operands: dict[str, tuple[int, ...]], opset: int = 18) -> str:
    inputs = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in operands.items())
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => (float y) {{ {node} }}'
    feeds = {name: np.zeros(shape, np.float32) for name, shape in operands.items()}
    return describe_wrong_shape(onnx.parser.parse_model(text), feeds)


X3 = (2, 3, 4)


@pytest.mark.parametrize(
    ("node", "right", "wrong", "wanted"),
    [
        ("y = PRelu(x, s)", {"x": X3, "s": (3, 1)}, {"x": X3, "s": (3,)}, "broadcast to [2, 3, 4]"),
        (
            "y = BatchNormalization(x, s, s, s, s)",
            {"x": X3, "s": (3,)},
            {"x": X3, "s": (1,)},
            "the shape [3] as input 1, which has the shape [1]",
        ),
        ("y = Conv(x, w, b)", {"x": X3, "w": (5, 3, 2), "b": (5,)}, {"b": (3,)}, "the shape [5]"),
        (
            "y = Conv<group = 3>(x, w)",
            {"x": X3, "w": (6, 1, 2)},
            {"x": X3, "w": (6, 3, 2)},
            "the shape [6, 1, 2]",
        ),
        (
            "y = ConvTranspose<group = 3>(x, w, b)",
            {"x": X3, "w": (3, 2, 2), "b": (6,)},
            {"b": (2,)},
            "the shape [6]",
        ),
        (
            'y = LSTM<hidden_size = 5, direction = "bidirectional">(x, w, r)',
            {"x": X3, "w": (2, 20, 4), "r": (2, 20, 5)},
            {"r": (1, 20, 5)},
            "the shape [2, 20, 5]",
        ),
        (
            "y = RNN<hidden_size = 5, layout = 1>(x, w, r, , , h)",
            {"x": X3, "w": (1, 5, 4), "r": (1, 5, 5), "h": (2, 1, 5)},
            {"h": (1, 2, 5)},
            "the shape [2, 1, 5]",
        ),
        (
            "y = QLinearMatMul(a, s, z, b, s, z, t, u)",
            {"a": (2, 3), "b": (3, 2), "s": (), "z": (), "t": (1,), "u": (1,)},
            {"a": (2, 3), "b": (3, 2), "s": (), "z": (1,)},
            "the shape [] as input 2, which has the shape [1]",
        ),
        (
            "y = QLinearMatMul(a, s, s, b, s, s, t, t)",
            {"a": (2, 3), "b": (3, 2), "s": (), "t": ()},
            {"a": (2, 3), "b": (3, 2), "s": (), "t": (2,)},
            "the shape [] as input 6, which has the shape [2]",
        ),
        (
            "y = RotaryEmbedding(q, c, c)",
            {"q": (2, 3, 4, 6), "c": (2, 4, 3)},
            {"q": (2, 3, 4, 6), "c": (4, 3)},
            "the shape [2, 4, 3] as input 1",
        ),
        (
            "y = RotaryEmbedding<num_heads = 2>(q, c, c, i)",
            {"q": (2, 4, 12), "c": (9, 3), "i": (2, 4)},
            {"q": (2, 4, 12), "c": (9, 6), "i": (2, 4)},
            "the shape [9, 3] as input 1",
        ),
        (
            "y = MaxUnpool<kernel_shape = [2]>(x, i)",
            {"x": X3, "i": X3},
            {"x": X3, "i": (2, 3, 8)},
            "the shape [2, 3, 4]",
        ),
        ("y = GlobalAveragePool(x)", {"x": X3}, {"x": (2, 3)}, "some dimension more"),
        (
            'y = Einsum<equation = "bij,bjk->bik">(x, w)',
            {"x": X3, "w": (2, 4, 5)},
            {"w": (2, 1, 5)},
            "the shape [2, 4, 5]",
        ),
        (
            "y = ScatterND(x, i, u)",
            {"x": X3, "i": (5, 2), "u": (5, 4)},
            {"u": (5,)},
            "the shape [5, 4]",
        ),
        (
            "y = ScatterElements(x, i, u)",
            {"x": X3, "i": (1, 1, 1), "u": (1, 1, 1)},
            {"u": (1, 1, 2)},
            "the shape [1, 1, 1]",
        ),
        ("y = Slice(x, s, s, a)", {"x": X3, "s": (2,), "a": (2,)}, {"a": (1,)}, "the shape [2]"),
        ("y = Pad(x, p)", {"x": X3, "p": (6,)}, {"p": (4,)}, "the shape [6]"),
        ("y = Pad(x, p, , a)", {"x": X3, "p": (2,), "a": (1,)}, {"p": (6,)}, "the shape [2]"),
        ("y = Resize(x, , s)", {"x": X3, "s": (3,)}, {"s": (2,)}, "the shape [3]"),
        ("y = Resize(x, , s, n)", {"x": X3, "s": (0,), "n": (3,)}, {"n": (2,)}, "the shape [3]"),
        ("y = Gemm(a, b, c)", {"a": (2, 3), "b": (3, 4), "c": (2, 1)}, {"c": (3, 1)}, "to [2, 4]"),
        (
            "y = SoftmaxCrossEntropyLoss(x, t, w)",
            {"x": X3, "t": (2, 4), "w": (3,)},
            {"w": (4,)},
            "the shape [3]",
        ),
        (
            "y = LinearAttention<q_num_heads=4, kv_num_heads=2>(q, k, v, s, d, b)",
            {
                "q": (1, 3, 16),
                "k": (1, 3, 8),
                "v": (1, 3, 6),
                "s": (1, 2, 4, 3),
                "d": (1, 3, 8),
                "b": (1, 3, 1),
            },
            {"b": (1, 3, 4)},
            "the shape [1, 3, 2] as input 5",
        ),
        (
            "y = CausalConvWithState(x, w, , s)",
            {"x": (1, 2, 5), "w": (2, 1, 3), "s": (1, 2, 2)},
            {"s": (1, 2, 3)},
            "the shape [1, 2, 2] as input 3",
        ),
        (
            "y = Attention(q, k, v, m, , , n)",
            {"q": (2, 3, 4, 5), "k": (2, 1, 6, 5), "v": (2, 1, 6, 7), "m": (4, 6), "n": (2,)},
            {"n": (2, 1)},
            "the shape [2] as input 6",
        ),
        (
            "y = Attention<q_num_heads=3, kv_num_heads=1>(q, k, v, m, p, r)",
            {
                "q": (2, 4, 15),
                "k": (2, 6, 5),
                "v": (2, 6, 7),
                "m": (2, 1, 4, 8),
                "p": (2, 1, 2, 5),
                "r": (2, 1, 2, 7),
            },
            {"m": (2, 2, 4, 8)},
            "the shape [2, 3, 4, 8] as input 3",
        ),
        ("y = AffineGrid(t, s)", {"t": (1, 2, 3), "s": (4,)}, {"s": (5,)}, "the shape [1, 3, 4]"),
        (
            "y = CenterCropPad<axes=[0]>(x, s)",
            {"x": (2, 3), "s": (1,)},
            {"s": (2,)},
            "the shape [1]",
        ),
        (
            "y = ConvInteger(x, w, , z)",
            {"x": (1, 2, 5), "w": (3, 2, 1), "z": (3,)},
            {"z": (2,)},
            "the shape [3] as input 3",
        ),
        (
            "y = DeformConv(x, w, o)",
            {"x": (1, 2, 5, 5), "w": (3, 2, 2, 2), "o": (1, 8, 4, 4)},
            {"o": (1, 4, 4, 4)},
            "the shape [1, 8, 4, 4] as input 2",
        ),
        (
            "y = GridSample(x, g)",
            {"x": (1, 2, 5, 5), "g": (1, 3, 3, 2)},
            {"g": (2, 3, 3, 2)},
            "the shape [1, 3, 3, 2] as input 1",
        ),
        (
            "y = TensorScatter(p, u, i)",
            {"p": (2, 4, 3), "u": (2, 1, 3), "i": (2,)},
            {"i": (1,)},
            "the shape [2] as input 2",
        ),
        (
            "y = Concat<axis=-1>(a, b)",
            {"a": (1, 2), "b": (1, 0)},
            {"a": (0, 2)},
            "the shape [0, 0] as input 1",
        ),
        ("y = EyeLike(x)", {"x": (2, 3)}, {"x": (3,)}, "two dimensions as input 0"),
        ("y = STFT(x, s, w)", {"x": (1, 8, 1), "w": (4,)}, {"w": (1, 4)}, "one dimension"),
        ("y = SwiGLU(a, b)", {"a": (2, 3), "b": (2, 3)}, {"b": (2, 1)}, "the shape [2, 3]"),
        (
            "y = NonMaxSuppression(b, s)",
            {"b": (1, 5, 4), "s": (1, 2, 5)},
            {"b": (1, 5, 1)},
            "the shape [1, 5, 4] as input 0",
        ),
        (
            "y = NonMaxSuppression(b, s, , , t)",
            {"b": (1, 5, 4), "s": (1, 2, 5), "t": ()},
            {"t": (1, 2)},
            "the shape [1] as input 4",
        ),
        (
            "y = MatMulInteger(a, b, , z)",
            {"a": (1, 2), "b": (2, 3), "z": (3,)},
            {"z": (2, 1)},
            "the shape [3] as input 3",
        ),
        (
            "y = MatMulInteger(a, b, z)",
            {"a": (5, 4, 2), "b": (2, 3), "z": (5, 4, 1)},
            {"z": (5, 1, 2)},
            "the shape [4] as input 2",
        ),
        ("y = ReverseSequence(x, n)", {"x": X3, "n": (3,)}, {"n": (2,)}, "the shape [3]"),
        ("y = OneHot(x, d, v)", {"x": X3, "d": (), "v": (2,)}, {"v": (3,)}, "the shape [2]"),
    ],
)
def test_an_operand_of_another_shape_than_the_others_say_is_told(
    node: str, right: dict[str, tuple[int, ...]], wrong: dict[str, tuple[int, ...]], wanted: str
) -> None:
    assert described(node, right) == ""
    assert wanted in described(node, right | wrong)


def test_values_inside_of_the_graph_have_known_shapes_where_they_were_recorded() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y)'
        "{ a = Neg(x)  y = Clip(x, a) }"
    )
    feeds = {"x": np.zeros(2, np.float32)}
    assert describe_wrong_shape(model, feeds) == ""
    assert "a scalar" in describe_wrong_shape(model, feeds, {"a": feeds["x"]})


def test_minima_are_of_one_shape_before_operator_set_8() -> None:
    text = '<ir_version: 8, opset_import: ["" : %d]> g (float[1,2] x, float[1,1] u) => '
    text += "(float[1,2] y) { y = Min(x, u) }"
    feeds = {"x": np.zeros((1, 2), np.float32), "u": np.zeros((1, 1), np.float32)}
    assert describe_wrong_shape(onnx.parser.parse_model(text % 8), feeds) == ""
    assert "the shape [1, 2]" in describe_wrong_shape(onnx.parser.parse_model(text % 6), feeds)
