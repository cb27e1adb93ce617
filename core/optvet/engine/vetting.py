"""Answers about one model or several, which may be given as files, bytes or protobufs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import ModelProto
from pydantic import BaseModel

from optvet.engine.discovery import Plugins
from optvet.engine.models import large
from optvet.engine.models.selectors import expand_models
from optvet.engine.models.sources import resolve_model
from optvet.engine.options import NoOptions
from optvet.engine.vet.run import Vetted, vetted_model
from optvet.engine.vet.session import VetSession
from optvet.engine.work.cache.disk import cache_root
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.errors import (
    InfrastructureError,
    InputError,
    NothingTested,
    OptvetError,
    Unsupported,
    UsageError,
)
from optvet.spec.protocols import Feeds, Probe
from optvet.spec.records import VetResult
from optvet.spec.records.error import ErrorRecord, ErrorSource
from optvet.spec.request import VetRequest
from optvet.spec.scratch import temporary_folder
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Model, Sample
from optvet.spec.words import summarize_arrays

Source = str | os.PathLike[str] | bytes | ModelProto
Data = str | Sequence[str] | Feeds | Iterable[Feeds]
"""Where inputs come from: names of datasets, the inputs of one sample, or those of several."""


def _quiet(text: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def vet_request(
    request: VetRequest, plugins: Plugins, *, progress: Progress = _quiet, keep: bool = False
) -> VetResult:
    """Answer ``request``; see ``vetted``."""
    with vetted(request, plugins, progress=progress, keep=keep) as answer:
        return answer.result


@contextmanager
def vetted(
    request: VetRequest, plugins: Plugins, *, progress: Progress = _quiet, keep: bool = False
) -> Iterator[Vetted]:
    """The answer to ``request``, which must be about exactly one model, with its session.

    ``keep``: the answer may be kept as a whole; see ``whole_answers``.
    """
    chosen = plugins.optimizer(request.optimizer or plugins.default("optimizer"))

    def accept(source: str, size_bytes: int) -> None:
        large.check_size(source, size_bytes, chosen)
        large.check_room(source, size_bytes, chosen, request.memory)

    root = request.cache_dir or cache_root()
    models = resolve_model(request.model, plugins, root, accept=accept)
    if len(models) != 1:
        names = ", ".join(m.path.name for m in models)
        raise UsageError(f"{request.model}: {len(models)} models ({names}); vet them one at a time")
    with vetted_model(models[0], request, plugins, progress=progress, keep=keep) as answer:
        yield answer


# --- several models -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelAnswer:
    """The answer for one of several models: a result or an error.

    ``session`` gave the result; it is open until the next answer is asked for.
    """

    request: VetRequest
    result: VetResult | None
    error: OptvetError | None = None
    session: VetSession | None = None

    def document(self) -> VetResult | ErrorRecord:
        """The document for the answer."""
        if self.result is not None:
            return self.result
        assert self.error is not None
        return error_of(self.request.model, self.error)


def error_of(model: str, error: OptvetError) -> ErrorRecord:
    """The document for a model without a result."""
    return ErrorRecord(
        schema="optvet.error/1",
        model=ErrorSource(source=model),
        error=type(error).__name__,
        message=str(error),
        exit_code=error.exit_code,
        symptom=Symptom.REFUSED if isinstance(error, Unsupported) else None,
    )


def requests_for(
    request: VetRequest,
    plugins: Plugins,
    *,
    models: Sequence[str] = (),
    optimizers: Sequence[str] = (),
) -> list[VetRequest]:
    """One request per model and optimizer, those of one optimizer together.

    Args:
        request: What holds for all.
        plugins: What is installed.
        models: Files, folders, globs, ``zoo:all``; by default the model of ``request``.
        optimizers: By default that of ``request``.

    Raises:
        UsageError: What is named as models means none, or several models would be one file.
    """
    named = list(models) or [request.model]
    found = expand_models(named, plugins)
    if len(named) == len(found) == 1:
        found = named  # a folder of one model is called as it was typed
    requests = [
        request.model_copy(update={"model": model, "optimizer": optimizer})
        for optimizer in dict.fromkeys(optimizers or (request.optimizer,))
        for model in found
    ]
    if len(requests) > 1 and request.save is not None:
        words = f"--save {request.save}: {len(requests)} models would be written to one file"
        raise UsageError(f"{words}; give one model and one optimizer")
    return requests


def vet_each(
    requests: Sequence[VetRequest], plugins: Plugins, *, progress: Progress = _quiet
) -> Iterator[ModelAnswer]:
    """Answers in order; if a model cannot be vetted, the others still are.

    Raises:
        OptvetError: An error that affects all models, such as a wrong option.
    """
    for number, request in enumerate(requests, 1):
        where = f"{number}/{len(requests)} {Path(request.model).name}: "
        try:
            reported = _within(where, progress)
            with vetted(request, plugins, progress=reported) as answer:
                yield ModelAnswer(request, answer.result, session=answer.session)
        except OptvetError as error:
            # A wrong option would be wrong for all of them; a file that is gone is not.
            own = isinstance(error, (InputError, NothingTested, InfrastructureError))
            if not own and Path(request.model).exists():
                raise
            yield ModelAnswer(request, None, error)
        except Exception as error:
            # A defect of optvet that one model brings to light is no reason to leave the others.
            yield ModelAnswer(request, None, internal(error))


def internal(error: Exception) -> InfrastructureError:
    """A defect of optvet, recorded in place of an answer; the traceback is its cause."""
    words = " ".join(str(error).split())[:_ERROR_CHARS]
    wrapped = InfrastructureError(
        f"internal error: {type(error).__name__}: {words}; this is a bug in optvet: vet this model "
        "alone with --debug and report what it prints"
    )
    wrapped.__cause__ = error
    return wrapped


_ERROR_CHARS = 300


def _within(prefix: str, progress: Progress) -> Progress:
    return lambda text, done, total: progress(prefix + text, done, total)


# --- models and inputs that are no files ----------------------------------------------------------


@contextmanager
def resolve_inputs(model: Source, dataset: Data) -> Iterator[tuple[str, Plugins, tuple[str, ...]]]:
    """Reference of ``model``, plugins, and names of datasets for ``model`` and ``dataset``."""
    plugins = Plugins()
    names = _dataset_names(dataset, plugins)
    if not isinstance(model, (bytes, ModelProto)):
        yield os.fspath(model), plugins, names
        return
    with temporary_folder("optvet-given-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        yield str(path), plugins, names


def _dataset_names(dataset: Data, plugins: Plugins) -> tuple[str, ...]:
    if isinstance(dataset, str):
        return (dataset,)
    several = [dataset] if isinstance(dataset, Mapping) else list(dataset)
    if all(isinstance(item, str) for item in several):
        return tuple(str(item) for item in several)
    feeds: list[Feeds] = []
    for number, item in enumerate(several):
        if not isinstance(item, Mapping):
            raise UsageError(
                f"dataset: sample {number} is a {type(item).__qualname__}; expected names of "
                "datasets, or arrays by input name"
            )
        feeds.append({str(name): np.asarray(value) for name, value in item.items()})
    plugins.register("dataset", GivenInputs(tuple(feeds)))
    return (GivenInputs.name,)


@dataclass(frozen=True)
class GivenInputs:
    """Arrays that the caller holds, as a dataset."""

    feeds: tuple[Feeds, ...]
    name = "given"
    options: BaseModel = field(default_factory=NoOptions)

    def __repr__(self) -> str:
        first = summarize_arrays(self.feeds[0]) if self.feeds else "{}"
        return f"<GivenInputs: {len(self.feeds)} samples, the first {first}>"

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: BaseModel,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterable[Sample]:
        """One sample per set of arrays, in the order given.

        Raises:
            InputError: The arrays are not named as the inputs of the model.
        """
        chosen = self.feeds[:limit]
        for i, feeds in enumerate(chosen):
            _check_names(f"sample {i} of the dataset", feeds, model)
        return [Sample(f"sample-{i}", feeds) for i, feeds in enumerate(chosen)]


def _check_names(where: str, feeds: Feeds, model: Model) -> None:
    """Raise InputError unless ``feeds`` has each input of ``model``, and nothing else."""
    needed = [info.name for info in model.inputs]
    known = [*needed, *(info.name for info in model.optional)]
    expected = f"the model's inputs are {', '.join(map(repr, needed)) or 'none'}"
    for name in feeds:
        if name not in known:
            raise InputError(f"{where}: {name!r} is no input of the model; {expected}")
    for name in needed:
        if name not in feeds:
            raise InputError(f"{where}: input {name!r} is missing; {expected}")
