"""The answer of ``vet``: document ``optvet.vet/3``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from optvet.spec.mends import Mend
from optvet.spec.records.base import Record, Result
from optvet.spec.records.layers import LayerRecord, Quantized
from optvet.spec.records.placement import Placements
from optvet.spec.records.saved import Saved
from optvet.spec.records.structure import Structure, Structures
from optvet.spec.records.timing import Timing
from optvet.spec.symptoms import Stage, Symptom

Verdict = Literal["clean", "drift", "faulty", "undecided"]
ControlState = Literal["passed", "failed", "limited", "not-needed"]
NOT_ASKED = "nothing else was asked for"
"""Why a dataset was used, if none was named."""


class ModelRecord(Record):
    """The model that was vetted."""

    source: str
    digest: str
    ir_version: int
    opsets: dict[str, int]
    nodes: int
    size_bytes: int
    task: str | None = None


class OptimizerRecord(Record):
    """The optimizer and the pipeline that was asked for."""

    name: str
    version: str
    options: dict[str, Any] = Field(default_factory=dict)
    pipeline: list[str]
    precision: str = ""
    """What the passes convert to, where each makes a part of the model less precise."""


class RuntimeRecord(Record):
    """The runtime and its options."""

    name: str
    version: str
    options: dict[str, Any]


class Witness(Record):
    """The sample that shows a finding; it is reproduced by ``dataset`` and ``seed``."""

    dataset: str
    sample: str
    seed: int


class RewriteSite(Record):
    """One of several places that a pass rewrote; rewriting it alone already shows the fault.

    It is the ``number``-th of ``of`` places of this ``kind`` (the operators that were removed), in
    the order of the original graph, beginning with 1. ``node`` is the name of the node there, or of
    its output.
    """

    number: int
    of: int
    kind: str
    node: str
    before: list[str]
    after: list[str]


class Divergence(Record):
    """Where the optimized model begins to differ from the original, and what was rewritten there.

    ``value`` is the first tensor that differs beyond its noise, by its name in the original; None
    if there is none, for the reason in ``note``. ``error`` and ``noise`` are relative to its
    largest magnitude. ``before`` and ``after`` are the nodes of the original and of the optimized
    model that compute it from the values in ``agreeing``, as text; ``whole``: these are all nodes.
    ``differs`` lists attributes and weights that changed there. ``sites`` is the number of places
    that were rewritten independently, ``tried`` how many of them were put into the original one at
    a time; ``wrong`` are those that show the fault alone, and ``distinction`` lists properties that
    these have and the correct ones of their kind do not. ``form`` is a digest of the operators that
    were rewritten there and of how they read from each other; empty where that is not known.
    """

    value: str | None = None
    error: float | None = None
    noise: float | None = None
    agreeing: list[str] = Field(default_factory=list)
    before: list[str] = Field(default_factory=list)
    after: list[str] = Field(default_factory=list)
    whole: bool = False
    differs: list[str] = Field(default_factory=list)
    sites: int = 0
    tried: int = 0
    wrong: list[RewriteSite] = Field(default_factory=list)
    distinction: list[str] = Field(default_factory=list)
    form: str = ""
    note: str = ""


class CrossCheck(Record):
    """A finding tested on another runtime.

    ``outcome`` is "fault" (with its ``symptom``) or "no-fault"; "runs" or "does-not-run" if the
    question is only whether the runtime has the operators of the optimized model; "not-judged" if
    it cannot run one of the two models, for the reason in ``detail``. ``same_original``: whether
    its outputs of the original agree with those of the first runtime; None if not known.
    ``sample``: of a conversion, the input on which this runtime shows the fault, which need not be
    the finding's own. ``refuses_operands``: whether it says that operands or attributes of the
    original are not as they must be.
    """

    runtime: str
    outcome: Literal["no-fault", "fault", "runs", "does-not-run", "not-judged"]
    symptom: Symptom | None = None
    same_original: bool | None = None
    sample: str = ""
    detail: str = ""
    refuses_operands: bool = False


class Finding(Record):
    """One thing that is wrong, and what is to blame for it.

    ``culprit`` is the minimal pass sequence that shows the symptom; empty means that import and
    export alone (the round trip) show it; not ``localized``: no culprit was searched, and it is the
    whole pipeline. ``partners`` are further minimal sequences that show the
    same defect: the same enabling pass with another one. ``error`` and ``noise_floor`` are relative
    to the reference output (unitless, largest over elements of the worst output; None where the
    symptom has no size). ``wrong_form`` tells that an output is missing or has another shape or
    type. ``message`` says what is wrong; ``known_limit`` is the documented limit of
    a pass that explains it, ``consequence`` what it means on the model's task, and ``location``
    whether the fault is in the model or in one runtime's reading of it, as far as ``cross_check``
    tells. ``as_deployed`` tells that it showed only in a session with the runtime's own defaults:
    ``runtime_parts`` are then the fewest of its options that show it, as ``KEY=VALUE``, and the
    passes of its own optimizer that do. Without a culprit, the original is wrong in it too.
    ``severity`` is "requirement" where the user's ``requirement`` is not met, a slowdown included,
    which says nothing against the outputs; ``measured`` is what the culprit alone comes to.
    ``divergence`` tells where in the graph it is; None where no result could be looked at.
    ``layer`` is the layer of a quantized model that is wrong on its own inputs, where it is one.
    ``changed`` names the metadata that changed, sorted; only of the symptom "metadata-change".
    ``fingerprint`` is equal for findings of one optimizer, culprit, symptom and form of the place
    at fault, after a reduction of the reduced model; None in documents of old, which have none
    without a bundle. ``bundle`` is the name of its folder; None where no bundle was written.
    ``known`` are the ids of the known faults that it is, of those that come with optvet, and
    ``known_releases`` says of each which releases show the form of it that this model has.
    ``known_unfinished`` are those that it may be: their search in the model ran out of steps.
    ``set_aside`` says of a fault of the round trip what was done so that passes could be judged
    all the same, or that nothing else was judged, and why. ``mended`` is what each model got back
    before it was judged, since the round trip loses it: nothing but of faults beside such a one.
    """

    symptom: Symptom
    severity: Literal["fault", "note", "requirement"]
    stage: Stage
    culprit: list[str]
    localized: bool = True
    confirmed: bool
    outputs: list[str] = Field(default_factory=list)
    error: float | None = None
    noise_floor: float | None = None
    wrong_form: bool = False
    witness: Witness | None = None
    message: str = ""
    partners: list[list[str]] = Field(default_factory=list)
    known_limit: str | None = None
    consequence: str = ""
    location: str = ""
    as_deployed: bool = False
    runtime_parts: list[str] = Field(default_factory=list)
    requirement: str | None = None
    measured: float | None = None
    cross_check: list[CrossCheck] = Field(default_factory=list)
    divergence: Divergence | None = None
    layer: LayerRecord | None = None
    changed: list[str] = Field(default_factory=list)
    fingerprint: str | None = None
    bundle: str | None = None
    known: list[str] = Field(default_factory=list)
    known_releases: dict[str, str] = Field(default_factory=dict)
    known_unfinished: list[str] = Field(default_factory=list)
    set_aside: str = ""
    mended: list[Mend] = Field(default_factory=list)

    def blamed(self) -> str:
        """What is to blame, in words on one line."""
        parts = ", ".join(self.runtime_parts) or "its own defaults"
        if self.as_deployed and not self.culprit:
            return f"the runtime: {parts}"
        more = f", with the runtime's {parts}" if self.as_deployed else ""
        return blamed(self.culprit, localized=self.localized) + more

    def remark(self) -> str:
        """The severity where it is no fault and the symptom does not say it; else empty."""
        return remark(self.severity, self.symptom)


def blamed(culprit: Sequence[str], *, localized: bool = True) -> str:
    """A ``culprit`` in words on one line; see ``Finding``."""
    if not localized:
        return f"the whole pipeline ({len(culprit)} passes, culprits not searched)"
    return " → ".join(culprit) or "round trip"


def remark(severity: str, symptom: Symptom) -> str:
    """The ``severity`` where it is no fault and the ``symptom`` does not say it; else empty."""
    return "" if severity in ("fault", symptom) else severity


class OutputRecord(Record):
    """Verdict over all samples on one output, with the numbers of the sample that decided.

    ``sensitivity``: it differs by more than a hundredth, or takes another decision, and rounding
    alone does so too. ``detail`` says what decided, where it was not the noise floor. ``excused``:
    the largest error that is excused, where a decision inside the model is the reason. ``error``
    and ``noise_floor`` are relative to ``largest``, the largest magnitude of the original's.
    """

    name: str
    verdict: Literal["same", "drift", "sensitivity", "fault", "flaky", "undecided", "not-judged"]
    error: float | None = None
    noise_floor: float | None = None
    detail: str = ""
    excused: float | None = None
    largest: float | None = None


class ComparisonRecord(Record):
    """The comparator's result for one sample."""

    sample: str
    metrics: dict[str, float | None]
    changed: bool
    sensitive: bool
    detail: dict[str, Any] = Field(default_factory=dict)


class Impact(Record):
    """Effect of the difference on the task; ``chosen_by`` says why this comparator was used."""

    comparator: str
    chosen_by: str
    headline: str
    metrics: dict[str, float | None]
    changed: int
    sensitive: int
    samples: int
    details: list[ComparisonRecord] = Field(default_factory=list)


class PassNumbers(Record):
    """The model after one pass alone, import and export included, beside the original.

    ``verdict``, ``outputs`` and ``impact`` are those that a vet of this pass alone has, on
    ``samples`` samples; ``impact`` leaves out single samples, and is None if no outputs could be
    compared. ``structure`` is None if no ONNX model was made. ``timing`` is None unless the request
    measures time, and for a model that does not run.
    """

    verdict: Verdict
    samples: int
    outputs: list[OutputRecord] = Field(default_factory=list)
    impact: Impact | None = None
    structure: Structure | None = None
    timing: Timing | None = None

    @property
    def worst(self) -> OutputRecord | None:
        """The output with the largest error; None if no output has one."""
        known = [o for o in self.outputs if o.error is not None]
        return max(known, key=lambda o: o.error or 0.0, default=None)


Effect = Literal["none", "changed", "failed", "unknown", "not-measured"]
Evidence = Literal["alone", "culprit", "log", "none"]


class PassRecord(Record):
    """What one pass did to the model.

    ``evidence`` says how that is known: the pass was applied "alone" (strategy ``each``), it is in
    the "culprit" of a finding, or the optimizer's "log" of the whole pipeline says so; "none" if
    it was only applied with the others, so that its own ``effect`` is "not-measured". ``effect`` is
    "failed" if the pass is at fault for ``symptom``, alone or with the rest of the culprit. It is
    "unknown" where a runtime applies the pass as it loads the model, every output stays the same
    to the bit, and the optimizer does not report what changed. ``warnings`` are those that the pass
    alone, beyond import and export, makes libraries give: the first of several that differ in names
    and numbers alone. ``message`` says what is wrong with the pass alone, also where a limit is
    documented. ``numbers`` are those of a pass that was applied alone and changed the model, or may
    have; a pass that did not has those of ``VetResult.round_trip``.
    """

    name: str
    effect: Effect
    evidence: Evidence = "alone"
    symptom: Symptom | None = None
    known_limit: str | None = None
    message: str = ""
    warnings: list[str] = Field(default_factory=list)
    numbers: PassNumbers | None = None


class RequirementRecord(Record):
    """Whether the optimized model meets a requirement of the user.

    ``met`` is None if it cannot be measured; ``detail`` has the reason. ``measured`` is the metric
    over all samples; for a tolerance, the largest ``|difference| / (atol + rtol * |original|)``.
    It is None if there is no number. ``comparator`` is the comparator that has the metric;
    ``origin`` is where the requirement is stated.
    """

    requirement: str
    met: bool | None
    measured: float | None = None
    comparator: str | None = None
    origin: str = ""
    detail: str = ""


class OrdersRecord(Record):
    """Orders in which the ``passes`` that change the model were tried.

    ``failing`` of the ``tried`` orders showed a fault, of ``total`` there are. ``share`` is the
    largest share of all orders that may be wrong, at a confidence of 95 %; it is exact where all
    were tried. ``shortest`` is the shortest sequence that shows a fault; empty if none was found.
    ``pairs`` of ``all_pairs`` ordered pairs of passes stood in a tried order, the first before the
    second.
    """

    passes: list[str]
    tried: int
    total: int
    failing: int
    share: float
    shortest: list[str] = Field(default_factory=list)
    pairs: int
    all_pairs: int


class FixedTolerance(Record):
    """How many samples exceed a tolerance that papers or other tools use.

    Of ``samples`` that both models ran on, ``beyond`` have an element that differs by more than
    ``atol + rtol * abs(original)``; ``outputs`` tells the same of each output.
    """

    name: str
    rtol: float
    atol: float
    samples: int
    beyond: int
    outputs: dict[str, int]


class WarningRecord(Record):
    """A warning of a library, and how often it came on both sides.

    ``by`` is the plugin whose library warned; ``message`` is the first of several that differ in
    names and numbers alone. ``candidate`` counts those of the optimized model, one of ``stage``
    "build" came from the optimizer at work; ``reference`` counts those of what it is compared with,
    None if that is not known because it wrote too much.
    """

    stage: Stage
    by: str
    message: str
    reference: int | None
    candidate: int

    @property
    def new(self) -> int:
        """How many more came after optimization."""
        return 0 if self.reference is None else max(0, self.candidate - self.reference)


class DatasetRecord(Record):
    """Where inputs came from.

    ``name`` is the value of ``--dataset``, ``chosen_by`` says why it was used, ``samples`` is the
    number of samples that it gave, and ``provenance`` what they depend on: a revision, the
    preprocessing, and which of that was inferred.
    """

    name: str
    chosen_by: str
    options: dict[str, Any] = Field(default_factory=dict)
    samples: int = 0
    provenance: dict[str, str] = Field(default_factory=dict)


class Skipped(Record):
    """A sample that was left out, and why: bad data, or the original does not run on it."""

    sample: str
    reason: str


class Control(Record):
    """One check that the verdict rests on.

    ``state`` is "passed" or "failed"; "limited" if only a part could be checked; "not-needed" if
    nothing depends on it. ``detail`` explains it.
    """

    name: str
    state: ControlState
    detail: str = ""


class UnexercisedRegion(Record):
    """A part of the original that was rewritten, of which the samples show a side at most.

    ``node`` names its node, the first of ``nodes``, or this node's output; ``why`` says, in a line
    for each decision, what no sample did: "Relu r never below 0", "Gather g always the same row".
    """

    operators: str
    node: str
    nodes: int
    why: list[str]


class Exercise(Record):
    """Which of the ``regions`` that the verified pipeline rewrote ``samples`` did not exercise.

    A fault that shows on the other side of a decision there would not have been found. ``note``
    says why regions could not be looked at.
    """

    regions: int = 0
    samples: int = 0
    unexercised: list[UnexercisedRegion] = Field(default_factory=list)
    note: str = ""


class StageCost(Record):
    """Work done for one purpose; results from the cache are not counted."""

    applications: int = 0
    inferences: int = 0


class CulpritSearch(Record):
    """One search for the passes that cause a symptom.

    ``asked`` counts the different sequences of passes that were tried. ``among`` counts the passes
    that may be to blame: those that changed the model, where that was known; else all optional
    ones. ``needed`` is the smallest number of answers, each yes or no, that can tell ``found`` of
    these passes from any others.
    """

    symptom: Symptom
    asked: int
    among: int
    found: int
    needed: float


class Cost(StageCost):
    """Total work, and work for each purpose (detect, control, noise, localize, confirm, …).

    ``searches`` compares what each search for a culprit asked with what it had to ask at least.
    """

    wall_s: float = 0.0
    searches: list[CulpritSearch] = Field(default_factory=list)
    by_purpose: dict[str, StageCost] = Field(default_factory=dict)


def _list_of(value: object) -> object:
    """``value``, or an empty list for None, which stood for it where no pass was tried alone."""
    return [] if value is None else value


class VetResult(Result):
    """The result of ``vet``.

    ``samples`` is the number of compared samples; ``complete`` is False if the others were not
    tried because these already show a fault; ``skipped`` are samples that could not be used.
    ``safe_option`` is ``safe_pipeline`` as a value of ``--pipeline``; ``safe_code`` is the same as
    a call of the optimizer's own library: the Python body of a function of ``model`` (empty if the
    optimizer gives none). ``saved`` tells what was written; None unless it was asked for.
    ``structures`` tells how the graph changed; None if the pipeline made no model, or one that
    hides its graph. ``placements`` tells where the models are executed; None unless it was asked
    for. ``quantized`` tells how a quantized model was judged whose outputs differ; None otherwise.
    ``warnings`` are what libraries wrote to stderr for original and optimized model, on the first
    samples; no verdict rests on them.
    ``passes`` has a record of every pass of the pipeline; with the strategy ``each``, of every pass
    of the optimizer. ``round_trip`` are the numbers of import and export alone, where passes were
    applied alone; ``orders`` tells of other orders of passes, None unless they were asked for.
    ``changing_passes`` are those that changed the model, None if not known.
    ``judge`` is what runs the original where ``runtime`` itself is under test; None otherwise.
    ``exercise`` tells which parts that were rewritten the samples leave untried; None where no
    pipeline was verified that changes the model, or its result hides its graph.
    ``timing`` tells how fast the safe pipeline is, as it was before culprits of a slowdown left it;
    None unless it was asked for and could be timed.
    """

    schema_: Literal["optvet.vet/3"] = Field("optvet.vet/3", alias="schema")
    model: ModelRecord
    optimizer: OptimizerRecord
    runtime: RuntimeRecord
    judge: RuntimeRecord | None = None
    verdict: Verdict
    reason: str = ""
    findings: list[Finding]
    outputs: list[OutputRecord] = Field(default_factory=list)
    passes: Annotated[list[PassRecord], BeforeValidator(_list_of)] = Field(default_factory=list)
    round_trip: PassNumbers | None = None
    orders: OrdersRecord | None = None
    changing_passes: list[str] | None = None
    impact: Impact | None = None
    requirements: list[RequirementRecord] = Field(default_factory=list)
    quantized: Quantized | None = None
    structures: Structures | None = None
    placements: Placements | None = None
    timing: Timing | None = None
    fixed_tolerances: list[FixedTolerance] = Field(default_factory=list)
    warnings: list[WarningRecord] = Field(default_factory=list)
    safe_pipeline: list[str]
    safe_option: str = ""
    safe_code: str = ""
    saved: Saved | None = None
    exercise: Exercise | None = None
    controls: list[Control]
    samples: int = 0
    complete: bool = True
    skipped: list[Skipped] = Field(default_factory=list)
    datasets: list[DatasetRecord] = Field(default_factory=list)
    seed: int = 0
    strategy: str = "auto"
    cost: Cost

    @property
    def runtime_is_wrong(self) -> bool:
        """Whether the runtime's own defaults are wrong, whatever passes are applied."""
        faults = (f for f in self.findings if f.severity == "fault")
        return any(f.as_deployed and not f.culprit for f in faults)

    @property
    def passes_alone(self) -> list[PassRecord]:
        """The records of passes that were applied alone: none unless the strategy was ``each``."""
        return [p for p in self.passes if p.evidence == "alone"]

    def control(self, name: str) -> Control | None:
        """The control named ``name``; None if there is none."""
        return next((c for c in self.controls if c.name == name), None)

    def headline(self) -> str:
        """The verdict, the model, the optimizer, and how much was found."""
        about = f"{self.verdict}: {self.model.source}, {self.optimizer.name}"
        many = "s" if len(self.findings) > 1 else ""
        found = f", {len(self.findings)} finding{many}" if self.findings else ""
        return f"{about}{found}{f' ({self.reason})' if self.reason else ''}"

    def rows(self) -> list[dict[str, Any]]:
        """One row per finding."""
        return [
            {
                "symptom": str(f.symptom),
                "severity": f.severity,
                "culprit": f.blamed(),
                "outputs": ", ".join(f.outputs),
                "error": f.error,
                "noise_floor": f.noise_floor,
                "message": f.message,
                "bundle": f.bundle,
            }
            for f in self.findings
        ]
