from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from optvet.engine.numerics.float64 import NotPromotable, evaluate, promote
from optvet.engine.numerics.float64 import windows as sliding


def model_of(text: str, opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def single(
    op: str, inputs: Mapping[str, np.ndarray], opset: int = 17, outputs: int = 1, **attributes: Any
) -> onnx.ModelProto:
    """A model of one node with float32 inputs and outputs."""
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, list(inputs), names, **attributes)
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
    graph = helper.make_graph(
        [node],
        "single",
        [helper.make_tensor_value_info(n, kinds[n], x.shape) for n, x in inputs.items()],
        [helper.make_tensor_value_info("y0", TensorProto.FLOAT, None)]
        + [helper.make_tensor_value_info(n, TensorProto.INT64, None) for n in names[1:]],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def ort_outputs(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- Promotion ----------------------------------------------------------------------------------


def test_every_float_becomes_a_double_and_names_stay() -> None:
    model = model_of("""
        g (float[2] x, int64[2] i) => (float[2] y, int64[2] j)
        <float[2] w = {1.5, 2.5}>
        {
            c = Constant <value_float = 0.5> ()
            a = Mul (x, w)
            y = Add (a, c)
            j = Identity (i)
        }
    """)
    promoted = promote(model)
    onnx.checker.check_model(promoted, full_check=True)
    assert [v.name for v in promoted.graph.input] == ["x", "i"]
    assert [v.name for v in promoted.graph.output] == ["y", "j"]
    kinds = [v.type.tensor_type.elem_type for v in (*promoted.graph.input, *promoted.graph.output)]
    assert kinds == [TensorProto.DOUBLE, TensorProto.INT64] * 2
    assert promoted.graph.initializer[0].data_type == TensorProto.DOUBLE
    assert model.graph.initializer[0].data_type == TensorProto.FLOAT


def test_a_sum_keeps_what_float32_would_drop() -> None:
    model = model_of("g (float[1] x) => (float[1] y) <float[1] w = {1}> { y = Add (x, w) }")
    outputs = evaluate(model, {"x": np.array([2.0**-30], np.float32)})
    assert outputs["y"].dtype == np.float64
    assert outputs["y"].tolist() == [1 + 2.0**-30]


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        ("c = Constant <value = float[2] {1, 2}> ()", [1, 2]),
        ("c = Constant <value_floats = [1.0, 2.0]> ()", [1, 2]),
        ("s = Constant <value_ints = [2]> () c = ConstantOfShape (s)", [0, 0]),
        (
            "s = Constant <value_ints = [2]> () c = ConstantOfShape <value = float[1] {3}> (s)",
            [3, 3],
        ),
    ],
)
def test_constants_of_all_spellings_are_doubles(constant: str, expected: list[float]) -> None:
    model = model_of(f"g (float[2] x) => (float[2] y) {{ {constant} y = Add (x, c) }}")
    feeds = {"x": np.zeros(2, np.float32)}
    assert evaluate(model, feeds)["y"].tolist() == expected


def test_sparse_initializers_are_doubles() -> None:
    model = model_of("g (float[3] x) => (float[3] y) { y = Identity (x) }")
    values = numpy_helper.from_array(np.array([2.5], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1], np.int64), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    assert promote(model).graph.sparse_initializer[0].values.data_type == TensorProto.DOUBLE


def test_a_half_model_is_computed_without_half_rounding() -> None:
    model = model_of("""
        g (float16[1] x) => (float16[1] y)
        {
            f = Cast <to = 1> (x)
            h = Cast <to = 10> (f)
            y = Add (h, h)
        }
    """)
    outputs = evaluate(model, {"x": np.array([0.1], np.float16)})
    assert outputs["y"].tolist() == [2 * float(np.float16(0.1))]


def test_a_cast_to_half_in_a_float_model_still_rounds() -> None:
    model = model_of("""
        g (float[1] x) => (float[1] y)
        { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }
    """)
    outputs = evaluate(model, {"x": np.array([1 + 2.0**-12], np.float32)})
    assert outputs["y"].tolist() == [1.0]


def test_casts_surround_inputs_that_have_no_double_version() -> None:
    model = model_of("""
        g (float[1,1,2] x) => (float[1,1,4] y)
        <float[3] scales = {1, 1, 2}>
        { y = Resize <mode = "nearest"> (x, , scales) }
    """)
    promoted = promote(model)
    onnx.checker.check_model(promoted, full_check=True)
    assert [node.op_type for node in promoted.graph.node] == ["Cast", "Resize"]
    feeds = {"x": np.array([[[1, 2]]], np.float32)}
    assert evaluate(model, feeds)["y"].tolist() == [[[1, 1, 2, 2]]]


def test_quantization_keeps_its_grid_and_dequantization_is_exact() -> None:
    model = model_of("""
        g (float[3] x) => (float[3] y)
        <float s = {0.1}, uint8 z = {10}>
        { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }
    """)
    outputs = evaluate(model, {"x": np.array([0.31, -5, 100], np.float32)})
    step = float(np.float32(0.1))
    assert outputs["y"].tolist() == [3 * step, -10 * step, 245 * step]


def test_initializers_that_are_also_inputs_are_promoted() -> None:
    model = model_of("g (float[1] x, float[1] w) => (float[1] y) { y = Add (x, w) }")
    model.ir_version = 3
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    assert evaluate(model, {"x": np.ones(1, np.float32)})["y"].tolist() == [2]


def test_model_local_functions_are_promoted_too() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[1] x) => (float[1] y) { y = local.third (x) }
        <domain: "local", opset_import: ["" : 17]>
        third (a) => (b) { c = Constant <value_float = 3.0> () b = Div (a, c) }
    """)
    assert evaluate(model, {"x": np.ones(1, np.float32)})["y"].tolist() == [1 / 3]


@pytest.mark.parametrize("taken", [True, False])
def test_branches_of_if_are_promoted(taken: bool) -> None:
    model = model_of("""
        g (bool c, float[1] x) => (float[1] y)
        {
            y = If (c) <
                then_branch = t () => (float[1] p) {
                    three = Constant <value = float[1] {3}> ()
                    p = Div (x, three)
                },
                else_branch = e () => (float[1] q) { q = Identity (x) }
            >
        }
    """)
    outputs = evaluate(model, {"c": np.array(taken), "x": np.ones(1, np.float32)})
    assert outputs["y"].tolist() == [1 / 3 if taken else 1.0]


@pytest.mark.parametrize("condition", ["c", ""])
def test_a_loop_carries_doubles_and_stacks_what_it_scans(condition: str) -> None:
    model = model_of(f"""
        g (int64 n, bool c, float[2] x) => (float[2] last, float[k, 2] all)
        {{
            last, all = Loop (n, {condition}, x) <
                body = b (int64 i, bool going, float[2] a) => (bool on, float[2] p, float[2] q)
                {{
                    on = Identity (going)
                    three = Constant <value = float[1] {{3}}> ()
                    p = Div (a, three)
                    q = Identity (a)
                }}
            >
        }}
    """)
    feeds = {"n": np.array(2), "c": np.array(True), "x": np.array([1, 2], np.float32)}
    outputs = evaluate(model, feeds)
    assert outputs["last"].tolist() == [1 / 3 / 3, 2 / 3 / 3]
    assert outputs["all"].tolist() == [[1, 2], [1 / 3, 2 / 3]]


def test_integer_outputs_keep_their_type() -> None:
    model = model_of("g (float[3] x) => (int64[1] y) { y = ArgMax (x) }")
    outputs = evaluate(model, {"x": np.array([1, 3, 2], np.float32)})
    assert outputs["y"].dtype == np.int64
    assert outputs["y"].tolist() == [1]


def test_nan_and_overflow_are_results_and_not_errors() -> None:
    model = model_of("g (float[3] x) => (float[3] y) { l = Log (x) y = Exp (l) }")
    outputs = evaluate(model, {"x": np.array([-1, 0, 1], np.float32)})
    np.testing.assert_array_equal(outputs["y"], [np.nan, 0, 1])


def test_an_unknown_domain_is_refused_with_its_name() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
        g (float[1] x) => (float[1] y) { y = acme.Secret (x) }
    """)
    with pytest.raises(NotPromotable, match=r"Secret.*domain 'acme'"):
        promote(model)


def test_recurrent_attributes_that_the_evaluator_ignores_are_refused() -> None:
    model = model_of("""
        g (float[1,1,1] x, float[1,4,1] w, float[1,4,1] r) => (float[1,1,1,1] y)
        { y = LSTM <hidden_size = 1, clip = 0.5> (x, w, r) }
    """)
    with pytest.raises(NotPromotable, match="ignores its clip"):
        promote(model)


def test_broadcasting_along_an_axis_before_opset_7_is_refused() -> None:
    text = """
        g (float[2,3] x, float[2] w) => (float[2,3] y)
        { y = Add <broadcast = 1, axis = 0> (x, w) }
    """
    with pytest.raises(NotPromotable, match="broadcasts along an axis"):
        promote(model_of(text, opset=6))


def test_external_data_is_refused() -> None:
    model = model_of("g (float[1] x) => (float[1] y) <float[1] w = {1}> { y = Add (x, w) }")
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(NotPromotable, match="'w' is not in the model"):
        promote(model)


def test_a_failure_of_the_evaluator_is_named() -> None:
    model = model_of("g (float[n] x, float[m] z) => (float[k] y) { y = Add (x, z) }")
    feeds = {"x": np.zeros(2, np.float32), "z": np.zeros(3, np.float32)}
    with pytest.raises(NotPromotable, match="the reference evaluator fails"):
        evaluate(model, feeds)


# --- Operators against values worked out by hand ------------------------------------------------


@pytest.mark.parametrize("opset", [7, 9, 13, 14, 15])
def test_batch_normalization_uses_the_stored_statistics(opset: int) -> None:
    inputs = {
        "x": np.array([[[1.0, 5.0]]], np.float32),
        "scale": np.array([2], np.float32),
        "bias": np.array([1], np.float32),
        "mean": np.array([3], np.float32),
        "variance": np.array([4], np.float32),
    }
    model = single("BatchNormalization", inputs, opset=opset, epsilon=0.0)
    assert evaluate(model, inputs)["y0"].tolist() == [[[-1, 3]]]


def test_erf_and_gelu_are_precise_beyond_float32() -> None:
    x = np.array([-3.0, 0.5], np.float32)
    erf = evaluate(single("Erf", {"x": x}), {"x": x})["y0"]
    np.testing.assert_allclose(erf, [math.erf(-3), math.erf(0.5)], rtol=1e-15)
    gelu = evaluate(single("Gelu", {"x": x}, opset=20), {"x": x})["y0"]
    expected = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in (-3, 0.5)]
    np.testing.assert_allclose(gelu, expected, rtol=1e-14)


def test_softmax_before_opset_13_runs_over_all_later_axes() -> None:
    x = np.zeros((1, 2, 2), np.float32)
    assert (
        evaluate(single("Softmax", {"x": x}, opset=12), {"x": x})["y0"].ravel().tolist()
        == [0.25] * 4
    )
    assert (
        evaluate(single("Softmax", {"x": x}, opset=13), {"x": x})["y0"].ravel().tolist()
        == [0.5] * 4
    )


def test_lrn_sums_the_squares_of_neighbouring_channels() -> None:
    x = np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1)
    model = single("LRN", {"x": x}, size=3, alpha=3.0, beta=1.0, bias=1.0)
    expected = [1 / (1 + 5), 2 / (1 + 14), 3 / (1 + 13)]
    np.testing.assert_allclose(evaluate(model, {"x": x})["y0"].ravel(), expected, rtol=1e-15)


def test_average_pool_leaves_padding_out_unless_told() -> None:
    x = np.array([[[2.0, 4.0]]], np.float32)
    common: dict[str, Any] = {"kernel_shape": [2], "pads": [1, 1]}
    plain = single("AveragePool", {"x": x}, **common)
    padded = single("AveragePool", {"x": x}, count_include_pad=1, **common)
    assert evaluate(plain, {"x": x})["y0"].tolist() == [[[2, 3, 4]]]
    assert evaluate(padded, {"x": x})["y0"].tolist() == [[[1, 3, 2]]]


@pytest.mark.parametrize(("order", "place"), [(0, 3), (1, 1)])
def test_max_pool_tells_where_the_maximum_was(order: int, place: int) -> None:
    x = np.array([[[[0, 1, 2], [5, 3, 4]]]], np.float32)
    model = single("MaxPool", {"x": x}, outputs=2, kernel_shape=[2, 3], storage_order=order)
    outputs = evaluate(model, {"x": x})
    assert outputs["y0"].tolist() == [[[[5]]]]
    assert outputs["y1"].tolist() == [[[[place]]]]


def test_upsampling_of_opset_9_interpolates_from_the_left_edge() -> None:
    inputs = {
        "x": np.array([[[[0, 2]]]], np.float32),
        "scales": np.array([1, 1, 1, 2], np.float32),
    }
    model = single("Upsample", inputs, opset=9, mode="linear")
    assert evaluate(model, inputs)["y0"].tolist() == [[[[0, 1, 2, 2]]]]


def test_global_pools_keep_the_rank_of_sequences() -> None:
    x = np.array([[[1, 5]]], np.float32)
    assert evaluate(single("GlobalMaxPool", {"x": x}), {"x": x})["y0"].tolist() == [[[5]]]
    assert evaluate(single("GlobalAveragePool", {"x": x}), {"x": x})["y0"].tolist() == [[[3]]]


def test_scatter_of_opset_9_writes_elements() -> None:
    inputs = {
        "x": np.zeros(3, np.float32),
        "i": np.array([2]),
        "u": np.array([7], np.float32),
    }
    assert evaluate(single("Scatter", inputs, opset=9), inputs)["y0"].tolist() == [0, 0, 7]


@pytest.mark.parametrize("depth", [3.0, 3.9, [3.9]])
@pytest.mark.parametrize("places", [[0, -1], [-0.2, -1.2]])
def test_the_whole_parts_of_a_depth_and_of_places_count(
    depth: float | list[float], places: list[float]
) -> None:
    values = np.array([2, 5], np.float32)
    feeds = {"i": np.array(places, np.float32), "d": np.array(depth, np.float32), "v": values}
    model = single("OneHot", feeds)
    (expected,) = ort_outputs(model, feeds)
    assert evaluate(model, feeds)["y0"].tolist() == expected.tolist() == [[5, 2, 2], [2, 2, 5]]


def test_fused_convolutions_of_onnxruntime_are_known() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[1,1,3] x, float[1,1,1] w) => (float[1,1,3] y)
        { y = com.microsoft.FusedConv <activation = "Relu"> (x, w) }
    """)
    feeds = {"x": np.array([[[-1, 0, 2]]], np.float32), "w": np.full((1, 1, 1), 3, np.float32)}
    assert evaluate(model, feeds)["y"].tolist() == [[[0, 0, 6]]]
    agrees_with_ort(model, feeds)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("Affine <alpha = 2.0, beta = 1.0> (x)", [[1, 3, 5], [7, 9, 11]]),
        ("ImageScaler <scale = 2.0, bias = [1.0]> (x)", [[1, 3, 5], [7, 9, 11]]),
        ("Crop <border = [1, 0, 0, 1]> (x)", [[1, 2]]),
    ],
)
def test_experimental_image_operators_are_known(node: str, expected: list[list[float]]) -> None:
    model = model_of(f"g (float[1,1,2,3] x) => (float[1,1,a,b] y) {{ y = {node} }}", opset=7)
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)}
    assert evaluate(model, feeds)["y"].tolist() == [[expected]]


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_operators_agree_with_onnxruntime(op: str, direction: str) -> None:
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 1 + (direction == "bidirectional")
    inputs = {
        "x": normal(0, 3, 2, 4),
        "w": normal(1, ways, 5 * gates, 4),
        "r": normal(2, ways, 5 * gates, 5),
        "b": normal(3, ways, 10 * gates),
    }
    agrees_with_ort(single(op, inputs, hidden_size=5, direction=direction), inputs)


STUMPS = """
    nodes_treeids = [0, 0, 0, 1, 1, 1], nodes_nodeids = [0, 1, 2, 0, 1, 2],
    nodes_featureids = [0, 0, 0, 1, 0, 0], nodes_values = [0.5, 0.0, 0.0, 2.0, 0.0, 0.0],
    nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"],
    nodes_truenodeids = [1, 0, 0, 1, 0, 0], nodes_falsenodeids = [2, 0, 0, 2, 0, 0]
"""


def ml_model_of(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]> {text}')


def test_regression_trees_add_up_their_leaves_in_double() -> None:
    model = ml_model_of(f"""
        g (float[n,2] x) => (float[n,1] y)
        {{
            y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1, base_values = [100.0], {STUMPS},
                target_treeids = [0, 0, 1, 1], target_nodeids = [1, 2, 1, 2],
                target_ids = [0, 0, 0, 0], target_weights = [1.0, 2.0, 0.1, 20.0]> (x)
        }}
    """)
    feeds = {"x": np.array([[0.5, 2], [0.6, 1]], np.float32)}
    small = float(np.float32(0.1))
    assert evaluate(model, feeds)["y"].tolist() == [[121], [102 + small]]
    agrees_with_ort(model, feeds)


def test_classification_trees_vote_for_a_label() -> None:
    model = ml_model_of(f"""
        g (float[n,2] x) => (string[n] label, float[n,3] y)
        {{
            label, y = ai.onnx.ml.TreeEnsembleClassifier <
                classlabels_strings = ["a", "b", "c"], {STUMPS},
                class_treeids = [0, 0, 1, 1], class_nodeids = [1, 2, 1, 2],
                class_ids = [0, 1, 0, 1], class_weights = [1.0, 3.0, 2.0, 0.5]> (x)
        }}
    """)
    feeds = {"x": np.array([[0, 0], [1, 2], [1, 0]], np.float32)}
    outputs = evaluate(model, feeds)
    assert outputs["label"].tolist() == ["a", "b", "b"]
    assert outputs["y"].tolist() == [[3, 0, 0], [0, 3.5, 0], [2, 3, 0]]
    assert ort_outputs(model, feeds)[1].tolist() == outputs["y"].tolist()


# --- Operators against onnxruntime and the evaluator's own --------------------------------------


@st.composite
def windows(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    per_axis = st.lists
    kernel = draw(per_axis(st.integers(1, 3), min_size=rank, max_size=rank))
    dilations = draw(per_axis(st.integers(1, 2), min_size=rank, max_size=rank))
    pads = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": draw(per_axis(st.integers(1, 3), min_size=rank, max_size=rank)),
    }
    padding = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    # Pools of onnxruntime pad by negative amounts there, or refuse to.
    gaps = any(s > k for s, k in zip(attributes["strides"], kernel, strict=True))
    assume(not (gaps and padding.startswith("SAME")))
    if padding == "NOTSET":
        attributes |= {"pads": pads, "dilations": dilations}
    else:
        attributes["auto_pad"] = padding
    return attributes


def spatial(attributes: Mapping[str, Any], extra: int) -> list[int]:
    dilations = attributes.get("dilations", itertools.repeat(1))
    kernel = attributes["kernel_shape"]
    return [
        (k - 1) * d + 1 + extra + i for i, (k, d) in enumerate(zip(kernel, dilations, strict=False))
    ]


def agrees_with_ort(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    for ours, theirs in zip(
        evaluate(model, feeds).values(), ort_outputs(model, feeds), strict=True
    ):
        assert ours.shape == theirs.shape
        # What cancels is off by a rounding of what it was before.
        scale = np.max(np.abs(theirs), initial=1.0) if theirs.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6 * scale)


@settings(deadline=None, max_examples=60)
@given(windows(), st.integers(0, 4), st.sampled_from([(1, 2, 3), (2, 1, 2), (3, 1, 1), (4, 1, 1)]))
def test_conv_agrees_with_onnxruntime(
    attributes: dict[str, Any], extra: int, channels: tuple[int, int, int]
) -> None:
    group, within, out = channels
    inputs = {
        "x": normal(0, 2, group * within, *spatial(attributes, extra)),
        "w": normal(1, group * out, within, *attributes["kernel_shape"]),
        "b": normal(2, group * out),
    }
    agrees_with_ort(single("Conv", inputs, group=group, **attributes), inputs)


@settings(deadline=None, max_examples=60)
@given(windows(), st.integers(0, 2), st.sampled_from([(1, 2, 3), (2, 1, 2), (3, 1, 1)]))
def test_conv_transpose_agrees_with_onnxruntime(
    attributes: dict[str, Any], extra: int, channels: tuple[int, int, int]
) -> None:
    assume(not attributes.get("auto_pad", "NOTSET").startswith("SAME"))
    group, within, out = channels
    inputs = {
        "x": normal(0, 2, group * within, *spatial(attributes, extra)),
        "w": normal(1, group * within, out, *attributes["kernel_shape"]),
        "b": normal(2, group * out),
    }
    agrees_with_ort(single("ConvTranspose", inputs, group=group, **attributes), inputs)


@settings(deadline=None, max_examples=60)
@given(windows(), st.integers(0, 4), st.booleans())
def test_max_pool_agrees_with_onnxruntime(
    attributes: dict[str, Any], extra: int, ceil: bool
) -> None:
    inputs = {"x": normal(0, 2, 2, *spatial(attributes, extra))}
    attributes["ceil_mode"] = int(ceil)
    agrees_with_ort(single("MaxPool", inputs, **attributes), inputs)


@settings(deadline=None, max_examples=60)
@given(windows(), st.integers(0, 4), st.booleans(), st.booleans())
def test_average_pool_agrees_with_onnxruntime(
    attributes: dict[str, Any], extra: int, ceil: bool, counts: bool
) -> None:
    attributes |= {"ceil_mode": int(ceil), "count_include_pad": int(counts)}
    inputs = {"x": normal(0, 2, 2, *spatial(attributes, extra))}
    agrees_with_ort(single("AveragePool", inputs, opset=19, **attributes), inputs)


@pytest.mark.parametrize(
    ("op", "opset", "attributes"),
    [
        ("LRN", 17, {"size": 3, "alpha": 0.1}),
        ("Erf", 17, {}),
        ("Gelu", 20, {}),
        ("Gelu", 20, {"approximate": "tanh"}),
        ("GlobalAveragePool", 17, {}),
        ("GlobalMaxPool", 17, {}),
        ("MeanVarianceNormalization", 17, {}),
        ("Softmax", 11, {}),
        ("Softmax", 11, {"axis": -1}),
        ("LogSoftmax", 11, {"axis": 2}),
        ("Hardmax", 11, {"axis": 2}),
        ("ConvTranspose", 17, {"strides": [2, 2], "output_shape": [9, 11]}),
        ("ConvTranspose", 17, {"strides": [3, 2], "output_padding": [2, 1]}),
        ("ConvTranspose", 17, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("ConvTranspose", 17, {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ],
)
def test_operator_agrees_with_onnxruntime(op: str, opset: int, attributes: dict[str, Any]) -> None:
    inputs = {"x": normal(0, 2, 6, 4, 5)}
    if op == "ConvTranspose":
        inputs["w"] = normal(1, 6, 2, 3, 3)
    agrees_with_ort(single(op, inputs, opset=opset, **attributes), inputs)


@pytest.mark.parametrize(("opset", "parameters"), [(18, 2), (21, 6)])
def test_group_normalization_is_computed_in_double(opset: int, parameters: int) -> None:
    inputs = {"x": normal(0, 2, 6, 3), "s": normal(1, parameters), "b": normal(2, parameters)}
    model = single("GroupNormalization", inputs, opset=opset, num_groups=2, epsilon=0.0)
    x, s, b = (value.astype(np.float64) for value in inputs.values())
    groups = x.reshape(2, 2, 9)
    normalized = (groups - groups.mean(2, keepdims=True)) / groups.std(2, keepdims=True)
    wide = [np.repeat(p, 6 // parameters).reshape(6, 1) for p in (s, b)]
    expected = normalized.reshape(2, 6, 3) * wide[0] + wide[1]
    np.testing.assert_allclose(evaluate(model, inputs)["y0"], expected, rtol=1e-12)


@settings(deadline=None, max_examples=25)
@given(windows(), st.integers(0, 3), st.sampled_from([(1, 2, 3), (2, 1, 2), (3, 1, 1)]))
def test_conv_agrees_with_the_stock_operator(
    attributes: dict[str, Any], extra: int, channels: tuple[int, int, int]
) -> None:
    # The evaluator pads unlike the standard where the stride does not divide the input.
    assume(not attributes.get("auto_pad", "NOTSET").startswith("SAME"))
    group, within, out = channels
    inputs = {
        "x": normal(0, 1, group * within, *spatial(attributes, extra)),
        "w": normal(1, group * out, within, *attributes["kernel_shape"]),
    }
    agrees_with_stock(single("Conv", inputs, group=group, **attributes), inputs)


@settings(deadline=None, max_examples=25)
@given(windows(), st.integers(0, 3))
def test_max_pool_agrees_with_the_stock_operator(attributes: dict[str, Any], extra: int) -> None:
    # The evaluator gets the shape wrong where padding differs between the ends of an axis.
    attributes = {k: v for k, v in attributes.items() if k not in ("auto_pad", "pads")}
    inputs = {"x": normal(0, 1, 2, *spatial(attributes, extra))}
    agrees_with_stock(single("MaxPool", inputs, **attributes), inputs)


def agrees_with_stock(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    doubles = {name: x.astype(np.float64) for name, x in feeds.items()}
    (stock,) = ReferenceEvaluator(promote(model)).run(None, doubles)
    expected = np.asarray(stock)
    np.testing.assert_allclose(evaluate(model, feeds)["y0"], expected, rtol=1e-12, atol=1e-12)


def test_a_long_convolution_is_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal(0, 1, 2, 9, 9).astype(np.float64), normal(1, 3, 2, 3, 3).astype(np.float64)
    whole = sliding.conv(x, w)
    monkeypatch.setattr(sliding, "_PATCH_BYTES", 1)
    np.testing.assert_allclose(sliding.conv(x, w), whole, rtol=1e-13)
