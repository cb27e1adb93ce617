"""The second of two models as its users run it, beside the first one in the clean room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from optvet.engine.discovery import Plugins
from optvet.engine.vet.find.as_shipped import judge_as_shipped, shipped_runner
from optvet.engine.vet.find.detect import detect
from optvet.engine.vet.impact.assess import Assessor
from optvet.engine.vet.made_file import FILE, MadeFile
from optvet.engine.vet.run import passes_of_runtime
from optvet.engine.vet.session import VetSession, open_session
from optvet.engine.work.trials.case import case_of
from optvet.spec.errors import CannotLoad, InputError, Unsupported
from optvet.spec.records.compare import ShippedComparison
from optvet.spec.request import VetRequest
from optvet.spec.types import Model, Pass, Traits

_STANDARD = {"", "ai.onnx", "ai.onnx.ml"}


@dataclass(frozen=True)
class ShippedSide:
    """The file to be run as it is shipped.

    Attributes:
        model: The model in ONNX; its file is loaded, with its weights beside it if they are.
        given: Options of the runtime that the user's session has, beside its defaults.
    """

    model: Model
    given: Mapping[str, Any]


def check_shipped(request: VetRequest, plugins: Plugins, a: Model, side: ShippedSide) -> None:
    """Refuse options that the runtime does not have, before the work.

    Raises:
        UsageError: The runtime does not take one.
    """
    named, known = _asked(request, plugins, side)
    case_of(named, known, a).shipped(side.given)


def compare_as_shipped(
    a: Model, side: ShippedSide, request: VetRequest, plugins: Plugins, **how: Any
) -> ShippedComparison | None:
    """What ``side`` gives in such a session, beside ``a`` in the clean room.

    None where the clean room is the session that users have.

    Args:
        a: The first model.
        side: The second one.
        request: Inputs, runtime and limits; its session has no options of the user's.
        plugins: What is installed.
        how: Progress, as ``open_session`` takes it.
    """
    asked, known = _asked(request, plugins, side)
    try:
        with open_session(a, asked, known, **how) as session:
            # Either model may be one that the checker refuses: that is not what is asked.
            session = session.at(session.runner.under(full=False, plain=False))
            shipped = {**asked.runtime_options, **side.given}
            shipping = asked.model_copy(update={"runtime_options": shipped})
            return _judged(replace(session, request=shipping))
    except (CannotLoad, InputError, Unsupported) as error:
        return ShippedComparison(verdict="not-judged", message=str(error))


def _asked(request: VetRequest, plugins: Plugins, side: ShippedSide) -> tuple[VetRequest, Plugins]:
    """A request whose optimizer returns the file, and plugins that include this optimizer."""
    made = Pass(FILE, "save", interface=frozenset({"names", "input-dtypes"}))
    traits = Traits(dialect=not _STANDARD.issuperset(side.model.opsets))
    optimizer = MadeFile(side.model.path, side.model.digest, made, traits)
    asked = request.model_copy(update={"optimizer": optimizer.name})
    return asked, plugins.extend("optimizer", optimizer)


def _judged(session: VetSession) -> ShippedComparison | None:
    runner = shipped_runner(session)
    if runner is None:
        return None
    inputs, ledger = session.inputs(), session.ledger
    detected = detect(session, inputs, Assessor(session, inputs))
    runtime = runner.case.candidate.runtime
    found = ShippedComparison(
        verdict="agrees",
        runtime=f"{runtime.name} {runtime.version()}",
        samples=len(detected.samples),
    )
    if (seen := detected.found.observation) is not None:
        words = f"B differs in the clean room already: {seen.message}"
        return found.model_copy(update={"verdict": "not-judged", "message": words})
    session = session.at(detected.runner)
    runner = detected.runner.on(runner.case.under(full=False, plain=False))
    judge_as_shipped(session, runner, detected, (FILE,), partial(passes_of_runtime, session))
    fault = next((f for f in ledger.findings if f.severity == "fault" and f.confirmed), None)
    if fault is not None:
        same = ("symptom", "outputs", "error", "noise_floor", "runtime_parts")
        copied = {name: getattr(fault, name) for name in same}
        blamed = "both" if fault.culprit else "runtime"
        words = "; ".join([fault.message, *ledger.reasons])
        return found.model_copy(
            update={"verdict": "differs", "blamed": blamed, "message": words, **copied}
        )
    open_ = detected.examiner.why_open(detected.found.judgements)
    reasons = [*ledger.reasons, *([open_] if open_ else [])]
    words = "; ".join(reasons or [f.message for f in ledger.findings])
    verdict = "undecided" if reasons else "agrees"
    return found.model_copy(update={"verdict": verdict, "message": words})
