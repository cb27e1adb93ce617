"""Perturbations by one ulp, to measure the effect of rounding on a model.

Every weight and input is changed by at most one unit in the last place, as rounding might do. The
spread of the outputs estimates the noise floor of a model, even if it cannot be evaluated in
float64 (compare Parker 1997, Monte Carlo Arithmetic).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from optvet.graph.outline import Message, fetch, outline_in, whole_parts
from optvet.graph.types import FLOATS
from optvet.graph.walk import (
    attribute_of,
    bodies_of,
    graphs,
    inner_nodes,
)
from optvet.graph.weights import tensors_of_nodes

Array = NDArray[Any]
LOOSENED = 16
"""Draws in which all moves by what a lossy pass declares: one label of many flips in few."""


# Element type → integer type of its width, exponent mask, significand bits with the hidden bit.
def _layout(dtype: np.dtype[Any]) -> tuple[np.dtype[np.signedinteger[Any]], int, int]:
    about = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    exponents = ((1 << about.nexp) - 1) << about.nmant
    return np.dtype(f"i{dtype.itemsize}"), exponents, about.nmant + 1


_DTYPES = {kind: np.dtype(helper.tensor_dtype_to_np_dtype(kind)) for kind in FLOATS}
LAYOUTS = {kind: _layout(dtype) for kind, dtype in _DTYPES.items()}

# One pattern of this length is repeated over all weights, from a random offset in each tensor:
# drawing 25 million random numbers takes longer than running the model. It is a prime, so that
# rows of weights, whose lengths are round numbers, do not all get the same signs.
_PATTERN_LENGTH = 65_537

# Inputs that act as parameters of the operator, by position.
_STRUCTURAL: dict[str, tuple[int, ...]] = {
    "CenterCropPad": (1,),
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (0, 1, 2),
    "Pad": (1, 2, 3),
    "Pow": (1,),
    "QLinearAdd": (1, 2, 4, 5, 6, 7),
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "QuantizeLinear": (1, 2),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Tile": (1,),
    "Upsample": (1,),
}


# --- Jitter -------------------------------------------------------------------------------------


def jitter_model(
    model: ModelProto,
    rng: np.random.Generator,
    ulps: float = 1.0,
    jitter: Jitter | None = None,
) -> ModelProto:
    """A copy of ``model`` with every floating weight moved by -1, 0 or +1 times ``ulps`` ulp.

    Initializers and Constant nodes are moved, in subgraphs and functions too, in the encoding in
    which they are stored. Not moved: zeros, infinities and NaN; small whole numbers; parameters of
    operators (exponents, bounds, scales of Resize and of quantization, ranges, and values that
    become shapes); and tensors of one element with a round value (2, 0.5, 255).

    Args:
        model: A model with all its weights in memory.
        rng: Source of the signs; equal states give equal models.
        ulps: Step in units in the last place of each tensor's own type, rounded to whole ones; or a
            ``Share`` of each number.
        jitter: Moves the tensors; None for a ``Jitter`` made of ``rng`` and ``ulps``.

    Raises:
        ValueError: A weight is external data, or ``ulps`` is negative.
    """
    jitter = jitter or Jitter(rng, ulps)
    copy = ModelProto()
    copy.CopyFrom(model)
    functions = _FunctionTable(copy)
    _jitter_nodes(copy.graph, _structural_names(copy.graph.node, copy.graph, functions), jitter)
    for function in copy.functions:
        protected = _structural_names(function.node, None, functions)
        for node in function.node:
            _jitter_node(node, protected, jitter)
    return copy


def jitter_feeds(
    feeds: Mapping[str, Array], rng: np.random.Generator, ulps: float = 1.0
) -> dict[str, Array]:
    """A copy of ``feeds`` with every float moved by -1, 0 or +1 times ``ulps`` ulp of its type.

    Zeros, infinities, NaN, small whole numbers (the 0 and 1 of a mask, the values of an image from
    0 to 255) and everything that is not a float are not moved. Inputs are processed in
    the order of their names, so that the order of ``feeds`` does not matter.
    """
    jitter = Jitter(rng, ulps)
    moved: dict[str, Array] = dict(feeds)
    for name in sorted(feeds):
        dtype = getattr(feeds[name], "dtype", None)
        for kind in (k for k, known in _DTYPES.items() if known == dtype):
            array = np.array(feeds[name], order="C")
            jitter.move(array.reshape(-1).view(LAYOUTS[kind][0]), kind)
            moved[name] = array
    return moved


def structural_names(model: ModelProto) -> frozenset[str]:
    """Values of the graph that belong to the meaning of an operator, and are never moved."""
    return _structural_names(model.graph.node, model.graph, _FunctionTable(model))


def jitter_bytes(data: bytes, seed: int, ulps: float = 1.0) -> bytes:
    """A serialized model, jittered by ``jitter_model`` with a generator of ``seed``."""
    rng = np.random.default_rng(seed)
    try:
        outline, message = outline_in(data)
    except DecodeError:  # it has no outline, or is no model, of which protobuf tells the reason
        model = onnx.load_model_from_string(data)
        return bytes(jitter_model(model, rng, ulps).SerializeToString())
    for tensor in tensors_of_nodes(outline):
        if message.holds(tensor):
            fetch(tensor, message)
    # Large weights are moved in one copy of the message, where they lie.
    message = replace(message, data=bytearray(data))
    moved = jitter_model(outline, rng, ulps, _MessageJitter(rng, ulps, message))
    return b"".join(whole_parts(moved, message))


class Share(float):
    """A step as a share of each number, in place of units in its last place."""


class Jitter:
    """The random steps of one perturbation."""

    def __init__(self, rng: np.random.Generator, ulps: float) -> None:
        if not ulps >= 0:
            raise ValueError(f"ulps is {ulps}, expected 0 or more")
        self.rng, self.ulps = rng, ulps
        self.pattern = rng.integers(-1, 2, _PATTERN_LENGTH, dtype=np.int64)

    def _step(self, kind: int) -> int:
        """The step of one type in units in its last place."""
        if isinstance(self.ulps, Share):
            return max(1, round(self.ulps * 2.0 ** (LAYOUTS[kind][2] - 1)))
        return round(self.ulps) if self.ulps == 0 or self.ulps > 1 else 1

    def move(self, bits: Array, kind: int) -> None:
        """Move the floats whose bit patterns are ``bits``, in place.

        Adding 1 to the bits of a float gives the next larger magnitude, also across powers of two
        and for subnormal numbers.
        """
        integer, exponent, _ = LAYOUTS[kind]
        offset = int(self.rng.integers(_PATTERN_LENGTH))
        step = self._step(kind)
        pattern = (np.roll(self.pattern, offset) * step).astype(integer)
        largest = exponent - 1
        # A part at a time: what is needed beside it stays in the processor's cache.
        for start in range(0, bits.size, _PATTERN_LENGTH):
            place = bits[start : start + _PATTERN_LENGTH]
            part = place.astype(integer)
            magnitude = part & np.iinfo(integer).max
            # Skip numbers that the step would move past zero or to infinity, and those two
            # themselves; and whole numbers, which no rounding made: moved, the 1 of a mask would
            # no longer be taken from 1 without a rest.
            inside = (magnitude > step) & (magnitude <= largest - step)
            inside &= ~_are_whole(magnitude, kind)
            place[:] = part + pattern[: part.size] * inside

    def tensor(self, tensor: TensorProto) -> None:
        """Move a tensor in the field that holds its data."""
        kind = tensor.data_type
        if kind not in FLOATS or math.prod(tensor.dims) == 0:
            return
        if tensor.data_location == TensorProto.EXTERNAL:
            raise ValueError(
                f"the data of tensor {tensor.name!r} is outside of the model; load it first"
            )
        integer = LAYOUTS[kind][0]
        if tensor.HasField("raw_data"):
            bits = np.frombuffer(tensor.raw_data, np.dtype(integer).newbyteorder("<"))
            bits = bits.astype(integer)
            if not _is_round(bits, kind):
                self.move(bits, kind)
                tensor.raw_data = bits.astype(np.dtype(integer).newbyteorder("<")).tobytes()
            return
        field: Any = tensor.int32_data
        values: Array
        if kind == TensorProto.FLOAT:
            field = tensor.float_data
            values = np.array(field, np.float32)
        elif kind == TensorProto.DOUBLE:
            field = tensor.double_data
            values = np.array(field, np.float64)
        else:  # halves are stored as their bits
            values = np.array(field, np.int64).astype(np.uint16)
        bits = values.view(integer)
        if not _is_round(bits, kind):
            self.move(bits, kind)
            del field[:]
            field.extend(values.tolist())


class _MessageJitter(Jitter):
    """Moves large weights where they lie in a message."""

    def __init__(self, rng: np.random.Generator, ulps: float, message: Message) -> None:
        super().__init__(rng, ulps)
        self._message = message

    def tensor(self, tensor: TensorProto) -> None:
        """Move a tensor in the field that holds its data, or in the message."""
        if not self._message.holds(tensor):
            super().tensor(tensor)
        elif tensor.data_type in FLOATS:
            stored = np.dtype(LAYOUTS[tensor.data_type][0]).newbyteorder("<")
            self.move(np.frombuffer(self._message.piece(tensor), stored), tensor.data_type)


def _are_whole(magnitude: Array, kind: int) -> Array:
    """Which of these magnitudes, as bit patterns, are small whole numbers.

    Small: up to half of the bits of the significand, so that of other numbers next to none is.
    """
    precision = LAYOUTS[kind][2]
    # The exponent mask without its lowest and its highest bit is the exponent of 1.
    exponents = LAYOUTS[kind][1] >> (precision - 1)
    one = exponents >> 1
    found = np.zeros(magnitude.shape, bool)
    power = (magnitude >> (precision - 1)).astype(np.int64) - one
    small = np.flatnonzero((power >= 0) & (power <= _whole_bits(precision)))
    if small.size:
        wide = magnitude[small].astype(np.int64)
        rest = (1 << (precision - 1 - power[small])) - 1
        found[small] = (wide & rest) == 0
    return found


def _whole_bits(precision: int) -> int:
    return min(precision // 2, 12)


def _is_round(bits: Array, kind: int) -> bool:
    """Whether these are the bits of a single round number, such as 2, 0.5 or 255, but not 0.1.

    For a trained weight this is true with a probability of about 2 ** -(bits / 2).
    """
    if bits.size != 1:
        return False
    precision = LAYOUTS[kind][2]
    value = float(bits.view(_DTYPES[kind]).reshape(-1)[0])
    if not math.isfinite(value):
        return True
    mantissa = math.ldexp(math.frexp(value)[0], _whole_bits(precision))
    is_small_integer = value.is_integer() and abs(value) <= min(2.0**precision, 65_536)
    return is_small_integer or mantissa.is_integer()


def _jitter_nodes(graph: GraphProto, protected: frozenset[str], jitter: Jitter) -> None:
    for tensor in graph.initializer:
        if tensor.name not in protected:
            jitter.tensor(tensor)
    for sparse in graph.sparse_initializer:
        if sparse.values.name not in protected:
            jitter.tensor(sparse.values)
    for node in graph.node:
        _jitter_node(node, protected, jitter)


def _jitter_node(node: NodeProto, protected: frozenset[str], jitter: Jitter) -> None:
    if node.op_type == "Constant" and node.output[0] not in protected:
        for attribute in node.attribute:
            _jitter_constant(attribute, jitter)
    for body in bodies_of(node):
        _jitter_nodes(body, protected, jitter)


def _jitter_constant(attribute: AttributeProto, jitter: Jitter) -> None:
    if attribute.type == AttributeProto.TENSOR:
        jitter.tensor(attribute.t)
    elif attribute.type == AttributeProto.SPARSE_TENSOR:
        jitter.tensor(attribute.sparse_tensor.values)
    elif attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
        single = attribute.type == AttributeProto.FLOAT
        values = np.array([attribute.f] if single else attribute.floats, np.float32)
        bits = values.view(np.int32)
        if bits.size and not _is_round(bits, TensorProto.FLOAT):
            jitter.move(bits, TensorProto.FLOAT)
            if single:
                attribute.f = float(values[0])
            else:
                del attribute.floats[:]
                attribute.floats.extend(values.tolist())


class _FunctionTable:
    """The inputs of each local function that are structural inside the function."""

    def __init__(self, model: ModelProto) -> None:
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.known: dict[tuple[str, str], tuple[int, ...]] = {}

    def structural_inputs(self, node: NodeProto) -> tuple[int, ...]:
        key = (node.domain, node.op_type)
        if key in self.known or key not in self.functions:
            return self.known.get(key, ())
        self.known[key] = ()  # ends the recursion if a malformed model has a recursive function
        function = self.functions[key]
        names = _structural_names(function.node, None, self)
        self.known[key] = tuple(i for i, name in enumerate(function.input) if name in names)
        return self.known[key]


def _structural_names(
    nodes: Iterable[NodeProto], graph: GraphProto | None, functions: _FunctionTable
) -> frozenset[str]:
    """Values that must not be moved: structural inputs and the values they are computed from.

    The search goes backwards only through values that are known before the model runs (constants,
    shapes and arithmetic on them). Otherwise a quantization scale that is measured at run time
    would exclude the whole network before it.
    """
    every = [node for node in nodes for node in (node, *inner_nodes(node))]
    fixed = {""}
    if graph is not None:
        for each in graphs(graph):
            fixed.update(tensor.name for tensor in each.initializer)
            fixed.update(sparse.values.name for sparse in each.sparse_initializer)
    producers: dict[str, NodeProto] = {}
    for node in every:
        producers.update((name, node) for name in node.output)
        if node.op_type in ("Shape", "Size") or (
            not any(True for _ in bodies_of(node)) and all(name in fixed for name in node.input)
        ):
            fixed.update(node.output)
    inputs = {value.name for value in graph.input} if graph is not None else set()
    names: set[str] = set()
    pending: list[str] = []
    for node in every:
        for index in (*_structural_positions(node, fixed), *functions.structural_inputs(node)):
            pending.extend(node.input[index : index + 1])
    while pending:
        name = pending.pop()
        if name in names or name == "":
            continue
        names.add(name)
        if name in fixed and name in producers and name not in inputs:
            producer = producers[name]
            if producer.op_type not in ("Shape", "Size"):
                pending.extend(producer.input)
    return frozenset(names)


def _structural_positions(node: NodeProto, fixed: set[str]) -> tuple[int, ...]:
    if node.op_type == "Cast" and attribute_of(node, "to") not in FLOATS:
        # A constant that is cast to an integer is a size, an index or an axis.
        return (0,) if node.input and node.input[0] in fixed else ()
    return _STRUCTURAL.get(node.op_type, ())
