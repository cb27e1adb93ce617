"""Takes sources apart in worker processes, those of other environments too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.spec.converters import SourceOperator, SourcePart
from optvet.spec.types import Artifact, Sample


def parts_in(config: RuntimeConfig, source: Artifact, sample: Sample) -> Sequence[SourcePart]:
    """The parts of a source."""
    enter("run")
    runtime: Any = config.runtime
    found = runtime.parts(source, sample.feeds, config.options)
    return [part for part in found if isinstance(part, SourcePart)]


def write_part_in(
    config: RuntimeConfig, source: Artifact, sample: Sample, name: str, folder: Path
) -> str:
    """Write a part as a source to ``folder``; the name of its Python file."""
    enter("run")
    runtime: Any = config.runtime
    feeds: Mapping[str, Any] = sample.feeds
    return str(runtime.write_part(source, feeds, config.options, name, folder))


def operators_in(
    config: RuntimeConfig, source: Artifact, sample: Sample
) -> Sequence[SourceOperator]:
    """The operators of a source."""
    enter("run")
    runtime: Any = config.runtime
    found = runtime.operators(source, sample.feeds, config.options)
    return [each for each in found if isinstance(each, SourceOperator)]


def write_operators_in(
    config: RuntimeConfig, source: Artifact, sample: Sample, kept: Sequence[int], folder: Path
) -> str:
    """Write some operators as a source to ``folder``; the name of its Python file."""
    enter("run")
    runtime: Any = config.runtime
    feeds: Mapping[str, Any] = sample.feeds
    return str(runtime.write_operators(source, feeds, config.options, kept, folder))
