"""Tables of features: labels, probabilities and regressed values, row by row.

Scikit-learn's converters give labels (integers or strings), and probabilities as an array or as a
ZipMap, which arrives as ``name`` [rows, classes] with the classes in ``name.keys``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Comparator,
    Comparison,
    InputError,
    Model,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
)

MAX_ROWS = 10
"""Changed rows of one sample that a report shows."""
_TASK = re.compile(
    r"tabular|random.forest|gradient.boost|decision.tree|logistic.regression|linear.regression"
    r"|tf.?idf|xgboost|lightgbm|catboost|scikit|sklearn|\bsvm\b|nearest.neighbo"
)
_PROBABILITIES = re.compile(r"prob|score|confidence", re.IGNORECASE)
_KEYS = ".keys"


class TabularOptions(BaseModel):
    """When a number counts as changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rtol: float = Field(default=1e-4, ge=0)
    """A value that moved by more than ``atol + rtol * |reference|`` counts as changed."""
    atol: float = Field(default=1e-5, ge=0)
    """See ``rtol``."""


class TabularComparator:
    """Labels equal; probabilities and regressed values close."""

    name = "tabular"
    suggestions = (Suggestion("tabular", ("rtol", "atol")),)
    options: TabularOptions = TabularOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """1 for a declared task; less for labels with probabilities, or a ZipMap."""
        if _TASK.search((model.task or "").lower()):
            return 1.0
        if not outputs or any(v.ndim > 2 for v in outputs.values()):
            return 0.0
        if any(len(i.shape or ()) > 2 for i in model.inputs):
            return 0.0
        if any(n.endswith(_KEYS) for n in outputs):
            return 0.8
        kinds = {kind_of(n, v, outputs) for n, v in outputs.items()}
        if kinds == {"labels", "probabilities"}:
            return 0.75
        # What scikit-learn's converter calls the answer of a regressor.
        return 0.5 if "ai.onnx.ml" in model.opsets and list(outputs) == ["variable"] else 0.0

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: TabularOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Every output by its kind; a row counts as changed if any output changed there."""
        expected = dict(reference)
        actual = _aligned(reference, candidate)
        kinds = {n: kind_of(n, v, expected) for n, v in expected.items() if not n.endswith(_KEYS)}
        if not kinds:
            raise InputError("comparator 'tabular': the model has no outputs, expected one or more")
        unsupported = next((n for n in kinds if expected[n].dtype.kind in "cmMV"), None)
        if unsupported is not None:
            raise InputError(
                f"comparator 'tabular': output {unsupported!r} is of type "
                f"{expected[unsupported].dtype}, expected labels or real numbers; choose another "
                "with --comparator"
            )
        rows = max(_height(expected[n]) for n in kinds)
        wrong, unsure = np.zeros(rows, bool), np.zeros(rows, bool)
        metrics: dict[str, float] = {"rows": float(rows)}
        shown: list[dict[str, Any]] = []
        for name, kind in kinds.items():
            a, b = expected[name], actual[name]
            if kind == "labels":
                flips = _by_row(np.asarray(a != b, dtype=bool), rows)
                doubt = flips & _undecided(name, expected, actual, kinds, noise, rows)
                _worst(metrics, "label_agreement", 1 - float(flips.mean()) if rows else 1.0, min)
                unsure |= doubt
                wrong |= flips & ~doubt
                shown += [_flip(name, i, a, b) for i in np.flatnonzero(flips)[:MAX_ROWS]]
                metrics |= _accuracy(sample.label, a, b)
            else:
                far = _values(metrics, kind, a, b, options, noise.get(name, 0.0))
                wrong |= _by_row(far, rows)
        for name in expected:
            if name.endswith(_KEYS) and not np.array_equal(expected[name], actual[name]):
                wrong[:] = True
                metrics["classes_changed"] = 1.0
        metrics["rows_changed"] = float(wrong.sum())
        metrics["rows_undecided"] = float((unsure & ~wrong).sum())
        changed = bool(wrong.any()) or "classes_changed" in metrics
        sensitive = not changed and bool(unsure.any())
        return Comparison(sample.id, metrics, changed, sensitive, {"labels": shown[:MAX_ROWS]})

    def metrics(self, options: TabularOptions) -> Sequence[str]:
        """Every metric of a summary."""
        changes = ("probability_change", "value_change", "relative_error", "classes_changed")
        accuracy = ("accuracy_reference", "accuracy_candidate", "accuracy_delta")
        rows = ("rows", "rows_changed", "rows_undecided")
        return ("label_agreement", *changes, *accuracy, *rows)

    def summarise(self, comparisons: Sequence[Comparison], options: TabularOptions) -> Summary:
        """Means of agreements over rows, the largest changes, and the rows that changed."""
        counts = {"rows", "rows_changed", "rows_undecided"}
        metrics = {k: sum(c.metrics[k] for c in comparisons) for k in sorted(counts)}
        for key in sorted({k for c in comparisons for k in c.metrics} - counts):
            having = [c for c in comparisons if key in c.metrics]
            total = sum(c.metrics["rows"] for c in having)
            if key == "label_agreement" or key.startswith("accuracy"):
                value = sum(c.metrics[key] * c.metrics["rows"] for c in having)
                metrics[key] = value / total if total else 1.0
            else:
                metrics[key] = max(c.metrics[key] for c in having)
        headline = f"{int(metrics['rows_changed'])} of {int(metrics['rows'])} rows changed"
        if metrics["rows_undecided"]:
            headline += f", {int(metrics['rows_undecided'])} undecided"
        if "label_agreement" in metrics:
            headline += f"; {100 * metrics['label_agreement']:.4g}% of labels agree"
        elif "relative_error" in metrics:
            headline += f"; relative error at most {metrics['relative_error']:.2g}"
        return Summary(metrics, headline)


def kind_of(name: str, value: np.ndarray, outputs: Mapping[str, np.ndarray]) -> str:
    """What an output holds: "labels", "probabilities", regressed "values", or a ZipMap's "keys"."""
    if name.endswith(_KEYS):
        return "keys"
    if value.dtype.kind in "iuObUS":
        return "labels"
    if f"{name}{_KEYS}" in outputs or _PROBABILITIES.search(name):
        return "probabilities"
    has_labels = any(v.dtype.kind in "iuObUS" and v.ndim <= 2 for v in outputs.values())
    return "probabilities" if has_labels and value.ndim == 2 else "values"


def _aligned(
    reference: Mapping[str, np.ndarray], candidate: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The candidate with the columns of its ZipMaps in the reference's order."""
    found = dict(candidate)
    for name in reference:
        keys, values = candidate.get(name), candidate.get(name.removesuffix(_KEYS))
        if not name.endswith(_KEYS) or keys is None or values is None:
            continue
        wanted = reference[name].tolist()
        have = keys.tolist()
        if wanted != have and sorted(map(str, wanted)) == sorted(map(str, have)):
            order = [have.index(k) for k in wanted]
            found[name] = keys[order]
            found[name.removesuffix(_KEYS)] = values[..., order]
    return found


def _height(value: np.ndarray) -> int:
    return len(value) if value.ndim else 1


def _by_row(wrong: np.ndarray, rows: int) -> np.ndarray:
    """Rows in which anything is wrong; outputs of another height concern every row."""
    if _height(wrong) == rows:
        return np.asarray(wrong.reshape(rows, -1).any(axis=1)) if rows else np.zeros(0, bool)
    return np.full(rows, bool(wrong.any()))


def _worst(metrics: dict[str, float], key: str, value: float, pick: Any) -> None:
    metrics[key] = pick(metrics[key], value) if key in metrics else value


def _flip(name: str, row: int, reference: np.ndarray, candidate: np.ndarray) -> dict[str, Any]:
    before, after = (str(np.atleast_1d(v)[row]) for v in (reference, candidate))
    return {"output": name, "row": int(row), "reference": before, "candidate": after}


def _values(
    metrics: dict[str, float],
    kind: str,
    reference: np.ndarray,
    candidate: np.ndarray,
    options: TabularOptions,
    noise: float,
) -> np.ndarray:
    """Adds the metrics of an output of numbers; returns where it changed.

    ``probability_change`` and ``value_change`` are the largest |c - r|; ``relative_error`` is the
    largest |c - r| / |r| over r != 0. Infinite where one side alone is not finite.
    """
    r, c = reference.astype(np.float64), candidate.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        same = (r == c) | (np.isnan(r) & np.isnan(c))
        finite = np.isfinite(r) & np.isfinite(c)
        distance = np.where(same, 0.0, np.where(finite, np.abs(c - r), np.inf))
        relative = np.where(same, 0.0, distance / np.abs(r))
        far = distance > np.maximum(options.atol + options.rtol * np.abs(r), noise)
    far = far | (~same & ~finite)
    top = float(distance.max(initial=0.0))
    if kind == "probabilities":
        _worst(metrics, "probability_change", top, max)
        return np.asarray(far)
    _worst(metrics, "value_change", top, max)
    shown = np.where(finite & (r == 0), 0.0, np.where(finite, relative, distance))
    _worst(metrics, "relative_error", float(shown.max(initial=0.0)), max)
    return np.asarray(far)


def _undecided(
    label: str,
    reference: Mapping[str, np.ndarray],
    candidate: Mapping[str, np.ndarray],
    kinds: Mapping[str, str],
    noise: Mapping[str, float],
    rows: int,
) -> np.ndarray:
    """Rows where the reference's probabilities of the two labels are no further apart than noise.

    Without classes to look the labels up in, those of the two best.
    """
    for name, kind in kinds.items():
        value = reference[name]
        if kind != "probabilities" or value.ndim != 2 or value.shape[0] != rows:
            continue
        if value.shape[1] < 2:
            continue
        classes = reference.get(f"{name}{_KEYS}")
        known = {str(k): i for i, k in enumerate(classes.tolist())} if classes is not None else {}
        wide = value.astype(np.float64)
        found = np.zeros(rows, bool)
        for i in range(rows):
            row = wide[i]
            pair = [known.get(str(np.atleast_1d(v[label])[i])) for v in (reference, candidate)]
            if pair[0] is not None and pair[1] is not None:
                gap = abs(row[pair[0]] - row[pair[1]])
            else:
                best = np.sort(row)
                gap = best[-1] - best[-2]
            found[i] = bool(gap <= noise.get(name, 0.0))
        return found
    return np.zeros(rows, bool)


def _accuracy(label: Any, reference: np.ndarray, candidate: np.ndarray) -> dict[str, float]:
    """Share of rows with the true label on both sides, where the sample has labels."""
    if label is None or not reference.size:
        return {}
    truth = np.atleast_1d(np.asarray(label, dtype=object)).ravel()
    if truth.size != reference.size or any(t is None or isinstance(t, (list, dict)) for t in truth):
        return {}
    before, after = (
        float(np.mean([str(v) == str(t) for v, t in zip(side.ravel(), truth, strict=True)]))
        for side in (reference, candidate)
    )
    return {
        "accuracy_reference": before,
        "accuracy_candidate": after,
        "accuracy_delta": after - before,
    }


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "tabular"."""
    return [TabularComparator()]
