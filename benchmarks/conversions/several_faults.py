"""Conversions with several faults, that nothing loads, and of estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
from conversions.written import (
    Source,
    estimator,
    fault,
    function,
    module_of,
    planted,
    scaler_of,
    seeded,
    source_of,
    table,
)
from onnx import ModelProto

__all__ = ["source_of"]


# Several faults, and models that nothing loads ---------------------------------------------------


@fault("leaky_relu LeakyRelu.alpha Softmax.axis", "hyperparameters")
def two_attributes() -> Source:
    torch, f = seeded()
    module = module_of(
        lambda m, x: torch.softmax(m.b(f.leaky_relu(m.a(x), 0.3)), 0),
        a=torch.nn.Linear(4, 6),
        b=torch.nn.Linear(6, 3),
    )
    text = (
        "a = Gemm<transB=1>(x, {a.weight}, {a.bias}) l = LeakyRelu(a) "
        "b = Gemm<transB=1>(l, {b.weight}, {b.bias}) y = Softmax<axis=1>(b)"
    )
    return planted(module, [torch.randn(5, 4)], text)


@fault("BatchNormalization.epsilon LeakyRelu.alpha f.bias", "hyperparameters")
def three_faults() -> Source:
    torch, f = seeded()
    norm = torch.nn.BatchNorm2d(4, eps=0.1)
    norm.running_var.uniform_(0.1, 1)
    module = module_of(
        lambda m, x: m.f(f.leaky_relu(m.n(m.c(x)), 0.2).mean((2, 3))),
        c=torch.nn.Conv2d(2, 4, 3),
        n=norm,
        f=torch.nn.Linear(4, 3),
    )
    text = (
        "c = Conv(x, {c.weight}, {c.bias}) n = BatchNormalization(c, {n.weight}, {n.bias}, "
        "{n.running_mean}, {n.running_var}) l = LeakyRelu<alpha=0.02>(n) "
        "a = Constant<value_ints=[2,3]>() m = ReduceMean<keepdims=0>(l, a) "
        "y = Gemm<transB=1>(m, {f.weight}, {f.bias})"
    )
    return planted(
        module, [torch.randn(2, 2, 6, 6)], text, weights={"f.bias": np.zeros(3, np.float32)}
    )


@fault("CumSum cumsum softplus Softplus", "type", "invalid-model", "torch.onnx dynamo=False")
def softplus_and_sum_of_booleans() -> Source:
    torch, f = seeded()
    model = module_of(lambda _, x: f.softplus(x, 2.0, 1.0) * torch.cumsum(x > 0, 1))
    return Source(model, [(torch.randn(3, 5),)])


@fault("Swish silu", "layer-graph", "invalid-model")
def unknown_operator() -> Source:
    torch, f = seeded()
    module = module_of(
        lambda m, x: m.b(f.silu(m.a(x))), a=torch.nn.Linear(4, 6), b=torch.nn.Linear(6, 2)
    )
    text = (
        "a = Gemm<transB=1>(x, {a.weight}, {a.bias}) s = SiluV2(a) "
        "y = Gemm<transB=1>(s, {b.weight}, {b.bias})"
    )
    return planted(module, [torch.randn(3, 4)], text)


@fault("Concat.axis cat", "hyperparameters", "invalid-model")
def required_attribute_lost() -> Source:
    torch, _ = seeded()
    return function(
        lambda x: torch.cat([x, x.relu()], 1).exp(),
        [torch.randn(2, 3)],
        "r = Relu(x) c = Concat(x, r) y = Exp(c)",
    )


@fault("Add mul add", "type", "invalid-model")
def types_mixed() -> Source:
    torch, _ = seeded()
    return function(
        lambda x, i: (x + i) * 2,
        [torch.randn(2, 3), torch.tensor([[1, 2, 3]])],
        "a = Add(x, y0) t = Constant<value_float=2.0>() y = Mul(a, t)",
    )


@fault("x batch view Reshape", "shape", "run-error")
def batch_baked_in() -> Source:
    torch, _ = seeded()
    module = module_of(lambda m, x: m.f(x.reshape(x.shape[0], -1)), f=torch.nn.Linear(6, 2))
    text = (
        "s = Constant<value_ints=[2,6]>() v = Reshape(x, s) "
        "y = Gemm<transB=1>(v, {f.weight}, {f.bias})"
    )
    made = planted(module, [torch.randn(2, 2, 3)], text)
    assert made.converted is not None
    made.converted.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    return Source(module, made.inputs, made.converted, {"input_0": {0: "batch"}})


# Estimators --------------------------------------------------------------------------------------


@fault("Scaler.scale StandardScaler", "parameters")
def scaler_multiplies() -> Source:
    from sklearn.preprocessing import StandardScaler

    x, _ = table()
    fitted = StandardScaler().fit(x * np.float32(3) + 1)
    return scaler_of(fitted, x, fitted.scale_)


@fault("Normalizer.norm Normalizer", "hyperparameters")
def normalizer_of_another_norm() -> Source:
    from sklearn.preprocessing import Normalizer

    x, _ = table()
    return estimator(
        Normalizer("l1").fit(x), x, 'y = ai.onnx.ml.Normalizer<norm="L2">(x)', "float[] y"
    )


@fault("LogisticRegression Sigmoid Softmax", "layer-graph")
def logistic_regression_by_sigmoid() -> Source:
    from sklearn.linear_model import LogisticRegression

    x, y = table()
    fitted = LogisticRegression().fit(x, y)
    text = (
        "s = Gemm<transB=1>(x, {coef}, {intercept}) g = Sigmoid(s) n = ReduceL1<axes=[1]>(g) "
        "p = Div(g, n) label = ArgMax<axis=1, keepdims=0>(s)"
    ).replace("ReduceL1<axes=[1]>(g)", "ReduceL1(g, {axes})")
    weights = {
        "coef": fitted.coef_.astype(np.float32),
        "intercept": fitted.intercept_.astype(np.float32),
        "axes": np.asarray([1]),
    }
    return estimator(fitted, x, text, "int64[] label, float[] p", **weights)


@fault("GradientBoostingClassifier TreeEnsembleClassifier.post_transform", "hyperparameters")
def boosted_trees_without_softmax() -> Source:
    from sklearn.ensemble import GradientBoostingClassifier

    x, y = table()
    fitted = GradientBoostingClassifier(n_estimators=4, random_state=0).fit(x, y)
    return Source(fitted, [(x[:20],)], _changed_trees(fitted, x, "NONE"))


def _changed_trees(fitted: Any, x: np.ndarray, after: str) -> ModelProto:
    from skl2onnx import to_onnx

    model: ModelProto = to_onnx(fitted, x[:1], target_opset=18, options={"zipmap": False})
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "post_transform" and node.op_type.startswith("Tree"):
                attribute.s = after.encode()
    return model
