"""Templates compute their operators to the last places, where the usual ways cancel or overflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from scipy import special

from optvet.engine.discovery import Plugins
from optvet.engine.repair.propose.forms import OperatorForm
from optvet.engine.repair.propose.known_forms import FORMS
from optvet.engine.repair.run import repair_model
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.converters import SourceOperand, SourceValue
from optvet.spec.repair import RepairRequest

FLOATS = np.array([0, 1e-30, 1e-8, -1e-7, 1e-4, 0.3, -0.5, -0.99, 1, 9, -9, 50, 3000], np.float32)
A, B = np.array([-7, 7, -8, 8, 5, -5]), np.array([2, 2, 3, -3, -2, -2])


def computed(
    name: str, *given: Any, like: np.ndarray | None = None, version: int = 18, **settings: Any
) -> np.ndarray:
    """What a form computes; ``given`` are tensors, and numbers that stand in the program."""
    tensors = {i: v for i, v in enumerate(given) if isinstance(v, np.ndarray)}
    operands = [
        SourceOperand("", input=f"i{i}") if i in tensors else SourceOperand("", constant=v)
        for i, v in enumerate(given)
    ]
    operands += [SourceOperand(n, constant=v) for n, v in settings.items()]
    operator = SourceValue(name, given[0] if like is None else like, operands=tuple(operands))
    constants = {
        i: np.asarray(v, np.float32 if isinstance(v, list) else None)
        for i, v in enumerate(given)
        if i not in tensors
    }
    form = OperatorForm(operator, version, constants, {i: v.dtype for i, v in tensors.items()})
    model, places = form.model(FORMS[name](form), 8)
    for info, place in zip(model.graph.input, places, strict=True):
        kind = onnx.helper.np_dtype_to_tensor_dtype(tensors[place].dtype)
        info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, kind, tensors[place].shape))
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    fed = {info.name: tensors[place] for info, place in zip(model.graph.input, places, strict=True)}
    (y,) = session.run(None, fed)
    found = np.asarray(y)
    assert found.dtype == operator.value.dtype
    return found


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("log1p", np.log1p),
        ("expm1", np.expm1),
        ("log_sigmoid", special.log_expit),
        ("erfc", special.erfc),
    ],
)
@pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")
def test_a_template_of_floats_is_right_to_the_last_places(
    name: str, function: Callable[[np.ndarray], np.ndarray]
) -> None:
    known, near = function(FLOATS.astype(np.float64)).astype(np.float32), 2e-7 * (name == "erfc")
    assert computed(name, FLOATS) == pytest.approx(known, rel=1e-6, abs=near, nan_ok=True)


def test_integers_are_divided_towards_minus_infinity() -> None:
    assert computed("floor_divide", A, B).tolist() == (A // B).tolist()
    assert computed("floor_mod", A, B).tolist() == (A % B).tolist()


def test_integers_are_multiplied_and_added() -> None:
    a, b, c = A.reshape(2, 3), B.reshape(3, 2), np.array([[1, 2], [3, 4]])
    assert computed("addmm", c, a, b).tolist() == (c + a @ b).tolist()


X = np.random.default_rng(0).normal(size=(2, 3, 6, 6)).astype(np.float32) * 3
SMALL = np.ascontiguousarray(X[0, :, :, 0])
SPECIAL = np.array([0, 0, 1, -1.5, 2.5, np.nan, np.inf, -np.inf], np.float32)
BIG = np.array([2**40 + 1, -7, 3, -(2**35)])


@pytest.mark.parametrize("version", [12, 18, 21])
@pytest.mark.parametrize(
    ("name", "given", "settings", "function"),
    [
        ("floor_mod", (SMALL, SMALL.T[:3, :1]), {}, "remainder"),
        ("floor_mod", (SMALL, -1.5), {}, "remainder"),
        ("floor_divide", (A, 3), {}, "floor_divide"),
        ("div", (A, B), {"rounding_mode": "floor"}, "div"),
        ("div", (A, B), {"rounding_mode": "trunc"}, "div"),
        ("div", (A, B), {}, "div"),
        ("div", (SMALL, 2.0), {"rounding_mode": "trunc"}, "div"),
        ("fmod", (A, B), {}, "fmod"),
        ("trunc", (SMALL,), {}, "trunc"),
        ("frac", (SMALL,), {}, "frac"),
        ("round", (SMALL,), {"decimals": 1}, "round"),
        ("round", (SPECIAL,), {}, "round"),
        ("xlogy", (SPECIAL, np.abs(SPECIAL[::-1]).copy()), {}, "xlogy"),
        ("gelu", (SMALL,), {"approximate": "tanh"}, "nn.functional.gelu"),
        ("gelu", (SMALL,), {}, "nn.functional.gelu"),
        ("clamp", (BIG, -5), {}, "clamp"),
        ("clamp", (SPECIAL, -1.0, 1.0), {}, "clamp"),
        ("softplus", (SMALL,), {"beta": 2.0, "threshold": 1.0}, "nn.functional.softplus"),
        ("sign", (SPECIAL,), {}, "sign"),
        ("sign", (B,), {}, "sign"),
        ("silu", (SMALL,), {}, "nn.functional.silu"),
        ("mish", (SMALL,), {}, "nn.functional.mish"),
        ("hardswish", (SMALL,), {}, "nn.functional.hardswish"),
        ("leaky_relu", (SMALL,), {"negative_slope": 0.3}, "nn.functional.leaky_relu"),
        ("prelu", (X, [0.1, 0.2, 0.9]), {}, "nn.functional.prelu"),
        ("addcmul", (BIG, BIG // 7, A[:4]), {"value": 2}, "addcmul"),
        ("addcdiv", (SMALL, SMALL * 2, SMALL + 9), {"value": 0.5}, "addcdiv"),
        ("sub", (A, B), {"alpha": 3}, "sub"),
        ("masked_fill", (SMALL, SMALL > 0, -1.0), {}, "masked_fill"),
        ("atan2", (SMALL, SMALL[::-1].copy()), {}, "atan2"),
        ("logaddexp", (SPECIAL, SPECIAL[::-1].copy()), {}, "logaddexp"),
        ("sum", (A > 0,), {"dim": [0]}, "sum"),
        ("mean", (SMALL,), {"dim": [0, 1], "keepdim": True}, "mean"),
        ("amax", (SMALL,), {"dim": [1]}, "amax"),
        ("logsumexp", (SMALL * 200,), {"dim": [1]}, "logsumexp"),
        ("softmax", (X,), {"dim": 1}, "softmax"),
        ("log_softmax", (X,), {"dim": -1}, "log_softmax"),
        ("var", (SMALL,), {"dim": [1], "correction": 1}, "var"),
        ("std", (SMALL,), {"dim": [0, 1], "correction": 0, "keepdim": True}, "std"),
        ("cumsum", (SMALL > 0,), {"dim": 1}, "cumsum"),
        ("index_select", (SMALL, 1, np.array([2, 0])), {"dim": 1}, "index_select"),
        ("bucketize", (SMALL, np.array([-1, 0, 2], np.float32)), {}, "bucketize"),
        (
            "avg_pool2d",
            (X,),
            {"kernel_size": [3, 2], "stride": [2, 2], "padding": [1, 0], "divisor_override": 5},
            "nn.functional.avg_pool2d",
        ),
        (
            "avg_pool2d",
            (X,),
            {"kernel_size": [3, 3], "padding": [1, 1], "count_include_pad": False},
            "nn.functional.avg_pool2d",
        ),
    ],
)
def test_a_form_computes_what_the_framework_does(
    name: str, given: tuple[Any, ...], settings: dict[str, Any], function: str, version: int
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    called = torch
    for part in function.split("."):
        called = getattr(called, part)
    arrays = [np.asarray(v, np.float32) if isinstance(v, list) else v for v in given]
    tensors = [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in arrays]
    if name in ("index_select",):
        known = called(tensors[0], 1, tensors[2]).numpy()
    elif name == "clamp":
        known = called(*tensors).numpy()
    else:
        known = called(*tensors, **settings).numpy()
    found = computed(name, *given, like=known, version=version, **settings)
    if known.dtype.kind == "f":
        assert found == pytest.approx(known, rel=1e-5, abs=2e-6, nan_ok=True)
    else:
        assert found.tolist() == known.tolist()


@pytest.mark.parametrize(
    ("name", "mode", "settings"),
    [
        ("upsample_nearest2d", "nearest", {}),
        ("upsample_bilinear2d", "bilinear", {"align_corners": False}),
        ("upsample_bilinear2d", "bilinear", {"align_corners": True}),
        ("upsample_bicubic2d", "bicubic", {"align_corners": False}),
    ],
)
def test_a_form_resizes_as_the_framework_does(
    name: str, mode: str, settings: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    x = torch.from_numpy(X)
    known = torch.nn.functional.interpolate(x, size=(9, 4), mode=mode, **settings).numpy()
    found = computed(name, X, like=known, **settings)
    assert found == pytest.approx(known, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("version", [12, 21])
def test_a_form_normalizes_by_the_batch_or_by_running_statistics(
    training: bool, version: int
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    weight, bias, mean, var = np.array([[2, -1, 0.5], [1, 0, 3], [0.1, 0.2, 0.3], [4, 1, 9]], "f")
    given = [torch.tensor(v) for v in (X, mean, var, weight, bias)]
    known = torch.nn.functional.batch_norm(*given, training=training, eps=0.1).numpy()
    settings: dict[str, Any] = {"training": training, "eps": 0.1}
    found = computed("native_batch_norm", X, weight, bias, mean, var, version=version, **settings)
    assert found == pytest.approx(known, rel=1e-5, abs=2e-6)


@pytest.mark.parametrize("version", [12, 21])
def test_a_form_takes_means_over_areas(version: int) -> None:
    x = np.arange(2 * 3 * 4 * 2, dtype=np.float32).reshape(2, 3, 4, 2) ** 2
    like = np.zeros((2, 2, 3, 2), np.float32)
    # Of three rows two are made, of one and a half each; of four columns three.
    rows = np.array([[2, 1, 0], [0, 1, 2]]) / 3
    columns = np.array([[3, 1, 0, 0], [0, 2, 2, 0], [0, 0, 1, 3]]) / 4
    known = np.einsum("oh,pw,nhwc->nopc", rows, columns, x)
    assert computed("resizearea", x, like=like, version=version) == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "constant"])
def test_a_form_pads_as_the_framework_does(mode: str) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    names = {"reflect": "reflection_pad2d", "replicate": "replication_pad2d"}
    pads = [1, 2, 0, 1]
    known = torch.nn.functional.pad(torch.from_numpy(X), pads, mode=mode).numpy()
    found = computed(names.get(mode, "constant_pad_nd"), X, like=known, padding=pads)
    assert found.tolist() == known.tolist()


@pytest.mark.parametrize("settings", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_a_form_attends_as_the_framework_does(settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    q, k, v = (X[:, :, i : i + 3] for i in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    known = attend(*map(torch.from_numpy, (q, k, v)), **settings).numpy()
    found = computed("scaled_dot_product_attention", q, k, v, like=known, **settings)
    assert found == pytest.approx(known, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("included", [True, False])
def test_what_is_scattered_to_one_place_is_averaged(included: bool) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    index = np.array([[0, 0, 2, 2, 2, 5]] * 3)
    x, i, s = (torch.from_numpy(v) for v in (SMALL, index, SMALL * 2))
    known = x.scatter_reduce(1, i, s, "mean", include_self=included).numpy()
    about: dict[str, Any] = {"dim": 1, "reduce": "mean", "include_self": included}
    found = computed("scatter_reduce", SMALL, 1, index, SMALL * 2, like=known, **about)
    assert found == pytest.approx(known, rel=1e-5)


SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return torch.log1p(x) * 3.0


def net():
    return Net()


net.example_inputs = (torch.linspace(1e-7, 1e-5, 9),)


class Copied(nn.Module):
    def forward(self, x):
        return torch.log1p(x).clone()


def copied():
    return Copied()


copied.example_inputs = net.example_inputs
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "via"),
    [pytest.param("net", "torch_script", marks=pytest.mark.release), ("copied", "torch_dynamo")],
)
def test_an_operator_that_every_exporter_writes_wrongly_is_written_rightly(
    tmp_path: Path, function: str, via: str
) -> None:
    pytest.importorskip("torch", reason="needs torch")
    if via == "torch_dynamo":
        pytest.importorskip("onnxscript", reason="needs onnxscript")
    keep_servers()
    (tmp_path / "net.py").write_text(SOURCE)
    out = tmp_path / "repaired"
    given = {"model": f"{tmp_path / 'net.py'}:{function}", "via": (via,), "out": out}
    result = repair_model(RepairRequest.model_validate(given), Plugins())
    assert (result.verdict, [e.kind for e in result.edits]) == ("repaired", ["template"])
