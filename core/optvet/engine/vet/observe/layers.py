"""Judges quantized models layer by layer, if their inner values are available.

A difference of an output of such a model is a weak sign of a fault: see
``engine/judge/layer_checks.py``. If outputs after quantizers differ, the layers of the optimized
model are compared on some samples, and their judgement replaces that of the output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from optvet.engine.judge.judgement import Judgement
from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.layer_checks import HALF
from optvet.engine.judge.layer_judgement import WRONG, LayerJudgement, LocalAnswer
from optvet.engine.work.trials import noise_floor as measuring
from optvet.engine.work.trials import quantized_layers
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.quantized_layers import Inspection
from optvet.engine.work.trials.trial_results import Trial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.graph.quantized import may_round_to_integers
from optvet.spec.records import Divergence, LayerRecord, MovedOutput, Quantized
from optvet.spec.types import Sample

SAMPLES = 8
"""Samples on which layers are compared for one pass sequence, those that differ most."""
_LINES = 40
_SEVERITY = ("sound", "skipped", "noise", "coarse", "open", "saturation", "fault")


class Layers:
    """Comparisons of layers, by the pass sequence of the optimized model."""

    def __init__(self, runner: TrialRunner) -> None:
        self.runner = runner
        self._inspections: dict[tuple[str, ...], list[Inspection]] = {}
        self._seen: dict[tuple[str, ...], dict[str, Outputs]] = {}
        self._largest: dict[tuple[str, ...], float] = {}

    def applies(self) -> bool:
        """Whether the original has quantizers of activations."""
        facts = self.runner.reference(()).build.facts
        # The names of the operators are known; the analysis takes a worker.
        if facts is not None and not may_round_to_integers(facts.operators):
            return False
        return measuring.analysis(self.runner).quantizers > 0

    def inspect(
        self, trial: Trial, doubtful: Sequence[tuple[float, Sample]], most: int = SAMPLES
    ) -> None:
        """Compare the layers of the model of ``trial``, on the samples whose outputs differ most.

        Args:
            trial: Runs of the optimized model.
            doubtful: Samples whose outputs may be wrong, each with the size of the difference.
            most: How many samples may be compared, those of former calls included.
        """
        if not doubtful or not self.applies():
            return
        seen = self._seen.setdefault(trial.passes, {})
        ordered = sorted(doubtful, key=lambda d: -d[0])
        room, top = max(most - len(seen), 0), self._largest.get(trial.passes, -1.0)
        chosen = [s for i, (size, s) in enumerate(ordered) if i < room or (not i and size > top)]
        runs = {s.id: r for s in chosen if isinstance(r := trial.runs.get(s.id), dict)}
        new = [s for s in chosen if s.id in runs and not _same(seen.get(s.id), runs[s.id])]
        if not new:
            return
        inspection = quantized_layers.inspect(self.runner, trial.passes, new, runs)
        self._inspections.setdefault(trial.passes, []).append(inspection)
        self._largest[trial.passes] = max(top, ordered[0][0])
        seen.update({s.id: runs[s.id] for s in new})

    def refine_judgement(self, passes: tuple[str, ...], sample: str, j: Judgement) -> Judgement:
        """The judgement of the layers if they cover the output, else ``j``."""
        if j.call not in ("unsure", "fault", "sensitivity") or j.structural:
            return j
        answers = [k for k in self._inspections.get(passes, ()) if k.answer is not None]
        if not answers or not all(_covers(k.answer, j.output) for k in answers if k.answer):
            return j
        wrong = list(_wrong_on(answers, j.output, sample))
        inspected = any(sample in k.samples for k in answers)
        if not inspected and any(
            layer.outcome in WRONG for k in answers for layer in _layers(k, j.output)
        ):
            # A layer is wrong on other samples: that it is right on this one is not known.
            return j
        if wrong:
            worst = max(wrong, key=_size)
            return replace(
                j,
                call="fault",
                noise=None,
                exceeds=max(_size(worst) / HALF, 1.01),
                detail=layer_words(worst),
                layered=True,
            )
        unclear = [x for k in answers for x in _layers(k, j.output) if x.outcome == "open"]
        if unclear and j.call != "fault":
            return j
        if unclear:
            worst = max(unclear, key=_size)
            hidden = f"{len(worst.hidden)} quantized tensors inside it could not be seen"
            words = f"{layer_words(worst)}; {hidden}"
            return replace(j, detail=f"{j.detail}; {words}".lstrip("; "))
        words = _right_words(answers, j.output)
        return replace(j, call="drift", noise=None, exceeds=0.9, detail=words)

    def wrong(
        self, passes: tuple[str, ...], outputs: Collection[str], sample: str
    ) -> LayerRecord | None:
        """The worst layer before ``outputs`` on a sample; None if all are correct."""
        inspections = self._inspections.get(passes, ())
        found = [layer for output in outputs for layer in _wrong_on(inspections, output, sample)]
        return _record(max(found, key=_size), sample) if found else None

    def place(self, passes: tuple[str, ...], layer: str) -> Divergence | None:
        """Where a wrong layer is in both graphs; None if it was not compared."""
        places = (k.places[layer] for k in self._inspections.get(passes, ()) if layer in k.places)
        place = next(places, None)
        if place is None:
            return None
        note = "" if place.after else "the optimizer hides the graph that it makes"
        return Divergence(
            value=layer,
            agreeing=list(place.begins),
            before=_cut(place.before),
            after=_cut(place.after),
            note=note,
        )

    def noise(self, sample: Sample, noise: Noise, *, more: bool = False) -> Noise:
        """``noise`` measured by perturbing values before they are quantized.

        This replaces perturbations of inputs and weights: weights are integers, and the first
        quantizer rounds a perturbed input back to the same integers.
        """
        if not self.applies():
            return noise
        seeds = quantized_layers.MORE_DRAWS if more else quantized_layers.FIRST_DRAWS
        runs = quantized_layers.run_perturbed(self.runner, sample, seeds)
        if not runs:
            return noise
        return replace(noise, jitters=(*noise.jitters, *runs) if more else tuple(runs))

    # --- for the record ----------------------------------------------------------------------

    def record(
        self,
        passes: tuple[str, ...],
        runs: Iterable[tuple[Sample, Outputs, Outputs]],
    ) -> Quantized | None:
        """How the model after ``passes`` was judged; None if its outputs do not differ.

        Args:
            passes: The pass sequence.
            runs: Samples with the outputs of the reference and of the optimized model.
        """
        inspections = self._inspections.get(passes)
        if not inspections:
            return None
        answers = [k for k in inspections if k.answer is not None]
        count = measuring.analysis(self.runner).quantizers
        outputs = self._measure_perturbation(list(runs))
        if not answers:
            return Quantized(
                method="whole run", reason=inspections[0].reason, quantizers=count, outputs=outputs
            )
        worst = _worst(answers).values()
        sound = [v.steps for v, _ in worst if v.outcome == "sound" and v.share is not None]
        layers = [_record(v, s) for v, s in worst if v.outcome != "sound"]
        hidden = any(v.hidden for v, _ in worst)
        first = answers[0].answer
        assert first is not None
        return Quantized(
            method="some layers" if hidden else "layers",
            quantizers=count,
            compared=len(first.layers),
            samples=sum(len(k.samples) for k in answers),
            largest=max(sound, default=None),
            layers=layers,
            outputs=outputs,
        )

    def _measure_perturbation(
        self, runs: Sequence[tuple[Sample, Outputs, Outputs]]
    ) -> list[MovedOutput]:
        """For each output, its difference and the difference that rounding alone causes."""
        steps, found = measuring.analysis(self.runner).steps, []
        for name in runs[0][1] if runs else ():
            errors = [(_apart(a[name], b[name]), s, a[name]) for s, a, b in runs if name in b]
            size, sample, value = max(errors, key=lambda each: each[0], default=(0.0, None, None))
            if not size or sample is None or value is None:
                continue
            unit = steps.get(name) or float(np.max(np.abs(_finite(value)), initial=0.0)) or 1.0
            draws = [
                r[name] for r in quantized_layers.run_perturbed(self.runner, sample) if name in r
            ]
            rounding = max((_apart(value, d) for d in draws), default=None)
            flipped, margin = _flips([(a[name], b[name]) for _, a, b in runs if name in b])
            found.append(
                MovedOutput(
                    name=name,
                    difference=size / unit,
                    rounding=None if rounding is None else rounding / unit,
                    unit="steps" if name in steps else "largest value",
                    flipped=flipped,
                    margin=None if margin is None else margin / unit,
                )
            )
        return found


def _right_words(answers: Sequence[Inspection], output: str) -> str:
    """That the layers before an output are right, and how much could hide in those not seen."""
    sizes = [x.excused for k in answers for x in _layers(k, output) if x.excused is not None]
    if not sizes:
        return "each layer is right"
    hidden = "where tensors inside them could not be seen"
    return f"each layer is right; {hidden}, up to {_number(max(sizes))} steps are excused"


def _cut(lines: Sequence[str]) -> list[str]:
    if len(lines) <= _LINES:
        return list(lines)
    return [*lines[: _LINES - 1], f"… {len(lines) - _LINES + 1} more nodes"]


def layer_words(layer: LayerJudgement) -> str:
    """The fault of a layer, in words."""
    name = repr(layer.node or layer.name)
    what = f"{_chain(layer.operators)} {name}" if layer.operators else f"layer {name}"
    if layer.outcome == "saturation":
        count = len(layer.skipped)
        left = "a quantization that also clips values is left out"
        if count > 1:
            left = f"{count} quantizations that also clip values are left out"
        some = ", ".join(layer.skipped[:2]) + (", …" if count > 2 else "")
        return f"before {what} {left}: {some}"
    if layer.share is None:
        return f"{what} does not follow from the quantized values before it"
    words = f"{what} is up to {_number(layer.steps)} steps from the exact result of its own inputs"
    return f"{words} (0.5 allowed), {layer.share:.1%} of its elements are too far"


def _number(steps: float) -> str:
    return f"{steps:.0f}" if steps >= 10 else f"{steps:.2g}"


def _chain(operators: Sequence[str]) -> str:
    few = list(operators)[-3:]
    return ("… " if len(operators) > len(few) else "") + " → ".join(few)


def _record(layer: LayerJudgement, sample: str) -> LayerRecord:
    return LayerRecord.model_validate(
        {
            "name": layer.name,
            "outcome": layer.outcome,
            "sample": sample,
            "steps": None if layer.share is None else layer.steps,
            "share": layer.share,
            "operators": list(layer.operators),
            "node": layer.node,
            "skipped": list(layer.skipped),
            "hidden": list(layer.hidden),
        }
    )


def _covers(answer: LocalAnswer | None, output: str) -> bool:
    """Whether ``output`` is computed from quantized tensors that were compared."""
    if answer is None:
        return False
    compared = {layer.name for layer in answer.layers}
    return bool(answer.reaching.get(output, frozenset()) & compared)


def _layers(inspection: Inspection, output: str) -> list[LayerJudgement]:
    answer = inspection.answer
    if answer is None:
        return []
    names = answer.reaching.get(output, frozenset())
    return [each for each in (*answer.layers, *answer.ends) if each.name in names]


def _wrong_on(
    inspections: Iterable[Inspection], output: str, sample: str
) -> Iterator[LayerJudgement]:
    """Wrong layers before an output, as they are on one sample."""
    for inspection in inspections:
        for layer in _layers(inspection, output):
            if layer.outcome in WRONG and sample in inspection.samples:
                there = layer.on(inspection.samples.index(sample))
                if there is not None:
                    yield there


def _size(layer: LayerJudgement) -> float:
    return layer.steps


def _worst(answers: Sequence[Inspection]) -> dict[str, tuple[LayerJudgement, str]]:
    """The worst result of each layer, and its sample id, by layer."""
    worst: dict[str, tuple[LayerJudgement, str]] = {}
    for inspection in answers:
        assert inspection.answer is not None
        for layer in (*inspection.answer.layers, *inspection.answer.ends):
            known = worst.get(layer.name)
            rank = _SEVERITY.index(layer.outcome), layer.steps
            if known is None or rank > (_SEVERITY.index(known[0].outcome), known[0].steps):
                worst[layer.name] = layer, inspection.samples[layer.sample]
    return worst


def _same(seen: Outputs | None, run: Outputs) -> bool:
    """Whether a run has the same outputs as the run whose layers were compared."""
    return seen is not None and all(
        n in seen and seen[n].dtype == v.dtype and np.array_equal(seen[n], v, equal_nan=_nan(v))
        for n, v in run.items()
    )


def _nan(value: np.ndarray) -> bool:
    return bool(value.dtype.kind == "f")


def _finite(value: np.ndarray) -> np.ndarray:
    wide = value.astype(np.float64)
    return np.where(np.isfinite(wide), wide, 0.0)


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    if one.shape != other.shape or one.dtype.kind not in "iuf":
        return 0.0
    return float(np.max(np.abs(_finite(one) - _finite(other)), initial=0.0))


def _flips(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[int, float | None]:
    """Number of samples whose argmax differs, and the largest margin among them."""
    margins = []
    for one, other in pairs:
        scores = one.ndim > 0 and 1 < one.size == one.shape[-1]
        if one.shape != other.shape or not scores or one.dtype.kind not in "iuf":
            continue
        a, b = _finite(one).ravel(), _finite(other).ravel()
        if np.argmax(a) != np.argmax(b):
            margins.append(float(a.max() - a[np.argmax(b)]))
    return len(margins), max(margins, default=None)
