"""A hunt in a converter: its candidates are sources of one operator, then of several."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from optvet.engine.discovery import Plugins
from optvet.engine.hunt.loop import HuntBudget, HuntSetup, Part
from optvet.engine.hunt.sources.confirm import SourceConfirmer, key_of
from optvet.engine.hunt.sources.look import Looker, open_looker
from optvet.engine.hunt.sources.plan import SourceRecipe, SuspectedSource, recipe_of
from optvet.engine.hunt.sources.steps import SourceOutcome
from optvet.engine.hunt.sources.target import resolve_converter
from optvet.engine.hunt.state import HuntState, Sign, Suspect
from optvet.engine.hunt.summary import About
from optvet.engine.hunt.suspicions import ANY, Complaint, Rewrite
from optvet.engine.work.sandbox import keep_servers
from optvet.spec.hunt import OPERATORS_CONVERTED, HuntRequest
from optvet.spec.scratch import temporary_folder

_BATCH = 10
_MOST_COMPLAINTS = 5


@dataclass(frozen=True)
class ConverterTarget:
    """Hunt target for a converter: generates sources and compares their conversions.

    Attributes:
        looker: Looks at sources.
        confirmer: Leaves out what a suspect does not need.
        operators: Those that sources are made of, with their element types.
        last: Those of them that can only be the last step.
        seed: Of the hunt.
        folder: For the files of workers.
    """

    looker: Looker
    confirmer: SourceConfirmer
    operators: Mapping[str, Sequence[str]]
    last: Collection[str]
    seed: int
    folder: Path

    def plan(self, state: HuntState, size: int) -> list[Part[SourceOutcome]]:
        """The next sources, in batches."""
        # A source follows from its number: nothing that was found changes the next ones.
        numbers = range(state.number, state.number + size)
        parts = [numbers[at : at + _BATCH] for at in range(0, size, _BATCH)]
        return [partial(self._look, part) for part in parts]

    def _look(self, numbers: range) -> tuple[list[SourceOutcome], float]:
        recipes = [self._recipe(number) for number in numbers]
        place = self.folder / str(numbers.start)
        return self.looker.timed_look(recipes, self.seed, place)

    def _recipe(self, number: int) -> SourceRecipe:
        return recipe_of(number, self.seed, self.operators, self.last)

    def learn(self, state: HuntState, records: Sequence[SourceOutcome]) -> None:
        """Take the records of a round, and note what looks wrong."""
        for outcome in records:
            number = state.number
            recipe = self._recipe(number)
            state.number += 1
            state.valid += outcome.valid
            state.refused += outcome.state == "refused"
            if outcome.state == "died":
                state.deaths[ANY] += 1  # of a composition it is not asked which operator it was
            # An operator counts as converted once, however often it stands in a source.
            if outcome.valid:
                state.rewrites.update({Rewrite(name) for name in recipe.operators})
            if outcome.state == "broken" and len(state.complaints) < _MOST_COMPLAINTS:
                words = f"a source was made that cannot be loaded: {outcome.words}"
                state.complain(Complaint((words,), words))
            if outcome.state == "suspect":
                state.suspects.append(self._suspect(state, number, recipe, outcome))

    def _suspect(
        self, state: HuntState, number: int, recipe: SourceRecipe, outcome: SourceOutcome
    ) -> Suspect:
        # First, since the settings that are left tell causes apart.
        recipe, outcome = self.confirmer.without_needless(recipe, outcome)
        key = key_of(recipe.names, outcome)
        state.signs.setdefault(key, Sign()).seen += 1
        source = SuspectedSource(recipe, outcome.sample)
        return Suspect(number, b"", {}, key.passes, key, (), source=source)

    def close(self) -> None:
        """End all workers."""
        self.looker.close()


@contextmanager
def open_converter(
    request: HuntRequest, plugins: Plugins, jobs: int
) -> Iterator[HuntSetup[SourceOutcome]]:
    """What a hunt in a converter is in, with workers in the environments that it needs.

    Raises:
        UsageError: The request cannot be answered.
    """
    tested = resolve_converter(request, plugins)
    keep_servers()  # each suspicion is vetted with processes of its own
    with (
        open_looker(tested, plugins, jobs) as looker,
        temporary_folder("optvet-hunt-") as folder,
    ):
        operators = looker.operators()
        about = About(tested.name, looker.version(), sorted(operators), OPERATORS_CONVERTED)
        given, out = request.optimizer_options, request.folder.absolute()
        confirmer = SourceConfirmer(looker, given, plugins, out, jobs, request.seed)
        target = ConverterTarget(
            looker, confirmer, operators, looker.last_operators(), request.seed, Path(folder)
        )
        # A small round: its suspects are looked at again, without settings, before they are vetted.
        budget = HuntBudget.of(request.budget, _BATCH * jobs, _BATCH)
        yield HuntSetup(about, target, budget, confirmer)
