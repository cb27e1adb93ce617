"""A float64 oracle: what a model would compute if its arithmetic hardly rounded.

The graph is rewritten in double precision (``promote``) and interpreted by ONNX's reference
evaluator (``evaluate``). The evaluator is slow in places and silently wrong in others, so the
operators below take the place of its own; each says why. The distance of a float32 runtime from
this result is that runtime's own rounding error, the noise floor under every comparison.

What stays as the model says it, because it is the model's meaning and not its arithmetic:

- Float attributes (``epsilon``, ``alpha``): the standard stores them as float32.
- Quantization: the inputs of QuantizeLinear and its kin are rounded to float32, as their schema
  demands, so that a value on the boundary of two steps falls as it does in a float32 runtime.
- A Cast to a half type in a model without half-typed weights or inputs: there the rounding is
  asked for, so it is carried out and the result continues in double. In a half-precision model
  such casts only place the values, and they are promoted like everything else.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as _StockLoop
from scipy import special

from optvet.graph.types import element_types
from optvet.graph.walk import ONNX_DOMAIN, domain_of, graphs, is_onnx
from optvet.graph.weights import constant_tensors

Array = NDArray[Any]
Pads = list[tuple[int, int]]

_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SINGLES = (TensorProto.FLOAT, *_HALVES)

# A patch matrix of this size stays near the cache and bounds memory: unblocked, a convolution of
# VGG-19 alone takes 230 MB and the model 7.7 GB.
_PATCH_BYTES = 32 * 2**20

# Their schema fixes float32, but the evaluator only moves values about, so nothing is lost.
_EXACT_ML = frozenset(
    {
        "ArrayFeatureExtractor",
        "Binarizer",
        "DictVectorizer",
        "FeatureVectorizer",
        "Imputer",
        "LabelEncoder",
        "OneHotEncoder",
    }
)

_SINGLE_INSIDE = frozenset({"AffineGrid", "CausalConvWithState", "GridSample", "LinearAttention"})

_BINARY = frozenset("Add And Div Equal Greater Less Mul Or PRelu Pow Sub Xor".split())

# What the evaluator's recurrent operators compute, whatever their attributes ask for.
_RECURRENT = {"GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "RNN": ["tanh"]}

# Attributes that name the element type of an output. stash_type and softmax_precision are not
# among them: they name the type of intermediate results.
_TYPE_ATTRIBUTES = {
    "Bernoulli": "dtype",
    "BlackmanWindow": "output_datatype",
    "Cast": "to",
    "EyeLike": "dtype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
    "SequenceEmpty": "dtype",
}
_FLOAT_BY_DEFAULT = frozenset(
    {
        "BlackmanWindow",
        "HammingWindow",
        "HannWindow",
        "MelWeightMatrix",
        "RandomNormal",
        "RandomUniform",
        "SequenceEmpty",
    }
)


class NotPromotable(ValueError):
    """There is no trustworthy float64 evaluation of this model; the message says why."""


def promote(model: ModelProto) -> ModelProto:
    """The same graph in double precision, with local functions inlined.

    Args:
        model: A model with all its weights in memory; it is left as it is.

    Returns:
        A model of equal input and output names in which every float32, float16 and bfloat16
        tensor is a double, subgraphs included. Where an operator has no double version, Cast
        nodes surround it.

    Raises:
        NotPromotable: An operator cannot be evaluated, or only in single precision.
    """
    model = _inlined(model)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    promotion = _Promotion(opsets, _keeps_half_casts(model.graph), element_types(model))
    promotion.graph(model.graph)
    return model


def evaluate(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of ``model`` for ``feeds``, computed in double precision.

    Random operators are evaluated too; whoever calls leaves out the outputs that depend on them.

    Args:
        model: Any model; it is promoted first.
        feeds: Inputs by name; floating arrays of any width, converted without loss.

    Returns:
        All graph outputs by name: floats as float64, everything else in its own type.

    Raises:
        NotPromotable: The model cannot be evaluated, or the evaluator fails on these inputs.
    """
    return evaluator(model)(feeds)


Evaluation = Callable[[Mapping[str, Array]], dict[str, Array]]


def evaluator(model: ModelProto, *, double: bool = True) -> Evaluation:
    """``model`` made ready for many runs of ONNX's reference evaluator, its defects corrected.

    Args:
        model: Any model with all its weights in memory.
        double: Compute in float64 and return floats as float64; else every tensor keeps its type.

    Returns:
        A function from inputs to outputs, both by name; it raises NotPromotable where the
        evaluator fails.

    Raises:
        NotPromotable: The model cannot be evaluated, or only wrongly.
    """
    ready = promote(model) if double else _checked(model)
    opsets = {entry.domain: entry.version for entry in ready.opset_import}
    names = [output.name for output in ready.graph.output]
    widened = _doubled if double else _unchanged

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        try:
            # Overflow and NaN are results here, to be compared like any other.
            with np.errstate(all="ignore"):
                session = ReferenceEvaluator(ready, new_ops=list(_operators(opsets, double)))
                values = session.run(None, {name: widened(x) for name, x in feeds.items()})
        except MemoryError:
            raise
        except Exception as error:
            reason = f"the reference evaluator fails: {type(error).__name__}: {str(error)[:300]}"
            raise NotPromotable(reason) from error
        return {name: widened(value) for name, value in zip(names, values, strict=True)}

    return run


def _checked(model: ModelProto) -> ModelProto:
    """A copy of ``model`` for evaluation as it is; NotPromotable if that would go wrong."""
    model = _inlined(model)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    check = _Promotion(opsets, True, {}, double=False)
    for graph in graphs(model.graph):
        for node in graph.node:
            if reason := check.refusal(node):
                raise NotPromotable(f"operator {node.op_type} {node.name!r}: {reason}")
    return model


def _unchanged(value: Any) -> Any:
    return value


# --- Promotion ----------------------------------------------------------------------------------


def _inlined(model: ModelProto) -> ModelProto:
    """A copy of ``model`` without local functions, its standard domain spelled ""."""
    if model.functions:
        try:
            copy = inline_local_functions(model)
        except Exception as error:  # the inliner raises whatever its C++ side threw
            raise NotPromotable(f"its functions cannot be inlined: {error}") from error
    else:
        copy = ModelProto()
        copy.CopyFrom(model)
    del copy.functions[:]
    for entry in copy.opset_import:
        entry.domain = "" if domain_of(entry) == ONNX_DOMAIN else entry.domain
    for graph in graphs(copy.graph):
        for node in graph.node:
            node.domain = "" if is_onnx(node) else node.domain
    return copy


def _keeps_half_casts(graph: GraphProto) -> bool:
    """Whether a Cast to a half type is meant to round: no weight or input is a half itself."""
    for each in graphs(graph):
        inputs = (value.type.tensor_type.elem_type for value in each.input)
        weights = (tensor.data_type for tensor in (*each.initializer, *constant_tensors(each)))
        sparse = (tensor.values.data_type for tensor in each.sparse_initializer)
        if any(kind in _HALVES for kind in itertools.chain(inputs, weights, sparse)):
            return False
    return True


class _Promotion:
    """One run of ``promote``: rewrites graphs in place and names the Casts that it adds."""

    def __init__(
        self,
        opsets: Mapping[str, int],
        keeps_half_casts: bool,
        types: Mapping[str, int],
        *,
        double: bool = True,
    ) -> None:
        self.opsets, self.keeps_half_casts, self.types = opsets, keeps_half_casts, types
        self.double = double
        self.own = {(op.op_domain, op.__name__) for op in _operators(opsets)}
        self.fresh = itertools.count()

    def graph(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            _promote_tensor(tensor)
        for sparse in graph.sparse_initializer:
            _promote_tensor(sparse.values)
        for value in itertools.chain(graph.input, graph.output):
            _promote_type(value.type)
        del graph.value_info[:]  # types of the old graph
        nodes = [new for node in graph.node for new in self.node(node)]
        del graph.node[:]
        graph.node.extend(nodes)

    def node(self, original: NodeProto) -> list[NodeProto]:
        node = NodeProto()
        node.CopyFrom(original)
        if reason := self.refusal(node):
            raise NotPromotable(f"operator {node.op_type} {node.name!r}: {reason}")
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node or body.output:
                    self.graph(body)
        if node.domain == "":
            if node.op_type == "Cast" and self.keeps_half_casts and _cast_to(node) in _HALVES:
                return self.rounding_cast(node)
            _promote_attributes(node)
        return self.surrounded(node)

    def refusal(self, node: NodeProto) -> str | None:
        """Why ``node`` has no double-precision value, or None."""
        if self.opsets.get("", 7) < 7 and node.op_type in _BINARY:
            axis = any(each.name == "axis" for each in node.attribute)
            if axis or node.op_type == "PRelu":  # whose slopes lie along the channels there
                return "it broadcasts along an axis, as before opset 7"
        if (node.domain, node.op_type) in self.own:
            return None
        if node.domain == "ai.onnx.ml" and self.double:
            return None if node.op_type in _EXACT_ML else "evaluated in single precision only"
        if node.domain not in ("", "ai.onnx.ml"):
            return f"domain {node.domain!r} has no reference implementation"
        if self.double and node.op_type in _SINGLE_INSIDE:
            return "evaluated in single precision only"
        if self.double and node.op_type == "BitCast":
            return "depends on the bits of a single-precision number"
        if node.op_type in _RECURRENT and (ignored := _ignored(node)):
            return f"the reference evaluator ignores its {ignored}"
        opset = self.opsets.get(node.domain, 1)
        return None if _is_implemented(node.op_type, opset, node.domain) else "not implemented"

    def rounding_cast(self, node: NodeProto) -> list[NodeProto]:
        half = self.name(node.output[0])
        widen = onnx.helper.make_node("Cast", [half], [node.output[0]], to=TensorProto.DOUBLE)
        node.output[0] = half
        return [node, widen]

    def surrounded(self, node: NodeProto) -> list[NodeProto]:
        """``node`` between the Casts that its schema makes necessary."""
        before: list[NodeProto] = []
        after: list[NodeProto] = []
        try:
            schema = onnx.defs.get_schema(
                node.op_type, self.opsets.get(node.domain, 1), node.domain
            )
        except onnx.defs.SchemaError:
            return [node]  # operators of other domains take doubles: they are this module's own
        for index, name in enumerate(node.input):
            if name and self.is_narrow(schema.inputs, index, name):
                node.input[index] = self.name(name)
                to = TensorProto.FLOAT
                before.append(onnx.helper.make_node("Cast", [name], [node.input[index]], to=to))
        for index, name in enumerate(node.output):
            if name and self.is_narrow(schema.outputs, index, name):
                node.output[index] = self.name(name)
                to = TensorProto.DOUBLE
                after.append(onnx.helper.make_node("Cast", [node.output[index]], [name], to=to))
        return [*before, node, *after]

    def is_narrow(self, formals: Sequence[Any], index: int, name: str) -> bool:
        """Whether a float parameter may not be a double."""
        if not formals:
            return False
        allowed = formals[min(index, len(formals) - 1)].types
        if "tensor(float)" not in allowed or "tensor(double)" in allowed:
            return False
        singles = {"tensor(float)", "tensor(float16)", "tensor(bfloat16)"}
        kind = self.types.get(name)
        return kind in _SINGLES if kind is not None else allowed <= singles

    def name(self, base: str) -> str:
        return f"{base}__float64_{next(self.fresh)}"


def _ignored(node: NodeProto) -> str | None:
    """What the evaluator silently ignores of a recurrent node, or None."""
    if len(node.input) > 4 and node.input[4]:
        return "sequence_lens"
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name == "activations":
            usual, names = _RECURRENT[node.op_type], [name.decode().lower() for name in value]
            if names != usual * (len(names) // len(usual)):
                return "activations"
        elif attribute.name in ("clip", "input_forget", "activation_alpha", "activation_beta"):
            if value:
                return str(attribute.name)
    return None


def _promote_attributes(node: NodeProto) -> None:
    """Double-precision constants and result types in the attributes of a standard operator."""
    if node.op_type == "Constant":
        _promote_constant(node)
    elif node.op_type == "ConstantOfShape":
        if not node.attribute:
            zero = onnx.numpy_helper.from_array(np.zeros(1))
            node.attribute.append(onnx.helper.make_attribute("value", zero))
        else:
            _promote_tensor(node.attribute[0].t)
    elif (name := _TYPE_ATTRIBUTES.get(node.op_type)) is not None:
        found = next((each for each in node.attribute if each.name == name), None)
        if found is None and node.op_type in _FLOAT_BY_DEFAULT:
            node.attribute.append(onnx.helper.make_attribute(name, int(TensorProto.DOUBLE)))
        elif found is not None and found.i in _SINGLES:
            found.i = TensorProto.DOUBLE
    elif node.op_type in ("Attention", "DequantizeLinear"):
        # They would round inside, or name a result type that is a double now.
        kept = [
            each
            for each in node.attribute
            if each.name not in ("softmax_precision", "output_dtype") or each.i not in _SINGLES
        ]
        del node.attribute[:]
        node.attribute.extend(kept)


def _promote_constant(node: NodeProto) -> None:
    (attribute,) = node.attribute
    if attribute.type == AttributeProto.TENSOR:
        _promote_tensor(attribute.t)
    elif attribute.type == AttributeProto.SPARSE_TENSOR:
        _promote_tensor(attribute.sparse_tensor.values)
    elif attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
        values = attribute.f if attribute.type == AttributeProto.FLOAT else list(attribute.floats)
        tensor = onnx.numpy_helper.from_array(np.asarray(values, np.float64))
        attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))


def _promote_tensor(tensor: TensorProto) -> None:
    if tensor.data_type not in _SINGLES:
        return
    if tensor.data_location == TensorProto.EXTERNAL:
        raise NotPromotable(f"the data of tensor {tensor.name!r} is not in the model")
    array = np.asarray(onnx.numpy_helper.to_array(tensor)).astype(np.float64)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _promote_type(kind: onnx.TypeProto) -> None:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(kind, which)
        tensor.elem_type = TensorProto.DOUBLE if tensor.elem_type in _SINGLES else tensor.elem_type
    elif which in ("sequence_type", "optional_type"):
        _promote_type(getattr(kind, which).elem_type)


def _cast_to(node: NodeProto) -> int:
    return next((int(each.i) for each in node.attribute if each.name == "to"), 0)


@functools.cache
def _is_implemented(op_type: str, opset: int, domain: str) -> bool:
    """Whether the reference evaluator knows a standard operator, perhaps as a function."""
    node = onnx.helper.make_node(op_type, [], [], domain=domain)
    try:
        from onnx.reference.op_run import RuntimeContextError
        from onnx.reference.ops import load_op

        load_op(node.domain, op_type, opset, evaluator_cls=ReferenceEvaluator)
    except RuntimeContextError:
        return True  # a function whose body depends on the types of its inputs
    except Exception:  # every way of not knowing it, which differ between versions of onnx
        return False
    return True


def _doubled(value: Any) -> Any:
    """``value`` with its floats as float64; sequences element by element."""
    if isinstance(value, list):
        return [_doubled(each) for each in value]
    if isinstance(value, np.ndarray | np.generic) and _is_float(value.dtype):
        return np.asarray(value, np.float64)
    return value


def _float_type(inputs: Sequence[Any]) -> np.dtype[Any]:
    """Type of the first input that is a float."""
    types = (x.dtype for x in inputs if isinstance(x, np.ndarray) and _is_float(x.dtype))
    return next(types, np.dtype(np.float32))


def _at_least_single(x: Any) -> Any:
    """Halves as float32: their products are not to be summed up in a half."""
    half = isinstance(x, np.ndarray) and _is_float(x.dtype) and x.dtype.itemsize < 4
    return x.astype(np.float32) if half else x


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


# --- Operators: windows -------------------------------------------------------------------------
# All take arrays of shape (batch, channels, *spatial), for any number of spatial axes.


def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **_: Any,
) -> Array:
    """Conv as a product of matrices: the evaluator's own is 10 to 100 times slower."""
    kernel = w.shape[2:]
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    x = _padded(x, _pads(x.shape[2:], kernel, strides, dilations, pads, auto_pad), 0)
    sizes = [
        (size - _extent(k, d)) // s + 1
        for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    ]
    if group == x.shape[1] == w.shape[0]:
        y = _depthwise(x, w, sizes, strides, dilations)
    else:
        y = _grouped(x, w, sizes, strides, dilations, group)
    return y if b is None else y + b.reshape(-1, *[1] * len(kernel))


def _depthwise(
    x: Array, w: Array, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    # One kernel per channel: a matrix product would have rows of one element.
    y = np.zeros((*x.shape[:2], *sizes))
    taps = w.reshape(w.shape[0], -1)
    for tap, values in enumerate(_taps(x, w.shape[2:], sizes, strides, dilations)):
        y += taps[:, tap].reshape(-1, *[1] * len(sizes)) * values
    return y


def _grouped(
    x: Array,
    w: Array,
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Array:
    rank, kernel = len(sizes), w.shape[2:]
    weights = w.reshape(group, w.shape[0] // group, -1)
    y = np.empty((x.shape[0], w.shape[0], *sizes))
    windows = _windows(x, kernel, strides, dilations)
    # (channels, rows, …, taps) → (channels, taps, rows, …)
    order = (0, *range(rank + 1, 2 * rank + 1), *range(1, rank + 1))
    row_bytes = 8 * x.shape[1] * math.prod(kernel) * math.prod(sizes[1:])
    rows = max(1, _PATCH_BYTES // max(1, row_bytes))
    for image in range(x.shape[0]):
        for start in range(0, sizes[0], rows):
            part = windows[image, :, start : start + rows]
            patches = part.transpose(order).reshape(
                group, weights.shape[2], math.prod(part.shape[1 : rank + 1])
            )
            product = np.matmul(weights, patches)
            y[image, :, start : start + rows] = product.reshape(
                w.shape[0], *part.shape[1 : rank + 1]
            )
    return y


def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **_: Any,
) -> Array:
    """ConvTranspose: the evaluator's own loops in Python and is wrong for some groups."""
    kernel, rank = w.shape[2:], w.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    extra = output_padding or [0] * rank
    spatial = x.shape[2:]
    full = [
        s * (n - 1) + p + _extent(k, d)
        for n, k, s, d, p in zip(spatial, kernel, strides, dilations, extra, strict=True)
    ]
    if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = [n * s for n, s in zip(spatial, strides, strict=True)]
    if output_shape is not None:
        output_shape = output_shape[-rank:]
        totals = [max(0, f - o) for f, o in zip(full, output_shape, strict=True)]
        halves = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals]
        pads = [*halves, *(t - h for t, h in zip(totals, halves, strict=True))]
    pads = pads if pads is not None and auto_pad != "VALID" else [0] * 2 * rank
    batch, channels = x.shape[:2]
    weights = w.reshape(group, channels // group, -1).transpose(0, 2, 1)
    columns = np.matmul(weights, x.reshape(batch, group, channels // group, -1))
    taps = math.prod(kernel)
    columns = columns.reshape(batch, group * w.shape[1], taps, *spatial)
    reach = [max(f, o + p) for f, o, p in zip(full, output_shape or full, pads, strict=False)]
    y = np.zeros((batch, group * w.shape[1], *reach))
    for tap, target in enumerate(_taps(y, kernel, spatial, strides, dilations)):
        target += columns[:, :, tap]
    ends = output_shape or [f - pads[i] - pads[rank + i] for i, f in enumerate(full)]
    y = _at(y, [slice(pads[i], pads[i] + end) for i, end in enumerate(ends)])
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def max_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    outputs: int = 1,
    **_: Any,
) -> tuple[Array, ...]:
    """MaxPool by shifted maxima: the evaluator's own loops in Python over every output."""
    strides, dilations = strides or [1] * len(kernel_shape), dilations or [1] * len(kernel_shape)
    borders = _pads(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    sizes = _pooled(x.shape[2:], kernel_shape, strides, dilations, borders, ceil_mode, auto_pad)
    lowest = -np.inf if _is_float(x.dtype) else np.iinfo(x.dtype).min
    wide = _reaching(x, kernel_shape, sizes, strides, dilations, borders, lowest)
    taps = _taps(wide, kernel_shape, sizes, strides, dilations)
    y = functools.reduce(np.maximum, taps)
    y = np.array(y)  # of a 1-wide kernel, the reduction is a view
    if outputs == 1:
        return (y,)
    positions = np.arange(x.size).reshape(x.shape)
    if storage_order:
        plane = math.prod(x.shape[2:])
        columns = np.arange(plane).reshape(x.shape[2:][::-1]).T
        positions = positions - positions % plane + columns
    wide_positions = _reaching(positions, kernel_shape, sizes, strides, dilations, borders, -1)
    indices = np.full(y.shape, -1, np.int64)
    pairs = zip(
        _taps(wide, kernel_shape, sizes, strides, dilations),
        _taps(wide_positions, kernel_shape, sizes, strides, dilations),
        strict=True,
    )
    for values, places in pairs:  # the first maximum wins
        np.copyto(indices, places, where=(indices < 0) & (values == y) & (places >= 0))
    return y, indices


def average_pool(
    x: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    **_: Any,
) -> Array:
    """AveragePool by shifted sums; what a window hangs over the padded input does not count."""
    strides, dilations = strides or [1] * len(kernel_shape), dilations or [1] * len(kernel_shape)
    borders = _pads(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    sizes = _pooled(x.shape[2:], kernel_shape, strides, dilations, borders, ceil_mode, auto_pad)
    counted = np.ones((1, 1, *x.shape[2:]))
    if count_include_pad:
        counted = _padded(counted, borders, 1)
        around = [(0, 0)] * len(borders)
    else:
        around = borders
    places = _reaching(counted, kernel_shape, sizes, strides, dilations, around, 0)
    wide = _reaching(x, kernel_shape, sizes, strides, dilations, borders, 0)
    total = functools.reduce(np.add, _taps(wide, kernel_shape, sizes, strides, dilations))
    count = functools.reduce(np.add, _taps(places, kernel_shape, sizes, strides, dilations))
    return np.asarray(total / count)


def global_pool(x: Array, reduce: Callable[..., Any]) -> Array:
    """Global pooling over all spatial axes; the evaluator's own leaves a wrong rank in 1-D."""
    return np.asarray(reduce(x, axis=tuple(range(2, x.ndim)), keepdims=True))


def global_average_pool(x: Array, **_: Any) -> Array:
    """GlobalAveragePool."""
    return global_pool(x, np.mean)


def global_max_pool(x: Array, **_: Any) -> Array:
    """GlobalMaxPool."""
    return global_pool(x, np.max)


def _extent(kernel: int, dilation: int) -> int:
    return (kernel - 1) * dilation + 1


def _pads(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Pads:
    """Padding in front of and behind each spatial axis."""
    rank = len(spatial)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max(0, (-(-n // s) - 1) * s + _extent(k, d) - n)
            for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True)
        ]
        smaller = [(total // 2, total - total // 2) for total in totals]
        return smaller if auto_pad == "SAME_UPPER" else [(b, a) for a, b in smaller]
    if pads is None or auto_pad == "VALID":
        return [(0, 0)] * rank
    return [(pads[i], pads[rank + i]) for i in range(rank)]


def _pooled(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    borders: Pads,
    ceil_mode: int,
    auto_pad: str,
) -> list[int]:
    """Output sizes; with ``ceil_mode`` no window may start in the padding behind the input."""
    sizes = []
    for n, k, s, d, (front, back) in zip(spatial, kernel, strides, dilations, borders, strict=True):
        room = n + front + back - _extent(k, d)
        size = room // s + 1
        if ceil_mode and not auto_pad.startswith("SAME"):
            size = -(-room // s) + 1
            size -= (size - 1) * s >= n + front
        sizes.append(size)
    return sizes


def _padded(x: Array, borders: Pads, fill: Any) -> Array:
    if all(border == (0, 0) for border in borders):
        return x
    # Negative padding crops; np.pad refuses it.
    crop = [
        slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape[2:], borders, strict=True)
    ]
    grown = [(0, 0), (0, 0), *((max(0, a), max(0, b)) for a, b in borders)]
    return np.pad(_at(x, crop), grown, constant_values=fill)


def _reaching(
    x: Array,
    kernel: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    borders: Pads,
    fill: Any,
) -> Array:
    """``x`` padded in front by ``borders`` and behind as far as the last window reaches."""
    ends = [
        max(0, (size - 1) * s + _extent(k, d) - n - front)
        for n, k, size, s, d, (front, _) in zip(
            x.shape[2:], kernel, sizes, strides, dilations, borders, strict=True
        )
    ]
    return _padded(x, [(a, end) for (a, _), end in zip(borders, ends, strict=True)], fill)


def _windows(
    x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    """A view of shape (batch, channels, *sizes, *kernel)."""
    extents = tuple(_extent(k, d) for k, d in zip(kernel, dilations, strict=True))
    views = sliding_window_view(x, extents, axis=tuple(range(2, x.ndim)))
    steps = (slice(None, None, step) for step in (*strides, *dilations))
    return views[(slice(None), slice(None), *steps)]


def _taps(
    x: Array,
    kernel: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Iterator[Array]:
    """For each kernel element, the view of ``x`` that it meets, of spatial shape ``sizes``."""
    for offsets in itertools.product(*(range(k) for k in kernel)):
        starts = [offset * d for offset, d in zip(offsets, dilations, strict=True)]
        ends = [a + (n - 1) * s + 1 for a, n, s in zip(starts, sizes, strides, strict=True)]
        yield _at(x, [slice(*each) for each in zip(starts, ends, strides, strict=True)])


def _at(x: Array, spatial: Sequence[slice]) -> Array:
    return x[(slice(None), slice(None), *spatial)]


# --- Operators: normalization and activation ----------------------------------------------------


def batch_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float,
    is_test: int = 1,
    outputs: int = 1,
    **_: Any,
) -> Array:
    """BatchNormalization before opset 14: the evaluator blends in statistics of the batch.

    https://github.com/onnx/onnx/issues/5799; ResNet-50 is off by a factor of 154 there.
    """
    if outputs > 1 or not is_test:
        raise NotImplementedError("BatchNormalization in training mode before opset 14")

    def aligned(parameter: Array) -> Array:  # also of one value per element, spatial = 0
        return parameter.reshape(parameter.shape + (1,) * (x.ndim - 1 - parameter.ndim))

    spread = np.sqrt(aligned(variance) + epsilon)
    return np.asarray(aligned(scale) * ((x - aligned(mean)) / spread) + aligned(bias))


def group_normalization(
    x: Array, scale: Array, bias: Array, *, epsilon: float, num_groups: int, **_: Any
) -> Array:
    """GroupNormalization: the function in its schema computes in float32."""
    groups = x.reshape(x.shape[0], num_groups, -1)
    centred = groups - groups.mean(axis=2, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + epsilon)

    def aligned(parameter: Array) -> Array:
        # One value per group in opset 18, one per channel since opset 21.
        return np.repeat(parameter, x.shape[1] // parameter.size).reshape(-1, *[1] * (x.ndim - 2))

    return np.asarray(normal.reshape(x.shape) * aligned(scale) + aligned(bias))


def lrn(x: Array, *, alpha: float, beta: float, bias: float, size: int, **_: Any) -> Array:
    """LRN: the evaluator's own counts channels up to the batch size."""
    front = (size - 1) // 2
    around = [(0, 0), (front, size - 1 - front), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(x**2, around)
    total = sum(squares[:, i : i + x.shape[1]] for i in range(size))
    return np.asarray(x / (bias + alpha / size * total) ** beta)


def softmax_before_13(x: Array, *, axis: int = 1, **_: Any) -> Array:
    """Softmax over all axes from ``axis`` on; the evaluator knows opset 13 only."""
    rows = _rows(x, axis)
    powers = np.exp(rows - rows.max(axis=1, keepdims=True, initial=-np.inf))
    return np.reshape(powers / powers.sum(axis=1, keepdims=True), x.shape)


def log_softmax_before_13(x: Array, *, axis: int = 1, **_: Any) -> Array:
    """LogSoftmax over all axes from ``axis`` on."""
    rows = _rows(x, axis)
    shifted = rows - rows.max(axis=1, keepdims=True, initial=-np.inf)
    return np.reshape(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), x.shape)


def hardmax_before_13(x: Array, *, axis: int = 1, **_: Any) -> Array:
    """Hardmax over all axes from ``axis`` on."""
    rows = _rows(x, axis)
    y = np.zeros_like(rows)
    y[np.arange(len(rows)), rows.argmax(axis=1)] = 1
    return y.reshape(x.shape)


def _rows(x: Array, axis: int) -> Array:
    axis += x.ndim if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def erf(x: Array, **_: Any) -> Array:
    """Erf: the evaluator's own returns float32 in disguise."""
    return np.asarray(special.erf(x))


def mean_variance_normalization(x: Array, *, axes: Sequence[int], **_: Any) -> Array:
    """MeanVarianceNormalization: the function in its schema has float32 constants."""
    centred = x - x.mean(axis=tuple(axes), keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=tuple(axes), keepdims=True))
    return np.asarray(centred / (deviation + 1e-9))


def scatter(x: Array, indices: Array, updates: Array, *, axis: int = 0, **_: Any) -> Array:
    """Scatter, the former name of ScatterElements."""
    y = x.copy()
    np.put_along_axis(y, indices, updates, axis)
    return y


def gelu(x: Array, *, approximate: str = "none", **_: Any) -> Array:
    """Gelu: the function in its schema goes through the evaluator's Erf."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return np.asarray(0.5 * x * (1 + np.tanh(inner)))
    # The normal distribution function: 1 + erf(x / √2) cancels for negative x.
    return np.asarray(x * special.ndtr(x))


def dequantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    **_: Any,
) -> Array:
    """DequantizeLinear: the evaluator's own multiplies in float32."""

    def aligned(parameter: Array) -> Array:
        values = np.asarray(parameter).astype(np.float64)
        if values.size == 1 and not block_size:
            return values.reshape(())
        if block_size:
            spread = np.repeat(values, block_size, axis=axis)
            return spread.take(range(x.shape[axis]), axis=axis)
        dims = [1] * x.ndim
        dims[axis] = values.size
        return values.reshape(dims)

    whole = np.asarray(x).astype(np.float64)
    if zero_point is not None:
        whole = whole - aligned(zero_point)
    return np.asarray(whole * aligned(scale))


def upsample(x: Array, scales: Any = None, *, mode: str = "nearest", **attributes: Any) -> Array:
    """Upsample, and Resize of opset 10: the evaluator has whole-number repetition only."""
    factors = [float(s) for s in (attributes["scales"] if scales is None else scales)]
    for axis, factor in enumerate(factors):
        if factor != 1:
            x = _resampled(x, axis, factor, mode)
    return x


def _resampled(x: Array, axis: int, factor: float, mode: str) -> Array:
    size: int = x.shape[axis]
    positions = np.arange(math.floor(size * factor)) / factor
    if mode == "nearest":
        if factor < 1:
            raise NotImplementedError("the standard does not say which neighbour is nearest")
        nearest = np.minimum(np.floor(positions).astype(int), size - 1)
        return np.asarray(x.take(nearest, axis=axis))
    positions = np.minimum(positions, size - 1)
    left = np.floor(positions).astype(int)
    right = np.minimum(left + 1, size - 1)
    share = (positions - left).reshape(-1, *[1] * (x.ndim - 1 - axis))
    return np.asarray(x.take(left, axis) * (1 - share) + x.take(right, axis) * share)


# --- Operators: found in models, but not in the standard ----------------------------------------


def affine(x: Array, *, alpha: float = 1.0, beta: float = 0.0, **_: Any) -> Array:
    """Affine, experimental until 2018: αx + β."""
    return np.asarray(alpha * x + beta)


def image_scaler(x: Array, *, bias: Sequence[float], scale: float = 1.0, **_: Any) -> Array:
    """ImageScaler, experimental until 2018: a factor for all, then a bias per channel."""
    return np.asarray(scale * x + np.asarray(bias, np.float64).reshape(-1, 1, 1))


def crop(x: Array, *, border: Sequence[int], scale: Sequence[int] | None = None, **_: Any) -> Array:
    """Crop, experimental until 2018: ``border`` is left, top, right, bottom."""
    left, top, right, bottom = border
    height, width = scale or (x.shape[2] - top - bottom, x.shape[3] - left - right)
    return x[:, :, top : top + height, left : left + width]


def fused_conv(
    x: Array, w: Array, b: Array | None = None, z: Array | None = None, **attributes: Any
) -> Array:
    """FusedConv of com.microsoft: activation(Conv(x, w) + b + z)."""
    y = conv(x, w, b, **attributes)
    y = y if z is None else y + z
    parameters = [float(p) for p in attributes.get("activation_params") or []]
    match attributes.get("activation", ""):
        case "":
            return y
        case "Relu":
            return np.maximum(y, 0)
        case "Tanh":
            return np.tanh(y)
        case "Sigmoid":
            return np.asarray(special.expit(y))
        case "LeakyRelu":
            return np.where(y < 0, parameters[0] * y, y)
        case "Clip":
            return np.clip(y, parameters[0], parameters[1])
        case "HardSigmoid":
            return np.clip(parameters[0] * y + parameters[1], 0, 1)
        case other:
            raise NotImplementedError(f"FusedConv with activation {other!r}")


# --- Operators: trees ---------------------------------------------------------------------------


def tree_regressor(
    x: Array,
    *,
    n_targets: int,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] | None = None,
    post_transform: str = "NONE",
    **attributes: Any,
) -> Array:
    """TreeEnsembleRegressor of ai.onnx.ml 1 to 3; the evaluator adds up in float32."""
    trees = len(set(attributes["nodes_treeids"]))
    if aggregate_function not in ("SUM", "AVERAGE") or post_transform != "NONE":
        raise NotImplementedError(f"trees with {aggregate_function} and {post_transform}")
    total = _leaf_sums(x, attributes, "target", n_targets)
    total = total / trees if aggregate_function == "AVERAGE" else total
    return total if not base_values else total + np.asarray(base_values, np.float64)


def tree_classifier(
    x: Array,
    *,
    base_values: Sequence[float] | None = None,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    post_transform: str = "NONE",
    **attributes: Any,
) -> tuple[Array, Array]:
    """TreeEnsembleClassifier of ai.onnx.ml 1 to 3, for three classes or more."""
    labels = np.array(classlabels_int64s or np.array(classlabels_strings, object))
    # Of two classes, onnxruntime makes up the score that no leaf mentions: [3] becomes [-3, 3].
    if post_transform != "NONE" or len(labels) == 2:
        raise NotImplementedError("trees for two classes or with a post-transform")
    scores = _leaf_sums(x, attributes, "class", len(labels))
    if base_values:
        scores = scores + np.asarray(base_values, np.float64)
    return labels[scores.argmax(axis=1)], scores


_BRANCHES: dict[str, Callable[[Any, Any], Any]] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}


def _leaf_sums(x: Array, trees: Mapping[str, Any], prefix: str, columns: int) -> Array:
    """Sum of the weights of the leaves that each row of ``x`` reaches, by target or class."""
    if any(value is not None for name, value in trees.items() if name.endswith("_as_tensor")):
        raise NotImplementedError("trees with double-precision thresholds")
    keys = list(zip(trees["nodes_treeids"], trees["nodes_nodeids"], strict=True))
    place = {key: index for index, key in enumerate(keys)}
    nexts = {
        side: [
            place.get((tree, node), 0)
            for (tree, _), node in zip(keys, trees[f"nodes_{side}nodeids"], strict=True)
        ]
        for side in ("true", "false")
    }
    missing = trees.get("nodes_missing_value_tracks_true") or [0] * len(keys)
    leaves = np.zeros((len(keys), columns))
    weighted = ("treeids", "nodeids", "ids", "weights")
    for tree, node, column, weight in zip(*(trees[f"{prefix}_{n}"] for n in weighted), strict=True):
        leaves[place[tree, node], column] += float(weight)
    total = np.zeros((len(x), columns))
    roots = {tree: index for index, (tree, _) in reversed(list(enumerate(keys)))}
    for root in roots.values():
        pending = [(root, np.arange(len(x)))]
        while pending:
            index, rows = pending.pop()
            branch = _BRANCHES.get(trees["nodes_modes"][index])
            if branch is None or not len(rows):
                total[rows] += leaves[index]
                continue
            values = x[rows, trees["nodes_featureids"][index]]
            taken = branch(values, float(trees["nodes_values"][index]))
            taken = taken | (np.isnan(values) & bool(missing[index]))
            pending += [(nexts["true"][index], rows[taken]), (nexts["false"][index], rows[~taken])]
    return total


# --- Operators: control -------------------------------------------------------------------------


class Loop(_StockLoop):
    """Loop: the evaluator's own skips a loop without condition and flattens scan outputs."""

    def _run(  # type: ignore[override]  # inputs by position, as the evaluator passes them
        self,
        trips: Array | None,
        condition: Array | None,
        *states: Any,
        context: Mapping[str, Any] | None = None,
        attributes: Any = None,
        **_: Any,
    ) -> tuple[Any, ...]:
        body: Any = self.body  # type: ignore[attr-defined]  # set from the node's attributes
        scope = dict(context or {})
        limit = None if trips is None else int(np.asarray(trips).item())
        going = condition is None or bool(np.asarray(condition).item())
        carried, scans, trip = list(states), [], 0
        while going and (limit is None or trip < limit):
            fixed = [np.array(trip, np.int64), np.array(True)]
            scope.update(zip(body.input_names, [*fixed, *carried], strict=True))
            results = body.run(None, scope, attributes=attributes)
            going = bool(np.asarray(results[0]).item())
            carried, scanned = results[1 : 1 + len(states)], results[1 + len(states) :]
            scans.append(scanned)
            trip += 1
        if not scans and len(body.output_names) > 1 + len(states):
            raise NotImplementedError("the shape of a scan output is unknown without an iteration")
        stacked = [np.stack(values) for values in zip(*scans, strict=True)]
        return (*carried, *stacked)


def _operators(opsets: Mapping[str, int], double: bool = True) -> tuple[type[OpRun], ...]:
    return _operators_of(
        opsets.get("", onnx.defs.onnx_opset_version()), opsets.get("ai.onnx.ml", 1), double
    )


@functools.cache
def _operators_of(opset: int, ml_opset: int, double: bool) -> tuple[type[OpRun], ...]:
    """What the evaluator uses in place of its own operators, for one pair of opsets."""
    kernels: dict[str, Callable[..., Any]] = {
        "Affine": affine,
        "AveragePool": average_pool,
        "Conv": conv,
        "ConvTranspose": conv_transpose,
        "Crop": crop,
        "DequantizeLinear": dequantize_linear,
        "Erf": erf,
        "Gelu": gelu,
        "GlobalAveragePool": global_average_pool,
        "GlobalMaxPool": global_max_pool,
        "GroupNormalization": group_normalization,
        "ImageScaler": image_scaler,
        "LRN": lrn,
        "MaxPool": max_pool,
        "MeanVarianceNormalization": mean_variance_normalization,
        "Scatter": scatter,
        "Upsample": upsample,
    }
    if opset < 14:
        kernels["BatchNormalization"] = batch_normalization
    if opset < 13:
        kernels["Softmax"] = softmax_before_13
        kernels["LogSoftmax"] = log_softmax_before_13
        kernels["Hardmax"] = hardmax_before_13
    if opset == 10:
        kernels["Resize"] = upsample
    return (
        Loop,
        _operator("FusedConv", fused_conv, 1, "com.microsoft", double),
        _operator("TreeEnsembleClassifier", tree_classifier, ml_opset, "ai.onnx.ml", double),
        _operator("TreeEnsembleRegressor", tree_regressor, ml_opset, "ai.onnx.ml", double),
        *(_operator(name, kernel, opset, "", double) for name, kernel in kernels.items()),
    )


def _operator(
    name: str, kernel: Callable[..., Any], opset: int, domain: str, double: bool
) -> type[OpRun]:
    """A class of the evaluator that runs ``kernel``, in float64 or rounded to its inputs' type."""

    def run(self: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        # The evaluator passes float32 scalars, whose arithmetic with each other is float32 too.
        exact = {k: float(v) if isinstance(v, np.floating) else v for k, v in attributes.items()}
        values = inputs if double else [_at_least_single(x) for x in inputs]
        result = kernel(*values, **exact, outputs=len(self.onnx_node.output))
        results = result if isinstance(result, tuple) else (result,)
        if double:
            return results
        kind = np.dtype(np.float32) if domain == "ai.onnx.ml" else _float_type(inputs)
        return tuple(r.astype(kind) if _is_float(r.dtype) else r for r in results)

    members: dict[str, Any] = {"_run": run, "op_domain": domain}
    try:
        # The evaluator would take defaults from the newest schema, whatever the model's opset.
        members["op_schema"] = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        members["op_schema"] = None
    return type(name, (OpRun,), members)
