import onnx
import pytest
from onnx import ModelProto, NodeProto, parser

from optvet.graph.walk import (
    ONNX_DOMAIN,
    all_names,
    attribute_of,
    captured_names,
    domain_of,
    graphs,
    inner_nodes,
    is_onnx,
    node_count,
    nodes_of,
    opset_versions,
    qualified_name,
    reads,
    schema_of,
)

NESTED = """
<ir_version: 8, opset_import: ["" : 17, "own" : 3]>
g (bool c, float[2] x) => (float[2] y) {
    a = Relu(x)
    y = If (c) <
        then_branch = t () => (float[2] t1) {
            t1 = If (c) <
                then_branch = u () => (float[2] u1) { u1 = Add(a, x) },
                else_branch = v () => (float[2] v1) { v1 = Neg(a) }
            >
        },
        else_branch = e () => (float[2] x) { e1 = Exp(a) }
    >
}
"""


@pytest.fixture
def nested() -> ModelProto:
    return parser.parse_model(NESTED)


def test_graphs_inside_graphs_come_after_the_one_that_holds_them(nested: ModelProto) -> None:
    assert [g.name for g in graphs(nested.graph)] == ["g", "t", "u", "v", "e"]
    assert node_count(nested) == 6
    operators = [n.op_type for n in nodes_of(nested.graph)]
    assert sorted(operators) == ["Add", "Exp", "If", "If", "Neg", "Relu"]
    assert [n.op_type for n in inner_nodes(nested.graph.node[1])] == ["If", "Add", "Neg", "Exp"]


def test_a_node_reads_what_only_graphs_deep_inside_it_read(nested: ModelProto) -> None:
    assert list(dict.fromkeys(reads(nested.graph.node[1]))) == ["c", "a", "x"]


def test_a_branch_captures_a_value_that_it_only_hands_back(nested: ModelProto) -> None:
    branch = nested.graph.node[1].attribute[1].g
    assert captured_names(branch) == ["a", "x"]


def test_names_inside_of_branches_are_names_of_the_graph(nested: ModelProto) -> None:
    assert {"u1", "v1", "t1", "e1"} <= all_names(nested.graph.node)


def test_both_spellings_of_the_domain_of_onnx_mean_the_same() -> None:
    short, long = NodeProto(op_type="Relu"), NodeProto(op_type="Relu", domain="ai.onnx")
    assert domain_of(short) == domain_of(long) == ONNX_DOMAIN
    assert is_onnx(short)
    assert is_onnx(long)
    assert not is_onnx(NodeProto(domain="ai.onnx.ml"))
    assert qualified_name("", "Relu") == qualified_name("ai.onnx", "Relu") == "Relu"
    assert qualified_name("own", "Relu") == "own::Relu"


def test_a_definition_is_that_of_the_imported_operator_set(nested: ModelProto) -> None:
    versions = opset_versions(nested)
    assert versions == {"ai.onnx": 17, "own": 3}
    softmax = schema_of("", "Softmax", versions)
    assert softmax is not None
    assert softmax.since_version == 13
    older = schema_of(ONNX_DOMAIN, "Softmax", {ONNX_DOMAIN: 12})
    assert older is not None
    assert older.since_version == 11
    assert schema_of("own", "Softmax", versions) is None
    assert schema_of("", "Softmax", {}) is None


def test_an_attribute_that_is_not_given_is_the_default() -> None:
    node = onnx.helper.make_node("Gather", ["x", "i"], ["y"], axis=1)
    assert attribute_of(node, "axis", 0) == 1
    assert attribute_of(node, "mode", b"none") == b"none"
