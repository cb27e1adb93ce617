"""Distance of black and white of an output, and what tells it.

It is the interval of the model's last operators, else what its metadata declare, else what the type
and the values of the output tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
import onnx
from onnx import numpy_helper

from optvet.graph import is_onnx
from optvet.plugin import Model, load_model
from optvet_image.value_range import USUAL_RANGES, is_within, usual_range

_OUTLIER = 16.0
"""An image whose largest value is so many times that of the median image says nothing of white."""
_NOMINAL = {"Normalized_0_1": 0, "Normalized_1_1": 1, "NominalRange_0_255": 2}
"""Values of the property ``Image.NominalPixelRange`` of models, by place in ``USUAL_RANGES``."""
_BOUNDED = {"Sigmoid": (0.0, 1.0), "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
_LAYOUT = frozenset(
    "Identity Dropout Reshape Flatten Transpose Squeeze Unsqueeze Slice Crop DepthToSpace "
    "SpaceToDepth Cast".split()
)

Constant = Callable[[str], np.ndarray | None]
RangeFrom = Literal["given", "graph", "metadata", "dtype", "outputs", "sample"]


@dataclass(frozen=True)
class _Affine:
    """``factor * x + term``."""

    factor: float = 1.0
    term: float = 0.0


def read_graph(model: Model) -> onnx.ModelProto | None:
    """The graph without large weights; None where there is no file."""
    if not model.path.is_file():
        return None
    return load_model(model.path, weights=False)


def range_of(
    graph: onnx.ModelProto | None,
    name: str,
    dtype: np.dtype,
    bounds: Sequence[tuple[float, float]],
    *,
    whole: bool,
) -> tuple[float, RangeFrom]:
    """The range of an output, and where it is from.

    Args:
        graph: The model.
        name: The output.
        dtype: Its type.
        bounds: Least and greatest value of each image; see ``bounds_of``.
        whole: Whether all values are integers.
    """
    if dtype.kind in "iu":
        return usual_range(0.0, 0.0, dtype), "dtype"
    tops = [max(-low, high) for low, high in bounds]
    usual = _OUTLIER * median([t for t in tops if t] or [0.0])
    kept = [b for b, top in zip(bounds, tops, strict=True) if top <= usual]
    low, high = min((b[0] for b in kept), default=0.0), max((b[1] for b in kept), default=0.0)
    if graph is not None and (limits := limits_of(graph.graph, name)) is not None:
        return _declared(*limits), "graph"
    if graph is not None and (nominal := _nominal(graph, name)) is not None:
        # The property may be that of the input alone: what contradicts it counts more.
        found = usual_range(low, high, dtype, whole=whole)
        if is_within(low, high, *nominal) and not (nominal[1] == 255 and found < 3):
            return nominal[1] - nominal[0], "metadata"
    return usual_range(low, high, dtype, whole=whole), "outputs"


def _declared(low: float, high: float) -> float:
    """The usual range that an interval is meant as: 150 tanh(x) + 115 leaves some room for it."""
    for bottom, top in USUAL_RANGES:
        share = 0.15
        if is_within(low, high, bottom, top, share) and is_within(bottom, top, low, high, share):
            return top - bottom
    return high - low


def _nominal(model: onnx.ModelProto, name: str) -> tuple[float, float] | None:
    """The range that the properties of images declare; see ONNX's MetadataProps.md."""
    properties = {p.key: p.value for p in model.metadata_props}
    eight_bits = properties.get("Image.BitmapPixelFormat", "").endswith("8")
    default = "NominalRange_0_255" if eight_bits else ""
    declared = properties.get("Image.NominalPixelRange", default)
    images = [v for v in (*model.graph.input, *model.graph.output) if v.type.denotation]
    output_images = [v for v in images if v.name == name and v.type.denotation == "IMAGE"]
    if declared not in _NOMINAL or (images and not output_images):
        return None
    return USUAL_RANGES[_NOMINAL[declared]]


def limits_of(graph: onnx.GraphProto, name: str) -> tuple[float, float] | None:
    """The interval that the last operators confine an output to; None if they do not.

    ::

        Clip(x, 0, 255) → 0..255        Mul(Sigmoid(x), 255) → 0..255        Tanh(x) → -1..1
    """
    makers = {o: n for n in graph.node for o in n.output}
    tensors = {t.name: t for t in graph.initializer}
    tensors |= {
        n.output[0]: a.t
        for n in graph.node
        for a in n.attribute
        if n.op_type == "Constant" and a.name == "value"
    }

    def constant(value: str) -> np.ndarray | None:
        if value not in tensors or tensors[value].data_location == onnx.TensorProto.EXTERNAL:
            return None
        array = numpy_helper.to_array(tensors[value]).astype(np.float64)
        return array if array.size <= 4 else None

    steps: list[_Affine] = []
    while (node := makers.get(name)) is not None and is_onnx(node) and node.input:
        bounded = _interval(node, constant)
        if bounded is not None:
            ends = np.array(bounded)
            for step in reversed(steps):
                ends = ends * step.factor + step.term
            return float(ends.min()), float(ends.max())
        if node.op_type not in _LAYOUT:
            found = _affine(node, constant)
            if found is None:
                return None
            step, name = found
            steps.append(step)
        else:
            name = node.input[0]
    return None


def _interval(node: onnx.NodeProto, constant: Constant) -> tuple[float, float] | None:
    if node.op_type != "Clip":
        return _BOUNDED.get(node.op_type)
    attributes = {a.name: float(a.f) for a in node.attribute}
    ends = [attributes.get("min"), attributes.get("max")]
    for i, value in enumerate(node.input[1:3]):
        array = constant(value) if value else None
        ends[i] = float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
    low, high = ends
    if low is None or high is None or not -1e6 < low < high < 1e6:
        return None
    return low, high


def _affine(node: onnx.NodeProto, constant: Constant) -> tuple[_Affine, str] | None:
    """What ``node`` does as one factor and one term, and what it reads; None for others."""
    if node.op_type == "Affine":
        attributes = {"alpha": 1.0, "beta": 0.0} | {a.name: float(a.f) for a in node.attribute}
        return _Affine(attributes["alpha"], attributes["beta"]), node.input[0]
    if node.op_type not in ("Add", "Sub", "Mul", "Div") or len(node.input) != 2:
        return None
    values = [constant(n) for n in node.input]
    at = next((i for i, v in enumerate(values) if v is not None), None)
    if at is None or (at == 0 and node.op_type in ("Sub", "Div")):
        return None
    value = values[at]
    assert value is not None
    by, read = float(np.mean(value)), node.input[1 - at]  # of channels, their mean
    if node.op_type in ("Add", "Sub"):
        return _Affine(1.0, by if node.op_type == "Add" else -by), read
    if not by:
        return None
    return _Affine(by if node.op_type == "Mul" else 1 / by), read
