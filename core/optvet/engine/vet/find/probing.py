"""Whether the original runs on inputs that a dataset proposes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import TypeAdapter

from optvet.engine.models.opening import OPSET_FLOOR, is_for_evaluator
from optvet.engine.work.cache import cache_key
from optvet.engine.work.cache.environment_fingerprint import about_plugin, fingerprint_environment
from optvet.engine.work.sandbox.outcome import describe
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.trial import TrialSpec, probe
from optvet.engine.work.trials.trial_runner import TrialRunner, refuse_misuse
from optvet.graph.walk import ONNX_DOMAIN
from optvet.spec.errors import CannotLoad, InputError, NothingTested
from optvet.spec.foreign import load_model
from optvet.spec.protocols import Feeds
from optvet.spec.types import Failure, Sample

_PROBED: TypeAdapter[tuple[str | None]] = TypeAdapter(tuple[str | None])
"""The form in which answers are cached."""


class Probing:
    """Runs the original on proposed inputs; answers are cached."""

    def __init__(self, runner: TrialRunner, timeout_s: float) -> None:
        self._lab, self._timeout_s = runner, timeout_s
        self._late = 0

    def __call__(self, feeds: Sequence[Feeds]) -> list[str | None]:
        """For each of ``feeds``, None if the original runs on it, else the runtime's message.

        Raises:
            InputError: The runtime cannot load the original.
            NothingTested: The original has run into the time limit twice.
        """
        runner, reference = self._lab, self._lab.case.reference
        samples = [Sample(f"probe-{i}", f) for i, f in enumerate(feeds)]
        keys = [
            cache_key.key(
                "probe",
                fingerprint_environment(),
                runner.model.digest,
                about_plugin(reference.runtime),
                reference.options.model_dump(mode="json"),
                runner.sample_digest(s),
            )
            for s in samples
        ]
        answers: dict[int, str | None] = {}
        for i, key in enumerate(keys):
            known = runner.cache.read(key, _PROBED.validate_json)
            if known is not None:
                (answers[i],) = known
        todo = [i for i in range(len(samples)) if i not in answers]
        fresh = self._ask([samples[i] for i in todo]) if todo else []
        for i, answer in zip(todo, fresh, strict=True):
            answers[i] = answer
            runner.cache.put(keys[i], "probe", json.dumps([answer]).encode())
        return [answers[i] for i in range(len(samples))]

    def _ask(self, samples: Sequence[Sample]) -> list[str | None]:
        runner = self._lab
        order = TrialSpec(runner.build_spec(None), runner.case.reference, tuple(samples))
        outcome = runner.sandbox.call(probe, order, role="judging")
        runner.ledger.add("inputs", inferences=len(samples))
        if outcome.value is not None:
            return outcome.value
        refuse_misuse(outcome.failure)
        if outcome.failure is not None and outcome.failure.kind == "timeout":
            self._late += 1
            if self._late > 1:
                raise no_answer(runner.case, self._timeout_s)
        if outcome.failure is not None and outcome.failure.stage == "load":
            raise cannot_load(runner.case, outcome.failure)
        if len(samples) == 1:
            return [describe(outcome.failure) if outcome.failure else "no answer"]
        return [answer for sample in samples for answer in self._ask([sample])]


def no_answer(case: Case, timeout_s: float) -> NothingTested:
    """The error for an original that runs into the time limit."""
    return NothingTested(
        f"{case.model.source}: the original model does not end within {timeout_s:g} s, twice; give "
        "it more with --timeout, or take other inputs"
    )


def cannot_load(case: Case, failure: Failure) -> InputError:
    """The error for an original that its runtime cannot load.

    ``CannotLoad`` if the evaluator may replace the runtime.
    """
    opset = case.model.opsets.get(ONNX_DOMAIN, OPSET_FLOOR)
    advice = "choose another runtime, or repair the model"
    if opset < OPSET_FLOOR:
        advice = (
            f"its opset is {opset}, and runtimes promise {OPSET_FLOOR} and later only: take a "
            "newer export, or convert it with onnx.version_converter"
        )
    outline = load_model(case.model.path, weights=False)
    kind = CannotLoad if is_for_evaluator(outline) else InputError
    return kind(
        f"{case.model.source}: {case.reference.runtime.name} cannot load the original "
        f"model: {describe(failure)}; {advice}"
    )
