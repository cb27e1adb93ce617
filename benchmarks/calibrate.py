"""Calibrates the oracle: plants faults and benign rewrites in zoo models, and judges them all.

``python benchmarks/calibrate.py [--models zoo:squeezenet,...] [--all]``. Every rewrite of
``plants.py`` is applied to every model it fits, run on the same samples, and judged by the engine
exactly as ``vet`` does. How to read the output:

- *missed*: faults that were not reported; *masked*: faults after which every output has the same
  bits, which nobody can find and which count apart; *false*: benign rewrites that were reported.
  What is missed lies within measured noise, as its *exceeds* beside it says. By default these
  are five of 113 faults: where Softmax gives all but 1 and 0 on these samples (wine-logreg with
  weights in half precision, or moved by 0.1 %), or where one element of one bias moves by 0.1 %
  (digits-cnn, squeezenet). They reach 0.02 to 0.96 of what is allowed, benign rewrites up to 0.5.
- *exceeds*: size of a difference in units of what is allowed (above 1 is a fault), the largest over
  samples and outputs; benign ones should stay well below 1, faults well above.
- *roundings*: the same difference in units of roundoff of a slice (``Thresholds.rounding`` is what
  is accepted without measuring noise).
- Other rules on the same data: numpy.allclose with its defaults, with rtol 1e-3 and atol 1e-5, and
  the index of the largest output.

Quantized models come after these, with rewrites of their own, each of which ONNX Runtime optimizes
before it is judged: small ones that are made here from a seed, and real ones that are at hand. Such
a fault is masked if it has no effect before it is optimized: then what differs is rounding.

A model that ONNX Runtime optimizes wrongly all by itself is left out: on processors without VNNI,
its integer kernels saturate sums of two products, and layers are off by a hundred steps.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import machine
import numpy as np
import onnx
import plants

from optvet import Failure, Sample
from optvet.engine.discovery import Plugins
from optvet.engine.judge import outputs, sizes
from optvet.engine.judge.known_noise import Noise
from optvet.engine.judge.thresholds import THRESHOLDS
from optvet.engine.models.sources import resolve_model
from optvet.engine.numerics.floats import unit_roundoff
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.work.cache.disk import Cache, cache_root
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials import noise_floor as measuring
from optvet.engine.work.trials.case import Case, Checks, PassTable
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig
from optvet.engine.work.trials.trial_results import Trial
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.types import Model

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.quantized.models import quantized_model

MODELS = "squeezenet,shufflenet,inception_v1,digits-cnn,digits-mlp,wine-logreg,diabetes-mlp"
MORE = ",resnet50,densenet121,inception_v2"
RULES = ("allclose", "loose", "top-1")
QUANTIZED = {
    "unsigned": {"seed": 1},
    "signed": {"seed": 2, "signed": True, "per_channel": True},
    "channels": {"seed": 3, "per_channel": True, "softmax": True},
    "plain": {"seed": 4, "residual": False},
}
"""Quantized models that are made, by what they are made with."""
AT_HAND = ("kws-dscnn-int8", "mobilenet-v1-0.25-128-int8")
SHARED = Path(__file__).parents[2] / "shared" / "models"


@dataclass
class Row:
    """One rewrite of one model."""

    model: str
    plant: str
    kind: str
    flagged: bool = False
    masked: bool = False
    symptom: str = ""
    detail: str = ""
    exceeds: float = 0.0
    roundings: float = 0.0
    exceeds_of: dict[str, float] = field(default_factory=dict)
    roundings_of: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    rules: dict[str, bool] = field(default_factory=dict)


def examine_model(
    reference: str,
    plugins: Plugins,
    sandbox: Sandbox,
    limit: int,
    seed: int,
    only: Sequence[str],
    *,
    quantized: bool = False,
) -> list[Row]:
    """All rewrites that fit one model, judged."""
    with tempfile.TemporaryDirectory(prefix="optvet-calibrate-") as folder:
        (model,) = resolve_model(reference, plugins, cache_root())
        runtime = plugins.runtime("onnxruntime")
        judge = RuntimeConfig(runtime, runtime.options)
        # A saved ONNX Runtime model need not pass strict shape inference.
        case = Case(
            model,
            plants.PLANTS,
            plants.PLANTS.options,
            judge,
            judge,
            PassTable.of(plants.PLANTS),
            Checks(full=False),
        )
        runner = TrialRunner(case, sandbox, Cache(Path(folder)))
        samples = _samples(model, plugins, limit, seed)
        trial = runner.reference(samples)
        samples = [s for s in samples if not isinstance(trial.runs.get(s.id), Failure | None)]
        examiner = Examiner(runner, samples)
        examiner.learn_reference(trial)
        levels = measuring.measure(runner, samples)
        if quantized:
            alone = examiner.examine(runner.trial((plants.ALONE,), samples, "each"), samples)
            if alone.observation is not None:
                print(f"{Path(reference).stem} is left out: {alone.observation.message[:200]}")
                return []
        rows = []
        for plant in plants.PLANTS.passes():
            if only and plant.name not in only:
                continue
            if plant.name.startswith(plants.QUANTIZED) != quantized or plant.kind == "unoptimized":
                continue
            trial = runner.trial((plant.name,), samples, "each")
            failure = trial.build.failure
            if failure is not None and "NotApplicable" in failure.error_type:
                continue
            row = _judge(reference, plant.name, plant.kind, trial, samples, examiner, levels)
            if quantized and plant.kind == "fault" and not row.masked:
                raw = runner.trial((plants.RAW + plant.name,), samples, "each")
                row.masked = all(_same(examiner.reference[n], r) for n, r in raw.runs.items())
            rows.append(row)
        runner.cache.close()
        return rows


def _samples(model: Model, plugins: Plugins, limit: int, seed: int) -> list[Sample]:
    dataset = plugins.dataset("random")
    return list(
        dataset.samples(  # type: ignore[arg-type]  # random ones are not deferred
            model,
            None,
            dataset.options,
            seed=seed,
            limit=limit,
            probe=lambda feeds: [None] * len(feeds),
        )
    )


def _judge(
    model: str,
    plant: str,
    kind: str,
    trial: Trial,
    samples: Sequence[Sample],
    examiner: Examiner,
    levels: Mapping[str, Noise],
) -> Row:
    found = examiner.examine(trial, samples)
    row = Row(model.removeprefix("zoo:"), plant, kind, flagged=found.observation is not None)
    if found.observation is not None:
        row.symptom = found.observation.symptom.value
        row.detail = found.observation.message[:200]
    for judgement in found.judgements.values():
        row.calls[judgement.call] = row.calls.get(judgement.call, 0) + 1
    pairs = []
    for sample in samples:
        run = trial.runs.get(sample.id)
        if run is not None and not isinstance(run, Failure):
            pairs.append((sample.id, examiner.reference[sample.id], run))
    row.masked = bool(pairs) and all(_same(a, b) for _, a, b in pairs)
    strict = replace(THRESHOLDS, rounding=0.0)
    for name, was, now in pairs:
        judged = outputs.judge(was, now, levels[name], strict)
        row.exceeds_of[name] = max((j.exceeds for j in judged if j.call != "same"), default=0.0)
        row.roundings_of[name] = max((_roundings(was[k], now[k]) for k in was), default=0.0)
    row.exceeds = max(row.exceeds_of.values(), default=math.inf)
    row.roundings = max(row.roundings_of.values(), default=math.inf)
    broken = row.symptom not in ("", "wrong-output")
    row.rules = {
        "allclose": broken or any(not _close(a, b, 1e-5, 1e-8) for _, a, b in pairs),
        "loose": broken or any(not _close(a, b, 1e-3, 1e-5) for _, a, b in pairs),
        "top-1": broken or any(_top(a) != _top(b) for _, a, b in pairs),
    }
    return row


def _same(a: Outputs, b: Outputs | Failure) -> bool:
    return not isinstance(b, Failure) and all(
        v.dtype == b[n].dtype and np.array_equal(v, b[n], equal_nan=v.dtype.kind == "f")
        for n, v in a.items()
    )


def _close(a: Outputs, b: Outputs, rtol: float, atol: float) -> bool:
    return all(
        v.shape == b[n].shape
        and (
            np.allclose(b[n], v, rtol=rtol, atol=atol, equal_nan=True)
            if v.dtype.kind in "fiu"
            else np.array_equal(v, b[n])
        )
        for n, v in a.items()
    )


def _top(outputs: Outputs) -> list[list[int]]:
    found = []
    for value in outputs.values():
        if value.dtype.kind == "f" and value.size > 1:
            flat = value.reshape(value.shape[0], -1) if value.ndim > 1 else value.reshape(1, -1)
            found.append([int(i) for i in np.argmax(flat, axis=1)])
    return found


def _roundings(was: np.ndarray, now: np.ndarray) -> float:
    """Largest difference over all slices, in units of roundoff of the slice's size."""
    if was.dtype.kind != "f" or was.shape != now.shape:
        return 0.0 if was.shape == now.shape and np.array_equal(was, now) else math.inf
    y, z = was.astype(np.float64), now.astype(np.float64)
    u, finite = unit_roundoff(was.dtype), np.isfinite(was) & np.isfinite(now)
    d = np.where(finite, np.abs(np.where(finite, y - z, 0.0)), 0.0)
    y = np.where(finite, y, 0.0)
    if bool(np.all(d <= 4 * u * np.abs(y))):
        return float(np.max(np.divide(d, u * np.abs(y), out=np.zeros_like(d), where=d > 0)))
    worst = 0.0
    for axes in sizes.slices(d.shape):
        for size in (lambda a, x: np.max(np.abs(a), axis=x, keepdims=True), sizes.rms):
            top, bottom = size(d, axes), size(y, axes)
            ratio = np.divide(top, u * bottom, out=np.full_like(top, np.inf), where=bottom > 0)
            worst = max(worst, float(np.max(np.where(top > 0, ratio, 0.0), initial=0.0)))
    return worst


# --- printing -------------------------------------------------------------------------------------


def percentiles(values: Sequence[float], *points: float) -> list[float]:
    """Percentiles that are values themselves, so that infinity is no trouble."""
    ordered = sorted(values)
    if not ordered:
        return [math.nan] * len(points)
    last = len(ordered) - 1
    return [ordered[min(last, math.ceil(p / 100 * last))] for p in points]


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Rates and distributions."""
    benign = [r for r in rows if r.kind == "benign"]
    faults = [r for r in rows if r.kind == "fault" and not r.masked]
    moved = [r for r in benign if not r.masked]
    each = [v for r in moved for v in r.exceeds_of.values()]
    steps = [v for r in moved for v in r.roundings_of.values()]
    return {
        "benign": len(benign),
        "benign_moved": len(moved),
        "false": [f"{r.model}/{r.plant}" for r in benign if r.flagged],
        "faults": len(faults),
        "masked": [f"{r.model}/{r.plant}" for r in rows if r.kind == "fault" and r.masked],
        "missed": [f"{r.model}/{r.plant}" for r in faults if not r.flagged],
        "benign_exceeds": percentiles(each, 50, 99, 100),
        "benign_roundings": percentiles(steps, 50, 90, 99, 100),
        "benign_beyond_rounding": sum(v > THRESHOLDS.rounding for v in steps) / max(len(steps), 1),
        "fault_exceeds": percentiles([r.exceeds for r in faults], 0, 1, 5, 50),
        "fault_roundings": percentiles([r.roundings for r in faults], 0, 1, 5, 50),
        "rules": {
            rule: {
                "false": sum(r.rules[rule] for r in benign),
                "missed": sum(not r.rules[rule] for r in faults),
            }
            for rule in RULES
        },
    }


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.3g}" for v in values)


def _with_size(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The rewrites with the size of their largest difference, in units of what is allowed."""
    return [f"{n} ({r.exceeds:.2g})" for r in rows if (n := f"{r.model}/{r.plant}") in names]


def print_summary(rows: Sequence[Row]) -> None:
    """The tables."""
    s = summary(rows)
    print(f"\nfaults: {s['faults']} seen in the output, {len(s['masked'])} masked")
    print(f"  missed      {len(s['missed'])}: {', '.join(_with_size(rows, s['missed']))}")
    print(f"  masked      {', '.join(s['masked'])}")
    print(f"benign: {s['benign']}, of which {s['benign_moved']} move some bit")
    print(f"  false       {len(s['false'])}: {', '.join(s['false'])}")
    print("other rules, on the same data (benign flagged, faults missed)")
    for rule, counts in s["rules"].items():
        print(f"  {rule:<11} {counts['false']:>3} of {s['benign']}, {counts['missed']:>3} missed")
    print("exceeds (above 1 is a fault), rounding shortcut off, first jitters only")
    print(f"  benign      median, p99, max of samples: {_numbers(s['benign_exceeds'])}")
    print(f"  faults      min, p1, p5, median of rewrites: {_numbers(s['fault_exceeds'])}")
    print(f"roundings (up to {THRESHOLDS.rounding:g} are accepted unmeasured)")
    print(f"  benign      median, p90, p99, max: {_numbers(s['benign_roundings'])}")
    print(f"              beyond the shortcut: {s['benign_beyond_rounding']:.1%} of samples")
    print(f"  faults      min, p1, p5, median: {_numbers(s['fault_roundings'])}")
    print("by rewrite: models, reported, masked; least and largest exceeds; largest roundings")
    for kind in ("fault", "benign"):
        for plant in dict.fromkeys(r.plant for r in rows if r.kind == kind):
            of = [r for r in rows if r.plant == plant]
            seen = [r for r in of if not r.masked] or of
            print(
                f"  {kind:<7}{plant:<26}{len(of):>3}{sum(r.flagged for r in of):>4}"
                f"{sum(r.masked for r in of):>4}   {min(r.exceeds for r in seen):>9.3g} "
                f"{max(r.exceeds for r in seen):>9.3g}   {max(r.roundings for r in seen):>9.3g}"
            )
    far = sorted(
        ((v, r.model, r.plant, n) for r in rows if r.kind == "benign"
         for n, v in r.roundings_of.items() if v > THRESHOLDS.rounding),
        reverse=True,
    )  # fmt: skip
    print(f"benign beyond the shortcut ({len(far)} samples), the largest:")
    for value, model, plant, sample in far[:12]:
        row = next(r for r in rows if (r.model, r.plant) == (model, plant))
        print(f"  {value:>9.3g} roundings, exceeds {row.exceeds_of[sample]:.3g}: "
              f"{model}/{plant} on {sample}")  # fmt: skip


def judge_quantized(
    plugins: Plugins, sandbox: Sandbox, limit: int, seed: int, only: Sequence[str]
) -> list[Row]:
    """All rewrites of quantized models, of those that are made and of those that are at hand."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="optvet-quantized-") as folder:
        paths = []
        for name, made in QUANTIZED.items():
            paths.append(Path(folder) / f"{name}.onnx")
            onnx.save(quantized_model(**made), paths[-1])  # type: ignore[arg-type]
        paths += [p for name in AT_HAND if (p := SHARED / f"{name}.onnx").exists()]
        for path in paths:
            started = time.perf_counter()
            about = (str(path), plugins, sandbox, limit, seed, only)
            new = examine_model(*about, quantized=True)
            rows += [replace(row, model=f"quantized:{path.stem}") for row in new]
            took = time.perf_counter() - started
            print(f"{path.stem}: {len(new)} rewrites judged in {took:.1f} s", flush=True)
    return rows


def print_quantized(rows: Sequence[Row]) -> None:
    """What was found of the faults in quantized models, and what was flagged of the others."""
    s = summary(rows)
    found = s["faults"] - len(s["missed"])
    print(f"\nquantized: {found} of {s['faults']} faults that reach an output found, by rewrite:")
    for line in ("missed", "masked"):
        print(f"  {line:<11} {len(s[line])}: {', '.join(s[line])}")
    print(f"benign: {s['benign']}, of which {s['benign_moved']} move some bit")
    print(f"  false       {len(s['false'])}: {', '.join(s['false'])}")
    for rule, counts in s["rules"].items():
        print(f"  {rule:<11} {counts['false']:>3} of {s['benign']}, {counts['missed']:>3} missed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge every rewrite of every model; 1 if a benign one was reported."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=MODELS, help='names in the zoo, or paths; "" for none')
    parser.add_argument("--all", action="store_true", help=f"also {MORE[1:]}")
    parser.add_argument("--plants", default="", help="only these rewrites")
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    found = machine.environment()
    print(machine.describe(found), flush=True)
    print(f"{THRESHOLDS}; {options.samples} samples, seed {options.seed}", flush=True)
    plugins, rows = Plugins(), list[Row]()
    preload = ("numpy", "onnx", "onnx.checker", "onnxoptimizer", "onnxruntime", "plants")
    names = [n for n in (options.models + (MORE if options.all else "")).split(",") if n]
    only = [n for n in options.plants.split(",") if n]
    with Sandbox(jobs=options.jobs, limits=Limits(), preload=preload) as sandbox:
        for name in names:
            started = time.perf_counter()
            reference = name if Path(name).exists() or ":" in name else f"zoo:{name}"
            new = examine_model(reference, plugins, sandbox, options.samples, options.seed, only)
            rows += new
            took = time.perf_counter() - started
            print(f"{name}: {len(new)} rewrites judged in {took:.1f} s", flush=True)
        quantized = judge_quantized(plugins, sandbox, options.samples, options.seed, only)
    if rows:
        print_summary(rows)
    if quantized:
        print_quantized(quantized)
    if options.json:
        document = {
            "environment": found,
            "thresholds": asdict(THRESHOLDS),
            "summary": summary(rows),
            "quantized": summary(quantized),
            "rows": [asdict(r) for r in (*rows, *quantized)],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(r.flagged for r in (*rows, *quantized) if r.kind == "benign"))


if __name__ == "__main__":
    sys.exit(main())
