"""Value types that travel between the engine and the plugins; frozen, typed, picklable."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx

from optvet.spec.foreign import load_model
from optvet.spec.symptoms import Stage, Symptom
from optvet.spec.words import summarize_arrays

StageKind = Literal["load", "convert", "optimize", "export", "lossy"]
"""What a stage does: reads the source, rewrites its operators as those of the target, simplifies
the result, writes it in its final form, or makes it smaller at a loss."""

ModelPart = Literal[
    "names",
    "node names",
    "inner types",
    "annotations",
    "order",
    "unused",
    "layout",
    "metadata",
]
"""What an ONNX model has beside its operators, their constants and its inputs and outputs: names of
the graph and of its values; names of nodes; declared types and shapes of inner values;
quantization annotations; the order of initializers, attributes and declared types; initializers
that no node reads; which weights lie in other files, and where; descriptions, producer, properties
and training information."""
MODEL_PARTS: frozenset[ModelPart] = frozenset(get_args(ModelPart))


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
    """What was declared of a model: in a TOML file beside it, or in a catalogue.

    Attributes:
        task: Its task, such as "image-classification".
        comparator: Name of the comparator that understands its outputs.
        comparator_options: Options of that comparator.
        suggestion: A catalogue's ``suggested_comparator``: a ``kind``, and values that may be
            options of the comparator for this kind; see ``Suggestion``.
        preprocessing: How inputs are made from images, sound or text; keys as documented for
            the datasets.
        inputs: Recipe per input for the dataset "random": ``{"kind": "uniform", "low": 0, …}``.
        dataset: Where its inputs come from if the user does not say: ``NAME`` or ``NAME:ARGUMENT``.
        dataset_options: Options of that dataset.
        require: What metrics must be; see ``optvet.spec.requirement``.
        rtol: Relative tolerances that are required.
        atol: Absolute ones.
        limits: What a vet of it cannot say, such as of the model that it is a part of.
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
    limits: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Suggestion:
    """A kind of comparison in model catalogues, declared by the comparator that implements it.

    Attributes:
        kind: The ``kind`` of the catalogue's ``suggested_comparator``.
        options: Its other keys that are options of the comparator.
        tasks: Regular expression to search in the declared task, ignoring case; None matches every
            task. If two comparators implement one kind, the one with a matching pattern is used.
    """

    kind: str
    options: tuple[str, ...] = ()
    tasks: str | None = None

    def __post_init__(self) -> None:
        re.compile(self.tasks or "")


@dataclass(frozen=True)
class Comparison:
    """A comparator's result for one sample, in terms of the task.

    ``changed``: a user would see another answer. ``sensitive``: the two answers are within the
    noise of the reference. ``detail`` is for reports: numbers, texts and lists.
    """

    sample: str
    metrics: Mapping[str, float]
    changed: bool = False
    sensitive: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """A comparator's result over all samples.

    ``headline`` is a clause such as "3 of 50 labels changed".
    """

    metrics: Mapping[str, float]
    headline: str


@dataclass(frozen=True)
class Model:
    """An ONNX model on disk, with everything that is known without running it.

    Attributes:
        source: What the user asked for: a path, or ``zoo:resnet50``.
        path: The model's file; external data lies beside it.
        blob: A file with the model and all its weights (``path`` itself if there is no external
            data). It is ``path`` too for a model that is too large for one protobuf message.
        digest: sha256 of ``blob``, hexadecimal; it covers the external data too.
        inputs: Inputs that a caller must feed; initializers listed among them (IR 3) are left out.
        outputs: Graph outputs, in order.
        optional: Inputs that a caller may feed: from IR version 4 on, those with an initializer.
        opsets: Operator-set version by domain; the default domain is "ai.onnx".
        config: What was declared of it beside the file, or in a catalogue.
        format: "onnx"; there is no other format yet.
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
    optional: tuple[ValueInfo, ...] = ()

    @property
    def task(self) -> str | None:
        """The declared task ("image-classification", …), if any."""
        return self.config.task

    def load(self) -> onnx.ModelProto:
        """The model with all its weights in memory."""
        return load_model(self.blob)


@dataclass(frozen=True)
class KnownLimit:
    """A documented deviation of a pass: these ``symptoms`` of it are notes, not faults."""

    symptoms: frozenset[Symptom]
    reason: str


InterfaceChange = Literal["names", "input-dtypes"]
"""A legal change of the interface: renamed inputs and outputs, or int64 inputs made int32."""


@dataclass(frozen=True)
class Pass:
    """One rewrite that an optimizer can be asked to apply.

    Attributes:
        name: The optimizer's own name of it.
        kind: fuse, eliminate, rewrite, level, lower, …
        default: Whether the optimizer's default pipeline contains it.
        required: The result cannot be built without it; it is never left out.
        lossy: Documented to be approximate: compared with ``tolerance``, not with float32 noise.
        tolerance: Declared bound of a lossy pass's relative error; None if not lossy.
        interface: Intended changes of inputs and outputs.
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
"""Whose outputs the optimized model's are compared with; see ``Traits``."""


@dataclass(frozen=True)
class Traits:
    """Properties of an optimizer; the strategy of the search for culprits depends on these only.

    Attributes:
        ordered: Passes run in the given order.
        composable: A prefix of a pipeline is a valid pipeline.
        single: A single pass, with all others off, is a valid pipeline.
        repeatable: A pass may be listed more than once.
        one_way: No pass restores what others have changed, so that none of several that together
            leave a model as it is changes it alone.
        max_model_bytes: Maximal size of a model that it takes.
        optimizes_on_load: The optimization takes place when a runtime loads the artifact, so a
            crash at that stage is a crash of the optimizer.
        dialect: Its models are for one runtime, and may have that runtime's own operators, even
            under names of ONNX's domain that their operator set does not define, and, before IR
            version 4, weights that are not listed among the inputs. This is reported as a note; the
            model does not count as malformed.
        consumes: Format of the artifacts that it takes.
        produces: Format of the artifacts that it makes.
        reference: What the optimized model is compared with. "original": the given model, on the
            same runtime. "empty pipeline": the result of import and export without any pass. That
            is first compared with the original on another runtime, so that a fault of the import
            is not attributed to a pass.
        runtime_options: Options of the runtime under which both models are run, as pairs, unless
            the user gives others: what its users' sessions have, where it decides what is computed.
        shipped_options: Options under which what it makes is run as shipped, beside the runtime's
            defaults and unless the user gives others, as pairs: a file that a runtime optimized is
            not optimized again. They hold for runtimes that have them all.
    """

    ordered: bool = True
    composable: bool = True
    single: bool = True
    repeatable: bool = False
    one_way: bool = False
    max_model_bytes: int | None = None
    optimizes_on_load: bool = False
    dialect: bool = False
    consumes: str = "onnx"
    produces: str = "onnx"
    reference: Reference = "original"
    runtime_options: tuple[tuple[str, Any], ...] = ()
    shipped_options: tuple[tuple[str, Any], ...] = ()

    @property
    def one_session(self) -> bool:
        """Whether the session that runs what it makes is itself vetted, so that none ships it."""
        return self.optimizes_on_load or self.reference == "empty pipeline"


@dataclass(frozen=True)
class Artifact:
    """A model in some format: input and output of an optimizer.

    ``data`` is the serialized model (for format "onnx"). ``path`` is used for a large model
    instead: the file of the model, with weights inside or in files beside it. ``handle`` is used by
    other formats: a live object, or instructions for the runtime; it never leaves its process.
    ``fingerprint`` identifies the content of an artifact if ``data`` does not.
    ``changing_passes`` are the passes that changed the model, as the optimizer itself reports;
    None if it reports none.
    """

    format: str
    data: bytes = b""
    handle: Any = None
    fingerprint: str | None = None
    changing_passes: tuple[str, ...] | None = None
    path: Path | None = None

    def __repr__(self) -> str:
        what = f"{len(self.data):,} bytes" if self.path is None else str(self.path)
        return f"<Artifact: {self.format}, {what}>"


@dataclass(frozen=True)
class Inner:
    """A value inside a model of another format than ONNX, and the operator that computes it.

    Attributes:
        names: Its names; several if the conversion merged values.
        operator: The operator that computes it, named as in that format.
        reads: First names of the values that the operator reads, without weights.
        value: The value in one run.
        output: Its index among the outputs of the model; None if it is not an output.
    """

    names: tuple[str, ...]
    operator: str
    reads: tuple[str, ...]
    value: np.ndarray
    output: int | None = None


@dataclass(frozen=True)
class NodeTime:
    """A node as it was executed, which may stand for several of the model that were fused.

    Attributes:
        name: The runtime's name of it.
        operator: Its operator, preceded by its domain if that is not ONNX's, as far as it is known.
        provider: What executed it: an execution provider, or a device.
        calls: How often in a run, on average.
        seconds: How long in a run, without the nodes of graphs inside it: the median over runs,
            since a pause of the machine can last longer than all nodes.
    """

    name: str
    operator: str
    provider: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """What a runtime tells about its execution of a model.

    Attributes:
        wanted: The provider that was asked for first; nodes elsewhere have no kernel on it.
        runs: Number of runs.
        nodes: All nodes that were executed, in the order of their first execution.
    """

    wanted: str
    runs: int
    nodes: tuple[NodeTime, ...]


@dataclass(frozen=True)
class Sample:
    """One set of inputs. ``feeds`` maps input names to arrays (strings as dtype object)."""

    id: str
    feeds: Mapping[str, np.ndarray]
    label: Any = None
    origin: str = ""

    def __repr__(self) -> str:
        return f"<Sample {self.id}: {summarize_arrays(self.feeds)}>"


@dataclass(frozen=True)
class Deferred:
    """A sample that is made on demand, since making it is expensive, such as decoding an image.

    ``make`` returns the sample, with the same id. It raises InputError for bad data, which is an
    error or is skipped, as the user chose. It is not called for samples that the user left out.
    """

    id: str
    make: Callable[[], Sample]


FailureKind = Literal["error", "abort", "timeout", "out-of-memory", "killed"]


@dataclass(frozen=True)
class Failure:
    """How a step in a worker failed.

    ``kind`` is "error" for an exception, and "abort" if the process died by ``signal`` or exited.
    "killed" means that another process may have killed it; that is no evidence of a fault.
    ``message`` is the exception's text, or the last lines that native code wrote.
    """

    kind: FailureKind
    stage: Stage
    message: str
    error_type: str = ""
    signal: str | None = None


@dataclass(frozen=True)
class LogFormat:
    """How a library writes its log to stderr.

    Attributes:
        line: Regular expression of a line's beginning, with the groups ``severity`` and ``text``.
        warnings: Severities of warnings.
        errors: Severities that are worse: these lines count as warnings too, and may be the cause
            of a crash. Lines of other severities are left out everywhere.
    """

    line: str
    warnings: frozenset[str]
    errors: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what is no such expression."""
        missing = {"severity", "text"} - re.compile(self.line).groupindex.keys()
        if missing:
            raise ValueError(f"log format {self.line!r} has no group {min(missing)!r}")


@dataclass(frozen=True)
class ModelCard:
    """A model source's description of one of its models, before it is fetched."""

    name: str
    task: str | None = None
    description: str = ""
    size_bytes: int | None = None
    tags: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
