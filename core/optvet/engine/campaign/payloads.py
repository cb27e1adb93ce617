"""Sends models with their jobs, to machines that do not share the files of this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from optvet.engine.campaign.digests import files_of
from optvet.spec.campaign import JobRequest
from optvet.spec.convert import parts_of
from optvet.spec.foreign import read_file
from optvet.spec.records import VetResult
from optvet.spec.records.convert import ConversionResult
from optvet.spec.records.precision import PrecisionResult
from optvet.spec.scratch import temporary_folder

_OnModel = TypeVar("_OnModel", VetResult, PrecisionResult)


@dataclass(frozen=True)
class ModelPayload:
    """The files of a model: its own first, then its weights and what is declared beside it."""

    files: tuple[tuple[str, bytes], ...]


def pack_model(request: JobRequest) -> ModelPayload | None:
    """The files of the model of ``request``; None if it is not a file of this machine.

    Models of a model source are read by name on the other machine. If the file cannot be read, the
    job reports that.
    """
    path = Path(parts_of(request.model)[0]).expanduser()
    try:
        if not path.is_file():
            return None
        beside = [file for file in [path.with_suffix(".toml")] if file.is_file() and file != path]
        files = [*files_of(path), *beside]
        named = [(file.relative_to(path.parent).as_posix(), read_file(file)) for file in files]
    except (OSError, ValueError):
        return None
    return ModelPayload(tuple(named))


@contextmanager
def unpack_model(request: JobRequest, payload: ModelPayload | None) -> Iterator[JobRequest]:
    """``request`` for the model in ``payload``, unpacked to a folder for the time of the block."""
    if payload is None:
        yield request
        return
    with temporary_folder("optvet-payload-") as folder:
        for name, content in payload.files:
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        function = parts_of(request.model)[1]
        first = str(Path(folder) / payload.files[0][0])
        model = f"{first}:{function}" if function else first
        yield request.model_copy(update={"model": model})


def restore_model_name(result: _OnModel, request: JobRequest) -> _OnModel:
    """``result`` with the model's name of ``request`` in place of the unpacked file."""
    model = result.model.model_copy(update={"source": request.model})
    return result.model_copy(update={"model": model})


def restore_source_name(result: ConversionResult, request: JobRequest) -> ConversionResult:
    """The same for a conversion."""
    source = result.source.model_copy(update={"source": request.model})
    return result.model_copy(update={"source": source})
