"""Timing optimizers on one model: each variant beside the original, under deployed settings."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from optvet.engine.discovery import Plugins
from optvet.engine.environment.machine import environment
from optvet.engine.inspection import Inspector
from optvet.engine.models import large
from optvet.engine.models.sources import resolve_model
from optvet.engine.pipelines import format_pipeline
from optvet.engine.vet.assemble import model_record, optimizer_record, runtime_record
from optvet.engine.vet.impact.assess import begin
from optvet.engine.vet.session import VetSession, open_session
from optvet.engine.vet.speed.slowdown import inquire
from optvet.engine.vet.speed.timings import (
    failure_record,
    stopwatch,
    timing_record,
)
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.timing.stopwatch import MEASURES, Stopwatch
from optvet.engine.work.timing.token_rate import Writer
from optvet.engine.work.trials.case import Case, case_of
from optvet.engine.work.trials.server_modules import preload_for
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.bench import EACH, BenchRequest
from optvet.spec.errors import UsageError
from optvet.spec.protocols import Decodes
from optvet.spec.records.bench import BenchResult, BenchVariant, MachineRecord, Slowdown
from optvet.spec.records.vet import DatasetRecord
from optvet.spec.request import VetRequest
from optvet.spec.types import Failure, Model, Sample

_EXTRA_S = 60.0
"""Seconds that a variant's extra repeats may take."""


@dataclass(frozen=True)
class Variant:
    """One optimizer with one pipeline, as a question to ``vet``, and as the case of that."""

    request: VetRequest
    case: Case


def bench(
    request: BenchRequest,
    plugins: Plugins,
    *,
    progress: Progress = lambda text, done, total: None,
) -> BenchResult:
    """Time each variant of ``request`` against the original, and tell what both are made of.

    Raises:
        UsageError: A name or an option is wrong; raised before any work.
        NothingTested: The original cannot be loaded or run.
    """
    started, load_before = time.perf_counter(), os.getloadavg()[0]
    root = request.cache_dir or cache_root()
    models = resolve_model(request.model, plugins, root)
    if len(models) != 1:
        raise UsageError(f"{request.model}: {len(models)} models; time them one at a time")
    (model,) = models
    variants = list(_variants(request, plugins, model))
    rows: list[BenchVariant] = []
    inspector = Inspector(request.ncu, request.seed)
    inputs: tuple[tuple[Sample, ...], list[DatasetRecord]] | None = None
    with _sandbox(request, variants, model) as sandbox:
        for number, variant in enumerate(variants, 1):
            report = _within(f"{number}/{len(variants)} {_name(variant)}: ", progress)
            with open_session(
                model, variant.request, plugins, progress=report, sandbox=sandbox
            ) as session:
                inputs = inputs or _samples(session)
                row = _time(session, variant, inputs[0], request, report)
                report("structure and placement", 0, None)
                writer = _writer(session, plugins, inputs[0])
                about = (session.runner, variant.case, inputs[0], row, writer)
                rows.append(inspector.inspect(*about))
    assert inputs is not None
    return BenchResult(
        schema="optvet.bench/1",
        model=model_record(model),
        machine=_machine(load_before),
        original=inspector.original,
        placements=inspector.placements,
        paces=inspector.paces,
        devices=inspector.devices,
        kernels=inspector.kernels,
        skipped=inspector.skipped,
        variants=rows,
        samples=len(inputs[0]),
        datasets=inputs[1],
        seed=request.seed,
        wall_s=round(time.perf_counter() - started, 3),
    )


def _variants(request: BenchRequest, plugins: Plugins, model: Model) -> Iterator[Variant]:
    """Each optimizer with each pipeline; two names of one list of passes are one variant."""
    for name in request.optimizer or (plugins.default("optimizer"),):
        seen: set[tuple[str, ...]] = set()
        for pipeline in _pipelines(request, plugins, name):
            variant_options = request.of(name, pipeline)
            case = case_of(variant_options, plugins, model).both_shipped(
                variant_options.runtime_options
            )
            if case.passes.pipeline not in seen:
                seen.add(case.passes.pipeline)
                yield Variant(variant_options, case)


def _pipelines(request: BenchRequest, plugins: Plugins, optimizer: str) -> Sequence[str]:
    named = plugins.optimizer(optimizer).pipelines()
    # "default" names passes that another name may name too, and that one says more.
    each = sorted((n for n, passes in named.items() if passes), key=lambda n: n == "default")
    return [p for wanted in request.pipeline for p in (each if wanted == EACH else (wanted,))]


def _sandbox(request: BenchRequest, variants: Sequence[Variant], model: Model) -> Sandbox:
    preload = [MEASURES]
    for variant in variants:
        preload += preload_for(variant.case.optimizer, variant.case.candidate.runtime)
    limits = Limits(
        request.timeout,
        request.memory,
        single_task=large.is_large(model),
        writable=(str((request.cache_dir or cache_root()) / "scratch"),),
    )
    return Sandbox(jobs=1, limits=limits, preload=tuple(dict.fromkeys(preload)))


def _samples(session: VetSession) -> tuple[tuple[Sample, ...], list[DatasetRecord]]:
    inputs = session.inputs()
    session.runner.progress("making inputs", 0, None)
    samples = tuple(islice(inputs, session.request.limit))
    return samples, inputs.records()


def _writer(session: VetSession, plugins: Plugins, samples: Sequence[Sample]) -> Writer | None:
    """What writes text with the model, if the comparator that suits it does."""
    runner, (sample, *_) = session.runner, samples
    outputs = runner.reference([sample]).runs.get(sample.id)
    if outputs is None or isinstance(outputs, Failure):
        return None
    begun = begin(session.request, plugins, runner.model, outputs)
    comparator = begun.choice.comparator
    return Writer(comparator, begun.options) if isinstance(comparator, Decodes) else None


def _time(
    session: VetSession,
    variant: Variant,
    samples: tuple[Sample, ...],
    request: BenchRequest,
    progress: Progress,
) -> BenchVariant:
    """One row: the variant's timing, or why there is none."""
    case = variant.case
    with stopwatch(
        session,
        case,
        samples,
        threshold=request.threshold,
        repeats=request.repeats,
        progress=progress,
        more_s=_EXTRA_S if request.extra_repeats else 0.0,
    ) as watch:
        timed = watch.time(case.passes.pipeline)
        failure = failure_record(timed)
        record = timing_record(watch, timed) if failure is None else None
        about = {}
        if record is not None and record.verdict == "slower" and request.blame:
            about = _blame(session, watch, variant, progress)
    return BenchVariant(
        optimizer=optimizer_record(case),
        pipeline=variant.request.pipeline,
        runtime=runtime_record(case.candidate),
        optimization_s=timed.build_s,
        failure=failure,
        timing=record,
        **about,
    )


def _blame(
    session: VetSession, watch: Stopwatch, variant: Variant, progress: Progress
) -> dict[str, Any]:
    """Fields of a row that tell which passes make the variant slower."""
    progress("localizing the slowdown", 0, None)
    case = variant.case
    found = inquire(session.runner, watch, case.passes.pipeline, "auto")
    # Without a culprit among the passes there is nothing to leave out.
    shorter = found.safe is not None and found.safe != case.passes.pipeline
    safe = found.safe if shorter and found.safe != case.passes.base else None
    timed = None if safe is None else watch.time(safe)
    return {
        "slowdowns": [
            Slowdown(
                culprit=list(b.culprit),
                timing=timing_record(b.watch, b.timed, memory=False),
                reasons=list(b.reasons),
            )
            for b in found.blamed
        ],
        "blame_undecided": found.undecided,
        "fast_pipeline": None if safe is None else list(safe),
        "fast_option": format_pipeline(safe, variant.request.pipeline, case.optimizer)
        if safe
        else "",
        "fast_timing": None if timed is None else timing_record(watch, timed, memory=False),
        "sequences_timed": len(watch.timed),
    }


def _machine(load_before: float) -> MachineRecord:
    about = environment()
    return MachineRecord(
        processor=about["processor"],
        memory=about["memory"],
        platform=about["platform"],
        python=about["python"],
        cores=len(os.sched_getaffinity(0)),
        load_before=round(load_before, 2),
        load_after=round(os.getloadavg()[0], 2),
    )


def _name(variant: Variant) -> str:
    return f"{variant.case.optimizer.name} {variant.request.pipeline}"


def _within(prefix: str, progress: Progress) -> Progress:
    return lambda text, done, total: progress(prefix + text, done, total)
