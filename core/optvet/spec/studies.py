"""Studies: the tables that a paper prints, made of the trials of a stored campaign.

A study is a plugin: what only its tables know, such as the paper's figures, is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from onnx import ModelProto

    from optvet.spec.records import (
        BenchResult,
        Finding,
        Impact,
        ModelComparison,
        PassNumbers,
        PassRecord,
        Placements,
        Structures,
        Timing,
        WarningRecord,
    )
    from optvet.spec.records.convert import ConversionFinding, ConversionResult
    from optvet.spec.records.repair import RepairResult
    from optvet.spec.records.report_table import ReportTable

Outcome = Literal[
    "same", "rounded", "differs", "crashes", "undecided", "not taken", "no result", "waits"
]
"""What became of a model under a variant, from the best; "crashes" has no result to compare."""
OUTCOMES: tuple[Outcome, ...] = (
    "same", "rounded", "differs", "crashes", "undecided", "not taken", "no result", "waits"
)  # fmt: skip


CauseName = Literal[
    "incompatibility", "type", "shape", "algorithmic", "API misuse", "other", "unclear"
]


@dataclass(frozen=True)
class Cause:
    """A proposed cause, and the evidence for it."""

    name: CauseName
    evidence: str = ""


@dataclass(frozen=True)
class FaultRow:
    """One fault; ``issue`` is equal for crashes of one stage and normalized message."""

    fingerprint: str
    issue: str
    finding: Finding
    cause: Cause


class TrialParts(NamedTuple):
    """The parts of a request in which trials of one model can differ; unknown ones are empty.

    ``data_options`` are those of the dataset, ``options`` those of other plugins.
    """

    optimizer: str
    version: str
    pipeline: str = ""
    options: str = ""
    dataset: str = ""
    runtime: str = ""
    comparator: str = ""
    data_options: str = ""


@dataclass(frozen=True)
class TrialRow:
    """One trial.

    ``error`` and ``noise`` are those of the worst output; ``passes`` are those tried alone,
    ``round_trip`` the numbers of import and export beside them; ``warnings`` are those that are new
    after optimization. Unknown values are None, or empty.
    """

    key: str
    model: str
    digest: str
    source: str
    optimizer: str
    version: str
    parts: TrialParts
    outcome: Outcome
    reason: str = ""
    task: str = ""
    opset: int | None = None
    faults: tuple[FaultRow, ...] = ()
    notes: tuple[Finding, ...] = ()
    warnings: tuple[WarningRecord, ...] = ()
    impact: Impact | None = None
    error: float | None = None
    noise: float | None = None
    kind: Literal["vet", "convert"] = "vet"
    passes: tuple[PassRecord, ...] = ()
    round_trip: PassNumbers | None = None
    pipeline: tuple[str, ...] = ()
    structures: Structures | None = None
    placements: Placements | None = None
    timing: Timing | None = None

    @property
    def judged(self) -> bool:
        """Whether there is a verdict on the optimizer."""
        return self.outcome in ("same", "rounded", "differs", "crashes")

    @property
    def faulty(self) -> bool:
        """Whether outputs differ, or a stage fails."""
        return self.outcome in ("differs", "crashes")


@dataclass(frozen=True)
class ConversionFault:
    """A fault or a refusal of a conversion.

    ``converter`` is who is to blame, ``stage`` the kind of stage, in words. ``issue`` is the
    fingerprint of a fault; a refusal has none.
    """

    finding: ConversionFinding
    converter: str
    stage: str
    issue: str
    cause: Cause


@dataclass(frozen=True)
class StudiedConversion:
    """One conversion: its source, its chain, and what became of it.

    ``outcome`` is the word that the tables of conversions have for it. Without an answer, there are
    no faults. ``graph`` is the source where that is a model in ONNX whose file is as it was.
    """

    source: str
    chain: str
    outcome: str
    result: ConversionResult | None
    faults: tuple[ConversionFault, ...] = ()
    graph: ModelProto | None = None

    @property
    def failed(self) -> bool:
        """Whether anything is wrong, a refusal included."""
        return bool(self.faults)


@dataclass(frozen=True)
class StudyData:
    """What the tables of a study are made of.

    Attributes:
        rows: One per trial of the campaign in which an optimizer was vetted, in the plan's order.
        models: References of the models that the study ran, as model sources tag them with the
            study's name.
        conversions: One per conversion of the campaign, then those of answers in files.
        repairs: Answers of ``optvet repair`` in files, by the file's name without ``.json``.
        comparisons: Answers of ``optvet compare``, likewise.
        benches: Answers of ``optvet bench`` in files.
        general: The tables that any campaign of conversions has.
    """

    rows: Sequence[TrialRow]
    models: Sequence[str] = ()
    conversions: Sequence[StudiedConversion] = ()
    repairs: Mapping[str, RepairResult] = field(default_factory=dict)
    comparisons: Mapping[str, ModelComparison] = field(default_factory=dict)
    benches: Sequence[BenchResult] = ()
    general: Sequence[ReportTable] = ()


@runtime_checkable
class Study(Protocol):
    """The tables of a published study.

    Attributes:
        name: Unique among studies; ``--study NAME``. Models that the study ran have it as a tag.
        description: One line: which paper, and where it is.
    """

    name: str
    description: str

    def tables(self, data: StudyData) -> Sequence[ReportTable]:
        """The study's tables of a campaign; ``data`` is not changed."""
        ...


# --- rows together -------------------------------------------------------------------------------

_ALWAYS, _VERSION = 0, 1


def variants(rows: Iterable[TrialRow]) -> dict[str, list[TrialRow]]:
    """Rows by variant, under the shortest names that are distinct."""
    listed = list(rows)
    differs = [len({row.parts[i] for row in listed}) > 1 for i in range(len(TrialParts._fields))]
    # Versions of two optimizers always differ; what matters is one optimizer's.
    versions: dict[str, set[str]] = {}
    for row in listed:
        versions.setdefault(row.optimizer, set()).add(row.version)
    differs[_VERSION] = any(len(found) > 1 for found in versions.values())
    differs[_ALWAYS] = True
    found: dict[str, list[TrialRow]] = {}
    for row in listed:
        words = [p for p, wanted in zip(row.parts, differs, strict=True) if wanted and p]
        found.setdefault(" ".join(words), []).append(row)
    return found


def by_model(rows: Iterable[TrialRow]) -> dict[str, TrialRow]:
    """The worst row of each model."""
    found: dict[str, TrialRow] = {}
    for row in rows:
        other = found.get(row.digest)
        if other is None or _RANK[row.outcome] > _RANK[other.outcome]:
            found[row.digest] = row
    return found


_FROM_BEST: tuple[Outcome, ...] = (
    "waits",
    "no result",
    "not taken",
    "same",
    "rounded",
    "undecided",
    "differs",
    "crashes",
)
_RANK: Mapping[Outcome, int] = {name: rank for rank, name in enumerate(_FROM_BEST)}
"""What stands for several jobs of a model: the outcome that says most against the optimizer."""


def grouped(rows: Iterable[TrialRow]) -> dict[str, list[TrialRow]]:
    """Rows by optimizer, in order of first appearance."""
    found: dict[str, list[TrialRow]] = {}
    for row in rows:
        found.setdefault(row.optimizer, []).append(row)
    return found
