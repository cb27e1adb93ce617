"""From a request to the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from optvet.engine.convert.answer import ConversionEvidence, FoundFault, result_of
from optvet.engine.convert.as_shipped import see_as_shipped
from optvet.engine.convert.chain import Link
from optvet.engine.convert.compare_outputs import Judge
from optvet.engine.convert.conversion_inputs import ConversionInput, inputs_of
from optvet.engine.convert.default_chain import explain_choice
from optvet.engine.convert.guilty_stage import Blame, StageResult, blame_stages
from optvet.engine.convert.kept_answer import keep_conversion, recall_conversion
from optvet.engine.convert.match_interface import match_outputs
from optvet.engine.convert.on_task import TaskMeter
from optvet.engine.convert.opening_conversion import open_conversion
from optvet.engine.convert.other_runtimes import cross_check, find_exact, find_unanswered
from optvet.engine.convert.places import locate_fault, locate_further, refused_place
from optvet.engine.convert.session import Conversion, judge_for, random_outputs, reference_of
from optvet.engine.convert.source_noise import draws
from optvet.engine.convert.timed import with_timing
from optvet.engine.convert.undefined_inputs import undefined_inside
from optvet.engine.convert.undefined_places import find_undefined_samples
from optvet.engine.convert.worker_steps import Observed, quantized_nodes
from optvet.engine.discovery import Plugins
from optvet.engine.judge.sample import SampleVerdict
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig
from optvet.engine.work.trials.trial_runner import Progress
from optvet.spec.convert import ConvertRequest
from optvet.spec.converters import ConversionStage
from optvet.spec.errors import NothingTested
from optvet.spec.records.convert import ConversionPlace, ConversionResult
from optvet.spec.records.vet import Control, CrossCheck
from optvet.spec.symptoms import Symptom
from optvet.spec.types import Artifact, Failure, Sample


def _quiet(text: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def convert_model(
    request: ConvertRequest,
    plugins: Plugins,
    *,
    progress: Progress = _quiet,
    within: Conversion | None = None,
) -> ConversionResult:
    """Convert the source of ``request`` and tell whether the result is right.

    Args:
        request: The source and the chain.
        plugins: What is installed.
        progress: Called with a text about the progress.
        within: The conversion of the whole, if the source is a part of one.

    Raises:
        UsageError: The source, the chain or an option cannot be used.
        NothingTested: No output of the source can be compared.
        PluginError: A plugin is missing or broken.
    """
    started = time.perf_counter()
    if within is None and plugins.installed and (known := recall_conversion(request)) is not None:
        return known
    with open_conversion(request, plugins, within=within) as conversion:
        progress("running the source", 0, None)
        inputs, judge, skipped = prepare_inputs(conversion)
        # A part of a source has no task.
        task = TaskMeter(conversion, inputs, judge, progress) if within is None else None
        links = converted_by(conversion, inputs, progress)
        progress("comparing", 0, None)
        answer = judge_stages(conversion, links, inputs, judge)
        if task is not None and (wrong := task.compare(answer)):
            # They are judged like all others, so that a stage is blamed for them too.
            inputs, judge = [*inputs, *wrong.inputs], wrong.judge
            answer = judge_stages(conversion, links, inputs, judge)
        whole = replace(answer, skipped=skipped)
        result = result_of(conversion, whole, 0.0)
        if task is not None:
            result = task.weigh(result, whole, judge)
        if request.measure:
            result = with_timing(result, whole, conversion, progress)
        result = result.model_copy(update={"wall_s": time.perf_counter() - started})
    if not request.via and request.converted is None:
        chosen = explain_choice(request.model, plugins, result.converters[0].name)
        result = result.model_copy(update={"notes": [chosen, *result.notes]})
    if within is None and (why := keep_conversion(request, result, conversion)):
        control = Control(name="cache", state="limited", detail=why)
        result = result.model_copy(update={"controls": [*result.controls, control]})
    return result


def prepare_inputs(
    conversion: Conversion,
) -> tuple[list[ConversionInput], Judge, dict[str, Failure]]:
    """Inputs on which the source runs, what compares with it, and the other inputs."""
    request = conversion.request
    facts = conversion.facts()
    if request.dataset and conversion.source.artifact.format != "onnx":
        more = conversion.first_samples(conversion.model(facts, {}))
        facts = replace(facts, others=(*facts.others, *more))
    inputs = inputs_of(
        facts,
        seed=request.seed,
        random=request.random,
        edges=request.edges,
        sizes=request.sizes,
    )
    samples = [d.sample for d in inputs]
    outputs, failed, random = reference_of(conversion, samples)
    _refuse_random_source(request, outputs, random)
    kept = [d for d in inputs if d.sample.id in outputs]
    conversion.output_names.extend(outputs[samples[0].id])
    return kept, judge_for(conversion, kept, outputs, random, facts), failed


def _refuse_random_source(
    request: ConvertRequest, outputs: Mapping[str, Outputs], random: frozenset[str]
) -> None:
    if outputs and all(set(o) <= random for o in outputs.values()):
        raise NothingTested(
            f"{request.model}: every output differs between two runs of the source, so nothing can "
            "be compared; make it repeatable, by eval() or by a seed"
        )


@dataclass(frozen=True)
class StageArtifact:
    """A stage of the chain with its artifact; None behind a stage that refused."""

    link: Link
    stage: ConversionStage
    artifact: Artifact | None
    refused: Failure | None = None


def converted_by(
    conversion: Conversion,
    inputs: Sequence[ConversionInput],
    progress: Progress,
    *,
    fresh: bool = True,
) -> list[StageArtifact]:
    """All stages of the chain, with the artifacts that there are."""
    usual = [d.sample.feeds for d in inputs if d.origin not in ("edge", "size")]
    stage_artifacts: list[StageArtifact] = []
    source: Artifact | None = conversion.source.artifact
    for number, link in enumerate(conversion.links, 1):
        if source is None:
            stage_artifacts += [StageArtifact(link, stage, None) for stage in link.stages]
            continue
        progress(f"converting: {link.converter.name}", number, len(conversion.links))
        done = conversion.convert(link, source, number, usual, fresh=fresh)
        for i, stage in enumerate(link.stages):
            artifact = done.artifacts[i] if i < len(done.artifacts) else None
            at_fault = i == len(done.artifacts)
            stage_artifacts.append(
                StageArtifact(link, stage, artifact, done.failure if at_fault else None)
            )
        source = stage_artifacts[-1].artifact
    return stage_artifacts


def judge_stages(
    conversion: Conversion,
    stage_artifacts: Sequence[StageArtifact],
    inputs: Sequence[ConversionInput],
    judge: Judge,
) -> ConversionEvidence:
    """What every stage does on ``inputs``, and which is to blame."""
    example = inputs[0].sample
    samples = [d.sample for d in inputs]
    stages = observe_stages(conversion, stage_artifacts, samples, judge)
    if _may_be_random(stage_artifacts, stages):
        random = judge.random | random_outputs(conversion, example, judge.reference[example.id])
        if random != judge.random:
            _refuse_random_source(conversion.request, judge.reference, random)
            judge = replace(judge, random=random)
            stages = observe_stages(conversion, stage_artifacts, samples, judge)
    configs, last = stages.configs, stages.last
    stage_results = stages.stage_results
    undefined, inputs = _drop_undefined_edge_values(
        conversion, judge, inputs, stage_results[last].seen
    )
    refused = next(((i, m.refused) for i, m in enumerate(stage_artifacts) if m.refused), None)
    named = None
    if refused is not None and refused[1] is not None:
        named = refused_place(conversion, refused[1].message, example)
    found = _find_faults(conversion, stage_artifacts, stages, inputs, undefined, judge)
    faults = found.faults
    if not faults:
        faults = _wrong_as_shipped(conversion, stage_artifacts, stages, found.inputs, judge)
    elif any(not fault.blame.outside_domain for fault in faults):
        faults = [*faults, *_further(conversion, stage_artifacts, configs, faults)]
    return ConversionEvidence(
        example=example.feeds,
        inputs=found.inputs,
        random=judge.random,
        stage_results=found.stage_results,
        last=last,
        artifacts=[m.artifact for m in stage_artifacts],
        configs=configs,
        observed=stages.observed,
        tolerance=stages.tolerance,
        refused=refused,
        refused_place=named,
        blames=faults,
        undefined=found.undefined,
        quantized=_count_quantized_operators(conversion, stage_artifacts),
    )


def _wrong_as_shipped(
    conversion: Conversion,
    stage_artifacts: Sequence[StageArtifact],
    stages: ObservedStages,
    inputs: Sequence[ConversionInput],
    judge: Judge,
) -> list[FoundFault]:
    """The fault that a right model has in a default session of its runtime, if it has one."""
    last = stages.last
    config, artifact = stages.configs[last], stage_artifacts[last].artifact
    if last < 0 or config is None or artifact is None:
        return []
    wrong = see_as_shipped(
        conversion, judge, config, artifact, inputs, stages.stage_results[last].seen
    )
    shown = tuple(each for each in inputs if each.sample.id in wrong)
    if not shown:
        return []
    verdict = wrong[shown[0].sample.id]
    assert verdict.symptom is not None
    blame = Blame(last, last, verdict.symptom, shown)
    if verdict.symptom.info.of_values:
        if stages.tolerance is not None:
            return []  # Kernels of quantized operators round on their own.
        if find_unanswered(conversion, artifact, blame, config):
            return []
    name = config.runtime.name
    check = CrossCheck(runtime=name, outcome="no-fault", detail="without its own optimizations")
    return [FoundFault(blame, True, [check], None, as_shipped=verdict)]


def _may_be_random(stage_artifacts: Sequence[StageArtifact], stages: ObservedStages) -> bool:
    """Whether values are wrong in a converted model that draws random numbers."""
    wrong = any(
        v.state == "fault" and v.symptom is not None and v.symptom.info.of_values
        for r in stages.stage_results
        for v in r.seen.values()
    )
    artifacts = [m.artifact for m in stage_artifacts if m.artifact is not None]
    return wrong and any(map(draws, artifacts))


@dataclass(frozen=True)
class _FoundFaults:
    """Faults, and the samples that are left, on which answers are defined."""

    faults: list[FoundFault]
    inputs: Sequence[ConversionInput]
    stage_results: list[StageResult]
    undefined: Mapping[str, str]


def _find_faults(
    conversion: Conversion,
    stage_artifacts: Sequence[StageArtifact],
    stages: ObservedStages,
    inputs: Sequence[ConversionInput],
    undefined: Mapping[str, str],
    judge: Judge,
) -> _FoundFaults:
    """Who is blamed, and where.

    Samples whose answer is undefined there are left out, until each blame stands on others. Rows
    of a table whose answer is open are not compared in the first place.
    """
    results = [s.without(undefined) for s in stages.stage_results]
    while True:
        places: list[tuple[Blame, ConversionPlace | None]] = []
        open_samples: dict[str, str] = {}
        for blame in blame_stages(results[: stages.last + 1], inputs) if stages.last >= 0 else []:
            place = locate_fault(conversion, stage_artifacts, stages.configs, results, blame)
            at = (stages.configs[blame.last], stage_artifacts[blame.last].artifact)
            if not judge.facts.tables:
                open_samples |= find_undefined_samples(conversion, blame, place, *at)
            places.append((blame, place))
        faults: list[FoundFault] = []
        for blame, place in places if not open_samples else ():
            config, artifact = stages.configs[blame.last], stage_artifacts[blame.last].artifact
            fault = _check_elsewhere(conversion, stages, judge, blame, place, artifact)
            if fault.blames_runtime and blame.symptom.info.of_values:
                assert config is not None
                assert artifact is not None
                open_samples |= find_unanswered(conversion, artifact, blame, config)
                open_samples |= find_exact(conversion, artifact, blame, config)
            faults.append(fault)
        if not open_samples:
            return _FoundFaults(faults, inputs, results, undefined)
        undefined = {**undefined, **open_samples}
        inputs = [each for each in inputs if each.sample.id not in open_samples]
        results = [s.without(open_samples) for s in results]


def _check_elsewhere(
    conversion: Conversion,
    stages: ObservedStages,
    judge: Judge,
    blame: Blame,
    place: ConversionPlace | None,
    artifact: Artifact | None,
) -> FoundFault:
    """The fault of a blame, with what other runtimes say of it."""
    config, checks = stages.configs[blame.last], list[CrossCheck]()
    if config is not None and artifact is not None and "runtime" in blame.symptom.info.blames:
        about = (conversion, artifact, blame, judge, stages.tolerance)
        checks = list(cross_check(*about, config, place))
    return FoundFault(blame, _is_confirmed(judge, stages.observed, blame), checks, place)


@dataclass(frozen=True)
class ObservedStages:
    """What every stage did on some samples.

    Attributes:
        last: Index of the last whole stage; -1 for none.
        tolerance: What the stages together declare to lose.
    """

    configs: list[RuntimeConfig | None]
    observed: list[Observed | None]
    stage_results: list[StageResult]
    last: int
    tolerance: float | None


def observe_stages(
    conversion: Conversion,
    stage_artifacts: Sequence[StageArtifact],
    samples: Sequence[Sample],
    judge: Judge,
    *,
    repeat: bool = True,
) -> ObservedStages:
    """Run the artifact of every stage on ``samples``, the last one twice if ``repeat``."""
    last = _last_whole(stage_artifacts)
    configs = [_config(conversion, m, i == last) for i, m in enumerate(stage_artifacts)]
    futures = [
        None if c is None or m.artifact is None else conversion.start(c, m.artifact, samples)
        for c, m in zip(configs, stage_artifacts, strict=True)
    ]
    observed: list[Observed | None] = []
    for config, m, future in zip(configs, stage_artifacts, futures, strict=True):
        if future is None or config is None or m.artifact is None:
            observed.append(None)
        else:
            observed.append(conversion.finish(future, config, m.artifact, samples))
    judge.meter.borrow(configs, [m.artifact for m in stage_artifacts], observed)
    stage_results: list[StageResult] = []
    tolerance = None
    for i, (config, m, o) in enumerate(zip(configs, stage_artifacts, observed, strict=True)):
        tolerance = _larger(tolerance, m.stage.tolerance)
        seen = {} if o is None else judge.see(o, samples, tolerance)
        stage_result = StageResult(m.link.converter.name, m.stage, seen)
        if repeat and i == last and config is not None and m.artifact is not None:
            again = conversion.observe(config, m.artifact, samples, again=True)
            stage_result = _worse(stage_result, judge.see(again, samples, tolerance))
        stage_results.append(stage_result)
    return ObservedStages(configs, observed, stage_results, last, tolerance)


def _further(
    conversion: Conversion,
    stage_artifacts: Sequence[StageArtifact],
    configs: Sequence[RuntimeConfig | None],
    found: Sequence[FoundFault],
) -> list[FoundFault]:
    """Faults of the first guilty artifact that the one blamed hides."""
    first = next(each for each in found if not each.blame.outside_domain)
    known = {each.place.words() for each in found if each.place is not None}
    further = []
    at = (configs[first.blame.last], stage_artifacts[first.blame.last].artifact)
    witness = first.blame.inputs[0].sample.id
    for fault in locate_further(conversion, stage_artifacts, configs, first.blame):
        if fault.place.words() not in known:
            symptom = first.blame.symptom if fault.message else Symptom.WRONG_OUTPUT
            blame = replace(first.blame, symptom=symptom)
            if witness in find_undefined_samples(conversion, blame, fault.place, *at):
                continue
            further.append(FoundFault(blame, first.confirmed, [], fault.place, True, fault.message))
    return further


def _count_quantized_operators(
    conversion: Conversion, stage_artifacts: Sequence[StageArtifact]
) -> list[int | None]:
    """How many operators each stage quantized that makes ONNX and says by its name that it does."""
    before = conversion.source.artifact
    found: list[int | None] = []
    for m in stage_artifacts:
        says = m.stage.kind == "lossy" and "quantize" in m.stage.name
        if not says or m.artifact is None or m.artifact.format != "onnx":
            found.append(None)
        else:
            pair = before if before.format == "onnx" else None, m.artifact
            found.append(conversion.sandbox.call(quantized_nodes, *pair, role="judging").value)
        before = m.artifact or before
    return found


def _drop_undefined_edge_values(
    conversion: Conversion,
    judge: Judge,
    inputs: Sequence[ConversionInput],
    seen: Mapping[str, SampleVerdict],
) -> tuple[Mapping[str, str], list[ConversionInput]]:
    """Edge values without a defined answer, and the other inputs.

    Edge values that show less than what usual outputs are rounded by count as unasked for.
    """
    undefined = _find_undefined_edge_values(conversion, inputs, seen)
    kept = []
    for each in inputs:
        found = seen.get(each.sample.id)
        wrong = each.origin == "edge" and found is not None and not found.right
        if found is not None and wrong and judge.is_lost_in_usual(each.sample.id, found):
            each = replace(each, outside_domain=True)
        if each.sample.id not in undefined:
            kept.append(each)
    return undefined, kept


def _find_undefined_edge_values(
    conversion: Conversion, inputs: Sequence[ConversionInput], seen: Mapping[str, SampleVerdict]
) -> Mapping[str, str]:
    """Edge values that go wrong on which the source itself has no defined answer, and why not."""
    edges = [d.sample for d in inputs if d.origin == "edge"]
    wrong = [s for s in edges if s.id in seen and not seen[s.id].right]
    if not wrong:
        return {}
    about = (conversion.reference, conversion.source.artifact, wrong)
    sandbox = conversion.sandbox_of(conversion.source.runtime)
    return sandbox.call(undefined_inside, *about, role="judging").value or {}


def _last_whole(stage_artifacts: Sequence[StageArtifact]) -> int:
    """Index of the last stage of the last converter that took what it was given; -1 for none.

    Where a converter refuses, what others made before it is judged nevertheless.
    """
    ends = (
        i
        for i, m in enumerate(stage_artifacts)
        if m.artifact is not None
        and (i + 1 == len(stage_artifacts) or stage_artifacts[i + 1].link is not m.link)
    )
    return max(ends, default=-1)


def _config(
    conversion: Conversion, stage_artifact: StageArtifact, last: bool
) -> RuntimeConfig | None:
    artifact = stage_artifact.artifact
    if artifact is None or not (artifact.data or artifact.path):
        return None
    return conversion.runtime_for(artifact.format, last=last)


def _larger(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def _worse(stage_result: StageResult, again: Mapping[str, SampleVerdict]) -> StageResult:
    """Merge two runs of a stage: a sample is wrong if one of them was."""
    seen = {
        name: replace(again[name], message=f"not on every run: {again[name].message}")
        if first.right and not again[name].right
        else first
        for name, first in stage_result.seen.items()
    }
    return replace(stage_result, seen=seen)


def _is_confirmed(judge: Judge, observed: Sequence[Observed | None], blame: Blame) -> bool:
    """Whether the guilty artifact differs from the last right one, not from the source alone."""
    guilty = observed[blame.last]
    if blame.first == 0 or guilty is None:
        return True
    before, sample = observed[blame.first - 1], blame.inputs[0].sample
    if guilty.load is not None or before is None:
        return True
    run, good = guilty.runs[sample.id], before.runs.get(sample.id)
    if isinstance(run, Failure) or good is None or isinstance(good, Failure):
        return True
    pair = match_outputs(good, run)
    if pair.problem:
        return True
    renamed = dict(zip(pair.reference, judge.reference[sample.id], strict=True))
    pair = replace(
        pair,
        reference={renamed[n]: v for n, v in pair.reference.items()},
        candidate={renamed[n]: v for n, v in pair.candidate.items()},
    )
    return not judge.judge_with(sample.id, pair, judge.meter.of([sample])[sample.id]).right
