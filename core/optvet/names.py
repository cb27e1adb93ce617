"""Where each public name is defined.

Modules are imported when a name of theirs is first asked for: together they take half a second, and
most processes need few of them.
"""

from __future__ import annotations

import warnings
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
    "spec.comparators": "Comparator ComparatorExtras Decodes Feeds Run",
    "spec.convert": "ConvertRequest",
    "spec.converters": """
        ConversionStage Converter ConverterExtras CutsSource Factory LabelScores MakesSources
        PartScript SessionExtras SourceExtras SourceFacts SourceInside SourceOperand SourceOperator
        SourcePart SourceStep SourceValue SplitsSource TellsSource
    """,
    "spec.devices": "KernelLaunch Meter ProfilesKernels Reading",
    "spec.environment": "Collision Installation Ran Unimportable Unmet",
    "spec.errors": """
        ContractError InfrastructureError InputError MissingLibrary NothingTested OptvetError
        PluginError
        UnknownName Unsupported UsageError
    """,
    "spec.executor": "Executor Report WorkerLost Workers WorkersExtras",
    "spec.extras": "EnvironmentExtras PluginExtras WorkerExtras",
    "spec.factory": "FactoryResult load_factory output_names",
    "spec.files": "file_sha256 write_file",
    "spec.foreign": """
        check_file files_in load_model matching open_file open_text read_file read_text
    """,
    "spec.generators": """
        Candidate Fragment Generator Mutator MutatorExtras Pattern Pool PoolRequest Vocabulary
    """,
    "spec.hunt": "HuntRequest",
    "spec.marker": "hookimpl",
    "spec.memory": "announced_bytes check_size",
    "spec.optimizer_protocols": "LowersPrecision Optimizer OptimizerExtras TakesFiles",
    "spec.parsing": "parse_json read_json read_toml",
    "spec.protocols": """
        Dataset DatasetExtras FindingFiles ModelSource ModelSourceExtras Probe Reporter
    """,
    "spec.pythons": "PythonEnvironment",
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
    "spec.records.vet": "Finding PassNumbers PassRecord VetResult WarningRecord",
    "spec.releases": "ReleasedPackage",
    "spec.repair": "RepairRequest",
    "spec.request": "VetRequest",
    "spec.runtime_protocols": "ReadsFiles Runtime RuntimeExtras Session",
    "spec.sensitive": "Harmless Sensitive",
    "spec.parts": "APART OutputPart parts_of_outputs",
    "spec.significance": "KEPT_BITS may_be_rounded",
    "spec.studies": """
        Cause ConversionFault FaultRow OUTCOMES Outcome Study StudiedConversion StudyData
        TrialParts TrialRow by_model grouped variants
    """,
    "engine.work.native": "inline_functions",
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


def former_name(name: str) -> Any:
    """Return a stand-in for a removed protocol, so that old plugins load; None for other names."""
    if name.startswith("_"):  # Python asks for ``__path__`` at each import
        return None
    from optvet.spec.contract import FORMER_NAMES

    if name not in FORMER_NAMES:
        return None
    extras = FORMER_NAMES[name].__name__
    words = f"optvet.plugin.{name} is a part of {extras} now: leave it out, or write {extras}"
    warnings.warn(words, DeprecationWarning, stacklevel=3)
    members = {"former": name, "__class_getitem__": classmethod(lambda cls, _: cls)}
    return type(name, (), members)
