"""An optimizer that loses attributes, and one that folds a constant wrongly. Workers import it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper
from pydantic import BaseModel, ConfigDict

from optvet.plugin import Artifact, Pass, Traits


class NoOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Lossy:
    """``lose`` drops the attributes of LeakyRelu, ``fold`` doubles the weight ``w``."""

    name = "lossy"
    preload: Sequence[str] = ()
    options = NoOptions()
    traits = Traits()

    def version(self) -> str:
        return "1.0"

    def passes(self) -> Sequence[Pass]:
        return (Pass("lose", "rewrite"), Pass("fold", "rewrite"))

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("lose", "fold")}

    def apply(self, source: Artifact, passes: Sequence[str], options: NoOptions) -> Artifact:
        model = onnx.load_from_string(source.data)
        if "lose" in passes:
            for node in model.graph.node:
                if node.op_type == "LeakyRelu":
                    del node.attribute[:]
        if "fold" in passes:
            for tensor in model.graph.initializer:
                if tensor.name == "w":
                    value = np.asarray(numpy_helper.to_array(tensor) * 2)
                    tensor.CopyFrom(numpy_helper.from_array(value, "w"))
        return Artifact("onnx", model.SerializeToString())
