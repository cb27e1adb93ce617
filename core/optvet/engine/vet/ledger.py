"""The findings, controls and undecided questions of one vet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optvet.engine.judge.judgement import Judgement
from optvet.engine.vet.observe.observation import Observation
from optvet.spec.records import Control, ControlState, Finding, RequirementRecord, Timing
from optvet.spec.symptoms import Symptom

HANGS = 4
"""Faults of one vet that may reach the time limit; behind them, nothing more is searched."""


class FindingsLedger:
    """Collects what the stages of a vet find.

    Attributes:
        findings: In the order in which they were found.
        controls: Checks on which the verdict depends, by name.
        reasons: Why something could not be decided; if there are any, the verdict may be undecided.
        requirements: The user's requirements with what was measured.
        weighed: How many findings were asked what excuses them.
        timing: How fast the safe pipeline is; None unless that was measured.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.controls: dict[str, Control] = {}
        self.reasons: list[str] = []
        self.requirements: list[RequirementRecord] = []
        self.weighed = 0
        self.timing: Timing | None = None

    def add(self, finding: Finding) -> None:
        """Add ``finding`` unless an equal one is there."""
        if all(_identity(f) != _identity(finding) for f in self.findings):
            self.findings.append(finding)

    def amend(self, index: int, changes: Mapping[str, Any]) -> None:
        """Change fields of the finding at ``index``."""
        self.findings[index] = self.findings[index].model_copy(update=dict(changes))

    def amend_equal(self, finding: Finding, changes: Mapping[str, Any]) -> None:
        """Change fields of the finding that is equal to ``finding``, if there is one."""
        for index, known in enumerate(self.findings):
            if _identity(known) == _identity(finding):
                self.amend(index, changes)

    def has(self, symptom: Symptom) -> bool:
        """Whether there is a finding of this symptom."""
        return any(f.symptom == symptom for f in self.findings)

    def control(self, name: str, state: ControlState, detail: str = "") -> None:
        """Record the result of a check on which the verdict depends."""
        self.controls[name] = Control(name=name, state=state, detail=detail)

    def control_exact(self, judgements: Mapping[str, Judgement]) -> None:
        """Record outputs of the reference that the exact result contradicts, by output."""
        wrong = [f"output {n!r}: {j.detail}" for n, j in judgements.items() if j.contradicted]
        if wrong:
            self.control("exact result", "limited", "; ".join(wrong))

    def add_undecided_reason(self, reason: str) -> None:
        """Record why something could not be decided, unless that is recorded already."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def withdraw_faults(self) -> None:
        """Leave no fault confirmed, since something else may have caused each of them."""
        for index, finding in enumerate(self.findings):
            if finding.severity == "fault":
                self.amend(index, {"confirmed": False})

    def is_unexplained(self, observation: Observation) -> bool:
        """Whether something other than the model may be the cause; records it as undecided then."""
        if observation.unexplained:
            self.add_undecided_reason(observation.message)
        return observation.unexplained

    def ends_search(self, observation: Observation) -> bool:
        """Whether it is one timeout too many: to search each costs the time limit a few times."""
        if observation.symptom.info.limit != "time":
            return False
        known = sum(f.symptom == observation.symptom for f in self.findings)
        if known < HANGS:
            return False
        words = f"beside {known} that were found, something else reaches the time limit; "
        words += "it was not searched"
        self.control("time limit", "limited", words)
        self.add_undecided_reason(words)
        return True


def _identity(finding: Finding) -> tuple[object, ...]:
    """The key by which findings are equal."""
    return (
        finding.symptom,
        finding.culprit,
        finding.outputs,
        finding.requirement,
        finding.as_deployed,
    )
