"""Sources for hunts: estimators in settings that their classes declare, fitted to small tables.

A source is a Python file of a few lines that makes a table and fits one estimator or a pipeline to
it; its example are the first rows. The number of a sample decides settings, table and labels.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import random
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from optvet.plugin import Feeds, SourceStep

_TYPES = ("float32", "float64", "int64")
_ROWS = 24
_SHOWN_ROWS = 5
_MOST_CHANGED = 3
_WITH_NAN, _WITH_LABELS_APART = 0.4, 0.3
_GAPS, _CLASSES, _APART = "gaps", "classes", "labels"
"""Names of what is unusual besides arguments."""
_NUMBERS: tuple[float, ...] = (0, 0.1, 0.25, 0.5, 1, 2, 3, 5)
"""Tried for a setting that is a number, where its class allows them."""
_WITHOUT_EFFECT = frozenset(
    {"cache_size", "copy", "copy_X", "memory", "n_jobs", "random_state", "verbose", "warm_start"}
)
_LEFT_OUT = frozenset({"max_iter", "tol", "n_iter_no_change"})
"""Settings that only decide how well an estimator is fitted."""
_ELSEWHERE: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "xgboost": {
        "booster": ("gbtree", "dart", "gblinear"),
        "base_score": (0.25, 0.75),
        "max_depth": (0, 1, 3),
        "num_parallel_tree": (2,),
        "grow_policy": ("lossguide",),
        "missing": (0.0,),
        "n_estimators": (1, 12),
        "learning_rate": (0.1, 1.0),
        "gamma": (0.5,),
        "max_leaves": (3,),
        "tree_method": ("exact", "approx"),
        "multi_strategy": ("multi_output_tree",),
        "scale_pos_weight": (2.0,),
        "subsample": (0.5,),
    },
    "lightgbm": {
        "boosting_type": ("gbdt", "dart", "rf"),
        "min_child_samples": (1, 5),
        "max_depth": (1, 3),
        "use_missing": (False,),
        "zero_as_missing": (True,),
        "boost_from_average": (False,),
        "n_estimators": (1, 12),
        "learning_rate": (1.0,),
        "num_leaves": (2, 4),
        "extra_trees": (True,),
        "linear_tree": (True,),
        "reg_sqrt": (True,),
        "sigmoid": (2.0,),
        "is_unbalance": (True,),
        "categorical_feature": ([0],),
    },
}
"""Settings of libraries whose classes do not declare what they allow."""
_OBJECTIVES: Mapping[str, Sequence[str]] = {
    "XGBRegressor": (
        "binary:logistic",
        "count:poisson",
        "reg:absoluteerror",
        "reg:gamma",
        "reg:logistic",
        "reg:pseudohubererror",
        "reg:squaredlogerror",
        "reg:tweedie",
        "survival:cox",
    ),
    "LGBMRegressor": (
        "cross_entropy",
        "cross_entropy_lambda",
        "fair",
        "gamma",
        "huber",
        "l1",
        "mape",
        "poisson",
        "quantile",
        "tweedie",
    ),
    "LGBMClassifier": ("multiclassova",),
    "XGBClassifier": ("multi:softmax", "binary:hinge", "binary:logitraw"),
}
_OF_SHARES = ("binary:logistic", "cross_entropy", "reg:logistic")
"""Objectives of regressors whose targets are between 0 and 1."""
_OF_SEVERAL = ("multi",)
"""Beginnings of objectives that need more than two classes."""
_NEEDED: Mapping[str, Mapping[str, str]] = {
    "boosting_type='rf'": {"subsample": "0.5", "subsample_freq": "1"},
}
"""What a setting needs besides."""
_COUNTING = "xgboost"
"""The library that takes no other classes than 0, 1, 2 and so on."""
_MEMBERS: Mapping[str, str] = {
    "estimators": "[('a', {tree}), ('b', {linear})]",
    "estimator": "{linear}",
    "transformers": "[('a', StandardScaler(), [0]), ('b', MinMaxScaler(), [-1])]",
    "transformer_list": "[('a', StandardScaler()), ('b', MinMaxScaler())]",
}
"""What an estimator of estimators is given, by the name of its parameter."""
_SOURCE = '''\
"""{title}"""

from pathlib import Path

import numpy as np
{imports}

HERE = Path(__file__).resolve().parent
x = {table}
y = {target}
example_inputs = {{"x": {example}}}


def part():
    return {model}.fit(x, y)
'''


@functools.cache
def _classes() -> Mapping[str, type]:
    """Classes of estimators by name."""
    from sklearn.utils import all_estimators

    found: dict[str, type] = dict(all_estimators())
    for module in _ELSEWHERE:
        with contextlib.suppress(ImportError):
            library = importlib.import_module(module)
            names = [n for n in dir(library) if n.endswith(("Classifier", "Regressor"))]
            found |= {name: getattr(library, name) for name in names if not name.startswith("Dask")}
    return {n: c for n, c in found.items() if _required(c) <= set(_MEMBERS) and _is_applied(c)}


def _is_applied(kind: type) -> bool:
    """Whether it has an answer for other rows than those that it was fitted to."""
    return any(hasattr(kind, name) for name in ("predict", "transform"))


def _required(kind: type) -> set[str]:
    """Parameters without a default."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    each = signature(kind).parameters.items()
    return {n for n, p in each if p.default is Parameter.empty and p.kind in kinds}


def operators() -> dict[str, list[str]]:
    """Element types of tables for each class of estimators."""
    return {name: list(_TYPES) for name in sorted(_classes())}


def last_operators() -> list[str]:
    """Classes whose results no other estimator reads."""
    return [name for name, kind in _classes().items() if not hasattr(kind, "transform")]


def write_source(
    steps: Sequence[SourceStep], folder: Path, feeds: Feeds | None = None
) -> str | None:
    """Write ``part.py``; None if the estimators do not fit each other or the table."""
    drawn = _draw(steps)
    models = [_model(_classes()[s.operator], d) for s, d in zip(steps, drawn.settings, strict=True)]
    model = models[0] if len(models) == 1 else f"make_pipeline({', '.join(models)})"
    example = f"x[:{_SHOWN_ROWS}]" if feeds is None else _literal(next(iter(feeds.values())))
    text = _SOURCE.format(
        title=" → ".join(step.operator for step in steps),
        imports="\n".join(_imports(model)),
        table=drawn.table + drawn.gaps,
        target=drawn.target.text,
        example=example,
        model=model,
    )
    if not _fits(text, folder):
        return None
    (folder / "part.py").write_text(text, "utf-8")
    return "part.py"


@dataclass(frozen=True)
class _Target:
    """Labels or numbers to fit to: their text, and what is unusual about them, by name."""

    text: str
    unusual: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Drawn:
    """What the samples of steps decide.

    Attributes:
        settings: Arguments of each estimator that are not the usual ones.
        table: The table.
        gaps: A statement that puts NaN into it; empty for none.
        target: What the last step is fitted to.
    """

    settings: Sequence[Mapping[str, str]]
    table: str
    gaps: str
    target: _Target


def _draw(steps: Sequence[SourceStep]) -> _Drawn:
    """Draw all that there is, whatever is left out: equal samples give equal tables."""
    draws = [random.Random(f"{s.operator} {s.sample}") for s in steps]
    kinds = [_classes()[step.operator] for step in steps]
    settings = [_draw_settings(*each) for each in zip(steps, kinds, draws, strict=True)]
    table = _table(steps[0], kinds[0], draws[0])
    gaps = _gaps(steps[0], kinds[0], draws[0])
    target = _target(steps[-1], kinds[-1], settings[-1].get("objective", ""), draws[-1])
    return _Drawn(settings, table, gaps, target)


def source_settings(steps: Sequence[SourceStep]) -> list[dict[str, str]]:
    """What is unusual about each step; the table is the first one's, the target the last one's."""
    drawn = _draw(steps)
    found = [{n: f"{n}={v}" for n, v in settings.items()} for settings in drawn.settings]
    found[0] |= {_GAPS: "NaN in the table"} if drawn.gaps else {}
    found[-1] |= drawn.target.unusual
    return found


def _fits(text: str, folder: Path) -> bool:
    """Whether the source can be executed."""
    scope: dict[str, Any] = {"__file__": str(folder / "part.py")}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            exec(text, scope)
            scope["part"]()
        except Exception:
            # Whatever an estimator raises in settings or on a table that it does not take.
            return False
    return True


def _draw_settings(step: SourceStep, kind: type, draw: random.Random) -> dict[str, str]:
    """Arguments that are not the usual ones, but for those that the step is without."""
    required = _required(kind)
    choices = {n: v for n, v in sorted(_choices(kind).items()) if n not in required and v}
    changed = draw.sample(sorted(choices), min(draw.randint(0, _MOST_CHANGED), len(choices)))
    drawn = {name: repr(draw.choice(choices[name])) for name in changed}
    return {name: value for name, value in drawn.items() if name not in step.without}


def _model(kind: type, settings: Mapping[str, str]) -> str:
    """The call that makes an estimator."""
    suffix = "Regressor" if _is_regressor(kind) else "Classifier"
    members = {
        "tree": f"DecisionTree{suffix}(random_state=0)",
        "linear": "Ridge()" if suffix == "Regressor" else "LogisticRegression()",
    }
    given = {n: _MEMBERS[n].format(**members) for n in sorted(_required(kind))}
    given |= settings
    for name, value in settings.items():
        given |= _NEEDED.get(f"{name}={value}", {})
    given |= {n: v for n, v in _quiet(kind).items() if n not in given}
    return f"{kind.__name__}({', '.join(f'{n}={v}' for n, v in given.items())})"


def _quiet(kind: type) -> dict[str, str]:
    """Settings that make it small and equal each time."""
    known = signature(kind).parameters
    if kind.__module__.startswith(tuple(_ELSEWHERE)):
        few = {"n_estimators": "4", "random_state": "0", "n_jobs": "1"}
        # By default a leaf of LightGBM has 20 rows, and no tree of so small a table has two.
        light = {"min_child_samples": "2", "verbose": "-1"}
        return few | (light if kind.__module__.startswith("lightgbm") else {})
    wanted = {"random_state": "0", "n_estimators": "4"}
    if kind.__module__.startswith("sklearn.ensemble"):
        wanted["max_iter"] = "4"
    return {name: value for name, value in wanted.items() if name in known}


def _choices(kind: type) -> dict[str, list[Any]]:
    """Values that settings may have, as the class declares."""
    library = kind.__module__.partition(".")[0]
    if library in _ELSEWHERE:
        found = {name: list(values) for name, values in _ELSEWHERE[library].items()}
        # The forests of XGBoost have the objectives of its boosted trees.
        name = kind.__name__.replace("XGBRF", "XGB")
        return found | {"objective": list(_OBJECTIVES.get(name, ()))}
    declared = getattr(kind, "_parameter_constraints", {})
    usual = signature(kind).parameters
    return {
        name: [v for v in _allowed(constraints) if v != usual[name].default]
        for name, constraints in declared.items()
        if name in usual
        and name not in _WITHOUT_EFFECT | _LEFT_OUT
        and constraints != "no_validation"
    }


def _allowed(constraints: Sequence[Any]) -> Iterator[Any]:
    for each in constraints:
        if each == "boolean":
            yield from (False, True)
        elif hasattr(each, "options"):
            yield from sorted((o for o in each.options if isinstance(o, str)), key=str)
        elif hasattr(each, "closed"):
            numbers = (int(n) if n == int(n) else n for n in _NUMBERS)
            yield from (n for n in numbers if isinstance(n, each.type) and n in each)


def _table(step: SourceStep, kind: type, draw: random.Random) -> str:
    """A table of multiples of a 64th, which all element types hold, or of integers."""
    columns, seed = draw.choice((1, 2, 3, 4)), draw.randrange(100)
    drawn = f"np.random.default_rng({seed}).integers(-128, 128, ({_ROWS}, {columns}))"
    if step.dtype == "int64":
        table = f"{drawn} // 16"
    else:
        table = f"({drawn} / 64).astype(np.{step.dtype})"
    if _tag(kind, "positive_only"):
        table = f"np.abs({table})"
    return table


def _gaps(step: SourceStep, kind: type, draw: random.Random) -> str:
    """A statement that puts NaN into the table; empty for none."""
    takes = step.dtype != "int64" and _tag(kind, "allow_nan")
    if not takes or draw.random() >= _WITH_NAN:
        return ""
    rows = draw.choice((3, 4, 5))
    return "" if _GAPS in step.without else f"\nx[::{rows}, 0] = np.nan"


def _target(step: SourceStep, kind: type, objective: str, draw: random.Random) -> _Target:
    """Classes of equal size, or numbers above zero, as the objective of the model needs them."""
    if not _is_classifier(kind):
        numbers = "np.abs(np.nan_to_num(x)).sum(axis=1) + 1"
        return _Target(f"1 / ({numbers})" if _begins(objective, _OF_SHARES) else numbers)
    several = _begins(objective, _OF_SEVERAL)
    classes = draw.choice((3, 4) if several else (2, 2, 3, 4))
    apart = draw.random() < _WITH_LABELS_APART and not kind.__module__.startswith(_COUNTING)
    unusual = {_CLASSES: "several classes"} if classes > 2 and not several else {}
    unusual |= {_APART: "numbers left out"} if apart else {}
    unusual = {name: words for name, words in unusual.items() if name not in step.without}
    classes = classes if several or _CLASSES in unusual else 2
    order = "np.argsort(np.argsort(np.nan_to_num(x).sum(axis=1), kind='stable'))"
    labels = f"{order} * {classes} // len(x)"
    return _Target(f"({labels}) * 3 - 1" if _APART in unusual else labels, unusual)


def _begins(objective: str, beginnings: Sequence[str]) -> bool:
    """Whether the objective, as Python, begins like one of these."""
    return objective.startswith(tuple(f"'{beginning}" for beginning in beginnings))


def _is_regressor(kind: type) -> bool:
    from sklearn.base import RegressorMixin

    return issubclass(kind, RegressorMixin)


def _is_classifier(kind: type) -> bool:
    from sklearn.base import ClassifierMixin

    return issubclass(kind, ClassifierMixin)


@functools.cache
def _tag(kind: type, name: str) -> bool:
    """What the class says of the tables that it takes; no where that depends on its members."""
    from sklearn.utils import get_tags

    try:
        return bool(getattr(get_tags(kind()).input_tags, name))
    except (AttributeError, TypeError):
        return False


def _imports(model: str) -> list[str]:
    """Statements for the classes that a call names."""
    names = {n for n in re.findall(r"\b([A-Z]\w+)\(", model) if n in _classes()}
    lines = [f"from {_home(_classes()[name])} import {name}" for name in names]
    pipeline = ["from sklearn.pipeline import make_pipeline"] * ("make_pipeline(" in model)
    return sorted([*lines, *pipeline])


def _home(kind: type) -> str:
    """The public module that has the class."""
    public = ".".join(takewhile(lambda part: part[0] != "_", kind.__module__.split(".")))
    return public if hasattr(importlib.import_module(public), kind.__name__) else kind.__module__


def _literal(value: np.ndarray) -> str:
    """A table as Python."""
    listed = repr(value.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    shape = f".reshape({value.shape})" if 0 in value.shape else ""
    return f"np.array({listed}, np.{value.dtype}){shape}"
