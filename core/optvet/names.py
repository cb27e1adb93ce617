"""Where each public name is defined.

Modules are imported when a name of theirs is first asked for: together they take half a second, and
most processes need few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = {
    "api": """
        Data Progress Source advise bench bisect compare convert hunt known precision reduce repair
        replay vet write_bundles
    """,
    "campaigns": "Campaign",
    "spec.bench": "BenchRequest",
    "spec.bisect": "BisectRequest",
    "spec.convert": "ConvertRequest",
    "spec.converters": """
        ConversionStage Converter ConvertsOnInputs CutsSource ExplainsConverter Factory LabelScores
        MakesSources PartScript Perturbs RunsInDouble ScoresLabels ShowsInside SourceFacts
        SourceInside SourceOperand SourceOperator SourcePart SourceStep SourceValue SplitsSource
        TakesOperators TakesRegistered TellsLastOperators TellsSettings TellsSource
        TellsSourceRisks
    """,
    "spec.devices": "HasExactKernels KernelLaunch Meter Meters ProfilesKernels Reading",
    "spec.environment": "Collision Installation Ran Unimportable Unmet",
    "spec.errors": """
        ContractError InfrastructureError InputError MissingLibrary NothingTested OptvetError
        PluginError
        UnknownName Unsupported UsageError
    """,
    "spec.executor": "Executor Report WorkerLost Workers",
    "spec.factory": "FactoryResult load_factory",
    "spec.files": "file_sha256 write_file",
    "spec.foreign": """
        check_file files_in load_model matching open_file open_text read_file read_text
    """,
    "spec.generators": """
        Candidate Fragment Generator Mutator Pattern Pool PoolRequest Vocabulary
    """,
    "spec.hunt": "HuntRequest",
    "spec.marker": "hookimpl",
    "spec.memory": "announced_bytes check_size",
    "spec.optimizer_protocols": """
        CarriesFiles DependsOnModel DependsOnOptions Explains ExplainsSaved ExplainsSimply
        ExplainsTogether LowersPrecision Optimizer QuickInHunts ReportsChanges Saves TakesFiles
        TellsCode VariesInHunts
    """,
    "spec.parsing": "parse_json read_json read_toml",
    "spec.protocols": """
        Calibrates ChecksOptions Comparator Dataset Decodes Diagnoses Evaluates Feeds
        FindingFiles ImportsOthers Logs ModelSource NeedsNetwork Pins Preferred Probe
        Ragged Reporter Run RunsCode SetsEnvironment Suits TakesSuggestions TellsMetrics
        TellsProvenance UsesLibraries Wants
    """,
    "spec.pythons": "FitsOtherPythons NeedsPython PythonEnvironment",
    "spec.records.bench": "BenchResult BenchVariant",
    "spec.records.bisect": "BisectResult",
    "spec.records.bundle": "Replayed",
    "spec.records.campaign": "CampaignSummary",
    "spec.records.charts": "BarChart Chart IntervalChart PointChart",
    "spec.records.compare": "AnswerContrast ModelComparison",
    "spec.records.convert": "ConversionResult",
    "spec.records.devices": "DeviceUse KernelProfile",
    "spec.records.doctor": "Check",
    "spec.records.hunt": "HuntSummary",
    "spec.records.known": "AdviceResult KnownFault KnownFaults",
    "spec.precision": "PrecisionRequest",
    "spec.records.precision": "PrecisionResult",
    "spec.records.repair": "Edit RepairResult",
    "spec.records.report": "CampaignReport ReportedFinding ReportedTrial Sighting",
    "spec.records.report_table": "ReportTable",
    "spec.records.placement": "Placement",
    "spec.records.timing": "Timing",
    "spec.records.vet": "Finding PassRecord VetResult WarningRecord",
    "spec.releases": "HasReleases ReleasedPackage",
    "spec.repair": "RepairRequest",
    "spec.request": "VetRequest",
    "spec.runtime_protocols": """
        ChecksOperands DeclaresLoss ExplainsRuntime ExplainsRuntimeSimply LoadsFiles Profiles
        ReadsFiles Runtime Session TellsInnerValues TellsWhatItReads
    """,
    "spec.sensitive": "Harmless Sensitive",
    "spec.parts": "APART OutputPart parts_of_outputs",
    "spec.significance": "KEPT_BITS may_be_rounded",
    "spec.studies": """
        Cause ConversionFault FaultRow OUTCOMES Outcome Study StudiedConversion StudyData
        TrialParts TrialRow by_model grouped variants
    """,
    "spec.symptoms": "NOTES Stage Symptom",
    "spec.task_memory": "allow_reservations",
    "spec.types": """
        MODEL_PARTS Artifact Comparison Deferred Failure Inner InterfaceChange KnownLimit
        LogFormat Model ModelCard ModelConfig ModelPart NodeTime Pass Profile Reference Sample
        Suggestion Summary Traits ValueInfo
    """,
    "spec.user_model": "UserModel",
    "spec.versions": "version_of",
    "spec.wanted_output": "readable_outputs",
    "spec.words": "markdown_block markdown_code markdown_text printable",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_RENAMED = {"reference_evaluator": ("engine.numerics.float64", "evaluator")}


def find(name: str) -> Any:
    """The object that a public name stands for.

    Raises:
        KeyError: No public name is spelled so.
    """
    module, spelled = _RENAMED.get(name) or (_HOMES[name], name)
    return getattr(import_module(f"optvet.{module}"), spelled)
