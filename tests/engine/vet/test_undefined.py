"""What the ONNX standard leaves open is no fault of an optimizer; it excuses nothing elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper
from pydantic import BaseModel

from optvet.engine.api import GivenInputs
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Pass, Traits

PRELOAD = ("numpy", "onnx", "onnx.checker", "onnxruntime", "tests.engine.vet.test_undefined")


class NoOptions(BaseModel):
    """There are none."""


class CastsByWords:
    """An optimizer that casts floats to integers by another way, and one that drops a Relu."""

    name = "casts"
    preload = ("onnx",)
    options = NoOptions()
    traits = Traits(repeatable=True)

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass("clip_cast", "rewrite", default=True), Pass("drop_relu", "rewrite")]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("clip_cast",), "all": ("clip_cast", "drop_relu")}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        nodes = []
        for node in model.graph.node:
            if node.op_type == "Cast" and node.attribute[0].i == 6 and "clip_cast" in passes:
                bounds = {"low": -2147483648.0, "high": 2147483520.0}
                for name, value in bounds.items():
                    tensor = helper.make_tensor(f"{node.name}{name}", 1, [], [value])
                    model.graph.initializer.append(tensor)
                clipped = [node.input[0], f"{node.name}low", f"{node.name}high"]
                nodes.append(helper.make_node("Clip", clipped, ["clipped"]))
                node.input[0] = "clipped"
            if node.op_type == "Relu" and "drop_relu" in passes:
                node.op_type = "Identity"
            nodes.append(node)
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(kept)
        return Artifact("onnx", model.SerializeToString())


NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x, float[4] s) => (float[4] y, float[4] z)
{ i = Cast<to = 6>(x) y = Cast<to = 1>(i) z = Relu(s) }"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=1, limits=Limits(60, 1 << 30), preload=PRELOAD) as shared:
        yield shared


def vet(folder: Path, sandbox: Sandbox, large: float, pipeline: str) -> VetResult:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(NET), path)
    feeds = {
        "x": np.array([1, -2, large, 4], np.float32),
        "s": np.array([1, -2, 3, -4], np.float32),
    }
    plugins = Plugins()
    plugins.register("optimizer", CastsByWords())
    plugins.register("dataset", inputs := GivenInputs((feeds,)))
    request = VetRequest(
        model="model",
        optimizer="casts",
        pipeline=pipeline,
        dataset=(inputs.name,),
        cache_dir=folder / "cache",
    )
    return vet_model(open_model(path, "model", folder / "cache"), request, plugins, sandbox=sandbox)


def test_other_kernels_may_answer_otherwise_what_has_no_answer(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    assert vet(tmp_path, sandbox, 3.0, "default").verdict in ("clean", "drift")
    result = vet(tmp_path, sandbox, 3e9, "default")
    assert result.verdict == "undecided"
    assert "undefined by the ONNX standard: Cast" in result.reason
    assert [f.severity for f in result.findings] == ["note"]


def test_what_has_no_answer_excuses_no_fault_elsewhere(tmp_path: Path, sandbox: Sandbox) -> None:
    result = vet(tmp_path, sandbox, 3e9, "all")
    assert result.verdict == "faulty"
    wrong = [f for f in result.findings if f.severity == "fault"]
    assert [(f.culprit, f.outputs) for f in wrong] == [(["drop_relu"], ["z"])]
