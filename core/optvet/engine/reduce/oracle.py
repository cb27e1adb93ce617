"""From a finding to a minimal model with the same culprit and the same signature.

What has to stay while a model shrinks, each checked by trials in the sandbox:

- the reference is a valid model that runs on its inputs (and agrees with itself where outputs are
  compared, which the examiner sees to);
- the culprit shows the same signature: symptom, stage, words, and the kind of wrong output;
- no proper subsequence of the culprit does, so that a pair does not turn into a single pass;
- import and export alone are innocent, unless they are the culprit.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import ModelProto, TypeProto

from optvet.engine.models.opening import model_of
from optvet.engine.numerics.oracle import OTHER_KERNELS
from optvet.engine.reduce.search import (
    Budget,
    Candidate,
    Recorder,
    Reduction,
    reduce_model,
)
from optvet.engine.vet.examine import Examination, Examiner, Observation
from optvet.engine.work.cache import Cache
from optvet.engine.work.case import Case
from optvet.engine.work.facts import Ledger, Trial
from optvet.engine.work.lab import Lab, Progress
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trial import RuntimeConfig
from optvet.engine.work.values import infer, record_values
from optvet.graph import structure
from optvet.spec.errors import UsageError
from optvet.spec.types import NOTES, Failure, Model, ModelConfig, Sample, Symptom


@dataclass(frozen=True)
class Signature:
    """What makes two faults the same one; ``kind`` is "form" or "value" of wrong outputs."""

    symptom: Symptom
    stage: str
    words: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Shrunk:
    """A reduction with what it preserved; ``applications`` and ``inferences`` are what it cost."""

    reduction: Reduction
    signature: Signature
    applications: int = 0
    inferences: int = 0


def reduce_finding(
    case: Case,
    culprit: tuple[str, ...],
    witness: Sample,
    *,
    sandbox: Sandbox,
    jobs: int = 2,
    note: Symptom | None = None,
    budget: Budget | None = None,
    progress: Progress = lambda text, done, total: None,
) -> Shrunk:
    """Reduce a model while ``culprit`` shows on ``witness`` what it shows on the whole model.

    Args:
        case: The model of the finding, the optimizer, and how it is judged.
        culprit: The minimal pass sequence; empty for import and export alone.
        witness: The sample that shows it; its feeds are reduced with the model.
        sandbox: Runs all trials.
        jobs: Candidates that are judged at a time.
        note: What to look for in place of a fault; one of ``REDUCIBLE``.
        budget: When to stop with the best so far.
        progress: Called with what is being done, checks so far, and None.

    Raises:
        UsageError: The culprit does not show a fault on this model and sample, or not alone.
    """
    ledger = Ledger()
    with tempfile.TemporaryDirectory(prefix="optvet-shrink-") as folder:
        oracle = ReductionOracle(case, culprit, sandbox, Path(folder), jobs, note, ledger)
        with oracle:
            proto = case.model.load()
            oracle.open(proto, witness.feeds)
            reduction = reduce_model(
                proto,
                witness.feeds,
                oracle.test_all,
                record=recorder(sandbox, case.reference),
                types=types_by_inference(sandbox, proto),
                width=max(1, jobs),
                budget=budget,
                progress=progress,
            )
    assert oracle.target is not None
    cost = ledger.cost(0.0)
    return Shrunk(reduction, oracle.target, cost.applications, cost.inferences)


def recorder(sandbox: Sandbox, config: RuntimeConfig) -> Recorder:
    """Tells all values of a model on its feeds, by running it in the sandbox under ``config``."""

    def record(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        outcome = sandbox.call(record_values, model.SerializeToString(), dict(feeds), config)
        return outcome.value

    return record


def types_by_inference(sandbox: Sandbox, model: ModelProto) -> dict[str, TypeProto]:
    """What shape inference, run in the sandbox, says of inner values; empty if it fails."""
    outcome = sandbox.call(infer, model.SerializeToString())
    return {name: TypeProto.FromString(data) for name, data in (outcome.value or {}).items()}


# --- judging --------------------------------------------------------------------------------------


@dataclass
class _Candidate:
    """A candidate and its reference."""

    lab: Lab
    examiner: Examiner
    sample: Sample
    reference: Trial
    seen: dict[tuple[str, ...], Signature | None] = field(default_factory=dict)


class ReductionOracle:
    """Judges candidates against the signature of the whole model, several at a time."""

    def __init__(
        self,
        case: Case,
        culprit: tuple[str, ...],
        sandbox: Sandbox,
        folder: Path,
        jobs: int,
        note: Symptom | None,
        ledger: Ledger,
    ) -> None:
        self.case, self.culprit, self.sandbox, self.folder = case, culprit, sandbox, folder
        self.jobs, self.note, self.ledger = max(1, jobs), note, ledger
        self.target: Signature | None = None
        self._pool = ThreadPoolExecutor(self.jobs, thread_name_prefix="optvet-shrink")
        self._cache = Cache(None)
        self._lock = threading.Lock()

    def __enter__(self) -> ReductionOracle:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._cache.close()

    # --- for the reducer ---------------------------------------------------------------------

    def test_all(self, candidates: Sequence[Candidate]) -> Iterator[bool]:
        """Answers in order; what was begun in vain is waited for, never counted."""
        waiting: list[Future[bool]] = []
        following = iter(candidates)
        try:
            for candidate in itertools.islice(following, self.jobs):
                waiting.append(self._pool.submit(self.is_interesting, candidate))
            while waiting:
                answer = waiting.pop(0).result()
                yield answer
                for candidate in itertools.islice(following, 1):
                    waiting.append(self._pool.submit(self.is_interesting, candidate))
        finally:
            for future in waiting:
                future.cancel()

    # --- the judgement -----------------------------------------------------------------------

    def open(self, model: ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
        """Learn the signature that must stay from the whole model."""
        opened = self._open(model, feeds)
        if opened is None:
            self.case = self.case.under(full=False)
            opened = self._open(model, feeds)
        if opened is None:
            raise UsageError("the model itself is not valid, or does not run on the witness")
        self.target = self._observed(opened, self.culprit)
        if self.target is None:
            raise UsageError(
                f"{' then '.join(self.culprit) or 'the round trip'} shows no fault on "
                "this model and sample; give the culprit and witness of a finding"
            )

    def is_interesting(self, candidate: Candidate) -> bool:
        """Whether culprit and signature are those of the whole model."""
        assert candidate.feeds is not None
        opened = self._open(candidate.model, candidate.feeds)
        if opened is None:
            return False
        try:
            return self._same(opened)
        finally:
            opened.lab.model.blob.unlink(missing_ok=True)

    def _same(self, opened: _Candidate) -> bool:
        culprit = self.culprit
        if self._observed(opened, culprit) != self.target:
            return False
        fewer = (s for n in range(len(culprit)) for s in itertools.combinations(culprit, n))
        return all(self._observed(opened, s) != self.target for s in dict.fromkeys(fewer))

    def _open(self, model: ModelProto, feeds: Mapping[str, np.ndarray]) -> _Candidate | None:
        """The candidate with its reference; None if that is not valid or does not run."""
        sample = Sample("witness", feeds)
        case = self.case.on(self._stored(model))
        lab = Lab(case, self.sandbox, self._cache, ledger=self.ledger)
        reference = lab.reference([sample])
        run = reference.runs.get(sample.id)
        if reference.build.failure is not None or run is None or isinstance(run, Failure):
            lab.model.blob.unlink(missing_ok=True)
            return None
        examiner = examiner_for(lab, self.culprit, sample, reference)
        return _Candidate(lab, examiner, sample, reference)

    def _observed(self, opened: _Candidate, passes: tuple[str, ...]) -> Signature | None:
        if passes not in opened.seen:
            opened.seen[passes] = self._observe(opened, passes)
        return opened.seen[passes]

    def _observe(self, opened: _Candidate, passes: tuple[str, ...]) -> Signature | None:
        # A fault of the build is judged without running what was built.
        early = self.target is not None and self.target.stage in ("build", "check")
        early = early and self.target is not None and not self._compares(self.target)
        samples = [] if early or self.note in _STRUCTURAL else [opened.sample]
        trial = opened.lab.trial(self.case.passes.complete(passes), samples, "localize")
        observed = first_observed(
            opened.examiner, opened.reference, trial, samples, self.note, self.target
        )
        return None if observed is None else observed.signature

    @staticmethod
    def _compares(signature: Signature) -> bool:
        # A changed interface is noticed only on the way to a run.
        return signature.symptom in (Symptom.INTERFACE_CHANGE, Symptom.WRONG_OUTPUT)

    def _stored(self, model: ModelProto) -> Model:
        data = model.SerializeToString(deterministic=True)
        digest = hashlib.sha256(data).hexdigest()
        # Two candidates of equal bytes may differ in their feeds and be judged at once.
        path = self.folder / f"{digest}-{threading.get_ident():x}.onnx"
        path.write_bytes(data)
        return model_of(path, digest, model, path, digest, len(data), ModelConfig())


def examiner_for(lab: Lab, culprit: Sequence[str], sample: Sample, reference: Trial) -> Examiner:
    """Judges what ``culprit`` does on ``sample``, as vetting judges it.

    Where the optimizer makes something else than a model, passes are compared with the empty
    pipeline, and that, the culprit if there is no other, with the original under ``reference``.
    """
    case = lab.case
    if case.lowers and not culprit:
        examiner = Examiner(lab, [sample], thresholds=OTHER_KERNELS)
    else:
        examiner = Examiner(lab, [sample], tolerance=case.passes.tolerance)
    examiner.learn_reference(reference)
    if case.lowers and culprit:
        examiner.learn_reference(lab.trial(case.passes.base, [sample], "control"))
    return examiner


_STRUCTURAL = frozenset({Symptom.BLOAT, Symptom.METADATA_CHANGE})
REDUCIBLE = NOTES - {Symptom.SLOWDOWN, Symptom.PORTABILITY}
"""Notes that one look at a small model shows, not how fast it is; and not what is by design."""


@dataclass(frozen=True)
class ObservedFault:
    """What a trial shows: in full, and what must stay of it."""

    observation: Observation
    signature: Signature


def first_observed(
    examiner: Examiner,
    reference: Trial,
    trial: Trial,
    samples: Sequence[Sample],
    note: Symptom | None = None,
    wanted: Signature | None = None,
) -> ObservedFault | None:
    """The first fault of ``trial``, or the note that is asked for.

    Args:
        examiner: Knows the reference's outputs.
        reference: The original's trial.
        trial: The candidate's.
        samples: What both were run on.
        note: One of ``REDUCIBLE``; None for faults.
        wanted: What was seen before; of changed metadata that much must show, no more.
    """
    if note in _STRUCTURAL:
        return _structural(note, reference, trial, wanted)
    found = examiner.examine(trial, samples)
    if note is not None:
        return _sensitive(found)
    observation = found.observation
    return None if observation is None else ObservedFault(observation, _signature(observation))


def _signature(observation: Observation) -> Signature:
    symptom, words = observation.signature
    kind = ""
    if observation.stage == "compare":
        form = any(j.structural and j.error is None for j in observation.judgements)
        kind = "form" if form else "value"
    if symptom == Symptom.INTERFACE_CHANGE:
        words = ""  # it is made of the names and shapes of this very model
    return Signature(Symptom(symptom), observation.stage, words, kind)


def _sensitive(found: Examination) -> ObservedFault | None:
    if found.observation is not None or not found.sensitive:
        return None
    judgements = tuple({j.output: j for _, j in found.sensitive}.values())
    first = judgements[0]
    message = f"output {first.output!r}: {first.detail}"
    outputs = tuple(j.output for j in judgements)
    observation = Observation(
        Symptom.SENSITIVITY, "compare", message, outputs, first.error, first.noise
    )
    return ObservedFault(observation, Signature(Symptom.SENSITIVITY, "compare"))


def _structural(
    note: Symptom, reference: Trial, trial: Trial, wanted: Signature | None
) -> ObservedFault | None:
    """Bloat and metadata: what comparing two structures says."""
    before, after = reference.build.facts, trial.build.facts
    if before is None or after is None:
        return None
    if note == Symptom.BLOAT:
        # How much is too much depends on the size of the model; that it grows at all does not.
        if after.nodes <= before.nodes:
            return None
        observation = Observation(note, "build", structure.growth(before, after))
        return ObservedFault(observation, Signature(note, "build"))
    lost = structure.lost_metadata(before, after)
    keys = set(wanted.words.split("; ")) if wanted is not None else set(lost)
    if not lost or not keys <= lost.keys():
        return None
    observation = Observation(note, "build", structure.in_words(lost))
    return ObservedFault(observation, Signature(note, "build", "; ".join(sorted(keys))))
