"""What reports are made of: document ``optvet.report/1``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from optvet.spec.records.base import Record
from optvet.spec.records.campaign import FindingGroup, KnownFinding, TrialSummary
from optvet.spec.records.charts import Chart
from optvet.spec.records.report_table import ReportTable
from optvet.spec.records.verified import Verified
from optvet.spec.records.vet import Finding, Impact, OutputRecord, WarningRecord


class ReportedTrial(TrialSummary):
    """One job of a campaign with the numbers of its answer.

    ``short_name`` is the model's without its folders, as far as that is clear; ``question`` what
    was asked of it: optimizer, pipeline, and whatever else differs between jobs. ``command``
    repeats the job. The rest is empty where there is no result; ``nodes`` and ``size_bytes`` are
    those of the original, ``impact`` is without its samples, ``new_warnings`` are those that came
    more often after optimization, ``verified`` is what to use instead.
    """

    short_name: str
    question: str
    task: str | None = None
    nodes: int | None = None
    size_bytes: int | None = None
    opsets: dict[str, int] = Field(default_factory=dict)
    optimizer_version: str = ""
    judged_by: str = ""
    samples: int = 0
    outputs: list[OutputRecord] = Field(default_factory=list)
    impact: Impact | None = None
    new_warnings: list[WarningRecord] = Field(default_factory=list)
    verified: Verified = Field(default_factory=Verified)
    command: str

    @property
    def status(self) -> str:
        """The verdict; "error" where there is no result; else the state of the job."""
        return self.verdict or self.state

    @property
    def replaced(self) -> bool:
        """Whether something else is to be used than what was asked about."""
        other = self.verified.code or self.verified.saved
        return bool(self.verified.words) and (self.verdict == "faulty" or bool(other))

    @property
    def why(self) -> str:
        """Why there is no verdict; of a traceback the last line."""
        if self.error.startswith("Traceback"):
            return self.error.rstrip().rpartition("\n")[2]
        return self.error or self.reason

    @property
    def warned(self) -> int:
        """How many warnings came after optimization that had not come before."""
        return sum(w.new for w in self.new_warnings)


class Sighting(Record):
    """Where a finding was made: the job, by its key, and the ``number``-th finding of its answer.

    ``error`` and ``noise_floor`` are those of this job. ``command`` shows the finding again.
    """

    trial: str
    number: int
    model: str
    short_name: str
    question: str
    error: float | None = None
    noise_floor: float | None = None
    message: str = ""
    command: str


class ReportedFinding(FindingGroup):
    """Findings of one fingerprint: ``finding`` is the first of them, ``sightings`` are all."""

    finding: Finding
    sightings: list[Sighting]

    @property
    def title(self) -> str:
        """The symptom, and the passes at fault."""
        return f"{self.symptom}: {self.blamed() if self.culprit else 'import and export'}"


class CampaignReport(Record):
    """All that a report tells about a campaign.

    ``created`` and ``finished`` are seconds since 1970; ``versions`` are those of all libraries
    that took part. ``fixed`` and ``unseen`` are as in ``optvet.campaign/1``.
    """

    schema_: Literal["optvet.report/1"] = Field("optvet.report/1", alias="schema")
    optvet: str
    name: str
    number: int
    created: float
    finished: float | None
    versions: dict[str, str]
    trials: list[ReportedTrial]
    findings: list[ReportedFinding]
    fixed: list[KnownFinding] = Field(default_factory=list)
    unseen: list[KnownFinding] = Field(default_factory=list)
    tables: list[ReportTable] = Field(default_factory=list)
    charts: list[Chart] = Field(default_factory=list)

    def findings_of(self, trial: str) -> Iterator[ReportedFinding]:
        """The findings that the job of this key made."""
        return (f for f in self.findings if trial in f.trials)
