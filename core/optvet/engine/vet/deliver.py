"""The safe model as a file: written, judged as it lies there, and kept only if it is right.

The file is loaded by path, with its weights beside it if they are, by a session with the runtime's
own defaults; the reference is the original in the clean room.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from optvet.engine.models.large import is_large
from optvet.engine.models.model_file import (
    data_file,
    keeps_weights_beside,
    refuse_to_overwrite,
    save_if_right,
)
from optvet.engine.runtime_target import RuntimeTarget
from optvet.engine.vet.find.as_shipped import shipped_examiner
from optvet.engine.vet.find.detect import Detected, wrong_in_rest
from optvet.engine.vet.made_file import FILE, MadeFile
from optvet.engine.vet.require.metrics import RequirementMeter
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.building import make_onnx
from optvet.engine.work.trials.case import Case, PassTable
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inputs import Inputs
from optvet.engine.work.written import refuse_to_lose, remember
from optvet.graph.outline import digest_of
from optvet.spec.errors import InfrastructureError, UsageError
from optvet.spec.extras import extras, given
from optvet.spec.optimizer_protocols import Optimizer, OptimizerExtras
from optvet.spec.records import VetResult
from optvet.spec.records.saved import Saved, SavedFile
from optvet.spec.types import Model, Pass, Traits


def check_saving(session: VetSession) -> None:
    """Refuse ``--save``, before the work, where nothing can be written.

    Raises:
        UsageError: The optimizer makes no file, or the file may not be written.
    """
    target, model = session.request.save, session.case.model
    assert target is not None
    check_savable(session.case.optimizer, model, "--save")
    refuse_to_overwrite(target, "--save", model.path, model.blob)
    refuse_to_lose("--save", target, data_file(target), cache_dir=session.request.cache_dir)


def check_savable(optimizer: Optimizer, model: Model, option: str) -> None:
    """Refuse to save what an optimizer makes of ``model`` if that is no model in ONNX.

    Raises:
        UsageError: It is none.
    """
    if isinstance(optimizer, RuntimeTarget):
        raise UsageError(f"{option}: {optimizer.name} changes no model; leave it out")
    made = optimizer.traits.produces
    if made != "onnx" and (not given(optimizer, OptimizerExtras.saved) or is_large(model)):
        words = f"{option}: {optimizer.name} makes {made}, which is no ONNX file"
        raise UsageError(f"{words} here; leave it out, and paste the code that the answer gives")


def with_saved(
    session: VetSession, detected: Detected, inputs: Inputs, result: VetResult
) -> VetResult:
    """``result`` with what was written of the verified pipeline's model, or why nothing was."""
    request, safe = session.request, tuple(result.safe_pipeline)
    assert request.save is not None
    whole = safe == session.case.passes.pipeline
    if not (safe or (whole and result.verdict != "faulty")):
        return result.model_copy(update={"saved": Saved(reason="no pipeline is verified")})
    why_wrong = partial(_why_wrong, detected, inputs, session.case.optimizer)
    saved = deliver(session, safe, request.save, detected.judged, why_wrong)
    again = request.with_pipeline(result.safe_option) if not whole else request
    command = shlex.join(["optvet", "vet", *again.arguments(("cache_dir", "reduce", "out"))])
    how = {"command": command, "code": _code_of(session, result)} if saved.path else {}
    return result.model_copy(update={"saved": saved.model_copy(update=how)})


def _code_of(session: VetSession, result: VetResult) -> str:
    """The code that makes the file, which for a session is not what opens the session."""
    case = session.case
    if case.optimizer.traits.produces == "onnx":
        return result.safe_code
    return extras(case.optimizer, OptimizerExtras).saved_snippet(result.safe_pipeline, case.options)


def deliver(
    session: VetSession,
    passes: Sequence[str],
    target: Path,
    samples: int,
    why_wrong: Callable[[VetSession], str],
) -> Saved:
    """Write what ``passes`` make of the model to ``target``, if that is right as it lies there.

    Args:
        session: Its case made the model.
        passes: The verified passes.
        target: The file.
        samples: How many samples the file is judged on.
        why_wrong: Is given a session in which the pass ``FILE`` makes the file, run as users do;
            says why it is wrong, or nothing.

    Returns:
        What was written, or why nothing was.

    Raises:
        InfrastructureError: It cannot be written, or the optimizer does not repeat its result.
    """
    session.runner.progress(f"judging {target.name} as a file", 0, None)

    def judge(file: Path) -> str:
        case = _case_of(session, passes, file)
        return why_wrong(session.at(session.runner.on(case)))

    outside = keeps_weights_beside(session.case.model)
    files = save_if_right(_made(session, passes), target, outside=outside, why_wrong=judge)
    if not isinstance(files, str):
        remember((Path(file.path) for file in files), session.request.cache_dir)
    shipped = session.case.shipped(session.request.runtime_options).candidate
    return saved_as(files, shipped, samples)


def saved_as(files: list[SavedFile] | str, shipped: RuntimeConfig, samples: int) -> Saved:
    """What was written and in which session it was judged; or why nothing was written."""
    if isinstance(files, str):
        return Saved(reason=files)
    on = "1 sample" if samples == 1 else f"{samples} samples"
    version = shipped.runtime.version()
    words = f"judged by path in {shipped.runtime.name} {version} {defaults_of(shipped)}, on {on}"
    return Saved.of(files, words)


def defaults_of(shipped: RuntimeConfig) -> str:
    """``with its defaults``, and which options are others."""
    usual, options = (
        each.model_dump(mode="json") for each in (shipped.runtime.deployed, shipped.options)
    )
    others = ", ".join(f"{n}={v}" for n, v in options.items() if v != usual[n])
    return "with its defaults" + f" but {others}" * bool(others)


def _made(session: VetSession, passes: Sequence[str]) -> bytes | Path:
    """The model that ``passes`` make: its bytes, or a file of a large one."""
    optimizer, spec = session.case.optimizer, session.runner.build_spec(passes)
    outcome = session.runner.sandbox.call(make_onnx, spec, fresh=True)
    if outcome.value is None:
        words = describe(outcome.failure) if outcome.failure is not None else "no result"
        raise InfrastructureError(f"{optimizer.name} did not repeat its result: {words}")
    return outcome.value


def _why_wrong(detected: Detected, inputs: Inputs, optimizer: Optimizer, judged: VetSession) -> str:
    """Why the file of ``judged`` is not known to be right as it will be run; empty if it is."""
    runner, samples, case = judged.runner, detected.samples, judged.case
    examiner = shipped_examiner(runner, detected, judged.ledger)
    found = examiner.examine(runner.trial((FILE,), samples, "verify"), samples)
    looked = replace(detected, runner=runner, examiner=examiner)
    if found.observation is None and inputs.several:
        found.observation = wrong_in_rest(judged, inputs, looked, (FILE,)).observation
    if found.observation is not None:
        seen = found.observation
        again = optimizer.traits.optimizes_on_load
        hint = "; a session optimizes the file again: open one by the code instead" * again
        where = f"{case.candidate.runtime.name} {defaults_of(case.candidate)}"
        return f"in {where} it shows {seen.symptom}: {seen.message}{hint}"
    if words := examiner.why_open(found.judgements):
        return words
    if not found.judgements:
        return "no output was judged"
    return why_unmet(RequirementMeter(judged, looked, inputs))


def why_unmet(meter: RequirementMeter) -> str:
    """Why the file that ``meter`` measures does not meet a requirement; empty if it meets all."""
    for required in meter.required:
        reading = meter.read(required, (FILE,))
        if reading.met is not True:
            return f"requirement {required}: {reading.words}"
    return ""


def _case_of(session: VetSession, passes: Sequence[str], file: Path) -> Case:
    """The case of the file, as it will be run."""
    case = session.case
    table, shipped = case.passes, case.shipped(session.request.runtime_options)
    about = Pass(
        FILE,
        "save",
        interface=table.interface(passes),
        tolerance=table.tolerance(passes),
        lossy=table.tolerance(passes) is not None,
    )
    dialect = case.optimizer.traits.dialect
    traits = Traits(dialect=dialect, shipped_options=case.optimizer.traits.shipped_options)
    optimizer = MadeFile(file, digest_of(file), about, traits)
    shipped = replace(shipped, optimizer=optimizer, options=optimizer.options)
    # What lies in the file has its mends. A dialect is checked in a copy, which no worker may put
    # beside the file, and which says less than that the runtime loads it.
    checked = shipped.under(full=False, plain=case.checks.plain and not dialect, mends=())
    return replace(checked, passes=PassTable.of(optimizer))
