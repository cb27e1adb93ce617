"""Two models compared value by value: document ``optvet.compare/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optvet.spec.records.base import Record, Result
from optvet.spec.symptoms import Symptom


class Activation(Record):
    """Statistics of a value in both models, over its finite elements, in the value's unit.

    ``rms_difference`` is relative to the first model's root mean square; ``cosine`` is the cosine
    similarity of the two. Both are None if shapes differ or the divisor is 0.
    """

    mean: tuple[float, float]
    std: tuple[float, float]
    minimum: tuple[float, float]
    maximum: tuple[float, float]
    rms_difference: float | None = None
    cosine: float | None = None


class Parameter(Record):
    """A weight that both nodes read at the same input position.

    The largest difference is relative to the first weight's largest magnitude, the root mean square
    difference to its root mean square; the mean of absolute differences is in units of the weight.
    None if shapes differ.
    """

    name: str
    shape: list[int]
    shape_in_b: list[int]
    max_difference: float | None
    rms_difference: float | None
    mean_difference: float | None = None

    @property
    def differs(self) -> bool:
        """Whether any element differs."""
        return self.max_difference != 0


class Layer(Record):
    """A value that both models have, and the nodes that compute it.

    ``found_by``: equal up to rounding ("value"), or in another form ("likeness": beside a source).
    ``dtype`` is the element type of the first model's value, as numpy names it.
    ``error`` and ``noise`` are relative to ``magnitude``, the largest magnitude of the first
    model's value. ``attributes`` are the attributes that differ between the two nodes, by name;
    ``parameters`` are the weights of the nodes, if both have the same operator.
    """

    name: str
    name_in_b: str
    found_by: Literal["name", "position", "value", "likeness"]
    op_a: str
    op_b: str
    dtype: str = ""
    shape: list[int]
    magnitude: float | None
    error: float | None
    noise: float | None
    call: Literal["same", "drift", "sensitivity", "fault", "unsure"]
    detail: str = ""
    attributes: dict[str, str] = Field(default_factory=dict)
    parameters: list[Parameter] = Field(default_factory=list)
    activation: Activation | None = None


class LayerSummary(Record):
    """Layers of one operator of the first model, or of one element type.

    ``differing`` are those beyond their noise; ``error`` and ``noise`` are the largest of any
    layer, ``rms_difference`` is the mean over layers; None if no layer has it.
    """

    key: str
    layers: int
    differing: int
    error: float | None
    noise: float | None
    rms_difference: float | None


class LayerContrast(Record):
    """How far a layer differs on samples that get the same answer, and on those that do not.

    ``similar`` and ``dissimilar`` are means over these samples of the root mean square of the
    difference relative to the first model's; None without such a sample. ``f`` and ``p`` are of a
    one-way analysis of variance between the two groups, ``rank_p`` of the Kruskal-Wallis test; None
    with fewer than two samples in a group. ``f`` is None too where it is infinite.
    """

    name: str
    operator: str
    similar: float | None
    dissimilar: float | None
    f: float | None = None
    p: float | None = None
    rank_p: float | None = None


class AnswerContrast(Record):
    """Samples on which ``comparator`` finds both models' answers alike, or not, and the layers.

    ``layers`` begin with the one that differs most significantly between the two groups.
    """

    comparator: str
    similar: list[str]
    dissimilar: list[str]
    layers: list[LayerContrast]


class ShippedComparison(Record):
    """The second model in its runtime's default session, beside the first in the clean room.

    ``verdict``: "not-judged" if it differs in the clean room already, or does not run; ``message``
    says why. ``blamed``: "runtime" if that session is wrong on the first model too, "both" if on
    the second one alone. ``runtime_parts`` are the fewest of the session's options that show it, as
    ``KEY=VALUE``, and the passes of the runtime's own optimizer that do. ``error`` and
    ``noise_floor`` are relative to the output's largest magnitude.
    """

    verdict: Literal["agrees", "differs", "undecided", "not-judged"]
    runtime: str = ""
    samples: int = 0
    blamed: Literal["runtime", "both"] | None = None
    symptom: Symptom | None = None
    outputs: list[str] = Field(default_factory=list)
    error: float | None = None
    noise_floor: float | None = None
    message: str = ""
    runtime_parts: list[str] = Field(default_factory=list)


class RecordedOn(Record):
    """Where values were recorded that optvet did not run itself, as its client says.

    ``failure`` is why a run there failed; empty if none did.
    """

    client: str
    runtime: str
    providers: list[str]
    options: list[str]
    system: str
    samples: int
    failure: str = ""


class ModelComparison(Result):
    """Two models on one input; ``diverges_at`` names the first layer that differs beyond noise.

    ``before`` and ``after`` are the nodes of the two models in the rewritten region around it, as
    text; ``agreeing`` are the values that enter the region and are equal up to noise.
    ``operators`` and ``dtypes`` sum up the layers; ``contrast`` is of several samples, if asked.
    ``as_shipped`` is the second model in a session as its users have it; None if that was not
    asked, or if the models differ in the clean room.
    ``recording`` is where the values were recorded that the model is compared with, if they were;
    ``before`` are then the nodes between right and wrong values.
    """

    schema_: Literal["optvet.compare/1"] = Field("optvet.compare/1", alias="schema")
    nodes: tuple[int, int]
    layers: list[Layer]
    operators: list[LayerSummary] = Field(default_factory=list)
    dtypes: list[LayerSummary] = Field(default_factory=list)
    contrast: AnswerContrast | None = None
    only_in_a: list[str]
    only_in_b: list[str]
    diverges_at: str | None = None
    before: list[str] = Field(default_factory=list)
    after: list[str] = Field(default_factory=list)
    agreeing: list[str] = Field(default_factory=list)
    as_shipped: ShippedComparison | None = None
    recording: RecordedOn | None = None

    def headline(self) -> str:
        """Where the two models differ first."""
        where = f"they differ first at {self.diverges_at}" if self.diverges_at else "they agree"
        shipped = self.as_shipped
        if shipped is not None and shipped.verdict in ("differs", "undecided"):
            differs = "B differs" if shipped.verdict == "differs" else "it is undecided"
            where += f" in the clean room; as shipped, {differs}: {shipped.message}"
        return f"{len(self.layers)} layers compared: {where}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per layer."""
        shown = ("name", "name_in_b", "op_a", "op_b", "error", "noise", "call", "detail")
        return [{n: getattr(layer, n) for n in shown} for layer in self.layers]


class DecodingStep(Record):
    """One run of a file of the second folder, on the inputs of the first; ``token`` counts from 1.

    ``output`` is the first output that differs: logits or a cache entry. ``error`` and ``noise``
    belong to it, relative to its largest magnitude.
    """

    file: str
    token: int
    call: Literal["same", "differs", "undecided"]
    output: str | None = None
    error: float | None = None
    noise: float | None = None
    detail: str = ""


class DecodingComparison(Result):
    """Two exported encoder-decoders or decoders, compared while they decode.

    ``file``, ``token``, ``output`` and ``layer`` name the first difference: the file of the second
    folder, the token that it computes, its output, and the first inner value. ``cache_entries`` are
    all differing cache entries of this run. ``tokens`` are the tokens of each model, by sequence;
    ``other_token_at`` is the first position at which they differ. Tokens count from 1. ``steps``
    are the judged runs in order, and ``comparison`` is that of the differing file.
    ``not_compared`` are redundant files, such as a merged decoder beside its halves.
    """

    schema_: Literal["optvet.compare-decoding/1"] = Field(
        "optvet.compare-decoding/1", alias="schema"
    )
    verdict: Literal["agrees", "differs", "undecided"]
    message: str = ""
    file: str | None = None
    token: int | None = None
    output: str | None = None
    layer: str | None = None
    cache_entries: list[str] = Field(default_factory=list)
    tokens: tuple[list[list[int]], list[list[int]]]
    other_token_at: int | None = None
    steps: list[DecodingStep]
    comparison: ModelComparison | None = None
    not_compared: list[str] = Field(default_factory=list)

    def headline(self) -> str:
        """Whether both decode the same, and the first difference."""
        if self.verdict == "differs":
            return f"{self.file} differs at token {self.token}: {self.message}"
        words = {"agrees": "both decode the same", "undecided": "undecided"}[self.verdict]
        return f"{words}: {self.message}" if self.message else words

    def rows(self) -> list[dict[str, Any]]:
        """One row per run."""
        return [step.model_dump() for step in self.steps]
