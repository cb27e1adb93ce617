"""Rounding where it arises: a random step behind every operator that rounds.

Moving weights and inputs tells nothing where a value saturates on the way: Sigmoid of −20 is 0 in
one kernel and 2e-9 in another, both right, and no change of the weights by one roundoff shows it.
So the operators of the graph are moved themselves: each result by its own rounding, and by what a
function of limited range can resolve (Parker, Monte Carlo Arithmetic, 1997). The random numbers are
drawn by nodes of the graph, so no shape needs to be known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from optvet.engine.numerics.perturb import LAYOUTS, jitter_model, structural_names
from optvet.engine.numerics.rounding import rounding_of
from optvet.graph.types import element_types
from optvet.graph.walk import (
    ONNX_DOMAIN,
    all_names,
    bodies_of,
    domain_of,
    graphs,
    opset_versions,
    schema_of,
)
from optvet.graph.weights import constant_tensors

ROUNDOFFS = 2.0
"""Largest step, in units of roundoff: what a good kernel of one operator may be off."""

_BOUNDED = frozenset(
    """
    Celu Cos Elu Erf GRU HardSigmoid LSTM RNN Selu Sigmoid Sin Softmax Softplus Softsign
    Tanh
    """.split()
)
"""Made of steps whose values are about 1, so that what lies far below one of them is lost."""
_OF_ITS_INPUT = frozenset(
    "BiasGelu FastGelu Gelu HardSwish LogSoftmax Mish QuickGelu Swish".split()
)
"""A bounded function times the input: what is lost is measured by the input."""
_CENTRES = frozenset(
    """
    BatchNormalization GroupNormalization InstanceNormalization LayerNormalization
    LpNormalization MeanVarianceNormalization RMSNormalization SimplifiedLayerNormalization
    SkipLayerNormalization
    """.split()
)
"""What they subtract and divide by are sums: where all values are equal, only rounding is left."""
_TERMS: dict[str, Callable[[Sequence[int]], int]] = {
    "Conv": lambda shape: math.prod(shape[1:]),
    "ConvTranspose": lambda shape: shape[0] * math.prod(shape[2:]),
    "FusedConv": lambda shape: math.prod(shape[1:]),
    "FusedMatMul": lambda shape: shape[-2] if len(shape) > 1 else shape[0],
    "GRU": lambda shape: shape[-1],
    "Gemm": max,
    "LSTM": lambda shape: shape[-1],
    "MatMul": lambda shape: shape[-2] if len(shape) > 1 else shape[0],
    "RNN": lambda shape: shape[-1],
}
"""Terms of the sums that an operator makes, by the shape of its second input."""
_USUAL_TERMS = 64
_REDUCTIONS = frozenset(
    """
    GlobalAveragePool GlobalLpPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean
    ReduceSum ReduceSumSquare
    """.split()
)
"""Each result is one sum: of as many terms as there are elements of the input for each of it."""
_DOMAINS = frozenset({ONNX_DOMAIN, "com.microsoft"})
_WIDE = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})
_MOVABLE = _WIDE | {TensorProto.FLOAT16}


def injected_bytes(data: bytes, seed: int) -> bytes:
    """A serialized model, weights and operators moved; equal seeds give equal models."""
    model = jitter_model(onnx.load_model_from_string(data), np.random.default_rng(seed))
    inject(model, seed)
    return bytes(model.SerializeToString())


def inject(model: ModelProto, seed: int) -> None:
    """Put random steps behind the operators of ``model`` that round, in place.

    What belongs to the meaning of an operator (a shape, a scale of quantization) stays. Functions
    of the model count as operators.
    """
    _Injection(model, seed).graph(model.graph)


class _Injection:
    """One run of ``inject``: names of what it adds, and a seed for each."""

    def __init__(self, model: ModelProto, seed: int) -> None:
        self.types, self.versions = element_types(model), opset_versions(model)
        self.rounds = rounding_of(model)
        self.fixed = structural_names(model)
        self.seed, self.count = seed, 0
        self.taken: set[str] = set()
        self.shapes: dict[str, Sequence[int]] = {}
        for graph in graphs(model.graph):
            self.taken |= all_names(graph.node) | {t.name for t in graph.initializer}
            tensors = (*graph.initializer, *constant_tensors(graph))
            self.shapes |= {t.name: t.dims for t in tensors if t.dims}

    def graph(self, graph: GraphProto) -> None:
        nodes: list[NodeProto] = []
        for node in graph.node:
            self.guess(node)
            bodies = list(bodies_of(node))
            for body in bodies:
                self.graph(body)
            nodes += [node] if bodies or not self.rounds(node) else self.moved(node)
        del graph.node[:]
        graph.node.extend(nodes)

    def moved(self, node: NodeProto) -> Iterator[NodeProto]:
        """``node`` with steps at its results, and in front of what it centres."""
        ours = domain_of(node) in _DOMAINS
        if ours and node.op_type in _CENTRES and self.is_movable(node.input[0]):
            source, node.input[0] = node.input[0], self.name(node.input[0])
            if node.op_type == "InstanceNormalization":
                yield from self.of_sum(source, node.input[0], self.types[source], node, source)
            else:
                yield from self.relative(source, node.input[0], self.types[source])
        after: list[NodeProto] = []
        for index, name in enumerate(node.output):
            if not self.is_movable(name):
                continue
            kind = self.types[name]
            made = node.output[index] = self.name(name)
            bounded = ours and node.op_type in _BOUNDED
            by_input = ours and node.op_type in _OF_ITS_INPUT
            if bounded:
                made, last = self.name(name), made
                after += self.step(last, made, kind, "Add", last, 0.0)
            elif by_input and self.types.get(node.input[0]) == kind:
                made, last, share = self.name(name), made, self.name(name)
                after += self.step(node.input[0], share, kind, "Mul", last, 0.0)
                after.append(helper.make_node("Add", [last, share], [made]))
            if ours and (node.op_type in _REDUCTIONS or node.op_type == "InstanceNormalization"):
                after += self.of_sum(made, name, kind, node)
            else:
                after += self.relative(made, name, kind, self.share(node))
        yield node
        yield from after

    def share(self, node: NodeProto) -> float:
        """How far a good kernel's result may be off, in units of a plain operator's.

        A sum of n terms taken one by one is off by about sqrt(n) / 4 roundoffs of its size:
        measured on convolutions of 288 to 1,152 terms, 5 to 10, where sums in blocks are off by 2.
        """
        terms = _TERMS.get(node.op_type) if domain_of(node) in _DOMAINS else None
        if terms is None:
            return 1.0
        shape = self.shapes.get(node.input[1]) if len(node.input) > 1 else None
        return max(1.0, math.sqrt(terms(shape) if shape else _USUAL_TERMS) / 4)

    def of_sum(
        self, source: str, target: str, kind: int, node: NodeProto, given: str = ""
    ) -> list[NodeProto]:
        """``target`` is ``source`` moved as sums of all terms that ``node`` reduces to one are.

        How many they are is counted when the model runs: pictures may have any size. The mean of
        518,400 positive numbers is off by up to 160 roundoffs in kernels of two runtimes, and a
        quarter of the root of their number is 180.
        """
        given = given or node.input[0]
        wide = kind if kind in _WIDE else int(TensorProto.FLOAT)
        made: list[NodeProto] = []

        def add(operator: str, *sources: str, **attributes: Any) -> str:
            name = self.name(target)
            made.append(helper.make_node(operator, sources, [name], **attributes))
            return name

        def constant(value: np.ndarray) -> str:
            return add("Constant", value=numpy_helper.from_array(value))

        def number(value: float) -> str:
            return constant(np.array(value, helper.tensor_dtype_to_np_dtype(wide)))

        if node.op_type == "InstanceNormalization":
            outer = constant(np.array([0, 1], np.int64))
            kept = add("ReduceProd", add("Gather", add("Shape", given), outer), keepdims=0)
        else:
            kept = add("Size", source)
        # Divided as floats: a tensor may have no elements.
        terms = add("Div", add("Cast", add("Size", given), to=wide), add("Cast", kept, to=wide))
        share = add("Max", add("Mul", add("Sqrt", terms), number(0.25)), number(1.0))
        return [*made, *self.step(source, target, kind, "Mul", source, 1.0, factor=share)]

    def guess(self, node: NodeProto) -> None:
        """Types of results that inference does not reach: behind an operator that ONNX lacks."""
        missing = [(i, name) for i, name in enumerate(node.output) if name not in self.types]
        schema = schema_of(node.domain, node.op_type, self.versions) if missing else None
        for index, name in missing:
            sources: Sequence[str] = node.input
            if schema is not None:
                formal = schema.outputs[min(index, len(schema.outputs) - 1)].type_str
                taken = [f.type_str for f in schema.inputs]
                sources = [s for s, t in zip(node.input, taken, strict=False) if t == formal]
            kinds = (self.types.get(source) for source in sources)
            kind = next((k for k in kinds if k in _MOVABLE), None)
            if kind is not None:
                self.types[name] = kind

    def is_movable(self, name: str) -> bool:
        return bool(name) and name not in self.fixed and self.types.get(name) in _MOVABLE

    def relative(self, source: str, target: str, kind: int, share: float = 1.0) -> list[NodeProto]:
        """``target`` is ``source`` times a number near 1; infinity and NaN stay."""
        return self.step(source, target, kind, "Mul", source, 1.0, share)

    def step(
        self,
        source: str,
        target: str,
        kind: int,
        how: str,
        like: str,
        middle: float,
        share: float = 1.0,
        factor: str = "",
    ) -> list[NodeProto]:
        """``target`` is ``source``, plus or times numbers near ``middle``, shaped as ``like``.

        They are further from it by ``factor``, the name of a scalar of the graph.
        """
        reach = share * ROUNDOFFS * 2.0 ** -LAYOUTS[kind][2]
        self.count += 1
        drawn = self.name(target)
        dtype = kind if kind in _WIDE else TensorProto.FLOAT
        made = [
            helper.make_node(
                "RandomUniformLike",
                [like],
                [drawn],
                dtype=int(dtype),
                low=(0.0 if factor else middle) - reach,
                high=(0.0 if factor else middle) + reach,
                seed=float(10_000 * self.seed + self.count),
            )
        ]
        if factor:
            wider, centre, moved = (self.name(target) for _ in range(3))
            value = np.array(middle, helper.tensor_dtype_to_np_dtype(dtype))
            made += [
                helper.make_node("Mul", [drawn, factor], [wider]),
                helper.make_node("Constant", [], [centre], value=numpy_helper.from_array(value)),
                helper.make_node("Add", [wider, centre], [moved]),
            ]
            drawn = moved
        if dtype != kind:
            wide, drawn = drawn, self.name(target)
            made.append(helper.make_node("Cast", [wide], [drawn], to=int(kind)))
        return [*made, helper.make_node(how, [source, drawn], [target])]

    def name(self, base: str) -> str:
        """A name that no value has."""
        number = 0
        while (name := f"{base}__step_{number}") in self.taken:
            number += 1
        self.taken.add(name)
        return name
