"""The answer of ``precision``, document ``optvet.precision/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record, Result
from optvet.spec.records.saved import Saved
from optvet.spec.records.timing import Timing
from optvet.spec.records.vet import DatasetRecord, ModelRecord, OptimizerRecord, RuntimeRecord

PrecisionVerdict = Literal["found", "nothing-to-keep", "unmet", "undecided"]
"""Whether a list was found; none is needed; no list meets the requirement; or it is not known."""


class PrecisionReading(Record):
    """How far a requirement was met with some nodes kept."""

    requirement: str
    met: bool | None
    measured: float | None = None
    detail: str = ""


class PrecisionRisk(Record):
    """Why a node may need its precision."""

    kind: Literal[
        "overflow",
        "constant",
        "underflow",
        "absorption",
        "cancellation",
        "few-digits",
        "long-sum",
        "operator",
    ]
    severity: float
    words: str


class KeptPart(Record):
    """A node, or a group of nodes, that stays as it is."""

    name: str
    operators: list[str]
    nodes: int = 1
    reason: str
    suspicions: list[PrecisionRisk] = Field(default_factory=list)
    without: list[PrecisionReading] = Field(default_factory=list)
    """What is measured if this part alone is converted too."""


class RankedPart(Record):
    """The loss by one part: converted alone, relative to the outputs' root mean square."""

    name: str
    operators: list[str]
    loss: float | None
    """None where an output is not finite, or the model does not run."""
    met: bool | None
    """Whether the requirements are met with this part alone converted."""


class CurvePoint(Record):
    """What is measured with this many parts kept, the most important first."""

    kept: int
    readings: list[PrecisionReading]


class PrecisionResult(Result):
    """Which parts of a model must keep their precision."""

    schema_: Literal["optvet.precision/1"] = Field("optvet.precision/1", alias="schema")
    verdict: PrecisionVerdict
    model: ModelRecord
    precision: str
    optimizer: OptimizerRecord
    runtime: RuntimeRecord
    emulated: bool
    """Whether the type was emulated in float32, since the runtime does not round each value."""
    accumulate: str = "fp32"
    """The type in which sums inside of a node are accumulated, as far as ``short_sums`` says."""
    sum_block: int | None = None
    """Products that are added in float32 before the running sum is rounded."""
    short_sums: dict[str, int] = Field(default_factory=dict)
    """Nodes by operator whose sums are rounded as they grow, with all nodes converted."""
    float32_sums: dict[str, int] = Field(default_factory=dict)
    """Nodes of the type whose sums are accumulated in float32 all the same."""
    requirements: list[str]
    default_requirement: bool
    """Whether the requirement is the optimizer's, since none was given."""
    samples: int
    datasets: list[DatasetRecord] = Field(default_factory=list)
    """Where the samples come from, in the order of their use."""
    parts: int
    """How many parts of the model can be converted."""
    kept: list[KeptPart] = Field(default_factory=list)
    whole: list[PrecisionReading] = Field(default_factory=list)
    """With all converted."""
    none: list[PrecisionReading] = Field(default_factory=list)
    """With none converted: what the import and export by the optimizer alone does."""
    chosen: list[PrecisionReading] = Field(default_factory=list)
    """With the list kept, measured again in new processes."""
    computed: list[PrecisionReading] = Field(default_factory=list)
    """The mixed model as this runtime computes it, where the type was emulated."""
    minimal: bool = False
    """Whether no single part can be left out, each tried again in new processes."""
    ranking: list[RankedPart] = Field(default_factory=list)
    curve: list[CurvePoint] = Field(default_factory=list)
    recipes: dict[str, str] = Field(default_factory=dict)
    """The list as arguments of the library's call, by name, and as whole texts for other tools."""
    code: str = ""
    """The library's call with the list, as the Python body of a function of ``model``; empty where
    the optimizer gives none."""
    saved: Saved | None = None
    """The mixed model's file; None unless it was asked for."""
    unnamed: int = 0
    """How many nodes of the model have no name of their own and got one."""
    mixed_size_bytes: int | None = None
    timing: Timing | None = None
    """The mixed model beside the original, if that was asked for."""
    not_timed: str = ""
    """Why the mixed model could not be timed."""
    trials: int = 0
    inferences: int = 0
    wall_s: float = 0.0
    reason: str = ""
    files: list[str] = Field(default_factory=list)

    def headline(self) -> str:
        """The answer on one line."""
        requirement = " and ".join(self.requirements)
        about = f"{self.model.source} → {self.precision}"
        if self.verdict == "found":
            words = f"keep {len(self.kept)} of {self.parts} for {requirement}"
        elif self.verdict == "nothing-to-keep":
            words = f"all {self.parts} can be converted: {requirement} is met"
        elif self.verdict == "unmet":
            words = f"{requirement} is not met: {self.reason}"
        else:
            words = f"undecided: {self.reason}"
        return f"{about}: {words}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per part that is kept."""
        return [
            {"node": part.name, "operators": ", ".join(part.operators), "reason": part.reason}
            for part in self.kept
        ]
