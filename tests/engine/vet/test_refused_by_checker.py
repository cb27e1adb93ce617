"""Originals that ONNX's checker refuses and a runtime runs are vetted, and what is lost is told."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto, helper, numpy_helper
from tests.answers import detail

import optvet
from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.numerics import rounding
from optvet.engine.vet.run import vet_model
from optvet.graph.tidy import tidy
from optvet.spec.request import VetRequest
from optvet.testing import Planted

BODY = """
g (float[2,4] x) => (float[2,3] y)
<float[4,3] w = {1, -2, 3, 4, -5, 6, 7, 8, -9, 10, 11, 12}, float[3] b = {1, 2, 3}>
{ h = MatMul(x, w)
  r = Relu(h)
  i = Identity(r)
  y = Add(i, b) }
"""


def parsed(opset: int = 17) -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>{BODY}')


def unsorted() -> ModelProto:
    model = parsed()
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([nodes[2], nodes[3], nodes[0], nodes[1]])
    return model


def not_imported() -> ModelProto:
    model = parsed()
    model.graph.node[1].op_type, model.graph.node[1].domain = "Gelu", "com.microsoft"
    return model


def later_operator() -> ModelProto:
    return onnx.parser.parse_model("""
    <ir_version: 7, opset_import: ["" : 14]>
    g (float[2,4] x) => (float[2,4] y) <float[4] s = {1, 2, 3, 4}, float[4] b = {1, 2, 3, 4}>
    { h = Relu(x)
      i = Identity(h)
      y = LayerNormalization <axis = -1> (i, s, b) }
    """)


def shapeless() -> ModelProto:
    model = parsed()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    return model


def untyped() -> ModelProto:
    model = parsed()
    model.graph.output[0].ClearField("type")
    return model


def sparse() -> ModelProto:
    model = parsed()
    values = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    places = numpy_helper.from_array(np.array([0, 5, 11], np.int64), "w_places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4, 3]))
    del model.graph.initializer[0]
    return model


def spelled() -> ModelProto:
    model = parsed(11)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("ai.onnx", 11))
    return model


REFUSED: dict[Callable[[], ModelProto], str] = {
    unsorted: "Nodes in a graph must be topologically sorted",
    not_imported: "No opset import for domain 'com.microsoft'",
    later_operator: "No Op registered for LayerNormalization with domain_version of 14",
    shapeless: "Field 'shape' of 'type' is required but missing.",
    untyped: "Field 'type' of 'value_info' is required but missing.",
}


def vetted(model: ModelProto, tmp_path: Path, optimizer: str) -> optvet.VetResult:
    np.savez(tmp_path / "x.npz", x=np.array([[1, -2, 3, 4], [0.5, 1, 1, 2]], np.float32))
    return optvet.vet(
        model,
        dataset=f"files:{tmp_path / 'x.npz'}",
        optimizer=optimizer,
        cache_dir=tmp_path / "cache",
    )


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("optimizer", ["onnxoptimizer", "onnxruntime"])
def test_an_original_that_the_checker_refuses_is_vetted_without_it(
    make: Callable[[], ModelProto], optimizer: str, tmp_path: Path
) -> None:
    result = vetted(make(), tmp_path, optimizer)
    assert result.verdict in ("clean", "drift")
    assert [o.verdict for o in result.outputs] in (["same"], ["drift"])
    told = detail(result, "checker")
    assert told.startswith("invalid-model cannot be found: onnx.checker refuses the original")
    assert REFUSED[make] in told


def test_a_program_that_refuses_what_the_checker_refuses_is_at_no_fault(tmp_path: Path) -> None:
    strict = Planted(default=("identity",), offered=("identity",), round_trip=("raise_error",))
    words = r"(?s)is not valid, and planted does not take it .*no rule for this model.*"
    words += r"'shape' of 'type' is required.*onnx.checker.check_model\(.*nothing was tested"
    with pytest.raises(optvet.Unsupported, match=words):
        vet_planted(shapeless(), tmp_path, strict)
    # Of a valid model, the same is a fault.
    (fault,) = vet_planted(parsed(), tmp_path, strict).findings
    assert (fault.symptom, fault.severity) == ("optimizer-error", "fault")


def vet_planted(model: ModelProto, tmp_path: Path, optimizer: Planted) -> optvet.VetResult:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    plugins = Plugins().register("optimizer", optimizer)
    request = VetRequest(
        model=str(path), optimizer="planted", limit=1, cache_dir=tmp_path / "cache", jobs=1
    )
    return vet_model(open_model(path, str(path), tmp_path / "cache"), request, plugins)


def test_a_fault_in_what_the_checker_refuses_is_found_and_blamed(tmp_path: Path) -> None:
    pytest.importorskip("onnxslim")
    # Everybody else reads "ai.onnx" as ONNX's own domain; this import makes opset 1 of it.
    result = vetted(spelled(), tmp_path, "onnxslim")
    (finding,) = [f for f in result.findings if f.severity == "fault"]
    assert (finding.symptom, finding.culprit, finding.confirmed) == ("load-failure", [], True)
    notes = [f.message for f in result.findings if f.symptom == "metadata-change"]
    assert any("ai.onnx 11 became ai.onnx 1" in words for words in notes)


def test_a_pass_that_forgets_an_import_spelled_in_full_is_blamed(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    result = vetted(spelled(), tmp_path, "onnxscript")
    (finding,) = [f for f in result.findings if f.severity == "fault"]
    assert (finding.symptom, finding.culprit) == ("invalid-model", ["RemoveUnusedOpsets"])
    assert "must specify opset_import" in finding.message


def test_sparse_weights_are_vetted_where_an_optimizer_takes_them(tmp_path: Path) -> None:
    result = vetted(sparse(), tmp_path, "onnxruntime")
    assert [o.verdict for o in result.outputs] in (["same"], ["drift"])
    # And an optimizer that does not is told to raise, whatever the checker says.
    refused = vetted(sparse(), tmp_path, "onnxoptimizer")
    assert [f.symptom for f in refused.findings] == ["optimizer-error"]


def test_what_neither_checker_nor_runtime_takes_is_refused_with_both_words(tmp_path: Path) -> None:
    model = parsed()
    model.graph.node[1].op_type = "Nope"
    words = "not a valid ONNX model: No Op registered for Nope.*; nor does onnxruntime load it"
    with pytest.raises(optvet.UsageError, match=words):
        vetted(model, tmp_path, "onnxoptimizer")


def test_nodes_out_of_order_are_walked_in_order() -> None:
    # Walked as it stands, nothing that ``y`` reads was seen to round.
    assert rounding.can_round(tidy(unsorted())) == rounding.can_round(parsed()) == {"y"}
    names = [node.output[0] for node in tidy(unsorted()).graph.node]
    assert names == ["h", "r", "i", "y"]
    assert {i.domain for i in tidy(not_imported()).opset_import} == {"", "com.microsoft"}
    fine = parsed()
    assert tidy(fine) is fine
