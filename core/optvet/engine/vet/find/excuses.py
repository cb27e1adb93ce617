"""Wrong values that are no fault of a pass: undefined in the original, or a runtime's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from optvet.engine.judge.sample import telling_tolerance
from optvet.engine.judge.second_opinion import is_contradicted
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.models.opening import open_model
from optvet.engine.runtime_target import RuntimeTarget
from optvet.engine.vet.ledger import FindingsLedger
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.observe.observation import Examination, finite
from optvet.engine.vet.session import VetSession
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.opinions import is_quick_to_evaluate
from optvet.engine.work.trials.reach_of_undefined import reach_of_undefined
from optvet.engine.work.trials.resolution import exact_by_operator
from optvet.engine.work.trials.undefined_values import with_answers, without_wrong_shapes
from optvet.engine.work.trials.usual_sizes import in_usual_sizes
from optvet.graph.structure import Facts
from optvet.spec.records import Finding
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.scratch import temporary_folder
from optvet.spec.types import Sample

_PATIENCE_S = 20.0
"""Limit of the evaluator, which has no kernels for long loops."""
Excuse = Callable[[VetSession, Finding, Sample], str]
"""Why a wrong value on a sample is no fault of the optimizer, in words; empty if it may be one."""


@dataclass(frozen=True)
class Doubt:
    """A reason not to blame a pass for a wrong value, and the control of the answer that tells."""

    control: str
    ask: Excuse


def excuse(
    session: VetSession, examiner: Examiner, samples: Sequence[Sample], first: int = 0
) -> list[Finding]:
    """Ask what excuses the faults among the findings from ``first`` on, one reason after another.

    An excused fault becomes a note that says why, and the verdict is undecided.

    Returns:
        Faults that arise from the original alone. Of a runtime that misreads what passes make, a
        user is better off without the passes.
    """
    ledger = session.ledger
    open_ = [i for i, f in enumerate(ledger.findings) if i >= first and f.severity == "fault"]
    # A malformed original comes first: reasons about values presume that its shapes can be trusted.
    _excuse_misdeclared(session, samples, first)
    # Reasons in the original before those in the runtime. If the original has no defined result, no
    # runtime is wrong about it, and the passes need not be left out.
    for doubt in OF_THE_ORIGINAL:
        _excuse(session, examiner, samples, doubt, first)
    excused = [f for i in open_ if (f := ledger.findings[i]).severity == "note"]
    # Not among ``excused``: the runtime is wrong on the model that the passes make, so leaving them
    # out helps a user, whoever is to blame.
    _excuse(session, examiner, samples, _OF_THE_RUNTIME, first)
    if not isinstance(session.case.optimizer, RuntimeTarget):
        ledger.weighed = len(ledger.findings)
    return excused


def excused_passes(ledger: FindingsLedger, excused: Sequence[Finding], first: int = 0) -> set[str]:
    """The passes that are blamed for nothing but ``excused`` among the findings from ``first``."""
    # A pass may return to the pipeline only if nothing else is held against it.
    guilty = {name for f in ledger.findings[first:] if f not in excused for name in f.culprit}
    return {name for f in excused for name in f.culprit} - guilty


def excuse_exact(session: VetSession, examiner: Examiner, samples: Sequence[Sample]) -> None:
    """Make faults of a runtime undecided that is wrong in no operator.

    How far the outputs of operators that follow one another are off is then up to the model.
    """
    case, runner = session.case, session.runner
    if not isinstance(case.optimizer, RuntimeTarget):
        return

    def why(session: VetSession, finding: Finding, sample: Sample) -> str:
        return runner.ask(exact_by_operator, dict(sample.feeds), case.candidate) or ""

    _excuse(session, examiner, samples, Doubt("each operator", why))
    session.ledger.weighed = len(session.ledger.findings)


def _undefined_on(session: VetSession, finding: Finding, sample: Sample) -> str:
    """That the fault arises at an operation which the standard does not define.

    Kernels may compute anything there, so an optimizer may move or fold the operation. It excuses
    no fault elsewhere in the graph: if the first differing value is known, only operations between
    it and the last values that agree count. It excuses no fault on other samples either: a fault
    that shows on a sample with a defined result stays a fault.
    """
    words = _open_on(session, finding, sample)
    return words and f"the original is undefined by the ONNX standard: {words}"


def _underflows_on(session: VetSession, finding: Finding, sample: Sample) -> str:
    """That the fault comes from two weights whose product underflows.

    Then all of it is lost, whichever pass multiplies them. A fault that the model in usual sizes
    shows too has another cause.
    """
    # Only weights between the last equal values and the first different one can have caused it.
    begins, ends = _way_to(finding)
    found = session.runner.ask(in_usual_sizes, dict(sample.feeds), begins, ends)
    if found is None:
        return ""
    # The proof is a trial: with weights of usual size, the same passes must do no harm.
    usual = replace(sample, feeds=found.feeds)
    left = _left_on(session, finding, found.data, usual)
    return "" if left is None else f"{found.words}; in usual sizes {left}"


def _misread_by_runtime(session: VetSession, finding: Finding, sample: Sample) -> str:
    """That only the runtime shows the fault: the standard's evaluator finds none.

    Then the passes may have made a right model that the runtime computes wrongly. Asked of models
    in ONNX's own operators, which any runtime may run; those of an optimizer that writes for its
    own runtime are judged by that one.
    """
    case = session.case
    traits, runtime = case.optimizer.traits, case.candidate.runtime
    judges = session.plugins.evaluators(traits.produces)
    # A model that only one runtime can run has no second reader; nor is a judge asked about itself.
    if traits.dialect or case.lowers or runtime.name in {j.name for j in judges}:
        return ""
    return next((w for j in judges if (w := _misread_on(session, finding, sample, j))), "")


OF_THE_ORIGINAL = (Doubt("definedness", _undefined_on), Doubt("underflow", _underflows_on))
"""Reasons that lie in the original, in the order in which they are asked. A further one is a
function and its entry here."""
_OF_THE_RUNTIME = Doubt("second reading", _misread_by_runtime)


def _excuse_misdeclared(session: VetSession, samples: Sequence[Sample], first: int) -> None:
    """Make faults undecided that are gone where the original declares no wrong shape of a value.

    Passes may rely on what a model declares, and checkers complain of a shape that contradicts
    another as soon as both are known.
    """
    by_id = {sample.id: sample for sample in samples}
    ledger, runner = session.ledger, session.runner
    for i, finding in enumerate(ledger.findings[first:], first):
        sample = by_id.get(finding.witness.sample) if finding.witness else None
        if finding.severity != "fault" or sample is None:
            continue
        found = runner.ask(without_wrong_shapes, dict(sample.feeds), session.case.reference)
        if found is None:
            return  # nor is one of another finding: shapes seldom depend on the sample
        # Removing the wrong shapes must cure the fault; that the model is malformed alone is no
        # proof.
        left = _left_on(session, finding, found.data, sample)
        if left is not None:
            words = f"the original is malformed: {found.words}; without that {left}"
            ledger.amend(i, {"severity": "note", "known_limit": words})
            ledger.control("declared shapes", "limited", words)
            ledger.add_undecided_reason(words)


def _excuse(
    session: VetSession,
    examiner: Examiner,
    samples: Sequence[Sample],
    doubt: Doubt,
    first: int = 0,
) -> None:
    """Make each fault from ``first`` on undecided that ``doubt`` excuses on every sample."""
    by_id = {sample.id: sample for sample in samples}
    ledger = session.ledger
    for i, finding in enumerate(ledger.findings[first:], first):
        # Only values can be undefined or rounded. A crash needs no operand's value to be a fault.
        if finding.severity != "fault" or not finding.symptom.info.of_values:
            continue
        sample = by_id.get(finding.witness.sample) if finding.witness else None
        here = session.at(session.runner_of(finding))
        words = doubt.ask(here, finding, sample) if sample is not None else ""
        if not words:
            continue
        # One sample without the excuse is enough to keep the fault; it becomes the witness, so that
        # the report shows a case which cannot be excused.
        shown = _show_elsewhere(here, examiner, finding, samples, doubt.ask)
        if shown:
            ledger.amend(i, shown)
            continue
        ledger.amend(i, {"severity": "note", "known_limit": words})
        ledger.control(doubt.control, "limited", words)
        ledger.add_undecided_reason(f"an output differs, and {words}")


def _misread_on(session: VetSession, finding: Finding, sample: Sample, judge: Runtime) -> str:
    """That ``judge`` computes of the optimized model what the original gives; else empty."""
    case, runner = session.case, session.runner
    if finding.as_deployed:
        return ""  # found to be of the runtime's own optimizations already, and told as such
    # The evaluator may need hours for what takes a runtime seconds; no answer is no excuse.
    if not runner.ask(is_quick_to_evaluate, dict(sample.feeds)):
        return ""
    limit = min(_PATIENCE_S, case.checks.timeout_s or _PATIENCE_S)
    other = runner.on(case.run_by(RuntimeConfig(judge, judge.options)).under(timeout_s=limit))
    table = case.passes
    passes = table.complete(finding.culprit) if finding.culprit else table.base
    reference, optimized = runner.reference([sample]), other.trial(passes, [sample], "confirm")
    before, after = reference.build.facts, optimized.build.facts
    # Of few operators the evaluator has the form of each operator set.
    if not before or not after or _operator_sets(before) != _operator_sets(after):
        return ""
    expected, found = (t.runs.get(sample.id) for t in (reference, optimized))
    if not isinstance(expected, dict) or not isinstance(found, dict):
        return ""
    # A judge that strays from the original on the optimized model too has seen the fault, so the
    # passes stay to blame.
    if is_contradicted(expected, [found], finding.error, finding.noise_floor):
        return ""
    name, sized = case.candidate.runtime.name, finding.error is not None
    most = telling_tolerance(finding.error, finding.noise_floor)
    return (
        f"{name} may be what is wrong: {judge.name} computes of the optimized model what the "
        f"original gives{f', to {most:.1g} of its largest value' * sized}"
    )


def _operator_sets(facts: Facts) -> object:
    return facts.metadata["opset_import"]


def _open_on(session: VetSession, finding: Finding, sample: Sample) -> str:
    """The undefined operation on a sample at which the finding arises; empty if none.

    And how many elements depend on it: the others have an answer, and no fault of them is excused.
    """
    about = (dict(sample.feeds), session.case.reference, *_way_to(finding))
    reach = session.runner.ask(reach_of_undefined, *about)
    # The operation must be undefined, and the fault must not stay where the undefined values are
    # given to the model as inputs: then it has another cause.
    if reach is None or _shows_with_answers(session, finding, sample):
        return ""
    share = telling_tolerance(finding.error, finding.noise_floor)
    values = _wrong_values(session, finding, sample)
    # Elements that do not depend on an undefined value have one right answer. A single wrong one
    # among them is a fault.
    if not all(reach.excuses(name, ref, came, share) for name, ref, came in values):
        return ""
    return reach.told(finding.outputs[0]) if finding.outputs else reach.words


def _wrong_values(
    session: VetSession, finding: Finding, sample: Sample
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Each wrong output of one shape, with what the original gives and what came."""
    runner, table = session.runner, session.case.passes
    passes = table.complete(finding.culprit) if finding.culprit else table.base
    reference, trial = runner.reference([sample]), runner.trial(passes, [sample], "confirm")
    expected, came = (t.runs.get(sample.id) for t in (reference, trial))
    if not isinstance(expected, dict) or not isinstance(came, dict):
        return
    for output in finding.outputs:
        if output in expected and output in came and expected[output].shape == came[output].shape:
            yield output, expected[output], came[output]


def _way_to(finding: Finding) -> tuple[list[str], list[str]]:
    """The last values that agree, as far as they are known, and those that differ."""
    found = finding.divergence
    # Without a recording of inner values, the whole way from inputs to the wrong outputs counts.
    if found is not None and found.value is not None:
        return list(found.agreeing), [found.value]
    return [], list(finding.outputs)


def _shows_with_answers(session: VetSession, finding: Finding, sample: Sample) -> bool:
    """Whether the fault also shows if undefined values are fed to the model as inputs.

    Then it does not arise from them: the passes break a fully defined model too.
    """
    answered = session.runner.ask(with_answers, dict(sample.feeds), session.case.reference)
    if answered is None:
        return False
    data, feeds = answered
    seen = _seen_on(session, finding, data, replace(sample, feeds=feeds)).observation
    if seen is None or seen.symptom != finding.symptom:
        return False
    return not finding.outputs or bool({*seen.outputs} & {*finding.outputs})


def _left_on(session: VetSession, finding: Finding, data: bytes, sample: Sample) -> str | None:
    """What is left of a fault in another form of the model, in words; None if it may be there.

    A culprit that does something else wrong there, such as a crash, proves nothing.
    """
    seen = _seen_on(session, finding, data, sample)
    if seen.observation is not None or any(j.call == "unsure" for j in seen.judgements.values()):
        return None
    if not finding.symptom.info.of_values:
        return "it is gone"
    # A difference may be smaller there without being gone, so what is left of it is stated.
    errors = [j.error or 0.0 for n, j in seen.judgements.items() if n in finding.outputs]
    return f"{max(errors):.2g} of its largest value is left" if errors else None


def _seen_on(session: VetSession, finding: Finding, data: bytes, sample: Sample) -> Examination:
    """What the culprit does to another form of the model."""
    runner, case = session.runner, session.case
    with temporary_folder("optvet-answered-") as folder:
        path = Path(folder) / "answered.onnx"
        path.write_bytes(data)
        other = runner.on(case.on(open_model(path, case.model.source, Path(folder))))
        samples, table = [sample], case.passes
        lowered = case.lowers and not finding.culprit
        # The lowering has kernels of its own, so it is held to the same limits as in detection.
        if lowered:
            examiner = Examiner(other, samples, thresholds=OTHER_KERNELS)
        else:
            examiner = Examiner(other, samples, tolerance=table.tolerance)
        examiner.learn_reference(other.reference(samples))
        # Passes of a lowered model are compared with the lowering, here as everywhere.
        if case.lowers and not lowered:
            examiner.learn_reference(other.trial(table.base, samples, "control"))
        passes = table.complete(finding.culprit) if finding.culprit else table.base
        return examiner.examine(other.trial(passes, samples, "confirm"), samples)


def _show_elsewhere(
    session: VetSession,
    examiner: Examiner,
    finding: Finding,
    samples: Sequence[Sample],
    why: Excuse,
) -> dict[str, Any]:
    """Changes to a finding that a sample without an excuse shows too; empty if none does."""
    table, runner = session.case.passes, session.runner
    passes = table.complete(finding.culprit) if finding.culprit else table.base
    trial = runner.trial(passes, samples, "confirm")
    for sample in samples:
        seen = examiner.examine(trial, [sample]).observation
        if seen is None or seen.symptom != finding.symptom:
            continue
        if set(seen.outputs) & {*finding.outputs} and not why(session, finding, sample):
            return {
                "witness": session.witness(sample),
                "message": seen.message,
                "outputs": list(seen.outputs),
                "error": finite(seen.error),
                "noise_floor": finite(seen.noise),
            }
    return {}
