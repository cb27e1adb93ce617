"""What optimizers provide: the protocol, and its optional parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from optvet.spec.generics import OptionsT, OptionsT_contra
from optvet.spec.releases import ReleasedPackage
from optvet.spec.types import Artifact, Pass, Traits


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


class OptimizerExtras:
    """Optional members of an optimizer. No verdict rests on ``changing_passes`` or ``saved``.

    Those that explain are called when a bundle is written. Bodies of functions are Python that uses
    the optimizer's own library only.
    """

    rare_options: Mapping[str, Any] = {}
    """Options under which hunts try one model in twenty, unless the user sets them.

    Another way to get a model, say, such as a file with its weights in another one.
    """

    quick_options: Mapping[str, Any] = {}
    """Faster options for the first run of each model in a hunt; the passes are the same.

    An example is to generate machine code without optimizing it. A hunt vets a suspect without
    them, and ignores them if the user sets one of these options.
    """

    released: ReleasedPackage | None = None
    """Its library, for ``optvet bisect --package``; ``version()`` gives the release's version.

    A release is installed without its dependencies into a folder of its own, which is put first on
    the path of a fresh process. The plugin must work with all releases that are to be tried.
    """

    def configured(self, options: Any) -> Optimizer:
        """The same optimizer under ``options``, if its passes or traits depend on them.

        Called once, before every other method.
        """
        return cast(Optimizer, self)

    def for_model(self, source: Artifact, options: Any) -> Optimizer:
        """The same optimizer for ``source``, if passes are parts of the model, such as its nodes.

        Without a model, ``passes()`` is empty. Called in a worker, after ``configured`` and before
        ``passes``: a model may crash a library that reads it. The result is of the same class; its
        attributes are data (numbers, texts, bytes, dataclasses, and collections of these). A pass
        of this model whose part another model lacks has no effect there: parts disappear when a
        finding is reduced.
        """
        return cast(Optimizer, self)

    def changing_passes(
        self, source: Artifact, passes: Sequence[str], options: Any
    ) -> Sequence[str] | None:
        """Passes that may have changed ``source``, by its own log; None if unknown. Saves trials.

        Called in a worker process, when a culprit is searched. The answer narrows the search; it is
        never evidence.
        """
        return None

    def saved(self, source: Artifact, passes: Sequence[str], options: Any) -> Artifact:
        """The result of ``apply`` in ONNX, if the artifact hides it: place of a fault, ``--save``.

        An artifact of format "onnx". Called in a worker process.
        """
        raise NotImplementedError

    def snippet(self, passes: Sequence[str], options: Any) -> str:
        """Body of ``def optimize(model)`` that applies exactly ``passes``, for ``repro.py``.

        ``model`` is an ``onnx.ModelProto``. The body returns a ``ModelProto``, a serialized model,
        or another object that the runtime's snippet takes in place of a model, such as a session.
        ``check_optimizer`` compares its result with that of ``apply``.
        """
        raise NotImplementedError

    def simple_snippets(self, passes: Sequence[str], options: Any) -> Sequence[str]:
        """Return shorter calls for ``ISSUE.md`` that may reproduce the fault, simplest first.

        Examples are a call with defaults and a call with a level. A call may apply more passes
        than ``passes``. optvet uses the first call whose result agrees with that of ``snippet``.
        """
        return ()

    def run_snippets(self, passes: Sequence[str], options: Any) -> Sequence[str]:
        """Bodies of ``def run(model, feeds, optimized)``, if it optimizes while a runtime loads.

        Simplest first. They return outputs by name: of the original where ``optimized`` is False.
        """
        return ()

    def saved_snippet(self, passes: Sequence[str], options: Any) -> str:
        """Body of ``def optimize(model)`` that returns what ``saved`` gives, for ``--save``."""
        return ""

    def carried(self, options: Any) -> Mapping[str, bytes]:
        """The user's files that the snippet imports, contents by name, put beside the script."""
        return {}

    def code_of(self, name: str, options: Any) -> Sequence[str]:
        """Modules with the Python code of the pass ``name``: suspected lines in ``ISSUE.md``.

        Hunts edit models that ran new lines of them. Empty if unknown. Called in a worker process.
        Lines that also run without the pass, or on its result, are left out.
        """
        return ()


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
