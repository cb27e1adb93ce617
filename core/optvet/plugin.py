"""What plugins import: protocols first, then what they take and return, then what is optional.

A plugin is an object with the members of one protocol, returned by a function that ``hookimpl``
marks; see docs/plugins.md. Optional members stand in classes of extras, such as
``OptimizerExtras``, of which a plugin gives any, and in protocols of members that come together.
"""

from typing import TYPE_CHECKING, Any

from optvet.names import find, former_name

if TYPE_CHECKING:
    from optvet.engine.numerics.float64 import evaluator as reference_evaluator
    from optvet.engine.work.native import inline_functions
    from optvet.spec.comparators import Comparator, ComparatorExtras, Decodes, Feeds, Run
    from optvet.spec.converters import (
        ConversionStage,
        Converter,
        ConverterExtras,
        CutsSource,
        Factory,
        LabelScores,
        MakesSources,
        PartScript,
        SessionExtras,
        SourceExtras,
        SourceFacts,
        SourceInside,
        SourceOperand,
        SourceOperator,
        SourcePart,
        SourceStep,
        SourceValue,
        SplitsSource,
        TellsSource,
    )
    from optvet.spec.devices import (
        KernelLaunch,
        Meter,
        ProfilesKernels,
        Reading,
    )
    from optvet.spec.environment import Collision, Installation, Ran, Unimportable, Unmet
    from optvet.spec.errors import (
        ContractError,
        InfrastructureError,
        InputError,
        MissingLibrary,
        NothingTested,
        OptvetError,
        PluginError,
        UnknownName,
        Unsupported,
        UsageError,
    )
    from optvet.spec.executor import Executor, Report, WorkerLost, Workers, WorkersExtras
    from optvet.spec.extras import EnvironmentExtras, PluginExtras, WorkerExtras
    from optvet.spec.factory import FactoryResult, load_factory, output_names
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
        MutatorExtras,
        Pattern,
        Pool,
        PoolRequest,
        Vocabulary,
    )
    from optvet.spec.marker import hookimpl
    from optvet.spec.memory import announced_bytes, check_size
    from optvet.spec.optimizer_protocols import (
        LowersPrecision,
        Optimizer,
        OptimizerExtras,
        TakesFiles,
    )
    from optvet.spec.parsing import parse_json, read_json, read_toml
    from optvet.spec.parts import APART, OutputPart, parts_of_outputs
    from optvet.spec.protocols import (
        Dataset,
        DatasetExtras,
        FindingFiles,
        ModelSource,
        ModelSourceExtras,
        Probe,
        Reporter,
    )
    from optvet.spec.pythons import PythonEnvironment
    from optvet.spec.records.bench import BenchResult, BenchVariant
    from optvet.spec.records.charts import BarChart, Chart, IntervalChart, PointChart
    from optvet.spec.records.compare import AnswerContrast, ModelComparison
    from optvet.spec.records.devices import DeviceUse, KernelProfile
    from optvet.spec.records.doctor import Check
    from optvet.spec.records.placement import Placement
    from optvet.spec.records.repair import Edit, RepairResult
    from optvet.spec.records.report import (
        CampaignReport,
        ReportedFinding,
        ReportedTrial,
        Sighting,
    )
    from optvet.spec.records.report_table import ReportTable
    from optvet.spec.records.timing import Timing
    from optvet.spec.records.vet import (
        Finding,
        PassNumbers,
        PassRecord,
        VetResult,
        WarningRecord,
    )
    from optvet.spec.releases import ReleasedPackage
    from optvet.spec.request import VetRequest
    from optvet.spec.runtime_protocols import ReadsFiles, Runtime, RuntimeExtras, Session
    from optvet.spec.sensitive import Harmless, Sensitive
    from optvet.spec.significance import KEPT_BITS, may_be_rounded
    from optvet.spec.studies import (
        OUTCOMES,
        Cause,
        ConversionFault,
        FaultRow,
        Outcome,
        StudiedConversion,
        Study,
        StudyData,
        TrialParts,
        TrialRow,
        by_model,
        grouped,
        variants,
    )
    from optvet.spec.symptoms import NOTES, Stage, Symptom
    from optvet.spec.task_memory import allow_reservations
    from optvet.spec.types import (
        MODEL_PARTS,
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
        ModelPart,
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
    from optvet.spec.user_model import UserModel
    from optvet.spec.versions import version_of
    from optvet.spec.wanted_output import readable_outputs
    from optvet.spec.words import markdown_block, markdown_code, markdown_text, printable

# fmt: off
__all__ = [  # noqa: RUF022  # by what they are for
    # What every plugin needs.
    "hookimpl", "Model", "ModelConfig", "Sample", "Feeds", "Artifact", "ValueInfo", "Failure",
    "Symptom", "Stage", "OptvetError", "UsageError", "InputError", "NothingTested",
    "UnknownName", "Unsupported", "PluginError", "ContractError", "InfrastructureError",
    "MissingLibrary", "version_of",
    # The families, one protocol each.
    "Optimizer", "Runtime", "Comparator", "Dataset", "Converter", "ModelSource", "Reporter",
    "Executor", "Generator", "Pool", "Mutator", "Study", "UserModel",
    # What these take and return.
    "Pass", "Traits", "KnownLimit", "InterfaceChange", "Session", "NodeTime", "Profile",
    "Inner", "LogFormat", "Comparison", "Reference", "Summary", "Suggestion", "Deferred",
    "Probe", "Run", "ModelCard", "ConversionStage", "Factory", "FactoryResult", "SourceFacts",
    "SourceOperand", "SourceOperator", "SourceValue", "SourceInside", "SourcePart", "SourceStep",
    "PartScript", "LabelScores", "MODEL_PARTS", "ModelPart",
    "Reading", "Meter", "KernelLaunch", "Candidate", "Fragment", "Pattern",
    "PoolRequest", "Vocabulary", "Report", "Workers", "WorkerLost",
    "PythonEnvironment", "ReleasedPackage", "Installation", "Collision",
    "Ran", "Unmet",
    "Unimportable", "Check", "Sensitive", "Harmless", "FindingFiles", "VetRequest", "VetResult",
    "Finding", "WarningRecord", "CampaignReport", "ReportedFinding", "ReportedTrial", "ReportTable",
    "Sighting", "Chart", "BarChart", "IntervalChart", "PointChart", "NOTES",
    "StudyData", "TrialRow", "TrialParts", "FaultRow", "Cause", "Outcome", "OUTCOMES", "by_model",
    "ConversionFault", "StudiedConversion",
    "grouped", "variants", "AnswerContrast", "BenchResult", "BenchVariant", "DeviceUse",
    "KernelProfile", "Edit", "ModelComparison", "RepairResult", "PassNumbers", "PassRecord",
    "Placement", "Timing",
    # Optional members, those of a class of extras one by one, those of the others together.
    "PluginExtras", "WorkerExtras", "EnvironmentExtras", "OptimizerExtras", "TakesFiles",
    "LowersPrecision", "RuntimeExtras", "SourceExtras", "SessionExtras", "ReadsFiles",
    "ProfilesKernels", "TellsSource", "SplitsSource", "CutsSource", "MakesSources",
    "ComparatorExtras", "Decodes", "DatasetExtras", "ModelSourceExtras", "ConverterExtras",
    "MutatorExtras", "WorkersExtras",
    # Files, which are untrusted, and text from models.
    "check_file", "check_size", "announced_bytes", "allow_reservations", "files_in", "matching",
    "open_file", "open_text", "read_file", "read_text", "read_json", "read_toml", "parse_json",
    "load_model", "inline_functions", "load_factory", "output_names", "write_file", "file_sha256",
    "printable", "markdown_block", "markdown_code", "markdown_text",
    # Numbers.
    "may_be_rounded", "KEPT_BITS", "APART", "OutputPart", "parts_of_outputs", "readable_outputs",
    "reference_evaluator",
]
# fmt: on


def __getattr__(name: str) -> Any:
    if name not in __all__ and (former := former_name(name)):
        return former
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = find(name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
