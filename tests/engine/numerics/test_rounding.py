from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

from optvet.engine.numerics.rounding import can_round, discontinuous, random_ops


def model_of(text: str, opset: int = 17, functions: str = "") -> onnx.ModelProto:
    domains = f'"" : {opset}, "local" : 1'
    return parser.parse_model(f"<ir_version: 8, opset_import: [{domains}]> {text} {functions}")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_layout_selection_and_comparison_cannot_round() -> None:
    model = model_of("""
        g (float[2,3] x) => (float[3,2] t, float[2,3] r, bool[2,3] b, int64[2] s, float[2,3] w)
        <float[2,3] k = {1, 2, 3, 4, 5, 6}>
        {
            t = Transpose (x)
            n = Neg (x)
            r = Relu (n)
            b = Greater (x, k)
            s = Shape (x)
            w = Where (b, x, k)
        }
    """)
    assert can_round(model) == frozenset()
    assert discontinuous(model) == frozenset()


def test_float_arithmetic_rounds_and_integer_arithmetic_does_not() -> None:
    model = model_of("""
        g (float[2] x, int64[2] i) => (float[2] a, int64[2] b, float[2] c, float[2] d)
        {
            a = Add (x, x)
            b = Add (i, i)
            c = Identity (x)
            d = Relu (a)
        }
    """)
    assert can_round(model) == {"a", "d"}


def test_what_is_not_known_counts_as_rounding() -> None:
    model = model_of("""
        g (float[2] x) => (float[2] y, float[2] z) { y = local.Secret (x) z = Identity (x) }
    """)
    assert can_round(model) == {"y"}


@pytest.mark.parametrize(
    ("source", "target", "rounds"),
    [
        ("float16", 1, False),
        ("float", 11, False),
        ("float", 10, True),
        ("double", 1, True),
        ("float16", 16, True),
        ("bfloat16", 10, True),
        ("int8", 10, False),
        ("int4", 10, False),
        ("uint2", 16, False),
        ("float", 22, False),
        ("int32", 1, True),
        ("int64", 6, False),
        ("float", 7, False),
        ("bool", 1, False),
    ],
)
def test_a_cast_rounds_where_the_target_is_too_narrow(
    source: str, target: int, rounds: bool
) -> None:
    name = TensorProto.DataType.Name(target).lower()
    text = f"g ({source}[2] x) => ({name}[2] y) {{ y = Cast <to = {target}> (x) }}"
    assert can_round(model_of(text)) == ({"y"} if rounds else frozenset())


def test_a_decision_on_a_rounded_value_is_discontinuous() -> None:
    model = model_of("""
        g (float[4] x) => (int64[1] a, int64[1] b, float[4] c, int64[4] d, float[2] v, int64[2] i)
        <int64[1] k = {2}>
        {
            e = Exp (x)
            a = ArgMax (e)
            b = ArgMax (x)
            c = Identity (e)
            d = Cast <to = 7> (e)
            v, i = TopK (e, k)
        }
    """)
    assert discontinuous(model) == {"a", "d", "i"}
    assert can_round(model) == {"a", "c", "d", "v", "i"}


def test_quantization_decides_after_rounding_of_its_own() -> None:
    model = model_of("""
        g (float[4] x) => (uint8[4] y, float[4] z) <float s = {0.1}, uint8 o = {0}>
        { y = QuantizeLinear (x, s, o) z = DequantizeLinear (y, s, o) }
    """)
    assert discontinuous(model) == {"y", "z"}


def test_shapes_do_not_depend_on_values_unless_a_decision_made_them() -> None:
    model = model_of("""
        g (float[4] x) => (int64[1] a, int64[2] b)
        { e = Exp (x) a = Shape (e) n = NonZero (e) b = Shape (n) }
    """)
    assert discontinuous(model) == {"b"}
    assert can_round(model) == {"b"}


def test_facts_pass_through_branches_and_their_condition() -> None:
    model = model_of("""
        g (bool c, float[2] x) => (float[2] y, float[2] z, float[2] w)
        {
            y, z = If (c) <
                then_branch = t () => (float[2] p, float[2] q) { p = Exp (x) q = Identity (x) },
                else_branch = e () => (float[2] r, float[2] s) { r = Neg (x) s = Neg (x) }
            >
            h = Exp (x)
            m = ReduceMax <keepdims = 0> (h)
            d = Cast <to = 9> (m)
            w = If (d) <
                then_branch = t2 () => (float[2] p2) { p2 = Identity (x) },
                else_branch = e2 () => (float[2] r2) { r2 = Neg (x) }
            >
        }
    """)
    assert can_round(model) == {"y", "w"}
    assert discontinuous(model) == {"w"}


def test_facts_pass_through_loops() -> None:
    model = model_of("""
        g (int64 n, bool c, float[2] x) => (float[2] y, float[k, 2] s)
        {
            y, s = Loop (n, c, x) <
                body = b (int64 i, bool on, float[2] a) => (bool go, float[2] p, float[2] q)
                { go = Identity (on) p = RandomNormalLike (a) q = Identity (a) }
            >
        }
    """)
    assert random_ops(model) == {"y", "s"}
    assert can_round(model) == {"y", "s"}


def test_exact_functions_stay_exact() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y, float[2] z) { y = local.flip (x) z = local.twice (x) }",
        functions="""
        <domain: "local", opset_import: ["" : 17]> flip (a) => (b) { b = Neg (a) }
        <domain: "local", opset_import: ["" : 17]> twice (a) => (b) { b = Add (a, a) }
        """,
    )
    assert can_round(model) == {"z"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = RandomNormal <shape = [2]> ()", True),
        ("r = RandomUniformLike (x) y = Add (x, r)", True),
        ("y = Identity (x)", False),
        ("y = Dropout (x)", False),
        ("y = Dropout (x, ratio, no)", False),
        ("y = Dropout (x, ratio, yes)", True),
        ("y = Dropout (x, ratio, flag)", True),
        ("n = Constant <value = bool {0}> () y = Dropout (x, ratio, n)", False),
    ],
)
def test_random_operators_taint_what_depends_on_them(text: str, expected: bool) -> None:
    model = model_of(f"""
        g (float[2] x, bool flag) => (float[2] y, float[2] z)
        <float ratio = {{0.5}}, bool no = {{0}}, bool yes = {{1}}>
        {{ {text} z = Neg (x) }}
    """)
    assert random_ops(model) == ({"y"} if expected else frozenset())


def test_random_operators_in_functions_are_seen() -> None:
    model = model_of(
        "g (float[2] x) => (float[2] y) { y = local.noisy (x) }",
        functions="""
        <domain: "local", opset_import: ["" : 17]>
        noisy (a) => (b) { r = RandomNormalLike (a) b = Add (a, r) }
        """,
    )
    assert random_ops(model) == {"y"}
