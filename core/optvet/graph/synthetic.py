"""How a synthetic model is marked, so that tables can tell it from a real one."""

from __future__ import annotations

from onnx import ModelProto

PRODUCER = "optvet"
GRAPH = "synthetic"


def is_synthetic(model: ModelProto) -> bool:
    """Whether ``optvet models generate`` made ``model``."""
    return model.producer_name == PRODUCER and model.graph.name == GRAPH
