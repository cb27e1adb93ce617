"""Value types that travel between the engine and the plugins; frozen, typed, picklable."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

Stage = Literal["build", "check", "load", "run", "compare"]
"""Where in a trial something happened, in the order in which a trial goes through them."""


class Symptom(StrEnum):
    """What went wrong. Members are ordered from the earliest stage to the latest."""

    OPTIMIZER_ERROR = "optimizer-error"
    OPTIMIZER_ABORT = "optimizer-abort"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"
    INVALID_MODEL = "invalid-model"
    LOAD_FAILURE = "load-failure"
    RUN_FAILURE = "run-failure"
    INTERFACE_CHANGE = "interface-change"
    WRONG_OUTPUT = "wrong-output"
    REQUIREMENT = "requirement"
    SENSITIVITY = "sensitivity"
    SLOWDOWN = "slowdown"
    BLOAT = "bloat"
    METADATA_CHANGE = "metadata-change"
    PORTABILITY = "portability"


NOTES = frozenset(
    {
        Symptom.SENSITIVITY,
        Symptom.SLOWDOWN,
        Symptom.BLOAT,
        Symptom.METADATA_CHANGE,
        Symptom.PORTABILITY,
    }
)
"""Symptoms that are worth telling but do not make a model faulty."""


@dataclass(frozen=True)
class ValueInfo:
    """Name, element type and shape of a graph input or output.

    ``dtype`` is ONNX's lower-case element type ("float", "int64", "string", …), or the kind of a
    non-tensor type ("sequence", "map", "optional", "sparse"). ``shape`` is None if the rank is
    unknown; a dimension is an int, a symbol, or None if it is unknown and unnamed.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class ModelConfig:
    """What somebody declared of a model: a TOML beside it, or its entry in a catalogue.

    Attributes:
        task: What it is for, in words such as "image-classification".
        comparator: Name of the comparator that understands its outputs.
        comparator_options: Options of that comparator.
        suggestion: What a catalogue suggests in place of a comparator's name: a ``kind``, and
            values that may be options of the comparator that takes it; see ``Suggestion``.
        preprocessing: How inputs are made from images, sound or text; keys as documented for
            the datasets.
        inputs: Recipe per input for the dataset "random": ``{"kind": "uniform", "low": 0, …}``.
        dataset: Where its inputs come from if the user does not say: ``NAME`` or ``NAME:ARGUMENT``.
        dataset_options: Options of that dataset.
        require: What metrics must be; see ``optvet.spec.requirement``.
        rtol: Relative tolerances that are required.
        atol: Absolute ones.
        origin: The file that said so.
    """

    task: str | None = None
    comparator: str | None = None
    comparator_options: Mapping[str, Any] = field(default_factory=dict)
    suggestion: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dataset: str | None = None
    dataset_options: Mapping[str, Any] = field(default_factory=dict)
    require: tuple[str, ...] = ()
    rtol: tuple[str, ...] = ()
    atol: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True)
class Suggestion:
    """A kind of comparison, as catalogues of models name it, that one comparator makes.

    Attributes:
        kind: The ``kind`` of the catalogue's ``suggested_comparator``.
        options: Other keys of it that are options of the comparator.
        tasks: A pattern that the declared task must contain, in any case; None for every task.
            Of two comparators that take a kind, the one whose pattern fits is meant.
    """

    kind: str
    options: tuple[str, ...] = ()
    tasks: str | None = None

    def __post_init__(self) -> None:
        re.compile(self.tasks or "")


@dataclass(frozen=True)
class Comparison:
    """What a comparator says of one sample, in the task's terms.

    ``changed`` tells that a user would see another answer; ``sensitive`` that the reference itself
    was undecided between the two. ``detail`` is what a report shows: numbers, texts and lists.
    """

    sample: str
    metrics: Mapping[str, float]
    changed: bool = False
    sensitive: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """What a comparator says over all samples.

    ``headline`` is a clause such as "3 of 50 labels changed".
    """

    metrics: Mapping[str, float]
    headline: str


@dataclass(frozen=True)
class Model:
    """An ONNX model on disk, with all that can be said of it without running it.

    Attributes:
        source: What the user asked for: a path, or ``zoo:resnet50``.
        path: The file that was found; external data lies beside it.
        blob: A self-contained copy (equal to ``path`` where there is no external data). A model
            that is too large for one protobuf message has none: it is ``path`` then.
        digest: sha256 of ``blob``, hexadecimal; with the external data where it is not in there.
        inputs: Inputs that a caller must feed; initializers listed among them (IR 3) are left out.
        outputs: Graph outputs, in order.
        opsets: Operator-set version by domain; the default domain is "ai.onnx".
        config: What was declared of it beside the file, or in a catalogue.
        format: "onnx", so far.
    """

    source: str
    path: Path
    blob: Path
    digest: str
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    ir_version: int
    opsets: Mapping[str, int]
    size_bytes: int
    nodes: int
    config: ModelConfig = field(default_factory=lambda: ModelConfig())
    format: str = "onnx"

    @property
    def task(self) -> str | None:
        """What the model is for ("image-classification", …), if that was declared."""
        return self.config.task

    def load(self) -> onnx.ModelProto:
        """The model with all its weights in memory."""
        return onnx.load(str(self.blob))


@dataclass(frozen=True)
class KnownLimit:
    """A documented deviation of a pass that is not a fault."""

    symptoms: frozenset[Symptom]
    reason: str


InterfaceChange = Literal["names", "input-dtypes"]
"""A legal change of the interface: of all names, or int64 inputs that become int32."""


@dataclass(frozen=True)
class Pass:
    """One rewrite that an optimizer can be asked to apply.

    Attributes:
        name: As the optimizer spells it.
        kind: fuse, eliminate, rewrite, level, lower, …
        default: Whether the optimizer's default pipeline has it.
        required: The result cannot be built without it; never left out.
        lossy: Documented to be approximate: judged against ``tolerance``, not float32 noise.
        tolerance: Relative error that a lossy pass declares to stay below; None if not lossy.
        interface: How it changes inputs and outputs on purpose.
        known_limits: Documented deviations that are not faults.
    """

    name: str
    kind: str = "rewrite"
    default: bool = True
    required: bool = False
    lossy: bool = False
    tolerance: float | None = None
    interface: frozenset[InterfaceChange] = frozenset()
    known_limits: tuple[KnownLimit, ...] = ()
    description: str = ""


Reference = Literal["original", "empty pipeline"]
"""Whose outputs are right; see ``Traits``."""


@dataclass(frozen=True)
class Traits:
    """What is true of an optimizer; the localizer chooses its strategy from this alone.

    Attributes:
        ordered: Passes run in the order in which they are given.
        composable: A prefix of a pipeline is itself a meaningful pipeline.
        single: Switching one pass on, all others off, is meaningful.
        repeatable: A pass may be listed more than once.
        max_model_bytes: Larger models cannot be given to it.
        optimizes_on_load: Its artifact is optimized only when a session is made of it, so what
            dies there died optimizing.
        dialect: The models that it makes are for one runtime, and may hold operators of that
            runtime's own, even under names of ONNX's domain that their operator set does not have,
            and before IR version 4 weights that are not listed among the inputs. That is noted,
            but does not make them malformed.
        consumes: Format of the artifacts that it takes.
        produces: Format of the artifacts that it makes.
        reference: Whose outputs are right. "original": those of the model as it was given, on the
            runtime that runs the optimized one. "empty pipeline": those of the model that was
            imported and exported alone, which are first compared with those of the original on
            another runtime, so that what the import gets wrong is not blamed on a pass.
    """

    ordered: bool = True
    composable: bool = True
    single: bool = True
    repeatable: bool = False
    max_model_bytes: int | None = None
    optimizes_on_load: bool = False
    dialect: bool = False
    consumes: str = "onnx"
    produces: str = "onnx"
    reference: Reference = "original"


@dataclass(frozen=True)
class Artifact:
    """A model in some format: what an optimizer takes, and what it makes.

    ``data`` is the serialized artifact (an ONNX model for format "onnx"). ``path`` is the file that
    holds it instead where it is large; its weights may lie in files beside. ``handle`` is a live
    object, or instructions for the runtime, for other formats; it never leaves its process.
    ``fingerprint`` tells artifacts of one model and optimizer apart where ``data`` does not.
    ``changing_passes`` are the passes that changed the model, as the optimizer itself reports;
    None if it reports none.
    """

    format: str
    data: bytes = b""
    handle: Any = None
    fingerprint: str | None = None
    changing_passes: tuple[str, ...] | None = None
    path: Path | None = None


@dataclass(frozen=True)
class Inner:
    """One value inside of a model that is no ONNX model, and what makes it.

    Attributes:
        names: What it is called; several if the model was made by merging values.
        operator: What makes it, as the format calls it.
        reads: First names of the values from which it is made, weights left out.
        value: What it was in one run.
        output: Its place among the outputs of the model, if it is one.
    """

    names: tuple[str, ...]
    operator: str
    reads: tuple[str, ...]
    value: np.ndarray
    output: int | None = None


@dataclass(frozen=True)
class Sample:
    """One set of inputs. ``feeds`` maps input names to arrays (strings as dtype object)."""

    id: str
    feeds: Mapping[str, np.ndarray]
    label: Any = None
    origin: str = ""


@dataclass(frozen=True)
class Deferred:
    """A sample that costs something to make, such as the decoding of an image.

    ``make`` gives the sample, of the same id. What raises InputError there is bad data, which the
    user may have refused or skipped; what is left out of the slice asked for is never made.
    """

    id: str
    make: Callable[[], Sample]


FailureKind = Literal["error", "abort", "timeout", "out-of-memory", "killed"]


@dataclass(frozen=True)
class Failure:
    """How a step in a worker failed.

    ``kind`` "error" is an exception, "abort" the death of the process by ``signal`` or by exit.
    "killed" is a death that somebody else may have caused: it is no evidence of anything.
    ``message`` is the exception's text or the last lines the native code wrote.
    """

    kind: FailureKind
    stage: Stage
    message: str
    error_type: str = ""
    signal: str | None = None


@dataclass(frozen=True)
class ModelCard:
    """What a model source says about one of its models, before it is fetched."""

    name: str
    task: str | None = None
    description: str = ""
    size_bytes: int | None = None
    tags: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
