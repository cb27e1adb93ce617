import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from optvet.graph.text import graph_text, node_text, value_text
from optvet.graph.weights import (
    clear_large_weights,
    constants_of,
    large_weights,
    without_large_weights,
)


def model(*weights: TensorProto, text: str = "y = Gemm(x, w, b)") -> ModelProto:
    """x times a weight ``w`` of four by four, plus ``b``."""
    made = parser.parse_model(
        f"""
        <ir_version: 9, opset_import: ["" : 17], producer_name: "someone">
        g (float[N, 4] x) => (float[N, 4] y) {{ {text} }}
        """
    )
    made.graph.initializer.extend(weights)
    return made


W = numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(4, 4), "w")
B = numpy_helper.from_array(np.ones(4, np.float32), "b")


def test_large_weights_become_inputs_of_their_types_and_the_rest_stays() -> None:
    whole = model(W, B)
    light = without_large_weights(whole, 4)
    assert [t.name for t in light.graph.initializer] == ["b"]
    assert [i.name for i in light.graph.input] == ["x", "w"]
    assert (light.ir_version, light.producer_name) == (9, "someone")
    onnx.checker.check_model(light, full_check=True)
    assert [t.name for t in whole.graph.initializer] == ["w", "b"]


def test_a_weight_that_is_listed_among_the_inputs_is_not_listed_twice() -> None:
    whole = model(W, B)
    whole.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    assert [i.name for i in without_large_weights(whole, 4).graph.input] == ["x", "w"]


def test_a_model_without_large_weights_is_not_copied() -> None:
    whole = model(W, B)
    assert without_large_weights(whole, 16) is whole


def test_data_in_another_file_is_never_small() -> None:
    outside = TensorProto(name="b", data_type=TensorProto.FLOAT, dims=[4])
    outside.data_location = TensorProto.EXTERNAL
    assert [t.name for t in large_weights(model(W, outside), 16)] == ["b"]


def test_cleared_weights_keep_name_and_type_alone() -> None:
    bare = model(W, B)
    clear_large_weights(bare, 4)
    assert [(t.name, list(t.dims), len(t.raw_data)) for t in bare.graph.initializer] == [
        ("w", [4, 4], 0),
        ("b", [4], 16),
    ]


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("value_float = 2.5", [2.5]), ("value_ints = [3, 4]", [3, 4])],
)
def test_numbers_of_constant_nodes_are_constants_too(attribute: str, value: list[float]) -> None:
    made = model(text=f"c = Constant<{attribute}>() y = Add(x, c)")
    assert numpy_helper.to_array(constants_of(made)["c"]).ravel().tolist() == value


def test_an_input_that_is_left_out_is_seen_in_the_text_of_a_node() -> None:
    node = onnx.helper.make_node("Pad", ["x", "pads", "", "axes"], ["y"])
    assert node_text(node) == 'y = Pad (x, pads, "", axes)'


def test_the_text_of_a_model_tells_which_weights_it_leaves_out() -> None:
    wide = numpy_helper.from_array(np.zeros((4, 100), np.float32), "w")
    text = graph_text(model(wide, B))
    assert text.startswith("# weights shown as inputs: w\n")
    assert "float[4,100] w" in text


def test_short_values_are_told_in_digits_that_can_be_read() -> None:
    numbers = numpy_helper.from_array(np.array([0.1, 2], np.float32))
    assert value_text(numbers, 2) == "[0.1, 2]"
    assert value_text(numbers, 1) == ""
    assert value_text(numpy_helper.from_array(np.array(["word"], object), "s"), 1) == ""
