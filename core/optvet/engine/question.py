"""``optvet.vet``, which looks for a kept answer before it loads what finding one takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from optvet.engine.work.answers import recall
from optvet.engine.work.cache import cache_root
from optvet.spec.records.vet import VetResult
from optvet.spec.request import VetRequest, request_of

if TYPE_CHECKING:
    from optvet.engine.api import Data, Source
    from optvet.engine.work.lab import Progress


def _quiet(text: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def vet(
    model: Source | VetRequest,
    *,
    dataset: Data = (),
    progress: Progress = _quiet,
    **options: Any,
) -> VetResult:
    """Test whether an optimizer keeps ``model`` intact, and find the passes that do not.

    Args:
        model: A path, ``zoo:NAME``, a serialized model, or a ``ModelProto``; a folder must hold
            exactly one model. Or a whole request, to which nothing is added.
        dataset: ``NAME`` or ``NAME:ARGUMENT``, one or several; or inputs: arrays by name for one
            sample, or an iterable of such. By default what the model's record declares, else
            "random".
        progress: Called with what is being done, how much of it is done, and of how much.
        options: The other fields of ``VetRequest``, which are also the options of the command line.

    Raises:
        UsageError: What was given is wrong.
        NothingTested: The original runs on no sample.
        PluginError: A plugin is missing or broken.
        InfrastructureError: optvet's own machinery failed.
    """
    request = model if isinstance(model, VetRequest) else _request(model, dataset, options)
    if request is not None:
        known = recall(request, request.cache_dir or cache_root())
        if known is not None:
            return known
    from optvet.engine.api import vet_anew

    return vet_anew(model, dataset, progress, options)


def _request(model: Source, dataset: Data, options: dict[str, Any]) -> VetRequest | None:
    """The request that is meant, if it is about a file and names datasets; else None."""
    names = (dataset,) if isinstance(dataset, str) else dataset
    named = isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names)
    if not named or not isinstance(model, (str, os.PathLike)):
        return None
    return request_of(VetRequest, {"model": os.fspath(model), "dataset": tuple(names), **options})
