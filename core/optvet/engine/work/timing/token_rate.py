"""How fast a model writes text, token by token: of models that are run once for each token."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import BaseModel

from optvet.engine.work.sandbox import enter
from optvet.engine.work.trials.inference import Outputs, infer, load
from optvet.engine.work.trials.placement import value_or_reason
from optvet.engine.work.trials.trial import TrialSpec, alignment_of
from optvet.engine.work.trials.trial_runner import TrialRunner
from optvet.spec.protocols import Decodes, Feeds
from optvet.spec.records.timing import Pace
from optvet.spec.types import Artifact, Model, Sample

_REPEATS = 5


@dataclass(frozen=True)
class Writer:
    """A comparator that decodes outputs to text, and its options."""

    comparator: Decodes
    options: BaseModel


def find_pace(
    runner: TrialRunner, passes: Sequence[str] | None, samples: Sequence[Sample], writer: Writer
) -> Pace | str:
    """The rate at which the model after ``passes`` continues ``samples``; or why there is none.

    Args:
        runner: Its case says which runtime runs the models, and with which options.
        passes: None is the original model.
        samples: The prompts; each is continued five times, after once to warm up.
        writer: Calls the model.
    """
    build_spec = runner.build_spec(passes)
    order = runner.order(build_spec, samples)
    outcome = runner.submit(
        build_spec, time_answers, order, runner.model, writer, fresh=True
    ).result()
    found = value_or_reason(outcome)
    if isinstance(found, str):
        return found
    firsts, others = found
    if not others:
        return "the answer takes a single run"
    return Pace(
        first_token_s=median(firsts),
        per_token_s=median(others),
        tokens=1 + len(others) // len(firsts),
        repeats=_REPEATS,
    )


def time_answers(
    artifact: Artifact, order: TrialSpec, model: Model, writer: Writer
) -> tuple[list[float], list[float]]:
    """Seconds of the first run of each answer, and of all further runs. Called in a worker."""
    assert order.config is not None
    runtime, alignment = order.config.runtime, alignment_of(order, artifact)
    enter("load")
    session = load(order.config, artifact)
    enter("run")
    seconds: list[float] = []

    def run(feeds: Feeds) -> Outputs:
        started = time.perf_counter()
        outputs = infer(runtime, session, feeds, alignment)
        seconds.append(time.perf_counter() - started)
        return outputs

    firsts, others = list[float](), list[float]()
    for sample in order.samples:
        for repeat in range(1 + _REPEATS):
            seconds.clear()
            writer.comparator.decode(model, sample, run, writer.options)
            if repeat:
                firsts += seconds[:1]
                others += seconds[1:]
    return firsts, others
