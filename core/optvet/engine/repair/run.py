"""From a request to a repaired model, its patch and the numbers."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optvet.engine.convert.answer import result_of
from optvet.engine.convert.chain import Link
from optvet.engine.convert.compare_outputs import Judge
from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.inside import shows_inside
from optvet.engine.convert.opening_conversion import open_conversion
from optvet.engine.convert.optimized import OptimizerAsConverter
from optvet.engine.convert.places import recorded_inside
from optvet.engine.convert.run import StageArtifact, converted_by, judge_stages, prepare_inputs
from optvet.engine.convert.session import Conversion
from optvet.engine.discovery import Plugins
from optvet.engine.repair.acceptance import AcceptanceCheck, MeasuredModel, numbers_of, parts
from optvet.engine.repair.candidates import RepairCandidate
from optvet.engine.repair.edits import apply_edits
from optvet.engine.repair.propose.rank import (
    FailingModel,
    RankedCandidates,
    proposals,
    proposals_beside,
)
from optvet.engine.repair.propose.tried_candidates import count_worker_deaths
from optvet.engine.repair.reference_models import other_chains, references_of
from optvet.engine.repair.repair_search import Propose, RepairSearch, load_model
from optvet.engine.work.sandbox.outcome import Outcome, describe
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import SourceInside
from optvet.spec.errors import OptvetError, UsageError
from optvet.spec.files import write_file
from optvet.spec.records.convert import ConversionPlace, ConversionResult
from optvet.spec.records.repair import Patch, RepairNumbers, RepairResult
from optvet.spec.repair import RepairRequest
from optvet.spec.types import Artifact, Failure

_WITNESSES = 3
_SHOWN = 2
"""Witnesses on which the insides of both sides are compared."""
_ENDED = 3
"""Candidates that may end a worker before no further ones are proposed."""
_FRESH = 6
"""Random inputs that are drawn after the last edit."""


def _quiet(text: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def repair_model(
    request: RepairRequest, plugins: Plugins, *, progress: Progress = _quiet
) -> RepairResult:
    """Convert the source of ``request``, or take what was made of it, and repair that.

    Raises:
        UsageError: The source, the chain or an option cannot be used, or the chain makes no ONNX.
        NothingTested: No output of the source can be compared.
        PluginError: A plugin is missing or broken.
    """
    started = time.perf_counter()
    more = (proposals.__module__,)
    conversion_request, plugins = _conversion_request(request, plugins)
    with open_conversion(conversion_request, plugins, more=more) as conversion:
        _refuse_other_formats(conversion)
        progress("running the source", 0, None)
        inputs, judge, skipped = prepare_inputs(conversion)
        artifact = converted_by(conversion, inputs, progress)
        progress("comparing", 0, None)
        answer = judge_stages(conversion, artifact, inputs, judge)
        before = result_of(conversion, replace(answer, skipped=skipped), 0.0)
        seen = answer.stage_results[-1].seen
        wrong = [d for d in inputs if d.sample.id in seen and not seen[d.sample.id].right]
        repair = _Repair(request, conversion, judge, artifact[-1], before, progress)
        if before.verdict != "faulty" or not any(not d.outside_domain for d in wrong):
            result = repair.nothing()
        elif all(f.kind == "lossy" for f in before.findings if f.severity == "fault"):
            result = repair.lossy()
        else:
            result = repair.result([d for d in inputs if d.sample.id in seen], wrong)
        result = repair.or_another_converter(result)
        return result.model_copy(update={"wall_s": time.perf_counter() - started})


def _conversion_request(request: RepairRequest, plugins: Plugins) -> tuple[ConvertRequest, Plugins]:
    """The conversion to repair; that of an optimizer is a converter made of it."""
    converted = request.conversion()
    if request.optimizer is None:
        return converted, plugins
    if request.via or request.converted is not None:
        raise UsageError(
            "--optimizer repairs an optimizer's result; leave out --via and --converted"
        )
    optimizer = plugins.optimizer(request.optimizer)
    converter = OptimizerAsConverter(optimizer, request.pipeline, request.optimizer_options)
    return (
        converted.model_copy(update={"via": (converter.name,)}),
        plugins.extend("converter", converter),
    )


def _refuse_other_formats(conversion: Conversion) -> None:
    last = conversion.links[-1].stages[-1]
    if last.format != "onnx":
        chain = ",".join(link.converter.name for link in conversion.links)
        raise UsageError(
            f"--via {chain} makes {last.format}; models are repaired in ONNX: end the chain at it, "
            "and convert what was repaired"
        )


@dataclass(frozen=True)
class _Repair:
    """One repair, after the conversion was judged.

    ``recorded`` is what a source in another environment computes inside, by sample; ``references``
    are other converters' models of the source.
    """

    request: RepairRequest
    conversion: Conversion
    judge: Judge
    converted: StageArtifact
    before: ConversionResult
    progress: Progress
    recorded: dict[str, tuple[SourceInside, ...]] = field(default_factory=dict)
    references: dict[str, bytes] = field(default_factory=dict)

    def or_another_converter(self, result: RepairResult) -> RepairResult:
        """The answer; where the model is not repaired, with the converter whose model is right."""
        mended = result.verdict not in ("not-repaired", "improved", "refused")
        if mended or self.request.optimizer:
            return result
        if self.conversion.source.artifact.format == "onnx":
            return result
        for number, chain in enumerate(other_chains(self.conversion), 1):
            names = [link.converter.name for link in chain]
            self.progress(f"judging what {','.join(names)} makes", 0, None)
            data = self._made_right(chain, number)
            if data is None:
                continue
            file = f"{'-'.join(names)}.onnx"
            os.makedirs(self.request.out, exist_ok=True)
            advice = "make room, or choose another folder with --out"
            write_file(self.request.out / file, data, advice=advice)
            return result.model_copy(update={"right_via": names, "files": [*result.files, file]})
        return result

    def _made_right(self, chain: tuple[Link, ...], number: int) -> bytes | None:
        """What another chain makes of the source, if that is right as a whole."""
        folder = self.conversion.folder / f"other-{number}"
        folder.mkdir()
        asked = self.conversion.request.model_copy(
            update={"via": tuple(link.converter.name for link in chain), "converter_options": {}}
        )
        other = replace(
            self.conversion, request=asked, links=chain, folder=folder, output_names=[], warnings=[]
        )
        try:
            inputs, judge, _ = prepare_inputs(other)
            made = converted_by(other, inputs, self.progress)
            artifact = made[-1].artifact
            if artifact is None or not artifact.data:
                return None
            judged = result_of(other, judge_stages(other, made, inputs, judge), 0.0)
        except OptvetError:
            return None
        return artifact.data if judged.verdict == "right" else None

    def nothing(self) -> RepairResult:
        """The answer where there is no fault to repair."""
        verdict = self.before.verdict
        reason = self.before.reason
        if verdict == "faulty":
            return self._answer(
                verdict="not-repaired",
                reason="the fault shows on no input that repair can use: see optvet convert",
            )
        return self._answer(verdict=verdict, reason=reason)

    def lossy(self) -> RepairResult:
        """The answer where a stage loses more than it declares: to mend that is to undo it."""
        reason = (
            "a stage that loses precision is to blame: quantize less, or declare a larger tolerance"
        )
        return self._answer(verdict="not-repaired", reason=reason)

    def result(
        self, inputs: Sequence[ConversionInput], wrong: Sequence[ConversionInput]
    ) -> RepairResult:
        """The answer of a search."""
        artifact, config = self.converted.artifact, self.conversion.runtime_for("onnx", last=True)
        if artifact is None or config is None:
            return self._answer(verdict="not-repaired", reason="there is no converted model")
        reference, source = self.conversion.reference, self.conversion.source.artifact
        if not shows_inside(reference, source):
            reason = f"{reference.runtime.name} does not show what it computes inside"
            return self._answer(verdict="not-repaired", reason=f"{reason}: no edit is proposed")
        number = max(1, min(_WITNESSES, len(wrong) // 2))
        acceptance = AcceptanceCheck(
            self.conversion, self.judge, config, *parts(inputs, wrong, number)
        )
        self.judge.meter.of([d.sample for d in inputs])
        self.references.update(references_of(self.conversion, artifact.data, inputs))
        start = acceptance.measure(artifact.data)
        search = RepairSearch(
            acceptance,
            load_model(artifact.data),
            self._proposer(config, self.references),
            self.request.tries,
            self.request.jobs or min(8, os.cpu_count() or 1),
            lambda n: self.progress("repairing: models tried", n, self.request.tries),
        )
        end = search.run()
        before, after = search.acceptance.numbers(start), search.acceptance.numbers(end)
        if not search.edits:
            reason = self._why_none(search.tried)
            return self._answer(
                verdict="not-repaired", reason=reason, before=before, tried=search.tried
            )
        self.progress("vetting the repaired model", 0, None)
        data = apply_edits(search.model, search.edits).SerializeToString()
        final, *fresh = self._verify(artifact.data, data, config)
        answer = self._answer(
            verdict="repaired" if final.verdict == "right" else "improved",
            edits=search.edits,
            needless=search.needless,
            steps=search.steps,
            before={**before, "fresh": fresh[0]},
            after={**after, "fresh": fresh[1]},
            verdict_after=final.verdict,
            tried=search.tried,
        )
        if _is_overfitted(*fresh):
            reason = "the edits that fix the known inputs make others worse; nothing was written"
            return answer.model_copy(update={"verdict": "not-repaired", "reason": reason})
        return answer.model_copy(update={"files": self._write(artifact.data, data, answer)})

    def _why_none(self, tried: int) -> str:
        """Why nothing was edited: no edit is known for the place, or none of those tried holds."""
        if tried:
            return "no tried edit makes the model better without making an input worse"
        places = [words for place in self._places() if (words := place.words())]
        where = f" at {places[0]}" if places else ""
        others = " and no other converter's result has this part" if self.references else ""
        return f"no known edit fits{where}{others}"

    def _places(self) -> list[ConversionPlace]:
        """Where the model breaks, in order, each place once."""
        faults = [f for f in self.before.findings if f.severity == "fault"]
        return [f.place for f in faults if f.place is not None]

    def _proposer(self, config: RuntimeConfig, references: Mapping[str, bytes]) -> Propose:
        numbers = itertools.count(1)

        def propose(
            data: bytes, failing: Sequence[ConversionInput]
        ) -> Iterator[Sequence[RepairCandidate]]:
            samples = [d.sample for d in failing[:_SHOWN]]
            tried = self.conversion.folder / f"tried-{next(numbers)}"
            model = FailingModel(config, data, samples, tried, references)
            first = self._proposals(model, others=False)
            yield first.candidates
            if not first.is_all:
                every = self._proposals(model, others=True).candidates
                yield [each for each in every if each not in first.candidates]

        return propose

    def _proposals(self, failing: FailingModel, *, others: bool) -> RankedCandidates:
        """What is proposed, also if candidates end the worker that tries them."""
        deaths = count_worker_deaths(failing.tried)
        for before in range(deaths, deaths + 1 + _ENDED):
            outcome = self._ask(failing, others)
            if outcome.value is not None or count_worker_deaths(failing.tried) == before:
                break
        self._complain(outcome.failure)
        return outcome.value or RankedCandidates([], is_all=True)

    def _ask(self, failing: FailingModel, others: bool) -> Outcome[RankedCandidates]:
        conversion, about = self.conversion, (failing, others)
        if conversion.source_is_here:
            source = (conversion.reference, conversion.source.artifact)
            return conversion.sandbox.call(proposals_beside, *source, *about, role="judging")
        recorded = []
        for sample in failing.samples:
            if sample.id not in self.recorded:
                self.recorded[sample.id], failure = recorded_inside(conversion, sample)
                self._complain(failure)
            recorded.append(self.recorded[sample.id])
        return conversion.sandbox.call(proposals, recorded, *about, role="judging")

    def _complain(self, failure: Failure | None) -> None:
        if failure is not None:
            self.conversion.warnings.append(f"no edits: {describe(failure)}")

    def _verify(
        self, old: bytes, new: bytes, config: RuntimeConfig
    ) -> tuple[ConversionResult, RepairNumbers, RepairNumbers]:
        """The repaired model judged as a new one, and both models on inputs nobody saw."""
        request = self.conversion.request
        more = request.model_copy(update={"random": request.random + _FRESH})
        fresh = replace(self.conversion, request=more, output_names=[])
        inputs, judge, skipped = prepare_inputs(fresh)
        known = {d.sample.id for d in inputs if _is_known(d, request.random)}
        unknown = [d for d in inputs if d.sample.id not in known and not d.outside_domain]
        candidate = replace(self.converted, artifact=Artifact("onnx", new))
        answer = judge_stages(fresh, [candidate], inputs, judge)
        one = replace(fresh, links=(replace(candidate.link, stages=(candidate.stage,)),))
        result = result_of(one, replace(answer, skipped=skipped), 0.0)
        samples = [d.sample for d in unknown]
        observed = fresh.observe(config, Artifact("onnx", old), samples)
        before = MeasuredModel(judge.see(observed, samples), observed.complaint)
        after = MeasuredModel(answer.stage_results[-1].seen)
        return result, numbers_of(before, unknown), numbers_of(after, unknown)

    def _write(self, old: bytes, new: bytes, answer: RepairResult) -> list[str]:
        folder = self.request.out
        os.makedirs(folder, exist_ok=True)
        patch = Patch(
            schema="optvet.patch/1", digest=hashlib.sha256(old).hexdigest(), edits=answer.edits
        )
        advice = "make room, or choose another folder with --out"
        write_file(folder / "repaired.onnx", new, advice=advice)
        write_file(folder / "patch.json", patch.to_json().encode() + b"\n", advice=advice)
        return ["repaired.onnx", "patch.json"]

    def _answer(self, **about: object) -> RepairResult:
        artifact = self.converted.artifact
        places = self._places()
        data = b"" if artifact is None else artifact.data
        shared: Mapping[str, object] = {
            "schema": "optvet.repair/1",
            "source": self.conversion.request.model,
            "digest": hashlib.sha256(data).hexdigest() if data else "",
            "converters": self.before.converters,
            "place": places[0] if places else None,
            "places": places,
            "verdict_before": self.before.verdict,
            "seed": self.request.seed,
        }
        return RepairResult.model_validate({**shared, **about})


def _is_known(each: ConversionInput, random: int) -> bool:
    """Whether a search for edits saw this input, when there were ``random`` random ones."""
    return each.origin != "size" and (each.origin != "random" or each.number <= random)


def _is_overfitted(before: RepairNumbers, after: RepairNumbers) -> bool:
    """Whether more inputs are wrong than before, or one that did run no longer does."""
    lost = after.error is None and before.error is not None and after.wrong > 0
    return after.wrong > before.wrong or lost
