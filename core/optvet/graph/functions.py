"""Models without local functions."""

from __future__ import annotations

from onnx import ModelProto
from onnx.inliner import inline_local_functions


def without_functions(model: ModelProto) -> ModelProto:
    """``model`` with calls of local functions replaced by their nodes; itself where it has none.

    Values of the graph keep their names. A model whose calls cannot be inlined is returned as it
    is, with its calls as unknown operators.
    """
    if not model.functions:
        return model
    try:
        return inline_local_functions(model)
    except Exception:  # the inliner passes on any C++ exception
        return model
