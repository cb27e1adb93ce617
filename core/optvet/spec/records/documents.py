"""All documents by name: for their schemas, and for reading one of any kind."""

from __future__ import annotations

from optvet.spec.records.base import Record
from optvet.spec.records.bench import BenchResult
from optvet.spec.records.bisect import BisectResult
from optvet.spec.records.bundle import Replayed, Replays, Reproduction
from optvet.spec.records.campaign import (
    Baseline,
    CampaignDiff,
    CampaignExport,
    CampaignStatus,
    CampaignSummary,
)
from optvet.spec.records.compare import DecodingComparison, ModelComparison
from optvet.spec.records.convert import ConversionResult
from optvet.spec.records.doctor import Diagnosis
from optvet.spec.records.error import ErrorRecord
from optvet.spec.records.generate import GeneratedModels
from optvet.spec.records.hunt import HuntSummary
from optvet.spec.records.known import AdviceResult, KnownFault, KnownFaults
from optvet.spec.records.listing import (
    CacheCleared,
    CacheContents,
    EnvironmentList,
    ModelDescriptions,
    ModelList,
    PluginDescriptions,
    PluginList,
    PulledModels,
    ReleasesCleared,
    Terms,
    VersionReport,
)
from optvet.spec.records.precision import PrecisionResult
from optvet.spec.records.repair import Patch, RepairResult
from optvet.spec.records.report import CampaignReport
from optvet.spec.records.tables import CampaignTables
from optvet.spec.records.vet import VetResult
from optvet.spec.records.vets import VetResults

DOCUMENTS: dict[str, type[Record]] = {
    "vet": VetResult,
    "vets": VetResults,
    "convert": ConversionResult,
    "repair": RepairResult,
    "patch": Patch,
    "bench": BenchResult,
    "finding": Reproduction,
    "replay": Replayed,
    "replays": Replays,
    "bisect": BisectResult,
    "known": KnownFault,
    "known-faults": KnownFaults,
    "advice": AdviceResult,
    "compare": ModelComparison,
    "compare-decoding": DecodingComparison,
    "precision": PrecisionResult,
    "campaign": CampaignSummary,
    "campaign-status": CampaignStatus,
    "campaign-diff": CampaignDiff,
    "campaign-export": CampaignExport,
    "campaign-tables": CampaignTables,
    "hunt": HuntSummary,
    "baseline": Baseline,
    "report": CampaignReport,
    "doctor": Diagnosis,
    "error": ErrorRecord,
    "plugins": PluginList,
    "plugin": PluginDescriptions,
    "models": ModelList,
    "model": ModelDescriptions,
    "pull": PulledModels,
    "generated": GeneratedModels,
    "environments": EnvironmentList,
    "env-clear": ReleasesCleared,
    "cache": CacheContents,
    "cache-clear": CacheCleared,
    "version": VersionReport,
    "terms": Terms,
}
"""Documents by the name that ``optvet schema`` takes."""
