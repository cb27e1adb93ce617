"""Adds random rounding errors to the results of operators, to measure the noise of outputs.

Perturbing weights and inputs alone misses saturation: Sigmoid of −20 is 0 in one kernel and 2e-9 in
another, both correct, and no change of the weights by one roundoff shows it. So each result is
perturbed by its own rounding error and, for functions of limited range, by the resolution of that
range. Nodes of the graph draw the random numbers, so that no shapes need to be known.

What is exact on the values at hand is not perturbed, which nodes of the graph find out too: a step
away from the 1 of a mask would turn ``(1 - mask) * -1e9`` from 0 into 60, an error no kernel makes.

Source: Parker 1997, "Monte Carlo Arithmetic".
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
from optvet.spec.significance import KEPT_BITS

INJECTIONS = 4
"""Draws from which noise is measured."""
ROUNDOFFS = 2.0
"""Largest error that is added, in unit roundoffs: that of a good kernel of one operator."""

BOUNDED = frozenset(
    """
    Celu Cos Elu Erf GRU HardSigmoid LSTM RNN Selu Sigmoid Sin Softmax Softplus Softsign
    Tanh
    """.split()
)
"""Operators that compute with values near 1, so that their absolute error is a roundoff of 1."""
_OF_ITS_INPUT = frozenset(
    "BiasGelu FastGelu Gelu HardSwish LogSoftmax Mish QuickGelu Swish".split()
)
"""A bounded function times the input: the absolute error is relative to the input."""
_CENTRES = frozenset(
    """
    BatchNormalization GroupNormalization InstanceNormalization LayerNormalization
    LpNormalization MeanVarianceNormalization RMSNormalization SimplifiedLayerNormalization
    SkipLayerNormalization
    """.split()
)
"""Operators that subtract a mean: for equal values the result is rounding error alone."""
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
"""Number of terms in the sums of an operator, by the shape of its second input."""
_USUAL_TERMS = 64
_REDUCTIONS = frozenset(
    """
    GlobalAveragePool GlobalLpPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean
    ReduceSum ReduceSumSquare
    """.split()
)
"""Operators whose results are sums over axes: input elements per output element are the terms."""
_DOMAINS = frozenset({ONNX_DOMAIN, "com.microsoft"})
_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})
"""Operators whose results on floats float64 holds, or comes close to: it tells which are exact."""
_COMPUTED_BITS = {TensorProto.FLOAT16: 24, TensorProto.FLOAT: 24, TensorProto.DOUBLE: 53}
"""Bits of the significands in which numbers are split; halves are split as floats. No runtime on a
CPU runs the operators that would be injected for bfloat16."""
_SPLITTERS: dict[int, float] = {
    kind: 2.0 ** (bits - KEPT_BITS[helper.tensor_dtype_to_np_dtype(kind).name]) + 1
    for kind, bits in _COMPUTED_BITS.items()
}
"""Factors that leave the first bits of a number: as many as an exact value may have.

Source: Dekker 1971, "A Floating-Point Technique for Extending the Available Precision", Sec. 5.
"""
_WIDE = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})
_MOVABLE = _WIDE | {TensorProto.FLOAT16}


def injected_bytes(data: bytes, seed: int, *, wide_sums: bool = False) -> bytes:
    """The model with perturbed weights and operators; equal seeds give equal models.

    See ``inject``.
    """
    model = jitter_model(onnx.load_model_from_string(data), np.random.default_rng(seed))
    inject(model, seed, wide_sums=wide_sums)
    return bytes(model.SerializeToString())


def inject(model: ModelProto, seed: int, *, wide_sums: bool = False) -> None:
    """Add random errors to the results of the operators of ``model`` that round, in place.

    Inputs that define an operator (a shape, a quantization scale) are not perturbed. Calls of local
    functions count as operators.

    Args:
        model: The model.
        seed: Of the random numbers; they are drawn by nodes of the graph.
        wide_sums: Whether the kernels sum halves as floats, so that only the result is rounded to
            half precision, however many terms a sum has.
    """
    _Injection(model, seed, wide_sums).graph(model.graph)


class _Injection:
    """The state of one call of ``inject``: new names, and a seed for each random node."""

    def __init__(self, model: ModelProto, seed: int, wide_sums: bool) -> None:
        self.wide_sums = wide_sums
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
            nodes += [node] if bodies or not self.rounds(node) else self.add_errors(node)
        del graph.node[:]
        graph.node.extend(nodes)

    def add_errors(self, node: NodeProto) -> Iterator[NodeProto]:
        """``node`` with errors added to its results, and to its input if it is in ``_CENTRES``."""
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
            output = node.output[index] = self.name(name)
            bounded = ours and node.op_type in BOUNDED
            by_input = ours and node.op_type in _OF_ITS_INPUT
            if bounded:
                output, last = self.name(name), output
                after += self.step(last, output, kind, "Add", last, 0.0)
            elif by_input and self.types.get(node.input[0]) == kind:
                output, last, share = self.name(name), output, self.name(name)
                after += self.step(node.input[0], share, kind, "Mul", last, 0.0)
                after.append(helper.make_node("Add", [last, share], [output]))
            if ours and (node.op_type in _REDUCTIONS or node.op_type == "InstanceNormalization"):
                after += self.of_sum(output, name, kind, node)
            else:
                after += self.relative(output, name, kind, self.share(node, kind), of=node)
        yield node
        yield from after

    def of_term(self, kind: int) -> float:
        """Roundoffs of a result of type ``kind`` by which a sum grows with the root of its terms.

        A sequential sum of n terms has an error of about sqrt(n) / 4 roundoffs of its size.
        Measured on convolutions of 288 to 1,152 terms: 5 to 10 roundoffs; 2 for sums in blocks.
        """
        wide = self.wide_sums and kind == TensorProto.FLOAT16
        return 0.25 * 2.0 ** (LAYOUTS[kind][2] - LAYOUTS[TensorProto.FLOAT][2] if wide else 0)

    def share(self, node: NodeProto, kind: int) -> float:
        """The error of a good kernel, as a multiple of ``ROUNDOFFS``."""
        terms = _TERMS.get(node.op_type) if domain_of(node) in _DOMAINS else None
        if terms is None:
            return 1.0
        shape = self.shapes.get(node.input[1]) if len(node.input) > 1 else None
        count = terms(shape) if shape else _USUAL_TERMS
        return max(1.0, math.sqrt(count) * self.of_term(kind))

    def of_sum(
        self, source: str, target: str, kind: int, node: NodeProto, operand: str = ""
    ) -> list[NodeProto]:
        """Nodes for ``target``: ``source`` with the error of a sum over the terms of ``node``.

        The graph counts the terms n when it runs, since image sizes may be symbolic. The error is
        sqrt(n) / 4 roundoffs: for the mean of 518,400 positive numbers 180, where kernels of two
        runtimes have errors of up to 160.
        """
        operand = operand or node.input[0]
        wide = kind if kind in _WIDE else int(TensorProto.FLOAT)
        added: list[NodeProto] = []

        def add(operator: str, *sources: str, **attributes: Any) -> str:
            name = self.name(target)
            added.append(helper.make_node(operator, sources, [name], **attributes))
            return name

        def constant(value: np.ndarray) -> str:
            return add("Constant", value=numpy_helper.from_array(value))

        def number(value: float) -> str:
            return constant(np.array(value, helper.tensor_dtype_to_np_dtype(wide)))

        if node.op_type == "InstanceNormalization":
            outer = constant(np.array([0, 1], np.int64))
            kept = add("ReduceProd", add("Gather", add("Shape", operand), outer), keepdims=0)
        else:
            kept = add("Size", source)
        # Divided as floats: a tensor may have no elements.
        terms = add("Div", add("Cast", add("Size", operand), to=wide), add("Cast", kept, to=wide))
        share = add("Max", add("Mul", add("Sqrt", terms), number(self.of_term(kind))), number(1.0))
        if self.broadcasts:
            tests, rounded = self.mark_rounded_elements(source, kind)
            added += tests
            share = add("Mul", share, rounded)
        return [*added, *self.step(source, target, kind, "Mul", source, 1.0, factor=share)]

    def guess(self, node: NodeProto) -> None:
        """Set the types of results that shape inference leaves open, after custom operators."""
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

    def relative(
        self,
        source: str,
        target: str,
        kind: int,
        share: float = 1.0,
        of: NodeProto | None = None,
    ) -> list[NodeProto]:
        """Nodes for ``target = source * r`` with random r near 1; infinity and NaN are kept.

        ``r`` is 1 where ``source`` is exact, as far as its value tells, and the node that it is
        ``of``.
        """
        if not self.broadcasts:
            return self.step(source, target, kind, "Mul", source, 1.0, share)
        tests, rounded = self.mark_rounded_elements(source, kind, of)
        return [*tests, *self.step(source, target, kind, "Mul", source, 1.0, share, rounded)]

    @property
    def broadcasts(self) -> bool:
        """Whether a scalar is broadcast to any shape without being told to."""
        return self.versions.get(ONNX_DOMAIN, 7) >= 7

    def mark_rounded_elements(
        self, source: str, kind: int, of: NodeProto | None = None
    ) -> tuple[list[NodeProto], str]:
        """Nodes for a value that is 1 where ``source`` may be rounded, and 0 where it is not.

        A number of few significant bits is one that no rounding made, as are whole numbers and
        halves; and of sums, products and quotients it is seen in float64 whether they have a rest.
        """
        wide = kind if kind in _WIDE else int(TensorProto.FLOAT)
        added: list[NodeProto] = []

        def add(operator: str, *sources: str, **attributes: Any) -> str:
            name = self.name(source)
            added.append(helper.make_node(operator, sources, [name], **attributes))
            return name

        def is_any(value: str) -> str:
            return add("Cast", add("Cast", value, to=TensorProto.BOOL), to=wide)

        factor = np.array(_SPLITTERS[kind], helper.tensor_dtype_to_np_dtype(wide))
        value = source if kind == wide else add("Cast", source, to=wide)
        scaled = add("Mul", value, add("Constant", value=numpy_helper.from_array(factor)))
        first = add("Sub", scaled, add("Sub", scaled, value))
        found = is_any(add("Sub", first, value))
        ours = of is not None and domain_of(of) == ONNX_DOMAIN and of.op_type in _ARITHMETIC
        if of is not None and ours and kind != TensorProto.DOUBLE:
            operands = [add("Cast", name, to=TensorProto.DOUBLE) for name in of.input]
            exact = add(of.op_type, *operands)
            rest = add("Sub", add("Cast", source, to=TensorProto.DOUBLE), exact)
            found = add("Mul", found, is_any(rest))
        return added, found

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
        """Nodes that add random numbers near ``middle`` to ``source``, or multiply it by them.

        They have the shape of ``like``. ``factor``, the name of a value of the graph, multiplies
        their distance from ``middle``.
        """
        reach = share * ROUNDOFFS * 2.0 ** -LAYOUTS[kind][2]
        self.count += 1
        drawn = self.name(target)
        dtype = kind if kind in _WIDE else TensorProto.FLOAT
        added = [
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
            added += [
                helper.make_node("Mul", [drawn, factor], [wider]),
                helper.make_node("Constant", [], [centre], value=numpy_helper.from_array(value)),
                helper.make_node("Add", [wider, centre], [moved]),
            ]
            drawn = moved
        if dtype != kind:
            wide, drawn = drawn, self.name(target)
            added.append(helper.make_node("Cast", [wide], [drawn], to=int(kind)))
        return [*added, helper.make_node(how, [source, drawn], [target])]

    def name(self, base: str) -> str:
        """A name that no value of the graph has."""
        number = 0
        while (name := f"{base}__step_{number}") in self.taken:
            number += 1
        self.taken.add(name)
        return name
