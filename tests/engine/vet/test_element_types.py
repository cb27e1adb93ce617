"""Every element type of ONNX, as an input and as an output: a verdict, or a clear refusal."""

from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import ModelProto, TensorProto, helper

import optvet

KINDS = sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED})
RUN = {"FLOAT", "DOUBLE", "FLOAT16", "INT8", "UINT8", "INT32", "INT64", "BOOL", "STRING"}


def copying(kind: int, declared: int | None = None) -> ModelProto:
    x = helper.make_tensor_value_info("x", kind, [2])
    y = helper.make_tensor_value_info("y", kind if declared is None else declared, [2])
    node = helper.make_node("Identity", ["x"], ["y"])
    opset = helper.make_opsetid("", min(onnx.defs.onnx_opset_version(), 21))
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


@pytest.mark.parametrize("kind", KINDS, ids=TensorProto.DataType.Name)
def test_an_element_type_gives_a_verdict_or_a_clear_refusal(kind: int, tmp_path: Path) -> None:
    try:
        ended = optvet.vet(copying(kind), limit=1, jobs=1, cache_dir=tmp_path).verdict
    except (optvet.UsageError, optvet.NothingTested):
        # The runtime cannot load it, or cannot run it. Any other error is optvet's own.
        ended = "refused"  # type: ignore[assignment]
    assert ended in ("clean", "refused")
    assert ended == "clean" or TensorProto.DataType.Name(kind) not in RUN


def test_an_output_of_undefined_element_type_is_refused_by_the_runtime(tmp_path: Path) -> None:
    model = copying(TensorProto.FLOAT, TensorProto.UNDEFINED)
    with pytest.raises(optvet.UsageError, match="cannot load the original model"):
        optvet.vet(model, limit=1, jobs=1, cache_dir=tmp_path)


def test_an_input_of_undefined_element_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(optvet.UsageError, match="input 'x' has the element type undefined"):
        optvet.vet(copying(TensorProto.UNDEFINED), limit=1, jobs=1, cache_dir=tmp_path)


def test_inputs_that_the_default_runtime_does_not_take_are_judged_by_the_evaluator(
    tmp_path: Path,
) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]>
g (bfloat16[2,3] x) => (bfloat16[2,3] y) { c = Cast<to=1>(x)  d = Exp(c)  y = Cast<to=16>(d) }"""
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    result = optvet.vet(path, cache_dir=tmp_path / "cache", limit=2, jobs=1)
    assert (result.verdict, result.runtime.name) == ("clean", "onnx_reference")
    (control,) = [c for c in result.controls if c.name == "runtime"]
    assert "takes no inputs of type bfloat16" in control.detail
    with pytest.raises(optvet.NothingTested, match="takes no inputs of type bfloat16"):
        optvet.vet(path, cache_dir=tmp_path / "cache", limit=2, jobs=1, runtime="onnxruntime")
