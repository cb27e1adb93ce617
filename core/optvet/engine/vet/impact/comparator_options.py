"""Options of comparators, and the names of their metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from optvet.engine.contract import checked_calls, comparator_returns
from optvet.engine.options import parse_options
from optvet.engine.trust import options_from
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.comparators import ComparatorExtras
from optvet.spec.extras import given
from optvet.spec.protocols import Comparator
from optvet.spec.request import VetRequest
from optvet.spec.requirement import select
from optvet.spec.types import Failure, Model, Sample


def comparator_options(comparator: Comparator, model: Model, request: VetRequest) -> dict[str, Any]:
    """Options of the request, with those of the model's record where the request sets none."""
    config, chosen = model.config, dict(request.comparator_options)
    if comparator.name != config.comparator:
        return chosen
    more = {k: v for k, v in config.comparator_options.items() if k not in chosen}
    return chosen | options_from(
        config.origin,
        "comparator_options",
        comparator.options,
        more,
        folder=Path(config.origin).parent,
        trust=request.trust,
    )


def options_for(comparator: Comparator, model: Model, request: VetRequest) -> BaseModel:
    """The options of ``comparator``; defaults if the given ones are those of another comparator."""
    wanted = request.comparator or model.config.comparator
    chosen = comparator_options(comparator, model, request)
    if comparator.name != wanted:
        fields = type(comparator.options).model_fields
        chosen = chosen if chosen.keys() <= fields.keys() else {}
    return parse_options(f"comparator {comparator.name}", comparator.options, chosen)


def metrics_of(comparator: Comparator, options: BaseModel) -> list[str] | None:
    """Names of its metrics; None if it does not tell them."""
    metrics = given(comparator, ComparatorExtras.metrics)
    if metrics is None:
        return None
    call = partial(metrics, options)
    return checked_calls.list_items("comparator", comparator, "metrics", call, str)


def in_declared_order(
    comparator: Comparator, options: BaseModel, metrics: Mapping[str, float]
) -> dict[str, float]:
    """``metrics`` in the order in which the comparator declares them; others after these."""
    declared = metrics_of(comparator, options) or []

    def place(name: str) -> int:
        places = (i for i, pattern in enumerate(declared) if has_metric(name, [pattern]))
        return next(places, len(declared))

    return {name: metrics[name] for name in sorted(metrics, key=place)}


def calibrate_options(
    comparator: Comparator,
    options: BaseModel,
    model: Model,
    references: Iterable[Mapping[str, np.ndarray]],
    output: str | None = None,
) -> BaseModel:
    """``options`` with the scale that all samples share, if ``comparator`` has one.

    Args:
        comparator: The comparator.
        options: Its options as the user set them.
        model: The original.
        references: Outputs of the original on all samples, which are made when they are read.
        output: The only output that is compared, or the part of one; None for all.
    """
    calibrated = given(comparator, ComparatorExtras.calibrated)
    if calibrated is None:
        return options
    selected = (select(output, run) for run in references)
    call = partial(calibrated, model, selected, options)
    return comparator_returns.check_calibrated(comparator, call, options)


def reference_outputs(
    runner: TrialRunner,
    chunks: Iterable[Sequence[Sample]],
    judged: Sequence[Sample] | None = None,
) -> Iterator[Mapping[str, np.ndarray]]:
    """Outputs of the original on all samples of ``chunks`` that it runs on.

    ``judged`` are samples whose results are still needed, if those of others are to be forgotten:
    however many samples there are, no more than a chunk of them is in memory then.
    """
    needed = {s.id for s in judged or ()}
    for samples in chunks:
        runs = runner.reference(samples).runs.values()
        yield from (run for run in runs if not isinstance(run, Failure))
        if judged is not None:
            runner.forget([s for s in samples if s.id not in needed])


def has_metric(metric: str, names: Iterable[str]) -> bool:
    """Whether ``metric`` matches one of ``names``, in which ``*`` stands for any text."""
    return any(metric == n or ("*" in n and fnmatchcase(metric, n)) for n in names)
