"""The mixed model that an answer stands for, judged as it is and written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optvet.engine.precision.measure import recorded
from optvet.engine.vet.deliver import deliver, why_unmet
from optvet.engine.vet.require.metrics import RequirementMeter
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox import enter
from optvet.engine.work.sandbox.outcome import describe
from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.files import write_file
from optvet.spec.foreign import read_file, read_text
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.precision import PrecisionReading, PrecisionResult
from optvet.spec.request import arguments_of
from optvet.spec.types import Artifact
from optvet.spec.words import printable, toml_value

CONFIG = "precision.toml"
_HEAD = re.compile(r"# .*, sha256 [0-9a-f]{64}$")


def write_answer(
    plain: VetSession, meter: RequirementMeter, request: PrecisionRequest, result: PrecisionResult
) -> PrecisionResult:
    """``result`` with the size of the mixed model, and what the runtime computes of it.

    If the request says so and a list was found, the model and ``precision.toml`` are written.
    """
    if result.verdict not in ("found", "nothing-to-keep"):
        return result
    case = plain.case
    kept = {part.name for part in result.kept}
    passes = tuple(name for name in case.passes.pipeline if name not in kept)
    data = read_file(case.model.blob)
    outcome = plain.runner.sandbox.call(_apply, case.optimizer, data, passes, case.options)
    if outcome.failure is not None or outcome.value is None:
        words = describe(outcome.failure) if outcome.failure is not None else "no result"
        raise InfrastructureError(f"{case.optimizer.name} did not repeat its conversion: {words}")
    update: dict[str, Any] = {"mixed_size_bytes": len(outcome.value)}
    if result.emulated:
        update["computed"] = _computed(meter, passes)
    if request.out is not None:
        update |= _write(plain, meter, request, result, passes)
    return result.model_copy(update=update)


def _apply(optimizer: Optimizer, data: bytes, passes: tuple[str, ...], options: BaseModel) -> bytes:
    """The optimizer's result. Called in a worker."""
    enter("build")
    return bytes(optimizer.apply(Artifact("onnx", data), passes, options).data)


def _computed(meter: RequirementMeter, passes: tuple[str, ...]) -> list[PrecisionReading]:
    """The requirements on the mixed model as the runtime itself computes it."""
    return [
        recorded(required, reading)
        for required in meter.required
        if (reading := meter.read(required, passes)) is not None
    ]


def _write(
    plain: VetSession,
    meter: RequirementMeter,
    request: PrecisionRequest,
    result: PrecisionResult,
    passes: tuple[str, ...],
) -> dict[str, Any]:
    """What was written, if the mixed model meets the requirements as a file."""
    assert request.out is not None
    saved = deliver(
        plain, passes, request.out, result.samples, lambda judged: why_unmet(meter.at(judged))
    )
    if not saved.path:
        return {"saved": saved}
    config = request.out.parent / CONFIG
    write_file(config, _config(request, result).encode())
    again = arguments_of(request, request.model, ("cache_dir", "rank", "jobs", "recipe", "measure"))
    command = shlex.join(["optvet", "precision", *again])
    recipe = {name: code for name, code in result.recipes.items() if not code.endswith("\n")}
    how = {"command": command, "code": result.code, "recipe": recipe}
    files = [saved.path, *(file.path for file in saved.beside), str(config)]
    return {"saved": saved.model_copy(update=how), "files": files}


def refuse_to_lose_config(out: Path) -> None:
    """Refuse to write beside ``out`` where a file of options lies that no answer wrote.

    Raises:
        UsageError: There is one.
    """
    file = out.parent / CONFIG
    try:
        head = read_text(file).partition("\n")[0] if file.is_file() else ""
    except (OSError, UnicodeDecodeError):
        head = "other"
    if head and not _HEAD.match(head):
        words = f"--out {out} would overwrite {file}, which optvet did not write"
        raise UsageError(f"{words}; give another folder")


def _config(request: PrecisionRequest, result: PrecisionResult) -> str:
    """Options with which ``optvet precision MODEL --config`` judges the same list again."""
    left_out = {"model", "out", "keep", "cache_dir", "rank", "jobs", "recipe", "measure"}
    chosen = {
        name: value
        for name, value in request.model_dump(mode="json", exclude=left_out).items()
        if value != _default(name)
    }
    chosen |= {"to": request.to, "optimizer": result.optimizer.name}
    chosen["keep"] = [part.name for part in result.kept]
    if not request.rtol and not request.atol:
        chosen["require"] = list(result.requirements)
    head = (
        f"# {printable(result.model.source, kept='')}, sha256 {result.model.digest}\n"
        f"# {result.optimizer.name} {result.optimizer.version}, judged by "
        f"{result.runtime.name} {result.runtime.version} on {result.samples} samples\n"
    )
    return head + "".join(f"{name} = {toml_value(value)}\n" for name, value in chosen.items())


def _default(name: str) -> Any:
    default = PrecisionRequest.model_fields[name].get_default(call_default_factory=True)
    return list(default) if isinstance(default, tuple) else default
