"""Cuts a quantized model at quantized tensors, to compute each layer from given integers.

::

    … → Conv → Quantize → q → Dequantize → Conv → Quantize → …

    cut at q:  … → Conv (an output)        q (an input) → Dequantize → Conv (an output) → …

With the integers of an optimized model as inputs, each part computes the exact value that this
model should have rounded at the end of the part. So errors do not accumulate over the layers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper
from onnx.inliner import inline_local_functions

from optvet.graph.quantized import (
    Array,
    Grid,
    Quantizer,
    grid_of,
    quantizers,
    scale_constants,
    to_qdq,
)
from optvet.graph.walk import between, is_onnx, reads


@dataclass(frozen=True, eq=False)
class Plain:
    """The original in QDQ form, and its quantizers."""

    model: ModelProto
    quantizers: tuple[Quantizer, ...]
    constants: Mapping[str, Array]

    def undoes(self, node: NodeProto, grid: Grid) -> bool:
        """Whether ``node`` is a dequantizer with the scale and zero point of ``grid``."""
        known = grid_of(node, self.constants)
        return known is not None and known.same_scale(grid) and known.same_zero(grid)

    @property
    def outputs(self) -> list[str]:
        """Names of the graph's outputs."""
        return [o.name for o in self.model.graph.output]


def plain(model: ModelProto) -> Plain:
    """``model`` in the form that ``cut`` takes."""
    if model.functions:
        model = inline_local_functions(model)
    model = to_qdq(model)
    if model.ir_version < 4:  # from version 4 on, new initializers need not be inputs
        later = ModelProto()
        later.CopyFrom(model)
        later.ir_version = 4
        model = later
    return Plain(model, tuple(quantizers(model)), scale_constants(model))


def alike(original: Plain, *, operands: bool = True) -> list[tuple[str, ...]]:
    """Quantizers by their places: what computes the value, and what reads it, as which operand.

    A lowering rewrites all places that look alike: it fuses every convolution into the addition
    behind it, say, and leaves out the rounding between the two. ``operands``: whether places differ
    where the same operator reads the values as another operand.
    """
    graph = original.model.graph
    makers = {o: n.op_type for n in graph.node for o in n.output}
    readers: dict[str, list[tuple[NodeProto, int]]] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            readers.setdefault(name, []).append((node, place if operands else 0))
    groups: dict[tuple[str, frozenset[tuple[str, int]]], list[str]] = {}
    for quantizer in original.quantizers:
        floats = [o for node, _ in readers.get(quantizer.name, ()) for o in node.output]
        read = [(node.op_type, place) for o in floats for node, place in readers.get(o, ())]
        key = makers.get(quantizer.source, ""), frozenset(read)
        groups.setdefault(key, []).append(quantizer.name)
    return [tuple(names) for names in groups.values()]


def cut(
    original: Plain,
    cuts: Collection[str],
    skipped: Mapping[str, bool] | None = None,
    perturbed: Collection[str] = (),
    *,
    seed: int = 0,
    steps: float = 1e-3,
) -> ModelProto:
    """The model cut at quantized tensors; the input of every quantizer is a further output.

    Args:
        original: The model.
        cuts: Names of quantized tensors that become inputs.
        skipped: Names of quantized tensors whose rounding is left out; True if values are still
            clipped to the range.
        perturbed: Quantizers whose inputs are randomly perturbed.
        seed: Seed of the perturbations.
        steps: Largest perturbation, in steps (scales) of the quantizer.
    """
    model = ModelProto()
    model.CopyFrom(original.model)
    graph, by_name = model.graph, {q.name: q for q in original.quantizers}
    nodes: list[NodeProto] = []
    places = {q.node: q for q in original.quantizers}
    for index, node in enumerate(original.model.graph.node):
        quantizer = places.get(index)
        if quantizer is not None and quantizer.name in cuts:
            continue
        if quantizer is not None and quantizer.name in perturbed:
            nodes += _perturb_input(model, node, quantizer, 1000 * seed + index, steps)
        else:
            nodes.append(node)
    for name, clipped in (skipped or {}).items():
        nodes = _skip_quantizer(model, nodes, by_name[name], clipped=clipped)
    del graph.node[:]
    graph.node.extend(nodes)
    fed = {i.name for i in graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(n, by_name[n].grid.kind, None) for n in cuts if n not in fed
    )
    wanted = [o for o in graph.output if o.name not in cuts]
    computed = {o for node in nodes for o in node.output}
    known = {o.name for o in wanted}
    sources = dict.fromkeys(q.source for q in original.quantizers)
    wanted += [ValueInfoProto(name=n) for n in sources if n in computed and n not in known]
    del graph.output[:]
    graph.output.extend(wanted)
    return model


def _perturb_input(
    model: ModelProto, node: NodeProto, quantizer: Quantizer, seed: int, steps: float
) -> list[NodeProto]:
    """``node`` with its input perturbed by at most ``steps`` steps."""
    prefix = f"optvet.move.{quantizer.node}"
    size = steps * float(np.min(quantizer.grid.scale))
    moved = NodeProto()
    moved.CopyFrom(node)
    moved.input[0] = f"{prefix}.sum"
    noise = helper.make_node(
        "RandomUniformLike",
        [quantizer.source],
        [f"{prefix}.by"],
        low=-size,
        high=size,
        seed=float(seed),
    )
    return [
        noise,
        helper.make_node("Add", [quantizer.source, noise.output[0]], [moved.input[0]]),
        moved,
    ]


def can_skip(original: Plain, name: str) -> bool:
    """Whether the rounding to ``name`` can be left out: only dequantizers of its grid read it."""
    readers = [n for n in original.model.graph.node if name in reads(n)]
    grid = next(q.grid for q in original.quantizers if q.name == name)
    undone = [
        n
        for n in readers
        if n.op_type == "DequantizeLinear" and is_onnx(n) and original.undoes(n, grid)
    ]
    return grid.scale.size == 1 and bool(readers) and len(undone) == len(readers)


def _skip_quantizer(
    model: ModelProto, nodes: Sequence[NodeProto], quantizer: Quantizer, *, clipped: bool
) -> list[NodeProto]:
    """``nodes`` with a quantizer and its dequantizers replaced by a clip or removed.

    ::

        Dequantize(Quantize(x)) → Min(Max(x, lowest), highest)
    """
    grid, result = quantizer.grid, list[NodeProto]()
    for node in nodes:
        if quantizer.name in node.output:
            continue
        if quantizer.name not in node.input:
            result.append(node)
            continue
        if not clipped:
            result.append(helper.make_node("Identity", [quantizer.source], [node.output[0]]))
            continue
        prefix = f"optvet.clip.{node.output[0]}"
        zero, scale = float(grid.zero.reshape(-1)[0]), float(grid.scale.reshape(-1)[0])
        ends = []
        for word, end in zip(("low", "high"), grid.range, strict=True):
            value = np.array((end - zero) * scale, grid.scale.dtype)
            ends.append(f"{prefix}.{word}")
            model.graph.initializer.append(numpy_helper.from_array(value, ends[-1]))
        result.append(helper.make_node("Max", [quantizer.source, ends[0]], [f"{prefix}.max"]))
        result.append(helper.make_node("Min", [f"{prefix}.max", ends[1]], [node.output[0]]))
    return result


@dataclass(frozen=True)
class CutRegion:
    """The part of a cut model that computes one value.

    Attributes:
        inside: Quantizers within it, at which the model was not cut.
        begins: Quantized tensors at which it was cut.
        operators: Names of its operators in order, without quantizers and dequantizers.
        node: Name of its last node.
    """

    inside: tuple[str, ...]
    begins: tuple[str, ...]
    operators: tuple[str, ...]
    node: str


def regions(original: Plain, cuts: Collection[str]) -> dict[str, CutRegion]:
    """The part that computes the input of each quantizer, by quantized tensor; and each output."""
    rounded = {q.name for q in original.quantizers}
    ends = {q.name: q.source for q in original.quantizers}
    ends |= {o: o for o in original.outputs if o not in ends}
    return {name: _region(original.model.graph, rounded, cuts, end) for name, end in ends.items()}


def _region(
    graph: GraphProto, rounded: Collection[str], cuts: Collection[str], end: str
) -> CutRegion:
    if end in cuts:
        return CutRegion((), (end,), (), "")
    nodes = [graph.node[i] for i in between(graph, end, cuts)]
    begins = {name for node in nodes for name in reads(node) if name in cuts}
    inside = [name for node in nodes for name in node.output if name in rounded]
    quiet = ("QuantizeLinear", "DequantizeLinear", "Constant")
    plain_nodes = [n for n in nodes if n.op_type not in quiet]
    last = plain_nodes[-1] if plain_nodes else None
    called = "" if last is None else last.name or next((o for o in last.output if o), "")
    operators = tuple(n.op_type for n in plain_nodes)
    return CutRegion(tuple(inside), tuple(sorted(begins)), operators, called)
