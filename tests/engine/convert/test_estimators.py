"""Converters of scikit-learn's estimators and of boosted trees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.needs import needs

from optvet.engine.convert.run import convert_model
from optvet.engine.discovery import Plugins
from optvet.engine.work.sandbox import Sandbox, keep_servers
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import Factory
from optvet.spec.records.convert import ConversionResult
from optvet.spec.types import Artifact
from optvet.testing import check_converter, check_source_runtime

needs("skl2onnx", reason="needs optvet[estimators]")

SOURCE = """
import numpy as np

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 4)).astype(np.float32)
missing = X.copy()
missing[rng.random(X.shape) < 0.2] = np.nan
y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
example_inputs = (X[:30],)


def pipeline():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)


def forest():
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(5, random_state=0).fit(missing, y)


forest.more_inputs = [(missing[:30],)]


def votes():
    from sklearn.ensemble import VotingClassifier
    from sklearn.linear_model import LogisticRegression

    return VotingClassifier([("a", LogisticRegression())], flatten_transform=False).fit(X, y)


def booleans():
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(3, random_state=0).fit(X, y > 0)


def texts():
    from sklearn.preprocessing import OneHotEncoder

    return OneHotEncoder(handle_unknown="ignore").fit(texts.example_inputs[0])


texts.example_inputs = (np.array([["a"], ["b"], ["c"]]),)


def named():
    from sklearn.linear_model import LogisticRegression

    names = np.array(["low", "mid", "highest"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    return LogisticRegression().fit(X, names)


def scores():
    from sklearn.svm import SVC

    return SVC().fit(X, y)


def linear_scores():
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier(random_state=0).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))


def clipped():
    from sklearn.linear_model import SGDClassifier

    return SGDClassifier("modified_huber", random_state=0).fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))


def last_scores():
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), scores()).fit(X, y)


def detector():
    from sklearn.linear_model import SGDOneClassSVM

    return SGDOneClassSVM(random_state=0).fit(X)


def kernel_detector():
    from sklearn.svm import OneClassSVM

    return OneClassSVM().fit(X)


def neighbor():
    from sklearn.neighbors import KNeighborsClassifier

    near = np.array([[0.6, 0.8], [1, 0], [5, 5], [6, 5], [-5, 5], [-6, 5]], np.float32)
    return KNeighborsClassifier(1).fit(near, [0, 1, 2, 2, 3, 3])


neighbor.example_inputs = (np.array([[0, 0], [5, 4.5], [-5, 4]], np.float32),)


def graph():
    from sklearn.neighbors import KNeighborsTransformer

    table = np.random.default_rng(51).integers(-128, 128, (24, 2)) // 16
    return KNeighborsTransformer(n_neighbors=1, p=1, leaf_size=1).fit(table)


graph.example_inputs = (np.array([[6, -4], [-3, -2], [-4, 4], [-3, 5], [7, -5]]),)


def classified_graph():
    from sklearn.linear_model import RidgeClassifier
    from sklearn.neighbors import KNeighborsTransformer
    from sklearn.pipeline import make_pipeline

    table = np.random.default_rng(67).integers(-128, 128, (24, 3)) // 16
    labels = table.sum(axis=1) > 0
    return make_pipeline(KNeighborsTransformer(), RidgeClassifier()).fit(table, labels)


classified_graph.example_inputs = (
    np.array([[4, -2, 0], [-6, -1, 0], [1, 2147483649, 3], [1, 2, -2]]),
)


def cancelled():
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Binarizer
    from sklearn.svm import OneClassSVM

    table = np.random.default_rng(3).integers(-128, 128, (24, 1)) / 64
    return make_pipeline(Binarizer(), OneClassSVM()).fit(table.astype(np.float32))


cancelled.example_inputs = (np.array([[1.234375], [-1.671875], [-1.28125]], np.float32),)


def means():
    from sklearn.cluster import KMeans

    return KMeans(3, n_init=1, random_state=0).fit(X)


def averaged_votes():
    from sklearn.ensemble import BaggingClassifier
    from sklearn.linear_model import SGDClassifier
    from sklearn.pipeline import make_pipeline

    each = SGDClassifier("modified_huber", random_state=0)
    return make_pipeline(BaggingClassifier(each, 3, random_state=0)).fit(X, y)


def several():
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    return OneVsRestClassifier(LogisticRegression()).fit(X, (X[:, :3] > 0).astype(int))


def several_tables():
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=3).fit(X, (X[:, :3] > 0).astype(int))


def within():
    from sklearn.neighbors import RadiusNeighborsClassifier

    return RadiusNeighborsClassifier(radius=9.0).fit(X, y)


def normalizer():
    from sklearn.preprocessing import Normalizer

    return Normalizer().fit(X)


normalizer.example_inputs = (np.array([[3, 4, 0, 0], [1e-8, 0, 1e-8, 0]], np.float32),)


def boosted():
    from lightgbm import LGBMRegressor

    return LGBMRegressor(n_estimators=5, verbose=-1).fit(X, X[:, 0])


def averaged():
    from lightgbm import LGBMRegressor

    bagged = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
    return LGBMRegressor(n_estimators=5, verbose=-1, **bagged).fit(X, X[:, 0])


def histogram():
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=2).fit(X, y)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keep_servers()
    file = tmp_path_factory.mktemp("sources") / "estimator_sources.py"
    file.write_text(SOURCE)
    return file


def converted(model: str, folder: Path) -> tuple[ConversionResult, onnx.ModelProto]:
    """The result of a conversion by skl2onnx, and the model that it wrote."""
    request = ConvertRequest(model=model, via=("skl2onnx",), out=folder / "out")
    result = convert_model(request, Plugins())
    (written,) = (folder / "out").rglob("*.onnx")
    return result, onnx.load(written)


def judged(source: str, model: onnx.ModelProto, folder: Path) -> ConversionResult:
    """The result of comparing a model with the source that it was made of."""
    onnx.save(model, folder / "turned.onnx")
    return convert_model(ConvertRequest(model=source, converted=folder / "turned.onnx"), Plugins())


def convert(source: Path, function: str, via: str) -> ConversionResult:
    request = ConvertRequest(model=f"{source}:{function}", via=(via,))
    return convert_model(request, Plugins())


@pytest.mark.parametrize(
    "function",
    ["pipeline", "texts", "scores", "linear_scores", "last_scores", "detector", "kernel_detector"],
)
def test_an_estimator_that_is_converted_right_has_no_finding(source: Path, function: str) -> None:
    result = convert(source, function, "skl2onnx")
    assert (result.verdict, result.findings) == ("right", [])


@pytest.mark.release
def test_names_of_classes_are_compared_and_not_how_long_they_are(
    source: Path, tmp_path: Path
) -> None:
    # Which names come is another set in each sample, and so is the width of numpy's type.
    result, model = converted(f"{source}:named", tmp_path)
    assert (result.verdict, result.findings) == ("right", [])
    (names,) = (a for n in model.graph.node for a in n.attribute if a.name == "classlabels_strings")
    names.strings[:] = [b"mid", b"low", b"highest"]
    (finding, *_) = judged(f"{source}:named", model, tmp_path).findings
    assert (finding.symptom, finding.outputs) == ("wrong-output", ["label"])
    assert "20 of 30 elements differ: mid became highest" in finding.message


def test_a_label_is_not_open_where_probabilities_are_tied_and_the_decision_is_not(
    source: Path,
) -> None:
    # Distances beyond 1 give the same probability, and skl2onnx 1.20 takes the label from that.
    (finding,) = convert(source, "clipped", "skl2onnx").findings
    assert (finding.symptom, finding.outputs) == ("wrong-output", ["label"])


@pytest.mark.parametrize(
    ("function", "classes", "holds"),
    [
        ("pipeline", [0, 1], ""),
        ("scores", [0, 1], "scores"),
        ("linear_scores", [0, 1, 2], "scores"),
        ("clipped", [0, 1, 2], ""),
        ("booleans", [False, True], "probabilities"),
        ("detector", [-1, 1], "scores"),
        ("means", [0, 1, 2], "scores"),
        ("averaged_votes", [0, 1], "probabilities"),
        ("several", [0, 1], ""),
        ("several_tables", [0, 1], ""),
    ],
)
def test_the_largest_score_names_the_label(
    source: Path, function: str, classes: list[int], holds: str
) -> None:
    runtime: Any = Plugins().runtime("estimator")
    artifact = Artifact("estimator", path=source, handle=Factory(function))
    session = runtime.load(artifact, runtime.options)
    feeds = {"x": np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)}
    outputs, found = session.run(feeds), session.label_scores(feeds)["label"]
    assert (found.classes.tolist(), found.output) == (classes, holds)
    assert found.classes[found.scores.argmax(axis=-1)].tolist() == outputs["label"].tolist()
    assert not holds or len(outputs[holds]) == len(found.scores)


def test_an_estimator_that_shows_no_scores_has_none(source: Path) -> None:
    runtime: Any = Plugins().runtime("estimator")
    artifact = Artifact("estimator", path=source, handle=Factory("votes"))
    session = runtime.load(artifact, runtime.options)
    assert session.label_scores({"x": np.zeros((2, 4), np.float32)}) == {}


def test_classes_that_are_booleans_become_integers_and_must_be_the_same_ones(
    source: Path, tmp_path: Path
) -> None:
    result, model = converted(f"{source}:booleans", tmp_path)
    assert (result.verdict, result.notes[0]) == ("right", "label: bool became int64")
    (labels,) = (a for n in model.graph.node for a in n.attribute if a.name == "classlabels_int64s")
    labels.ints[:] = labels.ints[::-1]
    result = judged(f"{source}:booleans", model, tmp_path)
    assert (result.verdict, result.findings[0].symptom) == ("faulty", "wrong-output")


def test_shares_of_votes_are_not_compared_with_anything_and_labels_are(
    source: Path, tmp_path: Path
) -> None:
    result, model = converted(f"{source}:votes", tmp_path)
    assert (result.verdict, result.findings) == ("right", [])
    for node in model.graph.node:
        if node.op_type == "ArgMax":
            node.op_type = "ArgMin"
            break
    result = judged(f"{source}:votes", model, tmp_path)
    assert (result.verdict, result.findings[0].symptom) == ("faulty", "wrong-output")
    assert result.findings[0].outputs == ["label"]


def test_which_of_two_neighbors_is_nearer_is_not_judged_where_rounding_decides_it(
    source: Path, tmp_path: Path
) -> None:
    # The distances of the first row are 1 and 1 + 2e-8.
    result, model = converted(f"{source}:neighbor", tmp_path)
    assert (result.verdict, result.findings) == ("right", [])
    (labels,) = (t for t in model.graph.initializer if list(t.int64_data) == [0, 1, 2, 2, 3, 3])
    labels.int64_data[4] = 2
    result = judged(f"{source}:neighbor", model, tmp_path)
    assert (result.verdict, result.findings[0].symptom) == ("faulty", "wrong-output")


def test_a_graph_of_distances_has_one_neighbor_more_than_it_is_asked_for(source: Path) -> None:
    # The second and the third neighbor of the third and fourth row are equally far.
    result = convert(source, "graph", "skl2onnx")
    assert (result.verdict, result.findings) == ("right", [])


def test_neighbors_that_rounding_decides_are_not_judged_within_a_pipeline(
    source: Path, tmp_path: Path
) -> None:
    # All rows of the training data are equally far from the third one in float32.
    result, model = converted(f"{source}:classified_graph", tmp_path)
    assert (result.verdict, result.findings) == ("right", [])
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "intercepts":
                attribute.floats[:] = [v + 1 for v in attribute.floats]
    result = judged(f"{source}:classified_graph", model, tmp_path)
    assert (result.verdict, result.findings[0].symptom) == ("faulty", "wrong-output")


def test_a_score_whose_terms_cancel_is_as_exact_as_float32(source: Path, tmp_path: Path) -> None:
    # The score is the difference of two sums of 6.08: -2e-9 in float64, 5e-7 in float32. A step
    # that gives 0 and 1 alone hides what moving the inputs does.
    result, model = converted(f"{source}:cancelled", tmp_path)
    assert (result.verdict, result.findings) == ("right", [])
    (rho,) = (a for node in model.graph.node for a in node.attribute if a.name == "rho")
    rho.floats[0] += 1e-4
    result = judged(f"{source}:cancelled", model, tmp_path)
    assert (result.verdict, result.findings[0].symptom) == ("faulty", "wrong-output")


def test_missing_values_that_take_the_wrong_branch_are_found(source: Path) -> None:
    (finding, *_) = convert(source, "forest", "skl2onnx").findings
    assert (finding.symptom, finding.severity) == ("wrong-output", "fault")
    assert finding.witness is not None
    assert finding.witness.origin == "given"
    assert finding.place is not None
    assert finding.place.operator == "RandomForestClassifier"


@pytest.mark.release
def test_boosted_trees_are_judged_too(source: Path) -> None:
    pytest.importorskip("lightgbm", reason="needs optvet[estimators]")
    assert convert(source, "boosted", "onnxmltools").verdict == "right"
    (finding, *_) = convert(source, "averaged", "onnxmltools").findings
    assert (finding.symptom, finding.stages) == ("wrong-output", ["onnxmltools/convert"])
    assert finding.place is not None
    assert finding.place.arguments["boosting_type"] == "rf"
    assert not {"verbose", "learning_rate"} & finding.place.arguments.keys()
    assert finding.place.words().startswith("LGBMRegressor (boosting_type=rf, ")


def test_a_node_that_a_converter_could_not_make_is_named(source: Path) -> None:
    result = convert(source, "histogram", "skl2onnx")
    if result.verdict != "refused":
        pytest.skip("this skl2onnx takes it")
    place = result.findings[0].place
    assert place is not None
    assert place.words().startswith("HistGradientBoostingClassifier (max_iter=2) → TreeEnsemble")


def test_an_estimator_of_another_library_is_refused(source: Path) -> None:
    result = convert(source, "pipeline", "onnxmltools")
    assert result.verdict == "refused"
    assert "expected xgboost or lightgbm" in result.findings[0].message


def test_the_runtime_of_estimators_conforms(source: Path) -> None:
    check_source_runtime(Plugins().runtime("estimator"), source, "boosted")


def test_neighbors_within_a_radius_have_no_number(source: Path) -> None:
    runtime: Any = Plugins().runtime("estimator")
    artifact = Artifact("estimator", path=source, handle=Factory("within"))
    feeds = {"x": np.zeros((2, 4), np.float32)}
    values = runtime.inside(artifact, feeds, runtime.options, None).values
    assert {v.operator for v in values} == {"RadiusNeighborsClassifier"}


def test_skl2onnx_conforms(source: Path) -> None:
    check_converter(Plugins().converter("skl2onnx"), source, "pipeline")


def test_a_row_that_an_estimator_leaves_in_its_type_alone_is_not_judged(source: Path) -> None:
    # scikit-learn divides by no length that is below ten roundoffs: of float32 1e-6, 2e-15 else.
    assert convert(source, "normalizer", "skl2onnx").verdict == "right"
    short = source.parent / "short.py"
    short.write_text(SOURCE.replace("1e-8", "1e-18"))
    result = convert(short, "normalizer", "skl2onnx")
    assert (result.verdict, result.findings[0].symptom) == ("faulty", "wrong-output")


def _wait_policy() -> str:
    """How threads of OpenMP wait; called in a worker."""
    return os.environ.get("OMP_WAIT_POLICY", "")


def test_threads_of_estimators_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    # A LightGBM model of eight trees took 17 s on a busy machine, 15 s of them spinning.
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with Sandbox(jobs=1, preload=Plugins().runtime("estimator").preload) as sandbox:
        assert sandbox.call(_wait_policy).value == "passive"
