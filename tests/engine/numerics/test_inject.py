"""Steps behind operators show the noise that saturation hides, and change nothing else."""

import numpy as np
import onnx
import onnx.parser
import pytest

from optvet.engine.numerics.inject import injected_bytes

SATURATED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,64] x) => (float[1,64] y) <float low = {-30}> { z = Add(x, low)  y = Sigmoid(z) }
"""
SUM = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[64,%d] x, float[%d,8] w) => (float[64,8] y) { y = MatMul(x, w) }
"""
TURNS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, bool up) => (float[2,3] y)
{
    y = If(up) <
        then_branch = t () => (float[2,3] a) { a = Exp(x) },
        else_branch = e () => (float[2,3] b) { b = Neg(x) }
    >
}
"""
SHAPED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4,6] x) => (float[m,n] y)
{
    size = Shape(x)
    real = Cast<to = 1>(size)
    half = Mul(real, scale)
    shape = Cast<to = 7>(half)
    flat = Reshape(x, shape)
    y = Tanh(flat)
}
"""
HALF = """
<ir_version: 8, opset_import: ["" : 17]>
g (float16[1,64] x) => (float16[1,64] y) { y = Tanh(x) }
"""


def run(data: bytes, **feeds: np.ndarray) -> np.ndarray:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    (value,) = onnxruntime.InferenceSession(data, options).run(None, feeds)
    return np.asarray(value)


def both(text: str, **feeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    data = onnx.parser.parse_model(text).SerializeToString()
    return run(data, **feeds), run(injected_bytes(data, 1), **feeds)


def uneven(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    """Numbers near 1 of which no sum is exact."""
    return np.random.default_rng(0).uniform(0.9, 1.1, shape).astype(dtype)


MASKED = """
<ir_version: 8, opset_import: ["" : 17]>
g (%s[1,64] mask, float[1,64] x) => (float[1,64] y) <float one = {1}, float far = {-1e9}>
{
    given = Cast<to = 1>(mask)
    left = Sub(one, given)
    away = Mul(left, far)
    scores = Add(away, x)
    y = Softmax(scores)
}
"""
SCALED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,64] mask, float[1,64] x) => (float[1,64] y) <float tenth = {0.1}, float far = {-1e9}>
{
    given = Mul(mask, tenth)
    left = Sub(tenth, given)
    away = Mul(left, far)
    scores = Add(away, x)
    y = Softmax(scores)
}
"""
COUNTED = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,64] mask, float[1,64] x) => (float[1,64] y) <float all = {64}, float far = {-1e9}>
{
    given = ReduceSum<keepdims: int = 1>(mask)
    left = Sub(all, given)
    away = Mul(left, far)
    scores = Add(away, x)
    y = Softmax(scores)
}
"""


@pytest.mark.parametrize(
    "text", [MASKED % "int64", MASKED % "float", MASKED % "bool", SCALED, COUNTED]
)
def test_what_is_exact_on_these_values_is_not_moved(text: str) -> None:
    x = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    mask = np.ones((1, 64), np.int64)
    kind = "bool" if "bool[" in text else "int64" if "int64[" in text else "float32"
    plain, moved = both(text, x=x, mask=mask.astype(kind))
    assert 0 < float(np.abs(moved - plain).max()) < 1e-6


def test_a_product_that_is_rounded_is_moved() -> None:
    text = SATURATED.replace("y = Sigmoid(z)", "y = Mul(z, z)")
    x = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    plain, moved = both(text, x=x)
    assert np.mean(moved != plain) > 0.5


def test_what_a_saturated_function_can_resolve_is_seen() -> None:
    x = np.random.default_rng(0).normal(size=(1, 64)).astype(np.float32)
    plain, moved = both(SATURATED, x=x)
    spread = float(np.abs(plain - moved).max())
    assert float(plain.max()) < 1e-7
    assert 2.0**-25 < spread < 2.0**-20


def test_equal_seeds_move_alike_and_others_do_not() -> None:
    data = onnx.parser.parse_model(SATURATED).SerializeToString()
    x = np.zeros((1, 64), np.float32)
    assert injected_bytes(data, 3) == injected_bytes(data, 3)
    assert not np.array_equal(run(injected_bytes(data, 3), x=x), run(injected_bytes(data, 4), x=x))


def test_nodes_inside_a_branch_are_moved_too() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    up, moved = both(TURNS, x=x, up=np.array(True))
    assert 0 < float(np.abs(moved / up - 1).max()) < 1e-6
    down, same = both(TURNS, x=x, up=np.array(False))
    assert np.array_equal(down, same)  # what does not round is not moved


def test_what_becomes_a_shape_stays() -> None:
    text = SHAPED.replace("(float[m,n] y)", "(float[m,n] y) <float[2] scale = {0.5, 2}>")
    plain, moved = both(text, x=np.ones((4, 6), np.float32))
    assert plain.shape == moved.shape == (2, 12)


def test_infinity_and_nan_stay_what_they_are() -> None:
    x = np.array([[np.inf, -np.inf, np.nan, 1] * 16], np.float32)
    text = SATURATED.replace("y = Sigmoid(z)", "y = Mul(z, z)")
    plain, moved = both(text, x=x)
    assert np.array_equal(np.isfinite(plain), np.isfinite(moved))
    assert np.array_equal(np.isnan(plain), np.isnan(moved))


def test_half_precision_moves_by_its_own_roundoff() -> None:
    x = np.full((1, 64), 0.5, np.float16)
    plain, moved = both(HALF, x=x)
    spread = float(np.abs(plain.astype(float) - moved.astype(float)).max())
    assert 2.0**-13 < spread < 2.0**-8


@pytest.mark.parametrize(("terms", "factor"), [(16, 1.0), (4096, 16.0)])
def test_a_long_sum_may_be_further_off(terms: int, factor: float) -> None:
    model = onnx.parser.parse_model(SUM % (terms, terms))
    model.graph.input.pop()
    weight = np.ones((terms, 8), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    data = model.SerializeToString()
    x = uneven((64, terms), np.float32)
    moved = run(injected_bytes(data, 1), x=x) / run(data, x=x).astype(np.float64)
    largest = float(np.abs(moved - 1).max()) / 2.0**-23
    assert 0.7 * factor < largest < 1.6 * factor


@pytest.mark.parametrize("kind", ["float", "double", "float16"])
def test_a_reduction_may_be_off_as_a_sum_of_as_many_terms(kind: str) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    g ({kind}[64,n] x) => ({kind}[64,1] y) {{ y = ReduceMean<axes: ints = [1]>(x) }}
    """
    dtype = np.dtype({"float": "f4", "double": "f8", "float16": "f2"}[kind])
    plain, moved = both(text, x=uneven((64, 1024), dtype))
    largest = float(np.abs(moved / plain.astype("f8") - 1).max()) / float(np.finfo(dtype).eps)
    assert 0.7 * 8 < largest < 1.6 * 8
    x = uneven((64, 1), dtype)
    assert np.abs(both(text, x=x)[1] - x).max() < 3 * np.finfo(dtype).eps


@pytest.mark.parametrize("opset", [7, 21])
def test_a_normalization_over_a_picture_may_be_off_as_its_sums_are(opset: int) -> None:
    text = f"""
    <ir_version: 8, opset_import: ["" : {opset}]>
    g (float[1,2,h,w] x) => (float[1,2,h,w] y) <float[2] s = {{1, 1}}, float[2] b = {{0, 0}}>
    {{ y = InstanceNormalization(x, s, b) }}
    """
    x = np.random.default_rng(0).uniform(1, 3, size=(1, 2, 128, 128)).astype(np.float32)
    plain, moved = both(text, x=x)
    largest = float(np.abs(moved - plain).max()) / 2.0**-23
    assert 32 < largest < 32 * 8


def test_a_reduction_of_nothing_moves_nothing() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[n,4] x) => (float[n,1] y) { y = ReduceSum(x, last) }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "last"))
    assert run(injected_bytes(model.SerializeToString(), 1), x=np.ones((0, 4), "f")).size == 0
