"""A repair: the patch, document ``optvet.patch/1``, and the answer, ``optvet.repair/1``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record, Result
from optvet.spec.records.convert import ConversionPlace, ConversionVerdict, ConverterRecord

RepairVerdict = Literal["right", "repaired", "improved", "not-repaired", "refused", "undecided"]
InputPart = Literal["witnesses", "held_out", "fresh"]
EditKind = Literal[
    "parameter",
    "attribute",
    "constant",
    "removal",
    "insertion",
    "inputs",
    "operator",
    "affine",
    "template",
    "region",
]


MOST_INPUTS = 10_000
"""A patch from outside may not make a node of more inputs than this."""


class PatchTensor(Record):
    """A tensor: type and shape as of numpy, and its bytes, little-endian, in base64."""

    type: str
    shape: list[int]
    data: str


class SetWeight(Record):
    """Give an initializer, or a ``Constant`` node, this value; a new name is a new initializer."""

    operation: Literal["set-weight"] = "set-weight"
    name: str
    tensor: PatchTensor


class SetAttribute(Record):
    """Set an attribute of the node that makes the value ``node``; without a value, remove it."""

    operation: Literal["set-attribute"] = "set-attribute"
    node: str
    name: str
    value: int | float | str | list[int] | list[float] | list[str] | None = None


class SetInput(Record):
    """Let the node that makes ``node`` read ``value`` as its input number ``index``."""

    operation: Literal["set-input"] = "set-input"
    node: str
    index: int = Field(ge=0, le=MOST_INPUTS)
    value: str


class RemoveNode(Record):
    """Remove the node that makes ``node``; what reads that value reads ``value``."""

    operation: Literal["remove-node"] = "remove-node"
    node: str
    value: str


class InsertNode(Record):
    """Insert a node.

    It gives input ``index`` of the node that makes ``node`` its value; without ``index``, it gives
    all that read ``node``. ``@`` among ``inputs`` is the value that was there before.
    """

    operation: Literal["insert-node"] = "insert-node"
    node: str
    index: int | None = Field(default=None, ge=0, le=MOST_INPUTS)
    operator: str
    domain: str = ""
    inputs: list[str]
    output: str
    attributes: dict[str, Any] = Field(default_factory=dict)


class ReplaceNode(Record):
    """Put another operator in the place of the node that makes ``node``."""

    operation: Literal["replace-node"] = "replace-node"
    node: str
    operator: str
    domain: str = ""
    inputs: list[str]
    attributes: dict[str, Any] = Field(default_factory=dict)


class ReplaceRegion(Record):
    """Compute the value ``node`` by the nodes of another model; what nothing reads then is removed.

    ``model`` is that model in ONNX, in base64, with one output; ``inputs`` are the values that its
    inputs are given, in order.
    """

    operation: Literal["replace-region"] = "replace-region"
    node: str
    inputs: list[str]
    model: str


class SetOutputType(Record):
    """Declare a graph output to be of this type, as of numpy, with so many axes of any size."""

    operation: Literal["set-output-type"] = "set-output-type"
    output: str
    type: str
    axes: int = Field(ge=0, le=64)


Operation = Annotated[
    SetWeight
    | SetAttribute
    | SetInput
    | RemoveNode
    | InsertNode
    | ReplaceNode
    | ReplaceRegion
    | SetOutputType,
    Field(discriminator="operation"),
]


class Edit(Record):
    """One change that is made as a whole: its kind, what it is in a line, and its operations."""

    kind: EditKind
    about: str
    operations: list[Operation]


class Patch(Record):
    """What repairs a model: edits in order. ``digest`` is that of the model it was made for."""

    schema_: Literal["optvet.patch/1"] = Field("optvet.patch/1", alias="schema")
    digest: str
    edits: list[Edit]


class RepairNumbers(Record):
    """A model on the inputs of one kind: how many are wrong, and the largest error of all.

    ``error`` is relative to the source's largest magnitude; None where the model does not run, or
    gives something of another shape or type. ``noise`` is what rounding explains.
    """

    inputs: int
    wrong: int
    error: float | None = None
    noise: float | None = None


class RepairStep(Record):
    """An edit that was kept, how many were tried for it, and the largest error after it."""

    about: str
    tried: int
    error: float | None = None


class RepairResult(Result):
    """The result of ``repair``.

    ``witnesses`` are inputs that the edits were chosen on, ``held_out`` those that no edit was
    chosen by, ``fresh`` those that were drawn after the last edit; each before and after.
    ``places`` are where the model broke, mended or not, and ``place`` the first of them. ``edits``
    are those of the patch; ``needless`` were left out again. ``right_via``: of a model that is not
    repaired, the converters whose model of the source is right as a whole, with their defaults.
    """

    schema_: Literal["optvet.repair/1"] = Field("optvet.repair/1", alias="schema")
    source: str
    digest: str
    converters: list[ConverterRecord]
    verdict: RepairVerdict
    reason: str = ""
    place: ConversionPlace | None = None
    places: list[ConversionPlace] = Field(default_factory=list)
    edits: list[Edit] = Field(default_factory=list)
    needless: list[str] = Field(default_factory=list)
    right_via: list[str] = Field(default_factory=list)
    steps: list[RepairStep] = Field(default_factory=list)
    before: dict[InputPart, RepairNumbers] = Field(default_factory=dict)
    after: dict[InputPart, RepairNumbers] = Field(default_factory=dict)
    verdict_before: ConversionVerdict
    verdict_after: ConversionVerdict | None = None
    tried: int = 0
    files: list[str] = Field(default_factory=list)
    seed: int = 0
    wall_s: float = 0.0

    def headline(self) -> str:
        """The verdict, the source and the chain."""
        chain = " → ".join(c.name for c in self.converters)
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.verdict}: {self.source} → {chain}, {len(self.edits)} edits{why}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per edit."""
        return [{"kind": e.kind, "about": e.about} for e in self.edits]
