"""The steps of a quick look at what a converter makes of a source; they run in workers.

Each step runs where the library of its plugin is, and keeps what it found in a file for the next.
What they see is a suspicion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import load_from_string
from pydantic import BaseModel

from optvet.engine.convert.compare_outputs import judge_pair
from optvet.engine.convert.conversion_inputs import ConversionInput, inputs_of, is_finite
from optvet.engine.convert.match_interface import fed_to, match_outputs
from optvet.engine.convert.undefined_inputs import find_open_operations, undefined_inside
from optvet.engine.convert.worker_steps import (
    Converted,
    Observed,
    convert,
    describe,
    observe,
)
from optvet.engine.hunt.probable_causes import EMPTY, SPECIAL
from optvet.engine.hunt.progress_log import ProgressLog, StepLimit
from optvet.engine.hunt.sources.plan import SourceRecipe
from optvet.engine.judge.failures import CONVERTER
from optvet.engine.judge.sample import SampleVerdict, Setting, judge_failure, unlike
from optvet.engine.runtime_target import lacks_kernel
from optvet.engine.standard.defined import undefined_in
from optvet.engine.work.sandbox import enter
from optvet.engine.work.sandbox.answers import read_answer
from optvet.engine.work.sandbox.portable import pickle_portably
from optvet.engine.work.trials.inference import Outputs, RuntimeConfig, infer, open_session
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.converters import (
    Converter,
    ConverterExtras,
    Factory,
    MakesSources,
    SourceExtras,
    SourceFacts,
    SourceStep,
)
from optvet.spec.errors import InputError, OptvetError
from optvet.spec.extras import extras
from optvet.spec.protocols import Feeds
from optvet.spec.runtime_protocols import Runtime
from optvet.spec.types import Artifact, Failure, Sample

FUNCTION = "part"
"""The function of a made source."""
_QUICK = Setting(maker=CONVERTER, quick=1024.0)
"""Kernels of two libraries, without measured noise."""
_KEPT = "case.pickle"

State = Literal["open", "invalid", "refused", "right", "suspect", "died", "broken"]


@dataclass(frozen=True)
class SourceOutcome:
    """What became of a recipe.

    Attributes:
        state: "open": further steps decide; "invalid": no source, or one that cannot be judged;
            "died": the worker did; "broken": the file that was made cannot be loaded.
        symptom: What looks wrong.
        words: Its message without names and numbers.
        sample: The input that shows it.
    """

    state: State
    symptom: str = ""
    words: str = ""
    sample: str = ""

    @property
    def valid(self) -> bool:
        """Whether it could be judged."""
        return self.state in ("right", "suspect")


OPEN = SourceOutcome("open")


@dataclass(frozen=True)
class SourceCase:
    """A source on its way through the steps.

    Attributes:
        source: The source.
        facts: How it is called.
        inputs: What it is called with.
        expected: Its outputs, by sample.
        converted: What the converter made of it.
        observed: What that does.
        undefined: Samples on which its format has no defined answer.
    """

    source: Artifact
    facts: SourceFacts
    inputs: Sequence[ConversionInput]
    expected: dict[str, Outputs]
    converted: Converted = field(default_factory=lambda: Converted(()))
    observed: Observed = field(default_factory=Observed)
    undefined: frozenset[str] = frozenset()

    @property
    def samples(self) -> list[Sample]:
        """Those that are judged."""
        judged = (i for i in self.inputs if i.sample.id in self.expected and not i.outside_domain)
        return [i.sample for i in judged]

    def verdict(self, sample: Sample) -> SampleVerdict:
        """Whether what was made looks right on a sample."""
        observed = self.observed
        if observed.load is not None:
            stage: Literal["check", "load"] = "check" if observed.complaint else "load"
            return judge_failure(observed.load, CONVERTER, stage, earlier=observed.complaint)
        run = observed.runs[sample.id]
        if isinstance(run, Failure):
            return judge_failure(run, CONVERTER, "run")
        matched = match_outputs(self.expected[sample.id], run, facts=self.facts)
        return judge_pair(matched, None, _QUICK)

    def keep(self, place: Path) -> SourceOutcome:
        """Keep it for the next step."""
        (place / _KEPT).write_bytes(pickle_portably(self))
        return OPEN


def _kept(place: Path) -> SourceCase:
    case = read_answer((place / _KEPT).read_bytes())
    assert isinstance(case, SourceCase)
    return case


class LookStep(Protocol):
    """A step, with the plugins that it needs."""

    def take(self, recipe: SourceRecipe, seed: int, place: Path) -> SourceOutcome:
        """Take it for a recipe, whose files are in ``place``."""
        ...


@dataclass(frozen=True)
class MakeSource:
    """Make a source, and run it."""

    maker: RuntimeConfig
    format: str

    def take(self, recipe: SourceRecipe, seed: int, place: Path) -> SourceOutcome:
        """Write it, and run it twice on inputs."""
        maker = self.maker.runtime
        assert isinstance(maker, MakesSources)
        folder = place / "source"
        folder.mkdir(parents=True)
        name = maker.make_source(recipe.steps, recipe.dynamic, folder)
        if name is None:
            return SourceOutcome("invalid")
        source = Artifact(self.format, path=folder / name, handle=Factory(FUNCTION))
        try:
            facts = describe(self.maker, source)
            inputs = inputs_of(facts, seed=seed, random=1, edges=True, sizes=True)
            expected = self._run(source, inputs)
        except InputError as error:
            return SourceOutcome("broken", words=f"{', '.join(recipe.operators)}: {error}"[:300])
        # Without the answer of the source there is nothing to compare with.
        if not expected:
            return SourceOutcome("invalid")
        return SourceCase(source, facts, inputs, expected).keep(place)

    def _run(self, source: Artifact, inputs: Sequence[ConversionInput]) -> dict[str, Outputs]:
        """Outputs of the source, unless these differ from run to run."""
        expected: dict[str, Outputs] = {}
        enter("run")
        session = open_session(self.maker, source)
        for each in inputs:
            feeds = each.sample.feeds
            try:
                one = infer(self.maker.runtime, session, feeds)
                # In one session: whatever draws random numbers draws others.
                two = infer(self.maker.runtime, session, feeds)
            except OptvetError:
                raise
            except Exception:
                if each.origin == "example":
                    return {}
                continue
            if unlike(one, two) or any(v.dtype.kind not in "fiubV" for v in one.values()):
                return {}
            expected[each.sample.id] = one
        return expected


@dataclass(frozen=True)
class ConvertSource:
    """Convert the source."""

    converter: Converter
    options: BaseModel

    def take(self, recipe: SourceRecipe, seed: int, place: Path) -> SourceOutcome:
        """Keep what is made; a refusal is no fault."""
        case = _kept(place)
        made = place / "made"
        made.mkdir()
        converted = convert(self.converter, case.source, self.options, made)
        # Refusing a source is what a converter may do: `convert` judges errors, hunts do not.
        if converted.failure is not None or not converted.artifacts:
            return SourceOutcome("refused")
        return replace(case, converted=converted).keep(place)


@dataclass(frozen=True)
class ObserveResult:
    """Run what was made."""

    target: RuntimeConfig

    def take(self, recipe: SourceRecipe, seed: int, place: Path) -> SourceOutcome:
        """Run it on the inputs of the source."""
        case = _kept(place)
        artifact = case.converted.artifacts[-1]
        observed = observe(self.target, artifact, case.samples, True)
        if observed.unconverted:
            return SourceOutcome("refused")
        case = replace(case, observed=observed)
        # Only of what looks wrong it is asked whether it is defined, which takes runs of its own.
        wrong = [] if observed.load else [s for s in case.samples if not case.verdict(s).right]
        if artifact.format != "onnx":
            # Only here is its runtime, which knows what the format leaves open.
            undefined = find_open_operations(self.target, artifact, wrong)
            case = replace(case, undefined=frozenset(undefined))
        return case.keep(place)


@dataclass(frozen=True)
class JudgeResult:
    """Compare both."""

    maker: RuntimeConfig

    def take(self, recipe: SourceRecipe, seed: int, place: Path) -> SourceOutcome:
        """The first sample that looks wrong, and has a defined answer."""
        case = _kept(place)
        artifact, observed = case.converted.artifacts[-1], case.observed
        # The first sample is enough: which of them shows it, the bundle asks again.
        for sample in case.samples:
            verdict = case.verdict(sample)
            if verdict.right or verdict.symptom is None or sample.id in case.undefined:
                continue
            if verdict.failed and lacks_kernel("", verdict.message) and not observed.complaint:
                return SourceOutcome("refused")
            # What cannot be loaded has no answer on any input.
            is_loaded = observed.load is None
            if is_loaded and undefined_inside(self.maker, case.source, [sample]):
                continue
            if _is_undefined(artifact, sample.feeds):
                continue
            words = normalized_message(verdict.message) if verdict.failed else ""
            return SourceOutcome("suspect", str(verdict.symptom), words, sample.id)
        return SourceOutcome("right")


def _is_undefined(artifact: Artifact, feeds: Feeds) -> bool:
    """Whether the standard has no answer for what was made on these inputs.

    Then runtimes differ, and none is wrong. What has none on other inputs either, such as an
    attribute that the operator does not know, is the converter's.
    """
    if artifact.format != "onnx":
        return False
    try:
        model, fed = load_from_string(artifact.data), fed_to(artifact, feeds)
        found = {u.kind for u in undefined_in(model, fed)}
        ones = {name: np.ones_like(value) for name, value in fed.items()} if found else {}
        return bool(found - {u.kind for u in undefined_in(model, ones)})
    except (DecodeError, ValueError):
        return False  # it is no model, or takes other inputs: that is judged


_MOST_CPU = StepLimit(60.0, of_cpu=True)
"""Of a source: a converter that never ends is one that dies."""


@dataclass(frozen=True)
class SourceBatch:
    """Recipes for a worker, each with its place, which take ``steps`` until one decides."""

    steps: Sequence[LookStep]
    recipes: Sequence[tuple[SourceRecipe, Path]]
    seed: int
    place: Path
    limit: StepLimit = _MOST_CPU
    first: int = 0
    record: type[SourceOutcome] = SourceOutcome

    @property
    def count(self) -> int:
        """How many recipes there are."""
        return len(self.recipes)

    @contextmanager
    def opened(self, log: ProgressLog) -> Iterator[Callable[[int], SourceOutcome]]:
        """What takes the steps with the recipe of an index. Called in a worker."""

        def look(index: int) -> SourceOutcome:
            recipe, place = self.recipes[index]
            # One step for the log: a framework may take a minute for any of them.
            log.note("source", recipe.operators)
            outcomes = (step.take(recipe, self.seed, place) for step in self.steps)
            return next((found for found in outcomes if found.state != "open"), OPEN)

        yield look

    def after_death(self, results: Sequence[object]) -> SourceBatch:
        """The same: sources have nothing to do with each other."""
        return self


def operators_of(maker: Runtime) -> dict[str, list[str]]:
    """Operators that sources are made of, with their element types."""
    assert isinstance(maker, MakesSources)
    return {name: list(types) for name, types in maker.source_operators().items() if types}


def last_operators_of(maker: Runtime) -> frozenset[str]:
    """Operators that can only be the last step of a source."""
    return frozenset(extras(maker, SourceExtras).last_operators())


def settings_of(maker: Runtime, steps: Sequence[SourceStep]) -> list[dict[str, str]]:
    """What is not usual about each step."""
    return [dict(settings) for settings in extras(maker, SourceExtras).source_settings(steps)]


def taken_operators_of(converter: Converter) -> frozenset[str]:
    """Operators that a converter lists."""
    return frozenset(extras(converter, ConverterExtras).taken_operators())


def write_source(
    make: MakeSource, recipe: SourceRecipe, seed: int, sample: str, folder: Path
) -> tuple[str, list[str]] | None:
    """Write a source whose example is what one of its inputs was; its file, and what is contrived.

    An edge value that is infinite or NaN is contrived: the source's own example shows nothing, and
    it was put in here.
    """
    maker = make.maker.runtime
    assert isinstance(maker, MakesSources)
    name = maker.make_source(recipe.steps, recipe.dynamic, folder)
    # Written twice: its inputs are known only when the first one can be called.
    if name is None:
        return None
    source = Artifact(make.format, path=folder / name, handle=Factory(FUNCTION))
    inputs = inputs_of(describe(make.maker, source), seed=seed, random=1, edges=True, sizes=True)
    shown = next(i for i in inputs if i.sample.id == sample)
    feeds: Feeds = shown.sample.feeds
    contrived = [EMPTY] if any(0 in value.shape for value in feeds.values()) else []
    if shown.origin == "edge" and not all(map(is_finite, feeds.values())):
        contrived.append(SPECIAL)
    name = maker.make_source(recipe.steps, recipe.dynamic, folder, feeds)
    return None if name is None else (name, contrived)
