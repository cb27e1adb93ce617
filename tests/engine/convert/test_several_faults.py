"""Several faults of one conversion are several findings; one fault is one, wherever it repeats."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from optvet.engine.convert.place_by_message import find_nodes_in_message
from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.spec.convert import ConvertRequest
from optvet.spec.records.convert import ConversionFinding

HEAD = '<ir_version: 10, opset_import: ["" : 20]> m (float[3,4] x) => (float[3,4] y)'
RIGHT = "a = LeakyRelu<alpha=0.3>(x) b = Elu<alpha=0.5>(a) c = LeakyRelu<alpha=0.3>(b) y = Tanh(c)"


def findings(tmp_path: Path, wrong: str) -> list[ConversionFinding]:
    for name, body in (("right", RIGHT), ("wrong", wrong)):
        model = onnx.parser.parse_model(f"{HEAD} {{ {body} }}")
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    asked = ConvertRequest(
        model=str(tmp_path / "right.onnx"), converted=tmp_path / "wrong.onnx", jobs=1
    )
    return convert_model(asked, Plugins()).findings


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (RIGHT.replace("0.5", "0.9"), [("wrong-output", "Elu.alpha")]),
        (RIGHT.replace("0.3", "0.1"), [("wrong-output", "LeakyRelu.alpha")]),
        (
            RIGHT.replace("0.3", "0.1").replace("0.5", "0.9"),
            [("wrong-output", "LeakyRelu.alpha"), ("wrong-output", "Elu.alpha")],
        ),
        (
            RIGHT.replace("Elu<alpha=0.5>", "EluV2").replace("Tanh", "Sin"),
            [("invalid-model", "Elu → EluV2"), ("wrong-output", "Tanh → Sin")],
        ),
    ],
    ids=["one", "repeated", "two", "behind-an-unknown-operator"],
)
def test_each_kind_of_fault_is_one_finding(
    tmp_path: Path, wrong: str, expected: list[tuple[str, str]]
) -> None:
    found = findings(tmp_path, wrong)
    assert [(f.symptom, f.place.words() if f.place else "") for f in found] == expected
    assert {f.severity for f in found} == {"fault"}
    assert all("once what is wrong before it is set right" in f.message for f in found[1:])


def test_a_value_that_is_passed_on_and_computed_in_steps_is_one_finding(tmp_path: Path) -> None:
    right = "r = HardSwish(x) y = Identity(r)"
    steps = "h = HardSigmoid<alpha=0.25>(x) m = Mul(x, h) p = Neg(m) q = Neg(p) y = Identity(q)"
    for name, text in (("right", right), ("wrong", steps)):
        model = onnx.parser.parse_model(f"{HEAD} {{ {text} }}")
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    asked = ConvertRequest(
        model=str(tmp_path / "right.onnx"), converted=tmp_path / "wrong.onnx", jobs=1
    )
    (found,) = convert_model(asked, Plugins()).findings
    assert found.place is not None
    assert found.place.operator == "HardSwish"


def test_an_attribute_and_a_weight_behind_it_are_two_findings(tmp_path: Path) -> None:
    weights = "<float[4] w = {1, 2, 3, 4}>"
    body = "a = LeakyRelu<alpha=0.3>(x) b = Mul(a, w) y = Tanh(b)"
    wrong = body.replace("0.3", "0.1")
    for name, head, text in (
        ("right", weights, body),
        ("wrong", weights.replace("3", "5"), wrong),
    ):
        model = onnx.parser.parse_model(f"{HEAD} {head} {{ {text} }}")
        (tmp_path / f"{name}.onnx").write_bytes(model.SerializeToString())
    asked = ConvertRequest(
        model=str(tmp_path / "right.onnx"), converted=tmp_path / "wrong.onnx", jobs=1
    )
    found = convert_model(asked, Plugins()).findings
    assert [f.place.words() if f.place else "" for f in found] == ["LeakyRelu.alpha", "w"]


@pytest.mark.parametrize(
    "message",
    [
        "[ShapeInferenceError] (op_type:CumSum, node name: /CumSum): x typestr: T, tensor(bool)",
        "Non-zero status code returned while running CumSum node. Name:'/CumSum' Status Message: x",
        "Type 'tensor(bool)' of input parameter (x) of operator (CumSum) in node (/CumSum) is bad",
        'This is an invalid model. In Node, ("", CumSum, "", -1) : ("x": ,) -> ("c",) , Error axis',
        "No Op registered for CumSum with domain_version of 20",
        "Could not find an implementation for CumSum(14) node with name '/CumSum'",
    ],
)
def test_the_node_is_read_that_a_checker_or_a_runtime_stopped_at(message: str) -> None:
    text = "t = Tanh(x) c = CumSum(t, x) y = Neg(c)"
    model = onnx.parser.parse_model(f"{HEAD} {{ {text} }}")
    for node in model.graph.node:
        node.name = f"/{node.op_type}"
    assert [n.op_type for n in find_nodes_in_message(model, message)] == ["CumSum"]
