from collections.abc import Callable

import numpy as np
import onnx
import onnx.inliner
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, numpy_helper

from optvet.graph import structure
from optvet.graph.digest import Contents, contents_of
from optvet.graph.interface import Alignment, align
from optvet.graph.structure import Facts, lost_metadata
from optvet.graph.walk import graphs
from optvet.spec.types import MODEL_PARTS, InterfaceChange, ModelPart, ValueInfo

NET = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[2,2] x) => (float[2,2] y)
<float[2,2] w = {1, 2, 3, 4}, float[2] b = {5, 6}>
{
    [first] m = MatMul(x, w)
    [second] a = Add(m, b)
    [third] y = LeakyRelu <alpha: float = 0.5> (a)
}
"""

BRANCHING = """
<ir_version: 8, opset_import: ["" : 17]>
branching (float[2] x, bool c) => (float[2] y)
<float[2] w = {1, 2}>
{
    t = Relu(x)
    y = If (c) <
        then_branch = yes () => (float[2] p) { h = Mul(t, w)  p = Neg(h) },
        else_branch = no () => (float[2] q) <float[2] v = {3, 4}> { q = Add(t, v) }
    >
}
"""


def parsed(text: str) -> ModelProto:
    return onnx.parser.parse_model(text)


def contents(model: str | ModelProto) -> Contents:
    copy = ModelProto()
    copy.CopyFrom(parsed(model) if isinstance(model, str) else model)
    return contents_of(copy)


def digest(model: str | ModelProto) -> str:
    return contents(model).computation


def facts(model: str | ModelProto) -> Facts:
    return structure.facts(parsed(model) if isinstance(model, str) else model, 0)


def rename(model: ModelProto, was: str, now: str) -> None:
    """A value, wherever it is produced, used or described."""
    for graph in graphs(model.graph):
        for node in graph.node:
            node.input[:] = [now if n == was else n for n in node.input]
            node.output[:] = [now if n == was else n for n in node.output]
        for named in (*graph.initializer, *graph.value_info):
            named.name = now if named.name == was else named.name


# What no computation depends on, and programs may read


def _node_names(model: ModelProto) -> None:
    for i, node in enumerate(model.graph.node):
        node.name = f"other_{i}"


def _node_name_moved(model: ModelProto) -> None:
    first, second, _ = model.graph.node
    first.name, second.name = "", first.name


def _doc_strings(model: ModelProto) -> None:
    for thing in (model, model.graph, *model.graph.node, *model.graph.initializer):
        thing.doc_string = "in other words"


def _inner_types(model: ModelProto) -> None:
    model.CopyFrom(onnx.shape_inference.infer_shapes(model))
    assert model.graph.value_info


def _annotations(model: ModelProto) -> None:
    note = model.graph.quantization_annotation.add(tensor_name="m")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")


def _initializer_order(model: ModelProto) -> None:
    tensors = list(model.graph.initializer)[::-1]
    del model.graph.initializer[:]
    model.graph.initializer.extend(tensors)


def _value_names(model: ModelProto) -> None:
    for was, now in (("m", "zz"), ("a", "m"), ("zz", "a")):
        rename(model, was, now)


def _weight_names(model: ModelProto) -> None:
    for was, now in (("w", "b2"), ("b", "a2")):
        rename(model, was, now)


def _unused_initializer(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3), "nobody"))


def _graph_name(model: ModelProto) -> None:
    model.graph.name = "other"


def _producer(model: ModelProto) -> None:
    model.producer_name, model.producer_version, model.domain = "someone", "2", "org.example"


def _metadata(model: ModelProto) -> None:
    onnx.helper.set_model_props(model, {"author": "someone"})


def _metadata_of_a_node(model: ModelProto) -> None:
    model.graph.node[1].metadata_props.add(key="author", value="someone")


PARTS: list[tuple[Callable[[ModelProto], None], set[ModelPart]]] = [
    (_node_names, {"node names"}),
    (_node_name_moved, {"node names"}),
    (_doc_strings, {"metadata"}),
    (_inner_types, {"inner types", "order"}),
    (_annotations, {"annotations"}),
    (_initializer_order, {"order"}),
    (_value_names, {"names"}),
    (_weight_names, {"names"}),
    (_unused_initializer, {"unused"}),
    (_graph_name, {"names"}),
    (_producer, {"metadata"}),
    (_metadata, {"metadata"}),
    (_metadata_of_a_node, {"metadata"}),
]


@pytest.mark.parametrize(("change", "parts"), PARTS)
def test_models_are_equal_for_a_program_that_does_not_read_what_differs(
    change: Callable[[ModelProto], None], parts: set[ModelPart]
) -> None:
    model = parsed(NET)
    change(model)
    was, now = contents(NET), contents(model)
    assert was.computation == now.computation
    assert now.read_by(MODEL_PARTS - parts) == was.read_by(MODEL_PARTS - parts)
    for part in parts:
        assert now.read_by({part}) != was.read_by({part})


def _declare(model: ModelProto, name: str, *shape: int | str) -> None:
    kind = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    model.graph.value_info.append(kind)


def test_one_symbol_for_two_sizes_is_not_the_same_as_two() -> None:
    shared, apart = parsed(NET), parsed(NET)
    for model, symbols in ((shared, "nn"), (apart, "nk")):
        for name, symbol in zip("ma", symbols, strict=True):
            _declare(model, name, symbol, 2)
    assert digest(shared) == digest(apart)
    assert contents(shared).read_by({"inner types"}) != contents(apart).read_by({"inner types"})


def test_a_type_declared_inside_a_branch_is_part_of_the_model() -> None:
    model = parsed(BRANCHING)
    kind = onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, ("n",))
    model.graph.node[1].attribute[0].g.value_info.append(kind)
    assert digest(model) == digest(BRANCHING)
    assert contents(model).read_by({"inner types"}) != contents(BRANCHING).read_by({"inner types"})


def rename_interface(model: ModelProto, *names: str) -> ModelProto:
    """``model`` with other names of its inputs and outputs, in their order."""
    values = (*model.graph.input, *model.graph.output)
    for i, value in enumerate(values):
        rename(model, value.name, f"moved{i}")
        value.name = f"moved{i}"
    for value, name in zip(values, names, strict=True):
        rename(model, value.name, name)
        value.name = name
    return model


CROSSED = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2,2] p, float[2,2] q) => (float[2,2] s, float[2,2] t)
{ s = Sub(p, q)  t = Where(yes, p, s) }"""


def test_names_of_the_interface_count_apart_from_the_computation() -> None:
    renamed = rename_interface(parsed(NET), "a2", "m2")
    assert digest(renamed) == digest(NET)
    assert contents(renamed).read_by({"names"}) != contents(NET).read_by({"names"})
    crossed = [rename_interface(parsed(CROSSED), *n) for n in ("pqst", "qpst", "pqts", "qpts")]
    assert len({digest(model) for model in crossed}) == 1
    assert len({contents(model).read_by({"names"}) for model in crossed}) == 4


def test_what_input_or_output_comes_first_counts_for_the_computation() -> None:
    for side in ("input", "output"):
        swapped = parsed(CROSSED)
        getattr(swapped.graph, side).reverse()
        assert digest(swapped) != digest(CROSSED)


def test_the_order_of_attributes_does_not_change_the_digest() -> None:
    one, other = parsed(NET), parsed(NET)
    for model, names in ((one, "tu"), (other, "ut")):
        made = [onnx.helper.make_attribute(n, ord(n)) for n in names]
        model.graph.node[0].attribute.extend(made)
    assert digest(one) == digest(other)


@pytest.mark.parametrize(("was", "now"), [("t", "other"), ("w", "other"), ("h", "t2"), ("v", "u")])
def test_names_inside_and_above_a_subgraph_do_not_change_the_digest(was: str, now: str) -> None:
    model = parsed(BRANCHING)
    rename(model, was, now)
    assert digest(model) == digest(BRANCHING)


@given(st.permutations(["x1", "m1", "a1", "v0_0", "w0_0", "w1_1", ""]))
def test_internal_names_are_arbitrary(names: list[str]) -> None:
    model = parsed(NET)
    fresh = [n for n in names if n]
    for was, now in zip(("m", "a", "w", "b"), fresh, strict=False):
        rename(model, was, f"fresh_{now}")
    for now in fresh:
        rename(model, f"fresh_{now}", now)
    assert digest(model) == digest(NET)


# What the digest sees


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("alpha: float = 0.5", "alpha: float = 0.25"),
        ("LeakyRelu <alpha: float = 0.5>", "LeakyRelu"),
        ("LeakyRelu", "Elu"),
        ("{1, 2, 3, 4}", "{1, 2, 3, 5}"),
        ("float[2] b = {5, 6}", "float[1,2] b = {5, 6}"),
        ("Add(m, b)", "Add(b, m)"),
        ("Add(m, b)", "Add(m, m)"),
        ("MatMul(x, w)", "MatMul(w, x)"),
        ('"" : 17', '"" : 16'),
        ("ir_version: 8", "ir_version: 9"),
        ("float[2,2] y", "float[2,n] y"),
    ],
)
def test_what_computes_something_else_changes_the_digest(was: str, now: str) -> None:
    assert was in NET
    assert digest(NET.replace(was, now)) != digest(NET)


def test_swapped_weights_of_one_shape_change_the_digest() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x) => (float[1] y) <float[1] p = {1}, float[1] q = {2}>
    { t = Mul(x, p)  y = Sub(t, q) }
    """
    swapped = text.replace("(x, p)", "(x, q)").replace("(t, q)", "(t, p)")
    assert digest(text) != digest(swapped)


def test_large_weights_are_part_of_the_digest() -> None:
    models = []
    for last in (1.0, 2.0):
        model = parsed(NET)
        weight = np.ones((40, 40), np.float32)
        weight[-1, -1] = last
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
        models.append(model)
    assert digest(models[0]) != digest(models[1])
    reshaped = parsed(NET)
    reshaped.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.ones((20, 80), np.float32), "w")
    )
    assert digest(models[0]) != digest(reshaped)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("Neg(h)", "Abs(h)"),
        ("Mul(t, w)", "Mul(t, t)"),
        ("Mul(t, w)", "Mul(x, w)"),
        ("Add(t, v)", "Sub(t, v)"),
        ("{1, 2}", "{1, 3}"),
        ("{3, 4}", "{3, 5}"),
    ],
)
def test_a_change_inside_a_subgraph_or_of_what_it_captures_changes_the_digest(
    was: str, now: str
) -> None:
    assert was in BRANCHING
    assert digest(BRANCHING.replace(was, now)) != digest(BRANCHING)


@pytest.mark.parametrize("name", ["v0_0", "w0_0"])
def test_an_input_named_like_a_canonical_value_is_not_taken_for_one(name: str) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x, float[1] INPUT) => (float[1] y) <float[1] p = {1}>
    { t = Add(x, p)  u = Relu(t)  y = Mul(OPERANDS) }
    """.replace("INPUT", name)
    operands = [f"u, {name}", "u, t", "u, u", "u, p", "u, x"]
    assert len({digest(text.replace("OPERANDS", o)) for o in operands}) == len(operands)


def test_the_digest_is_of_all_that_is_left() -> None:
    model = parsed(NET)
    model.graph.node.append(NodeProto(op_type="Neg", input=["a"], output=["dead"]))
    assert digest(model) != digest(NET)


# Interfaces


def info(name: str, *shape: int | str | None, dtype: str = "float") -> ValueInfo:
    return ValueInfo(name, dtype, shape)


class Face:
    def __init__(
        self,
        inputs: list[ValueInfo],
        outputs: list[ValueInfo],
        optional: tuple[ValueInfo, ...] = (),
    ) -> None:
        self.inputs, self.outputs, self.optional = tuple(inputs), tuple(outputs), optional


NONE: frozenset[InterfaceChange] = frozenset()
NAMES: frozenset[InterfaceChange] = frozenset({"names"})
DTYPES: frozenset[InterfaceChange] = frozenset({"input-dtypes"})


def problem(before: Face, after: Face, allowed: frozenset[InterfaceChange] = NONE) -> str:
    return align(before, after, allowed).problem


def test_an_interface_aligns_with_itself() -> None:
    face = Face([info("x", 1, "n")], [info("y", 1), info("z")])
    assert align(face, face, NONE) == Alignment({"x": "x"}, {}, {"y": "y", "z": "z"})


def test_names_may_change_only_where_a_pass_is_allowed_to() -> None:
    before, after = Face([info("x", 1)], [info("y", 1)]), Face([info("i", 1)], [info("o", 1)])
    assert problem(before, after) == ("inputs ['x'] became ['i']; outputs ['y'] became ['o']")
    # Inputs map from the reference's names, outputs to them.
    assert align(before, after, NAMES) == Alignment({"x": "i"}, {}, {"o": "y"})


def test_names_that_change_places_are_a_change() -> None:
    before = Face([], [info("y", 1), info("z", 1)])
    after = Face([], [info("z", 1), info("y", 1)])
    assert problem(before, after) == "outputs ['y', 'z'] became ['z', 'y']"


@pytest.mark.parametrize("outputs", [["y"], ["y", "y"], ["y", "z", "z2"], []])
def test_lost_new_and_duplicated_outputs_are_a_change_whatever_is_allowed(
    outputs: list[str],
) -> None:
    before = Face([], [info("y", 1), info("z", 1)])
    after = Face([], [info(n, 1) for n in outputs])
    assert problem(before, after, NAMES) == f"outputs ['y', 'z'] became {outputs}"


def test_int64_inputs_may_become_int32_where_a_pass_is_allowed_to() -> None:
    before, after = Face([info("i", 1, dtype="int64")], []), Face([info("i", 1, dtype="int32")], [])
    assert problem(before, after) == "input 'i': int64 became int32"
    assert align(before, after, DTYPES) == Alignment({"i": "i"}, {"i": "int32"}, {})
    assert problem(after, before, DTYPES) == "input 'i': int32 became int64"


def test_an_output_never_changes_its_type() -> None:
    before, after = Face([], [info("y", dtype="int64")]), Face([], [info("y", dtype="int32")])
    assert problem(before, after, DTYPES) == "output 'y': int64 became int32"


Shape = tuple[int | str | None, ...] | None


@pytest.mark.parametrize(
    ("old", "new", "as_input", "as_output"),
    [
        ((1, 3), (1, 3), True, True),
        ((1, 3), (1, 4), False, False),
        ((1, 3), (1,), False, False),
        ((1,), (), False, False),
        ((1, 3), None, True, True),
        (None, (1, 3), True, True),
        ((1, 3), ("n", 3), True, True),
        (("n", 3), ("m", 3), True, True),
        (("n", 3), (None, 3), True, True),
        # Who fed any n now may feed only 1; who reads it merely knows more.
        (("n", 3), (1, 3), False, True),
        ((None, 3), (1, 3), False, True),
    ],
)
def test_shapes_may_become_vaguer_and_outputs_more_precise(
    old: Shape, new: Shape, as_input: bool, as_output: bool
) -> None:
    was, now = ValueInfo("v", "float", old), ValueInfo("v", "float", new)
    assert (problem(Face([was], []), Face([now], [])) == "") == as_input
    # Of outputs the run tells which declaration is right.
    outputs = align(Face([], [was]), Face([], [now]), NONE)
    assert (not outputs.problem and not outputs.disputed) == as_output


def test_weights_listed_among_the_inputs_need_not_be_fed() -> None:
    model = parsed(NET)
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2, 2])
    )
    assert facts(model).inputs == facts(NET).inputs == (info("x", 2, 2),)
    assert align(facts(NET), facts(model), NONE).problem == ""


# Operators that are not ONNX's

LAYERS = """
<ir_version: 8, opset_import: ["" : OPSET, "own" : 1]>
g (float[2,4] x) => (float[2,4] y) <float[4] s = {1, 1, 1, 1}>
{ a = FIRST y = LayerNormalization(a, s) }
"""


@pytest.mark.parametrize(
    ("opset", "first", "foreign"),
    [
        (17, "Relu(x)", {}),
        (16, "Relu(x)", {"ai.onnx::LayerNormalization": 1}),
        (17, "own.Fused(x)", {"own::Fused": 1}),
        (17, "Nonsense(x)", {"ai.onnx::Nonsense": 1}),
    ],
)
def test_foreign_operators(opset: int, first: str, foreign: dict[str, int]) -> None:
    text = LAYERS.replace("OPSET", str(opset)).replace("FIRST", first)
    assert facts(text).foreign == foreign
    assert structure.gained_operators(facts(text), facts(text)) == {}


def test_an_operator_is_not_foreign_if_the_model_defines_it() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[2] x) => (float[2] y) { y = own.Twice(x) }
    <domain: "own", opset_import: ["" : 17]> Twice (a) => (b) { b = Add(a, a) }
    """
    assert facts(text).foreign == {}


def test_gained_operators_are_told_by_domain() -> None:
    text = LAYERS.replace("OPSET", "16")
    plain = LAYERS.replace("OPSET", "17").replace("FIRST", "Relu(x)")
    gained = structure.gained_operators(facts(plain), facts(text.replace("FIRST", "own.Fused(x)")))
    assert gained == {"ai.onnx": {"LayerNormalization": 1}, "own": {"Fused": 1}}
    words = structure.portability("own", gained["own"])
    assert words.startswith("1 node of operators that ONNX does not define in the domain own")


# Metadata


def lost(before: str | ModelProto, after: str | ModelProto) -> dict[str, tuple[str, str]]:
    return lost_metadata(facts(before), facts(after))


def test_a_model_loses_nothing_against_itself() -> None:
    assert lost(NET, NET) == {}


def test_another_ir_version_is_told() -> None:
    assert lost(NET.replace("ir_version: 8", "ir_version: 3"), NET.replace("8", "4")) == {
        "ir_version": ("3", "4")
    }


def test_lost_training_information_is_told() -> None:
    model = parsed(NET)
    model.training_info.add()
    assert lost(model, NET) == {"training_info": ("1", "0")}


def test_lost_properties_are_told() -> None:
    model = parsed(NET)
    model.doc_string = "what it is for"
    onnx.helper.set_model_props(model, {"b": "2", "a": "1"})
    assert lost(model, NET) == {
        "metadata_props": ("a=1; b=2", "none"),
        "doc_string": ("what it is for", "none"),
    }


def test_properties_that_are_added_are_no_loss() -> None:
    model, more = parsed(NET), parsed(NET)
    onnx.helper.set_model_props(model, {"author": "someone"})
    onnx.helper.set_model_props(more, {"author": "someone", "optimized_by": "a tool"})
    assert lost(model, more) == lost(NET, more) == {}
    assert lost(more, model).keys() == {"metadata_props"}


def test_another_operator_set_is_told() -> None:
    assert lost(NET, NET.replace('"" : 17', '"" : 18')) == {
        "opset_import": ("ai.onnx 17", "ai.onnx 18")
    }


def test_an_import_that_nothing_uses_may_come_and_go() -> None:
    more = NET.replace('"" : 17', '"" : 17, "org.example" : 1')
    assert lost(NET, more) == lost(more, NET) == {}


def test_only_operator_sets_that_both_models_use_are_compared() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1, "com.microsoft" : 1]>
    net (float[2] x) => (float[2] y) { a = own.F(x)  y = ROOT(a) }"""
    before = text.replace("ROOT", "own.F")
    assert lost(before, text.replace("own.F", "Exp").replace("ROOT", "com.microsoft.Gelu")) == {}
    after = text.replace("ROOT", "com.microsoft.Gelu").replace('"own" : 1', '"own" : 2')
    assert lost(before, after).keys() == {"opset_import"}


FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 17, "local" : 1, "foreign" : 1]>
g (float[2] x) => (float[2] y)
{ t = local.twice(x)  y = ROOT(t) }
<domain: "local", opset_import: ["" : 17]>
twice (a) => (b) { b = Add(a, a) }
"""


@pytest.mark.parametrize("root", ["Relu", "foreign.root"])
def test_a_function_that_was_inlined_is_no_loss(root: str) -> None:
    model = parsed(FUNCTIONS.replace("ROOT", root))
    inlined = onnx.inliner.inline_local_functions(model)
    assert not inlined.functions
    assert lost(model, inlined) == {}


def test_a_function_that_is_lost_while_it_is_called_is_told() -> None:
    model = parsed(FUNCTIONS.replace("ROOT", "Relu"))
    broken = ModelProto()
    broken.CopyFrom(model)
    del broken.functions[:]
    assert lost(model, broken) == {"functions": ("local::twice", "none")}


# Facts


def test_operators_are_counted_inside_subgraphs_too() -> None:
    found = facts(BRANCHING)
    assert found.operators == {"Relu": 1, "If": 1, "Mul": 1, "Neg": 1, "Add": 1}
    assert found.nodes == 5


def test_dimensions_are_numbers_symbols_or_unknown() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2,n,?] a, int64[] b, float c) => (string s)
    { s = Constant <value_string = "x"> () }
    """
    assert facts(text).inputs[0] == info("a", 2, "n", None)
    assert facts(text).inputs[1].dtype == "int64"
    assert facts(text).outputs[0].dtype == "string"


def test_a_non_tensor_is_named_by_its_kind() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (seq(float[2]) s) => (float[2] y) <int64 i = {0}> { y = SequenceAt(s, i) }
    """
    assert facts(text).inputs == (ValueInfo("s", "sequence", None),)


def test_weights_must_be_listed_among_the_inputs_before_ir_version_4() -> None:
    listed = "net (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    text = f'<ir_version: 3, opset_import: ["" : 9]> {listed}'
    before, after = facts(text), facts(text.replace(", float[2] w)", ")"))
    lost = lost_metadata(before, after)
    assert lost == {"weights missing among the inputs": ("0", "1")}
    assert "the ONNX checker refuses the model" in structure.in_words(lost)
    assert lost_metadata(after, before) == {}
    new = facts(text.replace(", float[2] w)", ")").replace("ir_version: 3", "ir_version: 4"))
    assert lost_metadata(after, new).keys() == {"ir_version"}


def test_weights_among_the_inputs_may_be_replaced_from_ir_version_4_on() -> None:
    body = "net (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    old, new = (facts(f'<ir_version: {v}, opset_import: ["" : 9]> {body}') for v in (3, 4))
    lost = lost_metadata(old, new)
    assert lost == {"ir_version": ("3", "4"), "replaceable weights": ("0", "1")}
    assert "take them out of the inputs" in structure.in_words(lost)
    plain = facts(f'<ir_version: 4, opset_import: ["" : 9]> {body.replace(", float[2] w", "")}')
    assert lost_metadata(new, plain) == {}
    assert structure.in_words(lost_metadata(old, plain)) == "ir_version: 3 became 4"


def test_growth_tells_of_which_operators() -> None:
    more = NET.replace("[second]", "e = Exp(m)  f = Exp(e) [second]")
    words = "3 nodes became 5: +2 Exp"
    assert structure.growth(facts(NET), facts(more)) == words
    assert structure.growth(facts(more), facts(NET)) == "5 nodes became 3: -2 Exp"


def test_a_property_that_reads_like_a_list_is_one_property() -> None:
    body = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    text = '<ir_version: 8, opset_import: ["" : 17], metadata_props: [%s]>' + body
    before = facts(text % '"note": "a; b"')
    assert lost_metadata(before, facts(text % '"b": "1", "note": "a; b"')) == {}
    assert lost_metadata(before, facts(text % '"b": "", "note": "a"')).keys() == {"metadata_props"}
    # The text of both sides is equal, and the properties are others.
    other = facts(text % '"note": "a", "p": ""')
    assert lost_metadata(facts(text % '"note": "a; p="'), other).keys() == {"metadata_props"}
