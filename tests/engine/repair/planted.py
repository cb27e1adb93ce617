"""A small network with every kind of layer, and faults planted into its conversion.

Both files are executed by path, in workers too: ``source()`` makes the network.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

Edit = Callable[[ModelProto], None]

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.register_buffer("middle", torch.tensor([0.3, 0.5, 0.1, 0.2]).view(1, 4, 1, 1))
        self.first = nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 2))
        self.norm = nn.BatchNorm2d(6, eps=1e-2)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.2, 2)
        self.norm.weight.data.uniform_(0.5, 1.5)
        self.norm.bias.data.normal_()
        self.wide = nn.Conv2d(6, 6, 3, padding=1)
        self.deep = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.layer = nn.LayerNorm(24, eps=1e-3)
        self.layer.weight.data.uniform_(0.5, 1.5)
        self.layer.bias.data.normal_()
        self.last = nn.Linear(24, 7)

    def forward(self, x):
        y = (x - self.middle) * 3.0
        y = F.leaky_relu(self.norm(self.first(y)), 0.2)
        y = y + torch.sigmoid(self.wide(y)) - F.elu(self.deep(y))
        y = F.avg_pool2d(F.pad(y, (0, 1, 1, 0)), 2, 2, 0, count_include_pad=False)
        y = F.interpolate(y, size=(2, 2), mode="bilinear", align_corners=False)
        y = y.permute(0, 2, 3, 1).flatten(1)
        y = F.gelu(self.layer(y))
        return torch.softmax(self.last(y), 1)


example_inputs = (torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(0)),)
dynamic_axes = {"x": {0: "batch"}}


def source():
    return Net()
"""


def converted() -> ModelProto:
    """The network as TorchScript's exporter converts it, with every layer for itself."""
    import torch

    scope: dict[str, Any] = {"__name__": "planted_source"}
    exec(SOURCE, scope)
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            scope["source"]().eval(),
            scope["example_inputs"],
            file,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            opset_version=20,
            input_names=["x"],
            dynamic_axes=scope["dynamic_axes"],
        )
    return onnx.load_from_string(file.getvalue())


def node(model: ModelProto, kind: str, number: int = 0) -> NodeProto:
    found: NodeProto = [n for n in model.graph.node if n.op_type == kind][number]
    return found


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    """A weight, or a constant by the node that makes it, is another value."""

    def edit(model: ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name == name:
                value = np.ascontiguousarray(change(numpy_helper.to_array(tensor).copy()))
                tensor.CopyFrom(numpy_helper.from_array(value, name))
                return
        raise KeyError(name)

    return edit


def attribute(kind: str, name: str, value: Any, number: int = 0) -> Edit:
    def edit(model: ModelProto) -> None:
        target = node(model, kind, number)
        kept = [a for a in target.attribute if a.name != name]
        del target.attribute[:]
        target.attribute.extend(kept)
        if value is not None:
            target.attribute.append(helper.make_attribute(name, value))

    return edit


def before(kind: str, place: int, operator: str, *more: np.ndarray, **attributes: Any) -> Edit:
    """A node too many in front of an input of the first node of ``kind``."""

    def edit(model: ModelProto) -> None:
        target = node(model, kind)
        names = [f"planted_{i}" for i in range(len(more))]
        tensors = [numpy_helper.from_array(v, n) for v, n in zip(more, names, strict=True)]
        model.graph.initializer.extend(tensors)
        extra = helper.make_node(operator, [target.input[place], *names], ["extra"], **attributes)
        at = list(model.graph.node).index(target)
        target.input[place] = "extra"
        model.graph.node.insert(at, extra)

    return edit


def removed(kind: str, number: int = 0) -> Edit:
    """A node is missing."""

    def edit(model: ModelProto) -> None:
        target = node(model, kind, number)
        old, new = target.output[0], target.input[0]
        for other in model.graph.node:
            for i, name in enumerate(other.input):
                if name == old:
                    other.input[i] = new
        model.graph.node.remove(target)

    return edit


def exchanged(kind: str, one: int, two: int) -> Edit:
    def edit(model: ModelProto) -> None:
        target = node(model, kind)
        target.input[one], target.input[two] = target.input[two], target.input[one]

    return edit


def crossed(kind: str, one: int, two: int, place: int) -> Edit:
    """Two nodes of a kind read each other's input."""

    def edit(model: ModelProto) -> None:
        a, b = node(model, kind, one), node(model, kind, two)
        a.input[place], b.input[place] = b.input[place], a.input[place]

    return edit


def renamed(kind: str, other: str, number: int = 0) -> Edit:
    def edit(model: ModelProto) -> None:
        target = node(model, kind, number)
        target.op_type = other
        del target.attribute[:]

    return edit


def scalar(kind: str, place: int, value: float) -> Edit:
    """A constant that a node reads is another number."""

    def edit(model: ModelProto) -> None:
        name = node(model, kind).input[place]
        for maker in model.graph.node:
            if name in maker.output:
                shape = numpy_helper.to_array(maker.attribute[0].t).shape
                tensor = numpy_helper.from_array(np.full(shape, value, np.float32))
                maker.attribute[0].t.CopyFrom(tensor)
                return
        changed(name, lambda v: np.full_like(v, value))(model)

    return edit


def both(*edits: Edit) -> Edit:
    def edit(model: ModelProto) -> None:
        for each in edits:
            each(model)

    return edit


def one_value(value: np.ndarray) -> np.ndarray:
    value.flat[11] += 0.05
    return value


def of_bfloat16(value: np.ndarray) -> np.ndarray:
    return (value.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


WEIGHTS = ("first.weight", "wide.weight", "deep.weight", "last.weight")
FAULTS: dict[str, Edit] = {
    "weights rounded": both(*(changed(n, of_bfloat16) for n in WEIGHTS)),
    "one value": changed("wide.weight", one_value),
    "kernel transposed": changed("wide.weight", lambda w: w.transpose(0, 1, 3, 2)),
    "kernel in and out exchanged": changed("wide.weight", lambda w: w.transpose(1, 0, 2, 3)),
    "bias zeroed": changed("last.bias", lambda w: w * 0),
    "statistic zeroed": changed("norm.running_mean", lambda w: w * 0),
    "mean zeroed": changed("middle", lambda w: w * 0),
    "scale": scalar("Mul", 1, 2.5),
    "pads": attribute("AveragePool", "pads", [0, 0, 1, 1]),
    "pads of a convolution": attribute("Conv", "pads", [2, 1, 0, 3]),
    "strides": attribute("Conv", "strides", [1, 2]),
    "count_include_pad": both(
        attribute("AveragePool", "pads", [1, 1, 1, 1]),
    ),
    "epsilon": attribute("BatchNormalization", "epsilon", 1e-5),
    "epsilon of LayerNormalization": attribute("LayerNormalization", "epsilon", 1e-1),
    "alpha": attribute("LeakyRelu", "alpha", 0.01),
    "alpha of Elu": attribute("Elu", "alpha", 0.3),
    "axis": attribute("Softmax", "axis", 0),
    "gelu": attribute("Gelu", "approximate", "tanh"),
    "resize": attribute("Resize", "coordinate_transformation_mode", "align_corners"),
    "resize nearest": attribute("Resize", "mode", "nearest"),
    "extra Relu": before("Resize", 0, "Relu"),
    "extra Pad": before("AveragePool", 0, "Pad", np.array([0, 0, 1, 0, 0, 0, 0, 1])),
    "extra Gather": before("Sub", 0, "Gather", np.array([3, 1, 2, 0]), axis=1),
    "extra Transpose": before("Resize", 0, "Transpose", perm=[0, 1, 3, 2]),
    "extra scale": before("Sub", 0, "Mul", np.array(1 / 255, np.float32)),
    "Transpose missing": removed("Transpose", 1),
    "permutation": attribute("Transpose", "perm", [0, 3, 1, 2], 1),
    "permutation of the same shape": attribute("Transpose", "perm", [0, 3, 2, 1], 1),
    "activation missing": removed("LeakyRelu"),
    "mean not subtracted": removed("Sub"),
    "scale missing": removed("Mul"),
    "Softmax missing": renamed("Softmax", "Identity"),
    "Gelu missing": removed("Gelu"),
    "inputs exchanged": exchanged("Sub", 0, 1),
    "biases crossed": crossed("Conv", 1, 2, 2),
    "weights crossed": both(crossed("Conv", 1, 2, 2), scalar("Mul", 1, 2.5)),
    "another activation": renamed("LeakyRelu", "Relu"),
    "another pooling": renamed("Sigmoid", "Tanh"),
    "two faults": both(attribute("Conv", "pads", [2, 2, 0, 2]), changed("last.bias", lambda w: -w)),
    "three faults": both(
        before("Resize", 0, "Relu"),
        attribute("LeakyRelu", "alpha", 0.01),
        attribute("Gelu", "approximate", "tanh"),
    ),
    "transB": both(attribute("Gemm", "alpha", 0.5)),
}


def build(name: str) -> ModelProto:
    """The converted network with one fault."""
    model = converted()
    FAULTS[name](model)
    return model
