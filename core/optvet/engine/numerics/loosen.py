"""Moves what decisions of a model are made on by a declared loss, as a lossy pass may.

A pass that may be off by a tenth of an output's range turns each label whose score leads by less.
Moving weights and inputs does not show that: their errors mostly cancel in sums. So each float that
an operator decides on is moved too, up or down by the same share of its largest magnitude.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper

from optvet.engine.numerics.perturb import Share, jitter_model
from optvet.engine.numerics.rounding import decides
from optvet.graph.types import NUMPY_FLOATS, element_types
from optvet.graph.walk import graphs


def loosened_bytes(data: bytes, seed: int, share: float) -> bytes:
    """The model with weights and operands of decisions moved by ``share``; the same for a seed."""
    model = jitter_model(
        onnx.load_model_from_string(data), np.random.default_rng(seed), Share(share)
    )
    loosen(model, seed, share)
    return bytes(model.SerializeToString())


def loosen(model: ModelProto, seed: int, share: float) -> None:
    """Move the floats that operators of ``model`` decide on, in place."""
    types, count = element_types(model), 0
    for graph in graphs(model.graph):
        fixed = {t.name for t in graph.initializer} | _constants(graph)
        nodes: list[NodeProto] = []
        for node in graph.node:
            for place, name in enumerate(node.input if decides(node) else ()):
                kind = types.get(name, 0)
                if name and name not in fixed and kind in NUMPY_FLOATS:
                    count += 1
                    moved = f"optvet_loose_{count}_{name}"
                    nodes += _moving(name, moved, kind, 1000.0 * seed + count, share)
                    node.input[place] = moved
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)


def _constants(graph: GraphProto) -> set[str]:
    return {name for node in graph.node if node.op_type == "Constant" for name in node.output}


def _moving(name: str, moved: str, kind: int, seed: float, share: float) -> list[NodeProto]:
    """``moved = name ± share * max(abs(name))``, with a sign of its own for each element."""
    value = helper.make_tensor("", kind, (), [share])
    parts: tuple[tuple[str, list[str], str, dict[str, Any]], ...] = (
        ("Constant", [], "share", {"value": value}),
        ("Abs", [name], "size", {}),
        ("ReduceMax", ["size"], "most", {"keepdims": 0}),
        ("Mul", ["most", "share"], "step", {}),
        ("RandomUniformLike", [name], "drawn", {"low": -1.0, "high": 1.0, "seed": seed}),
        ("Abs", ["drawn"], "far", {}),
        ("Div", ["drawn", "far"], "sign", {}),
        ("Mul", ["sign", "step"], "off", {}),
        ("Add", [name, "off"], "", {}),
    )

    def named(local: str) -> str:
        return local if local == name else f"{moved}_{local}" if local else moved

    return [
        helper.make_node(op, [*map(named, reads)], [named(gives)], **attributes)
        for op, reads, gives, attributes in parts
    ]
