"""What plugins provide. Every plugin object must be picklable: trials run in other processes.

Optional parts of all plugins, then datasets, sources of models and reporters. Optimizers, runtimes
and comparators have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from optvet.spec import comparators
from optvet.spec.generics import OptionsT, OptionsT_contra
from optvet.spec.types import Deferred, LogFormat, Model, ModelCard, Sample

if TYPE_CHECKING:
    # Documents take a fifth of a second to import, which workers would spend for nothing.
    from optvet.spec.environment import Installation
    from optvet.spec.records.doctor import Check
    from optvet.spec.records.report import CampaignReport, ReportedFinding

Calibrates = comparators.Calibrates
Comparator = comparators.Comparator
Decodes = comparators.Decodes
Ragged = comparators.Ragged
TakesSuggestions = comparators.TakesSuggestions
TellsMetrics = comparators.TellsMetrics
Run = comparators.Run
Feeds = comparators.Feeds
Probe = Callable[[Sequence[Feeds]], Sequence[str | None]]
"""Runs the reference on each set of feeds: None where it runs, else the error's text."""
FindingFiles = Callable[["ReportedFinding"], Mapping[str, bytes]]
"""Files of a finding's bundle by name, ``before.svg`` among them; empty where there is none."""


@runtime_checkable
class Preferred(Protocol):
    """Optional part of every plugin: its priority as the default of its family.

    The default is the plugin with the highest preference, and among equals the first by name; a
    plugin without this part has preference 0. Defaults are used where the user names no plugin: the
    default optimizer is vetted; the default runtime runs the models, among the runtimes that accept
    their format; the default dataset makes inputs; the default comparator is used where no other
    one matches; the default model source opens paths; of several converters to ONNX that fit a
    source, the one with the highest preference is taken.

    Attributes:
        preference: Built-in defaults have 100. A plugin with more becomes the default for everybody
            who installs it.
    """

    preference: int


@runtime_checkable
class Evaluates(Protocol):
    """Optional part of a runtime: it computes what the standard says, by no library of kernels.

    It judges models that the default runtime does not load, where the user names none.
    """

    evaluates: bool


@runtime_checkable
class UsesLibraries(Protocol):
    """Optional part of every plugin: the libraries that it needs.

    ``optvet doctor`` lists their versions, imports each in a worker, and warns of a folder in the
    working directory that Python would import in place of one.

    Attributes:
        libraries: The module to import, by distribution: ``{"Pillow": "PIL"}``.
    """

    libraries: Mapping[str, str]


@runtime_checkable
class ImportsOthers(Protocol):
    """Optional part of every plugin: what its libraries import without requiring it.

    ``optvet doctor`` then imports these in one process, so that a large library is imported once.

    Attributes:
        imports: Other distributions, by distribution: ``{"acme": ("torch",)}``.
    """

    imports: Mapping[str, Sequence[str]]


@runtime_checkable
class Wants(Protocol):
    """Optional part of every plugin: optional libraries that add features.

    ``optvet plugins`` shows which extra installs the missing ones.

    Attributes:
        wants: Names of modules.
    """

    wants: Sequence[str]


@runtime_checkable
class ChecksOptions(Protocol[OptionsT_contra]):
    """Optional part of an optimizer or runtime: it checks options that depend on its library."""

    def check_options(self, options: OptionsT_contra) -> None:
        """Refuse options under which no model could be optimized or run, such as an unknown device.

        Called once in a worker process, before anything is applied or run; for the defaults, once
        per version of plugin and library. Checks that do not need the library belong into the
        pydantic model of the options.

        Raises:
            UsageError: The message names the option and its value.
        """
        ...


@runtime_checkable
class Diagnoses(Protocol):
    """Optional part of every plugin: it finds known problems of its libraries."""

    def diagnose(self, installation: Installation) -> Iterable[Check]:
        """Checks of this plugin's libraries; empty if there is nothing to report.

        Called by ``optvet doctor``, in its own process, even if the library is absent or cannot be
        imported. Import native code by ``installation.run`` only.

        A check with the same ``name`` and ``about`` as one of the engine's replaces it. The
        engine's checks are "packages", about the two names of a collision, or about name and
        requirement of an unmet requirement; "libraries", about a distribution that cannot be
        imported; and "working directory", about a module that a file there would hide.
        """
        ...


@runtime_checkable
class SetsEnvironment(Protocol):
    """Optional part of every plugin: environment variables to set for its libraries.

    They are set when plugins are discovered, before ``version`` is called and so before a library
    is imported, for this process and its children; and at the top of ``repro.py``. Variables that
    the user has set are kept. Most libraries read such variables once, when they are imported.

    Attributes:
        environment: Values by name, such as the switches that turn telemetry off.
    """

    environment: Mapping[str, str]


@runtime_checkable
class Logs(Protocol):
    """Optional part of an optimizer or runtime: the format of its library's log.

    What libraries write to stderr is searched for warnings. Without this part every line is one,
    except for continuations, progress bars and lines of a common level such as ``INFO``.

    Attributes:
        log_format: The format.
    """

    log_format: LogFormat


@runtime_checkable
class Dataset(Protocol[OptionsT]):
    """A source of inputs, of any number: the engine holds one chunk of them at a time.

    Attributes:
        name: Unique among datasets; ``--dataset NAME`` or ``--dataset NAME:ARGUMENT``.
        options: Its options with their defaults.
    """

    name: str
    options: OptionsT

    def samples(
        self,
        model: Model,
        argument: str | None,
        options: OptionsT,
        *,
        seed: int,
        limit: int | None,
        probe: Probe,
    ) -> Iterable[Sample | Deferred]:
        """Samples for ``model``, deterministic in all arguments, with unique ids.

        Called again if samples are needed again, since they are not kept. Work that is expensive,
        or that may fail for one sample only, is yielded as a ``Deferred``.

        Args:
            model: What the samples are for.
            argument: The part after the colon of ``NAME:ARGUMENT``.
            options: The dataset's options.
            seed: Seed of all randomness.
            limit: Maximal number of samples; None for the dataset's own number.
            probe: Runs the reference to see which feeds it accepts; one inference each.

        Raises:
            InputError: No sample can be made; the message names the input or file at fault.
        """
        ...


@runtime_checkable
class Suits(Protocol):
    """Optional part of a dataset: whether it can make a model's inputs from a folder."""

    def suits(self, model: Model, argument: str) -> float:
        """How well it suits, from 0 (not at all) to 1; called for ``--dataset auto:ARGUMENT``.

        1 means that the model's record declares such inputs; a guess from names and shapes is below
        0.9. It must not decode files.
        """
        ...


@runtime_checkable
class TellsProvenance(Protocol[OptionsT_contra]):
    """Optional part of a dataset: it reports what its samples depend on."""

    def provenance(
        self, model: Model, argument: str | None, options: OptionsT_contra
    ) -> Mapping[str, str]:
        """Facts by name: the resolved revision, the preprocessing, which of it was inferred."""
        ...


@runtime_checkable
class ModelSource(Protocol):
    """Where models come from.

    Attributes:
        name: The scheme in ``NAME:REFERENCE``; "local" serves plain paths.
    """

    name: str

    def models(self) -> Iterable[ModelCard]:
        """Models that can be fetched by name; empty if they cannot be listed."""
        ...

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """ONNX files for ``reference``; generated and downloaded files are kept below ``cache``.

        Raises:
            UsageError: There is no such model, or it cannot be fetched.
        """
        ...


@runtime_checkable
class NeedsNetwork(Protocol):
    """Optional part of a model source whose list is on a server.

    Attributes:
        needs_network: If true, its models are listed only if the user names the source.
    """

    needs_network: bool


@runtime_checkable
class RunsCode(Protocol):
    """Optional part of a model source that runs code which its references name.

    Attributes:
        runs_code: If true, a file may name such a model only if the user trusts it.
    """

    runs_code: bool


@runtime_checkable
class Pins(Protocol):
    """Optional part of a model source whose names may refer to different models over time."""

    def pinned(self, reference: str, cache: Path) -> str:
        """The full reference, ``NAME:…``, with the revision that ``fetch`` has just returned."""
        ...


@runtime_checkable
class Reporter(Protocol):
    """Makes a document of what a campaign found, for ``optvet report``.

    Attributes:
        name: Unique among reporters; ``--format NAME``.
        suffix: What names of its files end in, such as ".html"; ``--out`` chooses the format by it.
            Empty if it is chosen by name alone.
    """

    name: str
    suffix: str

    def render(self, report: CampaignReport, files: FindingFiles) -> str:
        """The document; it depends on nothing but the arguments.

        Texts in ``report`` may hold anything that a model's author wrote, and are to be escaped.
        Control characters are removed from the document afterwards.
        """
        ...
