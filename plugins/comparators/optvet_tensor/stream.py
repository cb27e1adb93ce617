"""Models that carry a state from frame to frame: compared where successive frames leave them.

One frame hides what adds up: a small error of the state is fed back, and may grow or fade. So both
models run over several frames, each fed with its own state, and are compared at the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from optvet.plugin import Comparison, InputError, Model, Run, Sample, Summary, ValueInfo
from optvet_tensor import tensor_metrics

VERSION = 1
"""Raised when the same model, sample and options are run otherwise."""
_TASK = re.compile(
    r"voice.activity|\bvad\b|(speech|audio|voice).enhancement|noise.suppression|streaming"
)
_AROUND = re.compile(r"^(new|next|out|updated)_|_?(out|output|new|next|updated|in|input|n)$")
_STATE = re.compile(r"state|cache|hidden|memory|buffer|lstm|gru|^[hc]\d*$")


class StreamOptions(BaseModel):
    """How many frames, and which inputs take which outputs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    frames: int = Field(default=8, ge=2, le=1000)
    """Frames that are run. The first is the sample's own; those that follow are the same one,
    turned along its longest axis.
    """
    states: dict[str, str] = {}
    """The output that each input of a state is fed with; found by their names where it is empty."""
    visible: float = Field(default=0.01, ge=0)
    """Share of an output's largest value by which the last frame must move to count as changed."""


class StreamComparator:
    """Differences after several frames, of outputs and of the state itself."""

    name = "stream"
    options: StreamOptions = StreamOptions()

    def matches(self, model: Model, outputs: Mapping[str, np.ndarray]) -> float:
        """0.92 for a declared task of sound with a state; 0.5 for a state alone; else 0."""
        states = states_of(model, self.options)
        if not states or len(states) == len(model.inputs):
            return 0.0
        return 0.92 if _TASK.search((model.task or "").lower()) else 0.5 * (model.task is None)

    def metrics(self, options: StreamOptions) -> Sequence[str]:
        """Every metric of a summary."""
        return ("max_change", "max_abs", "rmse", "cosine", "state_change", "frames")

    def decoder(self, model: Model, options: StreamOptions) -> str:
        """The version; options are known anyway."""
        return str(VERSION)

    def decode(
        self, model: Model, sample: Sample, run: Run, options: StreamOptions
    ) -> Mapping[str, np.ndarray]:
        """The outputs on the last frame, by their names."""
        states = states_of(model, options)
        carried = {name: sample.feeds[name] for name in states if name in sample.feeds}
        outputs: Mapping[str, np.ndarray] = {}
        for number in range(options.frames):
            fresh = {
                n: turned(v, number, options.frames)
                for n, v in sample.feeds.items()
                if n not in carried
            }
            outputs = run({**fresh, **carried})
            carried = {n: outputs[states[n]] for n in carried if states[n] in outputs}
        return dict(outputs)

    def compare(
        self,
        model: Model,
        sample: Sample,
        reference: Mapping[str, np.ndarray],
        candidate: Mapping[str, np.ndarray],
        options: StreamOptions,
        *,
        noise: Mapping[str, float],
    ) -> Comparison:
        """The worst of all outputs; ``state_change`` that of the states alone.

        ``noise`` is that of one frame, and so many times as there are frames is allowed for: what
        moves visibly within that is sensitive, not changed.
        """
        numbers = [n for n, v in reference.items() if v.dtype.kind in "fiu"]
        if not numbers:
            raise InputError(
                "comparator 'stream': there is no output of numbers among "
                f"{', '.join(map(repr, reference))}; choose another with --comparator"
            )
        states = set(states_of(model, options).values())
        parts = {
            n: tensor_metrics(reference[n], candidate[n], options.frames * noise.get(n, 0.0))
            for n in numbers
        }
        metrics = {
            "max_change": max(p["max_change"] for p in parts.values()),
            "max_abs": max(p["max_abs"] for p in parts.values()),
            "rmse": max(p["rmse"] for p in parts.values()),
            "cosine": min(p["cosine"] for p in parts.values()),
            "state_change": max((parts[n]["max_change"] for n in parts if n in states), default=0),
            "frames": float(options.frames),
        }
        lost = any(p["nonfinite"] > 0 for p in parts.values())
        seen = [p for p in parts.values() if p["max_change"] > options.visible]
        changed = lost or any(p["beyond_noise"] > 0 for p in seen)
        return Comparison(
            sample.id, metrics, changed, bool(seen) and not changed, {"outputs": parts}
        )

    def summarise(self, comparisons: Sequence[Comparison], options: StreamOptions) -> Summary:
        """The worst of each metric."""
        metrics = {
            k: (min if k == "cosine" else max)(c.metrics[k] for c in comparisons)
            for k in comparisons[0].metrics
        }
        changed = sum(c.changed for c in comparisons)
        headline = f"{changed} of {len(comparisons)} streams changed after {options.frames} frames"
        undecided = sum(c.sensitive for c in comparisons)
        if undecided:
            headline += f", {undecided} undecided"
        top = metrics["max_change"]
        if 0 < top < np.inf:
            headline += f"; moved by up to {top:.2g} of the largest value"
        return Summary(metrics, headline)


def states_of(model: Model, options: StreamOptions) -> dict[str, str]:
    """The output by which each input of a state is fed in the next frame.

    A state has one name on both sides but for words such as "new", "out" and "n", a name that
    says so ("state", "cache", "h"), one type, and shapes that may be equal.
    """
    if options.states:
        return dict(options.states)
    outputs = {stem(o.name): o for o in model.outputs}
    return {
        i.name: o.name
        for i in model.inputs
        if (o := outputs.get(stem(i.name))) is not None
        and _STATE.search(stem(i.name))
        and _fits(i, o)
    }


def stem(name: str) -> str:
    """A name without what tells new from old.

    >>> stem("stateN"), stem("conv_cache_out"), stem("hn")
    ('state', 'conv_cache', 'h')
    """
    return _AROUND.sub("", name.lower())


def _fits(old: ValueInfo, new: ValueInfo) -> bool:
    if old.dtype != new.dtype:
        return False
    if old.shape is None or new.shape is None:
        return True
    pairs = zip(old.shape, new.shape, strict=False)
    known = all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
    return known and len(old.shape) == len(new.shape)


def turned(value: np.ndarray, number: int, frames: int) -> np.ndarray:
    """The ``number``-th of ``frames`` frames: a float one is turned along its longest axis."""
    if value.dtype.kind != "f" or value.size < 2:
        return value
    axis = int(np.argmax(value.shape))
    return np.roll(value, number * value.shape[axis] // frames, axis)
