from __future__ import annotations

import onnx.parser
import pytest
from onnx import ModelProto

from optvet.graph.features import edit_between, features, integer_constants, placed_features

PLAIN = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x) => (float[3, 2] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
    t = Add (x, w)
    y = Transpose <perm = [1, 0]> (t)
}
"""


def parse(text: str) -> ModelProto:
    model = onnx.parser.parse_model(text)
    assert isinstance(model, ModelProto)
    return model


def edit(*replaced: tuple[str, str]) -> list[str]:
    """What differs once these texts are replaced in the plain model."""
    text = PLAIN
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    return list(edit_between(features(parse(PLAIN)), features(parse(text))))


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("<perm = [1, 0]>", "", ["- Transpose perm [0 1 unordered]"]),
        ("Add", "Sub", ["+ Sub"]),
        ("(x, w)", "(w, x)", ["+ Add input 0 weight", "+ Add input 1 input"]),
        (
            "=> (float[3, 2] y)",
            "=> (float[3, 2] y, float[2, 3] t)",
            ["+ Add output 0 also returned"],
        ),
        ("(x, w)", "(x, x)", ["+ Add inputs repeated"]),
        ("ir_version: 8", "ir_version: 3", ["+ model lists weights as inputs"]),
        ("float[2, 3] x", "float[N, 3] x", ["+ model has an input of open size"]),
        ("float[2, 3] w = {1, 2, 3, 4, 5, 6}", "float[1] w = {-1}", ["+ Add input 1 has -1"]),
    ],
)
def test_an_edit_is_told_as_what_came_and_went(old: str, new: str, changes: list[str]) -> None:
    assert set(changes) <= set(edit((old, new)))


def test_a_value_whose_name_is_a_number_is_a_feature() -> None:
    model = parse(PLAIN)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "7"
    added = edit_between(features(parse(PLAIN)), features(model))
    assert added == ("+ model has a number for the name of an inner value",)


def test_whether_integers_are_in_order_is_a_feature() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2, 3] x) => (float[A, B] y) <int64[4] p = {0, 1, 1, 2}, int64[2] a = {%s}> {
            y = Pad (x, p, , a)
        }"""
    ordered, other = (features(parse(text % axes)) for axes in ("0, 1", "1, 0"))
    assert edit_between(ordered, other) == ("+ Pad input 3 has no order",)


def test_short_lists_of_integers_are_told_with_their_numbers() -> None:
    model = parse(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2, 3] x) => (float[A, B] y)
        <int64[9] i = {0, 0, 0, 0, 0, 0, 0, 0, 0}, float w = {3}> {
            a = Constant <value = int64[2] {1, 0}> ()
            p = Constant <value = int64[4] {0, 1, 1, 2}> ()
            y = Pad (x, p, w, a)
        }"""
    )
    assert integer_constants(model) == {(1, 0): 1, (0, 1, 1, 2): 1}


def test_names_and_arbitrary_numbers_are_no_features() -> None:
    assert not edit(("t = Add", "sum = Add"), ("(t)", "(sum)"))
    assert not edit(("1, 2, 3, 4, 5, 6", "1, 9, 8, 7, 6, 5"))


def test_nodes_of_nested_graphs_are_told_apart_from_outer_ones() -> None:
    model = parse(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] p) { p = Neg (x) },
                else_branch = b () => (float[2] q) { q = Relu (x) }
            >
        }
        """
    )
    words = {str(feature) for feature in features(model)}
    assert {"If", "If/Neg", "If/Relu", "If/Neg input 0 captured"} <= words
    assert "Neg" not in words


def test_a_feature_says_of_which_node_of_its_operator_it_is() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[N] y)
        <int64[1] a = {6}, int64[1] b = {6}> { t = Reshape (x, a)  y = Reshape (t, b) }"""
    first, second = (parse(text.replace(f"{n} = {{6}}", f"{n} = {{-1}}")) for n in ("a", "b"))
    assert features(first) == features(second)
    moved = placed_features(second) - placed_features(first)
    assert ("Reshape input 1 has -1", 1) in {(str(feature), node) for feature, node in moved}
