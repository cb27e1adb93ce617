"""Asks worker processes where inside the guilty artifact a model breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from optvet.engine.convert.blame import Blame, Station
from optvet.engine.convert.locate import (
    locate,
    locate_beside,
    locate_in,
    place_in_message,
    place_in_refusal,
    place_in_source,
    source_inside,
    target_inside,
)
from optvet.engine.convert.session import Conversion
from optvet.engine.work.sandbox.outcome import Outcome, describe
from optvet.engine.work.trial import RuntimeConfig
from optvet.spec.converters import ShowsInside
from optvet.spec.records.convert import ConversionPlace
from optvet.spec.types import Artifact, Failure, Sample


class HasArtifact(Protocol):
    """A stage with its artifact."""

    @property
    def artifact(self) -> Artifact | None:
        """What the stage made."""
        ...


def located(
    conversion: Conversion,
    made: Sequence[HasArtifact],
    configs: Sequence[RuntimeConfig | None],
    stations: Sequence[Station],
    blame: Blame,
) -> ConversionPlace | None:
    """The place inside the guilty artifact; None where its format does not show that."""
    sample = blame.drawn[0].sample
    artifact, config = made[blame.last].artifact, configs[blame.last]
    seen = stations[blame.last].seen.get(sample.id)
    if artifact is None or config is None or seen is None or seen.right:
        return None
    if seen.state == "fails":
        last, why = made[-1].artifact, stations[-1].seen.get(sample.id)
        if artifact.format != "onnx" and last is not None and why is not None:
            # What has no graph that can be read here fails later as it fails now.
            artifact, seen = last, why
        if artifact.format != "onnx" or not artifact.data:
            return refused_place(conversion, seen.message)
        about = (artifact, seen.message, tuple(sample.feeds))
        return conversion.sandbox.call(place_in_message, *about, role="referee").value
    wrong = [i for i, n in enumerate(conversion.output_names) if n in seen.outputs] or [0]
    if artifact.format == "onnx" and artifact.data:
        outcome = _in_onnx(conversion, config, artifact, sample, wrong)
    elif isinstance(config.runtime, ShowsInside):
        outcome = _elsewhere(conversion, config, artifact, sample, wrong)
    else:
        return refused_place(conversion, seen.message)
    if outcome.failure is not None:
        words = describe(outcome.failure)[:300]
        return ConversionPlace(note=f"not looked for: {words}")
    return outcome.value


def refused_place(conversion: Conversion, message: str) -> ConversionPlace | None:
    """The operator that an error names; of a source in ONNX, its node."""
    source = conversion.source.artifact
    if source.format != "onnx":
        return place_in_refusal(message)
    return conversion.sandbox.call(place_in_source, source, message, role="referee").value


def _in_onnx(
    conversion: Conversion,
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
    wrong: Sequence[int],
) -> Outcome[ConversionPlace]:
    source = (conversion.reference, conversion.source.artifact)
    about = (config, artifact, sample, wrong)
    if not conversion.plugins.home_of(source[0].runtime):
        return conversion.sandbox.call(locate_beside, *source, *about, role="referee")
    home = conversion.sandbox_of(source[0].runtime)
    recorded = home.call(source_inside, *source, sample, role="referee")
    if recorded.value is None:
        return Outcome(None, recorded.failure or _unanswered())
    return conversion.sandbox.call(locate, recorded.value, *about, role="referee")


def _elsewhere(
    conversion: Conversion,
    config: RuntimeConfig,
    artifact: Artifact,
    sample: Sample,
    wrong: Sequence[int],
) -> Outcome[ConversionPlace]:
    """The place in a format that only its runtime can read."""
    source = (conversion.reference, conversion.source.artifact)
    recorded = conversion.sandbox_of(source[0].runtime).call(
        source_inside, *source, sample, role="referee"
    )
    target = conversion.sandbox_of(config.runtime).call(
        target_inside, config, artifact, sample, role="referee"
    )
    if recorded.value is None or target.value is None:
        return Outcome(None, recorded.failure or target.failure or _unanswered())
    about = (recorded.value, target.value, tuple(sample.feeds.values()), wrong)
    return conversion.sandbox.call(locate_in, *about, role="referee")


def _unanswered() -> Failure:
    return Failure("error", "run", "no answer")
