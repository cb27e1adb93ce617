"""Runs a hunt in a converter: batches of sources, each followed by vetting what looks wrong."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from optvet.engine.discovery import Plugins
from optvet.engine.hunt.probable_causes import probable_causes
from optvet.engine.hunt.sources.confirm import SourceConfirmer
from optvet.engine.hunt.sources.look import Looker, open_looker
from optvet.engine.hunt.sources.plan import SourceRecipe, recipe_of
from optvet.engine.hunt.sources.state import SourceHuntState, is_needless, key_of, open_state
from optvet.engine.hunt.sources.steps import SourceOutcome
from optvet.engine.hunt.sources.target import TestedConverter, resolve_converter
from optvet.engine.hunt.summary import SUMMARY, HuntProgress, OnProgress
from optvet.engine.vet.session import default_jobs
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.files import replacing
from optvet.spec.hunt import OPERATORS_CONVERTED, HuntRequest, budget_of
from optvet.spec.records import HuntFinding, HuntSummary
from optvet.spec.scratch import temporary_folder

_BATCH = 10
_MOST_COMPLAINTS = 5


def hunt_in_converter(request: HuntRequest, plugins: Plugins, progress: OnProgress) -> HuntSummary:
    """Hunt until the budget is used up; what looked wrong in it is vetted.

    Raises:
        UsageError: The request cannot be answered, or the folder holds another hunt.
        KeyboardInterrupt: Ctrl-C; the folder holds all that was found.
    """
    tested = resolve_converter(request, plugins)
    jobs = request.jobs or default_jobs()
    keep_servers()  # each suspicion is vetted with processes of its own
    with (
        open_looker(tested, plugins, jobs) as looker,
        temporary_folder("optvet-hunt-") as folder,
    ):
        identity = {
            "optimizer": request.optimizer,
            "version": looker.version(),
            "options": request.optimizer_options,
            "seed": request.seed,
        }
        state = open_state(request.folder, identity, resume=request.resume)
        confirmer = SourceConfirmer(
            looker,
            request.optimizer_options,
            plugins,
            request.folder.absolute(),
            jobs,
            request.seed,
        )
        operators, last = looker.operators(), looker.last_operators()
        hunter = SourceHunter(
            request, looker, operators, last, Path(folder), jobs, confirmer, progress
        )
        return hunter.run(state)


@dataclass(frozen=True)
class SourceHunter:
    """Does rounds of a hunt in a converter, and vets suspicions."""

    request: HuntRequest
    looker: Looker
    operators: Mapping[str, Sequence[str]]
    last: Collection[str]
    folder: Path
    jobs: int
    confirmer: SourceConfirmer
    progress: OnProgress

    def run(self, state: SourceHuntState) -> HuntSummary:
        """Hunt until the budget is used up; what there is then is written, however this ends."""
        try:
            while (size := self._next_size(state)) > 0:
                state = self._do_round(state, size)
                self._save(state)
        finally:
            self._save(state)
        return summary_of(self.request, self.looker.tested, self.operators, state)

    def _save(self, state: SourceHuntState) -> None:
        state.save(self.request.folder)
        summary = summary_of(self.request, self.looker.tested, self.operators, state)
        with replacing(self.request.folder / SUMMARY) as file:
            file.write(f"{summary.to_json()}\n".encode())

    def _next_size(self, state: SourceHuntState) -> int:
        candidates, seconds = budget_of(self.request.budget)
        most = _BATCH * self.jobs
        if candidates is not None:
            return min(most, candidates - state.number)
        assert seconds is not None
        left = seconds - state.seconds
        if left <= 0:
            return 0
        fit = int(left * state.number / state.seconds) + 1 if state.seconds else most
        return min(most, fit)

    def _do_round(self, state: SourceHuntState, size: int) -> SourceHuntState:
        """Look at the next sources, and vet what looks wrong."""
        numbers = range(state.number, state.number + size)
        recipes = [recipe_of(n, self.request.seed, self.operators, self.last) for n in numbers]
        parts = [recipes[at : at + _BATCH] for at in range(0, size, _BATCH)]
        places = [self.folder / f"{state.number}-{i}" for i in range(len(parts))]
        with ThreadPoolExecutor(self.jobs, "optvet-hunt") as threads:
            try:
                looked = threads.map(self._look, parts, places)
                outcomes = [outcome for found in looked for outcome in found]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self.looker.close()
                raise
        suspects = []
        for number, recipe, outcome in zip(numbers, recipes, outcomes, strict=True):
            state = _learn(state, recipe, outcome)
            if outcome.state == "suspect":
                suspects.append((number, recipe, outcome))
        self._tell("hunting", state)
        for number, recipe, outcome in suspects:
            recipe, outcome = self.confirmer.without_needless(recipe, outcome)
            key = key_of(recipe.names, outcome)
            seen = {**state.seen, key: state.seen.get(key, 0) + 1}
            state = state.model_copy(update={"seen": seen})
            if not is_needless(state, recipe, outcome):
                state = self._vet(state, number, recipe, outcome)
                self._save(state)
        return state

    def _look(self, recipes: Sequence[SourceRecipe], place: Path) -> list[SourceOutcome]:
        return self.looker.look(recipes, self.request.seed, place)

    def _vet(
        self, state: SourceHuntState, number: int, recipe: SourceRecipe, outcome: SourceOutcome
    ) -> SourceHuntState:
        key = key_of(recipe.names, outcome)
        self._tell(f"vetting {outcome.symptom} of {', '.join(recipe.names)}", state)
        began = time.monotonic()
        finding = self.confirmer.confirm(number, recipe, outcome)
        changed: dict[str, object] = {
            "vetted": {**state.vetted, key: state.vetted.get(key, 0) + 1},
            "vetting_seconds": state.vetting_seconds + time.monotonic() - began,
            "refuted": state.refuted + (finding is None),
        }
        if finding is None:
            return state.model_copy(update=changed)
        changed["found"] = {**state.found, key: finding.fingerprint}
        if any(f.fingerprint == finding.fingerprint for f in state.findings):
            return state.model_copy(update=changed)
        state = state.model_copy(update={**changed, "findings": [*state.findings, finding]})
        self._tell("hunting", state, finding)
        return state

    def _tell(self, doing: str, state: SourceHuntState, found: HuntFinding | None = None) -> None:
        candidates, seconds = budget_of(self.request.budget)
        share = state.number / candidates if candidates else state.seconds / (seconds or 1.0)
        self.progress(
            HuntProgress(
                doing,
                state.number,
                state.valid,
                state.seconds,
                min(share, 1.0),
                len(state.converted),
                len(self.operators),
                0,
                len(state.findings),
                0,
                found,
                OPERATORS_CONVERTED,
            )
        )


def _learn(state: SourceHuntState, recipe: SourceRecipe, outcome: SourceOutcome) -> SourceHuntState:
    died = outcome.state == "died"
    judged = outcome.state in ("right", "suspect")
    broken = [f"a source was made that cannot be loaded: {outcome.words}"]
    complaints = [*state.complaints, *broken * (outcome.state == "broken")]
    converted = sorted({*state.converted, *recipe.operators}) if judged else state.converted
    return state.model_copy(
        update={
            "number": state.number + 1,
            "valid": state.valid + judged,
            "refused": state.refused + (outcome.state == "refused"),
            "deaths": state.deaths + died,
            "seconds": state.seconds + outcome.seconds,
            "complaints": complaints[:_MOST_COMPLAINTS],
            "converted": converted,
        }
    )


def summary_of(
    request: HuntRequest,
    tested: TestedConverter,
    operators: Mapping[str, Sequence[str]],
    state: SourceHuntState,
) -> HuntSummary:
    """What ``hunt.json`` holds: ``fired`` are operators that were converted."""
    findings = sorted(_with_counts(state), key=lambda finding: finding.gravity)
    return HuntSummary(
        schema="optvet.hunt/1",
        optimizer=tested.name,
        version=str(state.identity["version"]),
        optimizer_options=dict(request.optimizer_options),
        seed=request.seed,
        budget=request.budget,
        candidates=state.number,
        valid=state.valid,
        refused=state.refused,
        seconds=round(state.seconds, 3),
        vetting_seconds=round(state.vetting_seconds, 3),
        fired=state.converted,
        unfired=sorted(set(operators) - set(state.converted)),
        signatures=len(state.seen),
        deaths=state.deaths,
        lost_references=0,
        refuted=state.refuted,
        pending=0,
        known=[],
        complaints=state.complaints,
        findings=findings,
        causes=probable_causes(findings),
    )


def _with_counts(state: SourceHuntState) -> Iterator[HuntFinding]:
    """The findings with the keys that lead to them, and how many sources showed these."""
    for finding in state.findings:
        keys = [key for key, found in state.found.items() if found == finding.fingerprint]
        models = max((state.seen.get(key, 1) for key in keys), default=1)
        yield finding.model_copy(update={"keys": keys, "models": models})
