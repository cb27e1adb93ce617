"""optvet vets the optimizers that rewrite machine-learning models.

Everything that plugins and library users may import is here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optvet.engine.api import bench, compare, reduce, replay, write_bundles
    from optvet.engine.numerics.float64 import evaluator as reference_evaluator
    from optvet.engine.question import vet
    from optvet.spec.converters import (
        ConversionStage,
        Converter,
        ConvertsOnInputs,
        Factory,
        Perturbs,
        RunsInDouble,
        ShowsInside,
        SourceFacts,
        SourceInside,
        SourceOperand,
        SourcePart,
        SourceValue,
        SplitsSource,
        TellsSource,
        TellsSourceRisks,
    )
    from optvet.spec.devices import KernelLaunch, Meter, Meters, ProfilesKernels, Reading
    from optvet.spec.environment import Collision, Installation, Ran, Unmet
    from optvet.spec.errors import (
        ContractError,
        InfrastructureError,
        InputError,
        NothingTested,
        OptvetError,
        PluginError,
        UnknownName,
        Unsupported,
        UsageError,
    )
    from optvet.spec.executor import Executor, Report, WorkerLost, Workers
    from optvet.spec.factory import Made, load_factory
    from optvet.spec.files import file_sha256, write_file
    from optvet.spec.foreign import (
        check_file,
        files_in,
        load_model,
        matching,
        open_file,
        open_text,
        read_file,
        read_text,
    )
    from optvet.spec.generators import (
        Candidate,
        Fragment,
        Generator,
        Mutator,
        Pattern,
        Pool,
        PoolRequest,
        Vocabulary,
    )
    from optvet.spec.hooks import hookimpl
    from optvet.spec.memory import announced_bytes, check_size
    from optvet.spec.parsing import parse_json, read_json, read_toml
    from optvet.spec.protocols import (
        Calibrates,
        CarriesFiles,
        ChecksOptions,
        Comparator,
        Dataset,
        Decodes,
        DependsOnOptions,
        Diagnoses,
        Evaluates,
        Explains,
        ExplainsRuntime,
        ExplainsRuntimeSimply,
        ExplainsSimply,
        ExplainsTogether,
        Feeds,
        FindingFiles,
        LoadsFiles,
        Logs,
        ModelSource,
        NeedsNetwork,
        Optimizer,
        Pins,
        Preferred,
        Probe,
        Profiles,
        Ragged,
        ReadsFiles,
        Reporter,
        ReportsChanges,
        Run,
        Runtime,
        Saves,
        Session,
        SetsEnvironment,
        Suits,
        TakesFiles,
        TakesSuggestions,
        TellsMetrics,
        TellsProvenance,
        UsesLibraries,
        Wants,
    )
    from optvet.spec.pythons import NeedsPython, PythonEnvironment
    from optvet.spec.records import (
        BarChart,
        CampaignReport,
        Chart,
        Check,
        Finding,
        IntervalChart,
        PointChart,
        ReportedFinding,
        ReportedTrial,
        ReportTable,
        Sighting,
        VetResult,
        WarningRecord,
    )
    from optvet.spec.request import VetRequest
    from optvet.spec.sensitive import Harmless, Sensitive
    from optvet.spec.significance import KEPT_BITS, may_be_rounded
    from optvet.spec.symptoms import NOTES, Stage, Symptom
    from optvet.spec.types import (
        Artifact,
        Comparison,
        Deferred,
        Failure,
        Inner,
        InterfaceChange,
        KnownLimit,
        LogFormat,
        Model,
        ModelCard,
        ModelConfig,
        NodeTime,
        Pass,
        Profile,
        Reference,
        Sample,
        Suggestion,
        Summary,
        Traits,
        ValueInfo,
    )
    from optvet.spec.versions import version_of
    from optvet.spec.words import markdown_text, printable

__version__ = "0.1.0"

__all__ = [
    "KEPT_BITS",
    "NOTES",
    "Artifact",
    "BarChart",
    "Calibrates",
    "CampaignReport",
    "Candidate",
    "CarriesFiles",
    "Chart",
    "Check",
    "ChecksOptions",
    "Collision",
    "Comparator",
    "Comparison",
    "ContractError",
    "ConversionStage",
    "Converter",
    "ConvertsOnInputs",
    "Dataset",
    "Decodes",
    "Deferred",
    "DependsOnOptions",
    "Diagnoses",
    "Evaluates",
    "Executor",
    "Explains",
    "ExplainsRuntime",
    "ExplainsRuntimeSimply",
    "ExplainsSimply",
    "ExplainsTogether",
    "Factory",
    "Failure",
    "Feeds",
    "Finding",
    "FindingFiles",
    "Fragment",
    "Generator",
    "Harmless",
    "InfrastructureError",
    "Inner",
    "InputError",
    "Installation",
    "InterfaceChange",
    "IntervalChart",
    "KernelLaunch",
    "KnownLimit",
    "LoadsFiles",
    "LogFormat",
    "Logs",
    "Made",
    "Meter",
    "Meters",
    "Model",
    "ModelCard",
    "ModelConfig",
    "ModelSource",
    "Mutator",
    "NeedsNetwork",
    "NeedsPython",
    "NodeTime",
    "NothingTested",
    "Optimizer",
    "OptvetError",
    "Pass",
    "Pattern",
    "Perturbs",
    "Pins",
    "PluginError",
    "PointChart",
    "Pool",
    "PoolRequest",
    "Preferred",
    "Probe",
    "Profile",
    "Profiles",
    "ProfilesKernels",
    "PythonEnvironment",
    "Ragged",
    "Ran",
    "Reading",
    "ReadsFiles",
    "Reference",
    "Report",
    "ReportTable",
    "ReportedFinding",
    "ReportedTrial",
    "Reporter",
    "ReportsChanges",
    "Run",
    "RunsInDouble",
    "Runtime",
    "Sample",
    "Saves",
    "Sensitive",
    "Session",
    "SetsEnvironment",
    "ShowsInside",
    "Sighting",
    "SourceFacts",
    "SourceInside",
    "SourceOperand",
    "SourcePart",
    "SourceValue",
    "SplitsSource",
    "Stage",
    "Suggestion",
    "Suits",
    "Summary",
    "Symptom",
    "TakesFiles",
    "TakesSuggestions",
    "TellsMetrics",
    "TellsProvenance",
    "TellsSource",
    "TellsSourceRisks",
    "Traits",
    "UnknownName",
    "Unmet",
    "Unsupported",
    "UsageError",
    "UsesLibraries",
    "ValueInfo",
    "VetRequest",
    "VetResult",
    "Vocabulary",
    "Wants",
    "WarningRecord",
    "WorkerLost",
    "Workers",
    "__version__",
    "announced_bytes",
    "bench",
    "check_file",
    "check_size",
    "compare",
    "file_sha256",
    "files_in",
    "hookimpl",
    "load_factory",
    "load_model",
    "markdown_text",
    "matching",
    "may_be_rounded",
    "open_file",
    "open_text",
    "parse_json",
    "printable",
    "read_file",
    "read_json",
    "read_text",
    "read_toml",
    "reduce",
    "reference_evaluator",
    "replay",
    "version_of",
    "vet",
    "write_bundles",
    "write_file",
]


_HOMES = (
    "optvet.spec.errors",
    "optvet.spec.symptoms",
    "optvet.spec.files",
    "optvet.spec.foreign",
    "optvet.spec.memory",
    "optvet.spec.parsing",
    "optvet.spec.versions",
    "optvet.spec.significance",
    "optvet.spec.words",
    "optvet.spec.types",
    "optvet.spec.sensitive",
    "optvet.spec.protocols",
    "optvet.spec.hooks",
    "optvet.spec.environment",
    "optvet.spec.devices",
    "optvet.spec.executor",
    "optvet.spec.generators",
    "optvet.spec.converters",
    "optvet.spec.factory",
    "optvet.spec.pythons",
    "optvet.spec.request",
)
"""Where public names are looked for, one module after the other: those that import little first."""
_RECORDS = {
    "BarChart": "charts",
    "CampaignReport": "report",
    "Chart": "charts",
    "Check": "doctor",
    "Finding": "vet",
    "IntervalChart": "charts",
    "PointChart": "charts",
    "ReportTable": "report",
    "ReportedFinding": "report",
    "ReportedTrial": "report",
    "Sighting": "report",
    "VetResult": "vet",
    "WarningRecord": "vet",
}
"""Documents, by the module below ``optvet.spec.records``: most processes need one or two."""
_ENGINE = ("bench", "compare", "reduce", "replay", "write_bundles")


def __getattr__(name: str) -> Any:
    # On demand: together they take half a second to import, and most processes need few of them.
    if name == "reference_evaluator":
        from optvet.engine.numerics.float64 import evaluator

        return evaluator
    if name == "vet":
        from optvet.engine.question import vet

        return vet
    if name in _RECORDS:
        homes: tuple[str, ...] = (f"optvet.spec.records.{_RECORDS[name]}",)
    else:
        homes = ("optvet.engine.api",) if name in _ENGINE else _HOMES if name in __all__ else ()
    for home in homes:
        module = import_module(home)
        if hasattr(module, name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
