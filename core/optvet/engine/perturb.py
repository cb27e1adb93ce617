"""What rounding can do to a model: perturbations by one ulp, and which outputs can round at all.

Moving every weight and input by at most one unit in the last place is the smallest change that
float arithmetic cannot tell from its own rounding. The spread of the outputs under it estimates
the noise floor of a model that cannot be evaluated in float64 (Parker, Monte Carlo Arithmetic,
1997, perturbs in the same spirit).

The second half asks what needs no tolerance: ``can_round``, ``discontinuous`` and ``random_ops``
follow three facts through the graph, in one walk from the inputs to the outputs.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
from onnx.inliner import inline_local_functions

from optvet.graph.types import element_types
from optvet.graph.walk import (
    ONNX_DOMAIN,
    attribute_of,
    bodies_of,
    domain_of,
    graphs,
    inner_nodes,
    opset_versions,
)
from optvet.graph.weights import SHAPE_ELEMENTS, without_large_weights

Array = NDArray[Any]

# Element type → integers of its width, mask of its exponent, significand bits with the hidden one.
_LAYOUTS: dict[int, tuple[type[np.signedinteger[Any]], int, int]] = {
    TensorProto.FLOAT16: (np.int16, 0x7C00, 11),
    TensorProto.BFLOAT16: (np.int16, 0x7F80, 8),
    TensorProto.FLOAT: (np.int32, 0x7F800000, 24),
    TensorProto.DOUBLE: (np.int64, 0x7FF0000000000000, 53),
}
_TYPES_BY_NAME = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
}
_FLOATS = frozenset(_LAYOUTS)

# One pattern of this length is repeated over all weights, from a fresh offset in each tensor:
# drawing 25 million random numbers takes longer than running the model. A prime, so that rows
# of weights, whose lengths are round numbers, do not repeat it in step.
_PATTERN_LENGTH = 65_537

# Inputs whose value is part of what the operator means, by position.
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


def jitter_model(model: ModelProto, rng: np.random.Generator, ulps: float = 1.0) -> ModelProto:
    """A copy of ``model`` with every floating weight moved by -1, 0 or +1 times ``ulps`` ulp.

    Initializers and Constant nodes are moved, in subgraphs and functions too, in the encoding in
    which they are stored. These stay: zeros, infinities and NaN; numbers that belong to the
    meaning of an operator (exponents, bounds, scales of Resize and of quantization, ranges, and
    what is turned into a shape); and tensors of one element with a round value (2, 0.5, 255).

    Args:
        model: A model with all its weights in memory.
        rng: Source of the signs; equal states give equal models.
        ulps: Step in units in the last place of each tensor's own type; rounded to whole ones.

    Raises:
        ValueError: A weight is stored outside of the model, or ``ulps`` is negative.
    """
    jitter = _Jitter(rng, ulps)
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

    Zeros, infinities, NaN and everything that is not a float stay. Inputs are taken by name in
    sorted order, so that the order of ``feeds`` does not matter.
    """
    jitter = _Jitter(rng, ulps)
    moved: dict[str, Array] = dict(feeds)
    for name in sorted(feeds):
        kind = _TYPES_BY_NAME.get(getattr(getattr(feeds[name], "dtype", None), "name", ""))
        if kind is not None:
            array = np.array(feeds[name], order="C")
            jitter.move(array.reshape(-1).view(_LAYOUTS[kind][0]), kind)
            moved[name] = array
    return moved


def jitter_bytes(data: bytes, seed: int, ulps: float = 1.0) -> bytes:
    """A serialized model, jittered by ``jitter_model`` with a generator of ``seed``."""
    model = onnx.load_model_from_string(data)
    return bytes(jitter_model(model, np.random.default_rng(seed), ulps).SerializeToString())


class _Jitter:
    """The random steps of one perturbation."""

    def __init__(self, rng: np.random.Generator, ulps: float) -> None:
        if not ulps >= 0:
            raise ValueError(f"ulps is {ulps}, expected 0 or more")
        step = round(ulps) if ulps == 0 or ulps > 1 else 1
        self.rng, self.step = rng, step
        self.pattern = rng.integers(-1, 2, _PATTERN_LENGTH, dtype=np.int64) * step

    def move(self, bits: Array, kind: int) -> None:
        """Move the floats whose bit patterns are ``bits``, in place.

        Adding 1 to the bits of a float makes its magnitude the next larger one, across powers of
        two and among the subnormal numbers alike.
        """
        integer, exponent, _ = _LAYOUTS[kind]
        offset = int(self.rng.integers(_PATTERN_LENGTH))
        pattern = np.roll(self.pattern, offset).astype(integer)
        steps = np.resize(pattern, bits.shape)
        magnitude = bits & np.iinfo(integer).max
        largest = exponent - 1
        # The step must neither pass zero nor reach infinity, and both of them stay.
        inside = (magnitude > self.step) & (magnitude <= largest - self.step)
        bits += np.where(inside, steps, integer(0))

    def tensor(self, tensor: TensorProto) -> None:
        """Move a tensor in the field that holds its data."""
        kind = tensor.data_type
        if kind not in _FLOATS or math.prod(tensor.dims) == 0:
            return
        if tensor.data_location == TensorProto.EXTERNAL:
            raise ValueError(
                f"the data of tensor {tensor.name!r} is outside of the model; load it first"
            )
        integer = _LAYOUTS[kind][0]
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


def _is_round(bits: Array, kind: int) -> bool:
    """Whether these are the bits of one number that somebody chose: 2, 0.5, 255, not 0.1.

    A trained weight passes with a probability of about 2 to the minus half of its bits.
    """
    if bits.size != 1:
        return False
    precision = _LAYOUTS[kind][2]
    wide: Array
    if kind == TensorProto.BFLOAT16:
        wide = (bits.astype(np.int32) << 16).view(np.float32)
    else:
        wide = bits.view(f"f{bits.itemsize}")
    value = float(wide.reshape(-1)[0])
    if not math.isfinite(value):
        return True
    mantissa = math.ldexp(math.frexp(value)[0], min(precision // 2, 12))
    is_small_integer = value.is_integer() and abs(value) <= min(2.0**precision, 65_536)
    return is_small_integer or mantissa.is_integer()


def _jitter_nodes(graph: GraphProto, protected: frozenset[str], jitter: _Jitter) -> None:
    for tensor in graph.initializer:
        if tensor.name not in protected:
            jitter.tensor(tensor)
    for sparse in graph.sparse_initializer:
        if sparse.values.name not in protected:
            jitter.tensor(sparse.values)
    for node in graph.node:
        _jitter_node(node, protected, jitter)


def _jitter_node(node: NodeProto, protected: frozenset[str], jitter: _Jitter) -> None:
    if node.op_type == "Constant" and node.output[0] not in protected:
        for attribute in node.attribute:
            _jitter_constant(attribute, jitter)
    for body in bodies_of(node):
        _jitter_nodes(body, protected, jitter)


def _jitter_constant(attribute: AttributeProto, jitter: _Jitter) -> None:
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
    """Which inputs of each local function are structural inside of it."""

    def __init__(self, model: ModelProto) -> None:
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.known: dict[tuple[str, str], tuple[int, ...]] = {}

    def structural_inputs(self, node: NodeProto) -> tuple[int, ...]:
        key = (node.domain, node.op_type)
        if key in self.known or key not in self.functions:
            return self.known.get(key, ())
        self.known[key] = ()  # ends the recursion that a faulty model may contain
        function = self.functions[key]
        names = _structural_names(function.node, None, self)
        self.known[key] = tuple(i for i, name in enumerate(function.input) if name in names)
        return self.known[key]


def _structural_names(
    nodes: Iterable[NodeProto], graph: GraphProto | None, functions: _FunctionTable
) -> frozenset[str]:
    """Values that must not move: structural inputs and what they are computed from.

    The search goes backwards through values that are fixed before the model runs (constants,
    shapes and arithmetic on them), so that a quantization scale measured at run time does not
    protect the whole network in front of it.
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
    if node.op_type == "Cast" and attribute_of(node, "to") not in _FLOATS:
        # A fixed number on its way to an integer is a size, an index or an axis.
        return (0,) if node.input and node.input[0] in fixed else ()
    return _STRUCTURAL.get(node.op_type, ())


# --- What can round -----------------------------------------------------------------------------


class _Fact(enum.Flag):
    """What may have happened to a value on its way from the inputs."""

    NONE = 0
    ROUNDED = enum.auto()
    DECIDED = enum.auto()  # a discrete choice was made on a rounded value
    RANDOM = enum.auto()


def can_round(model: ModelProto) -> frozenset[str]:
    """Graph outputs that floating-point rounding may change.

    The others are copies, selections and integer results: two correct implementations agree on
    them bit for bit. Whatever is not known to be exact counts as rounding.
    """
    return _outputs_with(model, _Fact.ROUNDED)


def discontinuous(model: ModelProto) -> frozenset[str]:
    """Graph outputs behind a discrete decision (ArgMax, Less, Round, …) on a rounded value.

    There a difference of one ulp may become one of any size, without anybody's fault.
    """
    return _outputs_with(model, _Fact.DECIDED)


def random_ops(model: ModelProto) -> frozenset[str]:
    """Graph outputs that depend on a random operator, or on Dropout that may be training."""
    return _outputs_with(model, _Fact.RANDOM)


_RANDOM = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)

# They copy, select, count or compare; where they do arithmetic, it is on integers or exact.
_EXACT = frozenset(
    """
    Abs And ArgMax ArgMin ArrayFeatureExtractor AttributeHasValue Binarizer BitShift BitwiseAnd
    BitwiseNot BitwiseOr BitwiseXor BitCast CastMap CategoryMapper Ceil CenterCropPad Clip Compress
    Concat ConcatFromSequence Constant ConstantOfShape ConvInteger DepthToSpace DictVectorizer
    Dropout Equal Expand EyeLike FeatureVectorizer Flatten Floor Gather GatherElements GatherND
    GlobalMaxPool Greater GreaterOrEqual Hardmax Identity Imputer IsInf IsNaN LabelEncoder Less
    LessOrEqual MatMulInteger Max MaxPool MaxRoiPool MaxUnpool Min Mod Neg NonZero Not OneHot
    OneHotEncoder Optional OptionalGetElement OptionalHasElement Or Pad ReduceMax ReduceMin
    RegexFullMatch Relu Reshape ReverseSequence Round Scatter SequenceAt SequenceConstruct
    SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Sign Size Slice SpaceToDepth
    Split SplitToSequence Squeeze StringConcat StringNormalizer StringSplit TensorScatter
    ThresholdedRelu Tile Tokenizer TopK Transpose Trilu Unique Unsqueeze Where Xor ZipMap
    """.split()
)

# A small change of the input can change the output by a step; None: all outputs, else positions.
_DECISIONS: dict[str, tuple[int, ...] | None] = dict.fromkeys(
    """
    ArgMax ArgMin BitCast Binarizer Ceil Compress Equal Floor Greater GreaterOrEqual Hardmax IsInf
    IsNaN LabelEncoder Less LessOrEqual Mod NonZero OneHot OneHotEncoder Round Sign Shrink
    ThresholdedRelu TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor Unique
    """.split()
)
_DECISIONS.update(MaxPool=(1,), TopK=(1,))

# They round inside before they decide, whatever comes in.
_ROUNDING_DECISIONS: dict[str, tuple[int, ...] | None] = {
    "DynamicQuantizeLinear": None,
    "LinearClassifier": (0,),
    "NonMaxSuppression": None,
    "QLinearConv": None,
    "QLinearMatMul": None,
    "QuantizeLinear": None,
    "SVMClassifier": (0,),
    "TreeEnsembleClassifier": (0,),
}

# Significand bits that hold every value of an integer type.
_INTEGER_BITS: dict[int, int] = {
    TensorProto.BOOL: 1,
    TensorProto.INT8: 7,
    TensorProto.UINT8: 8,
    TensorProto.INT16: 15,
    TensorProto.UINT16: 16,
    TensorProto.INT32: 31,
    TensorProto.UINT32: 32,
    TensorProto.INT64: 63,
    TensorProto.UINT64: 64,
}


def _outputs_with(model: ModelProto, fact: _Fact) -> frozenset[str]:
    walk = _Walk(model)
    facts = walk.graph(walk.model.graph, {})
    names = [output.name for output in model.graph.output]
    return frozenset(name for name in names if facts.get(name, _Fact.NONE) & fact)


class _Walk:
    """Carries facts from values to the values computed from them."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        if model.functions:
            try:
                self.model = inline_local_functions(without_large_weights(model, SHAPE_ELEMENTS))
            except Exception:  # what stays a function call is unknown, so it rounds
                self.model = model
        self.types = element_types(self.model)
        opsets = opset_versions(self.model)
        self.opset = opsets.get(ONNX_DOMAIN, onnx.defs.onnx_opset_version())
        self.false = set(_constant_falses(self.model.graph))
        self.random_functions = {
            (f.domain, f.name)
            for f in self.model.functions
            if any(self.is_random(node) for n in f.node for node in (n, *inner_nodes(n)))
        }

    def graph(self, graph: GraphProto, outer: Mapping[str, _Fact]) -> dict[str, _Fact]:
        facts = dict(outer)
        for node in graph.node:
            facts.update(zip(node.output, self.node(node, facts), strict=True))
        return facts

    def node(self, node: NodeProto, facts: Mapping[str, _Fact]) -> list[_Fact]:
        incoming = _union(facts.get(name, _Fact.NONE) for name in node.input)
        bodies = list(bodies_of(node))
        if bodies:
            return self.control(node, bodies, incoming, facts)
        if node.op_type in ("Shape", "Size") and not incoming & _Fact.DECIDED:
            incoming = _Fact.NONE  # only a decision upstream makes shapes depend on values
        if self.is_random(node) or (node.domain, node.op_type) in self.random_functions:
            incoming |= _Fact.RANDOM | _Fact.ROUNDED
        outgoing = incoming | (_Fact.ROUNDED if self.rounds(node) else _Fact.NONE)
        decided = [outgoing] * len(node.output)
        for index in self.decisions(node, incoming):
            if index < len(decided):
                decided[index] |= _Fact.DECIDED | _Fact.ROUNDED
        return decided

    def control(
        self,
        node: NodeProto,
        bodies: Sequence[GraphProto],
        incoming: _Fact,
        facts: Mapping[str, _Fact],
    ) -> list[_Fact]:
        """Facts behind If, by output; behind loops and the like, of everything together."""
        if node.op_type == "If":
            inner = [(body, self.graph(body, facts)) for body in bodies]
            outputs = [[found[o.name] for o in b.output if o.name in found] for b, found in inner]
            # One branch may return an outer value that has no facts: fall back on the union.
            if all(len(each) == len(node.output) for each in outputs):
                return [incoming | _union(each) for each in zip(*outputs, strict=True)]
            return [incoming | _union(itertools.chain(*outputs))] * len(node.output)
        while True:
            before = incoming
            for body in bodies:
                scope = {**facts, **{value.name: incoming for value in body.input}}
                found = self.graph(body, scope)
                incoming |= _union(found.get(o.name, _Fact.NONE) for o in body.output)
            if incoming == before:  # facts only accumulate, so this ends
                return [incoming] * len(node.output)

    def rounds(self, node: NodeProto) -> bool:
        """Whether the node itself may return a float that is not exact."""
        if node.op_type == "Cast":
            return self.cast_rounds(node)
        if node.op_type in ("ScatterElements", "ScatterND"):
            return attribute_of(node, "reduction", b"none") in (b"add", b"mul") and self.floats(
                node
            )
        if node.op_type in _ROUNDING_DECISIONS:
            return True
        standard = domain_of(node) in (ONNX_DOMAIN, "ai.onnx.ml", "com.microsoft")
        if standard and node.op_type in _EXACT:
            return False
        return self.floats(node)

    def cast_rounds(self, node: NodeProto) -> bool:
        to = attribute_of(node, "to")
        if to not in _FLOATS:
            # Quantizing to eight bits or fewer rounds; integers, booleans and text are decided.
            return to not in _INTEGER_BITS and to != TensorProto.STRING
        source = self.types.get(node.input[0])
        needed = _INTEGER_BITS.get(source, 99) if source is not None else 99
        if source in _FLOATS:
            needed = _LAYOUTS[source][2]
            if {source, to} == {TensorProto.FLOAT16, TensorProto.BFLOAT16}:
                return True  # neither range holds the other
        return needed > _LAYOUTS[to][2]

    def floats(self, node: NodeProto) -> bool:
        """Whether some value at the node is a float, or of unknown type."""
        kinds = [self.types.get(name) for name in (*node.input, *node.output) if name]
        discrete = {*_INTEGER_BITS, TensorProto.STRING}
        return any(kind not in discrete for kind in kinds)

    def decisions(self, node: NodeProto, incoming: _Fact) -> Iterable[int]:
        """Positions of the outputs that are discrete choices on rounded values."""
        every = range(len(node.output))
        if node.op_type in _ROUNDING_DECISIONS:
            chosen = _ROUNDING_DECISIONS[node.op_type]
            yield from every if chosen is None else chosen
        if not incoming & _Fact.ROUNDED:
            return
        if node.op_type in _DECISIONS:
            chosen = _DECISIONS[node.op_type]
            yield from every if chosen is None else chosen
        elif node.op_type == "GridSample" and attribute_of(node, "mode") == b"nearest":
            yield from every
        elif node.op_type == "Cast" and attribute_of(node, "to") not in _FLOATS:
            if self.types.get(node.input[0], TensorProto.FLOAT) not in _INTEGER_BITS:
                yield from every

    def is_random(self, node: NodeProto) -> bool:
        if node.op_type in _RANDOM:
            return True
        if node.op_type != "Dropout":
            return False
        if self.opset < 7:
            return not attribute_of(node, "is_test", 0)
        return len(node.input) > 2 and node.input[2] not in self.false | {""}


def _union(facts: Iterable[_Fact]) -> _Fact:
    total = _Fact.NONE
    for fact in facts:
        total |= fact
    return total


# --- Graph helpers ------------------------------------------------------------------------------


def _constant_falses(graph: GraphProto) -> Iterator[str]:
    """Names of boolean constants of value false."""
    for each in graphs(graph):
        overridable = {value.name for value in each.input}
        for tensor in each.initializer:
            if tensor.name not in overridable and _is_false(tensor):
                yield tensor.name
        for node in each.node:
            value = attribute_of(node, "value") if node.op_type == "Constant" else None
            if isinstance(value, TensorProto) and _is_false(value):
                yield node.output[0]


def _is_false(tensor: TensorProto) -> bool:
    if tensor.data_type != TensorProto.BOOL or tensor.data_location == TensorProto.EXTERNAL:
        return False
    return not bool(np.any(onnx.numpy_helper.to_array(tensor)))
