"""A program that does not take a model is at no fault: it says so, or the model is not valid.

One notion for optimizers, for what lowers a model, and for runtimes under test. Asked of import and
export alone: a pass that makes what the rest cannot take is at fault.
"""

from __future__ import annotations

from collections.abc import Iterator

from optvet.engine.runtime_target import RuntimeTarget, lacks_kernel
from optvet.engine.vet.session import VetSession
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.engine.work.trials.trial_results import Trial
from optvet.spec.errors import Unsupported
from optvet.spec.types import Failure

_COMPLAINT_CHARS = 200


def refuse_what_it_does_not_take(session: VetSession, base: Trial) -> None:
    """Raise ``Unsupported`` if ``base``, the empty pipeline, meets a limit or a bad original."""
    case, optimizer = session.case, session.case.optimizer
    name = optimizer.runtime.name if isinstance(optimizer, RuntimeTarget) else optimizer.name
    complaint = case.checks.complaint
    for failure in _own_errors(session, base):
        if lacks_kernel(failure.error_type, failure.message):
            words = f"{name} does not take the model: {describe(failure)}"
            raise Unsupported(words, of_runtime=False)
        # Of an original that the checker takes, but for its shapes, only the same words count.
        same = normalized_message(complaint) in normalized_message(failure.message)
        if complaint and (same or not case.checks.plain):
            raise Unsupported(_invalid(session, name, failure), of_runtime=False)


def _invalid(session: VetSession, name: str, failure: Failure) -> str:
    model, says = session.case.model.path, " ".join(session.case.checks.complaint.split())
    strict = ", full_check=True" if session.case.checks.plain else ""
    check = f'python -c "import onnx; onnx.checker.check_model({str(model)!r}{strict})"'
    return (
        f"the model is not valid, and {name} does not take it ({describe(failure)}); what "
        f"onnx.checker says: {says[:_COMPLAINT_CHARS]} (as by {check})"
    )


def _own_errors(session: VetSession, base: Trial) -> Iterator[Failure]:
    """Errors that the program under test itself has raised."""
    # Only an error that the program raises is a refusal. A crash, a hang or a failed check is not:
    # a program that cannot take a model has to say so.
    built = base.build.failure
    if built is not None and built.kind == "error" and built.stage == "build":
        yield built
    # For other optimizers the runtime is a bystander, and its errors are evidence about the model.
    if isinstance(session.case.optimizer, RuntimeTarget) or session.case.lowers:
        for run in base.runs.values():
            if isinstance(run, Failure) and run.kind == "error":
                yield run
