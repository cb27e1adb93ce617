"""What runtimes provide: the protocol, and its optional parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from optvet.spec.comparators import Feeds
from optvet.spec.devices import Meter
from optvet.spec.generics import OptionsT, OptionsT_contra
from optvet.spec.types import MODEL_PARTS, Artifact, Inner, ModelPart, Profile


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


class RuntimeExtras:
    """Optional members of a runtime."""

    reads: frozenset[ModelPart] = MODEL_PARTS
    """Parts of ONNX models that may change what it does: models equal in these are run once.

    ``MODEL_PARTS - {"metadata"}`` leaves out descriptions and properties. Every runtime reads
    operators, constants, inputs and outputs.
    """

    evaluates: bool = False
    """Whether it computes what the ONNX standard says, with no library of kernels.

    It judges models that the default runtime cannot load, unless the user names a runtime.
    """

    def load_file(self, artifact: Artifact, options: Any) -> Session:
        """As ``load``, for a large model: the artifact has a ``path`` and no ``data``.

        Map the weights. Without it a large model is read into one protobuf message, and models that
        exceed the limit of a message cannot be run.
        """
        raise NotImplementedError

    def refuses_operands(self, message: str) -> bool:
        """Whether an error says that operands or attributes are not as their operator allows.

        ``load`` or ``run`` raised it. No runtime is accused of an error where another one refuses
        the operands too. What the runtime lacks (an operator, a type) is another matter.
        """
        return False

    def declared_loss(self, options: Any) -> float | None:
        """The error that ``options`` are documented to cause, as a share of an output's maximum.

        None if they compute in the types of the model. Without it what a runtime's defaults round
        away, as to bfloat16, is a fault of the runtime.
        """
        return None

    def exact_options(self, options: Any) -> Any:
        """The same options, with 8-bit kernels whose sums neither overflow nor saturate.

        A finding says whether a wrong quantized layer is right under these.
        """
        return options

    def snippet(self, options: Any) -> str:
        """Body of ``def run(model, feeds)`` that returns outputs by name, for ``repro.py``.

        ``model`` is an ``onnx.ModelProto`` or a serialized one; ``feeds`` maps names to arrays. The
        code uses the runtime's own library only.
        """
        raise NotImplementedError

    def simple_snippets(self, options: Any) -> Sequence[str]:
        """Shorter bodies of ``def run(model, feeds)``, simplest first.

        ``model`` is an ``onnx.ModelProto``, or what the snippet of the optimizer returns.
        """
        return ()

    def artifact_values(self, artifact: Artifact, feeds: Feeds, options: Any) -> Sequence[Inner]:
        """The values inside an artifact of a format of its own: where a finding begins.

        Those of one run in the order of computation, without inputs and weights. Called in the
        process that built the artifact. Outputs have the names of the model's; other names are
        those of its values only if they are the same. ``artifact`` stays as it was.

        Raises:
            Unsupported: The values of this artifact cannot be told.
        """
        raise NotImplementedError

    def profile(
        self, artifact: Artifact, feeds: Sequence[Feeds], options: Any, folder: Path
    ) -> Profile:
        """Where each node is executed, and how long that takes, from the runtime's profiler.

        Load the artifact as ``load`` does, and run it once on each of ``feeds``, after a run that
        is not counted. Called in a worker process, by ``optvet bench`` and never for a verdict:
        profiling may slow a model down. The artifact has ``data``, or a ``path`` if the runtime
        loads files. ``folder`` is empty, for files of the runtime's own; it is removed afterwards.
        ``Profile.wanted`` is the provider that was asked for first.
        """
        raise NotImplementedError

    def meter(self, options: Any) -> Meter | str:
        """A meter of the device that models run on; or why there is none, in one line.

        An empty text means that no device is used. Called in a worker process.
        """
        return ""


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
