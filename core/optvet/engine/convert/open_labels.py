"""Labels that rounding decides: which other ones a source gives where it is moved by rounding.

Only the source says so: it gives another label on inputs that are moved by rounding, or the numbers
by which it chooses a label are as good as equal. That a table of probabilities is tied says nothing
of a source that decides by something else, such as the distance from a plane.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from optvet.engine.convert.undefined_inputs import TIED_ROUNDOFFS
from optvet.engine.convert.worker_steps import move_inputs
from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.outputs import FEW
from optvet.engine.judge.thresholds import THRESHOLDS
from optvet.engine.numerics.floats import is_float, unit_roundoff
from optvet.engine.numerics.texts import is_text
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig, infer, open_session
from optvet.spec.converters import LabelScores, SessionExtras
from optvet.spec.extras import extras
from optvet.spec.runtime_protocols import Session
from optvet.spec.types import Artifact, Sample

_ULPS = (1, 1, 2, 2, 4, 4, 8, 8)
"""How far the inputs are moved in each run: kernels that sum in float32 are off by some ulps."""


@dataclass(frozen=True)
class OpenLabels:
    """What rounding may make of the labels of one output, in place of the source's own.

    Attributes:
        others: Labels that it may give; where it gives no other, the source's own.
        undecided: Where the source decides against none of its classes. A sign of 0, which is no
            class, says there what the source says: it lies between its classes.
        classes: The classes; none where they are not known.
    """

    others: Sequence[np.ndarray]
    undecided: np.ndarray
    classes: np.ndarray | None = None

    def is_open(self, came: np.ndarray) -> np.ndarray:
        """Where a label is undecided, and ``came`` is one of the classes, or lies between them."""
        if self.classes is None or not self.classes.size:
            return np.zeros(came.shape, bool)
        if is_text(came.dtype) or is_text(self.classes.dtype):
            return self.undecided & np.isin(came.astype(str), self.classes.astype(str))
        low, high = self.classes.min(), self.classes.max()
        return np.asarray(self.undecided & (low <= came) & (came <= high))


@dataclass(frozen=True)
class MovedLabels:
    """What a source says on one sample, and with its inputs moved by rounding.

    Attributes:
        labels: Its labels on moved inputs.
        scores: The numbers by which it chooses them, on the sample itself, as far as it tells them.
        spread: By how much these move at most, element by element.
    """

    labels: Mapping[str, Sequence[np.ndarray]]
    scores: Mapping[str, LabelScores] = field(default_factory=dict)
    spread: Mapping[str, np.ndarray] = field(default_factory=dict)


def moved_labels(
    config: RuntimeConfig,
    source: Artifact,
    samples: Sequence[Sample],
    labels: Set[str],
    types: Mapping[str, np.dtype],
) -> dict[str, MovedLabels]:
    """The labels of a source on samples that are moved by rounding. Called in a worker.

    ``types`` are those in which a converted model computes, by sample.
    """
    enter("load")
    session = open_session(config, source)
    enter("run")
    found = {}
    for sample in samples:
        scores = _scores(session, sample.feeds)
        spread = {name: np.zeros(s.scores.shape) for name, s in scores.items()}
        runs: list[Outputs] = []
        for seed, ulps in enumerate(_ULPS):
            feeds = _move(sample.feeds, types[sample.id], seed, ulps)
            # A moved input may be illegal; the other ones are still looked at.
            with contextlib.suppress(ArithmeticError, ValueError, RuntimeError, IndexError):
                runs.append(infer(config.runtime, session, feeds))
            for name, moved in _scores(session, feeds).items() if scores else ():
                if name in scores and moved.scores.shape == spread[name].shape:
                    with np.errstate(invalid="ignore"):
                        apart = np.abs(moved.scores - scores[name].scores)
                    spread[name] = np.fmax(spread[name], apart)
        given = {name: [r[name] for r in runs if name in r] for name in labels}
        found[sample.id] = MovedLabels(given, scores, spread)
    return found


def _scores(session: Session, feeds: Mapping[str, np.ndarray]) -> Mapping[str, LabelScores]:
    with contextlib.suppress(ArithmeticError, ValueError, RuntimeError, IndexError):
        return extras(session, SessionExtras).label_scores(feeds)
    return {}


def _move(
    feeds: Mapping[str, np.ndarray], kind: np.dtype, seed: int, ulps: int
) -> dict[str, np.ndarray]:
    """Inputs moved by ulps of ``kind``, or of their own type where that has fewer digits."""
    narrow = {}
    for name, value in feeds.items():
        wide = is_float(value.dtype) and unit_roundoff(value.dtype) < unit_roundoff(kind)
        with np.errstate(over="ignore"):
            narrow[name] = value.astype(kind) if wide else value
    moved = move_inputs(narrow, np.random.default_rng(seed), ulps)
    for name, value in feeds.items():
        if moved[name].dtype != value.dtype:
            with np.errstate(invalid="ignore"):
                step = moved[name].astype(value.dtype) - narrow[name].astype(value.dtype)
            moved[name] = value + np.where(np.isfinite(step), step, 0)
    return moved


def further_labels(
    reference: Outputs,
    found: MovedLabels,
    kind: np.dtype,
    jitters: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, OpenLabels]:
    """The labels that rounding may give in place of those of ``reference``, by output.

    Args:
        reference: Outputs of the source.
        found: What the source says on moved inputs.
        kind: The type in which a converted model computes.
        jitters: Outputs of the source as rounding of the weights moves them.
    """
    further: dict[str, OpenLabels] = {}
    for name, moved in found.labels.items():
        label = reference.get(name)
        if label is None:
            continue
        others = [m for m in moved if m.shape == label.shape and np.any(m != label)]
        undecided, classes = np.zeros(label.shape, bool), None
        scores = found.scores.get(name)
        if scores is not None and scores.scores.shape[:-1] == label.shape:
            noise = 2 * found.spread[name].max(axis=-1)
            noise = np.fmax(noise, _noise_of_output(reference, scores.output, label, jitters))
            tied = tied_labels(label, scores, noise, unit_roundoff(kind))
            others, undecided = [*others, *tied.others], tied.undecided
            classes = scores.classes
        further[name] = OpenLabels(others, undecided, classes)
    return further


def _noise_of_output(
    reference: Outputs,
    output: str,
    label: np.ndarray,
    jitters: Sequence[Mapping[str, np.ndarray]],
) -> np.ndarray:
    """How far two scores of a row may come apart, where an output holds them."""
    value = reference.get(output)
    runs = [j[output] for j in jitters if output in j]
    if value is None or not runs or not value.ndim or len(value) != len(label):
        return np.zeros(label.shape)
    with np.errstate(invalid="ignore"):
        apart = np.max([np.abs(r.astype(np.float64) - value) for r in runs], axis=0)
    row = apart.reshape(len(label), -1).max(axis=1)
    row = 2 * THRESHOLDS.jitter_max * np.where(np.isfinite(row), row, 0.0)
    return np.broadcast_to(row.reshape(-1, *[1] * (label.ndim - 1)), label.shape)


def tied_labels(
    label: np.ndarray, by: LabelScores, noise: np.ndarray, roundoff: float
) -> OpenLabels:
    """The labels of which the scores are as large as the largest, up to rounding.

    One array for each rank, with the source's own label where there is no tie. A row whose label is
    none of those that are tied was decided by something else: it has no other.

    Args:
        label: Labels of the source.
        by: The scores.
        noise: How far rounding moves two scores of a label apart.
        roundoff: Of the type in which a converted model computes them.
    """
    scores = np.asarray(by.scores, np.float64)
    # NaN is no smaller than another score: none is the largest.
    unknown = np.asarray(np.isnan(scores).any(axis=-1))
    order = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), axis=-1, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=-1)
    size = np.max(np.abs(scores), axis=-1, where=np.isfinite(scores), initial=0.0)
    # Terms that cancel leave a score that is smaller than what they are rounded by.
    usual = float(np.median(size)) if size.size else 0.0
    bound = TIED_ROUNDOFFS * roundoff * np.maximum(size, usual) + noise
    named = by.classes[order]
    with np.errstate(invalid="ignore"):
        tied = (ranked[..., :1] - ranked <= bound[..., None]) | unknown[..., None]
    own = np.any(tied & (named == label[..., None]), axis=-1)
    others = (np.where(tied[..., r] & own, named[..., r], label) for r in range(scores.shape[-1]))
    kept = [other for other in others if np.any(other != label)]
    return OpenLabels(kept, np.all(tied, axis=-1), by.classes)


def judge_labels(
    judged: Judgement, expected: np.ndarray, came: np.ndarray, further: OpenLabels | None
) -> Judgement:
    """The judgement of labels: rounding may give each that differs, or else there is a fault.

    ``further`` is None where the source could not be run on moved inputs; then few labels are
    undecided, and many as wrong as the noise of the outputs says.
    """
    wrong = np.asarray(expected != came)
    total = int(wrong.sum())
    if further is None and judged.call == "fault" and total > max(1, FEW * wrong.size):
        return judged
    if further is None:
        words = f"{total} of {wrong.size} elements differ; it is not known which rounding decides"
        return Judgement(judged.output, "unsure", exceeds=1.0, detail=words)
    open_ = wrong & further.is_open(came)
    for other in further.others:
        open_ |= wrong & (other == came)
    decided = int((wrong & ~open_).sum())
    if not decided:
        words = f"{total} of {wrong.size} labels differ, which rounding decides in the source too"
        return Judgement(judged.output, "sensitivity", detail=words)
    words = f"{decided} of {wrong.size} elements differ"
    if decided < total:
        words += f" that the source decides, and {total - decided} that rounding does"
    return Judgement(judged.output, "fault", 1.0, 0.0, float("inf"), words)
