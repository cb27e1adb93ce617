"""A converter of ONNX that writes Tanh as Sigmoid. Workers import this module by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from tests.engine.convert.plain import NoOptions, StandIn

from optvet.engine.discovery import Plugins
from optvet.plugin import Artifact, ConversionStage, PartScript


class Sigmoids(StandIn):
    """It keeps everything else."""

    name = "sigmoids"
    consumes = frozenset({"onnx"})
    produces = "onnx"

    def stages(self, options: NoOptions) -> Sequence[ConversionStage]:
        return [ConversionStage("convert", "convert", "onnx")]

    def convert(self, source: Artifact, options: NoOptions, folder: Path) -> Any:
        model = onnx.load_from_string(source.data)
        for node in model.graph.node:
            node.op_type = "Sigmoid" if node.op_type == "Tanh" else node.op_type
        yield Artifact("onnx", model.SerializeToString())

    def part_script(self, options: NoOptions) -> PartScript:
        convert = """for node in model.graph.node:
    node.op_type = "Sigmoid" if node.op_type == "Tanh" else node.op_type
onnx.save(model, target)"""
        return PartScript("sigmoids", ("onnx",), "import onnx", "", convert)


def plugins() -> Plugins:
    return Plugins().register("converter", Sigmoids())
