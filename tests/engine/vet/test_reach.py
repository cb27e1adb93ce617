"""Damage that inputs of a distribution hardly ever reach, and rewrites that none reaches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper
from pydantic import BaseModel
from tests.data import DATA
from tests.preload import TRIALS

from optvet.engine.discovery import Plugins
from optvet.engine.models.opening import open_model
from optvet.engine.vet.run import vet_model
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.spec.records import VetResult
from optvet.spec.request import VetRequest
from optvet.spec.types import Artifact, Pass, Traits
from optvet.testing import PlantedOptions

PRELOAD = (*TRIALS, __name__)


def constants(model: ModelProto) -> dict[str, onnx.TensorProto]:
    return {t.name: t for t in model.graph.initializer}


def change(model: ModelProto, name: str, how: Callable[[np.ndarray], np.ndarray]) -> None:
    tensor = constants(model)[name]
    tensor.CopyFrom(numpy_helper.from_array(how(numpy_helper.to_array(tensor)), name))


def stored(model: ModelProto) -> str:
    """The name of the constant with most elements: points, a table."""
    return str(max(model.graph.initializer, key=lambda t: int(np.prod(t.dims))).name)


def exchanged(rows: np.ndarray) -> np.ndarray:
    order = np.arange(len(rows))
    order[[1, -2]] = order[[-2, 1]]
    return rows[order]


def attributes(model: ModelProto) -> dict[str, onnx.AttributeProto]:
    return {a.name: a for node in model.graph.node for a in node.attribute}


def move_node(model: ModelProto) -> None:
    """One threshold of the first tree, halfway to that of another node of its feature."""
    values, feature = (attributes(model)[n] for n in ("nodes_values", "nodes_featureids"))
    inner = [i for i, m in enumerate(attributes(model)["nodes_modes"].strings) if m != b"LEAF"]
    own = inner[2]
    others = [values.floats[i] for i in inner if feature.ints[i] == feature.ints[own]]
    span = max(others) - min(others)
    values.floats[own] += span / 10 or 0.1


def raise_leaf(model: ModelProto) -> None:
    of_tree = attributes(model)
    if "target_weights" in of_tree:
        of_tree["target_weights"].floats[-1] *= 2
        return
    weights = numpy_helper.to_array(of_tree["leaf_weights"].t).copy()
    weights[-1] *= 2
    of_tree["leaf_weights"].t.CopyFrom(numpy_helper.from_array(weights))


def swap_branches(model: ModelProto) -> None:
    (node,) = (n for n in model.graph.node if n.op_type == "If")
    for a in node.attribute:
        a.name = {"then_branch": "else_branch", "else_branch": "then_branch"}[a.name]


def swap_words(model: ModelProto) -> None:
    words = attributes(model)["pool_strings"].strings
    words[0], words[-1] = words[-1], words[0]


def change_branch(model: ModelProto) -> None:
    attributes(model)["then_branch"].g.node[0].op_type = "Abs"


def scale_last(rows: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(rows))[:, None] < len(rows) - 1, rows, 2 * rows)


def leave_out_zeros(model: ModelProto) -> None:
    attributes(model)["post_transform"].s = b"SOFTMAX_ZERO"


def drop_identity(model: ModelProto) -> None:
    del model.graph.node[1]
    model.graph.node[0].output[0] = "y"


DAMAGES: Mapping[str, Callable[[ModelProto], None]] = {
    "scale_points": lambda m: change(m, stored(m), lambda rows: rows * np.float32(1.2)),
    "exchange_rows": lambda m: change(m, stored(m), exchanged),
    "move_bound": lambda m: change(m, "high", lambda bound: bound * np.float32(1.05)),
    "move_node": move_node,
    "raise_leaf": raise_leaf,
    "move_epsilon": lambda m: change(m, "epsilon", lambda e: e * np.float32(100)),
    "swap_branches": swap_branches,
    "swap_words": swap_words,
    "change_branch": change_branch,
    "scale_last": lambda m: change(m, stored(m), scale_last),
    "leave_out_zeros": leave_out_zeros,
    "drop_identity": drop_identity,
    "keep": lambda m: None,
}


class Damaging:
    """An optimizer whose one pass does one of the damages."""

    name = "damaging"
    preload: Sequence[str] = ("onnx",)
    options: BaseModel = PlantedOptions()
    traits = Traits()

    def version(self) -> str:
        return "1"

    def passes(self) -> Sequence[Pass]:
        return [Pass(name, "damage") for name in DAMAGES]

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        return {"default": tuple(DAMAGES)}

    def apply(self, source: Artifact, passes: Sequence[str], options: BaseModel) -> Artifact:
        model = onnx.load_from_string(source.data)
        for name in passes:
            DAMAGES[name](model)
        return Artifact("onnx", model.SerializeToString())


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(jobs=2, limits=Limits(60, 1 << 30), preload=PRELOAD) as shared:
        yield shared


Vet = Callable[..., VetResult]


@pytest.fixture
def vet(tmp_path: Path, sandbox: Sandbox) -> Vet:
    """Vets a model, given as text or file, with one damage, on inputs as they are by default."""

    def run(given: str | Path, damage: str, **settings: Any) -> VetResult:
        path = given if isinstance(given, Path) else tmp_path / "model.onnx"
        if isinstance(given, str):
            onnx.save(onnx.parser.parse_model(given), path)
        plugins = Plugins().register("optimizer", Damaging())
        request = VetRequest(
            model="model", optimizer="damaging", pipeline=damage, cache_dir=tmp_path, **settings
        )
        return vet_model(open_model(path, str(path), tmp_path), request, plugins, sandbox=sandbox)

    return run


def numbers(values: np.ndarray) -> str:
    return "{" + ", ".join(f"{v:.4f}" for v in values.ravel()) + "}"


POINTS = np.random.default_rng(0).uniform(4000, 8000, (60, 3)) * [1, -2, 0.1]
LABELS = "{" + ", ".join(str(i % 4) for i in range(60)) + "}"
HEAD = '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3, "com.microsoft" : 1]>'
NEAREST = f"""{HEAD}
knn (float[N,3] x) => (int64[N] label)
<float[60,3] points = {numbers(POINTS)}, int64[60] labels = {LABELS},
 int64[1] axis = {{1}}, int64[1] last = {{2}}>
{{
    wide = Unsqueeze(x, axis)
    away = Sub(wide, points)
    distance = ReduceSumSquare<keepdims = 0>(away, last)
    nearest = ArgMin<axis = 1, keepdims = 0>(distance)
    label = Gather(labels, nearest)
}}
"""
BY_PRODUCT = f"""{HEAD}
knn (float[N,3] x) => (int64[N] label)
<float[60,3] points = {numbers(POINTS)}, float[60] squares = {numbers((POINTS**2).sum(1))},
 int64[60] labels = {LABELS}>
{{
    product = Gemm<alpha = -2.0, transB = 1>(x, points)
    distance = Add(product, squares)
    nearest = ArgMin<axis = 1, keepdims = 0>(distance)
    label = Gather(labels, nearest)
}}
"""
SCALED = NEAREST.replace(
    "wide = Unsqueeze(x, axis)",
    "z = ai.onnx.ml.Scaler<offset = [-500.0, 0.0, 3.0], scale = [0.5, 2.0, 1.0]>(x)"
    " wide = Unsqueeze(z, axis)",
)
ONE_ROW = NEAREST.replace("float[N,3]", "float[1,3]").replace("int64[N] label", "int64[1] label")


@pytest.mark.parametrize("damage", ["scale_points", "exchange_rows"])
@pytest.mark.parametrize(
    "model", [NEAREST, BY_PRODUCT, SCALED], ids=["differences", "product", "scaled"]
)
def test_moved_points_of_nearest_neighbours_are_found(vet: Vet, model: str, damage: str) -> None:
    result = vet(model, damage)
    assert result.verdict == "faulty"
    assert any("compared" in (f.witness.sample if f.witness else "") for f in result.findings)


def test_without_rows_of_choice_several_samples_come_near_points(vet: Vet) -> None:
    result = vet(ONE_ROW, "scale_points")
    assert result.verdict == "faulty"


def test_the_answer_tells_which_constants_inputs_come_from(vet: Vet) -> None:
    result = vet(NEAREST, "scale_points")
    assert result.datasets[0].provenance == {"compared": "stored points of Sub away"}


@pytest.mark.parametrize("damage", ["scale_points", "exchange_rows"])
@pytest.mark.parametrize("form", [{}, {"optim": "cdist"}], ids=["scan", "cdist"])
def test_moved_points_of_scikit_learn_are_found(
    vet: Vet, tmp_path: Path, form: dict[str, str], damage: str
) -> None:
    pytest.importorskip("skl2onnx")
    from skl2onnx import to_onnx
    from sklearn.neighbors import KNeighborsClassifier

    x = POINTS.astype(np.float32)
    source = KNeighborsClassifier(3).fit(x, np.arange(60) % 4)
    made = to_onnx(source, x[:1], options={id(source): {"zipmap": False, **form}})
    path = tmp_path / "knn.onnx"
    path.write_bytes(made.SerializeToString())
    assert vet(path, damage).verdict == "faulty"


@pytest.mark.skipif(not (DATA / "models").is_dir(), reason="no shared models beside this tree")
@pytest.mark.parametrize("name", ["rf-wine", "gbr-diabetes"])
def test_a_moved_threshold_of_a_tree_is_found(vet: Vet, name: str) -> None:
    assert vet(DATA / "models" / f"{name}.onnx", "move_node").verdict == "faulty"


CLIPPED = f"""{HEAD}
clip (float[4,3] x) => (float[4,3] y) <float low = {{-5000.0}}, float high = {{7000.0}}>
{{ y = Clip(x, low, high) }}
"""


def test_a_moved_bound_far_from_ordinary_inputs_is_found(vet: Vet) -> None:
    assert vet(CLIPPED, "move_bound").verdict == "faulty"


RARE = f"""{HEAD}
rare (float[5] x) => (float[5] y) <float[1] high = {{31415.0}}, int64[1] first = {{0}}>
{{
    one = Gather(x, first)
    far = Greater(one, high)
    at = Squeeze(far)
    y = If (at) <then_branch = t () => (float[5] u) {{ u = Identity(x) }},
                 else_branch = e () => (float[5] v) {{ v = Identity(x) }}>
}}
"""


def test_inputs_take_a_branch_that_is_rarely_taken(vet: Vet) -> None:
    changed = RARE.replace("u = Identity(x)", "u = Neg(x)")
    assert vet(changed, "move_bound").verdict == "faulty"


TABLE = f"""{HEAD}
table (int64[N,4] ids) => (float[N,4,2] y)
<float[500,2] rows = {numbers(np.random.default_rng(1).normal(size=(500, 2)))}>
{{ y = Gather(rows, ids) }}
"""


def test_exchanged_rows_of_an_embedding_are_found(vet: Vet) -> None:
    assert vet(TABLE, "exchange_rows").verdict == "faulty"


WORDS = f"""{HEAD}
words (string[N] text) => (float[N,40] y)
{{
    tokens = com.microsoft.Tokenizer<mark = 0, pad_value = "#", mincharnum = 1,
        separators = [" "]>(text)
    y = ai.onnx.ml.TfIdfVectorizer<mode = "TF", min_gram_length = 1, max_gram_length = 1,
        max_skip_count = 0, ngram_counts = [0], ngram_indexes = [{", ".join(map(str, range(40)))}],
        pool_strings = [{", ".join(f'"word{i}"' for i in range(40))}]>(tokens)
}}
"""
WORDS = WORDS.replace("ai.onnx.ml.TfIdfVectorizer", "TfIdfVectorizer")


def test_exchanged_words_of_a_vocabulary_are_found(vet: Vet) -> None:
    assert vet(WORDS, "swap_words").verdict == "faulty"


# --- what no sample exercises ---------------------------------------------------------------------


def untried(result: VetResult) -> list[str]:
    assert result.exercise is not None
    return [words for region in result.exercise.unexercised for words in region.why]


DEAD = f"""{HEAD}
dead (float[4,3] x) => (float[4,3] y, float[4,3] z)
<float[3,3] points = {numbers(np.eye(3))}, float low = {{9.0}}, float high = {{10.0}}>
{{
    [square] s = Mul(x, x)
    [shifted] t = Add(s, low)
    [negated] n = Neg(t)
    [dead] r = Relu(n)
    [product] y = MatMul(r, points)
    [alive] z = Relu(x)
}}
"""


def test_a_region_that_gives_zeros_alone_is_named(vet: Vet) -> None:
    result = vet(DEAD, "scale_points")
    assert result.verdict == "clean"
    assert result.exercise is not None
    assert result.exercise.regions == 1
    assert untried(result) == ["MatMul product never other than 0"]


FAR = f"""{HEAD}
far (float[4,3] x) => (float[4,3] y) <float low = {{-1.0}}, float high = {{7000.0}}>
{{ [tame] t = Sigmoid(x)  [bound] y = Clip(t, low, high) }}
"""


@pytest.mark.parametrize(
    ("operator", "sides"),
    [("Clip(t, low, high)", "above 7000 or below -1"), ("Min(high, t)", "above 7000")],
)
def test_a_bound_that_cannot_be_reached_is_named(vet: Vet, operator: str, sides: str) -> None:
    result = vet(FAR.replace("Clip(t, low, high)", operator), "move_bound")
    assert result.verdict == "clean"
    assert untried(result) == [f"{operator[: operator.find('(')]} bound never {sides}"]


NORM = f"""{HEAD}
norm (float[4,8] x) => (float[4,8] y)
<float epsilon = {{1e-6}}, float least = {{SIZE}}, float half = {{0.5}}>
{{
    s = Sigmoid(x)  c = Add(s, least)  [guard] g = Add(c, epsilon)
    r = Pow(g, half)  t = Div(s, r)  u = Mul(t, half)  y = Sigmoid(u)
}}
"""


def test_an_epsilon_that_is_added_to_large_values_alone_is_named(vet: Vet) -> None:
    large = vet(NORM.replace("{SIZE}", "{12.0}"), "move_epsilon")
    assert untried(large) == ["Add guard never added to less than 0.1"]
    assert vet(NORM.replace("{SIZE}", "{1e-5}"), "move_epsilon").verdict == "faulty"


TREE = f"""{HEAD}
tree (float[4,1] x) => (float[4,1] y)
{{
    tame = Sigmoid(x)
    [tree] y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1,
        nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
        nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values = [1.5, 0.0, 0.0],
        nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0],
        target_treeids = [0, 0], target_nodeids = [1, 2], target_ids = [0, 0],
        target_weights = [1.0, 3.0]>(tame)
}}
"""


TABLE = f"""{HEAD.replace('"ai.onnx.ml" : 3', '"ai.onnx.ml" : 5')}
tree (float[4,1] x) => (float[4,1] y)
{{
    tame = Sigmoid(x)
    [tree] y = ai.onnx.ml.TreeEnsemble<n_targets = 1, tree_roots = [0],
        nodes_featureids = [0], nodes_modes = uint8[1] {{0}}, nodes_splits = float[1] {{1.5}},
        nodes_truenodeids = [0], nodes_trueleafs = [1], nodes_falsenodeids = [1],
        nodes_falseleafs = [1], leaf_targetids = [0, 0], leaf_weights = float[2] {{1.0, 3.0}}>(tame)
}}
"""


@pytest.mark.parametrize("text", [TREE, TABLE], ids=["listed", "table"])
def test_a_leaf_that_no_row_comes_to_is_named_where_it_changed(vet: Vet, text: str) -> None:
    result = vet(text, "raise_leaf")
    assert result.verdict == "clean"
    operator = "TreeEnsemble" if text == TABLE else "TreeEnsembleRegressor"
    assert untried(result) == [f"{operator} tree 1 of 1 changed nodes never reached"]


NEVER = f"""{HEAD}
never (float[5] x) => (float[5] y) <float[1] high = {{1.5}}, int64[1] first = {{0}}>
{{
    tame = Sigmoid(x)
    one = Gather(tame, first)
    far = Greater(one, high)
    at = Squeeze(far)
    [choice] y = If (at) <then_branch = t () => (float[5] u) {{ u = Neg(x) }},
                 else_branch = e () => (float[5] v) {{ v = Identity(x) }}>
}}
"""


def test_a_branch_that_no_sample_takes_is_named_where_it_changed(vet: Vet) -> None:
    result = vet(NEVER, "change_branch")
    assert result.verdict == "clean"
    assert untried(result) == ["If choice then_branch never taken"]


def test_a_branch_that_is_never_taken_is_named_where_what_it_reads_outside_changed(
    vet: Vet,
) -> None:
    outside = NEVER.replace("Neg(x)", "Mul(x, points)").replace(
        "<float[1] high", f"<float[5] points = {numbers(np.arange(5.0))}, float[1] high"
    )
    result = vet(outside, "scale_points")
    assert result.verdict == "clean"
    assert untried(result) == ["If choice then_branch never taken"]


BIG = f"""{HEAD}
big (int64[1,2] ids) => (float[1,2,2] y)
<float[900,2] rows = {numbers(np.random.default_rng(1).normal(size=(900, 2)))}>
{{ [look] y = Gather(rows, ids) }}
"""


def test_changed_rows_of_a_table_that_no_sample_reads_are_counted(vet: Vet) -> None:
    result = vet(BIG, "scale_last", limit=3)
    assert result.verdict == "clean"
    assert untried(result) == ["Gather look 1 of 1 changed rows of rows never read"]


def test_points_that_are_never_the_nearest_are_counted(vet: Vet) -> None:
    result = vet(NEAREST, "exchange_rows", limit=3)
    assert result.verdict == "clean"
    assert untried(result) == ["Sub away 2 of 2 changed rows of points never among the nearest"]


MASKED = f"""{HEAD}
masked (float[4,3] x) => (float[4,3] y)
<float[3,3] points = {numbers(np.eye(3) + 1)}, float low = {{900.0}}>
{{
    [square] s = Mul(x, x)
    [product] p = MatMul(s, points)
    [far] t = Add(p, low)
    y = Sigmoid(t)
}}
"""


def test_other_values_that_no_output_shows_are_named(vet: Vet) -> None:
    result = vet(MASKED, "scale_points")
    assert result.verdict == "clean"
    assert untried(result) == [
        "MatMul product gives other values, by 0.2 of their size, that no output shows"
    ]


def test_weights_that_are_unpacked_belong_to_what_reads_them(vet: Vet) -> None:
    packed = MASKED.replace("MatMul(s, points)", "MatMul(s, turned)").replace(
        "[square]", "[turn] turned = Transpose(points) [square]"
    )
    result = vet(packed, "scale_points")
    assert result.verdict == "clean"
    assert result.exercise is not None
    assert [r.node for r in result.exercise.unexercised] == ["turn"]


QUANTIZED = f"""{HEAD}
quantized (float[4,3] x) => (float[4,3] y)
<float[3,3] points = {numbers(np.eye(3) + 1)}, float low = {{9.0}}, float scale = {{0.01}},
 uint8 zero = {{0}}>
{{
    [square] s = Mul(x, x)
    [shifted] t = Add(s, low)
    [product] p = MatMul(t, points)
    q = QuantizeLinear(p, scale, zero)
    y = DequantizeLinear(q, scale, zero)
}}
"""


def test_a_change_that_a_quantizer_cuts_off_is_named(vet: Vet) -> None:
    result = vet(QUANTIZED, "scale_points")
    assert result.verdict == "clean"
    assert untried(result)[0].startswith("MatMul product gives other values")


SCORES = f"""{HEAD}
scores (float[4,2] x) => (int64[4] label, float[4,2] p)
{{
    [linear] label, p = ai.onnx.ml.LinearClassifier<coefficients = [1.0, 0.3, -2.0, 0.7],
        intercepts = [0.1, 0.2], classlabels_ints = [0, 1], post_transform = "SOFTMAX">(x)
}}
"""


def test_learned_attributes_that_change_nothing_are_named(vet: Vet) -> None:
    result = vet(SCORES, "leave_out_zeros")
    assert result.verdict == "clean"
    assert untried(result) == [
        "LinearClassifier linear gives the same to the bit although it was changed"
    ]


HALF = f"""{HEAD}
half (float[4,3] x) => (float[4,2] y)
<float[2,2] points = {numbers(np.eye(2))}, float low = {{9.0}}, int64[1] one = {{1}},
 int64[1] two = {{2}}, float[1] high = {{1.0}}>
{{
    [square] s = Mul(x, x)
    [negated] n = Neg(s)
    [dead] r = Relu(n)
    left = Slice(x, one, two, one)
    right = Slice(r, one, two, one)
    both = Concat<axis = 1>(left, right)
    [product] y = MatMul(both, points)
}}
"""


def test_weights_that_only_meet_zeros_are_named(vet: Vet) -> None:
    result = vet(HALF, "scale_last")
    assert result.verdict == "clean"
    assert untried(result) == ["MatMul product gives the same to the bit although it was changed"]
    assert vet(HALF, "scale_points").verdict == "faulty"


LIVE = f"""{HEAD}
live (float[4,3] x) => (float[4,3] y) {{ [kink] z = Relu(x)  [same] y = Identity(z) }}
"""


def test_a_region_that_is_exercised_is_not_named(vet: Vet) -> None:
    result = vet(LIVE, "drop_identity")
    assert result.verdict == "clean"
    assert result.exercise is not None
    assert untried(result) == []
    assert (result.exercise.regions, result.exercise.samples) == (1, 1)


def test_nothing_is_looked_at_where_nothing_is_rewritten(vet: Vet) -> None:
    result = vet(LIVE, "keep")
    assert (result.verdict, result.exercise) == ("clean", None)
    assert "exercise" not in result.cost.by_purpose
