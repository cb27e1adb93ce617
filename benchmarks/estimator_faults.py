"""Faults of skl2onnx and onnxmltools, each shown plainly on a small table, without optvet.

    python benchmarks/estimator_faults.py [NAME…]

Needs released wheels alone: onnx, ONNX Runtime, scikit-learn, LightGBM, XGBoost, skl2onnx and
onnxmltools. An estimator is fitted and converted, and its own methods are compared with the model,
once by ONNX Runtime and once by onnx's reference evaluator. A line tells what happens; a fault of
which both evaluators do not say the same is no fault of the converter, and is not here. Exit status
1 if one does not show.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

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


def column(*numbers: float) -> np.ndarray:
    """A table of one column."""
    return np.array(numbers, np.float32)[:, None]


def numbers(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Normally distributed float32."""
    return np.random.RandomState(seed).randn(rows, columns).astype(np.float32)


SIX = column(0, 1, 2, 3, 4, 5)
TWO, THREE = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 2, 2])
WIDE, NEW = numbers(60, 4), numbers(30, 4, 1)
SIGNS = (WIDE[:, 0] > 0).astype(np.int64)
THIRDS = np.arange(60) % 3
SUMS = WIDE @ np.array([1, 2, -1, 0.5], np.float32)


def skl2onnx_cases() -> dict[str, Callable[[], Case]]:
    """By name."""
    from sklearn import (
        compose,
        discriminant_analysis,
        ensemble,
        impute,
        linear_model,
        multiclass,
        neighbors,
        pipeline,
        preprocessing,
        svm,
        tree,
    )
    from sklearn.cluster import KMeans

    logistic, linear = linear_model.LogisticRegression, linear_model.LinearRegression
    scaler, shallow = preprocessing.StandardScaler, tree.DecisionTreeClassifier(max_depth=1)
    return {
        "neighbours-distance": lambda: Case(
            neighbors.KNeighborsRegressor(2, weights="distance"),
            column(0, 1, 3),
            column(0.25, 1),
            np.array([0.0, 1, 5]),
        ),
        "lda-two-classes": lambda: Case(
            discriminant_analysis.LinearDiscriminantAnalysis(), SIX, SIX, TWO, classifier=True
        ),
        "qda-label-shape": lambda: Case(
            discriminant_analysis.QuadraticDiscriminantAnalysis(), SIX, SIX, TWO, classifier=True
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
        "imputer-empty-column": lambda: Case(
            impute.SimpleImputer(),
            np.array([[1, np.nan], [2, np.nan]], np.float32),
            np.array([[np.nan, 5]], np.float32),
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
        "voting-list-of-weights": lambda: Case(
            ensemble.VotingRegressor([("a", linear()), ("b", linear())], weights=[1, 3]),
            SIX,
            SIX,
            TWO.astype(float),
            ["predict"],
        ),
        "boosting-init-zero": lambda: Case(
            ensemble.GradientBoostingClassifier(n_estimators=1, init="zero"),
            SIX,
            SIX,
            THREE,
            classifier=True,
        ),
        "histogram-boosting": lambda: Case(
            ensemble.HistGradientBoostingRegressor(max_iter=2), WIDE, NEW, SUMS
        ),
        "several-outputs-of-classes": lambda: Case(
            shallow, SIX, SIX, np.stack([TWO, 1 - TWO], axis=1), ["predict"]
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
        "pipeline-several-outputs": lambda: Case(
            pipeline.make_pipeline(KMeans(2, random_state=0), logistic()),
            SIX,
            SIX,
            TWO,
            ["predict"],
        ),
        "columns-from-the-end": lambda: Case(
            compose.ColumnTransformer([("a", scaler(), [-1])]), WIDE, NEW
        ),
        "columns-by-mask": lambda: Case(
            compose.ColumnTransformer([("a", scaler(), [True, False, True, False])]), WIDE, NEW
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
        "lightgbm-root": lambda: Case(light("Regressor", reg_sqrt=True), WIDE, NEW, SUMS),
        "lightgbm-one-against-all": lambda: Case(
            light("Classifier", objective="multiclassova"), WIDE, NEW, THIRDS
        ),
        "lightgbm-sigmoid": lambda: Case(light("Classifier", sigmoid=2.0), WIDE, NEW, SIGNS),
        "lightgbm-linear-tree": lambda: Case(light("Regressor", linear_tree=True), WIDE, NEW, SUMS),
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
        "xgboost-linear": lambda: Case(extreme("Regressor", booster="gblinear"), WIDE, NEW, SUMS),
        "xgboost-dart": lambda: Case(extreme("Regressor", booster="dart"), WIDE, NEW, SUMS),
    }


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


def first_line(error: Exception) -> str:
    """What kind of error it is, and the beginning of its message."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"


def difference(expected: np.ndarray, got: np.ndarray) -> str:
    """Nothing where both are the same; one target may have a dimension of its own."""
    if expected.ndim == 1 and got.shape == (len(expected), 1):
        got = got[:, 0]
    if expected.shape != got.shape:
        return f"shape {list(expected.shape)} became {list(got.shape)}"
    where = np.argwhere(~np.isclose(expected.astype(float), got.astype(float), CLOSE, 0.1 * CLOSE))
    if not len(where):
        return ""
    first = tuple(where[0])
    return f"{expected[first]} became {got[first]} ({len(where)} of {expected.size})"


def shown(case: Case, program: str) -> str:
    """What happens; empty if model and estimator agree."""
    import onnxruntime

    case.estimator.fit(
        case.table, *([] if case.targets is None else [case.targets]), **dict(case.fit)
    )
    methods = [m for m in case.methods if hasattr(case.estimator, m)]
    if "predict" in methods:
        methods = [m for m in methods if m != "transform"]
    expected = [np.asarray(getattr(case.estimator, m)(case.rows)) for m in methods]
    try:
        model = converted(case, program)
    except Exception as error:  # any error of the converter is what is asked for
        return f"no model: {first_line(error)}"
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
        feeds = {session.get_inputs()[0].name: case.rows}
        got = session.run(None, feeds)
    except Exception as error:
        return f"does not run: {first_line(error)}"
    other = ReferenceEvaluator(model).run(None, feeds)
    judged = [
        [difference(want, np.asarray(have)) for want, have in zip(expected, outputs, strict=False)]
        for outputs in (got, other)
    ]
    both = [m for m, *said in zip(methods, *judged, strict=False) if all(said)]
    return "; ".join(f"{m}: {judged[0][methods.index(m)]}" for m in both)


def main() -> None:
    """Print a line for each fault."""
    import onnxruntime

    warnings.simplefilter("ignore")
    onnxruntime.set_default_logger_severity(4)
    cases = {"skl2onnx": skl2onnx_cases(), "onnxmltools": onnxmltools_cases()}
    missing = 0
    for program, faults in cases.items():
        for name, make in faults.items():
            if not sys.argv[1:] or name in sys.argv[1:]:
                said = shown(make(), program)
                missing += not said
                print(f"{program} {name}: {said or 'does not show'}", flush=True)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
