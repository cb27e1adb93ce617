"""What a conversion means for the model's task: changed answers, and the user's requirements.

Comparators, gauges and records are those of ``vet``. Here are the samples, and the outputs of the
source and of an artifact on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optvet.engine.convert.answer import ConversionEvidence
from optvet.engine.convert.compare_outputs import Judge
from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.guilty_stage import first_without
from optvet.engine.convert.session import Conversion, judge_for
from optvet.engine.convert.source_model import FIRST_SAMPLES
from optvet.engine.convert.worker_steps import Observed
from optvet.engine.judge.judgement import Judgement
from optvet.engine.vet.impact.assess import add_by, begin
from optvet.engine.vet.impact.comparator_options import calibrate_options
from optvet.engine.vet.impact.fixed_tolerances import FixedTolerances
from optvet.engine.vet.impact.impact import Assessment, fallback
from optvet.engine.vet.impact.requirements import (
    Candidate,
    candidates,
    check_metrics,
    is_of_layers,
    required_of,
)
from optvet.engine.vet.observe.examine import output_record
from optvet.engine.vet.observe.observation import finite, keep_worst
from optvet.engine.vet.require.gauges import (
    Chunk,
    Gauge,
    RequirementReading,
    gauges_of,
    record_of,
)
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.inputs import Inputs
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.errors import ContractError, InputError, UsageError
from optvet.spec.protocols import Decodes
from optvet.spec.records import Impact
from optvet.spec.records.convert import ConversionFinding, ConversionResult, ConversionWitness
from optvet.spec.records.vet import NOT_ASKED, Control, OutputRecord
from optvet.spec.requirement import Required
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Failure, Sample

_WRONG = 5
"""Wrong samples of a dataset that are judged like the source's own inputs."""
Readings = Mapping[Required, RequirementReading]


@dataclass(frozen=True)
class WrongSamples:
    """Samples of a dataset on which the converted model is wrong, and what judges them too."""

    inputs: list[ConversionInput]
    judge: Judge


@dataclass(frozen=True)
class _Sides:
    """Outputs of the source and of an artifact by sample, under the source's names.

    ``levels`` is how far rounding may move them, ``open`` are the samples that are undecided,
    ``wrong`` those on which the artifact is wrong. ``missing`` says why outputs of the artifact are
    not there; empty if all are.
    """

    samples: Sequence[Sample]
    reference: Mapping[str, Outputs]
    candidate: Mapping[str, Outputs] = field(default_factory=dict)
    levels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    open: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    missing: str = ""


class TaskMeter:
    """Compares the converted model with its source by the model's task.

    Raises:
        UsageError: An option of the comparator, an output or a metric does not exist.
    """

    def __init__(
        self,
        conversion: Conversion,
        inputs: Sequence[ConversionInput],
        judge: Judge,
        progress: Progress,
    ) -> None:
        self._conversion, self._inputs, self._judge = conversion, inputs, judge
        self._plugins, self._progress = conversion.plugins, progress
        self._request = conversion.request.as_vet()
        self._outputs = next(iter(judge.reference.values()))
        self._model = conversion.model(judge.facts, self._outputs)
        self._required = required_of(self._request, self._model)
        _refuse_layers(self._required)
        check_metrics(self._required, self._model, self._request, self._plugins)
        self._assessment = self._begin()
        self._data = self._dataset()
        self._fixed = FixedTolerances()
        self._readings: Readings = {}
        self._reasons: list[str] = []
        self._controls: list[Control] = []

    def _begin(self) -> Assessment:
        about = (self._request, self._plugins, self._model)
        outputs = {n: v for n, v in self._outputs.items() if n not in self._judge.random}
        begun = begin(*about, outputs)
        if not isinstance(begun.choice.comparator, Decodes):
            return begun
        words = (
            f"{begun.choice.comparator.name} compares what models write, not what they compute at "
            "once"
        )
        plain = fallback(self._plugins)
        if self._request.comparator is not None or plain is None:
            raise UsageError(f"{words}; choose another --comparator")
        return Assessment(plain, plain.comparator.options, self._model)

    def _dataset(self) -> Inputs | None:
        """The samples of datasets that the user or the model's record names."""
        if not self._request.dataset and self._conversion.source.artifact.format != "onnx":
            return None
        data = self._conversion.samples(self._model)
        return None if [d.chosen_by for d in data.records()] == [NOT_ASKED] else data

    # --- the converted model -----------------------------------------------------------------

    def compare(self, answer: ConversionEvidence) -> WrongSamples | None:
        """Compare the judged artifact; the samples on which it is wrong beyond those of ``answer``.

        Only samples of datasets are told, since all other inputs are judged in ``answer``.
        """
        if answer.last < 0 or answer.configs[answer.last] is None:
            return None
        wrong: list[ConversionInput] = []
        known: dict[str, Outputs] = {}

        def take(sides: _Sides, start: int) -> None:
            self._assess(sides)
            if self._data is None:
                return
            number = sum(d.origin == "given" for d in self._inputs)
            for sample in sides.samples[max(0, FIRST_SAMPLES - start) :]:
                if sample.id in sides.wrong and len(wrong) < _WRONG:
                    number += 1
                    name = f"given {number + len(wrong)}"
                    known[name] = sides.reference[sample.id]
                    plain = Sample(name, sample.feeds, sample.label, origin="given")
                    wrong.append(ConversionInput(plain, "given", sample.id, number=number))

        self._readings = self._read(answer, answer.last, visit=take)
        if not wrong:
            return None
        judge, inputs = self._judge, [*self._inputs, *wrong]
        about = (self._conversion, inputs, {**judge.reference, **known}, judge.random, judge.facts)
        return WrongSamples(wrong, judge_for(*about))

    def _assess(self, sides: _Sides) -> None:
        """Take a chunk of samples into the impact and the fixed tolerances."""
        self._fixed.add(sides.reference, sides.candidate)
        if not any(sides.candidate.values()):
            return

        def add(to: Assessment) -> None:
            if not to.begun:
                to.options = self._calibrate((to.choice.comparator, to.options), None)[1]
            to.add(
                sides.samples, sides.reference, sides.candidate, sides.levels, unjudged=sides.open
            )

        asked = self._request.comparator is not None and not self._judge.random
        self._assessment, reason = add_by(self._assessment, self._plugins, add, asked=asked)
        if reason:
            self._control("comparator", reason)

    def _control(self, name: str, words: str) -> None:
        control = Control(name=name, state="limited", detail=words)
        if control not in self._controls:
            self._controls.append(control)

    # --- outputs of both sides ---------------------------------------------------------------

    def _read(
        self,
        answer: ConversionEvidence,
        index: int | None,
        *,
        fresh: bool = False,
        visit: Callable[[_Sides, int], None] = lambda sides, start: None,
    ) -> Readings:
        """All requirements of the artifact of a stage, None being the source itself.

        ``visit`` is given the outputs, and how many samples came before them.
        """
        gauges: list[Gauge] = []
        start = 0
        for samples in self._chunks(answer):
            sides = self._sides(answer, index, samples, fresh)
            visit(sides, start)
            start += len(samples)
            if not sides.samples:
                continue
            if sides.missing:
                words = f"the converted model cannot be measured: {sides.missing}"
                return dict.fromkeys(self._required, RequirementReading(None, words=words))
            about = (self._request, self._plugins, self._model)
            among = candidates(self._assessment, *about)
            gauges = gauges or gauges_of(self._required, among, self._calibrate)
            both = (self._model, sides.samples, sides.reference, sides.candidate)
            for gauge in gauges:
                gauge.add(Chunk(*both, self._judge.random, sides.levels))
        return {gauge.required: gauge.reading() for gauge in gauges}

    def _chunks(self, answer: ConversionEvidence) -> Iterator[list[Sample]]:
        if self._data is not None:
            yield from self._data.chunks()
            return
        wanted = (d for d in answer.inputs if d.origin != "edge" and not d.outside_domain)
        yield [d.sample for d in wanted]

    def _calibrate(self, by: Candidate, output: str | None) -> Candidate:
        """A comparator with the scale that all samples share."""
        outputs = self._reference_outputs()
        return by[0], calibrate_options(*by, self._model, outputs, output)

    def _reference_outputs(self) -> Iterator[Outputs]:
        if self._data is None:
            yield from (self._judge.reference[name] for name in sorted(self._judge.usual))
            return
        for samples in self._conversion.samples(self._model).chunks():
            yield from self._run_source(samples).values()

    def _run_source(self, samples: Sequence[Sample]) -> dict[str, Outputs]:
        """Outputs of the source by sample, of those on which it runs."""
        conversion = self._conversion
        about = (conversion.reference, conversion.source.artifact, samples)
        return {n: r for n, r in conversion.observe(*about).runs.items() if isinstance(r, dict)}

    def _sides(
        self, answer: ConversionEvidence, index: int | None, samples: Sequence[Sample], fresh: bool
    ) -> _Sides:
        conversion, judge = self._conversion, self._judge
        if self._data is not None:
            reference = self._run_source(samples)
            samples = [s for s in samples if s.id in reference]
            given = [ConversionInput(s, "given") for s in samples]
            judge = judge_for(conversion, given, reference, judge.random, judge.facts)
        config, artifact = conversion.reference, conversion.source.artifact
        if index is not None:
            made, ran = answer.artifacts[index], answer.configs[index]
            assert made is not None
            assert ran is not None
            config, artifact = ran, made
        known = answer.observed[index] if index is not None else None
        if known is None or fresh or self._data is not None:
            observed = conversion.observe(config, artifact, samples, again=fresh)
        else:
            observed = known
        if index is None:
            return self._compared_with_itself(judge, observed, samples)
        judge.meter.borrow([config], [artifact], [observed])
        return _sides_of(judge, observed, samples, answer.tolerance)

    def _compared_with_itself(
        self, judge: Judge, observed: Observed, samples: Sequence[Sample]
    ) -> _Sides:
        again = {s.id: r for s in samples if isinstance(r := observed.runs.get(s.id), dict)}
        missing = "" if len(again) == len(samples) else "the source does not run a second time"
        return _Sides(samples, judge.reference, again, missing=missing)

    # --- the answer --------------------------------------------------------------------------

    def weigh(
        self, result: ConversionResult, answer: ConversionEvidence, judge: Judge
    ) -> ConversionResult:
        """``result`` with requirements, the impact on the task, and a verdict by output."""
        findings = list(result.findings)
        records = []
        for required in self._required:
            reading = self._readings.get(required)
            if reading is None:
                reading = RequirementReading(None, words="there is no converted model that runs")
            if reading.met is False:
                self._progress(f"searching the stage that breaks {required}", 0, None)
                if self._read(answer, None, fresh=True)[required].met is not True:
                    words = f"the source itself does not meet it in a second run: {reading.words}"
                    reading = replace(reading, met=None, words=words)
                elif (found := self._unmet(answer, required)) is not None:
                    findings.append(found)
                else:
                    words = f"{required} was unmet once, not again in a fresh process"
                    self._reasons.append(words)
            if reading.met is None:
                self._reasons.append(f"requirement {required}: {reading.words}")
            records.append(record_of(required, reading))
        impact = self._impact()
        wrong = [i for i, f in enumerate(findings) if f.symptom.info.of_values]
        if impact is not None and impact.changed and len(wrong) == 1:
            about = {"consequence": impact.headline}
            findings[wrong[0]] = findings[wrong[0]].model_copy(update=about)
        more: dict[str, object] = {
            "findings": findings,
            "outputs": _outputs(answer, judge),
            "requirements": records,
            "impact": impact,
            "fixed_tolerances": self._fixed.records(),
            "datasets": [] if self._data is None else self._data.records(),
            "controls": [*result.controls, *self._controls],
        }
        if self._reasons and result.verdict == "right":
            more |= {"verdict": "undecided", "reason": "; ".join(self._reasons)}
        return result.model_copy(update=more)

    def _impact(self) -> Impact | None:
        if not self._assessment.begun:
            return None
        try:
            return self._assessment.impact()
        except (InputError, ContractError) as error:
            if self._request.comparator is not None:
                raise
            self._control("comparator", str(error))
            return None

    def _unmet(self, answer: ConversionEvidence, required: Required) -> ConversionFinding | None:
        """The first stage from which on it is not met; None if a fresh process does not repeat it.

        A stage whose artifact cannot be measured may have done it as well as the next one.
        """

        def is_met(index: int) -> bool | None:
            readings = self._readings if index == answer.last else self._read(answer, index)
            return readings[required].met

        first, last = first_without(answer.runnable, is_met)
        reading = self._read(answer, last, fresh=True)[required]
        if reading.met is not False:
            return None
        guilty = answer.stage_results[first : last + 1]
        names = [stage.name for stage in guilty]
        return ConversionFinding(
            symptom=Symptom.REQUIREMENT,
            severity="requirement",
            stages=names,
            kind=guilty[0].stage.kind,
            culprit=" or ".join(names),
            confirmed=True,
            outputs=[] if required.tensor is None else [required.tensor],
            message=f"{required} is required; {reading.words}",
            witness=self._witness(answer, reading),
            requirement=str(required),
            measured=finite(reading.value),
        )

    def _witness(
        self, answer: ConversionEvidence, reading: RequirementReading
    ) -> ConversionWitness | None:
        if reading.witness is None:
            return None
        name = reading.witness.id
        known = {} if self._data is not None else {d.sample.id: d for d in answer.inputs}
        found = known.get(name)
        if found is None:
            return ConversionWitness(sample=name, origin="given")
        return ConversionWitness(sample=name, origin=found.origin, about=found.about)


def _refuse_layers(required: Sequence[Required]) -> None:
    layers = [r for r in required if is_of_layers(r)]
    if layers:
        raise UsageError(
            f"--require {layers[0]}: a source and what is made of it have no names of values in "
            "common; optvet compare SOURCE FILE.onnx shows their inner values"
        )


def _sides_of(
    judge: Judge, observed: Observed, samples: Sequence[Sample], tolerance: float | None
) -> _Sides:
    """What an artifact made of ``samples``, beside what the source did."""
    if observed.load is not None:
        return _Sides(samples, judge.reference, missing=describe(observed.load))
    seen = judge.see(observed, samples, tolerance)
    reference: dict[str, Outputs] = {}
    candidate: dict[str, Outputs] = {}
    levels: dict[str, dict[str, float]] = {}
    missing = ""
    for sample in samples:
        run = observed.runs[sample.id]
        if isinstance(run, Failure):
            missing = missing or describe(run)
            continue
        pair = judge.match(sample.id, run)
        if pair.problem:
            missing = missing or pair.problem
            continue
        reference[sample.id], candidate[sample.id] = pair.reference, pair.candidate
        for judged in seen[sample.id].judgements if tolerance is None else ():
            name = judged.output
            level = judge.level_of(sample.id, name, pair.candidate[name], judged)
            if level is not None:
                levels.setdefault(sample.id, {})[name] = level
    undecided = frozenset(n for n, s in seen.items() if s.state == "undecided")
    wrong = frozenset(n for n, s in seen.items() if not s.right)
    return _Sides(samples, reference, candidate, levels, undecided, wrong, missing)


def _outputs(answer: ConversionEvidence, judge: Judge) -> list[OutputRecord]:
    """The worst verdict on each output over all inputs but edge values."""
    worst: dict[str, Judgement] = {}
    for each in answer.inputs:
        if each.origin != "edge" and each.sample.id in answer.seen:
            for judged in answer.seen[each.sample.id].judgements:
                keep_worst(worst, judged)
    names = next(iter(judge.reference.values()))
    return [
        OutputRecord(name=name, verdict="flaky")
        if name in judge.random
        else output_record(worst[name])
        if name in worst
        else OutputRecord(name=name, verdict="not-judged")
        for name in names
    ]
