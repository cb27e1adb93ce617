"""Edits make changed copies, round through a patch, and say where they do not fit."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import ModelProto, TensorProto

from optvet import UsageError
from optvet.engine.repair import edited_model
from optvet.engine.repair.apply_patch import read_patch
from optvet.engine.repair.edited_model import DoesNotFit
from optvet.engine.repair.edits import BEFORE, apply_edits, array_of, tensor_of
from optvet.spec.records.repair import (
    Edit,
    InsertNode,
    Operation,
    Patch,
    RemoveNode,
    ReplaceNode,
    ReplaceRegion,
    SetAttribute,
    SetInput,
    SetOutputType,
    SetWeight,
)

TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 2, 3}> {
    a = Relu(x)
    b = Mul(a, w)
    c = LeakyRelu<alpha = 0.1>(b)
    y = Sub(c, a)
}"""


def model() -> ModelProto:
    return onnx.parser.parse_model(TEXT)


def made(*operations: Operation) -> list[Edit]:
    return [Edit(kind="attribute", about="a change", operations=list(operations))]


def nodes(proto: ModelProto) -> list[str]:
    return [f"{n.output[0]} = {n.op_type}({', '.join(n.input)})" for n in proto.graph.node]


def negation(node: str, index: int | None = None) -> InsertNode:
    return InsertNode(node=node, index=index, operator="Neg", inputs=[BEFORE], output="n")


def test_an_edit_changes_a_copy() -> None:
    one = model()
    before = one.SerializeToString()
    apply_edits(one, made(SetAttribute(node="c", name="alpha", value=0.5)))
    assert one.SerializeToString() == before


def test_a_weight_gets_another_value_and_a_new_name_is_a_new_initializer() -> None:
    value = np.array([4, 5, 6], np.float32)
    result = apply_edits(model(), made(SetWeight(name="w", tensor=tensor_of(value))))
    assert onnx.numpy_helper.to_array(result.graph.initializer[0]).tolist() == [4, 5, 6]
    result = apply_edits(model(), made(SetWeight(name="v", tensor=tensor_of(value))))
    assert [t.name for t in result.graph.initializer] == ["w", "v"]


def test_an_attribute_takes_the_type_that_its_operator_asks_for() -> None:
    result = apply_edits(model(), made(SetAttribute(node="c", name="alpha", value=1)))
    assert result.graph.node[2].attribute[0].f == 1.0
    result = apply_edits(model(), made(SetAttribute(node="c", name="alpha", value=None)))
    assert not result.graph.node[2].attribute


def test_what_reads_a_removed_node_reads_its_input() -> None:
    result = apply_edits(model(), made(RemoveNode(node="c", value="b")))
    assert nodes(result) == ["a = Relu(x)", "b = Mul(a, w)", "y = Sub(b, a)"]


def test_an_output_stays_where_its_node_is_removed() -> None:
    result = apply_edits(model(), made(RemoveNode(node="y", value="c")))
    assert nodes(result)[-1] == "y = Identity(c)"


def test_a_node_is_inserted_before_one_input_or_behind_a_value_for_all() -> None:
    before = apply_edits(model(), made(negation("y", 1)))
    assert {"n = Neg(a)", "y = Sub(c, n)"} <= set(nodes(before))
    behind = apply_edits(model(), made(negation("a")))
    assert {"n = Neg(a)", "b = Mul(n, w)", "y = Sub(c, n)"} <= set(nodes(behind))
    last = apply_edits(model(), made(negation("y")))
    assert nodes(last)[-2:] == ["n = Sub(c, a)", "y = Neg(n)"]
    for each in (before, behind, last):
        onnx.checker.check_model(each, full_check=True)


def test_a_replaced_node_keeps_the_name_of_its_value() -> None:
    result = apply_edits(model(), made(ReplaceNode(node="c", operator="Elu", inputs=["b"])))
    assert nodes(result)[2] == "c = Elu(b)"


def test_an_output_is_declared_anew() -> None:
    result = apply_edits(model(), made(SetOutputType(output="y", type="int64", axes=2)))
    assert result.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.INT64


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (RemoveNode(node="z", value="b"), "no node of the model makes 'z'"),
        (RemoveNode(node="b", value="z"), "no node of the model makes 'z'"),
        (SetInput(node="b", index=0, value="z"), "no node of the model makes 'z'"),
        (SetInput(node="a", index=0, value="y"), "depend on itself"),
        (SetWeight(name="b", tensor=tensor_of(np.zeros(3))), "'b' is computed"),
        (SetOutputType(output="z", type="int64", axes=2), "no output 'z'"),
        (InsertNode(node="b", index=7, operator="Neg", inputs=["@"], output="n"), "no input 7"),
    ],
)
def test_an_edit_that_does_not_fit_says_so(operation: Operation, message: str) -> None:
    with pytest.raises(DoesNotFit, match=message):
        apply_edits(model(), made(operation))


ELEMENTS = st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_])


@settings(max_examples=60, deadline=None)
@given(ELEMENTS.flatmap(lambda t: arrays.arrays(t, arrays.array_shapes(min_dims=0, min_side=0))))
def test_a_tensor_goes_through_a_patch_unchanged(value: np.ndarray) -> None:
    patch = Patch(
        schema="optvet.patch/1", digest="", edits=made(SetWeight(name="w", tensor=tensor_of(value)))
    )
    read = Patch.model_validate_json(patch.to_json())
    (operation,) = read.edits[0].operations
    assert isinstance(operation, SetWeight)
    back = array_of(operation.tensor)
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    assert back.tobytes() == np.ascontiguousarray(value).tobytes()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                SetAttribute(node="c", name="alpha", value=0.5),
                RemoveNode(node="c", value="b"),
                SetInput(node="y", index=1, value="c"),
                InsertNode(node="y", index=0, operator="Neg", inputs=["@"], output="n1"),
                InsertNode(node="a", operator="Abs", inputs=["@"], output="n2"),
                ReplaceNode(node="b", operator="Add", inputs=["a", "w"]),
            ]
        ),
        unique_by=lambda o: o.model_dump_json(),
        max_size=4,
    )
)
def test_edits_one_by_one_are_the_edits_together_and_leave_a_valid_model(
    operations: list[Operation],
) -> None:
    together: ModelProto | None
    try:
        together = apply_edits(model(), made(*operations))
    except DoesNotFit:
        return
    step = model()
    for operation in operations:
        step = apply_edits(step, made(operation))
    assert sorted(nodes(step)) == sorted(nodes(together))
    onnx.checker.check_model(together, full_check=True)


@pytest.mark.parametrize(
    "changed",
    [{"data": "%%%"}, {"data": "AAAA"}, {"type": "9" * 5000}, {"type": "f4,O"}, {"type": "finfo"}],
)
def test_a_tensor_that_is_none_is_refused(changed: dict[str, str]) -> None:
    tensor = tensor_of(np.zeros(2, np.float32)).model_copy(update=changed)
    with pytest.raises(DoesNotFit, match="a tensor of the patch"):
        array_of(tensor)


PART = """<ir_version: 8, opset_import: ["" : 18]>
r (float[2, 3] p, float[2, 3] q) => (float[2, 3] y) <float[1] w = {2}> {
    a = Mul(p, w)
    y = Max(a, q)
}"""


def region(node: str, inputs: list[str], text: str = PART) -> ReplaceRegion:
    data = onnx.parser.parse_model(text).SerializeToString()
    return ReplaceRegion(node=node, inputs=inputs, model=base64.b64encode(data).decode())


def reaching() -> ReplaceRegion:
    part = onnx.parser.parse_model(PART)
    (weight,) = part.graph.initializer
    weight.Clear()
    weight.name, weight.data_type, weight.dims[:] = "w", TensorProto.FLOAT, [1]
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../secret")
    data = base64.b64encode(part.SerializeToString()).decode()
    return ReplaceRegion(node="y", inputs=["x", "a"], model=data)


def test_a_region_takes_the_place_of_a_value_and_of_what_nothing_reads_then() -> None:
    result = apply_edits(model(), made(region("y", ["x", "a"])))
    onnx.checker.check_model(result, full_check=True)
    assert nodes(result) == [
        "a = Relu(x)",
        "y_region_repair1_a = Mul(x, y_region_repair1_w)",
        "y = Max(y_region_repair1_a, a)",
    ]
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    (y,) = onnx.reference.ReferenceEvaluator(result).run(None, {"x": x})
    assert np.array_equal(y, np.maximum(2 * x, np.maximum(x, 0)))


def test_a_region_inside_feeds_what_read_the_value() -> None:
    result = apply_edits(model(), made(region("c", ["b", "a"])))
    onnx.checker.check_model(result, full_check=True)
    assert [n.op_type for n in result.graph.node] == ["Relu", "Mul", "Mul", "Max", "Sub"]
    assert nodes(result)[-1] == "y = Sub(c, a)"


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (region("nobody", ["x", "a"]), "no node of the model makes 'nobody'"),
        (region("y", ["x"]), "other inputs or outputs"),
        (region("y", ["x", "nobody"]), "no node of the model makes 'nobody'"),
        (region("y", ["x", "y"]), "depend on itself"),
        (ReplaceRegion(node="y", inputs=[], model="no base64"), "cannot be read"),
        (reaching(), "in a file, which no patch may name"),
    ],
)
def test_a_region_that_does_not_fit_is_refused(operation: Operation, words: str) -> None:
    with pytest.raises(DoesNotFit, match=words):
        apply_edits(model(), made(operation))


@pytest.mark.parametrize(
    "operation",
    [
        {"operation": "set-attribute", "node": "y", "name": "axis", "value": 10**50},
        {"operation": "set-attribute", "node": "y", "name": "axis", "value": []},
        {"operation": "set-output-type", "output": "y", "type": "no type", "axes": 1},
        {"operation": "set-input", "node": "y", "index": 10**9, "value": "x"},
        {"operation": "set-input", "node": "y", "index": -9, "value": "x"},
    ],
)
def test_an_edit_that_nobody_can_make_is_refused(
    operation: dict[str, object], tmp_path: Path
) -> None:
    edit = {"kind": "attribute", "about": "a", "operations": [operation]}
    patch = {"schema": "optvet.patch/1", "digest": "0" * 64, "edits": [edit]}
    (tmp_path / "patch.json").write_text(json.dumps(patch))
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    with pytest.raises(UsageError):
        apply_edits(onnx.parser.parse_model(text), read_patch(tmp_path / "patch.json").edits)


BRANCHES = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x, bool c) => (float[2] y) {
    a = Relu(x)
    y = If(c) <then_branch = t () => (float[2] p) { q = Neg(a)  p = Exp(q) },
               else_branch = e () => (float[2] r) { r = Abs(a) }>
}"""


def test_nodes_of_branches_are_edited_and_put_in_order() -> None:
    before = onnx.parser.parse_model(BRANCHES)
    result = apply_edits(before, made(negation("q"), negation("a").model_copy(update=N2)))
    onnx.checker.check_model(result, full_check=True)
    branch = result.graph.node[-1].attribute[0].g
    assert [(n.op_type, list(n.input)) for n in branch.node] == [
        ("Neg", ["m"]),
        ("Neg", ["q"]),
        ("Exp", ["n"]),
    ]
    removed = apply_edits(
        before, made(RemoveNode(node="y", value="a"), SetInput(node="y", index=0, value="x"))
    )
    assert nodes(removed)[-1] == "y = Identity(x)"


N2 = {"output": "m"}


def calls(count: int) -> int:
    """Calls of functions in as many edits of a model of as many nodes."""
    body = "".join(f"v{k + 1} = Relu(v{k})\n" for k in range(count))
    chain = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]>\n'
        f"g (float[2] v0) => (float[2] v{count}) {{ {body} }}"
    )
    every: list[Operation] = []
    for k in range(1, count, 3):
        fresh = {"output": f"n{k}"}
        every += [
            negation(f"v{k}").model_copy(update=fresh),
            RemoveNode(node=f"v{k + 1}", value=f"v{k}") if k + 1 < count else negation("v1", 0),
            SetAttribute(node=f"v{k}", name="alpha", value=0.5),
        ]
    taken = 0

    def count_one(*_: object) -> None:
        nonlocal taken
        taken += 1

    sys.setprofile(count_one)
    try:
        apply_edits(chain, made(*every))
    finally:
        sys.setprofile(None)
    return taken


def test_edits_cost_what_they_change_and_not_the_size_of_the_model() -> None:
    assert calls(480) < 5 * calls(120)


def test_a_patch_that_moves_the_readers_of_a_value_again_and_again_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edited_model, "_MOST_MOVES", 3)
    again = [negation(*pair) for pair in (("a",), ("n",))]
    with pytest.raises(DoesNotFit, match="gives more than 3 readers another value"):
        apply_edits(model(), made(again[0], again[1].model_copy(update=N2)))
