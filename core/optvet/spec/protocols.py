"""What plugins provide. Every plugin object must be picklable: trials run in other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from optvet.spec import comparators
from optvet.spec.environment import Installation
from optvet.spec.generics import OptionsT, OptionsT_contra
from optvet.spec.records.doctor import Check
from optvet.spec.types import (
    Artifact,
    Deferred,
    Inner,
    Model,
    ModelCard,
    Pass,
    Sample,
    Traits,
)

Comparator = comparators.Comparator
Decodes = comparators.Decodes
Ragged = comparators.Ragged
TakesSuggestions = comparators.TakesSuggestions
TellsMetrics = comparators.TellsMetrics
Run = comparators.Run
Feeds = comparators.Feeds
Probe = Callable[[Sequence[Feeds]], Sequence[str | None]]
"""Runs the reference on each set of feeds: None where it runs, else the error's text."""


@runtime_checkable
class Preferred(Protocol):
    """Optional part of every plugin: how readily it is chosen where the user names none.

    The default of a family is the plugin with the highest preference, of equals the first by name;
    one without this part counts as 0. The default optimizer is what is vetted, the default runtime
    judges (among those that run the format at hand), the default dataset makes inputs, the default
    comparator takes outputs that no other understands, and the default model source opens paths.

    Attributes:
        preference: Built-in defaults have 100. A plugin with more becomes the default for everybody
            who installs it.
    """

    preference: int


@runtime_checkable
class UsesLibraries(Protocol):
    """Optional part of every plugin: the libraries that decide whether it works.

    ``optvet doctor`` lists their versions, imports each in a worker, and warns of a folder in the
    working directory that may be taken for one.

    Attributes:
        libraries: The module that is imported, by distribution: ``{"Pillow": "PIL"}``.
    """

    libraries: Mapping[str, str]


@runtime_checkable
class Wants(Protocol):
    """Optional part of every plugin: libraries that it does without, but does more with.

    ``optvet plugins`` shows the extra that brings those that are missing.

    Attributes:
        wants: Modules, as they are imported.
    """

    wants: Sequence[str]


@runtime_checkable
class ChecksOptions(Protocol[OptionsT_contra]):
    """Optional part of an optimizer or runtime: whether what its options name exists."""

    def check_options(self, options: OptionsT_contra) -> None:
        """Refuse what no model could be optimized or run with, such as an unknown device.

        Called in a worker process, once, before anything is applied or run. What can be said of a
        value without the library belongs into the options' own model.

        Raises:
            UsageError: The message names the option and its value.
        """
        ...


@runtime_checkable
class Diagnoses(Protocol):
    """Optional part of every plugin: what it knows of its libraries, and may be wrong with them."""

    def diagnose(self, installation: Installation) -> Iterable[Check]:
        """Checks of what this plugin stands on; empty if there is nothing to say.

        Called by ``optvet doctor``, in its own process, also where the library is absent or cannot
        be imported. Import native code by ``installation.run`` only.

        A check with the ``name`` and ``about`` of one of the engine's takes its place, where the
        plugin knows better. The engine's are "packages" about the two names of a collision, or
        about name and requirement of what is unmet; "libraries" about a distribution that cannot be
        imported; "working directory" about the module that something there may be taken for.
        """
        ...


@runtime_checkable
class SetsEnvironment(Protocol):
    """Optional part of every plugin: environment variables that its libraries heed.

    They are set when plugins are discovered, before ``version`` is asked and so before a library is
    imported, for the process and all that it starts; and at the top of ``repro.py``. What the user
    has set stays as it is. Most libraries read such variables once, as they are imported.

    Attributes:
        environment: Values by name, such as the switches that turn telemetry off.
    """

    environment: Mapping[str, str]


@runtime_checkable
class Optimizer(Protocol[OptionsT]):
    """Rewrites a model by passes.

    Attributes:
        name: Unique among optimizers.
        preload: Modules worth importing once in the server from which workers are forked.
        options: Its options with their defaults; a (frozen) pydantic model.
        traits: What is true of it; see ``Traits``.
    """

    name: str
    preload: Sequence[str]
    options: OptionsT
    traits: Traits

    def version(self) -> str:
        """Version of the library underneath; raises ImportError if it is absent."""
        ...

    def passes(self) -> Sequence[Pass]:
        """All passes of the installed version, in its own order."""
        ...

    def pipelines(self) -> Mapping[str, Sequence[str]]:
        """Named pipelines in order of application; "default" must be one of them."""
        ...

    def apply(self, source: Artifact, passes: Sequence[str], options: OptionsT) -> Artifact:
        """Apply exactly ``passes`` in one call; no passes means import and export alone.

        Called in a worker process. ``source`` is of the format that the traits say is consumed;
        of "onnx", ``source.data`` is a serialized model without external data. What is returned is
        of the format that the traits say is produced. Any exception is a symptom of the optimizer.
        """
        ...


@runtime_checkable
class TakesFiles(Protocol[OptionsT_contra]):
    """Optional part of an optimizer: it reads a large model from a file, in place of ``apply``.

    Such a model may have more bytes than a protobuf message can, and is then not bound by
    ``max_model_bytes``.

    Attributes:
        memory_factor: Memory that a step takes at its peak, in sizes of the model: that of
            ``apply_file``, or of loading what it made.
    """

    memory_factor: float

    def apply_file(
        self, source: Artifact, passes: Sequence[str], options: OptionsT_contra, folder: Path
    ) -> Artifact:
        """Apply exactly ``passes`` to the model in the file ``source.path``.

        Called in a worker process. The file, and those beside it that may hold the weights, are not
        to be changed. What is made, with its weights in files or without, goes into ``folder``,
        which is empty; the artifact has its ``path``. An artifact that is an instruction for the
        runtime has the path of ``source`` itself.
        """
        ...


@runtime_checkable
class ReportsChanges(Protocol[OptionsT_contra]):
    """Optional part of an optimizer: what its own log says."""

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: OptionsT_contra
    ) -> Sequence[str] | None:
        """Those of ``passes`` that may have changed ``source`` together; None: it cannot tell.

        Called in a worker process, when a fault is searched. A hint that narrows the search, never
        evidence.
        """
        ...


@runtime_checkable
class Saves(Protocol[OptionsT_contra]):
    """Optional part of an optimizer whose artifact hides the optimized graph: it can be had."""

    def saved(self, source: Artifact, passes: Sequence[str], options: OptionsT_contra) -> Artifact:
        """What ``apply`` comes to, as a model of format "onnx".

        Called in a worker process, to show where a fault is. No verdict rests on it.
        """
        ...


@runtime_checkable
class DependsOnOptions(Protocol[OptionsT_contra]):
    """Optional part of an optimizer: its passes or its traits are a matter of its options."""

    def configured(self, options: OptionsT_contra) -> Optimizer:
        """The same optimizer as it is under ``options``; asked for once, before all else."""
        ...


@runtime_checkable
class Explains(Protocol[OptionsT_contra]):
    """Optional part of an optimizer: the call that it makes, as code for a maintainer to read."""

    def snippet(self, passes: Sequence[str], options: OptionsT_contra) -> str:
        """Body of ``def optimize(model)``; asked for when a finding is written down.

        It applies exactly ``passes`` to ``model``, an ``onnx.ModelProto``, with nothing but the
        optimizer's own library, and returns a ``ModelProto``, a serialized model, or what the
        snippet of the runtime takes in place of a model, such as a session.
        """
        ...


@runtime_checkable
class ExplainsSimply(Protocol[OptionsT_contra]):
    """Optional part of an optimizer that explains: shorter calls that may show the same fault."""

    def simple_snippets(self, passes: Sequence[str], options: OptionsT_contra) -> Sequence[str]:
        """Bodies of ``def optimize(model)``, simplest first: by default, at a level, and so on.

        They may apply more than ``passes``. Each is tried, and the first that does what the snippet
        does stands in the text of an issue.
        """
        ...


@runtime_checkable
class CarriesFiles(Protocol[OptionsT_contra]):
    """Optional part of an optimizer that explains: files of the user's that its snippet needs."""

    def carried(self, options: OptionsT_contra) -> Mapping[str, bytes]:
        """Contents by file name, such as a file of passes that an option names.

        They are put beside the script, and code in the snippet can import them from there.
        """
        ...


@runtime_checkable
class Session(Protocol):
    """A loaded artifact."""

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Outputs by name, in the graph's order."""
        ...


@runtime_checkable
class Runtime(Protocol[OptionsT]):
    """Executes artifacts.

    Attributes:
        name: Unique among runtimes.
        accepts: Artifact formats it can load.
        preload: Modules worth importing once in the server from which workers are forked.
        options: Clean-room options: its own optimizations off, deterministic, one thread.
        deployed: Options as a user would run it.
    """

    name: str
    accepts: frozenset[str]
    preload: Sequence[str]
    options: OptionsT
    deployed: OptionsT

    def version(self) -> str:
        """Version of the library underneath; raises ImportError if it is absent."""
        ...

    def load(self, artifact: Artifact, options: OptionsT) -> Session:
        """Prepare the artifact for execution. Called in a worker process."""
        ...


@runtime_checkable
class LoadsFiles(Protocol[OptionsT_contra]):
    """Optional part of a runtime: it loads a large model from a file, best by mapping its weights.

    Without it such a model is read into one message, and larger ones cannot be run.
    """

    def load_file(self, artifact: Artifact, options: OptionsT_contra) -> Session:
        """The same as ``load``, of an artifact that has a ``path`` and no ``data``."""
        ...


@runtime_checkable
class ExplainsRuntime(Protocol[OptionsT_contra]):
    """Optional part of a runtime: how it runs a model, as code for a maintainer to read."""

    def snippet(self, options: OptionsT_contra) -> str:
        """Body of ``def run(model, feeds)``; asked for when a finding is written down.

        ``model`` is an ``onnx.ModelProto`` or a serialized one; ``feeds`` maps names to arrays. It
        returns outputs by name, and uses nothing but the runtime's own library.
        """
        ...


@runtime_checkable
class ExplainsRuntimeSimply(Protocol[OptionsT_contra]):
    """Optional part of a runtime that explains: shorter code that gives the same, mostly."""

    def simple_snippets(self, options: OptionsT_contra) -> Sequence[str]:
        """Bodies of ``def run(model, feeds)``, simplest first; see ``ExplainsSimply``.

        ``model`` is an ``onnx.ModelProto``, or what the snippet of the optimizer returns.
        """
        ...


@runtime_checkable
class ReadsFiles(Protocol[OptionsT_contra]):
    """Optional part of a runtime: files of a format of its own, and the values inside of them.

    Attributes:
        suffixes: How such files end, with the dot.
    """

    suffixes: frozenset[str]

    def inner_values(self, file: Path, feeds: Feeds, options: OptionsT_contra) -> Sequence[Inner]:
        """All values of one run in the order in which they are made, but for inputs and weights.

        Called in a worker process by ``optvet compare``. Names are those of the model that the file
        was made from, where the format keeps them; ``feeds`` are named as there.
        """
        ...


@runtime_checkable
class Dataset(Protocol[OptionsT]):
    """A source of inputs, however many: the engine holds a chunk of them at a time.

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

        Called again where the samples are needed again, since none is kept. What may fail for one
        sample alone, or costs much, is yielded as ``Deferred``.

        Args:
            model: What the samples are for.
            argument: What followed the colon of ``NAME:ARGUMENT``.
            options: The dataset's options.
            seed: Seeds everything random.
            limit: At most so many samples; None for the dataset's own number.
            probe: Tells which feeds the reference accepts; costs one inference each.

        Raises:
            InputError: No sample can be made; the message names the input or file at fault.
        """
        ...


@runtime_checkable
class Suits(Protocol):
    """Optional part of a dataset: whether it can make a model's inputs of what is in a folder."""

    def suits(self, model: Model, argument: str) -> float:
        """How well, from 0 (not at all) to 1; asked for ``--dataset auto:ARGUMENT``.

        1 means that the model's record declares such inputs; what is merely inferred from names
        and shapes stays below 0.9. Nothing is decoded for it.
        """
        ...


@runtime_checkable
class TellsProvenance(Protocol[OptionsT_contra]):
    """Optional part of a dataset: what its samples depend on, for the record."""

    def provenance(
        self, model: Model, argument: str | None, options: OptionsT_contra
    ) -> Mapping[str, str]:
        """Texts by name: a resolved revision, the preprocessing, what of it was inferred."""
        ...


@runtime_checkable
class ModelSource(Protocol):
    """Where models come from.

    Attributes:
        name: The scheme in ``NAME:REFERENCE``; "local" serves plain paths.
    """

    name: str

    def models(self) -> Iterable[ModelCard]:
        """What can be asked for by name; empty where that cannot be listed."""
        ...

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """ONNX files for ``reference``; what must be made or downloaded goes below ``cache``.

        Raises:
            UsageError: There is no such model, or it cannot be had.
        """
        ...


@runtime_checkable
class NeedsNetwork(Protocol):
    """Optional part of a model source whose list is on a server.

    Attributes:
        needs_network: Whether its list is left out unless the user names the source.
    """

    needs_network: bool


@runtime_checkable
class Pins(Protocol):
    """Optional part of a model source whose models may change while their names stay."""

    def pinned(self, reference: str, cache: Path) -> str:
        """The full reference, ``NAME:…``, of exactly what ``fetch`` gave a moment ago."""
        ...
