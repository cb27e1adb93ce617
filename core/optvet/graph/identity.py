"""Comparing the structure of models: their operators, and how these are connected."""

from __future__ import annotations

import hashlib
import json

from onnx import ModelProto

from optvet.graph.walk import is_onnx


def structure_of(model: ModelProto) -> list[str]:
    """One digest per node, over its operator and the digests of its inputs; sorted.

    It depends only on operators and on their connections, not on names, sizes, values, or the order
    of independent nodes.
    """
    keys: dict[str, str] = {}
    digests = []
    for node in model.graph.node:
        read = [keys.get(name, "leaf" if name else "") for name in node.input]
        inner = [
            structure_of(ModelProto(graph=a.g))
            for a in sorted(node.attribute, key=lambda a: a.name)
            if a.HasField("g")
        ]
        domain = "" if is_onnx(node) else node.domain
        about = json.dumps([domain, node.op_type, read, inner])
        digest = hashlib.sha256(about.encode()).hexdigest()[:16]
        digests.append(digest)
        keys |= {name: f"{digest}.{i}" for i, name in enumerate(node.output) if name}
    return sorted(digests)
