"""Rewrites whose effect is known: faults to be found, and benign ones to be left in peace.

``PLANTS`` is an optimizer in optvet's sense whose "passes" are single rewrites, so the engine runs
and judges them as it does real ones. A rewrite that finds nothing to change raises
``NotApplicable``. Used by ``calibrate.py``; it is a module of its own because workers import it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper
from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, Pass, Traits

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.quantized.rewrites import QUANTIZED_BENIGN, QUANTIZED_FAULTS, Plant

Rewrite = Callable[[ModelProto], ModelProto | None]
FAULTS: dict[str, Rewrite] = {}
BENIGN: dict[str, Rewrite] = {}
UNOPTIMIZED: dict[str, Rewrite] = {}
"""Faults of quantized models as they are planted, which tell whether they have any effect."""


class NotApplicable(Exception):
    """The model has nothing that this rewrite changes."""


class NoOptions(BaseModel):
    """There are none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Plants:
    """An optimizer made of planted faults and benign rewrites."""

    name = "plants"
    preload: Sequence[str] = ("onnx", "onnxoptimizer", "onnxruntime")
    options: BaseModel = NoOptions()
    traits = Traits()

    def version(self) -> str:
        """Raised when a rewrite changes."""
        return "1"

    def passes(self) -> Sequence[Pass]:
        """All rewrites; the kind tells which are faults."""
        return [Pass(n, "fault") for n in FAULTS] + [
            *(Pass(n, "benign") for n in BENIGN),
            *(Pass(n, "unoptimized") for n in UNOPTIMIZED),
        ]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """None of use."""
        return {"default": ()}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        """Apply the rewrites one after the other."""
        model = source.data
        for name in passes:
            proto = onnx.load_from_string(model)
            changed = (FAULTS | BENIGN | UNOPTIMIZED)[name](proto) or proto
            model = changed.SerializeToString(deterministic=True)
        return Artifact("onnx", model)


PLANTS = Plants()


def fault(rewrite: Rewrite) -> Rewrite:
    """Register a fault by its function's name."""
    FAULTS[rewrite.__name__] = rewrite
    return rewrite


def benign(rewrite: Rewrite) -> Rewrite:
    """Register a benign rewrite by its function's name."""
    BENIGN[rewrite.__name__] = rewrite
    return rewrite


# --- looking at graphs, changing them -------------------------------------------------------------


def weight(graph: GraphProto, name: str) -> np.ndarray:
    """A float initializer's value."""
    for tensor in graph.initializer:
        if tensor.name == name and tensor.data_type == onnx.TensorProto.FLOAT:
            return numpy_helper.to_array(tensor).copy()
    raise NotApplicable(name)


def set_weight(graph: GraphProto, name: str, value: np.ndarray) -> None:
    """Replace an initializer's value, or add one."""
    tensor = numpy_helper.from_array(np.ascontiguousarray(value), name)
    for old in graph.initializer:
        if old.name == name:
            old.CopyFrom(tensor)
            return
    graph.initializer.append(tensor)


def nodes(graph: GraphProto, *kinds: str) -> list[NodeProto]:
    """Nodes of some operators, in order; at least one."""
    found = [n for n in graph.node if n.op_type in kinds]
    if not found:
        raise NotApplicable(", ".join(kinds))
    return found


def weighted(graph: GraphProto, *kinds: str) -> list[NodeProto]:
    """Nodes whose second input is a float initializer; at least one."""
    names = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    found = [n for n in nodes(graph, *kinds) if len(n.input) > 1 and n.input[1] in names]
    if not found:
        raise NotApplicable("no weights")
    return found


def middle(found: Sequence[NodeProto]) -> NodeProto:
    """The one in the middle."""
    return found[len(found) // 2]


def attribute(node: NodeProto, name: str, default: object = None) -> object:
    """An attribute's value."""
    for a in node.attribute:
        if a.name == name:
            return helper.get_attribute_value(a)
    return default


def set_attribute(node: NodeProto, name: str, value: object) -> None:
    """Set an attribute, in place of an old one."""
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def replace_node(graph: GraphProto, old: NodeProto, new: Sequence[NodeProto]) -> None:
    """Put other nodes where ``old`` was."""
    everything = list(graph.node)
    at = next(i for i, n in enumerate(everything) if n is old or n == old)
    everything[at : at + 1] = new
    copies = [NodeProto.FromString(n.SerializeToString()) for n in everything]
    del graph.node[:]
    graph.node.extend(copies)


def opset(model: ModelProto) -> int:
    """Version of the default domain."""
    return int(next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")))


def consumers(graph: GraphProto, name: str) -> list[NodeProto]:
    """Nodes that read a value; a graph output counts as unknown readers."""
    if any(o.name == name for o in graph.output):
        return []
    return [n for n in graph.node if name in n.input]


def splits(model: ModelProto, value: str, sizes: Sequence[int], axis: int) -> NodeProto:
    """A Split of ``value`` into parts of the given sizes."""
    outputs = [f"{value}_part{i}" for i in range(len(sizes))]
    if opset(model) < 13:
        return helper.make_node("Split", [value], outputs, axis=axis, split=list(sizes))
    name = f"{value}_sizes"
    set_weight(model.graph, name, np.array(sizes, np.int64))
    return helper.make_node("Split", [value, name], outputs, axis=axis)


# --- faults ---------------------------------------------------------------------------------------


def _epsilon(found: Sequence[NodeProto]) -> None:
    for node in found:
        set_attribute(node, "epsilon", 1e-3)


@fault
def bn_epsilon_everywhere(model: ModelProto) -> None:
    """Epsilon 1e-3 in every BatchNormalization."""
    _epsilon(nodes(model.graph, "BatchNormalization"))


@fault
def bn_epsilon_last(model: ModelProto) -> None:
    """Epsilon 1e-3 in the last BatchNormalization."""
    _epsilon(nodes(model.graph, "BatchNormalization")[-1:])


@fault
def bn_momentum(model: ModelProto) -> None:
    """Momentum, which inference does not read: masked."""
    for node in nodes(model.graph, "BatchNormalization"):
        set_attribute(node, "momentum", 0.5)


@fault
def bn_one_mean_dropped(model: ModelProto) -> None:
    """One channel's mean is zero."""
    node = middle(nodes(model.graph, "BatchNormalization"))
    mean = weight(model.graph, node.input[3])
    mean[np.argmax(np.abs(mean))] = 0
    set_weight(model.graph, node.input[3], mean)


def _scaled_element(model: ModelProto, node: NodeProto, factor: float) -> None:
    value = weight(model.graph, node.input[1])
    value.flat[np.argmax(np.abs(value))] *= np.float32(factor)
    set_weight(model.graph, node.input[1], value)


@fault
def one_weight_1_percent(model: ModelProto) -> None:
    """The largest weight of one layer times 1.01."""
    _scaled_element(model, middle(weighted(model.graph, "Conv", "Gemm", "MatMul")), 1.01)


@fault
def last_weight_1_percent(model: ModelProto) -> None:
    """The largest weight of the last layer times 1.01."""
    _scaled_element(model, weighted(model.graph, "Conv", "Gemm", "MatMul")[-1], 1.01)


@fault
def one_layer_tenth_percent(model: ModelProto) -> None:
    """All weights of one layer times 1.001."""
    node = middle(weighted(model.graph, "Conv", "Gemm", "MatMul"))
    value = weight(model.graph, node.input[1])
    set_weight(model.graph, node.input[1], value * np.float32(1.001))


def _half(model: ModelProto, found: Sequence[NodeProto]) -> None:
    for node in found:
        value = weight(model.graph, node.input[1])
        set_weight(model.graph, node.input[1], value.astype(np.float16).astype(np.float32))


@fault
def one_layer_fp16(model: ModelProto) -> None:
    """Weights of one layer rounded to float16."""
    _half(model, [middle(weighted(model.graph, "Conv", "Gemm", "MatMul"))])


@fault
def all_layers_fp16(model: ModelProto) -> None:
    """All weights rounded to float16."""
    _half(model, weighted(model.graph, "Conv", "Gemm", "MatMul"))


@fault
def bias_dropped(model: ModelProto) -> None:
    """One layer loses its bias."""
    found = [n for n in nodes(model.graph, "Conv", "Gemm") if len(n.input) > 2]
    if not found:
        raise NotApplicable("no bias")
    node = middle(found)
    set_weight(model.graph, node.input[2], weight(model.graph, node.input[2]) * 0)


@fault
def one_bias_shifted(model: ModelProto) -> None:
    """One element of one bias moves by a thousandth of the bias's RMS."""
    found = [n for n in nodes(model.graph, "Conv", "Gemm") if len(n.input) > 2]
    if not found:
        raise NotApplicable("no bias")
    value = weight(model.graph, middle(found).input[2])
    value.flat[value.size // 2] += np.float32(1e-3 * np.sqrt(np.mean(value**2)) or 1e-3)
    set_weight(model.graph, middle(found).input[2], value)


@fault
def channels_swapped(model: ModelProto) -> None:
    """Two output channels of one layer trade places."""
    node = middle(weighted(model.graph, "Conv", "Gemm", "MatMul"))
    value = weight(model.graph, node.input[1])
    value[[0, 1]] = value[[1, 0]]
    set_weight(model.graph, node.input[1], value)


def _leaky(found: Sequence[NodeProto]) -> None:
    for node in found:
        node.op_type = "LeakyRelu"
        set_attribute(node, "alpha", 0.01)


@fault
def relu_leaks_once(model: ModelProto) -> None:
    """One Relu becomes LeakyRelu(0.01)."""
    _leaky([middle(nodes(model.graph, "Relu"))])


@fault
def relu_leaks_everywhere(model: ModelProto) -> None:
    """Every Relu becomes LeakyRelu(0.01)."""
    _leaky(nodes(model.graph, "Relu"))


@fault
def relu_becomes_gelu(model: ModelProto) -> None:
    """One Relu becomes x * sigmoid(1.702 x)."""
    node = middle(nodes(model.graph, "Relu"))
    x, y = node.input[0], node.output[0]
    set_weight(model.graph, "gelu_factor", np.array(1.702, np.float32))
    new = [
        helper.make_node("Mul", [x, "gelu_factor"], ["gelu_a"]),
        helper.make_node("Sigmoid", ["gelu_a"], ["gelu_b"]),
        helper.make_node("Mul", [x, "gelu_b"], [y]),
    ]
    replace_node(model.graph, node, new)


@fault
def relu_clipped_at_six(model: ModelProto) -> None:
    """One Relu is bounded at 6; masked where nothing is that large."""
    node = middle(nodes(model.graph, "Relu"))
    _clip(model, node, 6.0)


def _clip(model: ModelProto, node: NodeProto, top: float) -> None:
    y = node.output[0]
    set_weight(model.graph, "clip_top", np.array(top, np.float32))
    inner = NodeProto.FromString(node.SerializeToString())
    inner.output[0] = "unclipped"
    new = [inner, helper.make_node("Min", ["unclipped", "clip_top"], [y])]
    replace_node(model.graph, node, new)


@fault
def clip_bound_moved(model: ModelProto) -> None:
    """The upper bound of a Clip is 1 % lower."""
    node = nodes(model.graph, "Clip")[-1]
    if len(node.input) > 2 and node.input[2]:
        bound = weight(model.graph, node.input[2])
        set_weight(model.graph, node.input[2], (bound * 0.99).astype(np.float32))
    else:
        set_attribute(node, "max", float(attribute(node, "max", 1.0)) * 0.99)  # type: ignore[arg-type]


@fault
def pads_shifted(model: ModelProto) -> None:
    """The padding of one window moves from the beginning to the end."""
    for node in nodes(model.graph, "Conv", "MaxPool", "AveragePool")[::-1]:
        pads = attribute(node, "pads")
        if isinstance(pads, list) and pads[0] > 0:
            half = len(pads) // 2
            set_attribute(
                node, "pads", [0] * half + [pads[i] + pads[i + half] for i in range(half)]
            )
            return
    raise NotApplicable("no padding")


@fault
def pool_counts_padding(model: ModelProto) -> None:
    """count_include_pad is flipped."""
    for node in nodes(model.graph, "AveragePool"):
        set_attribute(
            node, "count_include_pad", 1 - int(bool(attribute(node, "count_include_pad", 0)))
        )


@fault
def pool_of_another_kind(model: ModelProto) -> None:
    """The last MaxPool becomes AveragePool."""
    node = [n for n in nodes(model.graph, "MaxPool") if len(n.output) == 1][-1]
    node.op_type = "AveragePool"
    kept = [a for a in node.attribute if a.name not in ("storage_order", "dilations")]
    del node.attribute[:]
    node.attribute.extend(kept)


@fault
def transpose_permuted(model: ModelProto) -> None:
    """Two axes of one Transpose trade places."""
    node = middle(nodes(model.graph, "Transpose"))
    perm = attribute(node, "perm")
    if not isinstance(perm, list) or len(perm) < 3:
        raise NotApplicable("perm")
    set_attribute(node, "perm", [*perm[:-2], perm[-1], perm[-2]])


@fault
def shuffle_undone(model: ModelProto) -> None:
    """One Transpose does nothing, where the shape is wide enough to hide it."""
    node = middle(nodes(model.graph, "Transpose"))
    perm = attribute(node, "perm")
    set_attribute(node, "perm", sorted(perm) if isinstance(perm, list) else [0, 1])


@fault
def add_becomes_sub(model: ModelProto) -> None:
    """One Add of a constant becomes Sub."""
    middle(weighted(model.graph, "Add")).op_type = "Sub"


@fault
def concat_reordered(model: ModelProto) -> None:
    """One Concat has its inputs in the other order."""
    node = middle(nodes(model.graph, "Concat"))
    names = list(node.input)[::-1]
    del node.input[:]
    node.input.extend(names)


@fault
def gemm_alpha(model: ModelProto) -> None:
    """Alpha of the last Gemm is 1.0001."""
    set_attribute(nodes(model.graph, "Gemm")[-1], "alpha", 1.0001)


@fault
def lrn_alpha(model: ModelProto) -> None:
    """Alpha of LRN is 10 % larger."""
    for node in nodes(model.graph, "LRN"):
        set_attribute(node, "alpha", 1.1 * float(attribute(node, "alpha", 1e-4)))  # type: ignore[arg-type]


@fault
def relu_dropped(model: ModelProto) -> None:
    """One Relu does nothing."""
    middle(nodes(model.graph, "Relu")).op_type = "Identity"


@fault
def softmax_dropped(model: ModelProto) -> None:
    """The last Softmax does nothing."""
    node = nodes(model.graph, "Softmax")[-1]
    node.op_type = "Identity"
    del node.attribute[:]


@fault
def tanh_approximated(model: ModelProto) -> None:
    """Tanh becomes 2 * sigmoid(1.999 x) - 1, as a table lookup might."""
    node = nodes(model.graph, "Tanh")[-1]
    x, y = node.input[0], node.output[0]
    for name, value in (("tanh_a", 1.999), ("tanh_two", 2.0), ("tanh_one", 1.0)):
        set_weight(model.graph, name, np.array(value, np.float32))
    new = [
        helper.make_node("Mul", [x, "tanh_a"], ["tanh_x"]),
        helper.make_node("Sigmoid", ["tanh_x"], ["tanh_s"]),
        helper.make_node("Mul", ["tanh_s", "tanh_two"], ["tanh_d"]),
        helper.make_node("Sub", ["tanh_d", "tanh_one"], [y]),
    ]
    replace_node(model.graph, node, new)


# --- benign rewrites ------------------------------------------------------------------------------


@benign
def onnxoptimizer_default(model: ModelProto) -> ModelProto:
    """ONNX Optimizer's default pipeline."""
    import onnxoptimizer

    passes = onnxoptimizer.get_fuse_and_elimination_passes()
    made: ModelProto = onnxoptimizer.optimize(model, passes)
    return made


@benign
def opset_13(model: ModelProto) -> ModelProto:
    """onnx's version converter, to 13."""  # noqa: D403 - a package's name
    if opset(model) >= 13:
        raise NotApplicable("newer")
    return onnx.version_converter.convert_version(model, 13)


@benign
def opset_21(model: ModelProto) -> ModelProto:
    """onnx's version converter, to 21."""  # noqa: D403 - a package's name
    return onnx.version_converter.convert_version(model, 21)


def _offline(model: ModelProto, level: str) -> ModelProto:
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.log_severity_level = 4
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


@benign
def ort_basic(model: ModelProto) -> ModelProto:
    """ONNX Runtime's basic optimizations, saved."""
    return _offline(model, "ORT_ENABLE_BASIC")


@benign
def ort_extended(model: ModelProto) -> ModelProto:
    """ONNX Runtime's extended optimizations, saved."""
    return _offline(model, "ORT_ENABLE_EXTENDED")


@benign
def ort_all(model: ModelProto) -> ModelProto:
    """All of ONNX Runtime's optimizations, with blocked layouts, saved."""
    return _offline(model, "ORT_ENABLE_ALL")


def _bn_constants(graph: GraphProto, node: NodeProto) -> tuple[np.ndarray, np.ndarray]:
    scale, shift, mean, variance = (weight(graph, n).astype(np.float64) for n in node.input[1:5])
    epsilon = float(attribute(node, "epsilon", 1e-5))  # type: ignore[arg-type]
    factor = scale / np.sqrt(variance + epsilon)
    return factor, shift - mean * factor


@benign
def bn_folded(model: ModelProto) -> None:
    """BatchNormalization folded into the Conv before it, in float64, then rounded."""
    graph, done = model.graph, 0
    for node in list(nodes(graph, "BatchNormalization")):
        conv = next((n for n in graph.node if node.input[0] in n.output), None)
        if conv is None or conv.op_type != "Conv" or len(consumers(graph, conv.output[0])) != 1:
            continue
        factor, offset = _bn_constants(graph, node)
        value = weight(graph, conv.input[1]).astype(np.float64)
        name = f"plant_folded_{done}"
        bias = weight(graph, conv.input[2]).astype(np.float64) if len(conv.input) > 2 else 0.0
        folded = value * factor.reshape(-1, *[1] * (value.ndim - 1))
        set_weight(graph, f"{name}_w", folded.astype(np.float32))
        set_weight(graph, f"{name}_b", (bias * factor + offset).astype(np.float32))
        inputs = [conv.input[0], f"{name}_w", f"{name}_b"]
        del conv.input[:]
        conv.input.extend(inputs)
        node.op_type = "Identity"
        del node.input[1:]
        del node.attribute[:]
        done += 1
    if not done:
        raise NotApplicable("no Conv before it")


@benign
def bn_as_mul_add(model: ModelProto) -> None:
    """BatchNormalization as one Mul and one Add, constants made in float64."""
    graph = model.graph
    for i, node in enumerate(list(nodes(graph, "BatchNormalization"))):
        factor, offset = _bn_constants(graph, node)
        dims = (-1, 1, 1)
        set_weight(graph, f"bn_factor_{i}", factor.astype(np.float32).reshape(dims))
        set_weight(graph, f"bn_offset_{i}", offset.astype(np.float32).reshape(dims))
        new = [
            helper.make_node("Mul", [node.input[0], f"bn_factor_{i}"], [f"bn_scaled_{i}"]),
            helper.make_node("Add", [f"bn_scaled_{i}", f"bn_offset_{i}"], [node.output[0]]),
        ]
        replace_node(graph, node, new)


@benign
def conv_split(model: ModelProto) -> None:
    """Every plain Conv as the sum of two over halves of the input channels."""
    graph, done = model.graph, 0
    for i, conv in enumerate(list(weighted(graph, "Conv"))):
        value = weight(graph, conv.input[1])
        if attribute(conv, "group", 1) != 1 or value.shape[1] < 2:
            continue
        _split_sum(model, conv, value, 1, i)
        done += 1
    if not done:
        raise NotApplicable("no Conv to split")


def _split_sum(
    model: ModelProto, node: NodeProto, value: np.ndarray, axis: int, index: int
) -> None:
    graph, half = model.graph, value.shape[axis] // 2
    sizes = [half, value.shape[axis] - half]
    x = f"{node.input[0]}_for{index}"
    alias = helper.make_node("Identity", [node.input[0]], [x])
    first, second = (NodeProto.FromString(node.SerializeToString()) for _ in range(2))
    for part, copy in enumerate((first, second)):
        name = f"plant_part{index}_{part}"
        set_weight(graph, name, np.split(value, [half], axis=axis)[part])
        copy.input[0], copy.input[1] = f"{x}_part{part}", name
        copy.output[0] = f"plant_sum{index}_{part}"
        copy.name = name
    del second.input[2:]
    data_axis = 1 if node.op_type == "Conv" else -1
    new = [
        alias,
        splits(model, x, sizes, data_axis),
        first,
        second,
        helper.make_node("Add", [first.output[0], second.output[0]], [node.output[0]]),
    ]
    replace_node(graph, node, new)


@benign
def matmul_split(model: ModelProto) -> None:
    """Every MatMul, and Gemm without transposition, as the sum over halves of K."""
    graph, done = model.graph, 0
    for i, node in enumerate(list(weighted(graph, "MatMul", "Gemm"))):
        value = weight(graph, node.input[1])
        transposed = attribute(node, "transA", 0) or attribute(node, "transB", 0)
        if transposed or value.ndim != 2 or value.shape[0] < 2:
            continue
        _split_sum(model, node, value, 0, i)
        done += 1
    if not done:
        raise NotApplicable("no MatMul to split")


_PER_CHANNEL = ("Relu", "BatchNormalization", "MaxPool", "AveragePool", "LeakyRelu", "Dropout")


def _chains(graph: GraphProto) -> Iterator[tuple[NodeProto, list[NodeProto], NodeProto]]:
    for conv in [n for n in graph.node if n.op_type == "Conv"]:
        between, value = [], conv.output[0]
        while len(found := consumers(graph, value)) == 1 and found[0].op_type in _PER_CHANNEL:
            between.append(found[0])
            value = found[0].output[0]
        if len(found) == 1 and found[0].op_type == "Conv" and found[0].input[0] == value:
            yield conv, between, found[0]


@benign
def channels_permuted(model: ModelProto) -> None:
    """Channels between two Convs in another order, on both sides."""
    graph, done = model.graph, 0
    rng = np.random.default_rng(0)
    for first, between, second in list(_chains(graph)):
        if attribute(first, "group", 1) != 1 or attribute(second, "group", 1) != 1:
            continue
        a, b = weight(graph, first.input[1]), weight(graph, second.input[1])
        order = rng.permutation(a.shape[0])
        set_weight(graph, first.input[1], a[order])
        set_weight(graph, second.input[1], b[:, order])
        names = list(first.input[2:])
        names += [n for node in between for n in node.input[1:]]
        for name in names:
            set_weight(graph, name, weight(graph, name)[order])
        done += 1
    if not done:
        raise NotApplicable("no two Convs in a row")


@benign
def identities(model: ModelProto) -> None:
    """An Identity before every fifth node."""
    for i, node in enumerate(list(model.graph.node)[::5]):
        new = NodeProto.FromString(node.SerializeToString())
        if not node.input or not node.input[0]:
            continue
        new.input[0] = f"plant_same{i}"
        replace_node(
            model.graph,
            node,
            [helper.make_node("Identity", [node.input[0]], [f"plant_same{i}"]), new],
        )


def _there_and_back(model: ModelProto, factor: float) -> None:
    set_weight(model.graph, "plant_factor", np.array(factor, np.float32))
    found = nodes(model.graph, "Relu", "Tanh", "Sigmoid", "MatMul", "Gemm")
    for i, node in enumerate(list(found)):
        inner = NodeProto.FromString(node.SerializeToString())
        inner.output[0] = f"plant_before{i}"
        new = [
            inner,
            helper.make_node("Mul", [f"plant_before{i}", "plant_factor"], [f"plant_scaled{i}"]),
            helper.make_node("Div", [f"plant_scaled{i}", "plant_factor"], [node.output[0]]),
        ]
        replace_node(model.graph, node, new)


@benign
def times_two_over_two(model: ModelProto) -> None:
    """Times 2, divided by 2: exact."""
    _there_and_back(model, 2.0)


@benign
def times_three_over_three(model: ModelProto) -> None:
    """Times 3, divided by 3: two roundings."""
    _there_and_back(model, 3.0)


@benign
def relu_as_max(model: ModelProto) -> None:
    """Every Relu as Max(x, 0)."""
    set_weight(model.graph, "plant_zero", np.array(0, np.float32))
    for node in nodes(model.graph, "Relu"):
        node.op_type = "Max"
        node.input.append("plant_zero")


@benign
def gemm_as_matmul_add(model: ModelProto) -> None:
    """Every plain Gemm as MatMul and Add."""
    graph, done = model.graph, 0
    for i, node in enumerate(list(weighted(graph, "Gemm"))):
        plain = attribute(node, "alpha", 1.0) == 1.0 and attribute(node, "beta", 1.0) == 1.0
        if not plain or attribute(node, "transA", 0) or len(node.input) < 3:
            continue
        value = weight(graph, node.input[1])
        set_weight(graph, f"plant_b{i}", value.T if attribute(node, "transB", 0) else value)
        new = [
            helper.make_node("MatMul", [node.input[0], f"plant_b{i}"], [f"plant_product{i}"]),
            helper.make_node("Add", [f"plant_product{i}", node.input[2]], [node.output[0]]),
        ]
        replace_node(graph, node, new)
        done += 1
    if not done:
        raise NotApplicable("no plain Gemm")


@benign
def mean_as_sums(model: ModelProto) -> None:
    """GlobalAveragePool as ReduceMean over the last axis, then over the one before."""
    for i, node in enumerate(list(nodes(model.graph, "GlobalAveragePool"))):
        if opset(model) >= 18:
            raise NotApplicable("axes are an input")
        new = [
            helper.make_node(
                "ReduceMean", [node.input[0]], [f"plant_rows{i}"], axes=[3], keepdims=1
            ),
            helper.make_node(
                "ReduceMean", [f"plant_rows{i}"], [node.output[0]], axes=[2], keepdims=1
            ),
        ]
        replace_node(model.graph, node, new)


# --- quantized models -----------------------------------------------------------------------------

PLACES = (0.0, 0.5, 1.0)
"""Where in a quantized model: at its first, middle and last place of a kind."""


def _quantized(plant: Plant, where: float, *, raw: bool = False) -> Rewrite:
    """A rewrite of a quantized model that ONNX Runtime then optimizes, which loses the names."""

    def rewrite(model: ModelProto) -> ModelProto:
        try:
            plant(model, where)
        except ValueError as error:
            raise NotApplicable(str(error)) from error
        return model if raw else _offline(model, "ORT_ENABLE_ALL")

    return rewrite


QUANTIZED, RAW, ALONE = "quantized_", "raw_", "quantized_alone"
UNOPTIMIZED[ALONE] = _quantized(lambda model, where: None, 0.0)
"""Nothing but what ONNX Runtime makes of the model."""
for _where in PLACES:
    for _name, _plant in QUANTIZED_FAULTS.items():
        FAULTS[f"{QUANTIZED}{_name}_{_where:.0%}"] = _quantized(_plant, _where)
        UNOPTIMIZED[f"{RAW}{QUANTIZED}{_name}_{_where:.0%}"] = _quantized(_plant, _where, raw=True)
    for _name, _plant in QUANTIZED_BENIGN.items():
        BENIGN[f"{QUANTIZED}{_name}_{_where:.0%}"] = _quantized(_plant, _where)
