"""What is the limit's doing, or the runtime's, is said to be that and not the optimizer's."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from pydantic import BaseModel

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.vetting import error_of
from optvet.spec.convert import ConvertRequest
from optvet.spec.errors import InputError, Unsupported
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
    plugins.register("optimizer", Lowering())
    plugins.register("optimizer", Limited())
    request = VetRequest.model_validate(
        {"model": str(path), "limit": 2, "jobs": 1, "cache_dir": path.parent / "cache", **asked}
    )
    model = open_model(path, str(path), path.parent / "cache")
    return vet_model(model, request, plugins)


class Limited(Greedy):
    """An optimizer to ONNX that does not support a model, as it says itself."""

    name = "limited"

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        raise RuntimeError("operator Relu-17 is not supported")


def test_what_a_program_says_it_does_not_support_is_refused_and_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(Unsupported, match="Relu-17 is not supported; nothing was tested") as caught:
        vet(path, optimizer="limited")
    document = error_of(str(path), caught.value)
    assert (document.symptom, document.exit_code) == ("refused", 5)


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


def averaged(weight: float) -> onnx.ModelProto:
    """The exact form of ``resized``, for a weight of 1: a cubic filter on the middle of an image.

    Source: onnx operator Resize, cubic_coeff_a -0.75, pytorch_half_pixel: a size of 1 lies at 0.
    """
    text = """<ir_version: 8, opset_import: ["" : 19]>
    g (float[1,1,5,4] x) => (float[1,1,1,1] y)
    <int64[2] flat = {1,20}, int64[4] one = {1,1,1,1}>
    { f = Reshape(x, flat) z = MatMul(f, w) y = Reshape(z, one) }"""
    proto = onnx.parser.parse_model(text)
    reader = ReferenceEvaluator(resized())
    units = np.eye(20, dtype=np.float32).reshape(20, 1, 1, 5, 4)
    rows = [np.asarray(reader.run(None, {"x": unit})).reshape(1) for unit in units]
    column = np.array(rows, np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(column * np.float32(weight), "w"))
    return proto


def resized() -> onnx.ModelProto:
    """A model that ONNX Runtime 1.32 computes otherwise than ONNX's own evaluator."""
    return onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 19]>
    g (float[1,1,5,4] x) => (float[1,1,1,1] y) <int64[4] size = {1,1,1,1}>
    {
      y = Resize<mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel">(x,,,size)
    }""")


class Lowering:
    """An optimizer that replaces the resize by what it stands for."""

    name = "lowering"
    preload = ("onnx", "tests.engine.vet.test_who_is_at_fault")
    options = NoOptions()
    traits = Traits(repeatable=True)

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass("right", "rewrite", default=True), Pass("wrong", "rewrite")]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": ("right",), "wrong": ("wrong",)}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        if not passes:
            return Artifact("onnx", source.data)
        return Artifact("onnx", averaged(1.3 if "wrong" in passes else 1.0).SerializeToString())


def test_a_runtime_that_the_exact_result_contradicts_is_named_and_no_pass(tmp_path: Path) -> None:
    path, right = tmp_path / "resize.onnx", tmp_path / "right.onnx"
    onnx.save(resized(), path)
    onnx.save(averaged(1.0), right)
    found = vet(path, optimizer="lowering")
    assert (found.verdict, found.findings) == ("drift", [])
    (control,) = (c for c in found.controls if c.name == "exact result")
    assert control.state == "limited"
    assert "output 'y': as close to the exact result as rounding allows" in control.detail
    assert vet(path, optimizer="lowering", pipeline="wrong").verdict == "faulty"
    told = convert_model(ConvertRequest(model=str(path), converted=right), Plugins())
    assert told.verdict == "right"
    assert any("as its runtime computes it is not" in note for note in told.notes)
