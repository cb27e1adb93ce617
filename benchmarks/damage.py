"""Whether a model that was damaged is ever let pass: planted damage to every model, vetted.

    python benchmarks/damage.py [--models FOLDER] [--zoo NAME,…] [--only MODEL,…] [--kinds KIND,…]
        [--limit SAMPLES] [--dataset NAME] [--data FOLDER] [--seed N] [--jobs N] [--json FILE]
        [--before OPTIMIZER] [--behind DECISION,…] [--points]

Every model of the folder and of the zoo is damaged in each way of ``damages.py``: all weights moved
by 1, 3 or 10 %, two channels swapped, a bias zeroed, a bound moved, rows exchanged, … It *shows*
where an output moves by more than 1 % of its range over all samples, or a label flips (the largest
of a row, or a value that is no float), in plain ONNX Runtime without optimizations. Then ``vet``
judges an optimizer whose one pass does that damage, without looking for the culprit.

Damage that shows and that is not called faulty is *excused*. Damage of which no sample shows
anything, so that the model passes, must be among what the answer says was never exercised; else it
is *unexercised without saying so*. Where it is proven that no input can show it, it is *equivalent*
and is not vetted. The table counts verdicts by kind of damage; below it stand the
rows that are excused, with the words of the judgement on the worst sample, and those that are
silent. Exit status 1 if there is one of either, or an error.

With ``--behind Where,If,TopK`` each model is done again with that decision behind its outputs, so
that all of its damage lies behind one. ``--points`` adds models of nearest neighbours, whose stored
points few inputs come near.

With ``--before openvino``, and the like, that optimizer works on each damaged model, so that other
kernels run it than the original; a model that it changes without any damage is left out.

With ``--json`` the rows are kept after each verdict, and what the file has already is not done
again; ``--excused`` does the rows again that were not called faulty.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import damage_models
import damages
import machine
import numpy as np
import onnx
from damage_kinds import Equivalent
from damage_regions import KINDS, damaged_nodes
from damages import DAMAGES, DamagesBefore
from plants import NotApplicable

from optvet import Failure, OptvetError, Sample, Symptom, VetRequest, VetResult
from optvet.engine.discovery import Plugins
from optvet.engine.models.sources import resolve_model
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.run import vet_model
from optvet.engine.vet.session import open_session
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.trials.server_modules import preload_for
from optvet.spec.types import Model

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

SHARED = Path(__file__).parents[2] / "shared"
ZOO = (
    "wine-logreg,diabetes-mlp,digits-mlp,digits-cnn,squeezenet,shufflenet,inception_v1,densenet121,"
    "inception_v2,resnet50"
)
SHOWS = 0.01
"""Share of an output's range that is no rounding of any kind."""
UNMOVED = 1e-6
"""Share of an output's range that rounding may be: what moves no further shows nothing."""
NAMED = 4
"""Damaged nodes that a row names."""
VERDICTS = ("faulty", "drift", "sensitivity", "undecided", "clean", "error")
Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Row:
    """One kind of damage to one model.

    ``moved`` is the largest move of an output relative to its range, ``flips`` how many labels
    flipped; ``reasons`` has the words of each judgement that is not a fault, worst sample first.
    ``damaged`` has names of what was damaged; ``told``: the answer says that it was not exercised.
    """

    model: str
    kind: str
    shows: bool
    moved: float
    flips: int
    verdict: str
    error: float | None = None
    noise: float | None = None
    sample: str = ""
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    damaged: tuple[str, ...] = ()
    told: bool = False

    @property
    def excused(self) -> bool:
        """Whether it shows and the model passed, or was not judged."""
        return self.shows and self.verdict != "faulty"

    @property
    def silent(self) -> bool:
        """Whether no sample shows anything, the model passed, and the answer does not say so."""
        passed = self.verdict in ("clean", "drift", "sensitivity")
        return passed and not self.flips and self.moved <= UNMOVED and not self.told


# --- what shows without optvet --------------------------------------------------------------------


def plain_session(model: bytes) -> InferenceSession:
    """ONNX Runtime without optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_plain(model: bytes, samples: Sequence[Sample]) -> list[Values]:
    """Outputs by name, of each sample."""
    session = plain_session(model)
    names = [o.name for o in session.get_outputs()]
    runs: list[Values] = []
    for sample in samples:
        values = session.run(names, dict(sample.feeds))
        runs.append(dict(part for pair in zip(names, values, strict=True) for part in _flat(*pair)))
    return runs


def _flat(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(f"{name}.{key}", part)
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _flat(f"{name}[{i}]", part)
    else:
        yield name, np.asarray(value)


def effect(before: Sequence[Values], after: Sequence[Values]) -> tuple[float, int]:
    """The largest move of an output relative to its range over all samples, and flipped labels."""
    moved, flips = 0.0, 0
    for name in before[0]:
        pairs = [(b[name], a.get(name)) for b, a in zip(before, after, strict=True) if name in b]
        if any(a is None or a.shape != b.shape or a.dtype != b.dtype for b, a in pairs):
            return float("inf"), flips
        if before[0][name].dtype.kind != "f":
            flips += sum(int(np.sum(b != a)) for b, a in pairs)
            continue
        values = np.concatenate([b.ravel().astype(np.float64) for b, _ in pairs])
        finite = values[np.isfinite(values)]
        span = float(np.ptp(finite)) if finite.size else 0.0
        span = span or float(np.max(np.abs(finite), initial=0.0)) or 1.0
        for b, a in pairs:
            assert a is not None
            y, z = b.astype(np.float64), a.astype(np.float64)
            if not np.array_equal(np.isfinite(y), np.isfinite(z)):
                return float("inf"), flips
            both = np.isfinite(y)
            moved = max(moved, float(np.max(np.abs(y - z), where=both, initial=0.0)) / span)
            if y.ndim == 2 and y.shape[1] > 1:
                flips += int(np.sum(np.argmax(y, 1) != np.argmax(z, 1)))
    return moved, flips


# --- what optvet says -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """What all rows of one model share."""

    model: Model
    plugins: Plugins
    sandbox: Sandbox
    request: VetRequest

    def judge(self, kind: str, before: Sequence[Values], samples: Sequence[Sample]) -> Row | None:
        """The row of one kind of damage; None where there is nothing to damage, or nothing runs."""
        name = self.model.path.stem
        seed = self.request.seed
        try:
            whole = self.model.blob.read_bytes()
            broken = damages.damaged(whole, [kind], seed)
            moved, flips = effect(before, run_plain(broken, samples))
        except Equivalent as why:
            return Row(name, kind, False, 0.0, 0, "equivalent", reasons=(str(why),))
        except NotApplicable:
            return None
        except Exception as error:  # what ONNX Runtime does not run is no damage that passes
            print(f"  {name}, {kind}: not run: {' '.join(str(error).split())[:200]}", flush=True)
            return None
        row = Row(name, kind, moved > SHOWS or flips > 0, moved, flips, "error")
        nodes = damaged_nodes(whole, broken)
        row = replace(row, damaged=tuple(names[0] for names in nodes[:NAMED]))
        asked = self.request.model_copy(update={"pipeline": kind})
        started = time.perf_counter()
        try:
            result = vet_model(self.model, asked, self.plugins, sandbox=self.sandbox)
        except OptvetError as error:
            return replace(row, reasons=(f"{type(error).__name__}: {error}",))
        seconds = round(time.perf_counter() - started, 2)
        row = replace(row, verdict=verdict_of(result), seconds=seconds, **_figures(result))
        row = replace(row, told=tells(result, nodes))
        if row.excused:
            row = replace(row, reasons=(*undecided(result), *self.reasons(asked)))
        return row

    def reasons(self, asked: VetRequest) -> tuple[str, ...]:
        """The judgements of one damage, output by output, the largest errors first."""
        told: list[tuple[float, str]] = []
        with open_session(self.model, asked, self.plugins, sandbox=self.sandbox) as session:
            examiner = Examiner(session.runner, ())
            for chunk in session.inputs().chunks():
                trial = session.runner.reference(chunk)
                usable = [s for s in chunk if not isinstance(trial.runs.get(s.id), Failure | None)]
                examiner.samples = examiner.samples or usable
                examiner.learn_reference(trial)
                made = session.runner.trial(session.case.passes.pipeline, usable, "detect")
                for sample in usable:
                    found = examiner.examine(made, [sample])
                    for j in found.judgements.values():
                        if j.call != "same":
                            told.append((j.error or 0.0, _words(sample, j)))
        return tuple(words for _, words in sorted(told, reverse=True))


def tells(result: VetResult, nodes: Sequence[Sequence[str]]) -> bool:
    """Whether the answer names one of these nodes among what was not exercised."""
    left = result.exercise.unexercised if result.exercise is not None else []
    said = json.dumps([region.model_dump(mode="json") for region in left])
    known = {json.dumps(name)[1:-1] for names in nodes for name in names}
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", said) for name in known)


def _words(sample: Sample, j: Any) -> str:
    sizes = f"error {_short(j.error)}, noise {_short(j.noise)}, exceeds {j.exceeds:.3g}"
    return f"{sample.id}, {j.output}: {j.call}, {sizes}" + (f"; {j.detail}" if j.detail else "")


def verdict_of(result: VetResult) -> str:
    """The verdict, or ``sensitivity`` where a difference was put down to the model's own."""
    if result.verdict in ("clean", "drift"):
        notes = any(f.symptom == Symptom.SENSITIVITY for f in result.findings)
        return "sensitivity" if notes else result.verdict
    return str(result.verdict)


def _figures(result: VetResult) -> dict[str, Any]:
    """Error, noise floor and sample of the finding, else of the output that differs most."""
    for f in result.findings:
        if f.severity == "fault" or f.symptom == Symptom.SENSITIVITY:
            sample = f.witness.sample if f.witness else ""
            return {"error": f.error, "noise": f.noise_floor, "sample": sample}
    worst = max(result.outputs, key=lambda o: o.error or 0.0, default=None)
    return {"error": worst.error, "noise": worst.noise_floor} if worst else {}


def undecided(result: VetResult) -> tuple[str, ...]:
    """Why there is no verdict, in optvet's words."""
    return (result.reason,) if result.verdict == "undecided" else ()


# --- all models -----------------------------------------------------------------------------------


def references(options: argparse.Namespace, folder: Path) -> list[str]:
    """What is asked for: files, the smallest first, then those of the zoo; what is made, there."""
    made = list(damage_models.nearest_neighbours(folder)) if options.points else []
    files = sorted(
        (*options.models.glob("*.onnx"), *made), key=lambda f: (f.stat().st_size, f.name)
    )
    named = [str(f) for f in files] + [f"zoo:{n}" for n in options.zoo.split(",") if n]
    only = [n for n in options.only.split(",") if n]
    return [n for n in named if not only or Path(n).stem.removeprefix("zoo:") in only]


def decided(
    reference: str, decision: str, sandbox: Sandbox, options: argparse.Namespace, folder: Path
) -> str | None:
    """The model with a decision behind its outputs, about the median of its samples; None: no."""
    plugins = planted("")
    (model,) = resolve_model(reference, plugins, folder)
    request = request_of(reference, options, folder, next(iter(KINDS)))
    runs = run_plain(model.blob.read_bytes(), usable_samples(model, request, plugins, sandbox))
    floats = {n: [r[n] for r in runs] for n, v in runs[0].items() if v.dtype == np.float32}
    middle = {
        n: float(np.median(np.concatenate([v.ravel() for v in values])))
        for n, values in floats.items()
    }
    proto = onnx.load_from_string(model.blob.read_bytes())
    if not damage_models.behind(proto, decision, middle):
        return None
    file = folder / f"{model.path.stem}+{decision}.onnx"
    onnx.save(proto, file)
    return str(file)


def usable_samples(
    model: Model, request: VetRequest, plugins: Plugins, sandbox: Sandbox
) -> list[Sample]:
    """The samples of a request that the model accepts."""
    with open_session(model, request, plugins, sandbox=sandbox) as session:
        given = [s for chunk in session.inputs().chunks() for s in chunk]
        runs = session.runner.reference(given).runs
        return [s for s in given if not isinstance(runs.get(s.id), Failure | None)]


def request_of(reference: str, options: argparse.Namespace, cache: Path, kind: str) -> VetRequest:
    """What vet is asked of one kind of damage."""
    datasets = (f"auto:{options.data}",) if options.data else tuple(options.dataset)
    return VetRequest(
        model=reference,
        optimizer=DAMAGES.name,
        optimizer_options={"seed": options.seed},
        pipeline=kind,
        strategy="none",
        limit=options.limit,
        dataset=datasets,
        seed=options.seed,
        jobs=options.jobs,
        cache_dir=cache,
    )


def rows_of(
    reference: str,
    sandbox: Sandbox,
    options: argparse.Namespace,
    cache: Path,
    kinds: Sequence[str],
) -> Iterator[Row]:
    """The rows of one model, as they come."""
    plugins = planted(options.before)
    (model,) = resolve_model(reference, plugins, cache)
    request = request_of(reference, options, cache, kinds[0])
    if options.before:
        alone = {"optimizer": options.before, "optimizer_options": {}, "pipeline": "default"}
        sound = vet_model(model, request.model_copy(update=alone), plugins)
        if sound.verdict not in ("clean", "drift"):
            print(f"{model.path.stem}: left out, {sound.verdict} without damage", flush=True)
            return
    bench = Bench(model, plugins, sandbox, request)
    samples = usable_samples(model, request, plugins, sandbox)
    before = run_plain(model.blob.read_bytes(), samples)
    for kind in kinds:
        row = bench.judge(kind, before, samples)
        if row is not None:
            yield row


def planted(before: str) -> Plugins:
    """What is installed, and the optimizer that does damage."""
    plugins = Plugins()
    other = DamagesBefore(plugins.optimizer(before)) if before else DAMAGES
    return plugins.register("optimizer", other)


@contextmanager
def one_pool(options: argparse.Namespace) -> Iterator[Sandbox]:
    """The processes of all vets."""
    plugins = planted(options.before)
    preload = preload_for(plugins.optimizer(DAMAGES.name), plugins.runtime("onnxruntime"))
    with Sandbox(jobs=options.jobs, limits=Limits(), preload=preload) as sandbox:
        yield sandbox


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.2g}"


def line_of(row: Row) -> str:
    """One damage that passed: what was damaged, and what optvet says of it."""
    moved = f"moved {_short(row.moved)} of the range, {row.flips} labels"
    where = f" on {row.sample}" if row.sample else ""
    return (
        f"- {row.model}, {row.kind} at {', '.join(row.damaged)}: {row.verdict}, error "
        f"{_short(row.error)}, noise {_short(row.noise)}{where} ({moved}): "
        f"{'; '.join(row.reasons[:1])}"
    )


def print_row(row: Row) -> None:
    """One row, as it comes."""
    words = f"{'shows' if row.shows else 'hidden'}, {row.verdict}, {row.seconds:.1f} s"
    print(f"{row.model}, {row.kind}: {words}", flush=True)
    if row.excused or row.silent:
        print(line_of(row), flush=True)


def print_table(rows: Sequence[Row]) -> None:
    """By kind: how many were done, how many show, and what these were called."""
    print(f"\n| damage | models | shows | {' | '.join(VERDICTS)} |")
    print("|" + "---|" * (len(VERDICTS) + 3))
    for kind in (*KINDS, ""):
        of = [r for r in rows if kind in ("", r.kind)]
        shown = [r for r in of if r.shows]
        count = Counter(r.verdict for r in shown)
        cells = " | ".join(str(count[v]) for v in VERDICTS)
        print(f"| {kind or 'all'} | {len(of)} | {len(shown)} | {cells} |")
    excused, silent = [r for r in rows if r.excused], [r for r in rows if r.silent]
    print(f"\n{len(excused)} excused: they show, and were not called faulty")
    print(*map(line_of, excused), sep="\n")
    print(f"\n{len(silent)} unexercised without saying so")
    print(*map(line_of, silent), sep="\n")
    hidden = Counter("said unexercised" if r.told else r.verdict for r in rows if not r.shows)
    print("\nthose that do not show:", ", ".join(f"{n} {v}" for v, n in hidden.most_common()))


def keep(file: Path | None, about: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write the document, if one is wanted, in place of the former."""
    if file is not None:
        document = {**about, "rows": [asdict(r) for r in rows]}
        fresh = file.with_suffix(".partial")
        fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        fresh.replace(file)


def kept(file: Path | None, about: Mapping[str, Any]) -> list[Row]:
    """The rows of a former run with the same seed and samples."""
    if file is None or not file.is_file():
        return []
    document = json.loads(file.read_text(encoding="utf-8"))
    if document["asked"] != about["asked"]:
        raise SystemExit(f"{file}: of other samples: {document['asked']}")
    rows: list[dict[str, Any]] = document["rows"]
    for r in rows:
        r["reasons"], r["damaged"] = tuple(r["reasons"]), tuple(r["damaged"])
    return [Row(**r) for r in rows]


def main() -> int:
    """Damage and judge; 1 if what shows was called clean or drift."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    shared = Path(os.environ.get("OPTVET_TEST_DATA", SHARED)) / "models"
    parser.add_argument("--models", type=Path, default=shared, help="folder of ONNX files")
    parser.add_argument("--zoo", default=ZOO, help='names in the zoo; "" for none')
    parser.add_argument("--only", default="", help="only these models, without .onnx")
    parser.add_argument("--kinds", default="", help="only these kinds of damage")
    parser.add_argument("--limit", type=int, help="samples per model; the default of the dataset")
    parser.add_argument("--dataset", action="append", default=[], help="instead of the default")
    parser.add_argument("--data", type=Path, help="folder of real inputs")
    parser.add_argument("--before", default="", metavar="OPTIMIZER", help="works on the damaged")
    parser.add_argument("--behind", default="", help="decisions: Where, If, TopK")
    parser.add_argument("--points", action="store_true", help="models of nearest neighbours, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows are kept and taken here")
    parser.add_argument("--excused", action="store_true", help="do excused rows of FILE again")
    options = parser.parse_args()
    kinds = [k for k in options.kinds.split(",") if k] or list(KINDS)
    if unknown := [k for k in kinds if k not in KINDS]:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(KINDS)}")
    deciding = ["", *(d for d in options.behind.split(",") if d)]
    if wrong := set(deciding[1:]) - set(damage_models.DECISIONS):
        parser.error(f"unknown: {', '.join(wrong)}; known are {', '.join(damage_models.DECISIONS)}")
    found = machine.environment()
    print(machine.describe(found), flush=True)
    data = str(options.data) if options.data else options.dataset
    asked = {"limit": options.limit, "data": data, "seed": options.seed}
    asked |= {"before": options.before} if options.before else {}
    about = {"environment": found, "asked": asked}
    rows = kept(options.json, about)
    again = {(r.model, r.kind) for r in rows if r.excused or r.silent}
    again &= {(r.model, r.kind) for r in rows} if options.excused else set()
    rows = [r for r in rows if (r.model, r.kind) not in again]
    done = {(r.model, r.kind) for r in rows}
    with tempfile.TemporaryDirectory(prefix="optvet-damage-") as made, one_pool(options) as p:
        for reference, decision in itertools.product(references(options, Path(made)), deciding):
            plain = Path(reference).stem.removeprefix("zoo:")
            name = f"{plain}+{decision}" if decision else plain
            todo = [k for k in kinds if (name, k) not in done]
            if options.excused:
                todo = [k for k in todo if (name, k) in again]
            if not todo:
                continue
            try:
                given: str | None = reference
                if decision:
                    given = decided(reference, decision, p, options, Path(made))
                for row in rows_of(given, p, options, Path(made), todo) if given else ():
                    rows.append(row)
                    keep(options.json, about, rows)
                    print_row(row)
            except OptvetError as error:
                print(f"{name}: not vetted: {error}", flush=True)
    print_table(rows)
    return int(any(r.excused or r.silent or r.verdict == "error" for r in rows))


if __name__ == "__main__":
    sys.exit(main())
