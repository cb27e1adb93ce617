"""What campaigns found, and how far they are."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from pydantic import Field

from optvet.spec.campaign import JobKind
from optvet.spec.convert import ConvertRequest
from optvet.spec.precision import PrecisionRequest
from optvet.spec.records.base import Record, Result
from optvet.spec.records.convert import ConversionResult
from optvet.spec.records.error import ErrorRecord
from optvet.spec.records.precision import PrecisionResult
from optvet.spec.records.vet import VetResult, blamed, remark
from optvet.spec.request import VetRequest
from optvet.spec.symptoms import Stage, Symptom


class TrialSummary(Record):
    """One job of a campaign: what was asked, and what came of it in short.

    Of a conversion (``kind`` "convert"), ``optimizer`` is the chain of converters; of a search for
    precision (``kind`` "precision") it is what is converted to, and ``kept`` of ``parts`` that can
    be converted stay as they are.

    Texts of what was asked are empty where nothing was; ``options`` are those of plugins, as
    ``opt_level: 3``. ``verdict`` is "error" where there is no
    result, of which ``error`` tells the reason and ``exit_code`` what it alone would have given;
    None as long as there is no answer. ``faults`` are symptom and culprit of each fault.
    """

    key: str
    kind: JobKind = "vet"
    model: str
    optimizer: str
    pipeline: str
    options: str = ""
    dataset: str = ""
    runtime: str = ""
    comparator: str = ""
    state: Literal["queued", "running", "done", "failed"]
    verdict: str | None = None
    kept: int | None = None
    parts: int | None = None
    reason: str = ""
    error: str = ""
    exit_code: int | None = None
    faults: list[str] = Field(default_factory=list)
    wall_s: float | None = None
    attempts: int = 0

    @property
    def outcome(self) -> str:
        """The verdict, of a search with the length of its list; else the state of the job."""
        if self.verdict == "found":
            return f"keep {self.kept} of {self.parts}"
        words = {"nothing-to-keep": "keep nothing", "unmet": "not met"}
        return words.get(self.verdict, self.verdict) if self.verdict else self.state


class FindingGroup(Record):
    """Findings of one fingerprint as one: what is wrong, and where it was found.

    ``trials`` are keys of jobs. ``counts`` tells whether it makes the campaign fail: a fault, or a
    note that was asked for, and not ``known`` from the baseline.
    """

    fingerprint: str
    optimizer: str
    symptom: Symptom
    severity: Literal["fault", "note", "requirement"]
    stage: Stage
    culprit: list[str]
    localized: bool = True
    message: str
    models: list[str]
    trials: list[str]
    known: bool = False
    counts: bool = True

    def facts(self) -> dict[str, str]:
        """Cells by the head of their column: every table of findings has all of them.

        What depends on the form of a report is its own: title, models, message and links.
        """
        return {"optimizer": self.optimizer}

    def blamed(self) -> str:
        """What is to blame, in words on one line."""
        return blamed(self.culprit, localized=self.localized)

    def remark(self) -> str:
        """The severity where it is no fault and the symptom does not say it; else empty."""
        return remark(self.severity, self.symptom)


class KnownFinding(Record):
    """One finding of a baseline: where it was found, and a note of whoever keeps the file."""

    fingerprint: str
    optimizer: str
    symptom: Symptom
    culprit: list[str]
    models: list[str] = Field(default_factory=list)
    note: str = ""


class Baseline(Record):
    """Findings that are known, and do not make a campaign fail."""

    schema_: Literal["optvet.baseline/1"] = Field("optvet.baseline/1", alias="schema")
    campaign: str = ""
    findings: list[KnownFinding]


class CampaignSummary(Result):
    """A campaign as a whole.

    ``fixed`` are findings of the baseline that are gone where they were found before; ``unseen``
    are those of which that is not known, since not all of these jobs have a result.
    """

    schema_: Literal["optvet.campaign/1"] = Field("optvet.campaign/1", alias="schema")
    name: str
    number: int
    created: float
    finished: float | None
    versions: dict[str, str]
    trials: list[TrialSummary]
    findings: list[FindingGroup]
    fixed: list[KnownFinding] = Field(default_factory=list)
    unseen: list[KnownFinding] = Field(default_factory=list)

    def headline(self) -> str:
        """How many jobs have an answer, their verdicts, and how many findings there are."""
        verdicts = Counter(t.verdict for t in self.trials if t.verdict is not None)
        amounts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(verdicts.items()))
        answered = f"{verdicts.total()} of {len(self.trials)} jobs answered"
        return f"{self.name}: {answered} ({amounts or 'none yet'}); {len(self.findings)} findings"

    def rows(self) -> list[dict[str, Any]]:
        """One row per job: what was asked, the verdict, and its faults."""
        return [
            {
                "model": t.model,
                "optimizer": t.optimizer,
                "pipeline": t.pipeline,
                "verdict": t.verdict,
                "faults": "; ".join(t.faults),
                "seconds": t.wall_s,
            }
            for t in self.trials
        ]


class CampaignState(Record):
    """How far one campaign is: jobs by state; seconds that what is left will take, as measured."""

    name: str
    number: int
    created: float
    finished: float | None
    queued: int
    running: int
    done: int
    failed: int
    work_left_s: float | None = None


class RunningJob(Record):
    """A job that is being run, by which process, for how many seconds."""

    model: str
    optimizer: str
    pipeline: str
    owner: str
    alive: bool
    since_s: float


class CampaignStatus(Record):
    """The campaigns of a store."""

    schema_: Literal["optvet.campaign-status/1"] = Field("optvet.campaign-status/1", alias="schema")
    store: str
    campaigns: list[CampaignState]
    running: list[RunningJob]


class ChangedVerdict(Record):
    """A job that two campaigns answered differently."""

    model: str
    optimizer: str
    pipeline: str
    before: str
    after: str


class CampaignDiff(Record):
    """What campaign ``b`` says otherwise than ``a``, in the ``shared`` jobs that both answered.

    ``only_a`` and ``only_b`` count the jobs that the other has no result of. ``versions`` are those
    that differ, as [before, after]; empty where there was none. ``new`` and ``fixed`` are findings
    by fingerprint, ``same`` counts those in both.
    """

    schema_: Literal["optvet.campaign-diff/1"] = Field("optvet.campaign-diff/1", alias="schema")
    a: str
    b: str
    shared: int
    only_a: int
    only_b: int
    versions: dict[str, list[str]]
    new: list[FindingGroup]
    fixed: list[FindingGroup]
    same: int
    verdicts: list[ChangedVerdict]


class TrialExport(Record):
    """One job with all that was asked and answered."""

    key: str
    cell: str
    model_digest: str
    versions: dict[str, str]
    state: Literal["queued", "running", "done", "failed"]
    attempts: int
    wall_s: float | None
    request: VetRequest | ConvertRequest | PrecisionRequest
    answer: VetResult | ConversionResult | PrecisionResult | ErrorRecord | None


class CampaignExport(Record):
    """A campaign with every answer."""

    schema_: Literal["optvet.campaign-export/1"] = Field("optvet.campaign-export/1", alias="schema")
    name: str
    number: int
    created: float
    finished: float | None
    source: str
    trials: list[TrialExport]
