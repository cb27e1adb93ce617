"""Conversions that are right, though they look otherwise."""

from __future__ import annotations

import numpy as np
from conversions.written import (
    GRU,
    LSTM,
    Source,
    function,
    gru_weights,
    lstm_weights,
    module_of,
    planted,
    right,
    scaler_of,
    seeded,
    source_of,
    table,
    weights_of,
)

__all__ = ["source_of"]


# Right, though it looks otherwise ----------------------------------------------------------------


@right("average pooling as a convolution by channel")
def average_pool_as_convolution() -> Source:
    torch, f = seeded()
    kernel = np.full((3, 1, 3, 3), 1 / 9, np.float32)
    return function(
        lambda x: f.avg_pool2d(x, 3, 2, padding=1),
        [torch.randn(2, 3, 9, 9)],
        "y = Conv<group=3, strides=[2,2], pads=[1,1,1,1]>(x, {kernel})",
        weights={"kernel": kernel},
    )


@right("GELU by the error function")
def gelu_in_pieces() -> Source:
    torch, f = seeded()
    return function(
        f.gelu,
        [torch.randn(4, 6) * 3],
        (
            "r = Constant<value_float=1.4142135>() d = Div(x, r) e = Erf(d) "
            "one = Constant<value_float=1.0>() a = Add(e, one) m = Mul(x, a) "
            "h = Constant<value_float=0.5>() y = Mul(m, h)"
        ),
    )


@right("batch norm folded by hand, names lost")
def batch_norm_folded() -> Source:
    torch, _ = seeded()
    norm = torch.nn.BatchNorm2d(4)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.2, 2)
    module = module_of(lambda m, x: m.n(m.c(x)).relu(), c=torch.nn.Conv2d(2, 4, 3), n=norm)
    w = weights_of(module)
    factor = w["n.weight"] / np.sqrt(w["n.running_var"] + np.float32(1e-5))
    folded = {
        "k": (w["c.weight"] * factor[:, None, None, None]).astype(np.float32),
        "b": ((w["c.bias"] - w["n.running_mean"]) * factor + w["n.bias"]).astype(np.float32),
    }
    return planted(
        module, [torch.randn(2, 2, 6, 6)], "c = Conv(x, {k}, {b}) y = Relu(c)", weights=folded
    )


@right("softmax by exponentials, its maximum subtracted")
def softmax_in_pieces() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.softmax(x, -1),
        [torch.randn(3, 7) * 30],
        (
            "a = Constant<value_ints=[-1]>() m = ReduceMax(x, a) d = Sub(x, m) e = Exp(d) "
            "s = ReduceSum(e, a) y = Div(e, s)"
        ),
    )


@right("layer norm by means")
def layer_norm_in_pieces() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.n(x), n=torch.nn.LayerNorm(6))
    text = (
        "a = Constant<value_ints=[-1]>() m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) "
        "v = ReduceMean(q, a) e = Constant<value_float=0.00001>() w = Add(v, e) s = Sqrt(w) "
        "n = Div(d, s) o = Mul(n, {n.weight}) y = Add(o, {n.bias})"
    )
    return planted(module, [torch.randn(4, 6)], text)


@right("weights transposed, names lost")
def linear_transposed() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.a(x), a=torch.nn.Linear(5, 5))
    w = weights_of(module)
    weights = {"v": np.ascontiguousarray(w["a.weight"].T), "b": w["a.bias"]}
    return planted(
        module, [torch.randn(3, 5)], "p = MatMul(x, {v}) y = Add(p, {b})", weights=weights
    )


@right("channels last inside")
def channels_last_inside() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.c(x).relu(), c=torch.nn.Conv2d(4, 4, 3, padding=1))
    text = (
        "n = Transpose<perm=[0,2,3,1]>(x) b = Transpose<perm=[0,3,1,2]>(n) "
        "c = Conv<pads=[1,1,1,1]>(b, {c.weight}, {c.bias}) t = Transpose<perm=[0,2,3,1]>(c) "
        "r = Relu(t) y = Transpose<perm=[0,3,1,2]>(r)"
    )
    return planted(module, [torch.randn(2, 4, 4, 4)], text)


@right("floor division by the remainder")
def floor_division_by_remainder() -> Source:
    torch, _ = seeded()
    return function(
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        [torch.tensor([7, -7, 7, -7, 6]), torch.tensor([2, 2, -2, -2, 3])],
        "m = Mod(x, y0) d = Sub(x, m) y = Div(d, y0)",
        outputs="int64[] y",
    )


@right("fmod keeps the sign of the dividend")
def fmod_of_floats() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.fmod(x, 3.0),
        [torch.tensor([7.5, -7.5, 4.0, -1.25])],
        ("t = Constant<value_float=3.0>() y = Mod<fmod=1>(x, t)"),
    )


@right("halves to even")
def round_half_even() -> Source:
    torch, _ = seeded()
    return function(torch.round, [torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5])], "y = Round(x)")


@right("integers beyond float32")
def clamp_of_integers() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.clamp(x, min=-5),
        [torch.tensor([2**40 + 1, -7, 3, 2**33 + 5])],
        "l = Constant<value_int=-5>() y = Max(x, l)",
        outputs="int64[] y",
    )


@right("0 log 0 guarded")
def xlogy_guarded() -> Source:
    torch, _ = seeded()
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    x[0, 0] = y[0, 0] = 0
    return function(
        torch.xlogy,
        [x, y],
        (
            "z = Constant<value_float=0.0>() l = Log(y0) p = Mul(x, l) e = Equal(x, z) "
            "n = IsNaN(y0) k = Not(n) b = And(e, k) y = Where(b, z, p)"
        ),
    )


@right("order of gates")
def lstm_gates_reordered() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.r(x)[0], r=torch.nn.LSTM(4, 3))
    return planted(module, [torch.randn(5, 2, 4)], LSTM, weights=lstm_weights(module, "iofg"))


@right("order of gates")
def gru_reset_after() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.g(x)[0], g=torch.nn.GRU(4, 5))
    return planted(
        module, [torch.randn(6, 2, 4)], GRU.replace("RESET", "1"), weights=gru_weights(module)
    )


@right("coordinates rounded down")
def resize_nearest_asymmetric() -> Source:
    torch, f = seeded()
    return function(
        lambda x: f.interpolate(x, size=(7, 5), mode="nearest"),
        [torch.randn(1, 2, 4, 4)],
        's = Constant<value_ints=[1,2,7,5]>() y = Resize<mode="nearest", nearest_mode="floor", '
        'coordinate_transformation_mode="asymmetric">(x, , , s)',
    )


@right("padding of an even kernel")
def padding_of_even_kernel() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.c(x), c=torch.nn.Conv2d(2, 3, 4, padding="same"))
    text = "y = Conv<pads=[1,1,2,2]>(x, {c.weight}, {c.bias})"
    return planted(module, [torch.randn(1, 2, 7, 7)], text)


@right("attention with the scale in the query")
def attention_scaled_query() -> Source:
    torch, f = seeded()
    return function(
        f.scaled_dot_product_attention,
        [torch.randn(1, 2, 5, 4) for _ in range(3)],
        "h = Constant<value_float=0.5>() q = Mul(x, h) t = Transpose<perm=[0,1,3,2]>(y0) "
        "s = MatMul(q, t) p = Softmax<axis=-1>(s) y = MatMul(p, z0)",
    )


@right("softmax of an old operator set on two axes")
def softmax_of_old_set_in_shape() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.softmax(x, -1), [torch.randn(2, 3, 4)], ("y = Softmax<axis=2>(x)"), opset=12
    )


@right("log of a sum of exponentials, its maximum subtracted")
def log_sum_exp_shifted() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.logsumexp(x, 1),
        [torch.randn(3, 5) * 400],
        ("a = Constant<value_ints=[1]>() y = ReduceLogSumExp<keepdims=0>(x, a)"),
    )


@right("the first of equal maxima")
def argmax_of_ties() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: x.argmax(1),
        [torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]])],
        "y = ArgMax<axis=1, keepdims=0>(x)",
        outputs="int64[] y",
    )


@right("32-bit integers inside")
def embedding_by_small_integers() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, i: m.e(i), e=torch.nn.Embedding(6, 3))
    text = "c = Cast<to=6>(x) y = Gather({e.weight}, c)"
    return planted(module, [torch.tensor([[1, 0, 5]])], text)


@right("a product through float64")
def linear_in_double() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.a(x), a=torch.nn.Linear(5, 3, bias=False))
    wide = {"k": weights_of(module)["a.weight"].T.astype(np.float64)}
    text = "d = Cast<to=11>(x) p = MatMul(d, {k}) y = Cast<to=1>(p)"
    return planted(module, [torch.randn(4, 5)], text, weights=wide)


@right("attention with a causal mask", "torch.onnx dynamo=True")
def causal_attention() -> Source:
    torch, f = seeded()
    model = module_of(lambda _, q, k: f.scaled_dot_product_attention(q, k, k, is_causal=True))
    return Source(model, [(torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4))])


@right("stable order of ties", "torch.onnx dynamo=True")
def top_values() -> Source:
    torch, _ = seeded()
    return Source(module_of(lambda _, x: x.topk(3, dim=1)), [(torch.randn(4, 9),)])


@right("samples at coordinates", "torch.onnx dynamo=False")
def grid_sample() -> Source:
    torch, f = seeded()
    model = module_of(lambda _, x, g: f.grid_sample(x, g, align_corners=False))
    return Source(model, [(torch.randn(1, 2, 5, 5), torch.rand(1, 4, 4, 2) * 2 - 1)])


@right("a bidirectional LSTM", "torch.onnx dynamo=False")
def lstm_both_ways() -> Source:
    torch, _ = seeded()
    model = module_of(lambda m, x: m.r(x)[0], r=torch.nn.LSTM(4, 3, bidirectional=True))
    return Source(model, [(torch.randn(5, 2, 4),)])


@right("a layer of a transformer", "torch.onnx dynamo=True")
def transformer_layer() -> Source:
    torch, _ = seeded()
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return Source(module_of(lambda m, x: m.t(x), t=layer), [(torch.randn(2, 5, 8),)])


@right("scaler by offset and factor")
def scaler() -> Source:
    from sklearn.preprocessing import StandardScaler

    x, _ = table()
    fitted = StandardScaler().fit(x * np.float32(3) + 1)
    return scaler_of(fitted, x, 1 / fitted.scale_)


@right("boosted trees with softmax", "skl2onnx")
def boosted_trees() -> Source:
    from sklearn.ensemble import GradientBoostingClassifier

    x, y = table()
    fitted = GradientBoostingClassifier(n_estimators=4, random_state=0).fit(x, y)
    return Source(fitted, [(x[:20],)])


@right("a pipeline of a scaler and a regression", "skl2onnx")
def regression_pipeline() -> Source:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = table()
    return Source(make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y), [(x[:20],)])


@right("boosted trees of another library", "onnxmltools (XGBoost)")
def boosted_trees_of_xgboost() -> Source:
    from xgboost import XGBClassifier

    x, y = table()
    return Source(XGBClassifier(n_estimators=4, max_depth=3).fit(x, y), [(x[:20],)])
