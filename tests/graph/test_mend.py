"""What import and export lose comes back in a copy, and nothing else changes."""

from collections.abc import Callable

import onnx.checker
import onnx.parser
import pytest
from onnx import ModelProto, TensorProto, helper

from optvet.graph.mend import find_mends, mend
from optvet.spec.mends import in_words

TEXT = """
<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
g (float[2] x, float[2] unread) => (float[2] y, float[2] z)
<float[2] w = {1, 2}>
{ a = Add(x, w)
  y = own.twice(a)
  z = Relu(y) }
<domain: "own", opset_import: ["" : 17]>
twice (a) => (b) { b = Add(a, a) }
"""


def lose_output_type(model: ModelProto) -> None:
    model.graph.output[0].ClearField("type")


def lose_input_type(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED


def reverse_outputs(model: ModelProto) -> None:
    model.graph.output.reverse()


def lose_output(model: ModelProto) -> None:
    del model.graph.output[1]


def lose_unread_input(model: ModelProto) -> None:
    del model.graph.input[1]


def rename_output(model: ModelProto) -> None:
    for node in model.graph.node:
        node.input[:] = ["new" if name == "y" else name for name in node.input]
        node.output[:] = ["new" if name == "y" else name for name in node.output]
    model.graph.output[0].name = "new"


def lose_opset(model: ModelProto) -> None:
    del model.opset_import[1]


def lose_function(model: ModelProto) -> None:
    del model.functions[:]


def lose_weight(model: ModelProto) -> None:
    del model.graph.initializer[:]


def raise_ir(model: ModelProto) -> None:
    model.ir_version = 99


def declare_nonsense(model: ModelProto) -> None:
    model.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.INT8, [7]))


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (lose_output_type, "the type of output 'y'"),
        (lose_input_type, "the type of input 'x'"),
        (reverse_outputs, "the outputs as they were"),
        (lose_output, "the outputs as they were"),
        (lose_unread_input, "the inputs as they were"),
        (rename_output, "the name of output 'y' (became 'new')"),
        (lose_opset, "the operator set 'own'"),
        (lose_function, "the function 'own::twice'"),
        (lose_weight, "the weight 'w'"),
        (raise_ir, "the IR version (became '99')"),
        (declare_nonsense, "inner values without declared types"),
    ],
)
def test_what_is_lost_comes_back(lose: Callable[[ModelProto], None], words: str) -> None:
    original = onnx.parser.parse_model(TEXT)
    onnx.checker.check_model(original, full_check=True)
    changed = onnx.parser.parse_model(TEXT)
    lose(changed)
    found = find_mends(original, changed)
    assert in_words(found) == words
    mend(original, changed, found)
    assert changed == original


def test_equal_models_need_no_mend() -> None:
    assert find_mends(onnx.parser.parse_model(TEXT), onnx.parser.parse_model(TEXT)) == []


def test_a_default_that_became_a_constant_stays_one() -> None:
    """Passes that follow may fold it, and are not to blame."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }
    """
    original, changed = onnx.parser.parse_model(text), onnx.parser.parse_model(text)
    del changed.graph.input[1]
    assert find_mends(original, changed) == []


def test_a_mend_restores_nothing_that_a_pass_has_made_anew() -> None:
    original, changed = onnx.parser.parse_model(TEXT), onnx.parser.parse_model(TEXT)
    lose_weight(changed)
    found = find_mends(original, changed)
    changed.graph.node[0].input[1] = "folded"
    mend(original, changed, found)
    assert not changed.graph.initializer
