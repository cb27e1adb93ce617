"""What a plugin must and may give, by family: one row of ``CONTRACTS`` for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from optvet.spec.comparators import Comparator, ComparatorExtras, Decodes
from optvet.spec.converters import (
    Converter,
    ConverterExtras,
    CutsSource,
    MakesSources,
    SessionExtras,
    SourceExtras,
    SplitsSource,
    TellsSource,
)
from optvet.spec.devices import Meter, ProfilesKernels
from optvet.spec.executor import Executor, Workers, WorkersExtras
from optvet.spec.extras import EnvironmentExtras, PluginExtras, WorkerExtras
from optvet.spec.generators import Generator, Mutator, MutatorExtras, Pool
from optvet.spec.optimizer_protocols import (
    LowersPrecision,
    Optimizer,
    OptimizerExtras,
    TakesFiles,
)
from optvet.spec.protocols import (
    Dataset,
    DatasetExtras,
    ModelSource,
    ModelSourceExtras,
    Reporter,
)
from optvet.spec.runtime_protocols import ReadsFiles, Runtime, RuntimeExtras, Session
from optvet.spec.studies import Study
from optvet.spec.user_model import UserModel

Family = Literal[
    "optimizer",
    "runtime",
    "comparator",
    "dataset",
    "model source",
    "executor",
    "reporter",
    "generator",
    "converter",
    "study",
    "user model",
]


@dataclass(frozen=True)
class Contract:
    """What plugins of a family give.

    Attributes:
        hook: Name of the function that returns them.
        must: All of its members.
        may: Classes of extras: any of their members. Those of ``PluginExtras`` go for all families.
        sets: Protocols of optional members that come together.
        parts: Protocols and classes of extras of what its members return.
    """

    hook: str
    must: type
    may: tuple[type, ...] = ()
    sets: tuple[type, ...] = ()
    parts: tuple[type, ...] = ()


CONTRACTS: Mapping[Family, Contract] = {
    "optimizer": Contract(
        "optvet_optimizers",
        Optimizer,
        (WorkerExtras, OptimizerExtras),
        (TakesFiles, LowersPrecision),
    ),
    "runtime": Contract(
        "optvet_runtimes",
        Runtime,
        (WorkerExtras, EnvironmentExtras, RuntimeExtras, SourceExtras),
        (ReadsFiles, ProfilesKernels, TellsSource, SplitsSource, CutsSource, MakesSources),
        (Session, SessionExtras, Meter),
    ),
    "comparator": Contract("optvet_comparators", Comparator, (ComparatorExtras,), (Decodes,)),
    "dataset": Contract("optvet_datasets", Dataset, (DatasetExtras,)),
    "model source": Contract("optvet_model_sources", ModelSource, (ModelSourceExtras,)),
    "executor": Contract("optvet_executors", Executor, parts=(Workers, WorkersExtras)),
    "reporter": Contract("optvet_reporters", Reporter),
    "generator": Contract("optvet_generators", Generator, (MutatorExtras,), (Pool, Mutator)),
    "converter": Contract("optvet_converters", Converter, (EnvironmentExtras, ConverterExtras)),
    "study": Contract("optvet_studies", Study),
    "user model": Contract("optvet_user_models", UserModel),
}


FORMER_NAMES: Mapping[str, type] = {
    former: now
    for now, names in (
        (
            PluginExtras,
            "Preferred Wants UsesLibraries ImportsOthers Diagnoses SetsEnvironment",
        ),
        (WorkerExtras, "ChecksOptions Logs"),
        (EnvironmentExtras, "NeedsPython FitsOtherPythons"),
        (
            OptimizerExtras,
            "CarriesFiles DependsOnModel DependsOnOptions Explains ExplainsSaved ExplainsSimply "
            "ExplainsTogether HasReleases QuickInHunts ReportsChanges Saves TellsCode "
            "VariesInHunts",
        ),
        (
            RuntimeExtras,
            "ChecksOperands DeclaresLoss Evaluates ExplainsRuntime ExplainsRuntimeSimply "
            "HasExactKernels LoadsFiles Meters Profiles TellsInnerValues TellsWhatItReads",
        ),
        (
            SourceExtras,
            "Perturbs RunsInDouble ShowsInside TellsLastOperators TellsSettings TellsSourceRisks",
        ),
        (SessionExtras, "ScoresLabels"),
        (ComparatorExtras, "Calibrates Ragged TakesSuggestions TellsMetrics"),
        (DatasetExtras, "Suits TellsProvenance"),
        (ModelSourceExtras, "NeedsNetwork Pins RunsCode"),
        (
            ConverterExtras,
            "ConvertsOnInputs ExplainsConverter TakesOperators TakesRegistered",
        ),
    )
    for former in names.split()
}
"""Removed protocols of ``optvet.plugin``, and the class that has their members now."""

FORMER_MEMBERS: Mapping[Family, Mapping[str, str]] = {
    "optimizer": {"touched": "changing_passes(source, passes, options)"},
}
"""Renamed optional members, and their present signatures."""
