"""What a vet has found so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optvet.engine.vet.examine import Observation
from optvet.spec.records import Control, ControlState, Finding, RequirementRecord
from optvet.spec.types import Symptom


class FindingsLedger:
    """Findings, controls, and reasons why something could not be decided; the stages fill it."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.controls: dict[str, Control] = {}
        self.reasons: list[str] = []
        self.requirements: list[RequirementRecord] = []

    def add(self, finding: Finding) -> None:
        """Take in ``finding``, unless it is known."""
        if all(_identity(f) != _identity(finding) for f in self.findings):
            self.findings.append(finding)

    def amend(self, index: int, changes: Mapping[str, Any]) -> None:
        """Tell more of the finding at ``index``."""
        self.findings[index] = self.findings[index].model_copy(update=dict(changes))

    def has(self, symptom: Symptom) -> bool:
        """Whether there is a finding of this symptom."""
        return any(f.symptom == symptom for f in self.findings)

    def control(self, name: str, state: ControlState, detail: str = "") -> None:
        """Tell how a check went that the verdict rests on."""
        self.controls[name] = Control(name=name, state=state, detail=detail)

    def undecided(self, reason: str) -> None:
        """Tell why something could not be decided, once."""
        if reason not in self.reasons:
            self.reasons.append(reason)

    def is_unexplained(self, observation: Observation) -> bool:
        """Whether it is no finding, since somebody else may have caused it; the reason is kept."""
        if observation.unexplained:
            self.undecided(observation.message)
        return observation.unexplained

    def ends_search(self, observation: Observation) -> bool:
        """Whether it is the second hang: each further one would take the whole limit, twice."""
        if observation.symptom != Symptom.TIMEOUT or not self.has(Symptom.TIMEOUT):
            return False
        words = "something else runs into the time limit as well, and was not searched"
        self.control("time limit", "limited", words)
        self.undecided(words)
        return True


def _identity(finding: Finding) -> tuple[object, ...]:
    """What no two findings have in common."""
    return finding.symptom, finding.culprit, finding.outputs, finding.requirement
