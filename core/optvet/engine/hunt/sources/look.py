"""A quick look at what a converter makes of sources; runs in workers.

The converter runs in the process that makes and judges, like an optimizer in other hunts: what is
seen here is a suspicion.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no types
from onnx import load_from_string

from optvet.engine.convert.compare_outputs import judge_pair
from optvet.engine.convert.conversion_inputs import ConversionInput, inputs_of, is_finite
from optvet.engine.convert.match_interface import fed_to, match_outputs
from optvet.engine.convert.undefined_inputs import undefined_inside
from optvet.engine.convert.worker_steps import (
    Converted,
    Observed,
    convert,
    describe,
    observe,
    open_session,
)
from optvet.engine.hunt.probable_causes import EMPTY, SPECIAL
from optvet.engine.hunt.sources.plan import SourceRecipe
from optvet.engine.hunt.sources.target import FUNCTION, TestedConverter
from optvet.engine.judge.defined import undefined_in
from optvet.engine.judge.failures import CONVERTER
from optvet.engine.judge.sample import SampleVerdict, Setting, judge_failure, unlike
from optvet.engine.runtime_target import lacks_kernel
from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import Outputs, infer
from optvet.engine.work.trials.raised_errors import normalized_message
from optvet.spec.converters import Factory, MakesSources, SourceFacts
from optvet.spec.errors import InputError, OptvetError
from optvet.spec.foreign import read_text
from optvet.spec.protocols import Feeds
from optvet.spec.types import Artifact, Failure

_QUICK = Setting(maker=CONVERTER, quick=1024.0)
"""Kernels of two libraries, without measured noise."""

State = Literal["invalid", "refused", "right", "suspect", "died", "broken"]


@dataclass(frozen=True)
class SourceOutcome:
    """What became of a recipe.

    Attributes:
        state: "invalid": no source, or one that cannot be judged; "died": the worker did;
            "broken": the file that was made cannot be loaded.
        seconds: CPU time.
        symptom: What looks wrong.
        words: Its message without names and numbers.
        sample: The input that shows it.
    """

    state: State
    seconds: float = 0.0
    symptom: str = ""
    words: str = ""
    sample: str = ""

    def line(self) -> str:
        """A line of a journal."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True)
class SourceBatch:
    """Recipes for a worker, which appends an outcome for each to ``journal``."""

    tested: TestedConverter
    recipes: Sequence[SourceRecipe]
    seed: int
    journal: Path


def operators_of(tested: TestedConverter) -> dict[str, list[str]]:
    """Operators that sources are made of, with their element types."""
    maker = tested.maker.runtime
    assert isinstance(maker, MakesSources)
    return {name: list(types) for name, types in maker.source_operators().items() if types}


def read_outcomes(journal: Path) -> list[SourceOutcome]:
    """The outcomes in a journal; a line that was being written is left out."""
    if not journal.exists():
        return []
    lines = read_text(journal).split("\n")[:-1]
    return [SourceOutcome(**json.loads(line)) for line in lines]


def look_at_batch(batch: SourceBatch, start: int) -> None:
    """Look at the recipes from ``start`` on."""
    with batch.journal.open("a", encoding="utf-8") as file:
        for recipe in batch.recipes[start:]:
            began = time.process_time()
            outcome = look_at(batch.tested, recipe, batch.seed)
            outcome = replace(outcome, seconds=time.process_time() - began)
            file.write(outcome.line())
            file.flush()


def look_at(tested: TestedConverter, recipe: SourceRecipe, seed: int) -> SourceOutcome:
    """Make a source, convert it, and compare both."""
    maker = tested.maker.runtime
    assert isinstance(maker, MakesSources)
    with TemporaryDirectory(prefix="optvet-source-") as scratch:
        folder, made = Path(scratch, "source"), Path(scratch, "made")
        folder.mkdir()
        made.mkdir()
        name = maker.make_source(recipe.steps, recipe.dynamic, folder)
        if name is None:
            return SourceOutcome("invalid")
        source = Artifact(tested.format, path=folder / name, handle=Factory(FUNCTION))
        try:
            facts = describe(tested.maker, source)
            inputs, expected = _run_source(tested, source, facts, seed)
        except InputError as error:
            return SourceOutcome("broken", words=f"{', '.join(recipe.operators)}: {error}"[:300])
        if not expected:
            return SourceOutcome("invalid")
        converted = convert(tested.converter, source, tested.options, made)
        return _judge(tested, source, facts, inputs, expected, converted)


def _run_source(
    tested: TestedConverter, source: Artifact, facts: SourceFacts, seed: int
) -> tuple[list[ConversionInput], dict[str, Outputs]]:
    """Inputs of the source with its outputs, unless these differ from run to run."""
    inputs = inputs_of(facts, seed=seed, random=1, edges=True, sizes=True)
    expected: dict[str, Outputs] = {}
    enter("run")
    session = open_session(tested.maker, source)
    for each in inputs:
        feeds = each.sample.feeds
        try:
            one = infer(tested.maker.runtime, session, feeds)
            # In one session: whatever draws random numbers draws others.
            two = infer(tested.maker.runtime, session, feeds)
        except OptvetError:
            raise
        except Exception:
            if each.origin == "example":
                return inputs, {}
            continue
        if unlike(one, two) or any(v.dtype.kind not in "fiubV" for v in one.values()):
            return inputs, {}
        expected[each.sample.id] = one
    return inputs, expected


def _judge(
    tested: TestedConverter,
    source: Artifact,
    facts: SourceFacts,
    inputs: Sequence[ConversionInput],
    expected: dict[str, Outputs],
    converted: Converted,
) -> SourceOutcome:
    if converted.failure is not None or not converted.artifacts:
        return SourceOutcome("refused")
    kept = [i for i in inputs if i.sample.id in expected and not i.outside_domain]
    samples = [i.sample for i in kept]
    observed = observe(tested.target, converted.artifacts[-1], samples, True)
    for sample in samples:
        verdict = _verdict(observed, expected[sample.id], sample.id, facts)
        if verdict.right or verdict.symptom is None:
            continue
        if verdict.failed and lacks_kernel("", verdict.message) and not observed.complaint:
            return SourceOutcome("refused")
        # What cannot be loaded has no answer on any input.
        if observed.load is None and undefined_inside(tested.maker, source, [sample]):
            continue
        if _is_undefined(converted.artifacts[-1], sample.feeds):
            continue
        words = normalized_message(verdict.message) if verdict.failed else ""
        return SourceOutcome("suspect", 0.0, str(verdict.symptom), words, sample.id)
    return SourceOutcome("right")


def _is_undefined(artifact: Artifact, feeds: Feeds) -> bool:
    """Whether the standard has no answer for what was made: runtimes differ, and none is wrong."""
    if artifact.format != "onnx":
        return False
    try:
        return bool(undefined_in(load_from_string(artifact.data), fed_to(artifact, feeds)))
    except (DecodeError, ValueError):
        return False  # it is no model, or takes other inputs: that is judged


def _verdict(
    observed: Observed, expected: Outputs, sample: str, facts: SourceFacts
) -> SampleVerdict:
    if observed.load is not None:
        stage: Literal["check", "load"] = "check" if observed.complaint else "load"
        return judge_failure(observed.load, CONVERTER, stage, earlier=observed.complaint)
    run = observed.runs[sample]
    if isinstance(run, Failure):
        return judge_failure(run, CONVERTER, "run")
    return judge_pair(match_outputs(expected, run, facts=facts), None, _QUICK)


def write_source(
    tested: TestedConverter, recipe: SourceRecipe, seed: int, sample: str, folder: Path
) -> tuple[str, list[str]] | None:
    """Write a source whose example is what one of its inputs was; its file, and what is contrived.

    An edge value that is infinite or NaN is contrived: the source's own example shows nothing, and
    it was put in here.
    """
    maker = tested.maker.runtime
    assert isinstance(maker, MakesSources)
    name = maker.make_source(recipe.steps, recipe.dynamic, folder)
    if name is None:
        return None
    source = Artifact(tested.format, path=folder / name, handle=Factory(FUNCTION))
    inputs = inputs_of(describe(tested.maker, source), seed=seed, random=1, edges=True, sizes=True)
    shown = next(i for i in inputs if i.sample.id == sample)
    feeds: Feeds = shown.sample.feeds
    contrived = [EMPTY] if any(0 in value.shape for value in feeds.values()) else []
    if shown.origin == "edge" and not all(map(is_finite, feeds.values())):
        contrived.append(SPECIAL)
    name = maker.make_source(recipe.steps, recipe.dynamic, folder, feeds)
    return None if name is None else (name, contrived)
