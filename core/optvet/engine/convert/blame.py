"""Which stage breaks a model: the first one after the last artifact that is right.

An artifact that cannot be run alone is neither right nor wrong, so the blame may be a range. What
only one runtime computes wrong is that runtime's fault and not a converter's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optvet.engine.convert.inputs import Drawn
from optvet.engine.judge.sample import SampleVerdict
from optvet.spec.converters import ConversionStage
from optvet.spec.symptoms import Symptom


@dataclass(frozen=True)
class Station:
    """A stage of the chain, and what its artifact did on each sample; empty if it cannot be run."""

    converter: str
    stage: ConversionStage
    seen: Mapping[str, SampleVerdict] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``CONVERTER/STAGE``."""
        return f"{self.converter}/{self.stage.name}"

    def without(self, samples: Collection[str]) -> Station:
        """It, as if it had not run on ``samples``."""
        return replace(self, seen={k: v for k, v in self.seen.items() if k not in samples})


@dataclass(frozen=True)
class Blame:
    """Samples that go wrong in one way from one stage on.

    Attributes:
        first: Index of the first stage to blame.
        last: Index of the last one; its artifact is the first that is known to be wrong.
        symptom: What is wrong with the last artifact of the chain.
        drawn: The inputs that show it, the plainest first.
        lossy: Whether other values are what a stage declares to lose on inputs that the source is
            meant for; it says nothing of edge values.
    """

    first: int
    last: int
    symptom: Symptom
    drawn: tuple[Drawn, ...]
    lossy: bool = False

    @property
    def unasked(self) -> bool:
        """Whether it shows only where NaN or infinity was put in that nobody gave.

        Or only on edge values behind a stage that loses precision, which is for usual inputs.
        """
        return all(d.unasked or (self.lossy and d.origin == "edge") for d in self.drawn)


def blamed(stations: Sequence[Station], drawn: Sequence[Drawn]) -> list[Blame]:
    """One blame for each pair of stages and symptom, in order of stages."""
    groups: dict[tuple[int, int, Symptom], list[Drawn]] = {}
    for each in drawn:
        seen = stations[-1].seen.get(each.sample.id)
        if seen is None or seen.symptom is None or seen.right:
            continue
        first, last = _guilty(stations, each.sample.id, seen.symptom)
        groups.setdefault((first, last, seen.symptom), []).append(each)
    order = {id(d): i for i, d in enumerate(drawn)}
    return [
        Blame(
            *key,
            tuple(sorted(group, key=lambda d: (d.unasked, order[id(d)]))),
            key[2].info.of_values and stations[key[1]].stage.tolerance is not None,
        )
        for key, group in sorted(groups.items(), key=lambda item: item[0][:2])
    ]


def _guilty(stations: Sequence[Station], sample: str, symptom: Symptom) -> tuple[int, int]:
    """The stages after the last right artifact, up to the first wrong one."""
    right = -1
    for i, station in enumerate(stations):
        if (seen := station.seen.get(sample)) is not None and seen.right:
            right = i
    wrong = next(
        i
        for i in range(right + 1, len(stations))
        if _is_wrong(stations[i].seen.get(sample), symptom) or i == len(stations) - 1
    )
    return right + 1, wrong


def _is_wrong(seen: SampleVerdict | None, symptom: Symptom) -> bool:
    """Whether an artifact shows the fault: one that does not run shows no wrong value."""
    if seen is None or seen.right:
        return False
    return symptom.info.failed or not seen.failed
