"""Comparators under their options, and the metrics that they say they have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from optvet.engine import contract
from optvet.engine.options import parse_options
from optvet.engine.trust import options_from
from optvet.engine.work.lab import Lab
from optvet.spec.protocols import Calibrates, Comparator, TellsMetrics
from optvet.spec.request import VetRequest
from optvet.spec.types import Failure, Model, Sample


def comparator_options(comparator: Comparator, model: Model, request: VetRequest) -> dict[str, Any]:
    """What was asked for, and what the model's record says where nothing was."""
    config, given = model.config, dict(request.comparator_options)
    if comparator.name != config.comparator:
        return given
    more = {k: v for k, v in config.comparator_options.items() if k not in given}
    return given | options_from(
        config.origin,
        "comparator_options",
        comparator.options,
        more,
        folder=Path(config.origin).parent,
        trust=request.trust,
    )


def options_for(comparator: Comparator, model: Model, request: VetRequest) -> BaseModel:
    """The options under which ``comparator`` compares; defaults where those given are another's."""
    wanted = request.comparator or model.config.comparator
    given = comparator_options(comparator, model, request)
    if comparator.name != wanted:
        fields = type(comparator.options).model_fields
        given = given if given.keys() <= fields.keys() else {}
    return parse_options(f"comparator {comparator.name}", comparator.options, given)


def metrics_of(comparator: Comparator, options: BaseModel) -> list[str] | None:
    """Names of the metrics that it says it has; None if it does not say."""
    if not isinstance(comparator, TellsMetrics):
        return None
    call = lambda: comparator.metrics(options)  # noqa: E731  # one expression, of one type
    return contract.listed("comparator", comparator, "metrics", call, str)


def calibrated(
    lab: Lab,
    chunks: Iterable[Sequence[Sample]],
    comparator: Comparator,
    options: BaseModel,
    output: str | None = None,
) -> BaseModel:
    """``options`` with the scale that all samples share, where ``comparator`` has one.

    Args:
        lab: Runs the original.
        chunks: All samples.
        comparator: What compares.
        options: Its options as they were given.
        output: The only output that is compared; None for all.
    """
    if not isinstance(comparator, Calibrates):
        return options

    def references() -> Iterator[Mapping[str, np.ndarray]]:
        for samples in chunks:
            for run in lab.reference(samples).runs.values():
                if not isinstance(run, Failure):
                    yield {n: v for n, v in run.items() if output in (None, n)}

    call = partial(comparator.calibrated, lab.model, references(), options)
    return contract.calibrated(comparator, call, options)


def has_metric(metric: str, names: Iterable[str]) -> bool:
    """Whether one of ``names``, as ``metrics_of`` gives them, stands for ``metric``."""
    return any(metric == n or ("*" in n and fnmatchcase(metric, n)) for n in names)
