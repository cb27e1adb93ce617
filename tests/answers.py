"""What tests ask of an answer of ``vet``."""

from optvet import Finding, VetResult


def detail(result: VetResult, name: str) -> str:
    """The words of the control of that name."""
    control = result.control(name)
    assert control is not None, [c.name for c in result.controls]
    return control.detail


def elsewhere(finding: Finding) -> dict[str, str]:
    """What each other runtime shows: the symptom, or the outcome and why."""
    return {
        c.runtime: str(c.symptom) if c.symptom is not None else f"{c.outcome} {c.detail}".strip()
        for c in finding.cross_check
    }
