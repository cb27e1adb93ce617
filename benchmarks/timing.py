"""How honest timings are: equal models, a planted slowdown, and what timing itself costs.

    python benchmarks/timing.py                     # 50 and 40 timings: some ten minutes
    python benchmarks/timing.py --busy 0 2 --seconds 0.25
    python benchmarks/timing.py --equal 20 --planted 10

How often the same bytes, timed twice, are called slower or faster (aim: at most 1 %); how often a
model with a fifth more work is called slower (aim: at least 95 %); and the latency that a timing
reports over that of a bare loop of the runtime in a process of its own (aim: at most 1.05). The
timings are shared among the models (``--size``), and the aims hold for all of them together.

The planted work is a chain of redundant operators, as many as come nearest to a fifth in bare
loops; their own ratio is printed, since it is what a timing can find. ``--busy`` tells beside how
many processes that keep processors busy; several numbers, one after the other. ``--seconds`` is
what a process spends on its rounds; less takes less time, and tells less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from machine import describe, environment
from onnx import ModelProto, helper, numpy_helper

from optvet.engine.discovery import Plugins
from optvet.engine.numerics.time_ratio import CONFIDENCE, RatioInterval, call_of, interval_of
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.timing.paired_runs import Product, Repeat, RepeatSpec, TimedModel, repeat
from optvet.engine.work.timing.stopwatch import MEASURES, exclusive_timing
from optvet.engine.work.trials.building import BuildSpec
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.server_modules import preload_for
from optvet.spec.files import file_sha256
from optvet.spec.types import Sample

THRESHOLD, PLANTED = 0.05, 1.2
_ROWS, _FEW, _LINKS = 64, 4, 40
LEAST = 1.15
"""A plant whose own ratio in bare loops is less is no slowdown by a fifth."""


def model_of(size: int, layers: int, chain: int) -> ModelProto:
    """Layers of a dense network, and a chain of redundant operators on its last value."""
    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i in range(layers):
        weight = random.normal(0, size**-0.5, (size, size)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"h{i}"]))
        value = f"h{i}"
    if chain:
        # On a few rows, so that one more link is little work. The mean of the last, times 0, is
        # added to all: nothing changes, and no runtime removes it.
        nodes.append(helper.make_node("Split", [value, "rows"], ["s0", "rest"], axis=0))
        links = [(f"s{i}", f"s{i + 1}") for i in range(chain)]
        nodes += [helper.make_node("Sin", [a], [b]) for a, b in links]
        nodes.append(helper.make_node("ReduceMean", [f"s{chain}"], ["mean"], keepdims=0))
        nodes.append(helper.make_node("Mul", ["mean", "zero"], ["nothing"]))
        nodes.append(helper.make_node("Add", [value, "nothing"], ["same"]))
        weights.append(numpy_helper.from_array(np.zeros((), np.float32), "zero"))
        weights.append(numpy_helper.from_array(np.array([_FEW, _ROWS - _FEW]), "rows"))
        value = "same"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    info = [helper.make_tensor_value_info(n, 1, [_ROWS, size]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def bare(path: Path, threads: int, feeds: dict[str, np.ndarray], seconds: float = 0.5) -> float:
    """Median latency in seconds of a loop that does nothing else."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(20):
        session.run(None, feeds)
    taken: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        started = time.perf_counter()
        session.run(None, feeds)
        taken.append(time.perf_counter() - started)
    return median(taken)


def in_processes(
    times: int, *paths: Path, threads: int, feeds: dict[str, np.ndarray]
) -> list[float]:
    """Median over processes of ``bare`` for each of ``paths``, in turn."""
    context = multiprocessing.get_context("spawn")
    found: list[list[float]] = [[] for _ in paths]
    for _ in range(times):
        for i, path in enumerate(paths):
            with context.Pool(1) as pool:
                found[i].append(pool.apply(bare, (path, threads, feeds)))
    return [median(each) for each in found]


def planted(
    folder: Path, size: int, layers: int, threads: int, feeds: dict[str, np.ndarray]
) -> tuple[Path, float]:
    """A model with about a fifth more work than that without a chain, and its own ratio."""
    plain, short, long = (folder / f"{name}.onnx" for name in ("plain", "short", "long"))
    for path, chain in ((plain, 0), (short, 1), (long, 1 + _LINKS)):
        onnx.save(model_of(size, layers, chain), path)
    base, least, most = in_processes(3, plain, short, long, threads=threads, feeds=feeds)
    chain = 1 + max(0, round((PLANTED * base - least) / ((most - least) / _LINKS)))
    slow = folder / "slow.onnx"
    onnx.save(model_of(size, layers, chain), slow)
    base, more = in_processes(5, plain, slow, threads=threads, feeds=feeds)
    return slow, more / base


class Timer:
    """Times two files as ``optvet bench`` times a variant."""

    def __init__(
        self, sandbox: Sandbox, config: RuntimeConfig, samples: tuple[Sample, ...], seconds: float
    ) -> None:
        self._sandbox, self._config, self._samples = sandbox, config, samples
        self._seconds = seconds

    def time(self, a: Path, b: Path, repeats: int) -> tuple[RatioInterval, list[Repeat]]:
        """The interval of the ratio of B to A, and the repeats."""
        sides = self._side(a), self._side(b)
        found: list[Repeat] = []
        with exclusive_timing(lambda text, done, total: None):
            for number in range(repeats):
                spec = RepeatSpec(*sides, self._samples, self._seconds, bool(number % 2), 120.0)
                outcome = self._sandbox.call(repeat, spec, fresh=True, role="judging", alone=True)
                if not isinstance(outcome.value, Repeat):
                    sys.exit(f"a repeat failed: {outcome.failure or outcome.value}")
                found.append(outcome.value)
        return interval_of([r.log_ratios for r in found]), found

    def _side(self, path: Path) -> TimedModel:
        digest = file_sha256(path)
        return TimedModel(Product(digest, "onnx", build_spec=BuildSpec(path, digest)), self._config)


@dataclass
class Count:
    """What the timings of all models came to, under one load."""

    equal: Counter[str] = field(default_factory=Counter)
    planted: Counter[str] = field(default_factory=Counter)
    costs: list[float] = field(default_factory=list)

    def told(self) -> bool:
        """Print it; whether all aims are met."""
        wrong, timed = self.equal["slower"] + self.equal["faster"], self.equal.total()
        found, slow = self.planted["slower"], self.planted.total()
        cost = max(self.costs)
        met = wrong <= 0.01 * timed, found >= 0.95 * slow, cost <= 1.05
        words = (
            f"equal models called different: {wrong} of {timed}; aim at most 1 %",
            f"planted slowdowns found: {found} of {slow}; aim at least 95 %",
            f"latency over a bare loop's: {cost:.3f} at most; aim at most 1.05",
        )
        for text, fine in zip(words, met, strict=True):
            print(f"  {text}: {'met' if fine else 'NOT MET'}")
        return all(met)


def report(
    timer: Timer, folder: Path, size: int, layers: int, asked: argparse.Namespace, count: Count
) -> None:
    """Time one model, print the numbers, and add them to ``count``."""
    random = np.random.default_rng(1)
    feeds = {"x": random.normal(size=(_ROWS, size)).astype(np.float32)}
    slow, true = planted(folder, size, layers, asked.threads, feeds)
    plain, share = folder / "plain.onnx", len(asked.size)
    print(f"\n{layers} layers of {size}, {asked.threads} thread(s)", flush=True)
    calls: Counter[str] = Counter()
    latencies: list[float] = []
    started, number = time.perf_counter(), max(1, round(asked.equal / share))
    for _ in range(number):
        interval, repeats = timer.time(plain, plain, asked.repeats)
        calls[call_of(interval, THRESHOLD)] += 1
        latencies += [median(r.latencies[0]) for r in repeats]
    each = (time.perf_counter() - started) / number
    print(f"  equal: {dict(calls)}; {each:.1f} s each", flush=True)
    count.equal += calls
    calls.clear()
    ratios = []
    for _ in range(round(asked.planted / share)):
        interval, _ = timer.time(plain, slow, asked.repeats)
        calls[call_of(interval, THRESHOLD)] += 1
        ratios.append(interval.ratio)
    if true < LEAST:
        print(f"  planted: {true:.2f} in bare loops is too little; run again on a quieter machine")
    print(
        f"  planted {true:.2f} (bare loops): {dict(calls)}; ratios {min(ratios, default=0):.2f} to "
        f"{max(ratios, default=0):.2f}"
    )
    count.planted += calls
    (loop,) = in_processes(5, plain, threads=asked.threads, feeds=feeds)
    count.costs.append(median(latencies) / loop)
    print(f"  latency {median(latencies) * 1e6:.1f} µs, {count.costs[-1]:.3f} of a bare loop's")


def keep_busy() -> None:
    """Use one processor until the parent ends."""
    parent, value = os.getppid(), 1.0
    while os.getppid() == parent:
        for _ in range(100_000):
            value = value * 1.0000001 % 3.0


def main() -> None:
    """Parse the arguments, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--equal", type=int, default=50, help="timings of equal models, at least 1")
    parser.add_argument("--planted", type=int, default=40, help="timings of the planted slowdown")
    parser.add_argument("--repeats", type=int, default=10, help="processes per timing")
    parser.add_argument("--threads", type=int, default=1, help="threads within an operator")
    parser.add_argument("--seconds", type=float, default=0.5, help="per process, for its rounds")
    parser.add_argument(
        "--busy", type=int, nargs="+", default=[0], help="processes that make the machine busy"
    )
    parser.add_argument("--size", type=int, nargs="+", default=[64, 256], help="width of layers")
    asked = parser.parse_args()
    print(describe(environment()))
    print(
        f"confidence {CONFIDENCE:.0%}, threshold {THRESHOLD:.0%}, {asked.repeats} repeats of "
        f"{asked.seconds:g} s"
    )
    met = [under(busy, asked) for busy in asked.busy]
    sys.exit(not all(met))


def under(busy: int, asked: argparse.Namespace) -> bool:
    """Time all models beside ``busy`` processes; whether all aims are met."""
    print(f"\n--- beside {busy} busy processes ---", flush=True)
    others = [multiprocessing.Process(target=keep_busy, daemon=True) for _ in range(busy)]
    for process in others:
        process.start()
    runtime = Plugins().runtime("onnxruntime")
    options = runtime.deployed.model_copy(update={"threads": asked.threads})
    config, count = RuntimeConfig(runtime, options), Count()
    preload = (*preload_for(None, runtime), MEASURES)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for size in asked.size:
            random = np.random.default_rng(1)
            feeds = {"x": random.normal(size=(_ROWS, size)).astype(np.float32)}
            with Sandbox(jobs=1, limits=Limits(120.0, 8 << 30), preload=preload) as sandbox:
                timer = Timer(sandbox, config, (Sample("sample", feeds),), asked.seconds)
                report(timer, Path(folder), size, 4, asked, count)
    print(
        f"\nall, beside {busy} busy processes; load now {os.getloadavg()[0]:.1f}, "
        f"{time.perf_counter() - started:.0f} s"
    )
    met = count.told()
    for process in others:
        process.kill()
    return met


if __name__ == "__main__":
    main()
