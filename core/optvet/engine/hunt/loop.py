"""The loop of a hunt: plan → batches in workers → records → learn → suspects → vet.

What is hunted in is a *target*: an optimizer and models, or a converter and sources; a target that
vets nothing keeps what it makes (synthetic models). A target says how candidates are made, looked
at and judged. The budget, the state, progress, deaths and what follows from vetting are the loop's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from optvet.engine.hunt.keep_findings import refuse_shortage
from optvet.engine.hunt.state import HuntState, Suspect
from optvet.engine.hunt.summary import About, HuntProgress, OnProgress
from optvet.engine.hunt.suspects import take_findings
from optvet.engine.hunt.suspicions import Complaint, label_of
from optvet.spec.errors import OptvetError, PluginError
from optvet.spec.hunt import budget_of
from optvet.spec.records import HuntFinding


class CandidateRecord(Protocol):
    """What became of a candidate."""

    @property
    def valid(self) -> bool:
        """Whether the candidate ran and was compared."""
        ...


RecordT = TypeVar("RecordT", bound=CandidateRecord)
Part = Callable[[], tuple[list[RecordT], float]]
"""Makes and looks at some candidates in a worker: their records in order, and CPU seconds."""


class HuntTarget(Protocol[RecordT]):
    """How the candidates of a hunt are made and looked at."""

    def plan(self, state: HuntState, size: int) -> Sequence[Part[RecordT]]:
        """The next ``size`` candidates; what is planned is noted in the state."""
        ...

    def learn(self, state: HuntState, records: Sequence[RecordT]) -> None:
        """Take the records of a round in the order of its candidates, and note suspects."""
        ...

    def close(self) -> None:
        """End all workers, so that a round that was interrupted is not waited for."""
        ...


class Vets(Protocol):
    """How suspects of a hunt are judged, in processes of their own."""

    def is_needless(self, state: HuntState, suspect: Suspect) -> bool:
        """Whether it need not be vetted."""
        ...

    def confirm(self, suspect: Suspect) -> list[HuntFinding] | None:
        """The findings, with their bundles; None if it cannot be judged.

        Raises:
            PluginError: A plugin gave what its contract does not allow.
        """
        ...


@dataclass(frozen=True)
class HuntBudget:
    """When a hunt ends: after so many candidates, valid ones, or seconds of CPU time.

    Attributes:
        candidates: Number of candidates.
        valid: Number of valid ones.
        seconds: CPU time of making and judging.
        largest: Candidates of a round, after which the state follows.
        least: Those of a round for which little time is left.
    """

    candidates: int | None = None
    valid: int | None = None
    seconds: float | None = None
    largest: int = 1
    least: int = 1

    @classmethod
    def of(cls, text: str, largest: int, least: int) -> HuntBudget:
        """The budget that a user wrote; see ``budget_of``."""
        candidates, seconds = budget_of(text)
        return cls(candidates, None, seconds, largest, least)

    def next_round(self, state: HuntState) -> int:
        """Candidates of the next round; 0 if the budget is used up.

        Of a time, no more than are likely to fit: an optimizer that compiles takes minutes for a
        round.
        """
        if self.candidates is not None:
            return min(self.largest, max(self.candidates - state.number, 0))
        if self.valid is not None:
            return min(self.largest, max(self.valid - state.valid, 0))
        left = (self.seconds or 0.0) - state.seconds
        if left <= 0:
            return 0
        fit = left * state.number / state.seconds if state.seconds else 0.0
        return int(min(self.largest, max(fit, self.least)))

    def share(self, number: int, valid: int, seconds: float) -> float:
        """What is used of it, up to 1."""
        pairs = ((number, self.candidates), (valid, self.valid), (seconds, self.seconds))
        return min(max(used / most for used, most in pairs if most), 1.0)


@dataclass(frozen=True)
class HuntSetup(Generic[RecordT]):
    """What a hunt works on, and its limits.

    Attributes:
        about: In words.
        target: How candidates are made and looked at.
        budget: When it ends.
        vets: How suspects are vetted; None if there are none, since candidates are kept.
        known: Fingerprints of findings that are counted, and not reported again.
        rare: Options under which some findings may have been found; None if no campaign can ask
            for them again.
    """

    about: About
    target: HuntTarget[RecordT]
    budget: HuntBudget
    vets: Vets | None = None
    known: frozenset[str] = frozenset()
    rare: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class HuntLoop(Generic[RecordT]):
    """Does rounds, and vets suspects.

    Attributes:
        hunted: What it is in.
        jobs: Batches at a time.
        save: Called with the state after each round and each vetting.
        progress: Told after each batch and finding.
        wanted: Whether a suspect is to be vetted.
    """

    hunted: HuntSetup[RecordT]
    jobs: int
    save: Callable[[HuntState], None] = lambda state: None
    progress: OnProgress = lambda event: None
    wanted: Callable[[Suspect], bool] = lambda suspect: True

    def run(self, state: HuntState) -> None:
        """Hunt until the budget is used up, and every suspect is vetted that is wanted."""
        # A hunt that is gone on with may have ended while it vetted.
        self._vet_suspects(state)
        while (size := self.hunted.budget.next_round(state)) > 0:
            self._do_round(state, size)
            self._vet_suspects(state)

    def _tell(
        self,
        doing: str,
        state: HuntState,
        records: Sequence[RecordT] = (),
        found: HuntFinding | None = None,
    ) -> None:
        """Tell how far it is; ``records`` are those of the round that is not learned from yet."""
        number = state.number + len(records)
        valid = state.valid + sum(record.valid for record in records)
        about = self.hunted.about
        self.progress(
            HuntProgress(
                doing,
                number,
                valid,
                state.seconds,
                self.hunted.budget.share(number, valid, state.seconds),
                len(state.passes_with_changes().intersection(about.parts)),
                len(about.parts),
                len(state.rewrites),
                len(state.findings),
                len(state.suspects),
                found,
                about.unit,
            )
        )

    def _do_round(self, state: HuntState, size: int) -> None:
        """Make and look at ``size`` candidates, and learn from them."""
        parts = self.hunted.target.plan(state, size)
        records: list[RecordT] = []
        with ThreadPoolExecutor(self.jobs, "optvet-hunt") as threads:
            try:
                # In order, so that what is learned does not depend on which worker is quicker.
                for found, seconds in threads.map(lambda part: part(), parts):
                    records += found
                    state.seconds += seconds
                    self._tell("hunting", state, records)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                # What runs is ended with the workers; else its threads would be waited for.
                self.hunted.target.close()
                raise
        self.hunted.target.learn(state, records)
        # Only whole rounds are saved: one that was cut short is done again, and gives the same.
        state.rounds += 1
        self.save(state)
        self._tell("hunting", state)

    def _vet_suspects(self, state: HuntState) -> None:
        """Vet every suspect, and keep what is confirmed."""
        vets = self.hunted.vets
        while vets is not None and state.suspects:
            suspect = state.suspects[0]
            # Asked once more: what was vetted since it was noted may explain it.
            if vets.is_needless(state, suspect) or not self.wanted(suspect):
                state.suspects.remove(suspect)
                continue
            label = label_of(suspect.passes) or "import and export"
            self._tell(f"vetting {suspect.key.symptom} of {label}", state)
            began = time.monotonic()
            findings = self._confirm(vets, suspect, state)
            state.vetting_seconds += time.monotonic() - began
            for finding in take_findings(state, suspect, findings or [], self.hunted.known):
                self._tell("hunting", state, found=finding)
            # After each: vetting one takes as long as a round.
            self.save(state)

    def _confirm(self, vets: Vets, suspect: Suspect, state: HuntState) -> list[HuntFinding] | None:
        try:
            return vets.confirm(suspect)
        except Exception as error:
            if isinstance(error, OptvetError) and not isinstance(error, PluginError):
                raise
            refuse_shortage(error)
            # What foreign code returned broke what reads it: that ends no hunt, and is told.
            state.complain(Complaint.of("a suspicion cannot be vetted:", error))
            return None
