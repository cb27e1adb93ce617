"""optvet against the straightforward loop, and against the bare cost of the necessary work.

``python benchmarks/vs_naive.py [--models zoo:squeezenet,zoo:resnet50] [--parts each,detect]``

*each*: which of the optimizer's passes are wrong on a model, on 10 inputs? optvet (strategy
"each", dataset random) with an empty cache and again with the warm one, and the loop of the DiTOX
paper: each pass in a process of its own (load the model, optimize, save), then each variant run on
every input in a new session, reference and candidate, and the outputs compared. The loop is spared
what can be argued about: all sessions share one process, and its inputs are made beforehand, while
optvet makes its own. *again* is the second time, which puts the answer together of parts that are
kept; *warm* is the third, for which the whole answer is. Aims: 10 times less wall time and CPU time
cold and again (20 hoped for), 100 warm.

*detect*: is the default pipeline right on a clean model? optvet against load twice, optimize once,
run reference and candidate on each input, in one process with the same session options; imports
are excluded on both sides (a small model came before), then included (``start-up``, with that
model's few milliseconds). Aim: at most 1.3 times.
optvet runs reference and candidate at once on two cores, so look at CPU as well as at wall time.

*profile*: where optvet's CPU time goes, by doing in one process, under cProfile, what workers do.

CPU time counts every process. optvet's sandbox kills its workers without waiting for them, so
their CPU time would be missing from the parent's usage; this script makes itself the reaper of
orphans (prctl PR_SET_CHILD_SUBREAPER) and counts them when it reaps them. CPU inside a running
process tree is read from /proc (ticks of 10 ms). Ratios are of medians over ``--repeats``.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import json
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
import numpy as np

INPUTS = 10
COLD, HOPED, WARM, DETECT = 10.0, 20.0, 100.0, 1.3
WAYS = ("optvet", "optvet, 1 job", "optvet, random inputs")
PARTS = ("each", "detect", "profile")
FIRST = "zoo:digits-mlp"
"""The model that warms libraries and processes before anything is timed inside of them."""
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds, and what the process said."""

    wall_s: float
    cpu_s: float
    answer: Any = None


# --- measuring processes --------------------------------------------------------------------------


def run_measured(command: Sequence[str], *, answers: bool = True, **environment: str) -> Cost:
    """Wall and CPU time of a command with all its descendants; its last line if that is JSON."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    output, _ = process.communicate()
    wall = time.perf_counter() - started
    while True:  # orphans of the command are ours by now
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: status {process.returncode}")
    cpu = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    lines = [line for line in output.splitlines() if line.strip()]
    return Cost(wall, cpu, json.loads(lines[-1]) if lines and answers else None)


def tree_cpu_s(root: int) -> float:
    """CPU seconds of ``root`` and its descendants so far, those that were reaped included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)] = int(fields[1])
            ticks[int(entry)] = sum(int(f) for f in fields[11:15])
    inside = {root}
    while more := {p for p, parent in parents.items() if parent in inside and p not in inside}:
        inside |= more
    return sum(ticks.get(p, 0) for p in inside) * _TICK_S


def child(task: str, **arguments: Any) -> Cost:
    """One of ``TASKS`` in a new interpreter."""
    return run_measured([sys.executable, __file__, "--child", task, json.dumps(arguments)])


def medians(costs: Sequence[Cost]) -> tuple[float, float]:
    """Median wall and CPU seconds."""
    wall = statistics.median(c.wall_s for c in costs)
    return wall, statistics.median(c.cpu_s for c in costs)


# --- the same question, asked of optvet -----------------------------------------------------------


def optvet_each(path: str, cache: str, limit: int) -> Any:
    """Every pass alone on random inputs; what the answer cost by optvet's own count."""
    from optvet import vet

    result = vet(path, strategy="each", pairs=False, limit=limit, cache_dir=cache)
    effects = [p.effect for p in result.passes_alone]
    return {
        "verdict": result.verdict,
        "findings": [f"{f.symptom.value} {f.culprit}" for f in result.findings],
        "effects": {e: effects.count(e) for e in sorted(set(effects))},
        "cost": result.cost.model_dump(mode="json"),
    }


def optvet_detect(path: str, first: str, cache: str, dataset: str, limit: int, jobs: int) -> Any:
    """The default pipeline, timed within processes that have vetted another model, ``first``."""
    from optvet.engine.discovery import Plugins
    from optvet.engine.models.sources import resolve_model
    from optvet.engine.vet.run import vet_model
    from optvet.engine.vet.session import default_jobs
    from optvet.engine.work.sandbox import Limits, Sandbox
    from optvet.engine.work.trials.server_modules import preload_for
    from optvet.spec.records import Record
    from optvet.spec.records import vet as records
    from optvet.spec.request import VetRequest

    plugins = Plugins()
    # Documents are built when first used; here that counts as start-up, as importing them does.
    for kind in vars(records).values():
        if isinstance(kind, type) and issubclass(kind, Record):
            kind.model_rebuild()
    jobs = jobs or default_jobs()
    preload = preload_for(plugins.optimizer("onnxoptimizer"), plugins.reference_runtime())
    with Sandbox(jobs=jobs, limits=Limits(), preload=preload) as sandbox:
        for future in [sandbox.submit(time.sleep, 0.3) for _ in range(jobs)]:
            future.result()
        (other,) = resolve_model(first, plugins, Path(cache))
        warming = VetRequest(model="model", limit=1, jobs=jobs, cache=False)
        vet_model(other, warming, plugins, sandbox=sandbox)
        settings = VetRequest(
            model="model", dataset=(dataset,), limit=limit, jobs=jobs, cache_dir=Path(cache)
        )
        cpu, started = tree_cpu_s(os.getpid()), time.perf_counter()
        (model,) = resolve_model(path, plugins, Path(cache))
        result = vet_model(model, settings, plugins, sandbox=sandbox)
        wall = time.perf_counter() - started
        cpu = tree_cpu_s(os.getpid()) - cpu
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "verdict": result.verdict,
        "cost": result.cost.model_dump(mode="json"),
    }


# --- the straightforward loop ---------------------------------------------------------------------


def naive_optimize(path: str, name: str, target: str) -> Any:
    """Load, apply one pass, save."""
    import onnx
    import onnxoptimizer

    try:
        onnx.save(onnxoptimizer.optimize(onnx.load(path), [name]), target)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def naive_compare(path: str, variants: Mapping[str, str], inputs: str, clean: bool) -> Any:
    """Every variant on every input, both models in a new session each time."""
    feeds = read_feeds(Path(inputs))
    differ: dict[str, float] = {}
    for name, variant in variants.items():
        for feed in feeds:
            try:
                reference = new_session(path, clean).run(None, feed)
                candidate = new_session(variant, clean).run(None, feed)
            except Exception as error:
                differ[name] = float("nan")
                print(f"{name}: {type(error).__name__}", file=sys.stderr)
                break
            for was, now in zip(reference, candidate, strict=True):
                if not np.allclose(was, now):
                    differ[name] = max(differ.get(name, 0.0), float(np.max(np.abs(was - now))))
    return {"differ": differ}


def new_session(model: str | bytes, clean: bool) -> Any:
    """A session under ONNX Runtime's defaults, or under optvet's clean-room options."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    if clean:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def naive(path: Path, passes: Sequence[str], inputs: Path, clean: bool) -> tuple[Cost, Any]:
    """The whole loop: its cost, and what it found."""
    with tempfile.TemporaryDirectory(prefix="optvet-naive-") as folder:
        targets = {name: f"{folder}/{name}.onnx" for name in passes}
        about = {"path": str(path)}
        costs = [child("naive_optimize", **about, name=n, target=t) for n, t in targets.items()]
        saved = {n: t for n, t in targets.items() if Path(t).exists()}
        costs.append(
            child("naive_compare", path=str(path), variants=saved, inputs=str(inputs), clean=clean)
        )
    total = Cost(sum(c.wall_s for c in costs), sum(c.cpu_s for c in costs))
    optimizing = sum(c.wall_s for c in costs[:-1])
    found = {"saved": len(saved), "optimizing_s": optimizing, "running_s": costs[-1].wall_s}
    return total, found | dict(costs[-1].answer)


# --- the necessary work of detection --------------------------------------------------------------


def bare_detect(path: str, first: str, inputs: str) -> Any:
    """Load twice, optimize once, run both on each input, compare.

    Imports are not timed, nor what the libraries do when they load the first model, ``first``.
    """
    import onnx
    import onnxoptimizer
    import onnxruntime as ort

    assert ort.__version__
    new_session(onnxoptimizer.optimize(onnx.load(first)).SerializeToString(), True)
    cpu, started = time.process_time(), time.perf_counter()
    marks: dict[str, float] = {}
    feeds = read_feeds(Path(inputs))
    reference = new_session(path, True)
    marks["load reference"] = time.perf_counter() - started
    passes = onnxoptimizer.get_fuse_and_elimination_passes()
    optimized = onnxoptimizer.optimize(onnx.load(path), passes).SerializeToString()
    marks["optimize"] = time.perf_counter() - started
    candidate = new_session(optimized, True)
    marks["load candidate"] = time.perf_counter() - started
    equal = 0
    for feed in feeds:
        pairs = zip(reference.run(None, feed), candidate.run(None, feed), strict=True)
        equal += all(np.array_equal(was, now) for was, now in pairs)
    marks["run both"] = time.perf_counter() - started
    wall = time.perf_counter() - started
    cpu = time.process_time() - cpu
    return {"wall_s": wall, "cpu_s": cpu, "equal": equal, "marks": marks}


# --- inputs ---------------------------------------------------------------------------------------


def save_inputs(path: Path, target: Path, limit: int) -> None:
    """The samples that dataset random gives, as one file that dataset files reads."""
    from optvet.engine.discovery import Plugins
    from optvet.engine.models.opening import open_model

    dataset = Plugins().dataset("random")
    model = open_model(path, str(path), target.parent)
    samples = dataset.samples(
        model,
        None,
        dataset.options,
        seed=0,
        limit=limit,
        probe=lambda feeds: [None] * len(feeds),
    )
    arrays = {f"{i}|{n}": v for i, s in enumerate(samples) for n, v in s.feeds.items()}  # type: ignore[union-attr]  # none is deferred
    count = len({key.partition("|")[0] for key in arrays})
    np.savez(target, **arrays, **{"-1|count": np.array(count)})  # type: ignore[arg-type]


def read_feeds(path: Path) -> list[dict[str, np.ndarray]]:
    """The samples of such a file."""
    feeds: dict[int, dict[str, np.ndarray]] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            number, _, name = key.partition("|")
            if int(number) >= 0:
                feeds.setdefault(int(number), {})[name] = arrays[key]
    return [feeds[i] for i in sorted(feeds)]


def all_passes() -> list[str]:
    """Every pass of the installed library."""
    import onnxoptimizer

    return list(onnxoptimizer.get_available_passes())


def model_path(reference: str) -> Path:
    """A file for a path or ``zoo:NAME``, made beforehand, so that nobody pays for it."""
    from optvet.engine.discovery import Plugins
    from optvet.engine.models.sources import resolve_model
    from optvet.engine.work.cache.disk import cache_root

    (model,) = resolve_model(reference, Plugins(), cache_root())
    return model.path


# --- the parts ------------------------------------------------------------------------------------


def part_each(reference: str, options: argparse.Namespace) -> dict[str, Any]:
    """Optvet cold, optvet warm, and the loop."""
    path = model_path(reference)
    cold, again, warm = [], [], []
    with tempfile.TemporaryDirectory(prefix="optvet-bench-") as folder:
        inputs = Path(folder) / "inputs.npz"
        save_inputs(path, inputs, options.inputs)
        for i in range(options.repeats):
            about = {"path": str(path), "cache": f"{folder}/cache{i}", "limit": options.inputs}
            cold.append(child("optvet_each", **about))
            again.append(child("optvet_each", **about))
            warm.append(child("optvet_each", **about))
        loops = []
        passes = all_passes()
        for _ in range(options.naive_repeats):
            loops.append(naive(path, passes, inputs, options.naive_clean))
    table: dict[str, Any] = {
        "optvet cold": medians(cold),
        "optvet again": medians(again),
        "optvet warm": medians(warm),
        "answers": {"cold": cold[-1].answer, "warm": warm[-1].answer},
    }
    if loops:
        table["loop"] = medians([c for c, _ in loops])
        table["answers"]["loop"] = loops[-1][1]
    _print_each(reference, table, len(passes), options)
    return table


def _print_each(
    reference: str, table: Mapping[str, Any], passes: int, options: argparse.Namespace
) -> None:
    print(f"\n{reference}: {passes} passes x {options.inputs} inputs")
    loop = table.get("loop")
    for name in ("loop", "optvet cold", "optvet again", "optvet warm"):
        if name not in table:
            continue
        wall, cpu = table[name]
        line = f"  {name:<12} {wall:>8.2f} s wall {cpu:>8.2f} s CPU"
        if loop and name != "loop":
            ratios = (loop[0] / wall, loop[1] / cpu)
            aim = WARM if name == "optvet warm" else COLD
            met = "met" if min(ratios) >= aim else "NOT MET"
            line += f"   {ratios[0]:>6.1f}x wall {ratios[1]:>6.1f}x CPU   aim {aim:g}x: {met}"
            if name == "optvet cold":
                line += f" ({HOPED:g}x: {'met' if min(ratios) >= HOPED else 'not met'})"
        print(line)
    answer = table["answers"]["cold"]
    print(f"  optvet says {answer['verdict']}, passes {answer['effects']}, {answer['findings']}")
    print(f"  cost {json.dumps(answer['cost'])}")
    if loop:
        found = table["answers"]["loop"]
        print(
            f"  the loop: {found['saved']} variants saved in {found['optimizing_s']:.1f} s, run in "
            f"{found['running_s']:.1f} s; differ: {found['differ']}"
        )


def part_detect(
    reference: str, options: argparse.Namespace, ways: Sequence[str] = WAYS
) -> dict[str, Any]:
    """The default pipeline, vetted in these ways, against the necessary work."""
    path, first = model_path(reference), str(model_path(FIRST))
    rows: dict[str, list[Cost]] = {}
    inner: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory(prefix="optvet-bench-") as folder:
        inputs = Path(folder) / "inputs.npz"
        save_inputs(path, inputs, options.inputs)
        for i in range(options.repeats):
            for name in ways:
                cost = child(
                    "optvet_detect",
                    path=str(path),
                    first=first,
                    cache=f"{folder}/{name[-5:]}{i}",
                    dataset="random" if name == WAYS[2] else f"files:{inputs}",
                    limit=options.inputs,
                    jobs=1 if name == WAYS[1] else 0,
                )
                rows.setdefault(name, []).append(cost)
            rows.setdefault("bare", []).append(
                child("bare_detect", path=str(path), first=first, inputs=str(inputs))
            )
    for name, costs in rows.items():
        inner[name] = [Cost(c.answer["wall_s"], c.answer["cpu_s"], c.answer) for c in costs]
    table = {
        name: {"inside": medians(inner[name]), "start-up": medians(rows[name])} for name in rows
    }
    print(f"\n{reference}: default pipeline, {options.inputs} inputs")
    for name, row in table.items():
        line = f"  {name:<22}"
        for label in ("inside", "start-up"):
            wall, cpu = row[label]
            base = table["bare"][label]
            line += f" {label} {wall:>6.3f} s wall {cpu:>6.3f} s CPU"
            if name != "bare":
                line += f" ({wall / base[0]:.2f}x, {cpu / base[1]:.2f}x)"
        print(line)
    wall, cpu = (table["optvet"]["inside"][i] / table["bare"]["inside"][i] for i in (0, 1))
    print(
        f"  aim {DETECT:g}x: wall {'met' if wall <= DETECT else 'NOT MET'}, "
        f"CPU {'met' if cpu <= DETECT else 'NOT MET'}"
    )
    print(f"  bare: seconds until {inner['bare'][-1].answer['marks']}")
    print(f"  optvet: {json.dumps(inner['optvet'][-1].answer['cost'])}")
    return {"table": table, "last": {n: c[-1].answer for n, c in inner.items()}}


class Inline:
    """Stands in for the sandbox: the same tasks in this process, where a profiler sees them."""

    def __init__(self) -> None:
        from optvet.engine.work.sandbox import Limits

        self.limits = Limits()
        self.profilers: list[cProfile.Profile] = []

    def call(self, function: Callable[..., Any], /, *args: Any, **_: Any) -> Any:
        """Do it now; what ``Sandbox.call`` gives."""
        from optvet.engine.work.sandbox import Outcome

        # A profiler sees the thread that enables it, and the caller may be any.
        profiler = cProfile.Profile(time.process_time)
        self.profilers.append(profiler)
        return Outcome(profiler.runcall(function, *args), None)

    def submit(self, function: Callable[..., Any], /, *args: Any, **_: Any) -> Any:
        """Do it now; what ``Sandbox.submit`` gives."""
        future: Future[Any] = Future()
        future.set_result(self.call(function, *args))
        return future


def profile(path: str, strategy: str, limit: int, lines: int) -> Any:
    """Seconds of CPU in optvet's functions, and in the native calls beneath."""
    import onnxoptimizer
    import onnxruntime

    from optvet.engine.discovery import Plugins
    from optvet.engine.models.sources import resolve_model
    from optvet.engine.vet.run import vet_model
    from optvet.engine.work.sandbox.worker import keep_memory
    from optvet.spec.request import VetRequest

    assert {onnxoptimizer, onnxruntime} <= set(sys.modules.values())  # not to be timed
    plugins = Plugins()
    with tempfile.TemporaryDirectory(prefix="optvet-bench-") as folder:
        settings = VetRequest(
            model="model",
            strategy=strategy,  # type: ignore[arg-type]
            limit=limit,
            jobs=1,
            pairs=False,
            cache_dir=Path(folder),
        )
        inline, profiler = Inline(), cProfile.Profile(time.process_time)
        keep_memory()  # as a worker does
        started = time.process_time()
        profiler.enable()
        (model,) = resolve_model(path, plugins, Path(folder))
        vet_model(model, settings, plugins, sandbox=inline)  # type: ignore[arg-type]
        profiler.disable()
        spent = time.process_time() - started
    stats = pstats.Stats(profiler, *inline.profilers).get_stats_profile().func_profiles
    rows = sorted(
        ((p.cumtime, p.tottime, p.ncalls, p.file_name, n) for n, p in stats.items()),
        key=lambda row: -row[1],
    )
    own = [row for row in rows if row[1] >= 0.002 * spent][:lines]
    table = [[n, Path(f).name, calls, own_s, total] for total, own_s, calls, f, n in own]
    return {"cpu_s": spent, "own": table}


def part_profile(reference: str, options: argparse.Namespace) -> dict[str, Any]:
    """Where the time goes, for both questions."""
    path = str(model_path(reference))
    answers = {}
    for strategy in ("auto", "each"):
        cost = child("profile", path=path, strategy=strategy, limit=options.inputs, lines=18)
        answers[strategy] = cost.answer
        print(f"\n{reference}: {strategy}, in one process: {cost.answer['cpu_s']:.2f} s CPU")
        for name, file, calls, own, total in cost.answer["own"]:
            print(f"  {own:>7.3f} s own {total:>7.3f} s in all {calls:>7} calls  {name} ({file})")
    return answers


TASKS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (optvet_each, optvet_detect, naive_optimize, naive_compare, bare_detect, profile)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that were asked for and print their tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="zoo:squeezenet,zoo:resnet50")
    parser.add_argument("--parts", default="each,detect", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--repeats", type=int, default=3, help="of everything but the loop")
    parser.add_argument("--naive-repeats", type=int, default=1, help="of the loop; 0: not at all")
    parser.add_argument(
        "--naive-clean",
        action="store_true",
        help="the loop under clean-room session options instead of the runtime's defaults",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", nargs=2, metavar=("TASK", "JSON"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        task, given = options.child
        print(json.dumps(TASKS[task](**json.loads(given))))
        return 0
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there is {', '.join(PARTS)}")
    found = machine.environment()
    print(machine.describe(found), flush=True)
    document: dict[str, Any] = {"environment": found, "options": vars(options) | {"json": None}}
    run = {"each": part_each, "detect": part_detect, "profile": part_profile}
    with machine.as_installed():
        for part in parts:
            for reference in options.models.split(","):
                document.setdefault(part, {})[reference] = run[part](reference, options)
                sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(document, indent=1, default=asdict) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
