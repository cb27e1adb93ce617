"""Forms of places that a pattern fits, and the facts that say what decides."""

from __future__ import annotations

import onnx.parser
import pytest

from optvet.graph.pattern import parse_pattern, search
from optvet.graph.types import inferred_types

MODEL = """
<ir_version: 8, opset_import: ["" : {opset}]>
g (float[2,3] x) => (float[a,b] y)
<float lo = {{0}}, float hi = {{6}}, float prod = {{0.5}}, float one = {{0.25}}, float two = {{2}}>
{{ r = Relu(x)  y = {node} }}
"""


def forms(pattern: str, node: str, opset: int = 17) -> list[str]:
    model = onnx.parser.parse_model(MODEL.format(node=node, opset=opset))
    types = {v.name: v.type for v in model.graph.input} | (inferred_types(model) or {})
    return [place.form for place in search(parse_pattern(pattern), model, types).places]


def test_a_form_tells_operands_that_are_given_from_those_that_are_left_out() -> None:
    found = {node: forms("y = Clip(r, *)", node) for node in ("Clip(r, lo)", "Clip(r, , hi)")}
    assert found == {"Clip(r, lo)": ["Clip(x,x)"], "Clip(r, , hi)": ["Clip(x,-,x)"]}
    # An operand of today that is an attribute yet.
    assert forms("y = Clip(r)", "Clip<max = 6.0>(r)", 10) == ["Clip<max>(x)"]


def test_a_form_has_the_values_that_conditions_choose_among() -> None:
    pattern = "y = Clip(r, LO)\nwhere value(LO) != [1] and rank(r) == 2 and dtype(r) in ['float']"
    assert forms(pattern, "Clip(r, lo)") == ["Clip(x,x) value(LO)=[0.0] dtype(r)='float'"]
    either = "y = Neg(r)\nor\ny = Clip(r, LO)"
    assert forms(either, "Clip(r, lo)") == ["1: Clip(x,x)"]


@pytest.mark.parametrize(
    ("condition", "fits"),
    [
        ('made_by(r) == "Relu" and made_by(x) == ""', True),
        ('made_by(r) == "Neg"', False),
        ("largest(value(LO)) == 0 and smallest(shape(r)) == 2", True),
        ("largest(shape(r)) < 3", False),
    ],
)
def test_facts_of_what_makes_a_value_and_of_numbers(condition: str, fits: bool) -> None:
    pattern = f"r = Relu(x)\ny = Clip(r, LO)\nwhere {condition}"
    assert bool(forms(pattern, "Clip(r, lo)")) is fits


@pytest.mark.parametrize(("names", "fits"), [("P, A, B", True), ("A, P, B", False)])
def test_a_constant_is_the_product_of_others_but_for_rounding(names: str, fits: bool) -> None:
    pattern = f"m = Mul(r, P)\nk = Mul(m, A)\ny = Mul(k, B)\nwhere is_product({names})"
    node = "Mul(k, two)  m = Mul(r, prod)  k = Mul(m, one)"
    assert bool(forms(pattern, node)) is fits
