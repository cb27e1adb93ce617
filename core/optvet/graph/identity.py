"""What makes two models the same case: their operators and how these are connected."""

from __future__ import annotations

import hashlib
import json

from onnx import ModelProto

from optvet.graph.walk import is_onnx


def structure_of(model: ModelProto) -> list[str]:
    """One digest per node, over its operator and all that it is computed from; sorted.

    What operators read from what operators counts; names, sizes, values and the order of nodes that
    do not depend on each other do not.
    """
    made: dict[str, str] = {}
    digests = []
    for node in model.graph.node:
        read = [made.get(name, "leaf" if name else "") for name in node.input]
        inner = [
            structure_of(ModelProto(graph=a.g))
            for a in sorted(node.attribute, key=lambda a: a.name)
            if a.HasField("g")
        ]
        domain = "" if is_onnx(node) else node.domain
        about = json.dumps([domain, node.op_type, read, inner])
        digest = hashlib.sha256(about.encode()).hexdigest()[:16]
        digests.append(digest)
        made |= {name: f"{digest}.{i}" for i, name in enumerate(node.output) if name}
    return sorted(digests)
