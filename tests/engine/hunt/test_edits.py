"""Seeds and single edits: small models that still fire, and every edit of each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto
from tests.engine.hunt.small import plugins_with

from optvet.engine.discovery import Plugins
from optvet.engine.hunt.exhaustive import ExhaustiveDraws
from optvet.engine.hunt.expected import outputs_of
from optvet.engine.hunt.make_candidates import (
    CandidateMaker,
    CandidateRecipe,
    MadeCandidate,
    Spent,
    complete,
)
from optvet.engine.hunt.model_batch import digests_of_edit
from optvet.engine.hunt.quick_look import QUICK
from optvet.engine.hunt.quick_oracle import Examined, examine
from optvet.engine.hunt.resolve_optimizer import resolve_optimizer
from optvet.engine.hunt.rewrites import rewrite_of
from optvet.engine.hunt.round_plan import learned_weights, plan_round
from optvet.engine.hunt.shrink import shrink
from optvet.engine.hunt.state import CorpusEntry, HuntState, Sign
from optvet.engine.hunt.suspicions import CONTRIVED, Rewrite, SuspicionKey
from optvet.engine.hunt.vocabulary import Stock
from optvet.engine.judge.sample import judge_sample
from optvet.graph import candidate_of
from optvet.graph.features import placed_features
from optvet.graph.interface import interface_of
from optvet.plugin import Artifact, Candidate, Fragment, PoolRequest, Vocabulary
from optvet.spec.hunt import HuntRequest
from optvet.spec.records.hunt import HuntFinding
from optvet.spec.symptoms import Symptom

PLUGINS = Plugins()
CHAIN = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, float[2,3] u) => (float[2,3] y, float[2,3] z)
<float[3] w = {1, 2, 3}>
{ a = Neg(x)  b = Add(a, w)  c = Relu(b)  d = Exp(c)  y = Sub(d, u)  z = Tanh(u) }
"""


def edits(change: object) -> list[object]:
    """What a function of a generator gives for every number until each has left a rest."""
    found = []
    for number in range(64):
        draws = ExhaustiveDraws(number, "seed")
        made = change(draws)  # type: ignore[operator]
        if not draws.rest:
            found.append(made)
    return found


def test_an_odometer_draws_every_variant_once() -> None:
    def change(random: Random) -> tuple[object, ...]:
        first = random.choice(["a", "b", "c"])
        return (first, random.randrange(2)) if first == "a" else (first, random.random() < 0.5)

    expected = {("a", 0), ("a", 1), *((n, t) for n in "bc" for t in (True, False))}
    found = edits(change)
    assert len(found) == 6
    assert set(found) == expected


def test_the_first_draws_of_an_odometer_differ_in_everything() -> None:
    found = edits(lambda r: [r.randrange(4), r.randrange(4), r.randrange(4)])
    assert len(set(map(str, found))) == 64
    assert all(len({drawn[place] for drawn in found[:8]}) >= 3 for place in range(3))  # type: ignore[index]


def test_an_odometer_counts_equal_choices_once_and_pairs_in_both_orders() -> None:
    assert sorted(edits(lambda r: r.choice([0, 1, 1, 0.0]))) == [0, 0.0, 1]  # type: ignore[type-var]
    assert len(edits(lambda r: tuple(r.sample(range(3), 2)))) == 6


def test_edits_of_a_mutator_are_different_models() -> None:
    mutator = next(m for m in PLUGINS.mutators() if m.name == "swap-inputs")
    found = set()
    for number in range(40):
        candidate = Candidate(onnx.parser.parse_model(CHAIN), {})
        draws = ExhaustiveDraws(number, "seed")
        mutator.mutate(candidate, Vocabulary(()), draws)
        if not draws.rest:
            found.add(candidate.model.SerializeToString())
    assert len(found) == 2  # Add and Sub


@dataclass
class TwoWays:
    """A mutator whose first draw decides whether there is one variant or there are four."""

    name: str = "two-ways"
    weight: float = 1.0

    def mutate(self, candidate: Candidate, vocabulary: Vocabulary, random: Random) -> Candidate:
        short = random.choice([True, False])
        candidate.model.doc_string = "short" if short else f"long {random.randrange(4)}"
        return candidate


def test_the_end_of_one_way_of_a_mutator_is_not_the_end_of_the_others() -> None:
    data = onnx.parser.parse_model(CHAIN).SerializeToString()
    feeds = {n: np.zeros((2, 3), np.float32) for n in ("x", "u")}
    maker = CandidateMaker(Stock(Vocabulary(()), {}), [TwoWays()])
    recipes = [
        CandidateRecipe("edit", 0, variant, 0, model=data, feeds=feeds) for variant in range(9)
    ]
    made = [maker.make(recipe, Random(0)) for recipe in recipes[:8]]
    found = {ModelProto.FromString(each.model).doc_string for each in made if each is not None}
    assert found == {"short", *(f"long {number}" for number in range(4))}
    with pytest.raises(Spent):
        maker.make(recipes[8], Random(0))


def test_models_of_practice_are_edited_before_contrived_ones() -> None:
    state, rewrite = HuntState(), Rewrite("drop_relu", ("Relu",))
    data = onnx.parser.parse_model(CHAIN).SerializeToString()
    ways = (CONTRIVED, "Neg Add Relu")
    state.entries += [CorpusEntry(data, {}, (rewrite,), way, (way,)) for way in ways]
    recipes = plan_round(state, 400, seed=0, fragments=0, patterns=(), mutators={"m": 100.0})
    edited = Counter(r.invented[0] for r in recipes if r.kind == "edit")
    assert edited["Neg Add Relu"] > 4 * edited[CONTRIVED] > 0


def test_the_simplest_model_that_shows_a_rewrite_is_edited_most() -> None:
    state, rewrite = HuntState(), Rewrite("drop_relu", ("Relu",))
    chain, short = onnx.parser.parse_model(CHAIN), onnx.parser.parse_model(CHAIN)
    del short.graph.node[-1]
    models = {"chain": (chain, 1), "constant": (short, 0), "short": (short, 1)}
    for word, (model, count) in models.items():
        feeds = {"x": np.zeros(2, np.float32)} if count else {}
        entry = CorpusEntry(model.SerializeToString(), feeds, (rewrite,), word, (word,))
        state.entries.append(entry)
    recipes = plan_round(state, 400, seed=0, fragments=0, patterns=(), mutators={"m": 100.0})
    edited = Counter(r.invented[0] for r in recipes if r.kind == "edit")
    assert edited["short"] > 4 * edited["chain"] > 0
    assert edited["short"] > 4 * edited["constant"] > 0


def test_a_pass_of_which_nothing_looked_wrong_is_edited_less() -> None:
    state = HuntState()
    data = onnx.parser.parse_model(CHAIN).SerializeToString()
    for index, name in enumerate(("quiet", "wrong")):
        state.entries.append(CorpusEntry(data, {}, (Rewrite(name, ("Relu",)),), "Relu", (name,)))
        state.edited[index] = [1200]
    state.signs[SuspicionKey(("wrong",), Symptom.WRONG_OUTPUT, "values")] = Sign()
    recipes = plan_round(state, 400, seed=0, fragments=0, patterns=(), mutators={"m": 1000.0})
    edited = Counter(r.invented[0] for r in recipes if r.kind == "edit")
    assert edited["wrong"] > 2 * edited["quiet"] > 0


def test_an_edit_that_leaves_another_order_of_nodes_is_another_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] x) => (float[2,2] y)
        { %s }"""
    early = "w = Constant<value = float[2] {1, 2}>() a = Neg(x) y = Add(a, w)"
    late = "a = Neg(x) w = Constant<value = float[2] {1, 2}>() y = Add(a, w)"
    digests = set()
    for nodes in (early, late):
        model = onnx.parser.parse_model(text % nodes)
        now = placed_features(model)
        recipe = CandidateRecipe("edit")
        operators = [n.op_type for n in model.graph.node]
        digests.add(digests_of_edit(frozenset(), recipe, frozenset(), now, operators))
    assert len(digests) == 2


@pytest.fixture
def relu() -> MadeCandidate:
    model = onnx.parser.parse_model(CHAIN)
    feeds = {n: np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3) for n in ("x", "u")}
    data = complete(Candidate(model, feeds))
    assert data is not None
    return MadeCandidate(data, feeds, ())


def test_a_seed_is_the_part_of_a_model_that_a_pass_changes(
    relu: MadeCandidate, tmp_path: Path
) -> None:
    request = HuntRequest(optimizer="planted", out=tmp_path)
    subject = resolve_optimizer(request, plugins_with("drop_relu", "keep_01"))
    rewrite = rewrite_of(subject, relu.model, "drop_relu")
    assert rewrite == ("drop_relu", ("Relu",), ("Identity",))
    small = shrink(
        relu,
        subject.reference,
        lambda made: rewrite_of(subject, made.model, "drop_relu") == rewrite,
    )
    graph = ModelProto.FromString(small.model).graph
    assert [n.op_type for n in graph.node] == ["Relu"]
    assert list(small.feeds) == ["b"]
    assert [o.name for o in graph.output] == ["c"]
    session = subject.reference.runtime.load(
        Artifact("onnx", small.model), subject.reference.options
    )
    (made,) = dict(session.run(small.feeds)).values()
    x, weight = relu.feeds["x"], np.array([1, 2, 3], np.float32)
    assert np.allclose(made, np.maximum(weight - x, 0))


def found_in(tmp_path: Path, optimizer: str, text: str, feeds: dict[str, np.ndarray]) -> Examined:
    """What the quick oracle says of a model and the passes of an optimizer."""
    subject = resolve_optimizer(
        HuntRequest(optimizer=optimizer, out=tmp_path), plugins_with("drop_relu")
    )
    data = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    return examine(
        subject, data.SerializeToString(), feeds, lambda *step: None, frozenset(), Random(0)
    )


def test_what_a_sequence_holds_is_compared(tmp_path: Path) -> None:
    text = """g (float[2] x) => (seq(float[2]) s)
        { r = Relu(x)  s = SequenceConstruct(r, x) }"""
    found = found_in(tmp_path, "planted", text, {"x": np.array([-1, 1], np.float32)})
    assert [(s.passes, s.symptom) for s in found.suspicions] == [(("drop_relu",), "wrong-output")]


@pytest.mark.parametrize("kind", ["optional(float[2])", "optional(seq(float[2]))"])
def test_what_an_optional_value_holds_is_compared(tmp_path: Path, kind: str) -> None:
    held = "q = SequenceConstruct(r)  s = Optional(q)" if "seq" in kind else "s = Optional(r)"
    text = f"g (float[2] x) => ({kind} s) {{ r = Relu(x)  {held} }}"
    found = found_in(tmp_path, "planted", text, {"x": np.array([-1, 1], np.float32)})
    assert [(s.passes, s.symptom) for s in found.suspicions] == [(("drop_relu",), "wrong-output")]


@dataclass(frozen=True)
class Giving:
    """A session that gives one output."""

    value: object

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": self.value}  # type: ignore[dict-item]


def test_an_optional_value_that_appears_or_is_gone_is_a_difference() -> None:
    value = np.ones(2, np.float32)
    (there, same, none) = (outputs_of(Giving(v), {}) for v in (value, value.copy(), None))
    assert judge_sample(there, same, setting=QUICK).state == "same"
    assert judge_sample(none, outputs_of(Giving(None), {}), setting=QUICK).state == "same"
    for expected, given in ((there, none), (none, there)):
        verdict = judge_sample(expected, given, setting=QUICK)
        assert verdict.symptom == "wrong-output"
        assert verdict.faults[0].structural


def test_an_output_that_becomes_optional_is_another_interface() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (%s y) { y = %s (x) }'
    kinds = (
        ("float[2]", "Identity"),
        ("seq(float[2])", "SequenceConstruct"),
        ("optional(float[2])", "Optional"),
        ("optional(seq(float[2]))", "Optional"),
    )
    models = [onnx.parser.parse_model(text % pair) for pair in kinds]
    assert len({interface_of(m) for m in models}) == 4


def test_a_model_shrinks_whose_sequence_is_read(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (seq(float[2]) s, int64 n, float[2] z)
        { r = Relu(x)  s = SequenceConstruct(r, x)  n = SequenceLength(s)  z = Relu(r) }"""
    subject = resolve_optimizer(
        HuntRequest(optimizer="planted", out=tmp_path), plugins_with("drop_relu")
    )
    feeds = {"x": np.ones(2, np.float32)}
    data = complete(Candidate(onnx.parser.parse_model(text), feeds))
    assert data is not None
    small = shrink(MadeCandidate(data, feeds, ()), subject.reference, lambda made: True)
    assert len(ModelProto.FromString(small.model).graph.node) == 1


def test_two_draws_that_become_one_are_suspected(tmp_path: Path) -> None:
    text = """g (float[8] x) => (float[8] a, float[8] b)
        { r = RandomUniformLike(x)  s = RandomUniformLike(x)  a = Abs(r)  b = Neg(s) }"""
    found = found_in(tmp_path, "onnxoptimizer", text, {"x": np.ones(8, np.float32)})
    blamed = {s.passes for s in found.suspicions if s.symptom == "wrong-output"}
    assert ("eliminate_common_subexpression",) in blamed


def test_draws_that_stay_draws_are_not_suspected(tmp_path: Path) -> None:
    text = """g (float[8] x) => (float[8] a, float[8] b)
        { r = RandomUniformLike(x)  i = Identity(r)  a = Abs(i)  b = Neg(r) }"""
    found = found_in(tmp_path, "onnxoptimizer", text, {"x": np.ones(8, np.float32)})
    assert found.valid
    assert "wrong-output" not in {s.symptom for s in found.suspicions}


def test_of_a_set_of_passes_those_are_named_without_which_the_model_is_right(
    tmp_path: Path,
) -> None:
    # Two faults of ONNX Runtime in one model, neither of which hides the other.
    text = """g (int64[2] n, int64[2] m, float[64] x) => (int64[2] y, float[64] z)
        <int64 one = {1}, float ratio = {0.5}, bool training = {1}>
        { d = Div(one, n)  y = Mul(d, m)  v = Abs(x)  w = Dropout(v, ratio, training)
          z = Neg(w) }"""
    feeds: dict[str, np.ndarray] = {
        "n": np.array([2, 3], np.int64),
        "m": np.array([4, 5], np.int64),
        "x": np.ones(64, np.float32),
    }
    found = found_in(tmp_path, "onnxruntime", text, feeds)
    blamed = {s.passes for s in found.suspicions}
    assert blamed == {("DivMulFusion",), ("EliminateDropout",)}


def test_a_pass_that_is_wrong_hides_no_pair_of_others(tmp_path: Path) -> None:
    # The second pass is right alone; twice, it gives its weights the same names again.
    plugins = plugins_with("drop_relu", "benign_reassociate")
    subject = resolve_optimizer(HuntRequest(optimizer="planted", out=tmp_path), plugins)
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {1, 2, 3, 4}>
        { r = Relu(x)  y = MatMul(r, w) }"""
    data = onnx.parser.parse_model(text).SerializeToString()
    feeds = {"x": np.array([[-1, 2]], np.float32)}
    found = examine(subject, data, feeds, lambda *step: None, frozenset(), Random(0))
    blamed = {s.passes for s in found.suspicions}
    assert ("drop_relu",) in blamed
    assert ("benign_reassociate", "benign_reassociate") in blamed


def test_every_pattern_of_the_pool_of_fusions_is_a_valid_model_with_its_weights() -> None:
    request = PoolRequest(None, (), 0, 9999, lambda model, feeds: {})
    found = PLUGINS.pool("fusions").fragments(request)
    fragments = [f for f in found if isinstance(f, Fragment)]
    assert len(fragments) > 150
    equal = [f for f in fragments if "-equal" in f.name]
    assert [f.name for f in fragments if f not in equal and not is_valid(f)] == []
    # Constants of some speak of sizes that they had.
    assert sum(map(is_valid, equal)) > 0.7 * len(equal)
    (gemm,) = (f for f in fragments if f.name.endswith("-Gemm-Gemm"))
    assert gemm.weights == {"W", "B", "V", "C"}
    roles = [set(candidate_of(gemm, Random(n)).feeds) for n in range(20)]
    assert roles.count({"x"}) > 10


def is_valid(fragment: Fragment) -> bool:
    """Whether one of a few models of it passes the checker."""
    for number in range(4):
        data = complete(candidate_of(fragment, Random(number)))
        try:
            onnx.checker.check_model(data or b"", full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        return True
    return False


def test_what_a_mutator_found_changes_how_often_it_is_tried() -> None:
    def finding(mutator: str, *contrived: str) -> HuntFinding:
        return HuntFinding(
            fingerprint=mutator,
            symptom=Symptom.WRONG_OUTPUT,
            severity="fault",
            culprit=["fuse"],
            message="",
            nodes=1,
            bundle="",
            candidate=0,
            mutators=[mutator],
            contrived=list(contrived),
        )

    weights = {"swap-inputs": 1.0, "make-function": 1.0, "drop-node": 0.5}
    found = [finding("swap-inputs"), *[finding("make-function", "a namesake")] * 3]
    swap, function, drop = learned_weights(HuntState(findings=found), weights)
    assert swap > 1.0 > function > 0
    assert drop == 0.5
    tried = HuntState(findings=found, edits=Counter({"swap-inputs": 100, "drop-node": 4000}))
    assert learned_weights(tried, weights)[0] > 1.0
    assert 0 < learned_weights(tried, weights)[2] < 0.25
