"""Random operators, and the seeds that decide what they draw."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal

from onnx import AttributeProto, ModelProto, NodeProto, helper
from onnx.inliner import inline_local_functions

from optvet.graph.walk import (
    attribute_of,
    domain_of,
    is_onnx,
    nodes_of,
    opset_versions,
    schema_of,
)

SeedBy = Literal["name", "place"]
"""What tells random nodes without a seed apart: the value that they make, or their order."""
_SEEDS = 1 << 24
"""Seeds are smaller than this: operators keep them in float32, which holds such integers."""


def seed_operators(model: ModelProto, number: int, by: SeedBy) -> ModelProto | None:
    """A copy of ``model`` whose random operators draw from the streams of ``number``.

    Two models with the same random nodes draw the same numbers for the same ``number``, and
    independent ones for two. Nodes that share a seed in ``model`` share one in the copy, and no
    others do. Seeds lie far apart: generators of runtimes may begin neighbouring seeds alike.

    Returns:
        The copy, with local functions inlined; None if a random operator takes no seed.
    """
    if model.functions:
        # A function that is called twice draws twice, so each call needs a seed of its own.
        copy = inline_local_functions(model)
    else:
        copy = ModelProto()
        copy.CopyFrom(model)
    opsets = opset_versions(copy)
    place = 0
    for node in _drawing(copy):
        kind = _seed_type(node, opsets)
        if kind is None:
            return None
        own = attribute_of(node, "seed")
        key: object = ("seed", float(own)) if own is not None else (by, place)
        if own is None and by == "name":
            key = (by, node.output[0])
        place += own is None
        value = _seed(number, key)
        kept = [a for a in node.attribute if a.name != "seed"]
        del node.attribute[:]
        node.attribute.extend(kept)
        whole = kind == AttributeProto.INT
        node.attribute.append(helper.make_attribute("seed", value if whole else float(value)))
    return copy


def _drawing(model: ModelProto) -> Iterator[NodeProto]:
    """Nodes that draw, or may."""
    versions = opset_versions(model)
    for node in nodes_of(model.graph):
        schema = schema_of(domain_of(node), node.op_type, versions)
        known = schema is not None and "seed" in schema.attributes
        if known or attribute_of(node, "seed") is not None:
            yield node


def _seed_type(node: NodeProto, opsets: dict[str, int]) -> int | None:
    """The type of the node's seed: an integer, or a float."""
    for attribute in node.attribute:
        if attribute.name == "seed" and attribute.type in (
            AttributeProto.INT,
            AttributeProto.FLOAT,
        ):
            return int(attribute.type)
    schema = schema_of(domain_of(node), node.op_type, opsets)
    if schema is None or not is_onnx(node):
        return None
    return int(AttributeProto.INT if node.op_type == "Dropout" else AttributeProto.FLOAT)


def _seed(number: int, key: object) -> int:
    digest = hashlib.sha256(repr((number, key)).encode()).digest()
    return 1 + int.from_bytes(digest[:8], "little") % (_SEEDS - 1)
