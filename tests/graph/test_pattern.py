"""Patterns of nodes as text, and the places of a graph that fit them."""

from __future__ import annotations

import onnx.parser
import pytest

from optvet.graph.pattern import parse_pattern, search
from optvet.graph.pattern_facts import SearchSteps
from optvet.graph.types import inferred_types

HEAD = '<ir_version: 8, opset_import: ["" : 18, "my" : 1]>\n'


def found(pattern: str, body: str) -> list[tuple[list[str], bool]]:
    """Results of the nodes of each match, and whether it is certain."""
    model = onnx.parser.parse_model(HEAD + body)
    types = dict(inferred_types(model, partial=True) or {})
    types |= {value.name: value.type for value in model.graph.input}
    matches = search(parse_pattern(pattern), model, types).places
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


def test_an_attribute_that_the_caller_of_a_function_gives_is_not_known() -> None:
    body = """
    g (float[2] x) => (float[2] y) { y = my.To<kind = 6>(x) }
    <domain: "my", opset_import: ["" : 18]> To <kind> (i) => (o) { o = Cast<to: int = @kind>(i) }
    """
    assert found("o = Cast<to=6>(i)", body) == [(["o"], False)]
    assert found("o = Cast(i)\nwhere attr(o, 'to') == 6", body) == [(["o"], False)]
    assert found("o = Cast<to>(i)", body) == [(["o"], True)]
    assert found("o = Cast<to=6, !to>(i)", body) == []


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
        ("y = Relu(x)\nwhere x.y == 1", "'.y == 1' has no place in a condition"),
        ("y = Relu(x)\nwhere [i for i in value(x)]", "',' is missing before 'for'"),
        ("y = Relu(x)\nwhere rank(z) == 1", "no node of the pattern has 'z'"),
        ("y = Relu(x)\nwhere [1]*19999999999 == [1]", r"\* takes a number, \[1\] is none"),
        ("y = Relu(x)\nwhere 2**9999999 == 1", r"'\*' has no place there"),
        ("y = Relu(x)\nwhere 'a%9999999d' % 1 == 'a'", "% takes a number"),
        ("y = Relu(x)\nwhere 99999999999999999999 > 1", "is too large"),
        ("y = Relu(x)\nwhere 1e999 > 1", "is too large"),
        (f"y = Relu(x)\nwhere {'(' * 400}1 == 1{')' * 400}", "nested more than 16 deep"),
        (f"y = Relu(x)\nwhere {'not ' * 200}1 == 1", "nested more than 16 deep"),
        (f"y = Relu(x)\nwhere {'-' * 400}1 == 1", "nested more than 16 deep"),
        (f"y = Relu(x)\nwhere 1 == {'1' * 2000}", "more than 1,000 characters"),
        ("y = Relu(x)\n" + "where 1 == 1\n" * 64, "it has 65 lines, more than 64"),
        ("y = Relu(x)\nwhere rank(x)", "a condition takes a comparison"),
        ("y = Relu(x)\nwhere dtype(x) == 1", "== compares what is of one kind"),
        ("y = Relu(x)\nwhere shape(x) < [1]", "< takes a number"),
        ("y = Relu(x)\nwhere 'a' in 'abc'", "in takes a list"),
        ("y = Relu(x)\nwhere rank() == 1", r"rank\(\) takes name"),
        ("y = Relu(x)\nwhere rank(1) == 1", r"rank\(\) takes a name of a value, 1 is none"),
        ("y = Relu(x)\nwhere is_product(x)", r"is_product\(\) takes name, name\*"),
        ("y = Relu(x)\nwhere is_input(x) and rank(x)", "and takes a comparison"),
        ("y = Relu(x)\nwhere is_input(x) +", "'\\+' has no place|takes a number|its end"),
        ("y = Relu(x)\nwhere ", "expected results = Operator"),
        ("y = Relu(x)\nwhere \0 == 1", "has no place in a condition"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_pattern(pattern)


@pytest.mark.parametrize(
    "condition",
    [
        'largest(attr(v, "auto_pad")) > 0',
        'smallest(shape(u)) + largest(attr(c, "dilations")) * attr(c, "auto_pad") == 3',
        '1 in attr(c, "group")',
        'attr(c, "group") < "b"',
        "dim(u, 0.5) == 1",
        "ir_version() % 0 == 1",
        "ir_version() * " + " * ".join(["9223372036854775807"] * 16) + " > 0",
        'not attr(c, "auto_pad")',
    ],
)
def test_what_is_of_another_kind_in_the_model_is_not_known(condition: str) -> None:
    body = """
    g (float[1,1,4,4] x, float[2,2] u) => (float[a,b,c,d] c, float[2,2] v)
    <float[1,1,1,1] w = {1}> { c = Conv<auto_pad = "VALID", group = 1>(x, w)  v = Relu(u) }
    """
    found_there = found(f"c = Conv(x, W)\nv = Relu(u)\nwhere {condition}", body)
    assert found_there == [(["c", "v"], False)]


def products(count: int) -> onnx.ModelProto:
    """A model that multiplies one computed value by ``count`` constants."""
    weights = ", ".join(f"float[2,2] w{k} = {{1, 2, 3, 4}}" for k in range(count))
    nodes = " ".join(f"m{k} = MatMul(x, w{k})" for k in range(count))
    outputs = ", ".join(f"float[2,2] m{k}" for k in range(count))
    return onnx.parser.parse_model(
        f"{HEAD} g (float[2,2] z) => ({outputs}) <{weights}> {{ x = Relu(z) {nodes} }}"
    )


THREE = "q = MatMul(x, Q)\nk = MatMul(x, K)\nv = MatMul(x, V)\n"


def test_a_search_looks_at_few_nodes_and_says_where_it_ran_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[SearchSteps] = []
    spend = SearchSteps.spend

    def counted(steps: SearchSteps, elements: int = 0) -> None:
        taken.append(steps)
        spend(steps, elements)

    monkeypatch.setattr(SearchSteps, "spend", counted)
    model = products(300)
    ended = search(parse_pattern(f"{THREE}where is_input(x)"), model, {})
    assert (ended.places, ended.complete) == ([], True)
    assert len(taken) < 3 * 300
    # Lines that may be exchanged: of n³ orders one is tried, and 100 places are enough.
    ended = search(parse_pattern(f"{THREE}where not is_input(x)"), model, {})
    assert (len(ended.places), ended.complete) == (100, True)
    assert len({frozenset(map(id, place.nodes)) for place in ended.places}) == 100
    assert len(taken) < 6 * 300
    # A value that only the last of three decides: more than the search may take.
    foreign = f"{THREE}where readers(q) + readers(k) + readers(v) == 77"
    ended = search(parse_pattern(foreign), model, {})
    assert (ended.places, ended.complete) == ([], False)
    assert len(taken) < 120_000
    # What was found before it ran out is kept.
    ended = search(parse_pattern(f"r = Relu(z)\nor\n{foreign}"), model, {})
    assert (len(ended.places), ended.complete) == (1, False)


def test_lines_are_tried_along_their_values_and_told_as_written() -> None:
    body = "g (float[2] x) => (float[2] y) { a = Relu(x)  b = Neg(a)  y = Exp(b) }"
    assert found("a = Relu(x)\ny = Exp(b)\nb = Neg(a)", body) == [(["a", "y", "b"], True)]


def test_a_large_constant_costs_steps() -> None:
    numbers = ", ".join("1" * 60_000)
    nodes = " ".join(f"m{k} = Add(x, w)" for k in range(300))
    weight = f"<float[60000] w = {{{numbers}}}>"
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[60000] x) => (float[60000] m0) {weight} {{ {nodes} }}"
    )
    ended = search(parse_pattern("m = Add(x, W)\nwhere 2 in value(W)"), model, {})
    assert (ended.places, ended.complete) == ([], False)


def test_a_malformed_constant_gives_no_steps_back() -> None:
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}> {{ y = Add(x, w) }}"
    )
    model.graph.initializer[0].dims[:] = [-(1 << 62)]
    steps: list[int] = []
    spend = SearchSteps.spend

    def watched(of: SearchSteps, elements: int = 0) -> None:
        spend(of, elements)
        steps.append(of.left)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchSteps, "spend", watched)
        search(parse_pattern("y = Add(x, W)\nwhere 2 in value(W)"), model, {})
    assert steps == sorted(steps, reverse=True)
