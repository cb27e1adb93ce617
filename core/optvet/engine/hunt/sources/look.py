"""A quick look at what a converter makes of sources: each step in the environment of its plugin.

Where all plugins are in one environment, one process makes, converts and judges, like an optimizer
in other hunts.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from optvet.engine.convert import worker_steps
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.hunt.progress_log import LoggedStep
from optvet.engine.hunt.sources import steps
from optvet.engine.hunt.sources.plan import SourceRecipe
from optvet.engine.hunt.sources.steps import (
    OPEN,
    ConvertSource,
    JudgeResult,
    LookStep,
    MakeSource,
    ObserveResult,
    SourceBatch,
    SourceOutcome,
)
from optvet.engine.hunt.sources.target import TestedConverter
from optvet.engine.hunt.workers import do_batch, results_of
from optvet.engine.work.sandbox import Limits, Sandbox
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.server_modules import preload_for
from optvet.spec.converters import ConverterExtras, MakesSources, SourceExtras
from optvet.spec.errors import UsageError
from optvet.spec.extras import given
from optvet.spec.removal import remove_folder

_BATCH_S = 600.0
_MEMORY_BYTES = 8 << 30
PluginT = TypeVar("PluginT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Looker:
    """Looks at sources.

    Attributes:
        tested: The converter.
        sandboxes: Workers, by environment.
        stages: Steps that one worker takes, in order, each with its environment.
    """

    tested: TestedConverter
    sandboxes: Mapping[str, Sandbox]
    stages: Sequence[tuple[str, tuple[LookStep, ...]]]

    @property
    def make(self) -> MakeSource:
        """The first step."""
        return MakeSource(self.tested.maker, self.tested.format)

    @property
    def maker(self) -> Sandbox:
        """Where sources are made."""
        return self.sandboxes[self.tested.maker_home]

    def close(self) -> None:
        """End all workers."""
        for sandbox in self.sandboxes.values():
            sandbox.close()

    def version(self) -> str:
        """The version of the converter's library.

        Raises:
            UsageError: It cannot be used.
        """
        sandbox = self.sandboxes[self.tested.converter_home]
        outcome = sandbox.call(worker_steps.version, self.tested.converter)
        if outcome.value is None:
            assert outcome.failure is not None
            raise UsageError(f"{self.tested.name} cannot be used: {describe(outcome.failure)}")
        return outcome.value

    def operators(self) -> dict[str, list[str]]:
        """Operators that sources are made of and the converter takes, with their element types.

        Raises:
            UsageError: There are none.
        """
        converter = self.tested.converter
        made = self._ask(self.maker, steps.operators_of, self.tested.maker.runtime)
        # Sources of other operators would all be refused, after they were made and run.
        if given(converter, ConverterExtras.taken_operators):
            home = self.sandboxes[self.tested.converter_home]
            taken = self._ask(home, steps.taken_operators_of, converter)
            made = {name: types for name, types in made.items() if name in taken}
        if not made:
            raise self._no_operators("it knows none")
        return made

    def last_operators(self) -> frozenset[str]:
        """Those that can only be the last step of a source."""
        maker = self.tested.maker.runtime
        if not given(maker, SourceExtras.last_operators):
            return frozenset()
        return self._ask(self.maker, steps.last_operators_of, maker)

    @property
    def tells_settings(self) -> bool:
        """Whether steps of its sources have settings."""
        return given(self.tested.maker.runtime, SourceExtras.source_settings) is not None

    def settings(self, recipe: SourceRecipe) -> list[dict[str, str]]:
        """What is not usual about each step, in words by name; nothing where that is not told."""
        about = (self.tested.maker.runtime, recipe.steps)
        outcome = self.maker.call(steps.settings_of, *about) if self.tells_settings else None
        return (outcome.value if outcome else None) or [{} for _ in recipe.steps]

    def _ask(
        self, sandbox: Sandbox, question: Callable[[PluginT], AnswerT], plugin: PluginT
    ) -> AnswerT:
        outcome = sandbox.call(question, plugin)
        if outcome.failure is not None:
            raise self._no_operators(outcome.failure.message)
        assert outcome.value is not None
        return outcome.value

    def _no_operators(self, why: str) -> UsageError:
        return UsageError(f"{self.tested.name}: no operators to make sources of: {why}")

    def look(self, recipes: Sequence[SourceRecipe], seed: int, folder: Path) -> list[SourceOutcome]:
        """What becomes of recipes, in order; ``folder`` is made, and removed."""
        return self.timed_look(recipes, seed, folder)[0]

    def timed_look(
        self, recipes: Sequence[SourceRecipe], seed: int, folder: Path
    ) -> tuple[list[SourceOutcome], float]:
        """The same, with the CPU seconds that it took."""
        folder.mkdir()
        found = [OPEN] * len(recipes)
        spent = 0.0
        for number, (home, taken) in enumerate(self.stages):
            # Those that an earlier stage has not decided, such as by a refusal.
            left = [i for i, outcome in enumerate(found) if outcome.state == "open"]
            listed = [(recipes[i], folder / str(i)) for i in left]
            batch = SourceBatch(taken, listed, seed, folder / f"stage-{number}")
            records, seconds = results_of(self.sandboxes[home], batch)
            spent += seconds
            # A source of which the worker died is not looked at further, in any environment.
            for i, record in zip(left, records, strict=True):
                found[i] = _died(record) if isinstance(record, LoggedStep) else record
        # What frameworks wrote for each source may be large, and was read.
        remove_folder(folder)
        return found, spent


def _died(logged: LoggedStep) -> SourceOutcome:
    return SourceOutcome("died", words=logged.signal)


@contextmanager
def open_looker(tested: TestedConverter, plugins: Plugins, jobs: int) -> Iterator[Looker]:
    """A looker with its workers, which import what they need once."""
    # Plugins that share an environment share its workers: what they import takes seconds.
    pythons = Pythons({}, environments_root())
    converter, runtime = tested.converter, tested.maker.runtime
    assert isinstance(runtime, MakesSources)
    runtimes = ((tested.maker_home, runtime), (tested.target_home, tested.target.runtime))
    modules = (
        (tested.converter_home, converter.preload),
        (tested.maker_home, runtime.source_preload),
    )
    sandboxes = {}
    with contextlib.ExitStack() as stack:
        for home in dict.fromkeys((tested.maker_home, tested.converter_home, tested.target_home)):
            preload = (
                *preload_for(None, *(r for where, r in runtimes if where == home)),
                *(name for where, names in modules if where == home for name in names),
                steps.__name__,
                do_batch.__module__,
            )
            sandbox = Sandbox(
                jobs=jobs,
                limits=Limits(_BATCH_S, _MEMORY_BYTES),
                preload=tuple(dict.fromkeys(preload)),
                interpreter=pythons.interpreter_of(home, plugins) if home else None,
            )
            sandboxes[home] = stack.enter_context(sandbox)
        yield Looker(tested, sandboxes, _stages_of(tested))


def _stages_of(tested: TestedConverter) -> list[tuple[str, tuple[LookStep, ...]]]:
    """The steps, those in a row together that one environment takes."""
    taken: list[tuple[str, LookStep]] = [
        (tested.maker_home, MakeSource(tested.maker, tested.format)),
        (tested.converter_home, ConvertSource(tested.converter, tested.options)),
        (tested.target_home, ObserveResult(tested.target)),
        (tested.maker_home, JudgeResult(tested.maker)),
    ]
    # Only neighbours: what is made in one environment and judged in it is run in another between.
    grouped = itertools.groupby(taken, key=itemgetter(0))
    return [(home, tuple(step for _, step in group)) for home, group in grouped]
