"""Hook specifications: one hook per family; each returns plugin objects with unique names."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from optvet.spec.converters import Converter
from optvet.spec.executor import Executor
from optvet.spec.generators import Mutator, Pool
from optvet.spec.optimizer_protocols import Optimizer
from optvet.spec.protocols import Comparator, Dataset, ModelSource, Reporter
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.studies import Study
from optvet.spec.user_model import UserModel

hookspec = pluggy.HookspecMarker("optvet")


@hookspec
def optvet_optimizers() -> Iterable[Optimizer]:  # type: ignore[empty-body]
    """Optimizers of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_runtimes() -> Iterable[Runtime]:  # type: ignore[empty-body]
    """Runtimes of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_datasets() -> Iterable[Dataset]:  # type: ignore[empty-body]
    """Datasets of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_comparators() -> Iterable[Comparator]:  # type: ignore[empty-body]
    """Comparators of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_model_sources() -> Iterable[ModelSource]:  # type: ignore[empty-body]
    """Model sources of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_executors() -> Iterable[Executor]:  # type: ignore[empty-body]
    """Executors of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_reporters() -> Iterable[Reporter]:  # type: ignore[empty-body]
    """Reporters of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_generators() -> Iterable[Pool | Mutator]:  # type: ignore[empty-body]
    """Pools and mutators of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_converters() -> Iterable[Converter]:  # type: ignore[empty-body]
    """Converters of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_studies() -> Iterable[Study]:  # type: ignore[empty-body]
    """Studies of this plugin; called once, when plugins are discovered. Empty: none."""


@hookspec
def optvet_user_models() -> Iterable[UserModel]:  # type: ignore[empty-body]
    """User models of this plugin; called once, when plugins are discovered. Empty: none."""
