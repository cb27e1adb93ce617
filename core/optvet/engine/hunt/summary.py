"""How far a hunt is, and the summary that it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optvet.engine.hunt.probable_causes import probable_causes
from optvet.engine.hunt.state import HuntState
from optvet.engine.hunt.suspects import with_counts
from optvet.spec.files import replacing
from optvet.spec.hunt import HuntRequest
from optvet.spec.records import HuntFinding, HuntSummary

SUMMARY = "hunt.json"


@dataclass(frozen=True)
class About:
    """What a hunt is in, in words.

    Attributes:
        name: As it is typed.
        version: Of its library.
        parts: What may change a model, such as passes, or be converted, such as operators; none
            where it is not known which of them did.
        unit: What some of the ``parts`` did.
    """

    name: str
    version: str
    parts: Sequence[str] = ()
    unit: str = "passes changed a model"


@dataclass(frozen=True)
class HuntProgress:
    """How far a hunt is, after a batch, before a suspect is vetted, or after a finding.

    ``seconds`` is CPU time of making and judging, ``share`` of the budget that is used. ``doing``
    says what is being done now; ``found`` is a finding that is new. ``passes`` is 0 where it is not
    known which pass changes a model; ``signatures`` counts the ways in which models were changed.
    ``unit`` says what ``changed`` of ``passes`` did.
    """

    doing: str
    candidates: int = 0
    valid: int = 0
    seconds: float = 0.0
    share: float = 0.0
    changed: int = 0
    passes: int = 0
    signatures: int = 0
    findings: int = 0
    pending: int = 0
    found: HuntFinding | None = None
    unit: str = "passes changed a model"


OnProgress = Callable[[HuntProgress], None]


def write_summary(request: HuntRequest, about: About, state: HuntState) -> HuntSummary:
    """Write ``hunt.json``, and return what it holds."""
    changed = state.passes_with_changes()
    findings = with_counts(state)
    summary = HuntSummary(
        schema="optvet.hunt/1",
        optimizer=about.name,
        version=about.version,
        optimizer_options=dict(request.optimizer_options),
        runtime_options=dict(request.runtime_options),
        seed=request.seed,
        budget=request.budget,
        candidates=state.number,
        valid=state.valid,
        refused=state.refused,
        seconds=round(state.seconds, 3),
        vetting_seconds=round(state.vetting_seconds, 3),
        fired=[p for p in about.parts if p in changed],
        unfired=[p for p in about.parts if p not in changed],
        signatures=len(state.rewrites),
        # Of originals the runtime died, which is not under test.
        deaths=sum(n for label, n in state.deaths.items() if label != "reference"),
        lost_references=state.deaths["reference"],
        left_out=state.deadly_passes(),
        refuted=state.refuted,
        pending=len(state.suspects),
        known=list(state.met),
        complaints=list(state.complaints.values()),
        findings=findings,
        causes=probable_causes(findings),
    )
    # Whole or not at all, while others may read it.
    with replacing(request.folder / SUMMARY) as file:
        file.write(f"{summary.to_json()}\n".encode())
    return summary
