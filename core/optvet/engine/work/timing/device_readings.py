"""Use of a device while a model runs: readings every 10 ms, and a profile of its kernels.

The device is read in a process of its own, since the one that runs the model is busy. Both use the
clock of the machine, by which readings are cut to the time of the runs.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from optvet.engine.work.sandbox import Limits, Outcome, Sandbox, enter
from optvet.engine.work.sandbox.messages import NAME_CHARS, cut
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.timing.profiled_run import JOB, ProfiledRun
from optvet.engine.work.trials.inference import RuntimeConfig, align_feeds, load
from optvet.engine.work.trials.trial import TrialSpec, alignment_of
from optvet.engine.work.trials.trial_runner import TrialRunner, refuse_misuse
from optvet.spec.devices import KernelLaunch, Meter, ProfilesKernels, Reading
from optvet.spec.errors import InputError
from optvet.spec.extras import extras
from optvet.spec.records.devices import DeviceUse, KernelProfile, KernelUse, Quantity
from optvet.spec.runtime_protocols import RuntimeExtras
from optvet.spec.scratch import temporary_folder
from optvet.spec.task_memory import allow_reservations
from optvet.spec.types import Artifact, Sample

T = TypeVar("T")

INTERVAL_S = 0.01
_LOOP_S, _LEAST_RUNS = 2.0, 3
_KERNEL_RUNS = 5, 10
_KEPT_KERNELS = 50
_PROCESSES = "/proc"
Readings = list[tuple[float, Reading]]


def ask_meter(config: RuntimeConfig) -> Meter | str:
    """The runtime's meter of its device, or why there is none; "" if it uses none. In a worker."""
    return extras(config.runtime, RuntimeExtras).meter(config.options)


def find_use(
    runner: TrialRunner, passes: Sequence[str] | None, samples: Sequence[Sample], meter: Meter
) -> DeviceUse | str:
    """Readings while the model after ``passes`` runs for two seconds; or why there are none."""
    build_spec = runner.build_spec(passes)
    order = runner.order(build_spec, samples)
    with temporary_folder("optvet-device-") as folder:
        begun, stop = Path(folder) / "begun", Path(folder) / "stop"
        limits = Limits(runner.sandbox.limits.timeout_s)
        with Sandbox(jobs=1, limits=limits) as beside:
            reading = beside.submit(read_until, meter, begun, stop)
            # Its process may start later than a short model has run.
            while not begun.exists() and not reading.done():
                time.sleep(INTERVAL_S)
            try:
                looped = runner.submit(build_spec, run_in_loop, order, _LOOP_S).result()
            finally:
                stop.touch()
            readings = reading.result()
    failure = looped.failure or readings.failure
    refuse_misuse(failure)
    if failure is not None or looped.value is None:
        return describe(failure) if failure is not None else "there was no answer"
    return use_of(meter.device, readings.value or [], *looped.value)


def read_until(meter: Meter, begun: Path, stop: Path) -> Readings:
    """Readings with their times, until the file ``stop`` is there. Called in a worker.

    The file ``begun`` is made after the first reading.
    """
    found: Readings = []
    while not stop.exists():
        begin = time.monotonic()
        found.append((begin, meter.read()))
        begun.touch()
        time.sleep(max(0.0, INTERVAL_S - (time.monotonic() - begin)))
    return found


def run_in_loop(artifact: Artifact, order: TrialSpec, seconds: float) -> tuple[float, float, int]:
    """Run a model for so many seconds: begin, end, number of runs. Called in a worker."""
    assert order.config is not None
    alignment = alignment_of(order, artifact)
    enter("load")
    session = load(order.config, artifact)
    enter("run")
    feeds = [align_feeds(sample.feeds, alignment) for sample in order.samples]
    session.run(feeds[0])
    runs, begin = 0, time.monotonic()
    while runs < _LEAST_RUNS or time.monotonic() - begin < seconds:
        session.run(feeds[runs % len(feeds)])
        runs += 1
    return begin, time.monotonic(), runs


def use_of(device: str, readings: Readings, begin: float, end: float, runs: int) -> DeviceUse:
    """Readings between ``begin`` and ``end``, in which ``runs`` runs were made, as a record."""
    within = [(at, each) for at, each in readings if begin <= at <= end]

    def over_time(part: Callable[[Reading], float | None]) -> Quantity | None:
        known = [(at, v) for at, each in within if (v := part(each)) is not None]
        if not known:
            return None
        mean = _integral(known, begin, end) / (end - begin) if end > begin else known[0][1]
        return Quantity(mean=mean, peak=max(value for _, value in known))

    power = over_time(lambda each: each.power_w)
    return DeviceUse(
        device=cut(device, NAME_CHARS),
        readings=len(within),
        seconds=end - begin,
        runs=runs,
        utilisation=over_time(lambda each: each.utilisation),
        memory_bytes=over_time(lambda each: each.memory_bytes),
        power_w=power,
        temperature_c=over_time(lambda each: each.temperature_c),
        energy_per_run_j=None if power is None else power.mean * (end - begin) / runs,
    )


def _integral(known: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Integral by trapezoids; the first and last readings extend to the ends of the time."""
    inner = sum(
        (later - at) * (value + other) / 2 for (at, value), (later, other) in pairwise(known)
    )
    return (known[0][0] - begin) * known[0][1] + inner + (end - known[-1][0]) * known[-1][1]


# --- kernels -------------------------------------------------------------------------------------


def find_kernels(
    runner: TrialRunner, passes: Sequence[str] | None, samples: Sequence[Sample], seed: int
) -> KernelProfile | str:
    """The kernels of 5 to 10 random samples, by the runtime's profiler of kernels; or why not."""
    least, most = _KERNEL_RUNS
    chosen = random.Random(seed).sample(list(samples), min(len(samples), most))
    build_spec = runner.build_spec(passes)
    order = runner.order(build_spec, list(islice(cycle(chosen), max(least, len(chosen)))))
    assert order.config is not None
    if not isinstance(order.config.runtime, ProfilesKernels):
        return f"runtime {order.config.runtime.name} has no profiler of kernels"
    with temporary_folder("optvet-kernels-") as name:
        folder, runs = Path(name), len(order.samples)
        try:
            command = _found(runner.submit(build_spec, prepare_profile, order, folder).result())
            if isinstance(command, str):
                return command
            limits = runner.sandbox.limits
            if limits.writable is not None:
                limits = replace(limits, writable=(*limits.writable, _PROCESSES))
            with Sandbox(jobs=1, limits=limits) as beside:
                if why := _found(beside.call(run_profiler, command, folder)):
                    return why
            return _found(runner.sandbox.call(read_profile, order.config, folder, runs))
        except InputError as error:
            return str(error)


def _found(outcome: Outcome[T]) -> T | str:
    """The answer of a task; or why there is none, in one line."""
    refuse_misuse(outcome.failure)
    if outcome.failure is not None:
        return describe(outcome.failure)
    return "there was no answer" if outcome.value is None else outcome.value


def prepare_profile(artifact: Artifact, order: TrialSpec, folder: Path) -> list[str] | str:
    """The command that runs the samples of ``order`` below the profiler. In a worker."""
    assert order.config is not None
    runtime = order.config.runtime
    assert isinstance(runtime, ProfilesKernels)
    before = runtime.kernel_profiler(order.config.options, folder)
    if isinstance(before, str):
        return before
    alignment = alignment_of(order, artifact)
    job = ProfiledRun(
        artifact, order.config, [align_feeds(s.feeds, alignment) for s in order.samples]
    )
    (folder / JOB).write_bytes(pickle.dumps(job))
    module = "optvet.engine.work.timing.profiled_run"
    return [*before, sys.executable, "-P", "-m", module, str(folder)]


def run_profiler(command: Sequence[str], folder: Path) -> str:
    """Run it; why it failed, in one line, or an empty text. In a worker that may write ``/proc``.

    Below Nsight Compute, CUDA writes to its process's entries there, and does not start if it may
    not. What may be written is set for entries of processes that exist, so it must be all of them.
    """
    enter("run")
    allow_reservations()  # The profiled process inherits the limits of this one.
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder)},
    )
    if not done.returncode:
        return ""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return f"{Path(command[0]).name} ended with {done.returncode}: {' '.join(lines[-2:])}"


def read_profile(config: RuntimeConfig, folder: Path, runs: int) -> KernelProfile:
    """The launches of so many runs that the profiler has written to ``folder``. In a worker."""
    assert isinstance(config.runtime, ProfilesKernels)
    return profile_of(config.runtime.kernels(folder), runs)


def profile_of(launches: Sequence[KernelLaunch], runs: int) -> KernelProfile:
    """Launches by kernel, those with the most first."""
    groups: dict[str, list[KernelLaunch]] = {}
    for launch in launches:
        groups.setdefault(launch.name, []).append(launch)
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    kernels = [
        KernelUse(
            name=cut(name, NAME_CHARS),
            launches=len(group) / runs,
            block=list(Counter(each.block for each in group).most_common(1)[0][0]),
            grid=list(Counter(each.grid for each in group).most_common(1)[0][0]),
            compute_share=_mean([each.compute_share for each in group]),
            memory_share=_mean([each.memory_share for each in group]),
            utilisation=_mean([each.utilisation for each in group]),
        )
        for name, group in ranked[:_KEPT_KERNELS]
    ]
    return KernelProfile(runs=runs, launches=len(launches) / runs, kernels=kernels)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
