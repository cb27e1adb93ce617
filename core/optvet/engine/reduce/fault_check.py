"""Whether a smaller source still shows the fault of a conversion."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.convert.guilty_stage import Blame, StageResult, blame_stages
from optvet.engine.convert.run import converted_by, observe_stages
from optvet.engine.convert.session import Conversion, judge_for
from optvet.engine.convert.undefined_inputs import undefined_inside
from optvet.spec.records.convert import ConversionFinding
from optvet.spec.types import Artifact, Failure, Sample

_FIRST = 1000
"""Numbers of folders of candidates begin here, behind those of the chain."""


def _quiet(text: str, done: int, total: int | None) -> None:
    """Ignore progress."""


@dataclass
class FaultCheck:
    """Converts smaller sources, and judges each on the one input that it has.

    Attributes:
        conversion: What the whole source was asked about.
        fault: What the smaller ones are to show.
        witness: The input of the whole source.
        random: Outputs that differ from run to run.
        fresh: Whether each conversion has a process of its own. Others share one, which is quicker
            where a library loads slowly; then what is found has to be confirmed.
    """

    conversion: Conversion
    fault: ConversionFinding
    witness: ConversionInput
    random: frozenset[str]
    fresh: bool = True
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(_FIRST))

    def folder(self) -> Path:
        """A new folder for a candidate."""
        folder = self.conversion.folder / str(next(self._numbers))
        folder.mkdir()
        return folder

    def shows(self, artifact: Artifact, feeds: Mapping[str, np.ndarray]) -> bool:
        """Whether it runs, and the chain breaks it at the same stage in the same way."""
        source = replace(self.conversion.source, artifact=artifact)
        given = {"source": source, "folder": self.folder(), "warnings": [], "output_names": []}
        fresh = replace(self.conversion, **given)  # type: ignore[arg-type]  # of several types
        sample = Sample(self.witness.sample.id, feeds, origin=self.witness.origin)
        each = replace(self.witness, sample=sample)
        observed = fresh.observe(fresh.reference, artifact, [sample])
        run = observed.runs.get(sample.id)
        if observed.load is not None or run is None or isinstance(run, Failure):
            return False
        if set(run) <= self.random:
            return False
        fresh.output_names.extend(run)
        judge = judge_for(fresh, [each], {sample.id: run}, self.random & set(run))
        made = converted_by(fresh, [each], _quiet, fresh=self.fresh)
        if any(m.refused for m in made):
            return False
        stages = observe_stages(fresh, made, [sample], judge, repeat=False)
        blames = blame_stages(stages.stage_results[: stages.last + 1], [each])
        if not any(self._is_same(stages.stage_results, blame) for blame in blames):
            return False
        about = (fresh.reference, artifact, [sample])
        sandbox = fresh.sandbox_of(fresh.source.runtime)
        return not sandbox.call(undefined_inside, *about, role="judging").value

    def _is_same(self, results: Sequence[StageResult], blame: Blame) -> bool:
        names = [r.name for r in results[blame.first : blame.last + 1]]
        return (blame.symptom, names) == (self.fault.symptom, list(self.fault.stages))
