"""Makes the edits of a patch on a model."""

from __future__ import annotations

import os
from pathlib import Path

from onnx import ModelProto
from pydantic import ValidationError

from optvet.engine.repair.edits import apply_edits
from optvet.engine.work.native import native_code
from optvet.engine.work.trials.checking import check
from optvet.spec.errors import InputError, UsageError
from optvet.spec.files import write_file
from optvet.spec.foreign import load_model, read_file
from optvet.spec.records.repair import Patch
from optvet.spec.repair import RepairRequest
from optvet.spec.validation_words import words_of

NAME = "repaired.onnx"
_MOST_BYTES = 256 << 20


def apply_patch(request: RepairRequest) -> str:
    """Write the edited model in the folder of the request; returns the name of the file.

    Raises:
        UsageError: Model or patch cannot be read, or do not fit.
    """
    assert request.apply is not None
    if request.via or request.converted is not None:
        raise UsageError("--apply takes only a model in ONNX; leave out --via and --converted")
    patch, model = read_patch(request.apply), _read(Path(request.model))
    result = apply_edits(model, patch.edits).SerializeToString()
    what = f"{request.apply} makes {request.model} invalid"
    with native_code(__name__) as call:
        wrong = call(what, _complaint, result)
    if wrong:
        raise InputError(f"{what}: {wrong}; give the model the patch is for")
    os.makedirs(request.out, exist_ok=True)
    write_file(request.out / NAME, result, advice="make room, or choose another folder with --out")
    return NAME


def _complaint(data: bytes) -> str:
    """What the checker says of a model; empty if it accepts it. Called in a worker."""
    try:
        check(data, full=True)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def read_patch(path: Path) -> Patch:
    """The patch in a file.

    Raises:
        InputError: It is none.
    """
    try:
        return Patch.model_validate_json(read_file(path, _MOST_BYTES))
    except OSError as error:
        raise InputError(
            f"--apply {path}: {error.strerror}; give a patch.json that optvet repair wrote"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path} is no patch: {where}: {words_of(first)}; give a patch.json that optvet repair "
            "wrote"
        ) from error


def _read(path: Path) -> ModelProto:
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file; check the path")
    try:
        return load_model(path)
    except Exception as error:
        raise InputError(f"{path} cannot be read as an ONNX model: {error}") from error
