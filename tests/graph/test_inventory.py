import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

from optvet.graph.inventory import change_of, inventory_of
from optvet.spec.records import Inventory


def counted(model: ModelProto) -> Inventory:
    return inventory_of(model, model.ByteSize())


NESTED = """
    <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (bool c, float[2] x, float[2] w) => (float[2] y)
    <float[2] w = {1, 2}, float[3] idle = {1, 2, 3}, float[2] inner = {1, 2}> {
        a = own.twice (x)
        k = Constant <value = float[2] {5, 6}> ()
        b = Add (a, k)
        d = Add (b, w)
        y = If (c) <
            then_branch = t () => (float[2] t1) { t1 = Add(d, inner) },
            else_branch = e () => (float[2] e2) <float[5] lost = {1, 2, 3, 4, 5}>
                { e1 = Neg(d) e2 = Neg(e1) }
        >
    }
    <domain: "own", opset_import: ["" : 17]>
    twice (x) => (y) { y = Mul(x, x) }
"""


def test_nested_graphs_count_and_a_function_is_one_node() -> None:
    found = counted(parser.parse_model(NESTED))
    assert (found.nodes, found.nested) == (8, 3)
    # The operators of functions are told all the same.
    assert found.operators == {
        "Add": 3, "Neg": 2, "own::twice": 1, "Constant": 1, "If": 1, "Mul": 1
    }  # fmt: skip
    assert next(iter(found.operators)) == "Add"
    assert found.share("Add") == 3 / 9


def test_weights_that_no_node_of_any_graph_reads_are_unused() -> None:
    found = counted(parser.parse_model(NESTED))
    assert (found.initializers, found.unused_initializers) == (4, 2)
    assert found.initializer_bytes == 4 * (2 + 3 + 2 + 5)
    assert found.parameters == 2 + 3 + 2 + 5 + 2  # and the constant's
    assert found.weight_inputs == 1


def test_a_weight_that_is_an_output_is_used() -> None:
    weight = numpy_helper.from_array(np.ones(2, np.float32), "w")
    info = helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])
    graph = helper.make_graph([], "g", [], [info], [weight])
    assert counted(helper.make_model(graph)).unused_initializers == 0


def test_bytes_are_those_of_the_element_type_and_of_strings() -> None:
    packed = helper.make_tensor("p", TensorProto.INT4, [3], [1, 2, 3])
    texts = numpy_helper.from_array(np.array(["ab", "cde"], object), "s")
    model = helper.make_model(helper.make_graph([], "g", [], [], [packed, texts]))
    assert counted(model).initializer_bytes == 2 + 5


def test_weights_that_lie_in_a_file_are_counted_without_reading_it() -> None:
    away = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1000])
    away.data_location = TensorProto.EXTERNAL
    away.external_data.add(key="location", value="nowhere.bin")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1000])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1000])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    found = counted(helper.make_model(helper.make_graph([node], "g", [x], [y], [away])))
    assert (found.initializer_bytes, found.parameters, found.flops) == (4000, 1000, 1000)


def test_the_difference_tells_what_was_gained_and_lost() -> None:
    before = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Exp(x) b = Exp(a) y = Add(b, w) }
    """)
    after = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) { a = Exp(x) y = Neg(a) }
    """)
    change = change_of(counted(before), counted(after))
    assert change.nodes == -1
    assert change.operators == {"Add": -1, "Exp": -1, "Neg": 1}
    assert (change.initializers, change.parameters, change.flops) == (-1, -2, -2)
    assert change_of(counted(before), counted(before)).operators == {}


def test_operations_that_are_unknown_have_no_difference() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Exp(x) }'
    found = counted(parser.parse_model(text))
    assert found.flops_unknown == {"Exp": 1}
    assert change_of(found, found).flops is None
