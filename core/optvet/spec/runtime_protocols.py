"""What runtimes provide: the protocol, and its optional parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from optvet.spec.generics import OptionsT, OptionsT_contra
from optvet.spec.types import MODEL_PARTS, Artifact, Inner, ModelPart, Profile

if TYPE_CHECKING:
    # Documents take a fifth of a second to import, which workers would spend for nothing.
    pass
from optvet.spec.protocols import Feeds


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
        options: Options for comparisons: its own optimizations off, deterministic, one thread.
        deployed: The library's own defaults, as in production.
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
    """Optional part of a runtime: it loads a large model from a file, mapping its weights.

    Without it a large model is read into one protobuf message, and models that exceed the limit of
    a message cannot be run.
    """

    def load_file(self, artifact: Artifact, options: OptionsT_contra) -> Session:
        """The same as ``load``, for an artifact that has a ``path`` and no ``data``."""
        ...


@runtime_checkable
class TellsWhatItReads(Protocol):
    """Optional part of a runtime: the parts of an ONNX model that it reads.

    What it gave for one model is used for another one that differs in no part that it reads.
    Without this a runtime is taken to read all parts, so a model is run again if one of them
    differs.

    Attributes:
        reads: Parts that may change what the runtime does with a model, or whether it can. Every
            runtime reads operators, constants, inputs and outputs.
    """

    reads: frozenset[ModelPart]


def parts_read_by(runtime: Runtime[Any]) -> frozenset[ModelPart]:
    """The parts of an ONNX model that ``runtime`` reads."""
    return runtime.reads if isinstance(runtime, TellsWhatItReads) else MODEL_PARTS


@runtime_checkable
class ChecksOperands(Protocol):
    """Optional part of a runtime: it checks what operators are given before it computes.

    A model that two such runtimes refuse is one that others run without a look at its operands.
    """

    def refuses_operands(self, message: str) -> bool:
        """Whether an error that ``load`` or ``run`` raised says that operands are not as they must.

        So of attributes; what the runtime lacks (an operator, a type) is another matter.
        """
        ...


@runtime_checkable
class DeclaresLoss(Protocol[OptionsT_contra]):
    """Optional part of a runtime: under some options it is documented to be less exact than types.

    Without it what a runtime's defaults round away, as to bfloat16, is a fault of the runtime.
    """

    def declared_loss(self, options: OptionsT_contra) -> float | None:
        """The error that ``options`` may cause, as a share of an output's largest magnitude.

        None if they compute in the types of the model.
        """
        ...


def loss_declared_by(runtime: Runtime[Any], options: Any) -> float | None:
    """The error that ``runtime`` declares for ``options``; None if it declares none."""
    return runtime.declared_loss(options) if isinstance(runtime, DeclaresLoss) else None


@runtime_checkable
class ExplainsRuntime(Protocol[OptionsT_contra]):
    """Optional part of a runtime: how it runs a model as source code, for bug reports."""

    def snippet(self, options: OptionsT_contra) -> str:
        """Body of ``def run(model, feeds)``; called when a bundle is written.

        ``model`` is an ``onnx.ModelProto`` or a serialized one; ``feeds`` maps names to arrays. The
        code returns outputs by name, and uses the runtime's own library only.
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
    """Optional part of a runtime: it reads models in a file format of its own.

    Attributes:
        suffixes: File name extensions of the format, with the dot.
    """

    suffixes: frozenset[str]

    def inner_values(self, file: Path, feeds: Feeds, options: OptionsT_contra) -> Sequence[Inner]:
        """All values of one run except inputs and weights, in the order of computation.

        Called in a worker process by ``optvet compare``. Names are those of the source model of the
        file, if the format keeps them; the names in ``feeds`` are those of the source model.
        """
        ...


@runtime_checkable
class TellsInnerValues(Protocol[OptionsT_contra]):
    """Optional part of a runtime: the values inside of artifacts of a format of its own."""

    def artifact_values(
        self, artifact: Artifact, feeds: Feeds, options: OptionsT_contra
    ) -> Sequence[Inner]:
        """All values of one run except inputs and weights, in the order of computation.

        Called in the process that built the artifact, to show where a fault begins. Outputs have
        the names of the model's; other names are those of its values only if they are the same.
        ``artifact`` stays as it was.

        Raises:
            Unsupported: The values of this artifact cannot be told.
        """
        ...


@runtime_checkable
class Profiles(Protocol[OptionsT_contra]):
    """Optional part of a runtime: it tells where each node is executed, and how long that takes."""

    def profile(
        self,
        artifact: Artifact,
        feeds: Sequence[Feeds],
        options: OptionsT_contra,
        folder: Path,
    ) -> Profile:
        """Load the artifact as ``load`` does, run it once on each of ``feeds``, and tell of it.

        Called in a worker process, by ``optvet bench`` and never for a verdict: profiling may slow
        a model down. A run that is not counted comes first. The artifact has ``data``, or a
        ``path`` if the runtime loads files. ``folder`` is empty, for files of the runtime's own; it
        is removed afterwards.
        """
        ...
