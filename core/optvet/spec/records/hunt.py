"""What a hunt found: document ``optvet.hunt/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record, Result
from optvet.spec.symptoms import HARMS, Symptom


class HuntFinding(Record):
    """A fault that ``vet`` confirmed, reduced; its bundle is the folder ``bundle``.

    ``candidate`` is the number of the model that showed it first, and ``mutators`` are how that was
    made. ``models`` counts the models that probably show it. ``keys`` are the signs by which the
    hunt recognizes it. ``operators`` are those of the reduced model that no other may stand for,
    ``features`` what it has that a reduction would have made plainer if it could,
    and ``needs`` what else it has that most faults show without, in words. ``contrived`` are those
    of the needs, and others, that models of practice hardly have. ``parts`` are the steps of a
    source and those of their settings that the fault needs, where steps have settings.
    """

    fingerprint: str
    symptom: Symptom
    severity: Literal["fault", "note", "requirement"]
    culprit: list[str]
    message: str
    nodes: int
    bundle: str
    candidate: int
    mutators: list[str] = Field(default_factory=list)
    models: int = 1
    keys: list[str] = Field(default_factory=list)
    operators: list[str] = Field(default_factory=list)
    features: list[str] = Field(default_factory=list)
    needs: list[str] = Field(default_factory=list)
    contrived: list[str] = Field(default_factory=list)
    parts: list[str] = Field(default_factory=list)

    @property
    def gravity(self) -> tuple[bool, bool, int]:
        """A key to sort by: faults, those of plausible models, and those with most harm first."""
        harm = list(HARMS).index(self.symptom.info.harm)
        return self.severity != "fault", bool(self.contrived), harm

    def gravity_in_words(self) -> str:
        """Why the finding stands where it stands among others, as a clause."""
        model = f"a contrived model: {', '.join(self.contrived)}"
        harm = HARMS[self.symptom.info.harm if self.severity == "fault" else "remark"]
        return f"{harm}, on {model if self.contrived else 'a plausible model'}"


class HuntCause(Record):
    """Findings that are probably of one cause, and why; ``fingerprints`` are theirs."""

    title: str
    why: str
    fingerprints: list[str]


class HuntSummary(Result):
    """A hunt so far.

    ``candidates`` were made, of which ``valid`` could be judged, and the optimizer ``refused`` some
    as not supported. ``fired`` are passes that changed a model, ``unfired`` those that never did,
    as far as that is seen; ``signatures`` are the ways in which models were changed.
    ``refuted`` suspicions were not confirmed by ``vet``, and ``known`` fingerprints were met again.
    ``deaths`` of workers were caused by the optimizer, ``lost_references`` by the original model;
    ``left_out`` counts those of passes that kill so many that few models are tried with them.
    ``causes`` are the findings in groups.
    ``complaints`` are about plugins that raised exceptions where they must not. ``seconds`` is CPU
    time of making and judging, ``vetting_seconds`` the wall-clock time of vetting suspicions.
    """

    schema_: Literal["optvet.hunt/1"] = Field("optvet.hunt/1", alias="schema")
    optimizer: str
    version: str
    optimizer_options: dict[str, Any] = Field(default_factory=dict)
    runtime_options: dict[str, Any] = Field(default_factory=dict)
    seed: int
    budget: str
    candidates: int
    valid: int
    refused: int
    seconds: float
    vetting_seconds: float = 0.0
    fired: list[str]
    unfired: list[str]
    signatures: int
    deaths: int
    lost_references: int
    left_out: dict[str, int] = Field(default_factory=dict)
    refuted: int
    pending: int
    known: list[str]
    complaints: list[str] = Field(default_factory=list)
    findings: list[HuntFinding]
    causes: list[HuntCause] = Field(default_factory=list)

    def headline(self) -> str:
        """What was hunted in, with how many models, and how much was found."""
        tried = f"{self.valid:,} valid models of {self.candidates:,}"
        return f"{self.optimizer} {self.version}: {len(self.findings)} findings in {tried}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per finding."""
        return [
            {
                "symptom": str(f.symptom),
                "severity": f.severity,
                "culprit": ", ".join(f.culprit),
                "gravity": f.gravity_in_words(),
                "nodes": f.nodes,
                "models": f.models,
                "message": f.message,
                "bundle": f.bundle,
            }
            for f in self.findings
        ]
