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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TypeProto, ValueInfoProto
from pydantic import BaseModel

from optvet.engine.cache import Cache
from optvet.engine.examine import Examiner, Findings, Observation
from optvet.engine.lab import Lab, Ledger, Progress, Trial
from optvet.engine.reduce.search import (
    Budget,
    Candidate,
    Recorder,
    Reduction,
    reduce_model,
)
from optvet.engine.sandbox import Sandbox, enter
from optvet.engine.trial import Judge
from optvet.graph import structure
from optvet.graph.interface import graph_inputs, graph_outputs
from optvet.graph.types import inferred_types
from optvet.graph.walk import node_count, opset_versions
from optvet.spec.errors import UsageError
from optvet.spec.protocols import Optimizer
from optvet.spec.types import (
    NOTES,
    Artifact,
    Failure,
    InterfaceChange,
    Model,
    Sample,
    Symptom,
)


@dataclass(frozen=True)
class Signature:
    """What makes two faults the same one; ``kind`` is "form" or "value" of wrong outputs."""

    symptom: Symptom
    stage: str
    words: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Accused:
    """What is to blame, and how it is judged; the same for all candidates.

    Attributes:
        culprit: The minimal pass sequence; empty for import and export alone.
        complete: Puts the required passes back into a subsequence.
        interface: How passes change the interface on purpose.
        tolerance: What lossy passes declare.
        timeout_s: Patience with one trial; None for the sandbox's own.
    """

    optimizer: Optimizer
    options: BaseModel
    culprit: tuple[str, ...]
    judge: Judge
    reference_judge: Judge | None = None
    complete: Callable[[Sequence[str]], tuple[str, ...]] = tuple
    interface: Callable[[Sequence[str]], frozenset[InterfaceChange]] = lambda passes: frozenset()
    tolerance: Callable[[Sequence[str]], float | None] = lambda passes: None
    timeout_s: float | None = None


@dataclass(frozen=True)
class Shrunk:
    """A reduction with what it preserved; ``applications`` and ``inferences`` are what it cost."""

    reduction: Reduction
    signature: Signature
    applications: int = 0
    inferences: int = 0


def reduce_finding(
    model: Model,
    accused: Accused,
    witness: Sample,
    *,
    sandbox: Sandbox,
    jobs: int = 2,
    note: Symptom | None = None,
    budget: Budget | None = None,
    progress: Progress = lambda text, done, total: None,
) -> Shrunk:
    """Reduce ``model`` while ``accused`` shows on ``witness`` what it shows on the whole model.

    Args:
        model: The model of the finding.
        accused: Optimizer, culprit, and how they are judged.
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
        court = _Court(accused, sandbox, Path(folder), jobs, note, ledger)
        with court:
            proto = model.load()
            court.open(proto, witness.feeds)
            reduction = reduce_model(
                proto,
                witness.feeds,
                court.judge_all,
                record=recorder(sandbox, court.reference_judge),
                types=types_by_inference(sandbox, proto),
                width=max(1, jobs),
                budget=budget,
                progress=progress,
            )
    assert court.target is not None
    cost = ledger.cost(0.0)
    return Shrunk(reduction, court.target, cost.applications, cost.inferences)


def recorder(sandbox: Sandbox, judge: Judge) -> Recorder:
    """Tells all values of a model on its feeds, by running it in the sandbox under ``judge``."""

    def record(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        outcome = sandbox.call(record_values, model.SerializeToString(), dict(feeds), judge)
        return outcome.value

    return record


def types_by_inference(sandbox: Sandbox, model: ModelProto) -> dict[str, TypeProto]:
    """What shape inference, run in the sandbox, says of inner values; empty if it fails."""
    outcome = sandbox.call(infer, model.SerializeToString())
    return {name: TypeProto.FromString(data) for name, data in (outcome.value or {}).items()}


# --- in workers -----------------------------------------------------------------------------------


def record_values(
    data: bytes, feeds: Mapping[str, np.ndarray], judge: Judge
) -> dict[str, np.ndarray]:
    """All values of a model that are arrays, from one run. Called in a worker."""
    enter("load")
    proto = onnx.load_from_string(data)
    try:
        values = _run_with_all(proto, None, feeds, judge)
    except Exception:  # some value cannot leave the runtime: leave out all but plain tensors
        known = inferred_types(proto, strict=False) or {}
        plain = {n for n, k in known.items() if k.WhichOneof("value") == "tensor_type"}
        values = _run_with_all(proto, plain, feeds, judge)
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _run_with_all(
    proto: ModelProto, only: set[str] | None, feeds: Mapping[str, np.ndarray], judge: Judge
) -> dict[str, np.ndarray]:
    model = ModelProto()
    model.CopyFrom(proto)
    graph = model.graph
    outputs = {o.name: o for o in proto.graph.output}
    del graph.output[:]
    made = [o for node in graph.node for o in node.output if o]
    for name in dict.fromkeys((*made, *outputs)):
        # Without a type: what the model says of an output may be what is to be found out.
        if only is None or name in only or name in outputs:
            graph.output.append(ValueInfoProto(name=name))
    artifact = Artifact("onnx", model.SerializeToString())
    return judge.runtime.load(artifact, judge.options).run(feeds)


def infer(data: bytes) -> dict[str, bytes]:
    """Serialized types of inner values. Called in a worker: shape inference may crash."""
    enter("check")
    proto = onnx.load_from_string(data)
    types = inferred_types(proto) or inferred_types(proto, strict=False) or {}
    return {name: bytes(kind.SerializeToString()) for name, kind in types.items()}


# --- judging --------------------------------------------------------------------------------------


@dataclass
class _Case:
    """One candidate before the court."""

    lab: Lab
    examiner: Examiner
    sample: Sample
    reference: Trial
    seen: dict[tuple[str, ...], Signature | None] = field(default_factory=dict)


class _Court:
    """Judges candidates against the signature of the whole model, several at a time."""

    def __init__(
        self,
        accused: Accused,
        sandbox: Sandbox,
        folder: Path,
        jobs: int,
        note: Symptom | None,
        ledger: Ledger,
    ) -> None:
        self.accused, self.sandbox, self.folder = accused, sandbox, folder
        self.jobs, self.note, self.ledger = max(1, jobs), note, ledger
        self.target: Signature | None = None
        self.full_check = True
        self._pool = ThreadPoolExecutor(self.jobs, thread_name_prefix="optvet-shrink")
        self._cache = Cache(None)
        self._lock = threading.Lock()

    def __enter__(self) -> _Court:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._cache.close()

    @property
    def reference_judge(self) -> Judge:
        return self.accused.reference_judge or self.accused.judge

    # --- for the reducer ---------------------------------------------------------------------

    def judge_all(self, candidates: Sequence[Candidate]) -> Iterator[bool]:
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
        case = self._case(model, feeds)
        if case is None:
            self.full_check = False
            case = self._case(model, feeds)
        if case is None:
            raise UsageError("the model itself is not valid, or does not run on the witness")
        self.target = self._observed(case, self.accused.culprit)
        if self.target is None:
            raise UsageError(
                f"{' then '.join(self.accused.culprit) or 'the round trip'} shows no fault on "
                "this model and sample; give the culprit and witness of a finding"
            )

    def is_interesting(self, candidate: Candidate) -> bool:
        """Whether culprit and signature are those of the whole model."""
        assert candidate.feeds is not None
        case = self._case(candidate.model, candidate.feeds)
        if case is None:
            return False
        try:
            return self._same(case)
        finally:
            case.lab.model.blob.unlink(missing_ok=True)

    def _same(self, case: _Case) -> bool:
        culprit = self.accused.culprit
        if self._observed(case, culprit) != self.target:
            return False
        fewer = (s for n in range(len(culprit)) for s in itertools.combinations(culprit, n))
        return all(self._observed(case, s) != self.target for s in dict.fromkeys(fewer))

    def _case(self, model: ModelProto, feeds: Mapping[str, np.ndarray]) -> _Case | None:
        """The candidate with its reference; None if that is not valid or does not run."""
        sample = Sample("witness", feeds)
        lab = Lab(
            self._stored(model),
            self.accused.optimizer,
            self.accused.options,
            self.accused.judge,
            self.sandbox,
            self._cache,
            jobs=1,
            reference_judge=self.accused.reference_judge,
            interface=self.accused.interface,
            ledger=self.ledger,
        )
        lab.full_check, lab.timeout_s = self.full_check, self.accused.timeout_s
        reference = lab.reference([sample])
        run = reference.runs.get(sample.id)
        if reference.build.failure is not None or run is None or isinstance(run, Failure):
            lab.model.blob.unlink(missing_ok=True)
            return None
        examiner = Examiner(lab, [sample], tolerance=self.accused.tolerance)
        examiner.learn_reference(reference)
        if self.accused.optimizer.traits.reference == "empty pipeline":
            base = lab.trial(self.accused.complete(()), [sample], "control")
            examiner.learn_reference(base)
        return _Case(lab, examiner, sample, reference)

    def _observed(self, case: _Case, passes: tuple[str, ...]) -> Signature | None:
        if passes not in case.seen:
            case.seen[passes] = self._observe(case, passes)
        return case.seen[passes]

    def _observe(self, case: _Case, passes: tuple[str, ...]) -> Signature | None:
        # A fault of the build is judged without running what was built.
        early = self.target is not None and self.target.stage in ("build", "check")
        early = early and self.target is not None and not self._compares(self.target)
        samples = [] if early or self.note in _STRUCTURAL else [case.sample]
        trial = case.lab.trial(self.accused.complete(passes), samples, "localize")
        shown = look(case.examiner, case.reference, trial, samples, self.note, self.target)
        return None if shown is None else shown.signature

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
        return Model(
            source=digest,
            path=path,
            blob=path,
            digest=digest,
            inputs=graph_inputs(model),
            outputs=graph_outputs(model),
            ir_version=model.ir_version,
            opsets=opset_versions(model),
            size_bytes=len(data),
            nodes=node_count(model),
        )


_STRUCTURAL = frozenset({Symptom.BLOAT, Symptom.METADATA_CHANGE})
REDUCIBLE = NOTES - {Symptom.SLOWDOWN, Symptom.PORTABILITY}
"""Notes that one look at a small model shows, not how fast it is; and not what is by design."""


@dataclass(frozen=True)
class Shown:
    """What a trial shows: in full, and what must stay of it."""

    observation: Observation
    signature: Signature


def look(
    examiner: Examiner,
    reference: Trial,
    trial: Trial,
    samples: Sequence[Sample],
    note: Symptom | None = None,
    wanted: Signature | None = None,
) -> Shown | None:
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
    return None if observation is None else Shown(observation, _signature(observation))


def _signature(observation: Observation) -> Signature:
    symptom, words = observation.signature
    kind = ""
    if observation.stage == "compare":
        form = any(j.structural and j.error is None for j in observation.judgements)
        kind = "form" if form else "value"
    if symptom == Symptom.INTERFACE_CHANGE:
        words = ""  # it is made of the names and shapes of this very model
    return Signature(Symptom(symptom), observation.stage, words, kind)


def _sensitive(found: Findings) -> Shown | None:
    if found.observation is not None or not found.sensitive:
        return None
    judgements = tuple({j.output: j for _, j in found.sensitive}.values())
    first = judgements[0]
    message = f"output {first.output!r}: {first.detail}"
    outputs = tuple(j.output for j in judgements)
    observation = Observation(
        Symptom.SENSITIVITY, "compare", message, outputs, first.error, first.noise
    )
    return Shown(observation, Signature(Symptom.SENSITIVITY, "compare"))


def _structural(
    note: Symptom, reference: Trial, trial: Trial, wanted: Signature | None
) -> Shown | None:
    """Bloat and metadata: what comparing two structures says."""
    before, after = reference.build.facts, trial.build.facts
    if before is None or after is None:
        return None
    if note == Symptom.BLOAT:
        # How much is too much depends on the size of the model; that it grows at all does not.
        if after.nodes <= before.nodes:
            return None
        observation = Observation(note, "build", structure.growth(before, after))
        return Shown(observation, Signature(note, "build"))
    lost = structure.lost_metadata(before, after)
    keys = set(wanted.words.split("; ")) if wanted is not None else set(lost)
    if not lost or not keys <= lost.keys():
        return None
    observation = Observation(note, "build", structure.in_words(lost))
    return Shown(observation, Signature(note, "build", "; ".join(sorted(keys))))
