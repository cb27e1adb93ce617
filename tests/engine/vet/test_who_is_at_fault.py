"""What is the limit's doing, or the runtime's, is said to be that and not the optimizer's."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from pydantic import BaseModel

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import InputError
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Pass, Traits


class NoOptions(BaseModel):
    """There are none."""


class Greedy:
    """An optimizer of which one pass takes 600 MiB for a moment."""

    name = "greedy"
    preload = ("onnx", "tests.engine.vet.test_who_is_at_fault")
    options = NoOptions()
    traits = Traits(repeatable=True)

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass("allocate", "rewrite", default=True)]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("allocate",)}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        if "allocate" in passes:
            bytearray(600 << 20)
        return Artifact("onnx", source.data)


def vet(path: Path, **asked: object) -> VetResult:
    plugins = Plugins()
    plugins.register("optimizer", Greedy())
    request = VetRequest.model_validate(
        {"model": str(path), "limit": 2, "jobs": 1, "cache_dir": path.parent / "cache", **asked}
    )
    model = open_model(path, str(path), path.parent / "cache")
    return vet_model(model, request, plugins)


def test_what_only_the_memory_limit_ends_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    result = vet(path, optimizer="greedy", memory=256 << 20)
    assert result.verdict == "undecided"
    assert "it needs more than --memory 256M, and passes with 1024M" in result.reason
    assert [(f.symptom, f.severity) for f in result.findings] == [("out-of-memory", "note")]
    assert vet(path, optimizer="greedy", memory=2 << 30).verdict == "clean"


def batchwise(folder: Path) -> Path:
    """A model that ONNX Runtime does not load, since it has no LSTM with the batch first."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,5,3] x) => (float[2,5,1,4] y)
    { z = LSTM<hidden_size = 4, layout = 1>(x, w, r) y = Identity(z) }"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (1, 16, 3)), ("r", (1, 16, 4))):
        weight = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
    path = folder / "lstm.onnx"
    onnx.save(proto, path)
    return path


def test_a_model_that_the_runtime_does_not_load_is_judged_by_the_evaluator(tmp_path: Path) -> None:
    result = vet(batchwise(tmp_path), optimizer="onnxoptimizer")
    assert result.verdict in ("clean", "drift")
    assert result.runtime.name == "onnx_reference"
    (control,) = (c for c in result.controls if c.name == "runtime")
    assert control.state == "limited"
    assert "cannot load the original" in control.detail


def test_the_evaluator_judges_no_model_older_than_what_runtimes_promise(tmp_path: Path) -> None:
    path = tmp_path / "old.onnx"
    text = (
        '<ir_version: 3, opset_import: ["" : 6]> g (float[2] x) => (float[2] y) { y = Add(x, x) }'
    )
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(InputError, match="runtimes promise 7 and later only"):
        vet(path, optimizer="onnxoptimizer")
    with pytest.raises(InputError, match="does not run on its example inputs"):
        convert_model(ConvertRequest(model=str(path), converted=path), Plugins())


def test_so_is_the_source_of_a_conversion(tmp_path: Path) -> None:
    path = batchwise(tmp_path)
    result = convert_model(ConvertRequest(model=str(path), converted=path), Plugins())
    assert (result.verdict, result.source.runtime) == ("right", "onnx_reference")
    wrong = onnx.load(path)
    weight = numpy_helper.to_array(wrong.graph.initializer[0]) * 1.1
    wrong.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight.astype(np.float32), "w"))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    asked = ConvertRequest(model=str(path), converted=tmp_path / "wrong.onnx")
    assert convert_model(asked, Plugins()).verdict == "faulty"
