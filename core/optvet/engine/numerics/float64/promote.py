"""Models in double precision: every float becomes a double, with Casts where float32 is needed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto
from onnx.inliner import inline_local_functions
from onnx.reference import ReferenceEvaluator

from optvet.engine.numerics.float64.operators import replacements
from optvet.graph.types import FLOATS, dtype_name, element_types
from optvet.graph.walk import ONNX_DOMAIN, domain_of, graphs, is_onnx
from optvet.graph.weights import constant_tensors

_SINGLES = frozenset(FLOATS) - {TensorProto.DOUBLE}
_HALVES = _SINGLES - {TensorProto.FLOAT}

# Their schema requires float32, but the evaluator only copies values, so they can take doubles.
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

# The activations that the evaluator's recurrent operators use; it ignores their attributes.
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
    """The model cannot be evaluated correctly in float64; the message says why."""


def promote(model: ModelProto) -> ModelProto:
    """The same graph in double precision, with local functions inlined.

    Args:
        model: A model with all its weights in memory; it is not changed.

    Returns:
        A model with the same input and output names in which every float32, float16 and bfloat16
        tensor is a double, also in subgraphs. An operator without a double version is surrounded by
        Cast nodes.

    Raises:
        NotPromotable: An operator cannot be evaluated in double precision.
    """
    model = inline_functions(model)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    promotion = Promotion(opsets, _keeps_half_casts(model.graph), element_types(model))
    promotion.graph(model.graph)
    return model


def inline_functions(model: ModelProto) -> ModelProto:
    """A copy of ``model`` without local functions; ONNX's own domain is spelled ""."""
    if model.functions:
        try:
            copy = inline_local_functions(model)
        except Exception as error:  # the inliner passes on any C++ exception
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
    """Whether a Cast to a half type is meant to round, since no weight or input is a half."""
    for each in graphs(graph):
        inputs = (value.type.tensor_type.elem_type for value in each.input)
        weights = (tensor.data_type for tensor in (*each.initializer, *constant_tensors(each)))
        sparse = (tensor.values.data_type for tensor in each.sparse_initializer)
        if any(kind in _HALVES for kind in itertools.chain(inputs, weights, sparse)):
            return False
    return True


class Promotion:
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
        self.own = {(op.op_domain, op.__name__) for op in replacements(opsets)}
        self.fresh = itertools.count()

    def graph(self, graph: GraphProto) -> None:
        """Rewrite ``graph`` and the graphs inside it."""
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
        """The replacement of a node: the node with doubles, between Casts if necessary."""
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
        return self.surround_with_casts(node)

    def refusal(self, node: NodeProto) -> str | None:
        """Why ``node`` cannot be evaluated in double precision; None if it can."""
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
        if node.op_type in _RECURRENT and (ignored := _find_ignored_attribute(node)):
            return f"the reference evaluator ignores its {ignored}"
        opset = self.opsets.get(node.domain, 1)
        return None if _is_implemented(node.op_type, opset, node.domain) else "not implemented"

    def rounding_cast(self, node: NodeProto) -> list[NodeProto]:
        """The Cast to a half as it is, and one back to a double."""
        half = self.name(node.output[0])
        widen = onnx.helper.make_node("Cast", [half], [node.output[0]], to=TensorProto.DOUBLE)
        node.output[0] = half
        return [node, widen]

    def surround_with_casts(self, node: NodeProto) -> list[NodeProto]:
        """``node`` between the Casts that its schema requires."""
        before: list[NodeProto] = []
        after: list[NodeProto] = []
        try:
            schema = onnx.defs.get_schema(
                node.op_type, self.opsets.get(node.domain, 1), node.domain
            )
        except onnx.defs.SchemaError:
            return [node]  # supported operators of other domains are our own, which take doubles
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
        """Whether the schema does not allow a double for this float parameter."""
        if not formals:
            return False
        allowed = formals[min(index, len(formals) - 1)].types
        if "tensor(float)" not in allowed or "tensor(double)" in allowed:
            return False
        singles = {f"tensor({dtype_name(each)})" for each in _SINGLES}
        kind = self.types.get(name)
        return kind in _SINGLES if kind is not None else allowed <= singles

    def name(self, base: str) -> str:
        """A new name for a value, beginning with ``base``."""
        return f"{base}__float64_{next(self.fresh)}"


def _find_ignored_attribute(node: NodeProto) -> str | None:
    """The attribute of a recurrent node that the evaluator silently ignores, or None."""
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
        # These would round to float32 inside, or name a result type that is a double now.
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
    except Exception:  # onnx versions raise different errors for an unknown operator
        return False
    return True
