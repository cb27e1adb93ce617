from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from optvet.graph.site_features import distinction, features_of
from optvet.graph.sites import Site, find_rewrites, kind_of, splice
from optvet.testing.optimizers import _REWRITES, PlantedOptions

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'


def parsed(body: str) -> ModelProto:
    return onnx.parser.parse_model(HEAD + body)


def applied(model: ModelProto, name: str) -> ModelProto:
    after = ModelProto()
    after.CopyFrom(model)
    _REWRITES[name](after, PlantedOptions())
    return after


def operators(model: ModelProto, nodes: Sequence[int]) -> list[str]:
    return [model.graph.node[i].op_type for i in nodes]


def run(model: ModelProto, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.asarray(session.run(None, {"x": x})[0])


CHAIN = """g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
    a = Add(x, c)  r = Relu(a)  s = Add(r, x)  t = Tanh(s)  y = Add(t, c) }"""


def test_equal_models_have_no_sites() -> None:
    assert find_rewrites(parsed(CHAIN), parsed(CHAIN)) == []


def test_places_that_touch_only_through_shared_values_are_sites_of_their_own() -> None:
    before = parsed(CHAIN)
    after = applied(before, "add_to_sub")
    assert find_rewrites(before, after) == [Site((0,), (0,)), Site((2,), (2,)), Site((4,), (4,))]


def test_attributes_that_repeat_their_default_and_names_of_nodes_are_no_change() -> None:
    before = parsed("g (float[2,2] x) => (float[2,2] y) { y = Softmax(x) }")
    after = parsed("g (float[2,2] x) => (float[2,2] y) { y = Softmax <axis = -1> (x) }")
    after.graph.node[0].name = "another"
    assert find_rewrites(before, after) == []


def test_a_constant_node_and_an_initializer_of_equal_content_are_equal() -> None:
    before = parsed("g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> { y = Add(x, c) }")
    after = parsed(
        """g (float[2] x) => (float[2] y) {
            k = Constant <value = float[2] {1, 2}> ()  y = Add(x, k) }"""
    )
    assert find_rewrites(before, after) == []


def test_a_name_that_a_fusion_gave_to_another_value_is_no_border() -> None:
    before = parsed(
        """g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
            m = Mul(x, c)  n = Add(m, c)  r = Relu(n)  y = Neg(r) }"""
    )
    after = parsed(
        """g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
            m = Fused(x, c)  r = Relu(m)  y = Neg(r) }"""
    )
    (site,) = find_rewrites(before, after)
    assert operators(before, site.before) == ["Mul", "Add", "Relu"]
    assert operators(after, site.after) == ["Fused", "Relu"]
    assert kind_of(before, after, site) == "Add + Mul"


def test_one_site_alone_changes_nothing_else() -> None:
    before = parsed(CHAIN)
    after = applied(before, "add_to_sub")
    sites = find_rewrites(before, after)
    models = [splice(before, after, site) for site in sites]
    assert [[n.op_type for n in m.graph.node if n.op_type in ("Add", "Sub")] for m in models if m]
    x = np.array([3.0, -0.5], np.float32)
    same = [np.allclose(run(m, x), run(before, x)) for m in models if m is not None]
    assert same == [True, False, True]


@given(chosen=st.sets(st.integers(0, 2)))
def test_sites_together_are_the_whole_rewrite(chosen: set[int]) -> None:
    """Splicing site after site reaches the optimized model, in any order and subset."""
    before = parsed(CHAIN)
    after = applied(before, "add_to_sub")
    model = before
    for _ in chosen:
        spliced_model = splice(model, after, find_rewrites(model, after)[0])
        assert spliced_model is not None
        model = spliced_model
    assert len(find_rewrites(model, after)) == 3 - len(chosen)


def test_a_site_that_needs_another_operator_set_cannot_stand_alone() -> None:
    before = parsed(CHAIN)
    after = applied(before, "add_to_sub")
    after.opset_import[0].version = 19
    assert all(splice(before, after, site) is None for site in find_rewrites(before, after))


def test_weights_that_only_share_a_name_are_kept_apart() -> None:
    before = parsed(CHAIN)
    after = applied(before, "scale_weight")
    sites = find_rewrites(before, after)
    assert [s.before for s in sites] == [(0,), (4,)]
    model = splice(before, after, sites[0])
    assert model is not None
    assert [list(n.input) for n in model.graph.node if n.op_type == "Add"] == [
        ["x", "c__new"],
        ["r", "x"],
        ["t", "c"],
    ]


def test_a_value_that_an_inner_graph_reads_counts_as_read() -> None:
    before = parsed(
        """g (bool q, float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
            a = Add(x, c)
            y = If (q) <then_branch = g () => (float[2] u) { u = Relu(a) },
                        else_branch = g () => (float[2] v) { v = Neg(a) }> }"""
    )
    after = applied(before, "add_to_sub")
    (site,) = find_rewrites(before, after)
    model = splice(before, after, site)
    assert model is not None
    assert [n.op_type for n in model.graph.node] == ["Sub", "If"]


def test_what_sets_the_wrong_sites_apart_is_told_plainest_first() -> None:
    before = parsed(CHAIN)
    after = applied(before, "add_to_sub")
    facts = [features_of(before, site, {}) for site in find_rewrites(before, after)]
    told = distinction([facts[1]], [facts[0], facts[2]])
    assert told[0] == "B of Add: an input of the model; right sites: constant"


@pytest.mark.parametrize("wrong", [[], [{"a": "1"}]], ids=["no-wrong", "no-right"])
def test_without_both_kinds_of_sites_nothing_sets_them_apart(wrong: list[dict[str, str]]) -> None:
    assert distinction(wrong, [{"a": "2"}] if not wrong else []) == []


def test_a_name_whose_new_value_nobody_reads_is_no_border() -> None:
    before = parsed(
        """g (float[2] x) => (int64[1] y) {
            m = ReduceMean <keepdims = 0> (x)  s = Shape(m)  y = Neg(s) }"""
    )
    after = parsed(
        """g (float[2] x) => (int64[1] y) <int64[1] k = {1}> {
            m = ReduceMean <keepdims = 1> (x)  y = Neg(k) }"""
    )
    (site,) = find_rewrites(before, after)
    assert operators(before, site.before) == ["ReduceMean", "Shape", "Neg"]
