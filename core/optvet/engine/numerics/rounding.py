"""Which outputs of a model can be rounded, can flip, or are random; others must be equal.

These three facts are propagated in one walk from the inputs to the outputs of the graph.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from optvet.engine.numerics.perturb import LAYOUTS
from optvet.graph.functions import without_functions
from optvet.graph.types import FLOATS, INTEGERS, element_types
from optvet.graph.walk import (
    ONNX_DOMAIN,
    RANDOM_OPERATORS,
    attribute_of,
    bodies_of,
    domain_of,
    graphs,
    inner_nodes,
    opset_versions,
)
from optvet.graph.weights import SHAPE_ELEMENTS, without_large_weights


class _Fact(enum.Flag):
    """Facts about how a value was computed from the inputs."""

    NONE = 0
    ROUNDED = enum.auto()
    DECIDED = enum.auto()  # a discrete choice was made on a rounded value
    RANDOM = enum.auto()


def can_round(model: ModelProto) -> frozenset[str]:
    """Graph outputs that floating-point rounding may change.

    The others are copies, selections and integer results: two correct implementations agree on
    them bit for bit. Operators that are not known to be exact count as rounding.
    """
    return _outputs_with(model, _Fact.ROUNDED)


def discontinuous(model: ModelProto) -> frozenset[str]:
    """Graph outputs behind a discrete decision (ArgMax, Less, Round, …) on a rounded value.

    There a difference of one ulp can legally become a difference of any size.
    """
    return _outputs_with(model, _Fact.DECIDED)


def random_ops(model: ModelProto) -> frozenset[str]:
    """Graph outputs that depend on a random operator, or on Dropout in training mode."""
    return _outputs_with(model, _Fact.RANDOM)


def decides(node: NodeProto) -> bool:
    """Whether a node may give something else where its operands change little."""
    casts = node.op_type == "Cast" and attribute_of(node, "to", 0) not in LAYOUTS
    return casts or node.op_type in _DECISIONS or node.op_type in _ROUNDING_DECISIONS


def rounding_of(model: ModelProto) -> Callable[[NodeProto], bool]:
    """Tells of a node of ``model`` whether it may return a float that is not exact."""
    return _FactPropagation(model).rounds


# Operators that copy, select, count or compare, or whose arithmetic is exact.
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

# Operators whose output may jump when the input changes little. Values: the positions of such
# outputs; None for all.
_DECISIONS: dict[str, tuple[int, ...] | None] = dict.fromkeys(
    """
    ArgMax ArgMin BitCast Binarizer Ceil Compress Equal Floor Greater GreaterOrEqual Hardmax IsInf
    IsNaN LabelEncoder Less LessOrEqual Mod NonZero OneHot OneHotEncoder Round Sign Shrink
    ThresholdedRelu TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor Unique
    """.split()
)
_DECISIONS.update(MaxPool=(1,), TopK=(1,))

# The same for operators that round inside, so that even exact inputs give rounded decisions.
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
_INTEGER_BITS = {TensorProto.BOOL: 1, **{n: high.bit_length() for n, (_, high) in INTEGERS.items()}}


def _exponent_bits(kind: int) -> int:
    _, exponents, precision = LAYOUTS[kind]
    return (exponents >> (precision - 1)).bit_length()


def _outputs_with(model: ModelProto, fact: _Fact) -> frozenset[str]:
    walk = _FactPropagation(model)
    facts = walk.graph(walk.model.graph, {})
    names = [output.name for output in model.graph.output]
    return frozenset(name for name in names if facts.get(name, _Fact.NONE) & fact)


class _FactPropagation:
    """Carries facts from values to the values computed from them."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        if model.functions:  # a call that cannot be inlined is unknown, so it counts as rounding
            self.model = without_functions(without_large_weights(model, SHAPE_ELEMENTS))
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
            incoming = _Fact.NONE  # a shape depends on values only through a decision upstream
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
        """Facts of each output of an If; for loops and others, the union of all facts."""
        if node.op_type == "If":
            inner = [(body, self.graph(body, facts)) for body in bodies]
            outputs = [[found[o.name] for o in b.output if o.name in found] for b, found in inner]
            # A branch may return an outer value without facts: use the union then.
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
        if to not in FLOATS:
            # A float of eight bits or fewer rounds; integers, booleans and text are decided.
            return to not in _INTEGER_BITS and to != TensorProto.STRING
        source = self.types.get(node.input[0])
        needed = _INTEGER_BITS.get(source, 99) if source is not None else 99
        if source in FLOATS:
            needed = LAYOUTS[source][2]
            if _exponent_bits(source) > _exponent_bits(to):
                return True  # the range is smaller, as of bfloat16 in float16
        return needed > LAYOUTS[to][2]

    def floats(self, node: NodeProto) -> bool:
        """Whether some value at the node is a float, or of unknown type."""
        kinds = [self.types.get(name) for name in (*node.input, *node.output) if name]
        discrete = {*_INTEGER_BITS, TensorProto.STRING}
        return any(kind not in discrete for kind in kinds)

    def decisions(self, node: NodeProto, incoming: _Fact) -> Iterable[int]:
        """Positions of the outputs that are discrete decisions on rounded values."""
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
        elif node.op_type == "Cast" and attribute_of(node, "to") not in FLOATS:
            if self.types.get(node.input[0], TensorProto.FLOAT) not in _INTEGER_BITS:
                yield from every

    def is_random(self, node: NodeProto) -> bool:
        if node.op_type in RANDOM_OPERATORS:
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
