"""Comparing the interfaces of two models."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from optvet.graph.interface import (
    Interface,
    align,
    describe_misdeclared_outputs,
    feeds_of_size,
    fixed_sizes,
    interface_of,
    shape_changes,
)


def interface(signature: str) -> Interface:
    text = f'<ir_version: 8, opset_import: ["" : 18]> g {signature} {{ y = Relu(x) }}'
    return interface_of(onnx.parser.parse_model(text))


def test_an_output_that_both_models_list_twice_is_no_change() -> None:
    twice = interface("(float[2] x) => (float[2] y, float[2] y)")
    assert align(twice, twice, frozenset()).changed == ""
    apart = interface("(float[2] x) => (float[2] y, float[2] z)")
    assert "became ['y', 'y']" in align(apart, twice, frozenset()).changed
    assert "became ['y', 'y']" in align(apart, twice, frozenset({"names"})).changed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(float[2] x) => (float[2] y)", "() => (float[2] y)"),
        ("(float[2] x) => (float[2] y)", "(float[2] x, float[2] k) => (float[2] y)"),
        ("(float[n] x) => (float[n] y)", "(float[1] x) => (float[1] y)"),
        ("(float[2] x) => (float[2] y)", "(float16[2] x) => (float[2] y)"),
        (
            "(float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}>",
            "(float[2] x) => (float[2] y) <float[2] w = {1, 2}>",
        ),
    ],
)
def test_what_a_caller_can_no_longer_do_is_a_change(before: str, after: str) -> None:
    assert align(interface(before), interface(after), frozenset()).changed
    assert not align(interface(before), interface(before), frozenset()).changed


def test_of_two_declarations_the_one_that_is_computed_holds() -> None:
    scalar = interface("(float[2,3] x) => (float y)")
    matrix = interface("(float[2,3] x) => (float[2,3] y)")
    given = {"y": np.zeros((2, 3), np.float32)}
    assert describe_misdeclared_outputs(align(scalar, matrix, frozenset()), given) == ""
    assert "became ()" in describe_misdeclared_outputs(align(matrix, scalar, frozenset()), given)
    assert describe_misdeclared_outputs(align(matrix, scalar, frozenset()), {})
    assert shape_changes(scalar, matrix)["corrected"] == {"output 'y'": ("[]", "[2, 3]")}


def test_a_size_changes_wherever_it_is_named() -> None:
    before = interface("(float[n,k] x, float[m,n] u) => (float[n,k] y)")
    after = interface("(float[n,3] x, float[m,n] u) => (float[n,3] y)")
    assert fixed_sizes(before, after) == {("x", 1): 3}
    assert fixed_sizes(after, before) == {}
    feeds = {"x": np.arange(6.0).reshape(2, 3), "u": np.arange(8.0).reshape(4, 2)}
    changed = feeds_of_size(before.inputs, feeds, ("x", 0), 3)
    assert {name: value.shape for name, value in changed.items()} == {"x": (3, 3), "u": (4, 3)}
    assert changed["x"].tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert feeds_of_size(before.inputs, feeds, ("x", 1), 1)["u"] is feeds["u"]


def test_an_input_without_dimensions_that_is_gone_has_no_size() -> None:
    before = interface("(float[n] x, float k) => (float[n] y)")
    after = interface("(float[3] x) => (float[3] y)")
    assert fixed_sizes(before, after) == {("x", 0): 3}
