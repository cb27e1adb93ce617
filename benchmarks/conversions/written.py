"""What cases of conversions are written with: sources, and models in ONNX's own text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import ModelProto, numpy_helper

WRITTEN = "written in ONNX"
RIGHT = ("none", "-", "-", "none")
_WEIGHT = re.compile(r"\{([A-Za-z_][\w.]*)\}")


@dataclass(frozen=True)
class Case:
    """What stands in the manifest."""

    id: str
    module: str
    converter: str
    symptom: str
    stage: str
    culprit: str
    category: str
    control: str


@dataclass(frozen=True)
class Source:
    """A model with inputs, and what a converter made of it where none is asked."""

    model: Any
    inputs: Sequence[tuple[Any, ...]]
    converted: ModelProto | None = None
    dynamic: Mapping[str, dict[int, str]] | None = None


CASES: dict[str, tuple[Case, Callable[[], Source]]] = {}
Make = Callable[[], Source]


def fault(
    culprit: str,
    category: str,
    symptom: str = "wrong-output",
    converter: str = WRITTEN,
    stage: str = "node-conversion",
) -> Callable[[Make], Make]:
    """A case that is wrong; ``culprit`` names the operator on either side, or the parameter."""
    return lambda make: _note(make, converter, symptom, stage, culprit, category, "")


def right(why: str, converter: str = WRITTEN) -> Callable[[Make], Make]:
    """A case that is right, though ``why``."""
    return lambda make: _note(make, converter, *RIGHT, why)


def _note(make: Make, *about: str) -> Make:
    id = make.__name__
    CASES[id] = (Case(id, make.__module__, *about), make)
    return make


def source_of(id: str) -> Source:
    """The source of a case."""
    return CASES[id][1]()


def written(
    text: str,
    inputs: str,
    outputs: str,
    weights: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 20,
    ml: int = 0,
) -> ModelProto:
    """A model in ONNX's text; ``{name}`` in it is the weight of that name."""
    named = {name: "w_" + name.replace(".", "_") for name in _WEIGHT.findall(text)}
    body = _WEIGHT.sub(lambda m: named[m[1]], text)
    sets = f'"" : {opset}' + (f', "ai.onnx.ml" : {ml}' if ml else "")
    head = f"<ir_version: 10, opset_import: [{sets}]> converted ({inputs}) => ({outputs})"
    model = onnx.parser.parse_model(f"{head} {{ {body} }}")
    back = {plain: name for name, plain in named.items()}
    for node in model.graph.node:
        node.input[:] = [back.get(name, name) for name in node.input]
    for name in named:
        value = np.asarray((weights or {})[name])
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    known = {
        o.name: o for o in onnx.shape_inference.infer_shapes(_without_types(model)).graph.output
    }
    for output in model.graph.output:
        if known[output.name].type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.CopyFrom(known[output.name].type.tensor_type.shape)
    return model


def _without_types(model: ModelProto) -> ModelProto:
    """The model without what its outputs are declared to be."""
    bare = ModelProto()
    bare.CopyFrom(model)
    for output in bare.graph.output:
        output.ClearField("type")
    return bare


def weights_of(module: Any) -> dict[str, np.ndarray]:
    """Parameters and buffers of a module by name."""
    return {name: value.numpy() for name, value in module.state_dict().items()}


def seeded() -> tuple[Any, Any]:
    """PyTorch and its functions, with the seed set."""
    import torch
    import torch.nn.functional as functional

    torch.manual_seed(7)
    return torch, functional


def module_of(forward: Callable[..., Any], **layers: Any) -> Any:
    """A module of these layers; ``forward`` is given it and the inputs."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, *inputs: Any) -> Any:
            return forward(self, *inputs)

    module = Module()
    for name, layer in layers.items():
        setattr(module, name, layer)
    return module.eval()


def planted(
    module: Any,
    inputs: Sequence[Any],
    text: str,
    outputs: str = "float[] y",
    *,
    more: Sequence[tuple[Any, ...]] = (),
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 20,
    names: str = "x y0 z0",
) -> Source:
    """A module and what became of it; its inputs are called ``x``, ``y0``, ``z0``."""
    kinds = []
    for name, tensor in zip(names.split(), inputs, strict=False):
        value = tensor.numpy()
        kind = {"float32": "float", "float64": "double"}.get(value.dtype.name, value.dtype.name)
        kinds.append(f"{kind}[{','.join(map(str, value.shape))}] {name}")
    every = {**weights_of(module), **(weights or {})}
    model = written(text, ", ".join(kinds), outputs, every, opset=opset)
    return Source(module, [tuple(inputs), *more], model)


def function(
    operation: Callable[..., Any], inputs: Sequence[Any], text: str, **more: Any
) -> Source:
    """``planted``, of a function without layers."""
    return planted(module_of(lambda _, *given: operation(*given)), inputs, text, **more)


GRU = (
    "g, h = GRU<hidden_size=5, linear_before_reset=RESET>(x, {W}, {R}, {B}) "
    "a = Constant<value_ints=[1]>() y = Squeeze(g, a)"
)


def gru_weights(module: Any) -> dict[str, np.ndarray]:
    """PyTorch's order of gates is r, z, n; that of ONNX z, r, h."""
    every = weights_of(module)

    def turned(name: str) -> np.ndarray:
        r, z, n = np.split(every[f"g.{name}_l0"], 3)
        return np.concatenate([z, r, n])

    biases = np.concatenate([turned("bias_ih"), turned("bias_hh")])
    return {"W": turned("weight_ih")[None], "R": turned("weight_hh")[None], "B": biases[None]}


LSTM = (
    "g, h, c = LSTM<hidden_size=3>(x, {W}, {R}, {B}) a = Constant<value_ints=[1]>() "
    "y = Squeeze(g, a)"
)


def lstm_weights(module: Any, order: str) -> dict[str, np.ndarray]:
    every = weights_of(module)

    def turned(name: str) -> np.ndarray:
        gates = dict(zip("ifgo", np.split(every[f"r.{name}_l0"], 4), strict=True))
        return np.concatenate([gates[gate] for gate in order])

    biases = np.concatenate([turned("bias_ih"), turned("bias_hh")])
    return {"W": turned("weight_ih")[None], "R": turned("weight_hh")[None], "B": biases[None]}


def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] ** 2 > 0.5).astype(int) + (x[:, 2] > 0.8)


def estimator(fitted: Any, x: np.ndarray, text: str, outputs: str, **weights: np.ndarray) -> Source:
    model = written(text, f"float[N,{x.shape[1]}] x", outputs, weights, opset=18, ml=3)
    return Source(fitted, [(x[:20],)], model)


def scaler_of(fitted: Any, x: np.ndarray, scale: np.ndarray) -> Source:
    offset = ", ".join(f"{v:.9g}" for v in fitted.mean_)
    factor = ", ".join(f"{v:.9g}" for v in scale)
    text = f"y = ai.onnx.ml.Scaler<offset=[{offset}], scale=[{factor}]>(x)"
    return estimator(fitted, x, text, "float[] y")
