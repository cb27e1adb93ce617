"""Finds the stage that breaks a model: the first one after the last correct artifact.

An artifact that cannot run alone is neither right nor wrong, so the blame may be a range of stages.
If only one runtime computes wrong values, the runtime is at fault, not a converter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.judge.sample import SampleVerdict
from optvet.spec.converters import ConversionStage
from optvet.spec.symptoms import Symptom


def _of_outputs(symptom: Symptom) -> bool:
    """Whether the symptom is about outputs: their values, names or types."""
    return symptom.info.of_values or symptom == Symptom.INTERFACE_CHANGE


@dataclass(frozen=True)
class StageResult:
    """A stage, and the verdicts on its artifact by sample; empty if it cannot run."""

    converter: str
    stage: ConversionStage
    seen: Mapping[str, SampleVerdict] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``CONVERTER/STAGE``."""
        return f"{self.converter}/{self.stage.name}"

    def without(self, samples: Collection[str]) -> StageResult:
        """A copy without the verdicts on ``samples``."""
        return replace(self, seen={k: v for k, v in self.seen.items() if k not in samples})


@dataclass(frozen=True)
class Blame:
    """Samples that go wrong in one way from one stage on.

    Attributes:
        first: Index of the first stage to blame.
        last: Index of the last one; its artifact is the first that is known to be wrong.
        symptom: What is wrong with it.
        inputs: The inputs that show it, the plainest first.
        lossy: Whether other values are what a stage declares to lose on inputs that the source is
            meant for; it says nothing of edge values.
    """

    first: int
    last: int
    symptom: Symptom
    inputs: tuple[ConversionInput, ...]
    lossy: bool = False

    @property
    def outside_domain(self) -> bool:
        """Whether it shows only on inputs outside the domain.

        Edge values after a lossy stage count as outside too.
        """
        return all(d.outside_domain or (self.lossy and d.origin == "edge") for d in self.inputs)


def first_without(runnable: Sequence[int], holds: Callable[[int], bool | None]) -> tuple[int, int]:
    """The stages to blame for what the last artifact lacks: from the first suspect to the last.

    Args:
        runnable: Indices of the stages whose artifacts can be run, in order.
        holds: Whether an artifact has it, None where that cannot be told; the last one lacks it.
    """
    opened: tuple[int, int] | None = None
    suspect = 0
    for index in runnable:
        found = holds(index)
        if found:
            opened, suspect = None, index + 1
        elif found is False and opened is None:
            opened = suspect, index
    return opened if opened is not None else (suspect, runnable[-1])


def blame_stages(
    stage_results: Sequence[StageResult], inputs: Sequence[ConversionInput]
) -> list[Blame]:
    """One blame for each pair of stages and symptom, in order of stages."""
    groups: dict[tuple[int, int, Symptom], list[ConversionInput]] = {}
    for each in inputs:
        for key in _guilty([s.seen.get(each.sample.id) for s in stage_results]):
            groups.setdefault(key, []).append(each)
    order = {id(d): i for i, d in enumerate(inputs)}
    return [
        Blame(
            *key,
            tuple(sorted(group, key=lambda d: (d.outside_domain, order[id(d)]))),
            key[2].info.of_values and stage_results[key[1]].stage.tolerance is not None,
        )
        for key, group in sorted(groups.items(), key=lambda item: item[0][:2])
    ]


def _guilty(seen: Sequence[SampleVerdict | None]) -> list[tuple[int, int, Symptom]]:
    """The symptoms of one sample at the end, each with the stages that may have caused it.

    A symptom belongs to the first stage that shows it. What a later artifact refutes is mended:
    one that is right mends everything, one whose values were compared runs. What hides another
    symptom does not mend it: of a model that does not run, the values that were wrong before stay
    wrong. So does an artifact that the checker refuses, whatever fails behind it.
    """
    if not seen or (end := seen[-1]) is None or end.right:
        return []
    opened: dict[Symptom, tuple[int, int]] = {}
    for i, each in enumerate(seen):
        if each is None or each.unexplained:
            continue
        if each.right or each.symptom is None:
            opened.clear()
            continue
        if _of_outputs(each.symptom):
            opened = {s: at for s, at in opened.items() if _of_outputs(s)}
        if each.symptom.info.of_values:
            opened.pop(Symptom.INTERFACE_CHANGE, None)
        if each.symptom not in opened:
            opened[each.symptom] = (_first_suspect(seen[:i], each.symptom), i)
    return [
        (first, last, symptom)
        for symptom, (first, last) in opened.items()
        if symptom in (end.symptom, Symptom.INVALID_MODEL) or _of_outputs(symptom)
    ]


def _first_suspect(before: Sequence[SampleVerdict | None], symptom: Symptom) -> int:
    """The stage after the last artifact that is known not to show ``symptom``."""
    known = (
        i + 1
        for i, each in enumerate(before)
        if each is not None and (each.right or _tells_apart(each.symptom, symptom))
    )
    return max(known, default=0)


def _tells_apart(shown: Symptom | None, symptom: Symptom) -> bool:
    """Whether an artifact that shows one symptom is known not to show another."""
    if symptom.info.of_values:
        return False  # nothing else lets values be compared
    if symptom == Symptom.INTERFACE_CHANGE:
        return shown is not None and shown.info.of_values
    return True
