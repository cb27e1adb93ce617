"""Pools and mutators: those that come with optvet keep the contract, and others are refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import NodeProto, helper
from onnx.reference import ReferenceEvaluator

from optvet import UsageError
from optvet.engine.discovery import Plugins
from optvet.engine.hunt.exhaustive import ExhaustiveDraws
from optvet.engine.hunt.make_candidates import complete
from optvet.engine.hunt.vocabulary import PoolChoice, gather, read_vocabulary
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.graph import candidate_of, join, types_of
from optvet.graph.compose import fit_to_shape
from optvet.graph.opsets import at_opset
from optvet.plugin import Artifact, Candidate, Fragment, Pass, Pattern, PoolRequest, Vocabulary
from optvet.testing import check_mutator, check_pool

PLUGINS = Plugins()
POOLS = [n for n in PLUGINS.pools() if not PLUGINS.pool(n).needs_argument]
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[n,3] x) => (float[n,2] y)
<float[3,2] w = {1, 0, 0, 1, 1, 1}, float[2] b = {0.5, -4}>
{ m = MatMul(x, w)  s = Add(m, b)  y = Relu(s) }
"""


@pytest.mark.long
@pytest.mark.parametrize("name", POOLS)
def test_every_pool_conforms(name: str) -> None:
    check_pool(PLUGINS.pool(name))


@pytest.mark.release
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers that overflow are wanted
@pytest.mark.parametrize("name", POOLS)
def test_every_mutator_takes_every_model_of_a_pool(name: str, tmp_path: Path) -> None:
    runtime, choice = PLUGINS.reference_runtime(), PoolChoice(PLUGINS.pool(name), None)
    with Sandbox(jobs=1, limits=Limits(writable=(str(tmp_path),))) as sandbox:
        (file,) = gather(
            [choice], [], runtime, runtime.options,
            seed=0, sandbox=sandbox, folder=tmp_path, version="",
        )  # fmt: skip
    vocabulary = read_vocabulary((file,)).vocabulary
    for number, fragment in enumerate(vocabulary.fragments):
        for mutator in PLUGINS.mutators():
            random = Random(number)
            found = mutator.mutate(candidate_of(fragment, random), vocabulary, random)
            assert found is None or isinstance(found, Candidate), (mutator.name, fragment.name)


@pytest.mark.parametrize("mutator", PLUGINS.mutators(), ids=lambda m: str(m.name))
def test_every_mutator_conforms(mutator: object) -> None:
    check_mutator(mutator)  # type: ignore[arg-type]


def test_windows_are_cut_out_of_models_with_the_values_of_a_run(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    check_pool(PLUGINS.pool("windows"), str(tmp_path))
    seen: list[dict[str, np.ndarray]] = []

    def values(model: bytes, feeds: object) -> dict[str, np.ndarray]:
        seen.append(dict(feeds))  # type: ignore[call-overload]
        return {"m": np.ones((1, 2), np.float32), "s": np.zeros((1, 2), np.float32)}

    request = PoolRequest(str(tmp_path / "model.onnx"), (), 0, 100, values)
    found = [f for f in PLUGINS.pool("windows").fragments(request) if isinstance(f, Fragment)]
    sequences = {tuple(n.op_type for n in f.nodes) for f in found}
    assert {("Relu",), ("Add", "Relu"), ("MatMul", "Add", "Relu")} <= sequences
    relu = next(f for f in found if [n.op_type for n in f.nodes] == ["Relu"])
    assert relu.inputs["s"].tolist() == [[0, 0]]
    assert seen[0]["x"].shape == (1, 3)


def test_windows_without_models_are_refused(tmp_path: Path) -> None:
    for argument, words in ((None, "needs models"), (str(tmp_path), "has no .onnx file")):
        request = PoolRequest(argument, (), 0, 9, lambda model, feeds: {})
        with pytest.raises(UsageError, match=words):
            list(PLUGINS.pool("windows").fragments(request))


def test_windows_of_models_none_of_which_can_be_used_are_refused_with_a_reason(
    tmp_path: Path,
) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    request = PoolRequest(str(tmp_path), (), 0, 9, lambda model, feeds: {})
    with pytest.raises(UsageError, match=r"no model of .* can be used; broken.onnx: DecodeError"):
        list(PLUGINS.pool("windows").fragments(request))


def test_a_checkout_gives_patterns_and_models_of_its_tests_and_nothing_of_it_is_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "rules.py").write_text(
        f'''
"""Reshape, Transpose and so on are not what this rule looks for."""
open({str(tmp_path / "touched")!r}, "w").close()

def pattern(op, x, w):
    return op.Relu(op.Add(op.MatMul(x, w), 1))

def test_squeeze():
    nodes = [make_node("Squeeze", ["x"], ["t"]), make_node("Unsqueeze", ["t"], ["y"])]

SLIM = """
    input  input 0 1 x
    Gemm   gemm  1 1 x y
    Softmax last 1 1 y z
"""
TEXT = """{MODEL}"""

class FusionGemm:
    def text(self):
        return """Gemm g 1 1 x y
            Softmax s 1 1 y z"""
''',
        "utf-8",
    )
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "fusion_test.cc").write_text(
        'TEST(Fusion, Gelu) {\n  AddNode("Div", {x});\n  AddNode("Erf", {y});\n}\n'
        'TEST(Fusion, Other) {\n  AddNode("Sqrt", {x});\n  AddNode("Erf", {y});\n}\n'
    )

    def values(model: bytes, feeds: object) -> dict[str, np.ndarray]:
        return {"m": np.ones((1, 2), np.float32), "s": np.zeros((1, 2), np.float32)}

    request = PoolRequest(str(tmp_path), (), 0, 200, values)
    found = list(PLUGINS.pool("upstream").fragments(request))
    patterns = {(p.operators, p.about) for p in found if isinstance(p, Pattern)}
    assert patterns == {
        (("MatMul", "Add", "Relu"), "rules"),
        (("Squeeze", "Unsqueeze"), "rules"),
        (("Gemm", "Softmax"), "rules"),
        (("Div", "Erf"), "fusion_test"),
        (("Sqrt", "Erf"), "fusion_test"),
    }
    windows = {tuple(n.op_type for n in f.nodes) for f in found if isinstance(f, Fragment)}
    assert ("MatMul", "Add", "Relu") in windows
    assert not (tmp_path / "touched").exists()


def test_a_folder_without_patterns_is_no_checkout(tmp_path: Path) -> None:
    for argument, words in ((None, "needs a checkout"), (str(tmp_path), "no pattern and no model")):
        request = PoolRequest(argument, (), 0, 9, lambda model, feeds: {})
        with pytest.raises(UsageError, match=words):
            list(PLUGINS.pool("upstream").fragments(request))


def hints(*names: str) -> list[tuple[str, ...]]:
    request = PoolRequest(None, [Pass(n) for n in names], 0, 99, lambda model, feeds: {})
    found = PLUGINS.pool("hints").fragments(request)
    return [item.operators for item in found if isinstance(item, Pattern)]


def test_hints_are_the_operators_in_names_of_passes_in_both_orders() -> None:
    found = hints("fuse_transpose_into_gemm")
    assert found == [("Transpose", "Gemm"), ("Gemm", "Transpose"), ("Transpose",), ("Gemm",)]


def test_hints_know_plurals_abbreviations_and_capitals() -> None:
    assert ("Concat", "Concat") in hints("fuse_consecutive_concats")
    assert ("BatchNormalization", "Conv") in hints("fuse_bn_into_conv")
    assert ("LayerNormalization", "LayerNormalization") in hints("LayerNormFusion")
    assert ("MatMul", "Add") in hints("MatMulAddFusion")


def mutated(name: str, text: str, vocabulary: Vocabulary, seed: int = 0) -> onnx.ModelProto:
    """A model that one mutator has changed, whole again."""
    mutator = next(m for m in PLUGINS.mutators() if m.name == name)
    model = onnx.parser.parse_model(text)
    feeds = {
        v.name: np.ones([d.dim_value or 1 for d in v.type.tensor_type.shape.dim], np.float32)
        for v in model.graph.input
    }
    made = mutator.mutate(Candidate(model, feeds), vocabulary, Random(seed))
    assert made is not None
    data = complete(made)
    assert data is not None
    onnx.checker.check_model(data, full_check=True)
    return onnx.load_from_string(data)


@pytest.mark.parametrize("name", ["branch-of-values", "wrap-in-loop"])
def test_values_that_a_mutator_adds_to_models_of_strings_are_strings(name: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y)
        <string[2] s = {"a", "b"}>
        { c = Identity(s)  d = Where(b, c, s)  n = Cast <to = 1> (d)  y = Add(x, n) }"""
    text = text.replace("{ c =", "{ b = IsNaN(x)  c =")
    mutator = next(m for m in PLUGINS.mutators() if m.name == name)
    added = set()
    for seed in range(20):
        feeds = {"x": np.ones(2, np.float32)}
        candidate = Candidate(onnx.parser.parse_model(text), feeds)
        assert mutator.mutate(candidate, Vocabulary([]), Random(seed)) is not None
        bodies = [a.g for n in candidate.model.graph.node for a in n.attribute if a.HasField("g")]
        for tensor in (t for g in (candidate.model.graph, *bodies) for t in g.initializer):
            added |= set(tensor.string_data)
    assert added & {b"0", b"1"}


def test_types_are_not_known_where_nothing_valid_is_inferred() -> None:
    model = onnx.parser.parse_model(MODEL)
    model.graph.output[0].CopyFrom(helper.make_empty_tensor_value_info("unseen"))
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    found = types_of(model)
    assert "unseen" not in found
    assert found["x"] == (onnx.TensorProto.FLOAT, (None, 3))


def test_a_name_that_the_optimizer_invented_is_given_to_a_value_of_the_model() -> None:
    made = mutated("invented-name", MODEL, Vocabulary([], invented=("17",)))
    names = {o for n in made.graph.node for o in n.output} | {
        t.name for t in made.graph.initializer
    }
    assert "17" in names
    assert [v.name for v in (*made.graph.input, *made.graph.output)] == ["x", "y"]


def test_values_are_held_in_sequences_and_optional_types_that_may_hold_nothing() -> None:
    found = set()
    for seed in range(40):
        made = mutated("hold-value", MODEL, Vocabulary([]), seed)
        ort = PLUGINS.runtime("onnxruntime")
        session = ort.load(Artifact("onnx", made.SerializeToString()), ort.options)
        outputs = session.run({"x": np.ones((1, 3), np.float32)})
        assert outputs["y"].shape == (1, 2)
        kinds = [o.type.WhichOneof("value") for o in made.graph.output]
        value: object = list(outputs.values())[-1]
        empty = value is None or (isinstance(value, list) and not value)
        found.add((kinds[-1], empty))
    assert found == {
        ("tensor_type", False),
        *((kind, empty) for kind in ("sequence_type", "optional_type") for empty in (True, False)),
    }


@pytest.mark.parametrize(
    "name",
    [
        *("wrap-in-loop", "spell-domain", "unused-weight", "extra-output", "symbolic-shapes"),
        "insert-idle",
    ],
)
def test_what_a_mutator_makes_of_a_plain_model_is_valid_and_computes_the_same(name: str) -> None:
    ort = PLUGINS.runtime("onnxruntime")
    feeds = {"x": np.ones((1, 3), np.float32), "unused_0": np.ones(2, np.float32)}
    texts = set()
    for seed in range(30):
        made = mutated(name, MODEL.replace("[n,", "[1,"), Vocabulary([]), seed)
        session = ort.load(Artifact("onnx", made.SerializeToString()), ort.options)
        names = {v.name for v in made.graph.input}
        outputs = session.run({n: v for n, v in feeds.items() if n in names})
        assert outputs["y"].tolist() == [[2.5, 0]]
        texts.add(onnx.printer.to_text(made))
    assert len(texts) > (name != "spell-domain")


def test_what_a_repeated_dimension_meets_has_another_size() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]> g (float[2,3] x) => (float[n,m] y)
        <int64[2] s = {2, 3}> { y = Expand(x, s) }"""
    mutator = next(m for m in PLUGINS.mutators() if m.name == "repeat-dimension")
    found = set()
    for seed in range(60):
        feeds = {"x": np.ones((2, 3), np.float32)}
        made = mutator.mutate(
            Candidate(onnx.parser.parse_model(text), feeds), Vocabulary([]), Random(seed)
        )
        assert made is not None
        (shape,) = made.model.graph.initializer
        found.add((made.feeds["x"].shape, *onnx.numpy_helper.to_array(shape).tolist()))
    sizes = [((1, 3), n, 3) for n in (0, 2, 3)] + [((2, 1), 2, n) for n in (0, 2, 3)]
    assert found == set(sizes)


def test_a_size_of_zero_is_one_also_in_shapes_that_could_copy_it() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[N,M] y) <int64[2] to = {2, 3}> { y = Reshape(x, to) }"""
    (mutator,) = [m for m in PLUGINS.mutators() if m.name == "change-size"]
    seen = set()
    for seed in range(40):
        candidate = Candidate(onnx.parser.parse_model(text), {"x": np.ones((2, 3), np.float32)})
        mutator.mutate(candidate, Vocabulary([]), Random(seed))
        (node,) = candidate.model.graph.node
        shape = onnx.numpy_helper.to_array(candidate.model.graph.initializer[0]).tolist()
        assert list(candidate.feeds["x"].shape) == shape
        seen.add((0 in shape, any(a.name == "allowzero" and a.i for a in node.attribute)))
    assert seen == {(False, False), (True, False), (True, True)}


def test_what_has_no_element_is_fed_in_other_sizes_than_constants_speak_of() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[N,M] y) <int64[2] to = {2, 3}> { y = Reshape(x, to) }"""
    (mutator,) = [m for m in PLUGINS.mutators() if m.name == "empty-and-open"]
    fed = set()
    for seed in range(40):
        candidate = Candidate(onnx.parser.parse_model(text), {"x": np.ones((2, 3), np.float32)})
        assert mutator.mutate(candidate, Vocabulary([]), Random(seed)) is not None
        shape = onnx.numpy_helper.to_array(candidate.model.graph.initializer[0]).tolist()
        fed.add((*candidate.feeds["x"].shape, *shape))
        dims = candidate.model.graph.input[0].type.tensor_type.shape.dim
        assert [d.HasField("dim_param") for d in dims] == [
            n != 0 for n in candidate.feeds["x"].shape
        ]
    assert fed == {(0, 4, 0, 3), (3, 0, 2, 0)}


def test_an_input_of_open_rank_is_fed_without_elements_too() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Relu(x) }'
    (mutator,) = [m for m in PLUGINS.mutators() if m.name == "empty-and-open"]
    for seed in range(10):
        candidate = Candidate(onnx.parser.parse_model(text), {"x": np.ones((2, 3), np.float32)})
        candidate.model.graph.input[0].type.tensor_type.ClearField("shape")
        assert mutator.mutate(candidate, Vocabulary([]), Random(seed)) is not None
        assert candidate.feeds["x"].size == 0
        assert not candidate.model.graph.input[0].type.tensor_type.HasField("shape")


def test_sizes_that_a_shape_copies_are_written_where_zero_becomes_a_size() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3,4] x) => (float[2,12] y) <int64[2] to = {0, -1}> { y = Reshape(x, to) }"""
    (mutator,) = [m for m in PLUGINS.mutators() if m.name == "change-size"]
    seen = set()
    for seed in range(60):
        feeds = {"x": np.ones((2, 3, 4), np.float32)}
        candidate = Candidate(onnx.parser.parse_model(text), feeds)
        mutator.mutate(candidate, Vocabulary([]), Random(seed))
        (node,) = candidate.model.graph.node
        if node.attribute:
            seen.add(tuple(onnx.numpy_helper.to_array(candidate.model.graph.initializer[0])))
    assert seen == {(0, 12), (2, 12)}


def test_a_size_of_zero_takes_an_operator_set_that_has_it() -> None:
    text = """<ir_version: 7, opset_import: ["" : 13]>
g (float[2,3] x) => (float[N,M] y) <int64[2] to = {2, 3}> { y = Reshape(x, to) }"""
    (mutator,) = [m for m in PLUGINS.mutators() if m.name == "empty-and-open"]
    candidate = Candidate(onnx.parser.parse_model(text), {"x": np.ones((2, 3), np.float32)})
    assert mutator.mutate(candidate, Vocabulary([]), Random(0)) is not None
    onnx.checker.check_model(candidate.model, full_check=True)
    assert [entry.version for entry in candidate.model.opset_import] == [14]
    assert [(a.name, a.i) for a in candidate.model.graph.node[0].attribute] == [("allowzero", 1)]


def test_what_is_put_between_and_returned_stands_before_all_readers_of_a_value() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y, float[2] z)
        { a = Neg(x)  y = Abs(a)  z = Exp(a) }"""
    made = [mutated("insert-returned", text, Vocabulary([]), seed) for seed in range(40)]
    found = {
        (" ".join(n.op_type for n in m.graph.node), tuple(m.graph.node[-1].input)) for m in made
    }
    kinds = ("Identity", "Neg", "Sigmoid")
    assert found == {
        *((f"{kind} Neg Abs Exp", ("a",)) for kind in kinds),
        *((f"Neg {kind} Abs Exp", ("returned_0",)) for kind in kinds),
    }
    assert all([o.name for o in m.graph.output] == ["y", "z", "returned_0"] for m in made)


def test_what_is_put_between_stands_where_exporters_write_it() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, float[2] u) => (float[2] y)
        { a = Exp(u)  y = Mul(x, a) }"""
    made = [mutated("insert-idle", text, Vocabulary([]), seed) for seed in range(200)]
    orders = {tuple(n.op_type for n in m.graph.node) for m in made}
    # Of x as early as x is there, of a right behind Exp; of u at the very beginning too.
    assert {("Dropout", "Exp", "Mul"), ("Exp", "Dropout", "Mul")} <= orders


def test_nodes_move_as_early_and_as_late_as_they_may_stand() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y)
        <bool c = {1}> { a = Neg(x)  b = Abs(x)  d = Exp(x)
          e = If(c) <then_branch = t () => (float[2] r) { r = Add(a, b) },
                     else_branch = f () => (float[2] s) { s = Identity(x) }>
          y = Add(d, e) }"""
    made = [mutated("order-nodes", text, Vocabulary([]), seed) for seed in range(60)]
    assert {" ".join(n.op_type for n in m.graph.node) for m in made} == {
        "Abs Neg Exp If Add",
        "Abs Exp Neg If Add",
        "Neg Exp Abs If Add",
        "Exp Neg Abs If Add",
        "Neg Abs If Exp Add",
    }


def test_numbers_of_attributes_stay_within_64_bits() -> None:
    text = """<ir_version: 8, opset_import: ["" : 15]> g (float[2,3] x) => (int64[n] y)
        { y = Shape<end = 9223372036854775807>(x) }"""
    made = [mutated("change-attribute", text, Vocabulary([]), seed) for seed in range(60)]
    ends = {a.i for m in made for a in m.graph.node[0].attribute}
    assert {2**63 - 2, 1 - 2**63} <= ends


def test_quantized_values_get_types_of_few_bits() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]> g (float[2] x) => (float[2] y)
        <float s = {0.1}, uint8 z = {3}>
        { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"""
    found = set()
    for seed in range(40):
        made = mutated("change-quantized-type", text, Vocabulary([]), seed)
        (zero,) = (t for t in made.graph.initializer if t.name == "z")
        found.add((zero.data_type, made.opset_import[0].version))
    assert {(onnx.TensorProto.INT8, 13), (onnx.TensorProto.INT4, 21)} <= found


def test_of_numbers_that_become_integers_either_is_sometimes_the_larger() -> None:
    mutator = next(m for m in PLUGINS.mutators() if m.name == "as-integers")
    text = """<ir_version: 8, opset_import: ["" : 13]> g (float[3] x, float[3] n) => (float[3] y)
        { y = Div(x, n) }"""
    feeds = {name: np.full(3, 0.5, np.float32) for name in ("x", "n")}
    made = mutator.mutate(
        Candidate(onnx.parser.parse_model(text), feeds), Vocabulary([]), Random(0)
    )
    assert made is not None
    x, n = made.feeds["x"], made.feeds["n"]
    assert {x.dtype.kind, n.dtype.kind} == {"i"}
    assert min(x) > 0
    assert min(n) > 0
    assert any(x > n)
    assert any(n > x)


class Loose:
    """A pool of one fragment that reads a value which nothing makes."""

    name = "loose"
    needs_argument = False

    def fragments(self, request: PoolRequest) -> Iterable[Fragment | Pattern]:
        node = helper.make_node("Add", ["x", "gone"], ["y"])
        return [Fragment("f", (node,), {"x": np.ones(1, np.float32)}, {}, {"ai.onnx": 17})]


class Restless:
    """A mutator with chance of its own."""

    name = "restless"
    weight = 1.0
    count = 0

    def mutate(self, candidate: Candidate, vocabulary: Vocabulary, random: Random) -> Candidate:
        Restless.count += 1
        candidate.model.doc_string = str(Restless.count)
        return candidate


class Idle(Restless):
    """A mutator that does nothing."""

    def mutate(self, candidate: Candidate, vocabulary: Vocabulary, random: Random) -> Candidate:
        return candidate


def test_a_fragment_that_reads_what_nothing_makes_is_refused() -> None:
    with pytest.raises(AssertionError, match="Add reads 'gone', which nothing makes"):
        check_pool(Loose())


def test_a_mutator_with_chance_of_its_own_or_without_effect_is_refused() -> None:
    with pytest.raises(AssertionError, match="another model for equal arguments"):
        check_mutator(Restless())
    with pytest.raises(AssertionError, match="changed none of"):
        check_mutator(Idle())


def test_what_is_neither_pool_nor_mutator_is_shown_as_broken() -> None:
    class Neither:
        name = "neither"

    found = Plugins([]).register("generator", Neither()).all()
    assert [e.problem for e in found] == [
        "does not provide mutate, weight; it must be a pool (fragments, needs_argument)"
        " or a mutator (mutate, weight)"
    ]


# What fragments become


def fragment(node: NodeProto, opset: int, **inputs: Sequence[float]) -> Fragment:
    values = {n: np.array(v, np.float32) for n, v in inputs.items()}
    first = next(iter(values.values()))
    return Fragment(node.op_type, (node,), values, {node.output[0]: first}, {"ai.onnx": opset})


def test_a_fragment_behind_another_reads_its_output() -> None:
    neg = fragment(helper.make_node("Neg", ["x"], ["y"]), 13, x=[1, 2])
    exp = fragment(helper.make_node("Exp", ["x"], ["y"]), 13, x=[3, 4])
    candidate = join(candidate_of(neg, Random(1)), exp, Random(1))
    assert candidate is not None
    (first, second) = candidate.model.graph.node
    assert second.input[0] == first.output[0]
    assert complete(candidate) is not None
    onnx.checker.check_model(candidate.model, full_check=True)


def test_an_attribute_that_became_an_input_is_a_constant_in_the_newer_form() -> None:
    old = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    constant, new = at_opset(old, 11, 13, {})
    assert (constant.op_type, list(new.attribute)) == ("Constant", [])
    assert new.input[1] == constant.output[0]
    (again,) = at_opset(new, 13, 11, {constant.output[0]: np.array([0])})
    assert helper.get_node_attr_value(again, "axes") == [0]
    assert list(again.input) == ["x"]


@pytest.mark.parametrize(
    "axes", [np.zeros((0,), int), np.zeros((1, 1), int), np.array([1j]), np.array([True])]
)
def test_an_input_that_is_no_attribute_is_left_out_of_the_older_form(axes: np.ndarray) -> None:
    squeeze = helper.make_node("Squeeze", ["x", "axes"], ["y"])
    (older,) = at_opset(squeeze, 13, 11, {"axes": axes})
    assert (list(older.input), list(older.attribute)) == (["x"], [])


def test_a_fragment_is_refitted_to_make_what_another_one_reads() -> None:
    turn = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])
    cube = np.zeros((2, 3, 4), np.float32)
    three = Fragment("Transpose", (turn,), {"x": cube}, {"y": cube}, {"ai.onnx": 13})
    made = fit_to_shape(three, (5, 6), Random(0))
    assert made is not None
    assert made.inputs["x"].shape == (6, 5)
    assert types_of(candidate_of(made, Random(0)).model)["y"][1] == (5, 6)
    constant = helper.make_node("Constant", [], ["y"], value_int=1)
    without = Fragment("Constant", (constant,), {}, {"y": np.array(1)}, {"ai.onnx": 13})
    assert fit_to_shape(without, (2,), Random(0)) is None


def test_outputs_are_declared_as_inferred_and_open_dimensions_stay_open() -> None:
    neg = fragment(helper.make_node("Neg", ["x"], ["y"]), 13, x=[1, 2])
    candidate = candidate_of(neg, Random(1))
    assert candidate.feeds.keys() == {"x"}
    candidate.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    candidate.feeds["x"] = np.ones(5, np.float32)
    data = complete(candidate)
    assert data is not None
    graph = onnx.load_from_string(data).graph
    (output,) = graph.output
    assert output.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert output.type.tensor_type.shape.dim[0].dim_param == "n"


def test_a_model_that_reads_an_input_without_a_value_is_none() -> None:
    neg = fragment(helper.make_node("Neg", ["x"], ["y"]), 13, x=[1, 2])
    candidate = candidate_of(neg, Random(1))
    candidate.feeds.clear()
    assert complete(candidate) is None


def test_large_constants_meet_small_inputs_whose_products_are_ordinary() -> None:
    mutator = next(m for m in PLUGINS.mutators() if m.name == "opposite-magnitudes")
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] x) => (float[2,2] y)
        <float k = {2}, float q = {3}> { s = Mul(x, k)  y = Mul(s, q) }"""
    ratios = set()
    for number in range(8):
        candidate = Candidate(onnx.parser.parse_model(text), {"x": np.ones((2, 2), np.float32)})
        if mutator.mutate(candidate, Vocabulary([]), ExhaustiveDraws(number, "")) is None:
            continue
        k, q = (onnx.numpy_helper.to_array(t) for t in candidate.model.graph.initializer)
        assert (candidate.feeds["x"] * k == 2).all()
        with np.errstate(all="ignore"):
            ratios.add(float(k * q))
    assert ratios == {0.0, float("inf")}


def every_edit(name: str, text: str, feeds: dict[str, np.ndarray]) -> list[onnx.ModelProto]:
    """What a mutator makes of a model, driven through all that it can draw."""
    mutator = next(m for m in PLUGINS.mutators() if m.name == name)
    made: list[onnx.ModelProto] = []
    for number in range(1000):
        draws = ExhaustiveDraws(number, "")
        candidate = Candidate(onnx.parser.parse_model(text), dict(feeds))
        changed = mutator.mutate(candidate, Vocabulary([]), draws)
        if draws.rest:
            return made
        assert changed is not None
        made.append(changed.model)
    raise AssertionError("it has no end")


def test_each_element_of_a_small_constant_is_changed_besides_all_of_it() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,6] x) => (float[3,4] y)
        <int64[2] s = {3, 4}> { y = Reshape(x, s) }"""
    made = every_edit("change-constant", text, {"x": np.ones((2, 6), np.float32)})
    values = [tuple(onnx.numpy_helper.to_array(m.graph.initializer[0])) for m in made]
    assert {(0, 4), (3, 0), (-1, 4), (3, -1), (4, 3), (0, 0), (-3, -4)} <= set(values)


def test_parts_of_newer_operator_sets_are_tried_at_the_first_one_that_has_them() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]>
        g (float[2,3] x) => (float[2,5] y, int64[2] d)
        <int64[4] p = {0, 1, 0, 1}> { y = Pad(x, p)  d = Shape(x) }"""
    made = every_edit("newer-part", text, {"x": np.ones((2, 3), np.float32)})
    parts = set()
    for model in made:
        pad, shape = model.graph.node
        version = model.opset_import[0].version
        parts |= {(version, a.name, a.i) for a in shape.attribute}
        weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        if len(pad.input) > 2:
            parts.add((version, "axes", tuple(weights[pad.input[3]].ravel())))
    assert {(15, "start", 1), (15, "start", -1), (15, "end", 1)} <= parts
    assert {(18, "axes", (0, 1)), (18, "axes", (1, 0)), (18, "axes", (1,))} <= parts


RESPELLED = {
    "Reshape": ("""g (float[2,3,4] x) => (float[2,12] y) <int64[2] s = {2, 12}>
        { y = Reshape(x, s) }""", 17, {"[0, 12]", "[0, -1]", "[-1, 12]", "[2, -1]"}),
    "Expand": ("""g (float[2,1] x) => (float[2,3] y) <int64[2] s = {2, 3}>
        { y = Expand(x, s) }""", 17, {"[1, 3]", "[3]"}),
    "Slice": ("""g (float[4,6] x) => (float[2,6] y) <int64[2] s = {1, 0}, int64[2] e = {3, 6}>
        { y = Slice(x, s, e) }""", 17, {"[-3, 0]", "[-1, 6]", "[3, 9223372036854775807]",
        "[1, 1] [1, 0] [6, 3] [0, 1]"}),
    "Pad": ("""g (float[2,3] x) => (float[2,5] y) <int64[4] p = {0, 1, 0, 1}>
        { y = Pad(x, p) }""", 13, {"[1, 0] [1, 0, 1, 0]", "[1] [1, 1]", "[-2, -1] [0, 1, 0, 1]"}),
    "ReduceSum": ("""g (float[2,3,4] x) => (float[1,1,4] y) <int64[2] a = {0, 1}>
        { y = ReduceSum(x, a) }""", 17, {"[-3, -2]", "[-3, 1]", "[1, 0]"}),
    "Squeeze": ("""g (float[1,3,1] x) => (float[3] y) { y = Squeeze(x) }""", 17, {"[0, 2]"}),
    "Transpose": ("""g (float[2,3] x) => (float[3,2] y) { y = Transpose(x) }""", 17,
        {"perm=[1, 0]"}),
    "Softmax": ("""g (float[2,3] x) => (float[2,3] y) { y = Softmax <axis = 1> (x) }""", 17,
        {"axis=-1"}),
    "Split": ("""g (float[4,3] x) => (float[2,3] y, float[2,3] z)
        { y, z = Split <axis = 0> (x) }""", 17, {"[2, 2]"}),
    "Conv": ("""g (float[1,2,5] x) => (float[1,1,5] y) <float[1,2,3] w = {1, 2, 3, 4, 5, 6}>
        { y = Conv <kernel_shape = [3], pads = [1, 1]> (x, w) }""", 17,
        {"auto_pad=b'SAME_UPPER'", "auto_pad=b'SAME_LOWER'", "strides=[1]", "dilations=[1]"}),
    "Einsum": ("""g (float[2,3] x) => (float[3,2] y) { y = Einsum <equation = "ij->ji"> (x) }""",
        17, {"equation=b'IJ->JI'", "equation=b'ij -> ji'"}),
    "Gather": ("""g (float[4,2] x) => (float[2,2] y) <int64[2] i = {0, 3}>
        { y = Gather(x, i) }""", 17, {"[-4, -1]"}),
    "Shape": ("""g (float[4,2] x) => (int64[2] y) { y = Shape(x) }""", 13,
        {"start=0", "start=-2", "end=2", "end=3"}),
}  # fmt: skip


def test_each_letter_of_an_equation_is_replaced_by_each_other_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] x) => (float[N,M] y)
        { y = Einsum<equation = "ij->ji">(x) }"""
    made = every_edit("equation-letters", text, {"x": np.ones((2, 2), np.float32)})
    equations = {m.graph.node[0].attribute[0].s.decode() for m in made}
    assert equations == {"jj->ji", "ii->ji", "ij->ii", "ij->jj", "ii->ii", "jj->jj"}


def test_an_equation_without_letters_is_left_as_it_is() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, float[2] z) => (float[2] y)
        { y = Einsum<equation = "...,...->...">(x, z) }"""
    mutator = next(m for m in PLUGINS.mutators() if m.name == "equation-letters")
    candidate = Candidate(onnx.parser.parse_model(text), {})
    assert mutator.mutate(candidate, Vocabulary([]), Random(0)) is None


def test_lists_of_an_operation_that_do_not_fit_each_other_are_left_as_they_are() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4,6] x) => (float[N,M] y)
        <int64[1] s = {1}, int64[2] e = {3, 6}> { y = Slice(x, s, e) }"""
    made = every_edit("respell", text, {"x": np.ones((4, 6), np.float32)})
    assert all([*model.graph.node[0].input[:3]] == ["x", "s", "e"] for model in made)


@pytest.mark.parametrize("operator", RESPELLED)
def test_an_operation_in_other_words_is_valid_and_computes_the_same(operator: str) -> None:
    graph, version, expected = RESPELLED[operator]
    text = f'<ir_version: 8, opset_import: ["" : {version}]> {graph}'
    dims = onnx.parser.parse_model(text).graph.input[0].type.tensor_type.shape.dim
    x = np.arange(np.prod([d.dim_value for d in dims]), dtype=np.float32)
    feeds = {"x": x.reshape([d.dim_value for d in dims])}
    right = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, feeds)
    found = set()
    for made in every_edit("respell", text, feeds):
        onnx.checker.check_model(made, full_check=True)
        outputs = ReferenceEvaluator(made).run(None, feeds)
        assert all(map(np.array_equal, outputs, right))
        node, weights = made.graph.node[0], {t.name: t for t in made.graph.initializer}
        values = (onnx.numpy_helper.to_array(weights[n]) for n in node.input if "added" in n)
        found.add(" ".join(str(v.tolist()) for v in reversed([*values])))
        known = {f"{a.name}={onnx.helper.get_attribute_value(a)}" for a in node.attribute}
        found |= known
    assert expected <= found
