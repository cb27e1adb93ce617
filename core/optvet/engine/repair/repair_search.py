"""Puts a patch together, one fault after the other, and leaves out what it does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import onnx
from onnx import ModelProto

from optvet.engine.convert.conversion_inputs import ConversionInput
from optvet.engine.repair.acceptance import AcceptanceCheck, MeasuredModel
from optvet.engine.repair.candidates import RepairCandidate
from optvet.engine.repair.edited_model import DoesNotFit
from optvet.engine.repair.edits import apply_edits
from optvet.spec.records.repair import Edit, RepairStep

ROUNDS = 12
"""Faults that are repaired one after the other."""
Propose = Callable[[bytes, Sequence[ConversionInput]], Iterator[Sequence[RepairCandidate]]]


@dataclass
class RepairSearch:
    """The state of one repair.

    Attributes:
        propose: Candidates for a model, in order, given inputs that show its faults; more of them
            are sought when they are asked for.
        tries: How many models are still tried.
        progress: Told the number of models tried.
    """

    acceptance: AcceptanceCheck
    model: ModelProto
    propose: Propose
    tries: int
    jobs: int
    progress: Callable[[int], None]
    tried: int = 0
    edits: list[Edit] = field(default_factory=list)
    steps: list[RepairStep] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)

    def run(self) -> MeasuredModel:
        """Repair as far as it goes; returns what the model then does."""
        start = now = self.acceptance.measure(self.model.SerializeToString())
        for _ in range(ROUNDS):
            if self.acceptance.is_right(now):
                break
            self.acceptance = self.acceptance.with_more_inputs(now)
            found = self._step(now)
            if found is None:
                break
            candidate, now, tried = found
            self.edits.extend(candidate.edits)
            self._note(candidate, now, tried)
        if self.edits and (
            self.acceptance.is_worse(start, now) or not self.acceptance.is_better(start, now)
        ):
            # What explained a value inside did not lead to better outputs.
            self.edits.clear()
            self.steps.clear()
            return start
        return self._minimal(now)

    def _note(self, candidate: RepairCandidate, now: MeasuredModel, tried: int) -> None:
        largest = now.largest(self.acceptance.witnesses)
        error = None if largest == float("inf") else largest
        about = "; ".join(edit.about for edit in candidate.edits)
        self.steps.append(RepairStep(about=about, tried=tried, error=error))

    def _step(self, now: MeasuredModel) -> tuple[RepairCandidate, MeasuredModel, int] | None:
        """The first candidate that mends the model; else the best one that improves it.

        Else the first one that explains a value inside without any input that is worse.
        """
        better: list[tuple[float, int, RepairCandidate, MeasuredModel]] = []
        explains: tuple[RepairCandidate, MeasuredModel] | None = None
        tried = 0
        for candidate, measured in self._measure_proposed(now):
            tried += 1
            if measured is None or self.acceptance.is_worse(now, measured):
                if (
                    measured is not None
                    and explains is None
                    and self._helps(now, candidate, measured)
                ):
                    explains = (candidate, measured)
                continue
            if self.acceptance.is_right(measured):
                return candidate, measured, tried
            if self.acceptance.is_better(now, measured):
                error = measured.largest(self.acceptance.witnesses)
                better.append((error, tried, candidate, measured))
            elif explains is None and candidate.depth >= 0:
                explains = (candidate, measured)
        if better:
            _, _, candidate, measured = min(better, key=lambda b: b[:2])
            return candidate, measured, tried
        return None if explains is None else (*explains, tried)

    def _helps(
        self, now: MeasuredModel, candidate: RepairCandidate, measured: MeasuredModel
    ) -> bool:
        """Whether an edit that explains a value leaves right what was right.

        With two faults, mending the first may move the outputs further away.
        """
        if measured.complaint and not now.complaint:
            return False
        return candidate.depth >= 0 and all(
            measured.seen[name].right or not seen.right for name, seen in now.seen.items()
        )

    def _measure_proposed(
        self, now: MeasuredModel
    ) -> Iterator[tuple[RepairCandidate, MeasuredModel | None]]:
        data = self._apply(self.edits).SerializeToString()
        for candidates in self.propose(data, self.acceptance.failing(now)):
            yield from self._measure_each(candidates)

    def _apply(self, edits: Sequence[Edit]) -> ModelProto:
        return apply_edits(self.model, edits)

    def _measure(self, edits: Sequence[Edit]) -> MeasuredModel | None:
        """What the model does with ``edits``; None if they do not fit."""
        try:
            data = self._apply(edits).SerializeToString()
        except DoesNotFit:
            return None
        return self.acceptance.measure(data)

    def _measure_each(
        self, candidates: Sequence[RepairCandidate]
    ) -> Iterator[tuple[RepairCandidate, MeasuredModel | None]]:
        """Candidates in order with what they do, a few measured at a time."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for start in range(0, len(candidates), self.jobs):
                group = candidates[start : start + self.jobs][: self.tries - self.tried]
                if not group:
                    return
                futures = [pool.submit(self._measure, [*self.edits, *c.edits]) for c in group]
                self.tried += len(group)
                self.progress(self.tried)
                for candidate, future in zip(group, futures, strict=True):
                    yield candidate, future.result()

    def _minimal(self, now: MeasuredModel) -> MeasuredModel:
        """Leave out each edit without which no input is worse, the last one first."""
        for edit in self.edits[::-1]:
            if len(self.edits) == 1:
                break
            rest = [e for e in self.edits if e is not edit]
            measured = self._measure(rest)
            if measured is not None and self.acceptance.is_needless(now, measured):
                self.edits[:] = rest
                self.needless.append(edit.about)
                now = measured
        return now


def load_model(data: bytes) -> ModelProto:
    """The model that is repaired."""
    return onnx.load_from_string(data)
