"""The answer of ``convert``: document ``optvet.convert/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record, Result
from optvet.spec.records.timing import Timing
from optvet.spec.records.vet import (
    Control,
    CrossCheck,
    DatasetRecord,
    FixedTolerance,
    Impact,
    OutputRecord,
    RequirementRecord,
    Skipped,
)
from optvet.spec.symptoms import Symptom
from optvet.spec.types import StageKind

ConversionVerdict = Literal["right", "faulty", "refused", "undecided"]


class ConverterRecord(Record):
    """A converter of the chain, with the options that it was given."""

    name: str
    version: str
    options: dict[str, Any]


class StageRecord(Record):
    """A stage, and how its artifact compares with the source over all samples but those of notes.

    ``state``: "same" and "drift" (rounding) are right; "fault" differs; "fails" cannot be loaded or
    run; "not-run" has no artifact that can be run alone, for the reason in ``detail``;
    "not-reached" lies behind a stage that refused. ``error`` and ``noise`` are the largest over
    samples, relative to the source's largest magnitude; ``edge_error`` and ``edge_noise`` are those
    of edge values, which ``error`` and ``noise`` leave out where the source ran on others too.
    ``places`` and ``edge_places``: NaN or infinity stands where the source has numbers, or the
    reverse, which has no size and is in none of these numbers.
    ``quantized`` is the number of operators of the source that compute with quantized weights or
    values, where the stage quantizes. ``checker`` is the complaint of
    onnx.checker, empty if there is none. ``warnings`` are what its converter wrote while it made
    the artifact. ``file`` is the artifact's, where artifacts are kept.
    """

    converter: str
    name: str
    kind: StageKind
    format: str
    state: Literal["same", "drift", "fault", "fails", "not-run", "not-reached"]
    runtime: str = ""
    error: float | None = None
    noise: float | None = None
    edge_error: float | None = None
    edge_noise: float | None = None
    places: bool = False
    edge_places: bool = False
    quantized: int | None = None
    checker: str = ""
    detail: str = ""
    file: str | None = None


class ConversionWitness(Record):
    """An input that shows a finding.

    ``origin`` is "example", "given", "random", "edge" or "size"; ``about`` says which.
    """

    sample: str
    origin: Literal["example", "given", "random", "edge", "size"]
    about: str = ""


class DifferingParameter(Record):
    """A weight of the converted model that is another number in the source.

    ``name`` is the source's, ``weight`` the converted model's; ``error`` is relative to the largest
    magnitude. ``how`` is empty, or how the source's is to be turned to fit: "transposed (1, 0)".
    """

    name: str
    weight: str
    error: float | None
    how: str = ""


class ConversionPlace(Record):
    """Where inside the guilty stage a model breaks.

    ``operator`` is the first operator of the source whose result the converted model does not have,
    although it has what that reads; ``arguments`` are numbers and words that it is given there, of
    an estimator its settings that are not the default ones; ``module`` and ``line`` are its place
    in the source. ``nodes``
    are the nodes of the converted model between values that are right and the first that is not,
    as text. ``parameters`` differ from the source's; ``attributes`` are of the first such node, and
    what the source's operator asks for: ``{"pads": ("[0, 0]", "[1, 1]")}``. ``alike``: the first
    such node is ONNX's own operator for the source's, with its attributes and parameters, so that
    the conversion has nothing to do with what it computes. ``preprocessing``: the operator only
    prepares an input, since weights are used behind it alone. ``difference`` is what else is other
    than in the source, in words: "branches exchanged", "input sequence_lens is gone". ``inside`` is
    the inner graph of the converted model, or the iteration, in which this is: "then_branch of If
    y". ``note`` says why there is none, or what it rests on.
    """

    operator: str = ""
    arguments: dict[str, str] = Field(default_factory=dict)
    module: str = ""
    line: str = ""
    nodes: list[str] = Field(default_factory=list)
    node: str = ""
    parameters: list[DifferingParameter] = Field(default_factory=list)
    attributes: dict[str, tuple[str, str]] = Field(default_factory=dict)
    alike: bool = False
    preprocessing: bool = False
    difference: str = ""
    inside: str = ""
    note: str = ""

    def words(self) -> str:
        """The culprit in a line: parameters, an attribute, a difference, or operator and nodes."""
        if self.parameters:
            return ", ".join(p.name for p in self.parameters)
        if self.attributes:
            listed = ", ".join(f"{self.node}.{name}" for name in self.attributes)
            alone = self.operator in ("", self.node)
            return listed if alone else f"{self.operator} → {listed}"
        if self.difference:
            sides = dict.fromkeys(side for side in (self.operator, self.node) if side)
            operators = " → ".join(sides)
            return f"{operators}: {self.difference}" if operators else self.difference
        outputs = ", ".join(node.partition(" = ")[2].partition(" ")[0] for node in self.nodes[:4])
        arguments_text = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        operator = f"{self.operator} ({arguments_text})" if arguments_text else self.operator
        return " → ".join(part for part in (operator, outputs) if part)


class ConversionFinding(Record):
    """One thing that is wrong, and which stage does it.

    ``stages`` are the stages to blame: one, or a range where artifacts between cannot be run; each
    as ``CONVERTER/STAGE``. ``kind`` is the kind of the first of them, or "target-runtime" where
    another runtime runs the same artifact right (of several, each of them; one of them where the
    place is ``alike``): then ``culprit`` names the runtime. ``confirmed``:
    the guilty artifact differs from its predecessor too. A "note" shows only on inputs with NaN or
    infinity that nobody gave. ``samples`` is the number of inputs that show it. ``consequence`` is
    what it means for the task; ``requirement`` and ``measured`` are as in a finding of ``vet``.
    """

    symptom: Symptom
    severity: Literal["fault", "note", "refusal", "requirement"]
    stages: list[str]
    kind: StageKind | Literal["target-runtime"]
    culprit: str
    confirmed: bool = False
    outputs: list[str] = Field(default_factory=list)
    error: float | None = None
    noise: float | None = None
    message: str = ""
    witness: ConversionWitness | None = None
    samples: int = 0
    consequence: str = ""
    requirement: str | None = None
    measured: float | None = None
    cross_check: list[CrossCheck] = Field(default_factory=list)
    place: ConversionPlace | None = None


class ReducedSource(Record):
    """The smallest part of a source that was found to show a fault, as a bundle of ``files``.

    ``part`` is its path in the source, empty for the whole. ``size`` is in a unit of the source's
    runtime: modules, or steps. ``reproduces``: whether the script of the bundle ended with code 1;
    None if there is no script. ``note`` says why there is no bundle.
    """

    part: str = ""
    tried: int
    size: int
    size_before: int
    files: list[str] = Field(default_factory=list)
    reproduces: bool | None = None
    note: str = ""


class SourceRecord(Record):
    """The source: as it was typed, its format, and a digest of its file."""

    source: str
    format: str
    digest: str
    runtime: str
    version: str
    inputs: dict[str, str]
    dynamic: dict[str, dict[int, str]] = Field(default_factory=dict)


class ConversionResult(Result):
    """The result of ``convert``.

    ``stages`` are those of all converters in order; ``warnings`` are lines that converters wrote,
    equal ones once; ``notes`` are changes of the interface that are no fault, such as the width of
    integers. ``samples`` is the number of inputs that were compared, ``skipped`` are those on which
    the source does not run. ``reduced`` is what the source was reduced to, if that was asked for.
    ``outputs``, ``impact``, ``requirements``, ``timing``, ``fixed_tolerances`` and ``datasets`` are
    those of ``vet``, with the source in place of the original.
    """

    schema_: Literal["optvet.convert/1"] = Field("optvet.convert/1", alias="schema")
    source: SourceRecord
    converters: list[ConverterRecord]
    verdict: ConversionVerdict
    reason: str = ""
    findings: list[ConversionFinding]
    stages: list[StageRecord]
    controls: list[Control]
    warnings: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    samples: int = 0
    skipped: list[Skipped] = Field(default_factory=list)
    reduced: ReducedSource | None = None
    outputs: list[OutputRecord] = Field(default_factory=list)
    impact: Impact | None = None
    requirements: list[RequirementRecord] = Field(default_factory=list)
    timing: Timing | None = None
    fixed_tolerances: list[FixedTolerance] = Field(default_factory=list)
    datasets: list[DatasetRecord] = Field(default_factory=list)
    seed: int = 0
    wall_s: float = 0.0

    def headline(self) -> str:
        """The verdict, the source and the chain."""
        chain = " → ".join(c.name for c in self.converters)
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.verdict}: {self.source.source} → {chain}{why}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per stage."""
        return [
            {
                "stage": f"{s.converter}/{s.name}",
                "format": s.format,
                "runtime": s.runtime,
                "state": s.state,
                "error": s.error,
                "noise": s.noise,
            }
            for s in self.stages
        ]
