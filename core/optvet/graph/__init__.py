"""Pure functions over ONNX graphs, which know no optimizer and no runtime.

What is listed here is public: plugins import it from ``optvet.graph``.
"""

import warnings
from typing import Any

from optvet.graph.compose import (
    Typed,
    candidate_of,
    join,
    rename_node_values,
    to_opset,
    type_of,
    types_of,
)
from optvet.graph.half_nodes import (
    float_nodes,
    group_nodes,
    half_block_list,
    half_nodes,
    join_casts,
)
from optvet.graph.half_types import round_half_types, to_bfloat16
from optvet.graph.pasted import (
    Outlined,
    half_code,
    list_code,
    naming_code,
    without_weights,
)
from optvet.graph.sequences import sequences_of
from optvet.graph.synthetic import is_synthetic
from optvet.graph.tidy import tidy
from optvet.graph.types import numpy_dtype, values_outside
from optvet.graph.walk import (
    ONNX_DOMAIN,
    RANDOM_OPERATORS,
    all_names,
    attribute_of,
    bodies_of,
    domain_of,
    graphs,
    is_onnx,
    name_nodes,
    nodes_of,
    operator_of,
    opset_versions,
    reads,
    schema_of,
)

__all__ = [
    "ONNX_DOMAIN",
    "RANDOM_OPERATORS",
    "Outlined",
    "Typed",
    "all_names",
    "attribute_of",
    "bodies_of",
    "candidate_of",
    "domain_of",
    "float_nodes",
    "graphs",
    "group_nodes",
    "half_block_list",
    "half_code",
    "half_nodes",
    "is_onnx",
    "is_synthetic",
    "join",
    "join_casts",
    "list_code",
    "name_nodes",
    "naming_code",
    "nodes_of",
    "numpy_dtype",
    "operator_of",
    "opset_versions",
    "reads",
    "rename_node_values",
    "round_half_types",
    "schema_of",
    "sequences_of",
    "tidy",
    "to_bfloat16",
    "to_opset",
    "type_of",
    "types_of",
    "values_outside",
    "without_weights",
]

_OLD_NAMES = {"joined": "join", "renamed": "rename_node_values"}


def __getattr__(name: str) -> Any:
    if name not in _OLD_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    words = f"optvet.graph.{name} is called {_OLD_NAMES[name]}; the old name goes with 0.3"
    warnings.warn(words, DeprecationWarning, stacklevel=2)
    return globals()[_OLD_NAMES[name]]
