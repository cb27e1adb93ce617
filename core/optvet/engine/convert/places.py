"""Asks worker processes where inside the guilty artifact a model breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from optvet.engine.convert.further_faults import (
    FurtherFault,
    further_faults,
    further_faults_beside,
)
from optvet.engine.convert.guilty_stage import Blame, StageResult
from optvet.engine.convert.locate import (
    locate,
    locate_beside,
    locate_in,
    source_inside,
    target_inside,
)
from optvet.engine.convert.place_by_message import (
    operator_before,
    place_among_operators,
    place_in_message,
    place_in_refusal,
    place_in_source,
    with_named_node,
)
from optvet.engine.convert.session import Conversion
from optvet.engine.work.sandbox.outcome import Outcome, describe
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.converters import SourceExtras, SourceInside
from optvet.spec.extras import given
from optvet.spec.records.convert import ConversionPlace
from optvet.spec.types import Artifact, Failure, Sample


class HasArtifact(Protocol):
    """A stage with its artifact."""

    @property
    def artifact(self) -> Artifact | None:
        """What the stage made."""
        ...


def locate_fault(
    conversion: Conversion,
    stage_artifacts: Sequence[HasArtifact],
    configs: Sequence[RuntimeConfig | None],
    stage_results: Sequence[StageResult],
    blame: Blame,
) -> ConversionPlace | None:
    """The place inside the guilty artifact; None where its format does not show that."""
    sample = blame.inputs[0].sample
    artifact, config = stage_artifacts[blame.last].artifact, configs[blame.last]
    seen = stage_results[blame.last].seen.get(sample.id)
    if artifact is None or config is None or seen is None or seen.right:
        return None
    if seen.failed:
        last, why = stage_artifacts[-1].artifact, stage_results[-1].seen.get(sample.id)
        if artifact.format != "onnx" and last is not None and why is not None:
            # What has no graph that can be read here fails later as it fails now.
            artifact, seen = last, why
        if artifact.format != "onnx" or not artifact.data:
            return refused_place(conversion, seen.message, sample)
        about = (artifact, seen.message, tuple(sample.feeds))
        named = conversion.sandbox.call(place_in_message, *about, role="judging").value
        return _with_operator(conversion, named, artifact, sample, seen.message)
    if not seen.judgements and not seen.outputs and artifact.format == "onnx" and artifact.data:
        # An interface that does not fit, which inputs that the model asks for explain.
        about = (artifact, seen.message, tuple(sample.feeds))
        answer = conversion.sandbox.call(place_in_message, *about, role="judging").value
        if answer is not None and answer.parameters:
            return answer
    if blame.lossy:
        return ConversionPlace(note="behind a stage that loses precision every value is another")
    wrong = [i for i, n in enumerate(conversion.output_names) if n in seen.outputs] or [0]
    if artifact.format == "onnx" and artifact.data:
        outcome = _in_onnx(conversion, config, artifact, sample, wrong)
    elif given(config.runtime, SourceExtras.inside):
        outcome = _elsewhere(conversion, config, artifact, sample, wrong)
    else:
        return _among_operators(conversion, sample)
    if outcome.failure is not None:
        words = describe(outcome.failure)[:300]
        return ConversionPlace(note=f"not looked for: {words}")
    return outcome.value


def locate_further(
    conversion: Conversion,
    stage_artifacts: Sequence[HasArtifact],
    configs: Sequence[RuntimeConfig | None],
    blame: Blame,
) -> list[FurtherFault]:
    """Faults of the guilty artifact behind the one that was blamed; none if that is not known."""
    artifact, config = stage_artifacts[blame.last].artifact, configs[blame.last]
    if artifact is None or config is None or artifact.format != "onnx" or not artifact.data:
        return []
    if blame.lossy or blame.outside_domain:
        return []
    about = (config, artifact, blame.inputs[0].sample)
    if conversion.source_is_here:
        source = (conversion.reference, conversion.source.artifact)
        return (
            conversion.sandbox.call(further_faults_beside, *source, *about, role="judging").value
            or []
        )
    recorded, _ = recorded_inside(conversion, blame.inputs[0].sample)
    return conversion.sandbox.call(further_faults, recorded, *about, role="judging").value or []


def _with_operator(
    conversion: Conversion,
    place: ConversionPlace | None,
    artifact: Artifact,
    sample: Sample,
    message: str,
) -> ConversionPlace | None:
    """The place, with the source's operator that the node stands for, where that can be told."""
    config = conversion.runtime_for("onnx", last=False)
    if place is None or not place.node or config is None:
        return place
    recorded, _ = recorded_inside(conversion, sample)
    about = (recorded, config, artifact, sample, message)
    found = conversion.sandbox.call(operator_before, *about, role="judging").value
    if found is None:
        return place
    known = place.model_dump(exclude_defaults=True)
    return ConversionPlace(**{**found.model_dump(exclude_defaults=True), **known})


def refused_place(conversion: Conversion, message: str, sample: Sample) -> ConversionPlace | None:
    """The operator that an error names; of a source in ONNX, its node."""
    source = conversion.source.artifact
    if source.format == "onnx":
        return conversion.sandbox.call(place_in_source, source, message, role="judging").value
    place = place_in_refusal(message) or _among_operators(conversion, sample, message)
    return with_named_node(place, message)


def _among_operators(
    conversion: Conversion, sample: Sample, message: str = ""
) -> ConversionPlace | None:
    """The operators of the source that ``message`` names; all, where there are only a few."""
    sandbox = conversion.sandbox_of(conversion.source.runtime)
    about = (conversion.reference, conversion.source.artifact, sample, message)
    return sandbox.call(place_among_operators, *about, role="judging").value


def recorded_inside(
    conversion: Conversion, sample: Sample
) -> tuple[tuple[SourceInside, ...], Failure | None]:
    """What the source computes inside, where its runtime is; or why that is not known."""
    about = (conversion.reference, conversion.source.artifact, sample)
    outcome = conversion.sandbox_of(conversion.source.runtime).call(
        source_inside, *about, role="judging"
    )
    if outcome.value is None:
        return (), outcome.failure or Failure("error", "run", "no answer")
    return outcome.value, None


def _in_onnx(
    conversion: Conversion,
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
    wrong: Sequence[int],
) -> Outcome[ConversionPlace]:
    about = (config, artifact, sample, wrong, tuple(conversion.output_names))
    if conversion.source_is_here:
        source = (conversion.reference, conversion.source.artifact)
        return conversion.sandbox.call(locate_beside, *source, *about, role="judging")
    recorded, failure = recorded_inside(conversion, sample)
    if failure is not None:
        return Outcome(None, failure)
    return conversion.sandbox.call(locate, recorded, *about, role="judging")


def _elsewhere(
    conversion: Conversion,
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
    wrong: Sequence[int],
) -> Outcome[ConversionPlace]:
    """The place in a format that only its runtime can read."""
    recorded, failure = recorded_inside(conversion, sample)
    if failure is not None:
        return Outcome(None, failure)
    target = conversion.sandbox_of(config.runtime).call(
        target_inside, config, artifact, sample, role="judging"
    )
    if target.value is None:
        return Outcome(None, target.failure)
    about = (recorded, target.value, tuple(sample.feeds.values()), wrong)
    return conversion.sandbox.call(locate_in, *about, role="judging")
