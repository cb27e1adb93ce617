"""Every JSON document that optvet writes: one pydantic model each, versioned by its key ``schema``.

A document of an earlier version is read by ``reading.read_document``, which brings it up to date.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optvet.spec.records.base import Record
    from optvet.spec.records.bench import (
        BenchResult,
        BenchVariant,
        MachineRecord,
        Slowdown,
        StepFailure,
    )
    from optvet.spec.records.bisect import BisectResult
    from optvet.spec.records.bundle import Replayed, ReplayOutcome, Replays, Reproduction
    from optvet.spec.records.campaign import (
        Baseline,
        CampaignDiff,
        CampaignExport,
        CampaignState,
        CampaignStatus,
        CampaignSummary,
        ChangedVerdict,
        FindingGroup,
        KnownFinding,
        RunningJob,
        TrialExport,
        TrialSummary,
    )
    from optvet.spec.records.charts import (
        Bar,
        BarChart,
        Chart,
        Interval,
        IntervalChart,
        Point,
        PointChart,
    )
    from optvet.spec.records.compare import (
        Activation,
        AnswerContrast,
        Layer,
        LayerContrast,
        LayerSummary,
        ModelComparison,
        Parameter,
    )
    from optvet.spec.records.doctor import STATUSES, Check, Diagnosis, Status
    from optvet.spec.records.documents import DOCUMENTS
    from optvet.spec.records.error import ErrorRecord
    from optvet.spec.records.generate import (
        Coverage,
        GeneratedModels,
        OperatorSequence,
        SyntheticModel,
    )
    from optvet.spec.records.hunt import HuntCause, HuntFinding, HuntSummary
    from optvet.spec.records.layers import LayerRecord, MovedOutput, Quantized
    from optvet.spec.records.listing import (
        CacheCleared,
        CacheContents,
        CacheKind,
        EnvironmentEntry,
        EnvironmentList,
        ForeignPlugin,
        ModelDescription,
        ModelDescriptions,
        ModelEntry,
        ModelList,
        PluginDescription,
        PluginDescriptions,
        PluginEntry,
        PluginList,
        PulledModel,
        PulledModels,
        ReleaseEntry,
        ReleasesCleared,
        VersionReport,
    )
    from optvet.spec.records.placement import OperatorTime, PlacedNode, Placement, Placements
    from optvet.spec.records.report import (
        CampaignReport,
        ReportedFinding,
        ReportedTrial,
        Sighting,
    )
    from optvet.spec.records.report_table import ReportTable
    from optvet.spec.records.structure import (
        Inventory,
        InventoryChange,
        Structure,
        Structures,
    )
    from optvet.spec.records.tables import CampaignTables
    from optvet.spec.records.timing import TimedSide, Timing
    from optvet.spec.records.vet import (
        ComparisonRecord,
        Control,
        ControlState,
        Cost,
        CrossCheck,
        DatasetRecord,
        Divergence,
        Finding,
        FixedTolerance,
        Impact,
        ModelRecord,
        OptimizerRecord,
        OrdersRecord,
        OutputRecord,
        PassNumbers,
        PassRecord,
        RequirementRecord,
        RewriteSite,
        RuntimeRecord,
        Skipped,
        StageCost,
        Verdict,
        VetResult,
        WarningRecord,
        Witness,
    )
    from optvet.spec.records.vets import VetResults

__all__ = [
    "DOCUMENTS",
    "STATUSES",
    "Activation",
    "AnswerContrast",
    "Bar",
    "BarChart",
    "Baseline",
    "BenchResult",
    "BenchVariant",
    "BisectResult",
    "CacheCleared",
    "CacheContents",
    "CacheKind",
    "CampaignDiff",
    "CampaignExport",
    "CampaignReport",
    "CampaignState",
    "CampaignStatus",
    "CampaignSummary",
    "CampaignTables",
    "ChangedVerdict",
    "Chart",
    "Check",
    "ComparisonRecord",
    "Control",
    "ControlState",
    "Cost",
    "Coverage",
    "CrossCheck",
    "DatasetRecord",
    "Diagnosis",
    "Divergence",
    "EnvironmentEntry",
    "EnvironmentList",
    "ErrorRecord",
    "Finding",
    "FindingGroup",
    "FixedTolerance",
    "ForeignPlugin",
    "GeneratedModels",
    "HuntCause",
    "HuntFinding",
    "HuntSummary",
    "Impact",
    "Interval",
    "IntervalChart",
    "Inventory",
    "InventoryChange",
    "KnownFinding",
    "Layer",
    "LayerContrast",
    "LayerRecord",
    "LayerSummary",
    "MachineRecord",
    "ModelComparison",
    "ModelDescription",
    "ModelDescriptions",
    "ModelEntry",
    "ModelList",
    "ModelRecord",
    "MovedOutput",
    "OperatorSequence",
    "OperatorTime",
    "OptimizerRecord",
    "OrdersRecord",
    "OutputRecord",
    "Parameter",
    "PassNumbers",
    "PassRecord",
    "PlacedNode",
    "Placement",
    "Placements",
    "PluginDescription",
    "PluginDescriptions",
    "PluginEntry",
    "PluginList",
    "Point",
    "PointChart",
    "PulledModel",
    "PulledModels",
    "Quantized",
    "Record",
    "ReleaseEntry",
    "ReleasesCleared",
    "ReplayOutcome",
    "Replayed",
    "Replays",
    "ReportTable",
    "ReportedFinding",
    "ReportedTrial",
    "Reproduction",
    "RequirementRecord",
    "RewriteSite",
    "RunningJob",
    "RuntimeRecord",
    "Sighting",
    "Skipped",
    "Slowdown",
    "StageCost",
    "Status",
    "StepFailure",
    "Structure",
    "Structures",
    "SyntheticModel",
    "TimedSide",
    "Timing",
    "TrialExport",
    "TrialSummary",
    "Verdict",
    "VersionReport",
    "VetResult",
    "VetResults",
    "WarningRecord",
    "Witness",
]

_HOMES = (
    "vet",
    "vets",
    "timing",
    "layers",
    "structure",
    "placement",
    "error",
    "compare",
    "bundle",
    "bisect",
    "charts",
    "bench",
    "doctor",
    "listing",
    "report",
    "report_table",
    "tables",
    "campaign",
    "generate",
    "hunt",
    "documents",
)
"""Modules of this package in which names are looked for, one after the other."""


def __getattr__(name: str) -> Any:
    # On demand: there are some 150 records, and a command reads and writes a few.
    for home in _HOMES if name in __all__ else ():
        module = import_module(f"{__name__}.{home}")
        if hasattr(module, name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
