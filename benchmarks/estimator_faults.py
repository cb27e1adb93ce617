"""Faults of skl2onnx and onnxmltools, each shown plainly on a small table, without optvet.

    python benchmarks/estimator_faults.py skl2onnx|onnxmltools [NAME…]

Needs released wheels alone: onnx, ONNX Runtime, scikit-learn, LightGBM, XGBoost, skl2onnx and
onnxmltools. An estimator is fitted and converted, and its own methods are compared with the model,
once by ONNX Runtime and once by onnx's reference evaluator. A fault counts only if it shows with
both; a line tells of a model that ONNX Runtime refuses, but not onnx's checker and evaluator. Exit
status 1 if one does not show.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from export_faults import answer, first_line, is_valid, tell_missing
from onnx.reference import ReferenceEvaluator
from sklearn import (
    calibration,
    compose,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    model_selection,
    multiclass,
    naive_bayes,
    neighbors,
    pipeline,
    preprocessing,
    svm,
    tree,
)
from sklearn.cluster import KMeans
from sklearn.feature_extraction import text

CLOSE = 1e-3
"""Wider than what float32 rounds in these small sums."""


@dataclass(frozen=True)
class Case:
    """An estimator, the table and the targets that it is fitted to, and the rows that it sees."""

    estimator: Any
    table: np.ndarray
    rows: np.ndarray
    targets: np.ndarray | None = None
    methods: Sequence[str] = ("predict", "predict_proba", "transform")
    fit: Mapping[str, Any] = field(default_factory=dict)
    classifier: bool = False
    """Its probabilities are asked for as a table, and not as a list of maps."""
    column: bool = False
    """Its labels are one column, as those of detectors are in models."""


def column(*numbers: float) -> np.ndarray:
    """A table of one column."""
    return np.array(numbers, np.float32)[:, None]


def numbers(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Normally distributed float32."""
    return np.random.RandomState(seed).randn(rows, columns).astype(np.float32)


SIX = column(0, 1, 2, 3, 4, 5)
DOUBLE, HOLES = SIX.astype(np.float64), column(np.nan, np.nan, 0, 1, 2, 3)
TWO, THREE = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 2, 2])
ONES = TWO.astype(float)
WIDE, NEW = numbers(60, 4), numbers(30, 4, 1)
SIGNS = (WIDE[:, 0] > 0).astype(np.int64)
THIRDS = np.arange(60) % 3
SUMS = WIDE @ np.array([1, 2, -1, 0.5], np.float32)

logistic, linear = linear_model.LogisticRegression, linear_model.LinearRegression
scaler, shallow = preprocessing.StandardScaler, tree.DecisionTreeClassifier(max_depth=1)
embedding = ensemble.RandomTreesEmbedding(2, sparse_output=False, random_state=0)


def skl2onnx_values() -> dict[str, Callable[[], Case]]:
    """Another result than the estimator's."""
    return {
        "nan-in-trees": lambda: Case(
            tree.DecisionTreeRegressor(), HOLES, column(np.nan, 0, 3), ONES
        ),
        "neighbours-distance": lambda: Case(
            neighbors.KNeighborsRegressor(2, weights="distance"),
            column(0, 1, 3),
            column(0.25, 1),
            np.array([0.0, 1, 5]),
        ),
        "lda-two-classes": lambda: Case(
            discriminant_analysis.LinearDiscriminantAnalysis(), SIX, SIX, TWO, classifier=True
        ),
        "ovr-svc": lambda: Case(
            multiclass.OneVsRestClassifier(svm.SVC()), SIX, SIX, THREE, ["predict"], {}, True
        ),
        "svc-break-ties": lambda: Case(
            svm.SVC(break_ties=True), WIDE, numbers(400, 4, 1), THIRDS, ["predict"], {}, True
        ),
        "sgd-modified-huber": lambda: Case(
            linear_model.SGDClassifier(loss="modified_huber", random_state=0),
            WIDE,
            NEW,
            THIRDS,
            ["predict"],
            {},
            True,
        ),
        "ordinal-infrequent": lambda: Case(
            preprocessing.OrdinalEncoder(max_categories=2),
            np.array([[0, 5], [0, 6], [1, 6], [2, 7]]),
            np.array([[0, 5], [1, 6], [2, 7]]),
        ),
        "bagging-without-probabilities": lambda: Case(
            ensemble.BaggingClassifier(svm.LinearSVC(), n_estimators=2, random_state=0),
            SIX,
            SIX,
            TWO,
            classifier=True,
        ),
        "bagging-several-targets": lambda: Case(
            ensemble.BaggingRegressor(linear(), n_estimators=2),
            SIX,
            SIX,
            np.stack([THREE, TWO], axis=1).astype(float),
        ),
        "imputer-empty-column": lambda: Case(
            impute.SimpleImputer(),
            np.array([[1, np.nan], [2, np.nan]], np.float32),
            np.array([[np.nan, 5]], np.float32),
        ),
        "qda-label-shape": lambda: Case(
            discriminant_analysis.QuadraticDiscriminantAnalysis(), SIX, SIX, TWO, classifier=True
        ),
        "maximum-clips": lambda: Case(
            preprocessing.MaxAbsScaler(clip=True), column(0, 1), column(100)
        ),
        "ordinal-nan": lambda: Case(
            preprocessing.OrdinalEncoder(), column(0, 1, np.nan), column(np.nan)
        ),
        "calibrated-isotonic": lambda: Case(
            calibration.CalibratedClassifierCV(logistic(), method="isotonic", cv=2),
            SIX,
            SIX,
            TWO,
            classifier=True,
        ),
        "tuned-threshold": lambda: Case(
            model_selection.TunedThresholdClassifierCV(logistic()),
            WIDE,
            NEW,
            (WIDE[:, 0] > 1).astype(np.int64),
            classifier=True,
        ),
        "imputer-indicator": lambda: Case(
            impute.SimpleImputer(add_indicator=True), column(1, np.nan), column(1, np.nan)
        ),
        "one-against-one": lambda: Case(
            multiclass.OneVsOneClassifier(logistic()), SIX, SIX, THREE, ["predict"], {}, True
        ),
        "short-row": lambda: Case(
            preprocessing.Normalizer(), np.ones((1, 2)), np.full((1, 2), 1e-16)
        ),
        "words-of-empty-row": lambda: Case(text.TfidfTransformer(), np.eye(2), np.zeros((1, 2))),
        "threshold-itself": lambda: Case(
            preprocessing.Binarizer(threshold=0.1), np.ones((1, 1)), np.full((1, 1), 0.1)
        ),
        "target-encoder-nan": lambda: Case(
            preprocessing.TargetEncoder(), column(0, 0, 1, 1, np.nan, np.nan), column(np.nan), ONES
        ),
        "score-of-zero": lambda: Case(
            linear_model.SGDOneClassSVM(fit_intercept=False), SIX, column(0)
        ),
        "detector-of-zero": lambda: Case(svm.OneClassSVM(gamma=0), SIX, SIX, column=True),
        "whitened-constant": lambda: Case(
            decomposition.PCA(whiten=True), np.hstack([SIX, 0 * SIX]), np.hstack([SIX, 0 * SIX])
        ),
        "members-before-a-step": lambda: Case(
            pipeline.make_pipeline(
                ensemble.VotingRegressor(
                    [("a", linear()), ("b", tree.DecisionTreeRegressor(max_depth=1))]
                ),
                preprocessing.MinMaxScaler(),
            ),
            SIX,
            SIX,
            ONES,
        ),
        "words-sublinear": lambda: Case(
            text.TfidfTransformer(sublinear_tf=True),
            np.array([[1, 2], [3, 1]], np.float32),
            np.array([[1, 2]], np.float32),
        ),
        "cosine-of-empty-row": lambda: Case(
            decomposition.KernelPCA(1, kernel="cosine"), WIDE, np.zeros((1, 4), np.float32)
        ),
        "power-of-nan": lambda: Case(
            preprocessing.PowerTransformer(), column(1, 2, 3, 7), column(np.nan)
        ),
        "embedding-before-a-step": lambda: Case(
            pipeline.make_pipeline(embedding, scaler()), SIX, SIX
        ),
        "pipeline-several-outputs": lambda: Case(
            pipeline.make_pipeline(
                KMeans(2, random_state=0), preprocessing.PolynomialFeatures(include_bias=False)
            ),
            SIX,
            SIX,
        ),
    }


def skl2onnx_models() -> dict[str, Callable[[], Case]]:
    """No model, or one that does not run."""
    return {
        "stacking-decision-function": lambda: Case(
            ensemble.StackingClassifier([("a", svm.LinearSVC()), ("b", logistic())], cv=2),
            SIX,
            SIX,
            TWO,
            ["predict"],
            {},
            True,
        ),
        "stacking-predict": lambda: Case(
            ensemble.StackingClassifier([("a", logistic())], stack_method="predict", cv=2),
            SIX,
            SIX,
            THREE,
            ["predict"],
            {},
            True,
        ),
        "boosting-init-zero": lambda: Case(
            ensemble.GradientBoostingClassifier(n_estimators=1, init="zero"),
            SIX,
            SIX,
            THREE,
            classifier=True,
        ),
        "several-outputs-of-classes": lambda: Case(
            shallow, SIX, SIX, np.stack([TWO, 1 - TWO], axis=1), ["predict"]
        ),
        "radius": lambda: Case(neighbors.RadiusNeighborsRegressor(), SIX, SIX, ONES),
        "neighbours-impute": lambda: Case(
            impute.KNNImputer(), column(0, 1, np.nan), column(np.nan)
        ),
        "first-column-alone": lambda: Case(feature_selection.SelectKBest(k=1), WIDE, NEW, SIGNS),
        "gaussian-process": lambda: Case(
            gaussian_process.GaussianProcessClassifier(), SIX, SIX, TWO, classifier=True
        ),
        "voting-list-of-weights": lambda: Case(
            ensemble.VotingRegressor([("a", linear()), ("b", linear())], weights=[1, 3]),
            SIX,
            SIX,
            ONES,
            ["predict"],
        ),
        "histogram-boosting": lambda: Case(
            ensemble.HistGradientBoostingRegressor(max_iter=2), WIDE, NEW, SUMS
        ),
        "union-drop": lambda: Case(
            pipeline.FeatureUnion([("a", scaler()), ("b", "drop")]), SIX, SIX
        ),
        "pipeline-passthrough": lambda: Case(
            pipeline.make_pipeline(scaler(), "passthrough", logistic()),
            SIX,
            SIX,
            TWO,
            ["predict"],
            {},
        ),
        "columns-from-the-end": lambda: Case(
            compose.ColumnTransformer([("a", scaler(), [-1])]), WIDE, NEW
        ),
    }


def skl2onnx_types() -> dict[str, Callable[[], Case]]:
    """A model of mixed types, from a table of float64 or int64."""
    return {
        "polynomial-double": lambda: Case(
            preprocessing.PolynomialFeatures(interaction_only=True), np.eye(2), np.eye(2)
        ),
        "bagging-double": lambda: Case(
            ensemble.BaggingRegressor(n_estimators=2), DOUBLE, DOUBLE, ONES
        ),
        "boosting-double": lambda: Case(
            ensemble.GradientBoostingClassifier(n_estimators=1),
            DOUBLE,
            DOUBLE,
            THREE,
            classifier=True,
        ),
        "tree-double": lambda: Case(shallow, DOUBLE, DOUBLE, TWO, classifier=True),
        "bayes-double": lambda: Case(
            naive_bayes.CategoricalNB(), DOUBLE, DOUBLE, TWO, classifier=True
        ),
        "words-of-integers": lambda: Case(
            text.TfidfTransformer(), np.eye(2, dtype=np.int64), np.eye(2, dtype=np.int64)
        ),
        "adaptive-boosting-double": lambda: Case(
            ensemble.AdaBoostClassifier(n_estimators=2), DOUBLE, DOUBLE, TWO, classifier=True
        ),
        "voting-of-trees-double": lambda: Case(
            ensemble.VotingRegressor([("a", tree.DecisionTreeRegressor())]), DOUBLE, DOUBLE, ONES
        ),
        "stacking-of-integers": lambda: Case(
            ensemble.StackingClassifier([("a", logistic())], cv=2),
            DOUBLE.astype(np.int64),
            DOUBLE.astype(np.int64),
            TWO,
            classifier=True,
        ),
        "outliers-of-integers": lambda: Case(
            neighbors.LocalOutlierFactor(3, novelty=True),
            SIX.astype(np.int64),
            SIX.astype(np.int64),
        ),
        "adaptive-boosting-of-numbers-double": lambda: Case(
            ensemble.AdaBoostRegressor(n_estimators=2), DOUBLE, DOUBLE, ONES
        ),
        "scaler-without-scale": lambda: Case(
            preprocessing.StandardScaler(with_mean=False, with_std=False),
            SIX.astype(np.int64),
            SIX.astype(np.int64),
        ),
        "bins-double": lambda: Case(
            preprocessing.KBinsDiscretizer(2, encode="ordinal"), DOUBLE, DOUBLE
        ),
        "encoder-before-a-step-double": lambda: Case(
            pipeline.make_pipeline(preprocessing.OneHotEncoder(sparse_output=False), scaler()),
            DOUBLE,
            DOUBLE,
        ),
    }


def onnxmltools_cases() -> dict[str, Callable[[], Case]]:
    """By name."""
    import lightgbm
    import xgboost

    def light(name: str, **options: Any) -> Any:
        options = {"n_estimators": 3, "min_child_samples": 2, "verbose": -1, **options}
        return getattr(lightgbm, f"LGBM{name}")(**options)

    def extreme(name: str, **options: Any) -> Any:
        return getattr(xgboost, f"XGB{name}")(**{"n_estimators": 2, "max_depth": 2, **options})

    forest = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}
    positive = np.abs(SUMS)
    pair = np.stack([SUMS, -SUMS], axis=1)
    categories = {"categorical_feature": [0]}
    return {
        "lightgbm-zero-as-missing": lambda: Case(
            light("Classifier", zero_as_missing=True), column(*THIRDS), column(0, 1, 2), THIRDS != 1
        ),
        "lightgbm-root": lambda: Case(light("Regressor", reg_sqrt=True), WIDE, NEW, SUMS),
        "lightgbm-one-against-all": lambda: Case(
            light("Classifier", objective="multiclassova"), WIDE, NEW, THIRDS
        ),
        "lightgbm-sigmoid": lambda: Case(light("Classifier", sigmoid=2.0), WIDE, NEW, SIGNS),
        "lightgbm-linear-tree": lambda: Case(
            light("Regressor", linear_tree=True, num_leaves=4), WIDE, NEW, SUMS
        ),
        "lightgbm-forest": lambda: Case(light("Regressor", **forest), WIDE, NEW, SUMS),
        "lightgbm-forest-two-classes": lambda: Case(
            light("Classifier", **forest, n_estimators=100), WIDE, NEW, SIGNS
        ),
        "lightgbm-forest-three-classes": lambda: Case(
            light("Classifier", **forest, n_estimators=100), WIDE, NEW, THIRDS
        ),
        "lightgbm-forest-poisson": lambda: Case(
            light("Regressor", **forest, n_estimators=100, objective="poisson"), WIDE, NEW, positive
        ),
        "lightgbm-fraction-of-a-category": lambda: Case(
            light("Regressor"),
            column(*THIRDS),
            column(0.5, 1.5, 2.5, -0.5),
            np.array([3.0, 1, 4])[THIRDS],
            fit=categories,
        ),
        "xgboost-softmax": lambda: Case(
            extreme("Classifier", objective="multi:softmax"), WIDE, NEW, THIRDS
        ),
        "xgboost-regressor-logistic": lambda: Case(
            extreme("Regressor", objective="reg:logistic"), WIDE, NEW, SIGNS
        ),
        "xgboost-cox": lambda: Case(
            extreme("Regressor", objective="survival:cox"), WIDE, NEW, positive + 1
        ),
        "xgboost-several-targets": lambda: Case(extreme("Regressor"), WIDE, NEW, pair),
        "xgboost-several-labels": lambda: Case(
            extreme("Classifier"), WIDE, NEW, np.stack([SIGNS, 1 - SIGNS], axis=1)
        ),
        "xgboost-parallel-trees": lambda: Case(
            extreme("Classifier", num_parallel_tree=3, subsample=0.5), WIDE, NEW, THIRDS
        ),
        "xgboost-parallel-trees-two-classes": lambda: Case(
            extreme("Classifier", num_parallel_tree=2), WIDE, NEW, SIGNS
        ),
        "xgboost-dart": lambda: Case(extreme("Regressor", booster="dart"), WIDE, NEW, SUMS),
    }


NEEDS = {"skl2onnx": ["skl2onnx"], "onnxmltools": ["onnxmltools", "lightgbm", "xgboost"]}
"""The modules of each converter, beside scikit-learn."""


def converted(case: Case, program: str) -> onnx.ModelProto:
    """By the converter's own function, with its defaults."""
    if program == "skl2onnx":
        from skl2onnx import to_onnx

        options = {id(case.estimator): {"zipmap": False}} if case.classifier else None
        model: onnx.ModelProto = to_onnx(case.estimator, case.table[:1], options=options)
        return model
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("X", FloatTensorType([None, case.table.shape[1]]))]
    if type(case.estimator).__module__.startswith("lightgbm"):
        model = onnxmltools.convert_lightgbm(case.estimator, initial_types=types, zipmap=False)
    else:
        model = onnxmltools.convert_xgboost(case.estimator, initial_types=types)
    return model


def dense(values: Any) -> np.ndarray:
    """What a method gives; a transformer of texts gives a sparse matrix."""
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values)


def difference(expected: np.ndarray, got: np.ndarray) -> str:
    """Nothing where both are the same; numbers of one target may have a dimension of its own."""
    if expected.dtype.kind == "f" and expected.ndim == 1 and got.shape == (len(expected), 1):
        got = got[:, 0]
    if expected.shape != got.shape:
        return f"shape {list(expected.shape)} became {list(got.shape)}"
    same = np.isclose(expected.astype(float), got.astype(float), CLOSE, 0.1 * CLOSE, equal_nan=True)
    where = np.argwhere(~same)
    if not len(where):
        return ""
    first = tuple(where[0])
    return f"{expected[first]} became {got[first]} ({len(where)} of {expected.size})"


def wrong(expected: Mapping[str, np.ndarray], got: Sequence[np.ndarray]) -> dict[str, str]:
    """The methods whose results a model does not give, and what it gives."""
    pairs = zip(expected.items(), got, strict=False)
    return {method: said for (method, want), have in pairs if (said := difference(want, have))}


def shown(case: Case, program: str) -> str:
    """What happens; empty if model and estimator agree."""
    import onnxruntime

    case.estimator.fit(
        case.table, *([] if case.targets is None else [case.targets]), **dict(case.fit)
    )
    methods = [m for m in case.methods if hasattr(case.estimator, m)]
    if "predict" in methods:
        methods = [m for m in methods if m != "transform"]
    expected = {m: dense(getattr(case.estimator, m)(case.rows)) for m in methods}
    if case.column:
        expected = {m: labels[:, None] for m, labels in expected.items()}
    try:
        model = converted(case, program)
    except Exception as error:  # any error of the converter is what is asked for
        return f"no model: {first_line(error)}"
    feeds = {model.graph.input[0].name: case.rows}
    got = answer(lambda: onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))
    other = answer(lambda: ReferenceEvaluator(model).run(None, feeds))
    if isinstance(got, str):
        confirmed = isinstance(other, str) or wrong(expected, other) or not is_valid(model)
        return f"does not run: {got}{'' if confirmed else ' (by ONNX Runtime alone)'}"
    if isinstance(other, str):
        return ""
    agreed = wrong(expected, other)
    return "; ".join(f"{m}: {said}" for m, said in wrong(expected, got).items() if m in agreed)


def main() -> None:
    """Print a line for each fault."""
    import onnxruntime

    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(4)
    cases = {
        "skl2onnx": lambda: skl2onnx_values() | skl2onnx_models() | skl2onnx_types(),
        "onnxmltools": onnxmltools_cases,
    }
    program, *wanted = sys.argv[1:]
    tell_missing(NEEDS[program], wanted)
    missing = 0
    for name, make in cases[program]().items():
        if not wanted or name in wanted:
            said = shown(make(), program)
            missing += not said
            print(f"{name}: {said or 'does not show'}", flush=True)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
