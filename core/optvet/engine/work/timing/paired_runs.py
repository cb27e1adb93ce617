"""Timing in a worker: two sessions in one process, run in turn.

A *round* is ``A B B A``: blocks of runs of the reference (A) and of the candidate (B), so that a
machine that becomes steadily faster or slower favours neither. Each block begins with a run that is
not timed: threads of the other session spin for a moment after its last run, and its data is in the
processor's caches.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from optvet.engine.contract import runtime_returns
from optvet.engine.numerics.time_ratio import outliers
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.artifact_graph import graph_and_size
from optvet.engine.work.trials.building import BuildSpec, build
from optvet.engine.work.trials.inference import (
    Outputs,
    RuntimeConfig,
    align_feeds,
    flatten,
    load,
    open_session,
)
from optvet.engine.work.trials.raised_errors import failure_of
from optvet.graph import structure
from optvet.graph.interface import Alignment
from optvet.graph.outline import digest_of
from optvet.spec.foreign import read_file
from optvet.spec.protocols import Feeds
from optvet.spec.runtime_protocols import Session
from optvet.spec.types import Artifact, Failure, Sample

LEAST_ROUNDS, MOST_ROUNDS = 5, 25
_BLOCK_S, _LONGEST = 0.005, 3
_WARM_UPS, _WARM_UP_S = 2, 0.05
_BUSY_S = 0.2
"""How long processors are watched; their clock counts in steps of ten milliseconds at most."""
_SHARE = 0.25  # Of the time limit; warm-up, loading and rounds that are redone take the rest.


@dataclass(frozen=True)
class Written:
    """What a worker has built and written.

    ``path`` holds its bytes. It is None for the original, which is read from its own file, and for
    an artifact that cannot leave its process, which is built again where it is timed. ``build_s``
    is what building took, with reading the model.
    """

    digest: str
    format: str
    path: Path | None = None
    fingerprint: str | None = None
    build_s: float = 0.0


@dataclass(frozen=True)
class Product(Written):
    """The artifact of a subject, ready to be loaded in any process."""

    build_spec: BuildSpec = field(kw_only=True)


@dataclass(frozen=True)
class TimedModel:
    """One of two models to be timed: what is loaded, how it is run, and how it is fed.

    An artifact is loaded as it is. ``feeds`` are the inputs where they are not those of the samples
    under the names of ``alignment``.
    """

    product: Product | Artifact
    config: RuntimeConfig
    alignment: Alignment | None = None
    feeds: tuple[Feeds, ...] = ()

    def inputs(self, samples: Sequence[Sample]) -> list[Feeds]:
        """Copies of the inputs."""
        return [
            *(align_feeds(each) for each in self.feeds),
            *(align_feeds(s.feeds, self.alignment) for s in (() if self.feeds else samples)),
        ]


@dataclass(frozen=True)
class RepeatSpec:
    """The parameters of one repeat.

    Attributes:
        reference: The model A.
        candidate: The model B.
        samples: Inputs; a block runs all of them, once or more.
        seconds: Time for the rounds; there are at least five, unless that takes too long.
        candidate_first: Load B first and run ``B A A B``; alternates from repeat to repeat.
        timeout_s: Limit of the task.
    """

    reference: TimedModel
    candidate: TimedModel
    samples: tuple[Sample, ...]
    seconds: float
    candidate_first: bool
    timeout_s: float


@dataclass
class SideUse:
    """Runs of one model that warm up, over all blocks.

    Attributes:
        warm_ups: Runs that were not timed: those before the rounds, and the first of each block.
        warm_up_s: Their time, seconds.
    """

    warm_ups: int = 0
    warm_up_s: float = 0.0


@dataclass(frozen=True)
class Repeat:
    """The measurements of one repeat; of each pair, the first is the reference's.

    Attributes:
        latencies: Per round the median time of one run, seconds.
        load_s: Time to create the session.
        redone: Rounds that were measured again, since they took unusually long or short.
        difference: Largest difference of an output, relative to the reference's largest magnitude;
            None where the outputs cannot be compared element by element.
        uses: What else the runs took.
    """

    latencies: tuple[tuple[float, ...], tuple[float, ...]]
    load_s: tuple[float, float]
    redone: int
    difference: float | None
    uses: tuple[SideUse, SideUse]

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """Per round the logarithm of the candidate's time over the reference's."""
        return tuple(math.log(b / a) for a, b in zip(*self.latencies, strict=True))


@dataclass(frozen=True)
class SideFailure:
    """A step that failed, and whose: the reference's or the candidate's."""

    of_candidate: bool
    failure: Failure


# In a worker --------------------------------------------------------------------------------------


def make(build_spec: BuildSpec, target: Path) -> Written | Failure:
    """Build once; write the artifact to ``target`` unless it is a live object."""
    enter("build")
    started = time.perf_counter()
    try:
        artifact = build(build_spec)
    except Exception as error:
        return failure_of(error)
    build_s = time.perf_counter() - started
    if artifact.handle is not None:
        name = f"{build_spec.digest}|{artifact.format}|{artifact.fingerprint}|{build_spec.passes}"
        digest, path = hashlib.sha256(name.encode()).hexdigest(), None
    elif artifact.path is not None:
        digest, path = digest_of(artifact.path), artifact.path
    else:
        target.write_bytes(artifact.data)
        digest, path = hashlib.sha256(artifact.data).hexdigest(), target
    return Written(digest, artifact.format, path, artifact.fingerprint, build_s)


def facts_of(product: Product) -> structure.Facts | None:
    """The structure of an ONNX product; None for other formats."""
    enter("check")
    if product.format != "onnx":
        return None
    return structure.facts(*graph_and_size(_artifact(product)))


def repeat(spec: RepeatSpec) -> Repeat | SideFailure:
    """Load both models and time them in turn."""
    sides = (spec.reference, spec.candidate)
    order = (1, 0) if spec.candidate_first else (0, 1)
    runs: dict[int, Callable[[Feeds], object]] = {}
    load_s, outputs = [0.0, 0.0], list[list[Outputs]]([[], []])
    # Made once, so that no copy is timed.
    feeds_of = [side.inputs(spec.samples) for side in sides]
    for i in order:
        try:
            session, load_s[i] = _load_timed(sides[i])
            enter("run")
            runs[i] = session.run
            for feeds in feeds_of[i]:
                named = runtime_returns.outputs(sides[i].config.runtime, session.run(feeds))
                outputs[i].append(_rename_outputs(named, sides[i].alignment))
        except Exception as error:
            return SideFailure(bool(i), failure_of(error))
    uses = SideUse(), SideUse()
    latencies, redone = _rounds(spec, (runs[0], runs[1]), feeds_of, uses)
    return Repeat(latencies, (load_s[0], load_s[1]), redone, _difference(*outputs), uses)


@dataclass(frozen=True)
class Footprint:
    """The resources that one model takes in a process of its own.

    Attributes:
        memory_bytes: Peak memory that loading and running it adds.
        cpu_utilization: Processors that are busy while it runs; 1.0 is one, all of the time.
    """

    memory_bytes: int
    cpu_utilization: float


def footprint(side: TimedModel, samples: tuple[Sample, ...]) -> Footprint:
    """Measure loading one model and running all ``samples`` for a moment."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Resets VmHWM to what is in use now.
    before = _status("VmRSS")
    session, _ = _load_timed(side)
    enter("run")
    feeds = side.inputs(samples)
    for each in feeds:
        session.run(each)
    memory_bytes = max(0, _status("VmHWM") - before)
    started, busy = time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - started) < _BUSY_S:
        for each in feeds:
            session.run(each)
    return Footprint(memory_bytes, (time.process_time() - busy) / elapsed)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def _artifact(product: Product) -> Artifact:
    if product.path is None:
        enter("build")
        return build(product.build_spec)
    if product.build_spec.scratch is not None:
        return Artifact(product.format, fingerprint=product.fingerprint, path=product.path)
    return Artifact(product.format, read_file(product.path), None, product.fingerprint)


def _load_timed(side: TimedModel) -> tuple[Session, float]:
    """A session, and the seconds that creating it took; reading the file is no part of them."""
    given = isinstance(side.product, Artifact)
    artifact = side.product if isinstance(side.product, Artifact) else _artifact(side.product)
    enter("load")
    started = time.perf_counter()
    session = open_session(side.config, artifact) if given else load(side.config, artifact)
    return session, time.perf_counter() - started


def _rename_outputs(outputs: Mapping[str, object], alignment: Alignment | None) -> Outputs:
    names = alignment.outputs if alignment else {}
    return flatten({names.get(name, name): value for name, value in outputs.items()})


Runs = tuple[Callable[[Feeds], object], Callable[[Feeds], object]]
Latencies = tuple[tuple[float, ...], tuple[float, ...]]


def _rounds(
    spec: RepeatSpec,
    runs: Runs,
    inputs: Sequence[Sequence[Feeds]],
    uses: tuple[SideUse, SideUse],
) -> tuple[Latencies, int]:
    """Median times per round and side, and how many rounds were redone.

    A round is redone because of its whole duration, never of its ratio, so that redoing favours
    neither side. At most as many are redone as there are rounds.
    """
    times = max(1, math.ceil(_BLOCK_S / max(_warm_up(runs, inputs, uses), 1e-9)))
    order = (1, 0, 0, 1) if spec.candidate_first else (0, 1, 1, 0)

    def once() -> tuple[float, tuple[float, float]]:
        started = time.perf_counter()
        taken = list[list[float]]([[], []])
        for i in order:
            taken[i] += _block(runs[i], inputs[i], times, uses[i])
        medians = float(np.median(taken[0])), float(np.median(taken[1]))
        return time.perf_counter() - started, medians

    seconds = min(spec.seconds, _SHARE * spec.timeout_s)
    rounds, spent = [once()], 0.0
    # Runs may take so long that more rounds would exceed the time limit of the task.
    least = LEAST_ROUNDS if rounds[0][0] * LEAST_ROUNDS < _SHARE * spec.timeout_s else 1
    while len(rounds) < least or (len(rounds) < MOST_ROUNDS and spent < seconds):
        rounds.append(once())
        spent = sum(duration for duration, _ in rounds)
    redone = 0
    while redone < len(rounds) and (odd := outliers([duration for duration, _ in rounds])):
        rounds[odd[0]] = once()
        redone += 1
    medians = [m for _, m in rounds]
    return (tuple(a for a, _ in medians), tuple(b for _, b in medians)), redone


def _warm_up(runs: Runs, inputs: Sequence[Sequence[Feeds]], uses: tuple[SideUse, SideUse]) -> float:
    """Run both until memory and threads are in place; seconds in which the faster one runs all."""
    fastest, started, done = math.inf, time.perf_counter(), 0
    while done < _WARM_UPS or time.perf_counter() - started < _WARM_UP_S:
        for run, feeds, use in zip(runs, inputs, uses, strict=True):
            within = SideUse()
            taken = _block(run, feeds, 1, within)
            fastest = min(fastest, sum(taken))
            use.warm_ups += within.warm_ups + len(taken)
            use.warm_up_s += within.warm_up_s + sum(taken)
        done += 1
    return fastest


def _block(
    run: Callable[[Feeds], object], inputs: Sequence[Feeds], times: int, use: SideUse
) -> list[float]:
    """Seconds of each run of a block: ``times`` runs of each sample, or fewer if they take long.

    On a machine with more to do than processors, some runs take a hundred times as long as others.
    """
    clock = time.perf_counter
    begun = clock()
    run(inputs[0])
    warm = clock()
    taken = []
    for _ in range(times):
        for feeds in inputs:
            started = clock()
            run(feeds)
            ended = clock()
            taken.append(ended - started)
        if ended - begun > _LONGEST * _BLOCK_S:
            break
    use.warm_ups, use.warm_up_s = use.warm_ups + 1, use.warm_up_s + warm - begun
    return taken


def _difference(reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> float | None:
    largest = 0.0
    for a, b in zip(reference, candidate, strict=True):
        if a.keys() != b.keys():
            return None
        for name, value in a.items():
            found = _of_output(value, b[name])
            if found is None:
                return None
            largest = max(largest, found)
    return largest


def _of_output(a: np.ndarray, b: np.ndarray) -> float | None:
    if a.shape != b.shape or a.dtype.kind not in "fiub" or b.dtype.kind not in "fiub":
        return 0.0 if a.shape == b.shape and np.array_equal(a, b) else None
    first, second = a.astype(np.float64), b.astype(np.float64)
    both = np.isfinite(first) & np.isfinite(second)
    if not np.array_equal(first[~both], second[~both], equal_nan=True):
        return None
    if not both.any():
        return 0.0
    magnitude = float(np.max(np.abs(first[both])))
    gap = float(np.max(np.abs(first[both] - second[both])))
    return gap / magnitude if magnitude else (0.0 if gap == 0 else None)
