"""Answers that need several runs: decoded by a comparator in a worker, and cached by content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future

from pydantic import BaseModel

from optvet.engine.work.cache import cache_key
from optvet.engine.work.sandbox import Outcome
from optvet.engine.work.trials.inference import Outputs
from optvet.engine.work.trials.trial import decode
from optvet.engine.work.trials.trial_results import is_circumstantial, run_from_bytes, run_to_bytes
from optvet.engine.work.trials.trial_runner import TrialRunner, refuse_misuse
from optvet.spec.protocols import Decodes
from optvet.spec.types import Failure, Sample

AT_ONCE = 8
"""Number of samples per task, so that a large dataset does not exceed a task's time limit."""

Answer = Outputs | Failure
_Answers = Outcome[tuple[dict[str, Answer], int]]


class Decoder:
    """One comparator's answers of one trial runner."""

    def __init__(self, runner: TrialRunner, comparator: Decodes, options: BaseModel) -> None:
        self.runner, self.comparator, self.options = runner, comparator, options
        self._about = (
            getattr(comparator, "name", ""),
            comparator.decoder(runner.model, options),
            options,
            runner.model.config,
        )
        self._known: dict[str, Answer] = {}

    def answers(
        self, pipelines: Sequence[Sequence[str] | None], samples: Sequence[Sample]
    ) -> list[Mapping[str, Answer]]:
        """Answers by sample for each pipeline, None being the original, side by side.

        All of them were tried on ``samples`` before. A sample whose decoding failed has that
        failure.

        Raises:
            InputError: The comparator does not understand the model.
        """
        waiting = [
            (passes, chunk, self._submit(passes, chunk))
            for passes in pipelines
            for chunk in self._chunk_undecoded_samples(passes, samples)
        ]
        for passes, chunk, future in waiting:
            outcome = future.result()
            if outcome.ok or len(chunk) == 1:
                self._learn(passes, chunk, outcome)
            else:
                self._one_by_one(passes, chunk)
        found: list[Mapping[str, Answer]] = [
            {s.id: self._known[self._key(p, s)] for s in samples} for p in pipelines
        ]
        self._known.clear()
        return found

    def _submit(self, passes: Sequence[str] | None, chunk: Sequence[Sample]) -> Future[_Answers]:
        runner = self.runner
        # Without a label: nothing that is kept by the inputs alone may depend on one.
        order = runner.order(runner.build_spec(passes), [Sample(s.id, s.feeds) for s in chunk])
        # In a process of its own: a comparator may be anybody's code too.
        about = (order, runner.model, self.comparator, self.options)
        return runner.submit(order.build_spec, decode, *about, fresh=True)

    def _one_by_one(self, passes: Sequence[str] | None, chunk: Sequence[Sample]) -> None:
        """Which of several samples killed the worker.

        After one that was too slow alone, the rest is given up: each would take its full time too.
        """
        for i, sample in enumerate(chunk):
            outcome = self._submit(passes, [sample]).result()
            late = outcome.failure is not None and outcome.failure.kind == "timeout"
            self._learn(passes, chunk[i:] if late else [sample], outcome)
            if late:
                return

    def _learn(
        self, passes: Sequence[str] | None, chunk: Sequence[Sample], outcome: _Answers
    ) -> None:
        answers, count = outcome.value or ({}, 0)
        self.runner.ledger.add("decode", applications=int(passes is not None), inferences=count)
        for sample in chunk:
            answer = outcome.failure or answers[sample.id]
            if isinstance(answer, Failure):
                refuse_misuse(answer)
            key = self._key(passes, sample)
            self._known[key] = answer
            if not (isinstance(answer, Failure) and is_circumstantial(answer)):
                self.runner.cache.put(key, "decoded", run_to_bytes(answer))

    def _chunk_undecoded_samples(
        self, passes: Sequence[str] | None, samples: Sequence[Sample]
    ) -> Iterator[Sequence[Sample]]:
        """Samples without an answer, in chunks."""
        missing: dict[str, Sample] = {}
        for sample in samples:
            key = self._key(passes, sample)
            answer = self.runner.cache.read(key, run_from_bytes)
            if answer is not None:
                self._known[key] = answer
            else:
                missing[key] = sample
        rest = list(missing.values())
        for start in range(0, len(rest), AT_ONCE):
            yield rest[start : start + AT_ONCE]

    def _key(self, passes: Sequence[str] | None, sample: Sample) -> str:
        content = self.runner.content_key(passes, sample)
        assert content is not None  # only runs that were judged are decoded
        return cache_key.key("decoded", content, *self._about)
