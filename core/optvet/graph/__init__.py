"""Pure functions over ONNX graphs, which know no optimizer and no runtime.

What is listed here is public: plugins import it from ``optvet.graph``.
"""

from optvet.graph.walk import (
    ONNX_DOMAIN,
    RANDOM_OPERATORS,
    attribute_of,
    bodies_of,
    domain_of,
    graphs,
    is_onnx,
    nodes_of,
    operator_of,
    opset_versions,
    reads,
    schema_of,
)

__all__ = [
    "ONNX_DOMAIN",
    "RANDOM_OPERATORS",
    "attribute_of",
    "bodies_of",
    "domain_of",
    "graphs",
    "is_onnx",
    "nodes_of",
    "operator_of",
    "opset_versions",
    "reads",
    "schema_of",
]
