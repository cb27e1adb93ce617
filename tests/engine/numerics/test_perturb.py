from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, numpy_helper, parser

from optvet.engine.numerics.perturb import jitter_bytes, jitter_feeds, jitter_model


def model_of(text: str, opset: int = 17, functions: str = "") -> onnx.ModelProto:
    domains = f'"" : {opset}, "local" : 1'
    return parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]> {text} {functions}")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def ulps_apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance of two arrays of equal signs, in steps between neighbouring floats."""
    integer = np.dtype(f"i{a.dtype.itemsize}")
    apart: np.ndarray = np.abs(a.view(integer).astype(object) - b.view(integer).astype(object))
    return apart


# --- Jitter -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_weights_move_by_at_most_one_ulp_and_most_of_them_move(dtype: type) -> None:
    weights: np.ndarray = rng(1).standard_normal(3000).astype(dtype)
    model = model_of("g (float[1] x) => (float[1] y) { y = Identity (x) }")
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    (tensor,) = jitter_model(model, rng()).graph.initializer
    moved = numpy_helper.to_array(tensor)
    assert moved.dtype == weights.dtype
    assert tensor.HasField("raw_data")
    steps = ulps_apart(moved, weights)
    assert set(steps.tolist()) == {0, 1}
    assert 0.6 < np.mean(steps != 0) < 0.73
    grew = np.abs(moved.astype(np.float64)) > np.abs(weights.astype(np.float64))
    assert 0.28 < np.mean(grew) < 0.39


@settings(deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        st.integers(2, 40),
    ),
    st.integers(0, 9),
)
def test_feeds_never_change_sign_or_class(x: np.ndarray, seed: int) -> None:
    moved = jitter_feeds({"x": x}, rng(seed))["x"]
    np.testing.assert_array_equal(np.isnan(moved), np.isnan(x))
    np.testing.assert_array_equal(np.isinf(moved), np.isinf(x))
    np.testing.assert_array_equal(moved == 0, x == 0)
    np.testing.assert_array_equal(np.signbit(moved), np.signbit(x))
    assert max(ulps_apart(moved, x)) <= 1


def test_zeros_infinities_nan_and_the_extremes_stay_finite() -> None:
    largest = np.finfo(np.float32).max
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, largest, 1e-45, 1], np.float32)
    for seed in range(20):
        moved = jitter_feeds({"x": x}, rng(seed))["x"]
        assert moved[:5].tobytes() == x[:5].tobytes()
        assert np.isfinite(moved[5])
        assert moved[6] > 0


def test_inputs_that_are_not_floats_are_left_alone() -> None:
    feeds = {
        "i": np.arange(5),
        "s": np.array(["a", "b"], object),
        "b": np.array([True, False]),
        "f": np.float32(0.1) * np.ones((), np.float32),
    }
    moved = jitter_feeds(feeds, rng())
    for name in "isb":
        assert moved[name] is feeds[name]
    assert moved["f"].shape == ()


def test_feeds_are_copied_and_their_order_does_not_matter() -> None:
    a, b = rng(1).standard_normal(50), rng(2).standard_normal(50)
    kept = a.copy()
    one, two = jitter_feeds({"a": a, "b": b}, rng()), jitter_feeds({"b": b, "a": a}, rng())
    np.testing.assert_array_equal(a, kept)
    for name in "ab":
        np.testing.assert_array_equal(one[name], two[name])


def test_equal_seeds_give_equal_models_and_others_do_not() -> None:
    weights = ", ".join(str(v) for v in rng().standard_normal(64).tolist())
    data = model_of(
        f"g (float[64] x) => (float[64] y) <float[64] w = {{{weights}}}> {{ y = Add (x, w) }}"
    ).SerializeToString()
    assert jitter_bytes(data, 1) == jitter_bytes(data, 1)
    assert jitter_bytes(data, 1) != jitter_bytes(data, 2)
    assert jitter_bytes(data, 1) != data
    unmoved = onnx.load_model_from_string(jitter_bytes(data, 1, ulps=0))
    assert unmoved == onnx.load_model_from_string(data)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_large_weights_are_moved_in_the_message_as_in_a_model(dtype: type[np.generic]) -> None:
    text = (
        "g (float[64] x) => (float[64] y) { c = Constant <value = float[1] {3}> () y = Add(x, c)}"
    )
    model = model_of(text)
    values = rng().standard_normal((3, 65_537)).astype(dtype)
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(values[:1, :5], "small"))
    model.graph.node[0].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(values))
    moved = onnx.load_model_from_string(jitter_bytes(model.SerializeToString(), 3, ulps=2))
    assert moved == jitter_model(model, np.random.default_rng(3), 2)
    assert (moved == model) == (dtype == np.int64)


def test_a_larger_step_moves_by_that_many_ulps() -> None:
    x = np.full(1000, 1.25, np.float32)
    steps = ulps_apart(jitter_feeds({"x": x}, rng(), ulps=4)["x"], x)
    assert set(steps.tolist()) == {0, 4}


def test_negative_ulps_are_refused() -> None:
    with pytest.raises(ValueError, match="ulps is -1"):
        jitter_feeds({}, rng(), ulps=-1)


def test_weights_outside_of_the_model_are_refused() -> None:
    model = model_of("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add (x, w) }")
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(ValueError, match="'w' is outside of the model; load it first"):
        jitter_model(model, rng())


def test_integers_and_round_scalars_stay() -> None:
    model = model_of("""
        g (float[1] x) => (float[1] y)
        <
            int64[3] i = {1, 2, 3}, float two = {2}, float[1] half = {0.5},
            float[1,1] many = {-255}, float tenth = {0.1}
        >
        { y = Identity (x) }
    """)
    before = initializers(model)
    seen = set()
    for seed in range(10):
        after = initializers(jitter_model(model, rng(seed)))
        seen |= {name for name in before if after[name].tobytes() != before[name].tobytes()}
    assert seen == {"tenth"}


@pytest.mark.parametrize(
    "use",
    [
        "y = Pow (x, w)",
        "y = Clip (x, w)",
        "y = Resize (x, , w)",
        "y = Upsample (x, w)",
        "y = QuantizeLinear (x, w)",
        "y = Pad (x, p, w)",
        "v = Identity (w) y = Resize (x, , v)",
        "v = Cast <to = 7> (w) y = Reshape (x, v)",
        "s = Shape (x) f = Cast <to = 1> (s) v = Mul (f, w) i = Cast <to = 7> (v)"
        " y = Resize (x, , , i)",
    ],
)
def test_numbers_that_are_part_of_the_meaning_stay(use: str) -> None:
    model = model_of(f"""
        g (float[a,b,c] x) => (float[d,e,f] y)
        <float[3] w = {{1.1, 1.2, 1.3}}, float[3] free = {{1.1, 1.2, 1.3}}>
        {{ {use} z = Add (x, free) }}
    """)
    after = initializers(jitter_model(model, rng(3)))
    np.testing.assert_array_equal(after["w"], initializers(model)["w"])
    assert (after["free"] != after["w"]).any()


def test_a_measured_quantization_scale_does_not_protect_the_network() -> None:
    model = model_of("""
        g (float[3] x) => (uint8[3] y) <float[3] w = {1.1, 1.2, 1.3}, uint8 z = {0}>
        {
            a = Mul (x, w)
            s = ReduceMax <keepdims = 0> (a)
            y = QuantizeLinear (a, s, z)
        }
    """)
    assert (initializers(jitter_model(model, rng(3)))["w"] != initializers(model)["w"]).any()


def test_constants_in_subgraphs_and_functions_move() -> None:
    model = model_of(
        """
        g (bool c, float[3] x) => (float[3] y)
        {
            y = If (c) <
                then_branch = t () => (float[3] p) {
                    w = Constant <value = float[3] {1.1, 1.2, 1.3}> ()
                    p = local.scaled (w)
                },
                else_branch = e () => (float[3] q) {
                    q = Constant <value_floats = [1.1, 1.2, 1.3]> ()
                }
            >
        }
        """,
        functions="""
        <domain: "local", opset_import: ["" : 17]>
        scaled (a) => (b) { k = Constant <value_float = 0.1> () b = Mul (a, k) }
        """,
    )
    moved = [False] * 3
    for seed in range(8):
        after = jitter_model(model, rng(seed))
        for index, (a, b) in enumerate(
            [
                (after.graph.node[0].attribute[0], model.graph.node[0].attribute[0]),
                (after.graph.node[0].attribute[1], model.graph.node[0].attribute[1]),
                (after.functions[0].node[0], model.functions[0].node[0]),
            ]
        ):
            moved[index] |= a != b
    assert moved == [True] * 3


def test_what_a_function_uses_as_an_exponent_stays() -> None:
    model = model_of(
        "g (float[3] x) => (float[3] y) <float[3] w = {1.1, 1.2, 1.3}> { y = local.raised (x, w) }",
        functions="""
        <domain: "local", opset_import: ["" : 17]>
        raised (a, b) => (c) { c = Pow (a, b) }
        """,
    )
    np.testing.assert_array_equal(
        initializers(jitter_model(model, rng(3)))["w"], initializers(model)["w"]
    )


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_typed_data_stays_typed(kind: int) -> None:
    values = rng().standard_normal(20).tolist()
    model = model_of("g (float[1] x) => (float[1] y) { y = Identity (x) }")
    model.graph.initializer.append(onnx.helper.make_tensor("w", kind, [20], values))
    (tensor,) = jitter_model(model, rng()).graph.initializer
    assert not tensor.HasField("raw_data")
    before, after = initializers(model)["w"], numpy_helper.to_array(tensor)
    assert set(ulps_apart(after, before).tolist()) == {0, 1}


def test_millions_of_weights_take_well_under_a_second() -> None:
    model = model_of("g (float[1] x) => (float[1] y) { y = Identity (x) }")
    weights = np.full(5_000_000, 1.1, np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    start = time.process_time()
    jitter_model(model, rng())
    assert time.process_time() - start < 1
