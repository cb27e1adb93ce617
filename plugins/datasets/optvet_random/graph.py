"""What a graph says about its inputs: who consumes them, and which values suit the consumers."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx
from onnx import numpy_helper

from optvet.graph import bodies_of, opset_versions
from optvet.plugin import ValueInfo, inline_functions
from optvet_random.values import FLOATS, INTEGER, WORDS, Domain

# (operator, input) through which values pass unchanged, to all outputs. None: any input.
_PASSES: Mapping[str, frozenset[int] | None] = {
    **dict.fromkeys(
        (
            *("Cast", "CastLike", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten"),
            *("Transpose", "Gather", "GatherElements", "GatherND", "Slice", "Split", "Pad"),
            *("Expand", "Tile", "Clip", "Relu", "ReduceMax", "ReduceMin", "TopK", "Dropout"),
            *("StringNormalizer", "Tokenizer", "StringSplit", "RegexFullReplace"),
            "ArrayFeatureExtractor",
        ),
        frozenset({0}),
    ),
    "Where": frozenset({1, 2}),
    "ScatterElements": frozenset({0, 2}),
    "ScatterND": frozenset({0, 2}),
    "Concat": None,
    "Max": None,
    "Min": None,
    "StringConcat": None,
}
_TEXT = frozenset(
    {"StringNormalizer", "Tokenizer", "TfIdfVectorizer", "StringSplit", "RegexFullReplace"}
)
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_ARITHMETIC = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sign", "Sum", "Mean", "Max", "Min", "CumSum"),
        *("MatMul", "MatMulInteger", "Gemm", "ReduceSum", "ReduceMean", "ReduceProd"),
    }
)
_POSITIVE = Domain("choice", values=(1, 2, 3))
ONE = Domain("fixed", values=(1,))
ZERO = Domain("fixed", values=(0,))
# Inputs that a graph uses as a parameter of an operator, with values that always suit it.
_PARAMETERS: Mapping[tuple[str, int], Domain] = {
    ("ConstantOfShape", 0): _POSITIVE,
    ("Tile", 1): Domain("choice", values=(1, 2)),
    ("Range", 0): ZERO,
    ("Range", 1): Domain("range", low=1, high=9),
    ("Range", 2): ONE,
    ("Slice", 1): ZERO,
    ("Slice", 2): Domain("choice", values=(1, 2, 1000)),
    ("Slice", 3): Domain("fixed", values=tuple(range(8))),
    ("Slice", 4): ONE,
    ("TopK", 1): ONE,
    ("Pad", 1): Domain("choice", values=(0, 1)),
    ("Unsqueeze", 1): Domain("fixed", values=tuple(range(8))),
    ("Squeeze", 1): Domain("fixed", values=tuple(range(8))),
    ("OneHot", 1): Domain("range", low=2, high=9),
    ("Loop", 0): Domain("range", low=1, high=5),
    ("CumSum", 1): ZERO,
    ("NonMaxSuppression", 2): Domain("range", low=1, high=9),
    ("Div", 1): Domain("choice", values=(1, 2, 3, 5, 7, -1, -2, -3)),
    ("Mod", 1): Domain("choice", values=(1, 2, 3, 5, 7)),
    ("Pow", 1): Domain("choice", values=(0, 1, 2, 3)),
    ("BitShift", 1): Domain("range", low=0, high=8),
    ("Expand", 1): ONE,
    ("RNN", 4): Domain("length"),
    ("GRU", 4): Domain("length"),
    ("LSTM", 4): Domain("length"),
    ("ReverseSequence", 1): Domain("length"),
}
_FLOAT_PARAMETERS: Mapping[tuple[str, int], Domain] = {
    ("Resize", 2): Domain("choice", values=(1.0, 2.0)),
    ("Upsample", 1): Domain("choice", values=(1.0, 2.0)),
    ("Dropout", 1): Domain("choice", values=(0.0, 0.25, 0.5)),
    ("QuantizeLinear", 1): Domain("choice", values=(0.02, 0.1, 0.5)),
    ("DequantizeLinear", 1): Domain("choice", values=(0.02, 0.1, 0.5)),
    ("BatchNormalization", 4): Domain("choice", values=(0.25, 0.5, 1.0, 3.0)),
    ("NonMaxSuppression", 3): Domain("choice", values=(0.3, 0.5, 0.7)),
    ("NonMaxSuppression", 4): Domain("choice", values=(0.0, 0.1, 0.5)),
    ("Range", 0): ZERO,
    ("Range", 1): Domain("range", low=1, high=9),
    ("Range", 2): ONE,
}
_SMALL = 4096


@dataclass(frozen=True)
class Use:
    """A node that consumes ``input + offset`` as its operand ``index``."""

    node: onnx.NodeProto
    index: int
    offset: int


@dataclass
class ConsumerGraph:
    """Who consumes which value, across subgraphs and with functions inlined."""

    consumers: dict[str, list[tuple[onnx.NodeProto, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    flows: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: dict[str, onnx.TensorProto] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, proto: onnx.ModelProto) -> ConsumerGraph:
        """The flat view of a model."""
        proto = inline_functions(proto)
        found = cls(opsets=opset_versions(proto))
        found._add(proto.graph)
        return found

    def _add(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._add_constant(tensor.name, tensor)
        for info in itertools.chain(graph.input, graph.value_info, graph.output):
            if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape"):
                dims = info.type.tensor_type.shape.dim
                known = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
                self.shapes.setdefault(info.name, known)
        for node in graph.node:
            self.nodes.append(node)
            for index, name in enumerate(node.input):
                self.consumers[name].append((node, index))
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    self._add_constant(node.output[0], attribute.t)
                elif node.op_type == "Constant" and attribute.name.startswith("value_"):
                    value = np.array(onnx.helper.get_attribute_value(attribute))
                    self.constants[node.output[0]] = value
                    self.shapes[node.output[0]] = value.shape
            for body in bodies_of(node):
                self._add_body(node, body)

    def _add_body(self, node: onnx.NodeProto, body: onnx.GraphProto) -> None:
        self._add(body)
        skip = 1 if node.op_type == "Loop" else 0
        for inner, outer in zip(body.output[skip:], node.output, strict=False):
            self.flows[inner.name].append(outer)
        if node.op_type in ("Loop", "Scan"):
            for actual, formal in zip(node.input, body.input, strict=False):
                # The trip count of a Loop is not the iteration number that its body sees.
                if node.op_type == "Scan" or formal is not body.input[0]:
                    self.flows[actual].append(formal.name)

    def _add_constant(self, name: str, tensor: onnx.TensorProto) -> None:
        self.shapes[name], self.tensors[name] = tuple(tensor.dims), tensor
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if not external and math.prod(tensor.dims) <= _SMALL:
            self.constants[name] = numpy_helper.to_array(tensor)

    def constant(self, node: onnx.NodeProto, index: int) -> np.ndarray | None:
        """A constant operand, if it is one and small."""
        return self.constants.get(node.input[index]) if index < len(node.input) else None

    def constant_behind(self, name: str) -> np.ndarray | None:
        """A constant of any size, by its name or that of what a loop takes it for; else None."""
        if name in self.constants:
            return self.constants[name]
        tensor = self.tensors.get(name)
        if tensor is not None and tensor.data_location != onnx.TensorProto.EXTERNAL:
            return numpy_helper.to_array(tensor)
        outer = self._outer.get(name)
        return None if outer is None else self.constant_behind(outer)

    @cached_property
    def _outer(self) -> Mapping[str, str]:
        """The value outside of a loop or branch that an inner one takes, by name."""
        return {inner: outer for outer, all_inner in self.flows.items() for inner in all_inner}

    def shape(self, node: onnx.NodeProto, index: int) -> tuple[int | None, ...] | None:
        """Shape of an operand, as far as it is known."""
        return self.shapes.get(node.input[index]) if index < len(node.input) else None

    def uses(self, name: str) -> list[Use]:
        """Nodes that consume the value of input ``name``, perhaps reshaped, cast or shifted."""
        found: list[Use] = []
        queue, seen = deque([(name, 0)]), {name}
        while queue and len(found) < 10_000:
            value, offset = queue.popleft()
            following: list[tuple[str, int]] = [(f, offset) for f in self.flows.get(value, ())]
            for node, index in self.consumers.get(value, ()):
                found.append(Use(node, index, offset))
                shifted = self._passes(node, index, offset)
                if shifted is not None:
                    following += [(output, shifted) for output in node.output if output]
            for output, shifted in following:
                if output not in seen:
                    seen.add(output)
                    queue.append((output, shifted))
        return found

    def _passes(self, node: onnx.NodeProto, index: int, offset: int) -> int | None:
        """Offset behind a node that passes values on; None if it computes new ones."""
        if node.op_type in _PASSES:
            through = _PASSES[node.op_type]
            return offset if through is None or index in through else None
        if node.op_type in ("Add", "Sub") and (index == 0 or node.op_type == "Add"):
            other = self.constant(node, 1 - index)
            if other is not None and other.size == 1 and other.dtype.kind in "iu":
                return offset + int(other.item()) * (1 if node.op_type == "Add" else -1)
        return None

    def index_bound(self, use: Use) -> int | None:
        """Rows of the table that ``use`` indexes; None if it does not, or they are unknown."""
        node, key = use.node, (use.node.op_type, use.index)
        attributes = {a.name: a for a in node.attribute}
        axis = attributes["axis"].i if "axis" in attributes else 0
        data = self.shape(node, 0)
        if key == ("OneHot", 0):
            depth = self.constant(node, 1)
            return int(depth.item()) if depth is not None and depth.size == 1 else None
        if key == ("EmbedLayerNormalization", 0) or key == ("EmbedLayerNormalization", 1):
            data, axis = self.shape(node, 2 if use.index == 0 else 4), 0
        elif key in (("GatherND", 1), ("ScatterND", 1)):
            width = (self.shape(node, 1) or (None,))[-1] or 1
            known = [d for d in (data or ())[:width] if d]
            return min(known) if len(known) == width else None
        elif key == ("ArrayFeatureExtractor", 1):
            axis = -1
        elif key[1] != 1 or not key[0].startswith(("Gather", "Scatter")):
            return None
        return data[axis] if data and -len(data) <= axis < len(data) else None

    def strings(self, uses: Sequence[Use]) -> tuple[str, ...]:
        """Categories and words that the consumers of a string input know."""
        found: dict[str, None] = {}
        for use in uses:
            for attribute in use.node.attribute:
                if attribute.name in ("cats_strings", "keys_strings", "pool_strings"):
                    found.update(dict.fromkeys(s.decode() for s in attribute.strings))
                if attribute.name == "classes_strings" and use.node.op_type == "LabelEncoder":
                    found.update(dict.fromkeys(s.decode() for s in attribute.strings))
            other = self.constant(use.node, 1 - use.index) if use.index < 2 else None
            if use.node.op_type == "Equal" and other is not None:
                found.update(dict.fromkeys(str(s) for s in other.ravel()))
        return tuple(found)

    @cached_property
    def sizes(self) -> list[int]:
        """Sizes that constants impose on dimensions, the most binding first."""
        gathered, weights = [], []
        for node in self.nodes:
            indices = self.constant(node, 1)
            if node.op_type == "Gather" and indices is not None and indices.size:
                gathered.append(int(indices.max()) + 1)
            if node.op_type in ("MatMul", "Gemm", "Conv", "MatMulInteger"):
                weights += [d for d in self.shape(node, 1) or () if d]
            target = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}.get(node.op_type)
            shape = None if target is None else self.constant(node, target)
            if shape is not None:
                weights += [int(d) for d in shape.ravel() if d > 1]
        largest = sorted(set(gathered), reverse=True)[:2]
        return [s for s in dict.fromkeys([*largest, *weights]) if s > 1]


def _mask_like(info: ValueInfo, graph: ConsumerGraph, uses: Sequence[Use]) -> bool:
    """Whether an input looks like a mask: by name, or as in ``1 - mask`` and ``mask == 0``."""
    if "mask" in info.name.lower():
        return True
    if not info.shape:
        return False
    for use in uses:
        if use.index > 1:
            continue
        other = graph.constant(use.node, 1 - use.index)
        if other is None or other.size != 1 or other.dtype.kind not in "iuf":
            continue
        if (use.node.op_type, use.index) == ("Sub", 1) and other.item() == 1:
            return True
        if use.node.op_type in _COMPARISONS and other.item() in (0, 1):
            return True
    return False


def _find_compared(graph: ConsumerGraph, uses: Sequence[Use]) -> list[int]:
    """Integers with which an input is compared."""
    found: list[int] = []
    for use in uses:
        if use.node.op_type in _COMPARISONS:
            other = graph.constant(use.node, 1 - use.index)
            if other is not None and other.dtype.kind in "iuf" and np.isfinite(other).all():
                found += [int(v) - use.offset for v in other.ravel()]
    return list(dict.fromkeys(found))


def _sizes_for(graph: ConsumerGraph, use: Use) -> Domain | None:
    """Sizes that suit the tensor they are applied to; None if ``use`` takes no such sizes."""
    key = (use.node.op_type, use.index)
    data = graph.shape(use.node, 0)
    known = [d for d in data or () if d]
    complete = bool(known) and len(known) == len(data or ())
    if key == ("Reshape", 1):
        length = (graph.shape(use.node, 1) or (None,))[0] or 1
        own = complete and len(known) == length
        return Domain("fixed", values=tuple(known) if own else (*(1,) * (length - 1), -1))
    if key == ("Resize", 3) and complete:
        return Domain("fixed", values=(*known[:2], *(2 * d for d in known[2:])))
    if key == ("Resize", 3):
        return _POSITIVE
    if key == ("Split", 1) and complete:
        axis = next((a.i for a in use.node.attribute if a.name == "axis"), 0)
        parts = len(use.node.output)
        rest = known[axis] - (parts - 1) * (known[axis] // parts)
        return Domain("fixed", values=(*(known[axis] // parts,) * (parts - 1), rest))
    return None


def _meaning(info: ValueInfo, graph: ConsumerGraph, uses: Sequence[Use]) -> list[Domain]:
    """Domains that the consumers of an integer input suggest; empty if they suggest none."""
    bounds = [(b - u.offset, -u.offset) for u in uses if (b := graph.index_bound(u))]
    if bounds:
        high, low = min(b[0] for b in bounds), max(b[1] for b in bounds)
        return [Domain("range", low=max(0, low), high=max(high, 1))]
    keys = [
        int(k)
        for u in uses
        for a in u.node.attribute
        if a.name in ("keys_int64s", "cats_int64s")
        for k in a.ints
    ]
    if keys:
        return [Domain("choice", values=tuple(dict.fromkeys(keys)))]
    for use in uses:
        key = (use.node.op_type, use.index)
        sizes = _sizes_for(graph, use)
        if sizes is not None:
            return [sizes]
        if key in _PARAMETERS:
            return [_PARAMETERS[key]]
    if _mask_like(info, graph, uses):
        return [Domain("mask")]
    constants = _find_compared(graph, uses)
    if len(constants) > 2:
        return [Domain("range", low=min(constants), high=max(constants) + 1)]
    # One value takes the branch, its half the other one (a sampling rate, a mode).
    return [Domain("choice", values=(v,)) for c in constants for v in (c, c // 2)]


def domains_of(info: ValueInfo, graph: ConsumerGraph) -> list[Domain]:
    """Domains to try for an input, the most plausible first; never empty."""
    uses = graph.uses(info.name)
    if info.dtype in FLOATS or info.dtype.startswith(("float", "complex")):
        keys = [(u.node.op_type, u.index) for u in uses]
        # Only a direct operand: behind a Cast or Concat floats are rarely parameters.
        meant = [_FLOAT_PARAMETERS[k] for k in keys[:4] if k in _FLOAT_PARAMETERS]
        return [*meant[:1], Domain("float")]
    if info.dtype == "bool" and info.shape is not None and all(d == 1 for d in info.shape):
        # A lone boolean takes a branch; one of the two may well not run.
        return [Domain("choice", values=(flag,)) for flag in (True, False)]
    if info.dtype == "bool":
        mask = "mask" in info.name.lower()
        return [Domain("mask"), Domain("bool")] if mask else [Domain("bool")]
    if info.dtype == "string":
        words = graph.strings(uses)
        if any(u.node.op_type in _TEXT for u in uses):
            return [Domain("text", values=words)]
        return [Domain("choice", values=words or WORDS), Domain("choice", values=("",))]
    match = INTEGER.match(info.dtype)
    bits, signed = (int(match[2]), not match[1]) if match else (64, True)
    meant = _meaning(info, graph, uses)
    if bits <= 8:
        whole = Domain("range", low=-(1 << bits - 1) if signed else 0, high=1 << bits - signed)
        return [*meant, whole, Domain("range"), ZERO, ONE]
    guesses = [Domain("range"), Domain("range", high=2), ZERO, ONE, _POSITIVE]
    guesses += [Domain("range", high=100), *(Domain("fixed", values=(v,)) for v in (16, 16000))]
    computing = any(u.node.op_type in _ARITHMETIC for u in uses)
    if signed and computing and not meant:
        guesses.insert(0, Domain("range", low=-16, high=17))
    return list(dict.fromkeys([*meant, *guesses]))
