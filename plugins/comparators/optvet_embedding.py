"""Vectors that stand for things: do they point the same way, and have the same neighbours?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import (
    Comparator,
    Comparison,
    Model,
    Sample,
    Suggestion,
    Summary,
    hookimpl,
    readable_outputs,
)

_TASK = re.compile(
    r"embedding|feature.extraction|sentence.similarity|(face|speaker|person).(recognition|verif)"
    r"|re.?identification|retrieval|metric.learning"
)
_NAME = re.compile(r"embed|pool|feature|vector|sentence", re.IGNORECASE)


class EmbeddingOptions(BaseModel):
    """Which output has the vectors, and when they count as changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: str = ""
    """The output that has the vectors; found by its name where it is empty."""
    min_cosine: float = Field(default=0.999, ge=-1, le=1)
    """A vector whose cosine with the reference is lower counts as changed."""


@dataclass(frozen=True)
class EmbeddingComparison(Comparison):
    """A comparison with its vectors, which are needed until all samples are there.

    ``reference`` and ``candidate`` are float64 [rows, dimensions]; ``uncertainty`` is how far a
    cosine with the reference's vectors may be off for rounding alone.
    """

    reference: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    candidate: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    uncertainty: float = 0.0


class EmbeddingComparator:
    """Cosine per vector, and agreement of nearest neighbours over all samples."""

    name = "embedding"
    suggestions = (Suggestion("embedding"),)
    options: EmbeddingOptions = EmbeddingOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.95 for a declared task; less for an output of such a name, or of unit vectors."""
        task = (model.task or "").lower()
        if _TASK.search(task):
            return 0.95
        floats = {n: v for n, v in outputs.items() if v.dtype.kind == "f" and v.ndim == 2}
        if len(outputs) != 1 or not floats:
            return 0.0
        name, value = next(iter(floats.items()))
        if value.shape[1] < 16 or not len(value):
            return 0.0
        if re.search(r"embed|pooler", name, re.IGNORECASE):
            return 0.6
        wide = value.astype(np.float64)
        unit = np.isfinite(wide).all() and np.allclose([length(v) for v in wide], 1, atol=1e-3)
        # A one-hot soft-max has unit length too, but no negative numbers.
        return 0.5 if unit and wide.min() < 0 else 0.0

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: EmbeddingOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """Cosine of each row; a row is one vector, whatever its shape."""
        name = vectors_name(reference, options.output)
        expected, actual = (vectors_of(v[name]) for v in (reference, candidate))
        values = [cosine(a, b) for a, b in zip(expected, actual, strict=True)]
        distances = [_distance(a, b) for a, b in zip(expected, actual, strict=True)]
        allowed = noise.get(name, 0.0)
        sizes = [length(v) for v in expected if np.isfinite(v).all() and v.any()]
        # Each of d coordinates is off by at most the noise, so the angle by sqrt(d) times that.
        doubt = 2 * allowed * math.sqrt(expected.shape[1]) / min(sizes) if sizes else 0.0
        low = [v < options.min_cosine for v in values]
        firm = [
            c and not _within(a, b, allowed) for c, a, b in zip(low, expected, actual, strict=True)
        ]
        metrics = {"rows": float(len(values))}
        if values:
            metrics |= {
                "cosine": min(values),
                "mean_cosine": float(np.mean(values)),
                "max_distance": max(distances),
            }
        return EmbeddingComparison(
            sample.id,
            metrics,
            any(firm),
            any(low) and not any(firm),
            {"cosines": [round(v, 12) for v in values[:10]]},
            reference=expected,
            candidate=actual,
            uncertainty=doubt,
        )

    def metrics(self, options: EmbeddingOptions) -> Sequence[str]:
        """Every metric of a summary."""
        return ("cosine", "mean_cosine", "max_distance", "neighbour_agreement", "rows")

    def summarise(self, comparisons: Sequence[Comparison], options: EmbeddingOptions) -> Summary:
        """Lowest and mean cosine; agreement of neighbours where there are three vectors or more."""
        having = [c for c in comparisons if c.metrics.get("rows")]
        rows = int(sum(c.metrics["rows"] for c in having))
        changed = sum(c.changed for c in comparisons)
        headline = f"{changed} of {len(comparisons)} vectors changed direction"
        metrics = {"rows": float(rows)}
        if having:
            total = sum(c.metrics["mean_cosine"] * c.metrics["rows"] for c in having)
            metrics |= {
                "cosine": min(c.metrics["cosine"] for c in having),
                "mean_cosine": total / rows,
                "max_distance": max(c.metrics["max_distance"] for c in having),
            }
            headline += f"; lowest cosine {metrics['cosine']:.6g}"
        kept = [c for c in having if isinstance(c, EmbeddingComparison)]
        if len({c.reference.shape[1] for c in kept}) == 1:
            reference, candidate = (
                np.concatenate(v)
                for v in ([c.reference for c in kept], [c.candidate for c in kept])
            )
            agreement = neighbour_agreement(reference, candidate, max(c.uncertainty for c in kept))
            if agreement is not None:
                metrics["neighbour_agreement"] = agreement
                same = round(agreement * rows)
                headline += f", {rows - same} of {rows} nearest neighbours changed"
        return Summary(metrics, headline)


def vectors_name(outputs: Mapping[str, np.ndarray], wanted: str) -> str:
    """The output that has the vectors.

    Raises:
        InputError: There is none.
    """

    def fits(_: str, value: np.ndarray) -> bool:
        return value.ndim > 0 and value.dtype.kind in "fiu"

    fitting = readable_outputs("embedding", outputs, wanted, fits, "with vectors", of="of numbers")
    named = [n for n in fitting if _NAME.search(n)]
    return (named or fitting)[0]


def vectors_of(value: np.ndarray) -> np.ndarray:
    """A vector per row, as float64 [rows, dimensions]."""
    if value.ndim == 1:
        return value[None].astype(np.float64)
    return value.reshape(len(value), math.prod(value.shape[1:])).astype(np.float64)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """a·b / (|a| |b|), from -1 to 1; 1 if both are zero or equal, NaN and all.

    0 if only one is zero, or if one has NaN or infinities that the other does not have.
    """
    if np.array_equal(a, b, equal_nan=True):
        return 1.0
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 0.0
    # Scaled first, so that squares neither overflow nor vanish.
    tops = np.max(np.abs(a), initial=0.0), np.max(np.abs(b), initial=0.0)
    if not all(tops):
        return 0.0
    x, y = a / tops[0], b / tops[1]
    value = float(np.dot(x, y) / (np.linalg.norm(x) * np.linalg.norm(y)))
    return min(1.0, max(-1.0, value))


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Euclidean distance; infinite where one side alone is not finite."""
    if np.array_equal(a, b, equal_nan=True):
        return 0.0
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    with np.errstate(over="ignore"):
        return length(a - b)


def length(vector: np.ndarray) -> float:
    """Euclidean length of a float64 vector without NaN; infinite where it is beyond float64."""
    top = float(np.abs(vector).max(initial=0.0))
    # Scaled first, so that squares neither overflow nor vanish.
    return top * float(np.linalg.norm(vector / top)) if 0 < top < math.inf else top


def _within(a: np.ndarray, b: np.ndarray, noise: float) -> bool:
    finite = np.isfinite(a).all() and np.isfinite(b).all()
    with np.errstate(over="ignore"):
        return bool(finite and np.abs(a - b).max(initial=0.0) <= noise)


def neighbour_agreement(
    reference: np.ndarray, candidate: np.ndarray, doubt: float = 0.0
) -> float | None:
    """Share of vectors whose nearest other one, by cosine, is the same on both sides.

    Args:
        reference: The reference's vectors, float64 [rows, dimensions].
        candidate: The candidate's.
        doubt: Cosines that differ by no more than this are equal: of several nearest neighbours
            any will do.

    Returns:
        None for less than three vectors, which have no choice.
    """
    if len(reference) < 3:
        return None
    first, second = _cosines(reference), _cosines(candidate)
    choice = second.argmax(axis=1)
    rows = np.arange(len(reference))
    # 1e-12: the products are rounded, and equal vectors must stay equal.
    same = first[rows, choice] >= first.max(axis=1) - max(doubt, 1e-12)
    lost = ~np.isfinite(candidate).all(axis=1) & np.isfinite(reference).all(axis=1)
    return float(np.mean(same & ~lost))


def _cosines(vectors: np.ndarray) -> np.ndarray:
    """Cosines of all pairs; -2 with itself, so that nothing is its own neighbour."""
    finite = np.where(np.isfinite(vectors), vectors, 0.0)
    tops = np.abs(finite).max(axis=1, keepdims=True, initial=0.0)
    scaled = finite / np.where(tops == 0, 1, tops)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit = scaled / np.where(norms == 0, 1, norms)
    table = unit @ unit.T
    np.fill_diagonal(table, -2)
    return np.asarray(table)


@hookimpl
def optvet_comparators() -> Iterable[Comparator]:
    """The comparator "embedding"."""
    return [EmbeddingComparator()]
