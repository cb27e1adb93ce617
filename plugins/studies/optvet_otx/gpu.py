"""What only a GPU shows: its kernels, and what it does meanwhile; made of answers of ``bench``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from optvet.plugin import (
    BenchResult,
    BenchVariant,
    DeviceUse,
    KernelProfile,
    ReportTable,
    Timing,
    TrialRow,
)
from optvet_otx.figures import BASE, Cell, percent

ON_GPU = " (needs a GPU)"
_COMMAND = "`optvet bench MODEL --provider CUDAExecutionProvider --ncu --json FILE`"
_NO_BENCH = f"no answer of {_COMMAND}, in a folder that --answers names"


def kernels(benches: Sequence[BenchResult]) -> ReportTable:
    """Kernels of a GPU, with their blocks, grids, utilization and shares of peak throughput."""
    lines: list[list[Cell]] = []
    for bench in benches:
        for level, profile, _ in _profiles(bench):
            for kernel in profile.kernels if profile else ():
                sizes = (" x ".join(map(str, size)) for size in (kernel.block, kernel.grid))
                shares = (kernel.utilisation, kernel.compute_share, kernel.memory_share)
                place = (bench.model.source, level, kernel.name, kernel.launches)
                lines.append([*place, *sizes, *map(percent, shares)])
    return ReportTable(
        title=f"OTX: kernels{ON_GPU}",
        note=f"Answers of {_COMMAND}. SM utilization: part of the cycles in which a "
        "multiprocessor had work, if only to wait for memory; throughput: part of its peak.",
        columns=[
            *("model", "level", "kernel", "launches", "block", "grid"),
            *("SM utilization %", "SM throughput %", "memory throughput %"),
        ],
        rows=lines,
    )


def kernel_counts(benches: Sequence[BenchResult]) -> ReportTable:
    """How many kernels one run launches, original next to optimized."""
    lines: list[list[Cell]] = []
    for bench in benches:
        profiles = list(_profiles(bench))
        before = next((p.launches for level, p, _ in profiles if level == BASE and p), None)
        for level, profile, reason in profiles:
            if level != BASE:
                after = profile.launches if profile else None
                change = 100 * (after / before - 1) if after is not None and before else None
                lines.append([bench.model.source, level, before, after, change, reason])
    return ReportTable(
        title=f"OTX: number of kernels{ON_GPU}",
        note="Launches of one run, of the same answers.",
        columns=["model", "level", "original", "optimized", "change %", "not measured"],
        rows=lines or [[None, None, None, None, None, _NO_BENCH]],
    )


def devices(benches: Sequence[BenchResult], rows: Sequence[TrialRow]) -> ReportTable:
    """What a GPU does meanwhile: utilization, memory, power, temperature."""
    lines = [line for row in rows for line in _timed_devices(row)]
    for bench in benches:
        for level, use, seconds in _uses(bench):
            reason = None if use else "; ".join(bench.skipped) or "the runtime used no GPU"
            about = [use.device if use else None, *_quantities(use), seconds, reason]
            lines.append([bench.model.source, level, *about])
    return ReportTable(
        title=f"OTX: device{ON_GPU}",
        note="Means over time, read every 10 ms, of models that were timed (measure = true) and of "
        "the answers of `optvet bench`.",
        columns=[
            *("model", "level", "device", "utilization %", "GB", "W", "°C", "s per run"),
            "not measured",
        ],
        rows=lines or [[*[None] * 8, _NO_BENCH]],
    )


def utilization(
    benches: Sequence[BenchResult], source: str, timing: Timing | None
) -> tuple[float | None, float | None]:
    """Of the device under a model and its level all, in %: original, optimized."""
    if timing and timing.candidate and timing.candidate.device:
        sides = (timing.reference, timing.candidate)
        before, after = (_busy(side.device if side else None) for side in sides)
        return before, after
    found: dict[str, float | None] = {}
    for bench in benches:
        if bench.model.source == source:
            for level, use, _ in _uses(bench):
                found[level] = _busy(use)
    return found.get(BASE), found.get("all")


def _busy(use: DeviceUse | None) -> float | None:
    return percent(use.utilisation.mean) if use and use.utilisation else None


def _timed_devices(row: TrialRow) -> Iterator[list[Cell]]:
    """The lines of one trial: its original beside its level."""
    timing = row.timing
    if timing is None or timing.reference is None or timing.candidate is None:
        return
    level = row.parts.pipeline
    for name, side in ((f"{BASE} of {level}", timing.reference), (level, timing.candidate)):
        if (use := side.device) is not None:
            yield [row.source, name, use.device, *_quantities(use), side.latency_s, None]


def _profiles(bench: BenchResult) -> Iterator[tuple[str, KernelProfile | None, str | None]]:
    """Kernels by level, those of what is compared with first; or why there are none.

    That is the original, or the model after import and export: the study's base has no level.
    """
    for profile in list(bench.kernels.values())[:1]:
        yield BASE, profile, None
    for variant in bench.variants:
        yield variant.pipeline, variant.kernels, None if variant.kernels else _why_no(variant)


def _why_no(variant: BenchVariant) -> str:
    if variant.failure is not None:
        return variant.failure.message
    return variant.unknown.get("kernels", "not asked for, by --ncu")


def _uses(bench: BenchResult) -> Iterator[tuple[str, DeviceUse | None, float | None]]:
    """What the device does, and the seconds of one run, by level, the base first."""
    timings = [v.timing for v in bench.variants if v.timing is not None]
    base_s = [t.reference.latency_s for t in timings if t.reference is not None]
    yield BASE, next(iter(bench.devices.values()), None), fmean(base_s) if base_s else None
    for variant in bench.variants:
        timing = variant.timing
        seconds = timing.candidate.latency_s if timing and timing.candidate else None
        yield variant.pipeline, variant.device, seconds


def _quantities(use: DeviceUse | None) -> list[Cell]:
    if use is None:
        return [None] * 4
    figures = (use.utilisation, use.memory_bytes, use.power_w, use.temperature_c)
    scaled = zip(figures, (100.0, 1e-9, 1.0, 1.0), strict=True)
    return [q.mean * factor if q else None for q, factor in scaled]
