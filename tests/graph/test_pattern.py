"""Patterns of nodes as text, and the places of a graph that fit them."""

from __future__ import annotations

import onnx.parser
import pytest

from optvet.graph.pattern import find_matches, parse_pattern
from optvet.graph.types import inferred_types

HEAD = '<ir_version: 8, opset_import: ["" : 18, "my" : 1]>\n'


def found(pattern: str, body: str) -> list[tuple[list[str], bool]]:
    """Results of the nodes of each match, and whether it is certain."""
    model = onnx.parser.parse_model(HEAD + body)
    types = dict(inferred_types(model, partial=True) or {})
    types |= {value.name: value.type for value in model.graph.input}
    matches = find_matches(parse_pattern(pattern), model, types)
    return [([node.output[0] for node in m.nodes], m.certain) for m in matches]


MLP = """
g (float[2,3] x, float[n,3] u) => (float[2,2] y, float[n,3] v)
<float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0, 1}>
{ t = Transpose<perm = [1, 0]>(w)  m = MatMul(x, w)  y = Add(b, m)  v = Relu(u) }
"""


@pytest.mark.parametrize(
    ("pattern", "results"),
    [
        ("m = MatMul(x, W)\ny = Add(m, B)", [["m", "y"]]),  # operands of Add in either order
        ("y = Add(m, B)\nm = MatMul(x, W)", [["y", "m"]]),  # written from the end
        ("m = MatMul(X, W)", []),  # capitals are constants
        ("m = MatMul(x, x)", []),  # one name is one value
        ("y = _(m, C)\nwhere is_output(y) and ir_version() == 8", [["y"]]),  # any operator
        ("y = _(C, *)\nwhere ir_version() < 8", []),
        ("v = Relu(u)\nwhere kind(v) == 'tensor'", [["v"]]),
        ("t = Transpose<perm>(x)", [["t"]]),
        ("t = Transpose<!perm>(x)", []),
        ("t = Transpose<perm=[1, 0]>(x)", [["t"]]),
        ("t = Transpose<perm=[0, 1]>(x)", []),
        ("r = Relu|Transpose(x)", [["t"], ["v"]]),
        ("r = Relu(x, -)", [["v"]]),
        ("r = Relu(x, _)", []),
        ("r = Relu(x, z?)", [["v"]]),
        ("m = MatMul(x)", []),  # two operands are not one
        ("m = MatMul(x, *)", [["m"]]),
        ("r = Neg(x)\nor\nr = Relu(x)", [["v"]]),
        ("r = my.Relu(x)", []),
        ("r = ?.Relu(x)", []),
        ("m = MatMul(x, W)\nwhere rank(x) == 2 and value(W) == [1, 2, 3, 4, 5, 6]", [["m"]]),
        ("m = MatMul(x, W)\nwhere 7 in value(W)", []),
        ("m = MatMul(x, W)\nwhere readers(m) == 1 and is_input(x) and not is_output(m)", [["m"]]),
        ("m = MatMul(x, W)\nwhere readers(W) == 2 and elements(W) == 6", [["m"]]),
        ("m = MatMul(x, W)\nwhere dtype(x) in ['int32', 'int64']", []),
        ("m = MatMul(x, W)\nwhere opset() >= 18 and dim(x, -1) + 1 == 4", [["m"]]),
        ("y = Add(a, B)\nwhere attr(y, 'axis') == 1", [["y"]]),  # there is none: not known
    ],
)
def test_places_that_fit_are_found(pattern: str, results: list[list[str]]) -> None:
    assert [names for names, _ in found(pattern, MLP)] == results


def test_what_cannot_be_known_is_a_match_that_is_not_certain() -> None:
    assert found("v = Relu(u)\nwhere dim(u, 0) == 7", MLP) == [(["v"], False)]
    assert found("v = Relu(u)\nwhere dim(u, 1) == 3", MLP) == [(["v"], True)]
    assert found("v = Relu(u)\nwhere dim(u, 0) == 7 and dim(u, 1) == 4", MLP) == []
    assert found("v = Relu(u)\nwhere dim(u, 0) == 7 or dim(u, 1) == 3", MLP) == [(["v"], True)]


def test_defaults_of_attributes_count() -> None:
    body = "g (float[2,3] x) => (float[n,m] y) { y = Flatten(x) }"
    assert found("y = Flatten<axis=1>(x)", body) == [(["y"], True)]
    assert found("y = Flatten<!axis>(x)\nwhere attr(y, 'axis') == 1", body) == [(["y"], True)]


def test_a_dimension_that_varies_is_not_taken_for_one_without_elements() -> None:
    body = "g (float[n,2] x, float[n,0] z) => (float[n,2] y, float[n,0] v) { y=Abs(x) v=Abs(z) }"
    assert found("y = Abs(x)\nwhere is_empty(x)", body) == [(["v"], True)]
    assert found("y = Abs(x)\nwhere is_empty(x, -1)", body) == [(["v"], True)]
    assert found("y = Abs(x)\nwhere is_empty(x, 0) or is_empty(x, 2)", body) == []


@pytest.mark.parametrize(
    ("node", "certain"),
    [
        ("ReduceMean<axes = [-1]>(x)", True),
        ("ReduceMean<axes = [1]>(x)", True),
        ("ReduceMean<axes = [0]>(x)", None),
        ("ReduceMean<axes = [0, 1]>(x)", None),
        ("ReduceMean(x)", None),
        ("ReduceMean(x, last)", True),
        ("ReduceMean(x, first)", None),
        ("ReduceMean(x, any)", False),
        ("ReduceMean<axes = [-1]>(u)", True),
        ("ReduceMean<axes = [1]>(u)", False),
    ],
)
def test_whether_a_reduction_is_over_the_last_axis_alone(node: str, certain: bool | None) -> None:
    inputs = "float[2,3] x, int64[1] any"
    weights = "<int64[1] last = {1}, int64[1] first = {0}>"
    body = f"g ({inputs}) => (float y) {weights} {{ u = my.Of(x)  y = {node} }}"
    matches = found("y = ReduceMean(*)\nwhere over_last(y)", body)
    assert [sure for _, sure in matches] == ([] if certain is None else [certain])


def test_branches_and_functions_are_searched_too() -> None:
    body = """
    g (bool c, float[2] x) => (float[2] y, float[2] z)
    {
      y = If(c) <then_branch = a () => (float[2] p) { p = Relu(x) },
                 else_branch = b () => (float[2] q) { q = Neg(x) }>
      z = my.Twice(x)
    }
    <domain: "my", opset_import: ["" : 18]> Twice (i) => (o) { o = Add(i, i) }
    """
    assert [names for names, _ in found("r = Neg|Relu(x)", body)] == [["p"], ["q"]]
    assert [names for names, _ in found("r = Add(x, x)", body)] == [["o"]]
    assert [names for names, _ in found("r = ?.Twice(x)", body)] == [["z"]]
    assert found("r = Neg(x)\nwhere dtype(r) == 'float' and rank(r) == 1", body) == [(["q"], True)]


def test_one_place_is_one_match_whatever_the_order_of_its_operands() -> None:
    body = "g (float[2] x) => (float[2] y) { a = Relu(x)  b = Relu(x)  y = Mul(a, b) }"
    assert len(found("a = Relu(x)\nb = Relu(x)", body)) == 1
    assert len(found("y = Mul(a, b)", body)) == 1


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("", "a pattern needs a node"),
        ("where opset() > 1", "a pattern needs a node"),
        ("Relu(x)", "expected results = Operator"),
        ("y = Relu(x, f(z))", "expected results = Operator"),
        ("y = Relu(x y)", "'x y' is no operand"),
        ("y = Relu(*, x)", r"\* stands for all that follow"),
        ("y = Relu<axis==>(x)", "is no number, text or list"),
        ("y = Relu<!axis=1>(x)", "is no attribute"),
        ("y = Relu(x)\nwhere rank(x", "is no condition"),
        ("y = Relu(x)\nwhere open('f')", r"there is no open\(\); known: rank"),
        ("y = Relu(x)\nwhere x.y == 1", "Attribute has no place in a condition"),
        ("y = Relu(x)\nwhere [i for i in value(x)]", "ListComp has no place"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_pattern(pattern)
