"""What optimizers provide: the protocol, and its optional parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from optvet.spec.generics import OptionsT, OptionsT_contra
from optvet.spec.types import Artifact, Pass, Traits

if TYPE_CHECKING:
    # Documents take a fifth of a second to import, which workers would spend for nothing.
    pass


@runtime_checkable
class Optimizer(Protocol[OptionsT]):
    """Rewrites a model by passes.

    Attributes:
        name: Unique among optimizers.
        preload: Modules worth importing once in the server from which workers are forked.
        options: Its options with their defaults; a (frozen) pydantic model.
        traits: Its properties; see ``Traits``.
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
        """Apply exactly ``passes`` in one call; no passes means import and export only.

        Called in a worker process. ``source`` has the format ``traits.consumes``; for "onnx",
        ``source.data`` is a serialized model without external data. The result has the format
        ``traits.produces``. Any exception is a finding about the optimizer.
        """
        ...


@runtime_checkable
class TakesFiles(Protocol[OptionsT_contra]):
    """Optional part of an optimizer: it reads a large model from a file.

    ``apply_file`` is then called in place of ``apply``. The model may be larger than a protobuf
    message, and ``max_model_bytes`` does not apply.

    Attributes:
        memory_factor: Peak memory of ``apply_file``, or of loading its result, as a multiple of
            the model's size.
    """

    memory_factor: float

    def apply_file(
        self, source: Artifact, passes: Sequence[str], options: OptionsT_contra, folder: Path
    ) -> Artifact:
        """Apply exactly ``passes`` to the model in the file ``source.path``.

        Called in a worker process. The file, and the weight files beside it, must not be changed.
        The result is written to ``folder``, which is empty, with its weights inside the model or in
        files beside it; ``path`` of the artifact is the model's file. If the artifact is only an
        instruction for the runtime, its ``path`` is that of ``source``.
        """
        ...


@runtime_checkable
class ReportsChanges(Protocol[OptionsT_contra]):
    """Optional part of an optimizer: it reports which passes changed the model."""

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: OptionsT_contra
    ) -> Sequence[str] | None:
        """Those of ``passes`` that may have changed ``source``; None if that is not known.

        Called in a worker process, when a culprit is searched. The answer narrows the search; it is
        never evidence.
        """
        ...


@runtime_checkable
class Saves(Protocol[OptionsT_contra]):
    """Optional part of an optimizer whose artifact is not ONNX: it can export the result."""

    def saved(self, source: Artifact, passes: Sequence[str], options: OptionsT_contra) -> Artifact:
        """The result of ``apply`` as an artifact of format "onnx".

        Called in a worker process, to show where a fault is, and to write the model to a file. No
        verdict on the optimizer depends on it.
        """
        ...


@runtime_checkable
class DependsOnOptions(Protocol[OptionsT_contra]):
    """Optional part of an optimizer whose passes or traits depend on its options."""

    def configured(self, options: OptionsT_contra) -> Optimizer:
        """The same optimizer under ``options``; called once, before every other method."""
        ...


@runtime_checkable
class VariesInHunts(Protocol):
    """Optional part of an optimizer that takes a model in more than one way.

    Attributes:
        rare_options: Options under which hunts try one model in twenty, unless the user set them.
    """

    rare_options: Mapping[str, Any]


@runtime_checkable
class QuickInHunts(Protocol):
    """Optional part of an optimizer that can make the same of a model in less time.

    Attributes:
        quick_options: Options under which hunts suspect models, unless the user set them; what is
            suspected is vetted without them. The passes are the same ones.
    """

    quick_options: Mapping[str, Any]


@runtime_checkable
class DependsOnModel(Protocol[OptionsT_contra]):
    """Optional part of an optimizer whose passes are parts of the model, such as its nodes."""

    def for_model(self, source: Artifact, options: OptionsT_contra) -> Optimizer:
        """The same optimizer with the passes that it has for ``source``.

        Called once, after ``configured`` and before ``passes``. A pass of this model whose part
        another model lacks has no effect there: parts disappear when a finding is reduced.
        """
        ...


@runtime_checkable
class LowersPrecision(Protocol[OptionsT]):
    """Optional part of an optimizer whose passes each compute a part of the model less precisely.

    ``optvet precision`` searches the passes to leave out.

    Attributes:
        precision: What it converts to, as ``--to`` names it, such as "fp16".
        requirement: What the result must meet where the user requires nothing, in the form of
            ``--require``.
        always: Requirements that hold beside any other, such as that what is finite stays so.
        parts: Names of the nodes that each pass converts, by its name.
    """

    precision: str
    requirement: str
    always: Sequence[str]
    parts: Mapping[str, Sequence[str]]

    def emulated(self, options: OptionsT, sum_block: int | None = None) -> OptionsT | None:
        """Options with which the result rounds as the type does, on a runtime that lacks it.

        None if the result needs no such runtime. With ``sum_block``, sums are accumulated in the
        type too: so many products are added, and the running sum is rounded after each block.
        """
        ...

    def on_inputs(self, options: OptionsT, inputs: Path) -> OptionsT | None:
        """Options with which ranges are measured on ``inputs``; None if it measures none.

        ``inputs`` is an ``.npz`` file of arrays, each named by the number of its sample, a slash
        and the name of the model's input.
        """
        ...

    def recipes(
        self, source: Artifact, kept: Sequence[str], options: OptionsT
    ) -> Mapping[str, str]:
        """What leaves out the passes ``kept``, by title.

        An argument of the library's call, with the argument's name as title; or a whole text, such
        as a script or a command for another tool, which ends with a line break. The titles do not
        depend on ``kept``, which may be empty.
        """
        ...


@runtime_checkable
class Explains(Protocol[OptionsT_contra]):
    """Optional part of an optimizer: its call of the library as source code, for bug reports."""

    def snippet(self, passes: Sequence[str], options: OptionsT_contra) -> str:
        """Body of ``def optimize(model)``; called when a bundle is written.

        It applies exactly ``passes`` to ``model``, an ``onnx.ModelProto``, with the optimizer's own
        library only, and returns a ``ModelProto``, a serialized model, or another object that the
        runtime's snippet takes in place of a model, such as a session.
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
class ExplainsTogether(Protocol[OptionsT_contra]):
    """Optional part of an optimizer that works while a runtime loads the model."""

    def run_snippets(self, passes: Sequence[str], options: OptionsT_contra) -> Sequence[str]:
        """Bodies of ``def run(model, feeds, optimized)``, simplest first; see ``ExplainsSimply``.

        They return outputs by name: of the original where ``optimized`` is False.
        """
        ...


@runtime_checkable
class TellsCode(Protocol[OptionsT_contra]):
    """Optional part of an optimizer whose passes are in Python: where their code is."""

    def code_of(self, name: str, options: OptionsT_contra) -> Sequence[str]:
        """Names of the modules that have the code of the pass ``name``; empty if it is not known.

        Called in a worker process when a bundle is written, whose issue names the lines of these
        modules that rewrite the model; and by hunts, which edit models that ran new lines.
        """
        ...


@runtime_checkable
class ExplainsSaved(Protocol[OptionsT_contra]):
    """Optional part of an optimizer that saves its result: the code that does so; see ``Saves``."""

    def saved_snippet(self, passes: Sequence[str], options: OptionsT_contra) -> str:
        """Body of ``def optimize(model)`` that returns what ``saved`` gives; see ``Explains``."""
        ...


@runtime_checkable
class CarriesFiles(Protocol[OptionsT_contra]):
    """Optional part of an optimizer that explains: files of the user's that its snippet needs."""

    def carried(self, options: OptionsT_contra) -> Mapping[str, bytes]:
        """Contents by file name, such as a file of passes that an option names.

        They are put beside the script, and code in the snippet can import them from there.
        """
        ...
