"""How far a hunt is, and the summary that it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optvet.engine.hunt.learn import deadly_passes, with_counts
from optvet.engine.hunt.probable_causes import probable_causes
from optvet.engine.hunt.progress_log import CandidateOutcome, LoggedStep
from optvet.engine.hunt.resolve_optimizer import seen_passes
from optvet.engine.hunt.state import HuntState
from optvet.engine.hunt.tested_optimizer import TestedOptimizer
from optvet.spec.files import replacing
from optvet.spec.hunt import HuntRequest, budget_of
from optvet.spec.records import HuntFinding, HuntSummary

SUMMARY = "hunt.json"


@dataclass(frozen=True)
class HuntProgress:
    """How far a hunt is, after a batch, before a suspect is vetted, or after a finding.

    ``seconds`` is CPU time of making and judging, ``share`` of the budget that is used. ``doing``
    says what is being done now; ``found`` is a finding that is new. ``passes`` is 0 where it is not
    known which pass changes a model; ``signatures`` counts the ways in which models were changed.
    ``unit`` says what ``changed`` of ``passes`` did.
    """

    doing: str
    candidates: int
    valid: int
    seconds: float
    share: float
    changed: int
    passes: int
    signatures: int
    findings: int
    pending: int
    found: HuntFinding | None = None
    unit: str = "passes changed a model"


OnProgress = Callable[[HuntProgress], None]


def progress_of(
    doing: str,
    request: HuntRequest,
    tested: TestedOptimizer,
    state: HuntState,
    results: Sequence[CandidateOutcome | LoggedStep] = (),
    found: HuntFinding | None = None,
) -> HuntProgress:
    """How far the hunt is; ``results`` are those of the round that is not learned from yet."""
    valid = sum(
        1 for r in results if isinstance(r, LoggedStep) or (r.examined and r.examined.valid)
    )
    candidates, seconds = budget_of(request.budget)
    done = state.number + len(results)
    share = done / candidates if candidates else state.seconds / (seconds or 1.0)
    passes = seen_passes(tested)
    return HuntProgress(
        doing,
        done,
        state.valid + valid,
        state.seconds,
        min(share, 1.0),
        len(state.passes_with_changes() & set(passes)),
        len(passes),
        len(state.rewrites),
        len(state.findings),
        len(state.suspects),
        found,
    )


def write_summary(request: HuntRequest, tested: TestedOptimizer, state: HuntState) -> HuntSummary:
    """Write ``hunt.json``, and return what it holds."""
    passes, changed = seen_passes(tested), state.passes_with_changes()
    findings = with_counts(state)
    summary = HuntSummary(
        schema="optvet.hunt/1",
        optimizer=tested.optimizer.name,
        version=tested.optimizer.version(),
        optimizer_options=dict(request.optimizer_options),
        runtime_options=dict(request.runtime_options),
        seed=request.seed,
        budget=request.budget,
        candidates=state.number,
        valid=state.valid,
        refused=state.refused,
        seconds=round(state.seconds, 3),
        vetting_seconds=round(state.vetting_seconds, 3),
        fired=[p for p in passes if p in changed],
        unfired=[p for p in passes if p not in changed],
        signatures=len(state.rewrites),
        deaths=sum(n for label, n in state.deaths.items() if label != "reference"),
        lost_references=state.deaths["reference"],
        left_out=deadly_passes(state),
        refuted=state.refuted,
        pending=len(state.suspects),
        known=list(state.met),
        complaints=list(state.complaints.values()),
        findings=findings,
        causes=probable_causes(findings),
    )
    with replacing(request.folder / SUMMARY) as file:
        file.write(f"{summary.to_json()}\n".encode())
    return summary
