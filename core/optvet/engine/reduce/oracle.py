"""From a finding to a minimal model with the same culprit and the same signature.

Conditions for a smaller model, each checked by trials in the sandbox:

- the reference is a valid model that runs on its inputs (and is reproducible if outputs are
  compared, which the examiner checks);
- of a requirement: it is not met on the inputs, and what is a fault as well stays one, and what is
  none becomes none;
- the culprit shows the same signature: symptom, stage, words, and the kind of wrong output;
- no proper subsequence of the culprit shows it, so that a pair does not become a single pass;
- import and export alone do not show it, unless they are the culprit.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import ModelProto, TypeProto

from optvet.engine.judge.second_opinion import is_contradicted
from optvet.engine.judge.thresholds import OTHER_KERNELS
from optvet.engine.models.opening import model_of
from optvet.engine.reduce.observed_fault import (
    ObservedFault,
    Signature,
    Sought,
    find_first_fault,
    is_structural,
)
from optvet.engine.reduce.reduction_order import (
    Budget,
    Recorder,
    Reduction,
    ReductionCandidate,
    reduce_model,
)
from optvet.engine.standard.defined import undefined_in
from optvet.engine.vet.observe.examine import Examiner
from optvet.engine.vet.require.portable import PortableRequirement
from optvet.engine.work.cache.disk import Cache
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.case import Case
from optvet.engine.work.trials.inference import RuntimeConfig
from optvet.engine.work.trials.inner_values import infer, record_values
from optvet.engine.work.trials.opinions import collect_opinions
from optvet.engine.work.trials.trial_results import Ledger, Trial
from optvet.engine.work.trials.trial_runner import Progress, TrialRunner
from optvet.engine.work.trials.undefined_values import undefined_by_inputs, undefined_kinds
from optvet.spec.errors import UsageError
from optvet.spec.scratch import temporary_folder
from optvet.spec.types import Failure, Model, ModelConfig, Sample


@dataclass(frozen=True)
class Shrunk:
    """A reduction, the signature that it preserved, and its cost."""

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
    sought: Sought = None,
    budget: Budget | None = None,
    progress: Progress = lambda text, done, total: None,
) -> Shrunk:
    """Reduce a model as long as ``culprit`` shows the same fault on ``witness``.

    Args:
        case: The case of the finding.
        culprit: The minimal pass sequence; empty for import and export alone.
        witness: The sample that shows it; its feeds are reduced with the model.
        sandbox: Runs all trials.
        jobs: Number of candidates that are tested in parallel.
        sought: What ``culprit`` shows, if it is no fault.
        budget: When to stop with the best so far.
        progress: Called with what is being done, checks so far, and None.

    Raises:
        UsageError: The culprit shows no fault on this model and sample, or a part of it does.
    """
    ledger = Ledger()
    with temporary_folder("optvet-shrink-") as folder:
        oracle = ReductionOracle(case, culprit, sandbox, Path(folder), jobs, sought, ledger)
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
    """A function that returns all values of a model, run by ``config`` in the sandbox."""

    def record(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        outcome = sandbox.call(record_values, model.SerializeToString(), dict(feeds), config)
        return outcome.value

    return record


def types_by_inference(sandbox: Sandbox, model: ModelProto) -> dict[str, TypeProto]:
    """Types of inner values by shape inference in the sandbox; empty if it fails."""
    outcome = sandbox.call(infer, model.SerializeToString())
    return {name: TypeProto.FromString(data) for name, data in (outcome.value or {}).items()}


@dataclass
class _TestedModel:
    """A candidate and its reference."""

    runner: TrialRunner
    examiner: Examiner
    sample: Sample
    reference: Trial
    seen: dict[tuple[str, ...], ObservedFault | None] = field(default_factory=dict)


class ReductionOracle:
    """Tests whether candidates keep the signature of the whole model, several in parallel."""

    def __init__(
        self,
        case: Case,
        culprit: tuple[str, ...],
        sandbox: Sandbox,
        folder: Path,
        jobs: int,
        sought: Sought,
        ledger: Ledger,
    ) -> None:
        self.case, self.culprit, self.sandbox, self.folder = case, culprit, sandbox, folder
        self.jobs, self.sought, self.ledger = max(1, jobs), sought, ledger
        self.target: Signature | None = None
        self._open_kinds: frozenset[str] = frozenset()
        self._contradicted = False
        self._pool = ThreadPoolExecutor(self.jobs, thread_name_prefix="optvet-shrink")
        self._cache = Cache(None)
        self._lock = threading.Lock()

    def __enter__(self) -> ReductionOracle:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._cache.close()

    # --- for the reducer ---------------------------------------------------------------------

    def test_all(self, candidates: Sequence[ReductionCandidate]) -> Iterator[bool]:
        """Answers in order; tests after the first success are finished, but not counted."""
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
        """Determine the signature of the whole model, which must be kept."""
        opened = self._open(model, feeds)
        for fewer in ({"full": False}, {"plain": False}):
            # What the original fails is no test.
            if opened is None:
                self.case = self.case.under(**fewer)
                opened = self._open(model, feeds)
        if opened is None:
            raise UsageError("the model itself is not valid, or does not run on the failing sample")
        self._open_kinds = self._undefined_by_inputs(model, feeds)
        self._open_kinds |= self._find_undefined(opened, model)
        self.target = self._observe_once(opened, self.culprit)
        if self.target is None:
            what = "no fault"
            if isinstance(self.sought, PortableRequirement):
                what = f"nothing against {self.sought.required}"
            raise UsageError(
                f"{' then '.join(self.culprit) or 'the round trip'} shows {what} on "
                "this model and sample; give the culprit and failing sample of a finding"
            )
        self._contradicted = self._is_contradicted(opened, model)

    def is_interesting(self, candidate: ReductionCandidate) -> bool:
        """Whether culprit and signature are those of the whole model.

        And the standard leaves nothing open of it that it does not of the whole: a scale of 0 or an
        integer that overflows would show the fault too, and would be no fault. Nor would a
        difference by which two evaluators of the original differ as well.
        """
        assert candidate.feeds is not None
        if self._undefined_by_inputs(candidate.model, candidate.feeds) - self._open_kinds:
            return False
        opened = self._open(candidate.model, candidate.feeds)
        if opened is None:
            return False
        try:
            if not self._same(opened):
                return False
            if not self._find_undefined(opened, candidate.model) <= self._open_kinds:
                return False
            return self._contradicted or not self._is_contradicted(opened, candidate.model)
        finally:
            opened.runner.model.blob.unlink(missing_ok=True)

    def _undefined_by_inputs(
        self, model: ModelProto, feeds: Mapping[str, np.ndarray]
    ) -> frozenset[str]:
        """In which ways the standard leaves the model open, by inputs and weights alone."""
        if not model.functions:
            return frozenset(u.kind for u in undefined_in(model, feeds))
        # Functions are inlined by native code.
        data = model.SerializeToString()
        return self.sandbox.call(undefined_by_inputs, data, dict(feeds)).value or frozenset()

    def _find_undefined(self, opened: _TestedModel, model: ModelProto) -> frozenset[str]:
        """In which ways the standard leaves the model open, by values that it computes too."""
        feeds, run = opened.sample.feeds, opened.reference.runs.get(opened.sample.id)
        outputs = None if isinstance(run, Failure) else run
        asked = (model.SerializeToString(), dict(feeds), self.case.reference, outputs)
        return self.sandbox.call(undefined_kinds, *asked).value or frozenset()

    def _is_contradicted(self, opened: _TestedModel, model: ModelProto) -> bool:
        """Whether others compute the original as differently as the optimized model does.

        Of what would take them too long, it is not asked.
        """
        found = opened.seen[self.culprit]
        run, feeds = opened.reference.runs.get(opened.sample.id), opened.sample.feeds
        if found is None or run is None or isinstance(run, Failure):
            return False
        if not found.signature.symptom.info.of_values or found.random:
            return False
        asked = (model.SerializeToString(), dict(feeds), _ASKED_MACS)
        opinions = self.sandbox.call(collect_opinions, *asked, role="judging").value
        if opinions is None:
            return False
        observation = found.observation
        return is_contradicted(run, opinions, observation.error, observation.noise)

    def _same(self, opened: _TestedModel) -> bool:
        culprit = self.culprit
        if self._observe_once(opened, culprit) != self.target:
            return False
        fewer = (s for n in range(len(culprit)) for s in itertools.combinations(culprit, n))
        return all(self._observe_once(opened, s) != self.target for s in dict.fromkeys(fewer))

    def _open(self, model: ModelProto, feeds: Mapping[str, np.ndarray]) -> _TestedModel | None:
        """The candidate with its reference; None if the reference is invalid or does not run."""
        sample = Sample("witness", feeds)
        case = self.case.on(self._store(model))
        runner = TrialRunner(case, self.sandbox, self._cache, ledger=self.ledger)
        reference = runner.reference([sample])
        run = reference.runs.get(sample.id)
        if reference.build.failure is not None or run is None or isinstance(run, Failure):
            runner.model.blob.unlink(missing_ok=True)
            return None
        examiner = examiner_for(runner, self.culprit, [sample], reference, self.sought)
        return _TestedModel(runner, examiner, sample, reference)

    def _observe_once(self, opened: _TestedModel, passes: tuple[str, ...]) -> Signature | None:
        if passes not in opened.seen:
            opened.seen[passes] = self._observe(opened, passes)
        found = opened.seen[passes]
        return None if found is None else found.signature

    def _observe(self, opened: _TestedModel, passes: tuple[str, ...]) -> ObservedFault | None:
        # A fault of the build is tested without running the result.
        early = self.target is not None and self.target.stage in ("build", "check")
        early = early and self.target is not None and not self._compares(self.target)
        samples = [] if early or is_structural(self.sought) else [opened.sample]
        trial = opened.runner.trial(self.case.passes.complete(passes), samples, "localize")
        return find_first_fault(opened.examiner, opened.reference, trial, samples, self.sought)

    @staticmethod
    def _compares(signature: Signature) -> bool:
        # A changed interface is noticed only when outputs are to be compared.
        return not signature.symptom.info.failed

    def _store(self, model: ModelProto) -> Model:
        data = model.SerializeToString(deterministic=True)
        digest = hashlib.sha256(data).hexdigest()
        # Two candidates with equal bytes and different feeds may be tested at the same time.
        path = self.folder / f"{digest}-{threading.get_ident():x}.onnx"
        path.write_bytes(data)
        return model_of(path, digest, model, path, digest, len(data), ModelConfig())


def examiner_for(
    runner: TrialRunner,
    culprit: Sequence[str],
    samples: Sequence[Sample],
    reference: Trial,
    sought: Sought = None,
) -> Examiner:
    """An examiner for ``culprit`` on ``samples``, set up as in a vet.

    If the optimizer converts to another format, passes are compared with the empty pipeline; the
    empty pipeline itself, as a culprit, is compared with the original under ``reference``, as are
    all passes where a requirement is measured.
    """
    case = runner.case
    with_original = not culprit or isinstance(sought, PortableRequirement)
    if case.lowers and with_original:
        examiner = Examiner(runner, samples, thresholds=OTHER_KERNELS)
    else:
        examiner = Examiner(runner, samples, tolerance=case.passes.tolerance)
    examiner.learn_reference(reference)
    if case.lowers and not with_original:
        examiner.learn_reference(runner.trial(case.passes.base, samples, "control"))
    return examiner


_ASKED_MACS = 10_000_000
"""Multiplications of a model from which on no second evaluator is asked about it."""
