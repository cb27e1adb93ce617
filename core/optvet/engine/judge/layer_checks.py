"""Judges each layer of an optimized quantized model on that model's own integers.

At the outputs of a quantized model, rounding and small faults cannot be distinguished: one tie that
is rounded the other way changes later layers by whole steps. Layer by layer they can. The exact
result of a layer is computed from the integers that the optimized model itself fed to it; a correct
kernel is within half a step of it, in a layer of any depth. For a larger difference, three legal
causes are tried: a rounding that was left out, a kernel in fixed-point arithmetic, and rounding of
tensors whose values are not available. If none explains it, the layer is faulty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import ModelProto

from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.layer_judgement import LayerJudgement, LocalAnswer, Outcome
from optvet.engine.judge.outputs import judge
from optvet.engine.judge.rounding_choices import CHOOSABLE, choices_of, in_batches
from optvet.engine.numerics import perturb, rounding
from optvet.engine.numerics.forced import CutRegion, Plain, cut, regions
from optvet.engine.numerics.matching import InnerValues, Match, Run, Values, forced_inputs
from optvet.graph.cost import longest_reduction
from optvet.graph.quantized import Array

HALF = 0.51
"""Largest error of a correct kernel, in steps: half a step plus float rounding. Measured: at
most 0.5003, over 984 tensors of 20 models and two runtimes."""
COARSE, COARSE_MEAN, COARSE_LAYERS = 0.75, 0.15, 3
"""Limits for fixed-point requantization: its error is at most 0.625 steps, 0.125 on average, and
it is used in every layer."""
DRAWS, FEW_DRAWS = 8, 2
MOVE = 2e-3
"""Largest perturbation, in steps, before a quantizer whose integers are not available."""
_OF_ITS_OWN, _OF_ANY = 4, 8
"""How many times as far as hidden values move an element, or the most moved one, it may be off."""
_FEW_LEFT = 0.01
"""Share of elements that roundings left out may not explain, where others are unavailable."""


# --- judging --------------------------------------------------------------------------------------


@dataclass
class _End:
    """The differences at the end of one part of the cut model."""

    name: str
    region: CutRegion
    steps: float = 0.0
    share: float | None = None
    mean: float = 0.0
    sample: int = 0
    beyond: int = 0
    bad_on: list[tuple[int, float, float | None]] = field(default_factory=list)
    detail: str = ""
    outcome: Outcome = "sound"
    skipped: tuple[str, ...] = ()
    excused: float | None = None

    @property
    def bad(self) -> bool:
        """Whether it is beyond the limit on some sample."""
        return bool(self.bad_on)


def check(
    original: Plain,
    run: Run,
    feeds: Sequence[Values],
    inner: Sequence[InnerValues],
    matches: Mapping[str, Match],
    noise: Noise,
) -> LocalAnswer:
    """Judge every layer of the optimized model on its own inputs.

    Args:
        original: The original model.
        run: Runs models with the runtime and options of the original.
        feeds: Inputs, by sample.
        inner: Values of the optimized model on each of them.
        matches: Its quantized tensors, by those of the original.
        noise: The noise of the outputs as the graph implies it, without measurements.
    """
    return _LayerCheck(original, run, feeds, inner, dict(matches), noise).answer()


class _LayerCheck:
    """One check: all layers as they are; then the three legal causes, one after the other."""

    def __init__(
        self,
        original: Plain,
        run: Run,
        feeds: Sequence[Values],
        inner: Sequence[InnerValues],
        matches: dict[str, Match],
        noise: Noise,
    ) -> None:
        self._original, self._run, self._feeds = original, run, feeds
        self._inner, self._matches, self._noise = inner, matches, noise
        self._by_name = {q.name: q for q in original.quantizers}

    def answer(self) -> LocalAnswer:
        ends = self._measure(None)
        # A wrong match looks like a wrong layer. It is dropped only if all is right without it.
        doubtful = self._doubtful_matches(ends)
        if doubtful:
            ends = self._without(doubtful, ends)
        self._explain(ends)
        layers = tuple(_layer(e) for e in ends.values() if e.name in self._matches)
        parts = tuple(_layer(e) for e in ends.values() if e.name not in self._matches)
        return LocalAnswer(layers, parts, len(self._original.quantizers), self._reaching(ends))

    # --- one look ----------------------------------------------------------------------------

    def _runs(self, model: ModelProto, seed: int | None = None) -> Iterator[dict[str, Array]]:
        fed = []
        for feeds, inner in zip(self._feeds, self._inner, strict=True):
            if seed is not None:
                feeds = perturb.jitter_feeds(feeds, np.random.default_rng(seed))
            fed.append({**feeds, **forced_inputs(self._original, self._matches, inner)})
        return iter(self._run(model, fed))

    def _measure(self, skipped: Mapping[str, bool] | None) -> dict[str, _End]:
        """All ends, each with its differences on its worst sample."""
        model = cut(self._original, self._matches, skipped)
        parts = regions(self._original, self._matches)
        ends = {n: _End(n, r) for n, r in parts.items() if self._is_end(n)}
        noise = replace(
            self._noise,
            longest_reduction=longest_reduction(model),
            exact=_exact(model, self._original.outputs),
        )
        for index, values in enumerate(self._runs(model)):
            for end in ends.values():
                if end.name in self._matches:
                    self._compare_layer(end, index, values)
                else:
                    self._compare_output(end, index, values, noise)
        return ends

    def _is_end(self, name: str) -> bool:
        return name in self._matches or name in self._original.outputs

    def _compare_layer(self, end: _End, index: int, values: Values) -> None:
        quantizer, source = self._by_name[end.name], self._by_name[end.name].source
        value = values[source] if source in values else self._feeds[index][source]
        errors = self._errors_in_steps(end.name, index, quantizer.grid.unrounded_steps(value))
        worst = float(np.max(np.abs(errors), initial=0.0))
        share = float(np.mean(np.abs(errors) > HALF)) if errors.size else 0.0
        if worst > end.steps or index == 0:
            end.steps, end.sample, end.share = worst, index, share
            end.mean = float(np.mean(errors)) if errors.size else 0.0
        if worst > HALF:
            end.bad_on.append((index, worst, share))
        end.beyond += int(np.sum(np.abs(errors) > HALF))

    def _errors_in_steps(self, name: str, index: int, exact: Array) -> Array:
        """Signed differences of integers from the exact result, in steps; 0 for NaN."""
        ours = self._matches[name].read(self._inner[index], self._by_name[name].grid)
        with np.errstate(invalid="ignore"):
            errors = ours.astype(np.float64) - exact
        return np.where(np.isnan(errors), 0.0, errors)

    def _compare_output(self, end: _End, index: int, values: Values, noise: Noise) -> None:
        name = end.name
        if name in self._by_name:  # quantized, integers not available: compared directly
            source = self._by_name[name].source
            value = values[source] if source in values else self._feeds[index][source]
            grid = self._by_name[name].grid
            exact = np.rint(grid.unrounded_steps(value)).astype(
                self._inner[index].outputs[name].dtype
            )
            values = {name: exact}
        if name not in values or name not in self._inner[index].outputs:
            return
        (j,) = judge({name: values[name]}, {name: self._inner[index].outputs[name]}, noise)
        size = j.exceeds if j.call == "fault" else j.error or 0.0
        bad = j.call not in ("same", "drift")
        if (bad, size) > (end.bad, end.steps):
            end.steps, end.sample, end.detail = size, index, j.detail
        if bad:
            end.bad_on.append((index, size, None))

    # --- what explains what is off ---------------------------------------------------------------

    def _doubtful_matches(self, ends: Mapping[str, _End]) -> set[str]:
        """Tensors whose match by scale may be wrong, by their values."""
        return {
            e.name
            for e in ends.values()
            if e.bad and e.name in self._matches and self._matches[e.name].name != e.name
            and ((e.share or 0.0) > 0.25 or not self._matches[e.name].by_scale)
        }  # fmt: skip

    def _without(self, doubtful: set[str], ends: dict[str, _End]) -> dict[str, _End]:
        """The ends without the doubtful matches, if no end is wrong then; else ``ends``."""
        kept = self._matches
        self._matches = {n: m for n, m in kept.items() if n not in doubtful}
        again = self._measure(None)
        self._explain(again)
        # Noise does not explain it: rounding of an unavailable tensor may hide a fault.
        if any(e.outcome not in ("sound", "skipped") for e in again.values()):
            self._matches = kept
            return ends
        return again

    def _explain(self, ends: dict[str, _End]) -> None:
        bad = [e for e in ends.values() if e.bad and e.outcome == "sound"]
        if not bad:
            return
        nearest: dict[str, tuple[str, ...]] = {}
        # The order matters. Coarse kernels allow more than half a step to every element, which
        # would hide what the two causes before explain exactly. Roundings left out together with
        # their clipping come last: that changes values, and is named saturation.
        left = self._less_rounding(bad, clipped=True, nearest=nearest)
        left = self._unseen(left, nearest)
        left = self._coarse(left)
        kept = list(left)
        for end in self._less_rounding(left, clipped=False):
            # With many unavailable roundings, not every choice was tried.
            end.outcome = "fault" if len(end.region.inside) <= CHOOSABLE else "open"
        for end in kept:
            if end.outcome == "skipped":
                end.outcome = "saturation"

    def _less_rounding(
        self,
        bad: Sequence[_End],
        *,
        clipped: bool,
        nearest: dict[str, tuple[str, ...]] | None = None,
    ) -> list[_End]:
        """Those of ``bad`` that no left-out roundings explain; the others are marked as explained.

        Each part has its own list of choices. The n-th choices of all parts are tried in one run,
        but for those of parts that share quantizers, where one choice would change the other.
        ``nearest`` gets the choice that leaves the fewest elements of a part unexplained, if one
        leaves a small share of them.
        """
        fewest = {e.name: e.beyond * _FEW_LEFT for e in bad}
        choices = {e.name: list(choices_of(self._original, e.region)) for e in bad}
        left = list(bad)
        for number in range(max((len(c) for c in choices.values()), default=0)):
            tried = {e.name: choices[e.name][number] for e in left if number < len(choices[e.name])}
            if not tried:
                break
            for batch in in_batches(tried, {e.name: frozenset(e.region.inside) for e in left}):
                names = set().union(*(tried[name] for name in batch))
                again = self._measure(dict.fromkeys(names, clipped))
                for end in [e for e in left if e.name in batch]:
                    if not again[end.name].bad:
                        end.outcome, end.skipped = "skipped", tried[end.name]
                        left.remove(end)
                    elif nearest is not None and again[end.name].beyond < fewest[end.name]:
                        fewest[end.name] = again[end.name].beyond
                        nearest[end.name] = tried[end.name]
        return left

    def _unseen(self, bad: Sequence[_End], nearest: Mapping[str, tuple[str, ...]]) -> list[_End]:
        """Those of ``bad`` that float rounding and ties of unavailable tensors do not explain.

        ``nearest``: the roundings whose absence explains most of a part.
        """
        choices = {e.name: nearest.get(e.name, ()) for e in bad}
        for batch in in_batches(choices, {e.name: frozenset(e.region.inside) for e in bad}):
            ends = [e for e in bad if e.name in batch]
            self._move(ends, tuple({n for name in batch for n in choices[name]}))
            for end in ends:
                if end.outcome == "noise":
                    end.skipped = choices[end.name]
        return [e for e in bad if e.outcome != "noise"]

    def _move(self, bad: Sequence[_End], skipped: Sequence[str]) -> None:
        """Mark those of ``bad`` as noise that differ as they do when hidden values are moved."""
        lows: dict[tuple[str, int], Array] = {}
        highs: dict[tuple[str, int], Array] = {}
        jitters: dict[tuple[str, int], list[Array]] = {}
        hidden = {q for e in bad for q in e.region.inside} - set(skipped)
        less = dict.fromkeys(skipped, True)
        for seed in range((DRAWS if hidden else FEW_DRAWS) + 1):
            moved = hidden if seed else ()
            model = cut(self._original, self._matches, less, moved, seed=seed, steps=MOVE)
            if seed:
                model = perturb.jitter_model(model, np.random.default_rng(seed))
            for index, values in enumerate(self._runs(model, seed or None)):
                for end in bad:
                    key = end.name, index
                    value = self._compute_expected(end.name, index, values)
                    if value is None:
                        continue
                    if end.name not in self._matches:
                        jitters.setdefault(key, []).append(value)
                        continue
                    lows[key] = np.fmin(lows.get(key, value), value)
                    highs[key] = np.fmax(highs.get(key, value), value)
        for end in bad:
            self._within(end, lows, highs, jitters)

    def _compute_expected(self, name: str, index: int, values: Values) -> Array | None:
        if name in self._matches:
            quantizer = self._by_name[name]
            source = quantizer.source
            value = values[source] if source in values else self._feeds[index][source]
            return quantizer.grid.unrounded_steps(value)
        return values.get(name)

    def _within(
        self,
        end: _End,
        lows: Mapping[tuple[str, int], Array],
        highs: Mapping[tuple[str, int], Array],
        jitters: Mapping[tuple[str, int], list[Array]],
    ) -> bool:
        for index in range(len(self._feeds)):
            key = end.name, index
            if key in lows:
                middle, reach = (lows[key] + highs[key]) / 2, (highs[key] - lows[key]) / 2
                errors = np.abs(self._errors_in_steps(end.name, index, middle))
                inside = bool(end.region.inside) and _few_moves(errors, reach)
                if bool(np.any(errors > HALF + _OF_ITS_OWN * reach)) and not inside:
                    return False
                most = HALF + (_OF_ANY if inside else _OF_ITS_OWN) * float(reach.max(initial=0.0))
                end.excused = max(end.excused or 0.0, most)
            elif key in jitters:
                first, *others = jitters[key]
                noise = replace(
                    self._noise,
                    jitters=tuple({end.name: v} for v in others),
                    discontinuous=frozenset({end.name} if end.region.inside else ()),
                    measured=True,
                )
                ours = self._inner[index].outputs[end.name]
                (j,) = judge({end.name: first}, {end.name: ours}, noise)
                if j.call == "fault":
                    return False
        end.outcome = "noise"
        return True

    def _coarse(self, bad: Sequence[_End]) -> list[_End]:
        """Those of ``bad`` that fixed-point arithmetic in every layer does not explain."""
        of_kind: dict[tuple[str, ...], list[_End]] = {}
        for end in bad:
            if end.name in self._matches and end.steps <= COARSE and abs(end.mean) <= COARSE_MEAN:
                of_kind.setdefault(end.region.operators, []).append(end)
        for ends in of_kind.values():
            if len(ends) >= COARSE_LAYERS:
                for end in ends:
                    end.outcome = "coarse"
        return [e for e in bad if e.outcome == "sound"]

    def _reaching(self, ends: Mapping[str, _End]) -> dict[str, frozenset[str]]:
        """The names of the layers from which each output is computed."""
        found = {}
        for output in self._original.outputs:
            todo, seen = [output], set[str]()
            while todo:
                name = todo.pop()
                if name not in seen and name in ends:
                    seen.add(name)
                    todo += ends[name].region.begins
            found[output] = frozenset(seen)
        return found


def _few_moves(errors: Array, reach: Array) -> bool:
    """Whether a layer differs no more than after perturbing roundings that are not available.

    Each element may then differ as much as the most changed element did, and about as many.
    """
    if np.sum(errors > HALF) > 2 * np.sum(reach > HALF - 0.5):
        return False
    allowed = HALF + _OF_ANY * float(np.max(reach, initial=0.0))
    rms = [float(np.sqrt(np.mean(np.square(v)))) if v.size else 0.0 for v in (errors, reach)]
    return bool(np.all(errors <= allowed)) and rms[0] <= HALF + 6 * rms[1]


def _exact(model: ModelProto, outputs: Sequence[str]) -> frozenset[str]:
    return frozenset(outputs) - rounding.can_round(model)


def _layer(end: _End) -> LayerJudgement:
    hidden = tuple(n for n in end.region.inside if n not in end.skipped)
    return LayerJudgement(
        end.name,
        end.outcome,
        end.sample,
        end.steps,
        end.share,
        end.skipped,
        hidden,
        end.region.operators,
        end.region.node,
        end.region.begins,
        end.detail,
        tuple(end.bad_on),
        end.excused if end.outcome == "noise" else None,
    )


# --- without a look inside ------------------------------------------------------------------------


def run_perturbed(
    original: Plain, run: Run, feeds: Values, seeds: Sequence[int]
) -> list[dict[str, Array]]:
    """Outputs of the original with each value perturbed before it is quantized, by seed."""
    every = [q.name for q in original.quantizers]
    runs: list[dict[str, Array]] = []
    for seed in seeds:
        model = cut(original, (), None, every, seed=seed, steps=1e-3)
        del model.graph.output[len(original.outputs) :]
        model = perturb.jitter_model(model, np.random.default_rng(seed))
        fed = perturb.jitter_feeds(feeds, np.random.default_rng(seed))
        runs.extend(self_outputs(original, each) for each in run(model, [fed]))
    return runs


def self_outputs(original: Plain, values: Values) -> dict[str, Array]:
    """The values that are outputs of the original."""
    return {n: values[n] for n in original.outputs if n in values}
