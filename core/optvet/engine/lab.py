"""Trials on demand: cached by content, counted, never made twice.

Two kinds of fact are kept. A *build* says what a pass sequence makes of the model: a digest, the
structure, or a failure. A *run* says what an artifact computes on a sample. Since most passes leave
a model alone, most builds end in an artifact that was run before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel, TypeAdapter

from optvet.engine import cache as caching
from optvet.engine import candidate
from optvet.engine.cache import Cache
from optvet.engine.sandbox import Outcome, Sandbox
from optvet.engine.trial import (
    Judge,
    Order,
    Outputs,
    Report,
    Subject,
    judge_artifact,
    judge_poisoned,
    sample_digests,
)
from optvet.graph.interface import Alignment, align
from optvet.graph.structure import Facts
from optvet.spec.errors import (
    ContractError,
    InfrastructureError,
    InputError,
    PluginError,
    Unsupported,
    UsageError,
)
from optvet.spec.protocols import Optimizer
from optvet.spec.records import Cost, StageCost
from optvet.spec.types import Failure, InterfaceChange, Model, Sample

CODE_VERSION = 8
"""Raised when the meaning of a cached fact changes."""

Purpose = Literal[
    "reference",
    "detect",
    "control",
    "noise",
    "walk",
    "localize",
    "each",
    "confirm",
    "verify",
    "decode",
]
Progress = Callable[[str, int, int | None], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Build:
    """What a pass sequence makes of the model."""

    digest: str = ""
    canonical: str = ""
    facts: Facts | None = None
    failure: Failure | None = None
    touched: tuple[str, ...] | None = None
    loads: bool = False


@dataclass(frozen=True)
class Trial:
    """A build and its runs: everything that is known of one pass sequence on some samples.

    ``runs`` has one entry per sample, in order; it ends at the first failure. ``of_optimizer``
    tells an empty pass sequence from the original model.
    """

    passes: tuple[str, ...]
    build: Build
    alignment: Alignment | None = None
    runs: Mapping[str, Outputs | Failure] = field(default_factory=dict)
    of_optimizer: bool = True


class Ledger:
    """Counts applications and inferences by purpose."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    def add(self, purpose: str, applications: int = 0, inferences: int = 0) -> None:
        """Count work that was really done."""
        count = self._counts.setdefault(purpose, [0, 0])
        count[0] += applications
        count[1] += inferences

    def cost(self, wall_s: float) -> Cost:
        """The sums, as they are reported."""
        parts = {
            p: StageCost(applications=a, inferences=i)
            for p, (a, i) in self._counts.items()
            if a or i
        }
        return Cost(
            applications=sum(c.applications for c in parts.values()),
            inferences=sum(c.inferences for c in parts.values()),
            wall_s=round(wall_s, 3),
            by_purpose=parts,
        )


class Lab:
    """Makes trials of one optimizer on one model under one judge."""

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        options: BaseModel,
        judge: Judge,
        sandbox: Sandbox,
        cache: Cache,
        *,
        jobs: int,
        reference_judge: Judge | None = None,
        interface: Callable[[Sequence[str]], frozenset[InterfaceChange]],
        ledger: Ledger | None = None,
        progress: Progress = lambda text, done, total: None,
    ) -> None:
        self.model, self.optimizer, self.options, self.judge = model, optimizer, options, judge
        self.reference_judge = reference_judge or judge
        self.sandbox, self.cache, self.jobs = sandbox, cache, jobs
        self.ledger = ledger or Ledger()
        self.progress = progress
        self.full_check = True
        self.excused = ""
        self.timeout_s: float | None = None
        self._late = 0
        self._live = optimizer.traits.produces != "onnx"
        self._required = {p.name for p in optimizer.passes() if p.required}
        self._interface = interface
        self._builds: dict[str, Build] = {}
        self._by_digest: dict[str, Build] = {}
        self._runs: dict[str, Outputs | Failure] = {}
        self._run_keys: dict[tuple[object, ...], str] = {}
        self._sample_digests: dict[int, tuple[Sample, str]] = {}
        self._about_build = (
            CODE_VERSION,
            model.digest,
            optimizer.name,
            optimizer.version(),
            options.model_dump(mode="json"),
        )
        self._about_run = _about(judge)
        self._about_reference = _about(self.reference_judge)

    # --- questions ---------------------------------------------------------------------------

    def reference(self, samples: Sequence[Sample], purpose: Purpose = "reference") -> Trial:
        """The original model on ``samples``."""
        return self._finish(self._start(self.subject(None), samples, purpose))

    def trial(self, passes: Sequence[str], samples: Sequence[Sample], purpose: Purpose) -> Trial:
        """The model after ``passes``, on ``samples``."""
        return self._finish(self._start(self.subject(passes), samples, purpose))

    def trials(
        self, sequences: Iterable[Sequence[str]], samples: Sequence[Sample], purpose: Purpose
    ) -> Iterator[Trial]:
        """Trials of many sequences, some at a time, in the order given."""
        waiting = [self.subject(s) for s in sequences]
        running: dict[int, _Pending] = {}
        done: dict[int, Trial] = {}
        started = handed = 0
        while handed < len(waiting):
            while started < len(waiting) and len(running) < self.jobs:
                running[started] = self._start(waiting[started], samples, purpose)
                started += 1
            futures = [p.future for p in running.values() if p.future is not None]
            if futures and all(p.future is not None for p in running.values()):
                wait(futures, return_when=FIRST_COMPLETED)
            for index in [i for i, p in running.items() if p.future is None or p.future.done()]:
                done[index] = self._finish(running.pop(index))
                self.progress(purpose, len(done), len(waiting))
            while handed in done:
                yield done[handed]
                handed += 1

    def both(
        self, passes: Sequence[str], samples: Sequence[Sample], purpose: Purpose
    ) -> tuple[Trial, Trial | None]:
        """Reference and candidate side by side, for the first look at a model.

        None for the candidate where the reference does not end: nothing can be compared.
        """
        original = self._start(self.subject(None), samples, "reference")
        candidate = self._start(self.subject(passes), samples, purpose)
        reference = self._finish(original)
        return reference, None if is_late(reference) else self._finish(candidate)

    def fresh(
        self,
        passes: Sequence[str] | None,
        samples: Sequence[Sample],
        purpose: Purpose = "confirm",
    ) -> Trial:
        """The same trial once more, in a process of its own, from nothing that is remembered.

        ``passes`` None is the original model. What came of it is kept, so that asking the same
        again, for the same purpose, costs nothing.
        """
        subject = self.subject(passes)
        digests = [self.sample_digest(s) for s in samples]
        key = caching.key("fresh", purpose, self._build_key(subject), self.identity, digests)
        kept = self.cache.read(key, lambda data: _replay_from_bytes(data, samples))
        if kept is not None and all(self._fits(run, kept[0]) for run in kept[1].values()):
            return self._compose(subject, *kept, samples)
        order = self.order(subject, samples, known=frozenset())
        # The original reads no memory that it never wrote, or shows it here.
        judge = judge_artifact if subject.optimizer else judge_poisoned
        outcome = self.submit(subject, judge, order, fresh=True).result()
        refuse_misuse(_failure_in(outcome))
        self._count(purpose, subject, outcome, samples)
        build, runs = _read(outcome, samples, self._build_key(subject))
        failures = [build.failure, *(r for r in runs.values() if isinstance(r, Failure))]
        if not any(is_circumstantial(f) for f in failures):
            self.cache.put(key, "fresh", _replay_to_bytes(build, runs, samples))
        return self._compose(subject, build, runs, samples)

    # --- how they are answered ---------------------------------------------------------------

    def submit(
        self,
        subject: Subject,
        then: Callable[..., T],
        /,
        *args: object,
        fresh: bool = False,
        timeout_s: float | None = None,
    ) -> Future[Outcome[T]]:
        """Start ``then(artifact, *args)`` out of the optimizer's reach; see ``candidate``."""
        live = subject.optimizer is not None and self._live
        # The empty pipeline of such an optimizer is a reference: no pass has run in its process.
        fresh = fresh or (live and self._required.issuperset(subject.passes))
        return candidate.submit(
            self.sandbox,
            subject,
            then,
            *args,
            live=live,
            on_live=self._learn_live,
            fresh=fresh,
            timeout_s=timeout_s,
        )

    def _learn_live(self) -> None:
        self._live = True

    def subject(self, passes: Sequence[str] | None) -> Subject:
        """What is built from ``passes``; None is the original model."""
        model = self.model
        if passes is None:
            return Subject(model.blob, model.digest)
        return Subject(model.blob, model.digest, self.optimizer, self.options, tuple(passes))

    def forget_original(self) -> None:
        """Build the original again when it is asked for: its failure may have been chance."""
        self._builds.pop(self._build_key(self.subject(None)), None)

    def excuse(self, complaint: str) -> None:
        """From now on, pass over this gist of a complaint of the checker."""
        self.excused = complaint
        self._by_digest = {d: b for d, b in self._by_digest.items() if b.failure is None}

    def order(
        self, subject: Subject, samples: Sequence[Sample], known: frozenset[str] = frozenset()
    ) -> Order:
        """The task that answers for ``subject`` on ``samples``."""
        return Order(
            subject,
            (self.judge if subject.optimizer else self.reference_judge) if samples else None,
            tuple(samples),
            self.model if subject.optimizer is not None else None,
            self._interface(subject.passes),
            known,
            self.full_check,
            self.excused if subject.optimizer is not None else "",
        )

    def _build_key(self, subject: Subject) -> str:
        if subject.optimizer is None:
            return caching.key("original", CODE_VERSION, subject.digest, self.full_check)
        return caching.key(
            "build", *self._about_build, list(subject.passes), self.full_check, self.excused
        )

    def _run_key(self, subject: Subject, canonical: str, sample: Sample) -> str:
        about = self._about_run if subject.optimizer else self._about_reference
        name = (about, canonical, self.sample_digest(sample))
        if name not in self._run_keys:
            self._run_keys[name] = caching.key("run", *name)
        return self._run_keys[name]

    def sample_digest(self, sample: Sample) -> str:
        """Digest of the sample's feeds, computed once."""
        known = self._sample_digests.get(id(sample))
        if known is None or known[0] is not sample:
            known = (sample, sample_digests([sample])[0])
            self._sample_digests[id(sample)] = known
        return known[1]

    def forget(self, samples: Sequence[Sample]) -> None:
        """Let go of what ``samples`` gave; asked again, it comes from the cache or is redone."""
        gone = {self.sample_digest(s) for s in samples}
        for sample in samples:
            self._sample_digests.pop(id(sample), None)
        for name in [n for n in self._run_keys if n[-1] in gone]:
            self._runs.pop(self._run_keys.pop(name), None)

    def content_key(self, passes: Sequence[str] | None, sample: Sample) -> str:
        """What a run of ``passes``, which were tried before, on ``sample`` is kept under.

        Equal for artifacts that compute the same.
        """
        subject = self.subject(passes)
        build = self._recall_build(subject)
        assert build is not None
        assert build.canonical
        return self._run_key(subject, build.canonical, sample)

    @property
    def identity(self) -> tuple[object, ...]:
        """What every measurement of this lab depends on."""
        return (*self._about_build, *self._about_run, *self._about_reference)

    def _start(self, subject: Subject, samples: Sequence[Sample], purpose: Purpose) -> _Pending:
        build = self._recall_build(subject)
        if build is not None and self._is_settled(subject, build, samples):
            return _Pending(subject, tuple(samples), purpose, None)
        known = {
            name
            for b in self._by_digest.values()
            if self._is_settled(subject, b, samples)
            for name in (b.digest, b.canonical)
            if name
        }
        order = self.order(subject, samples, frozenset(known))
        future = self.submit(subject, judge_artifact, order, timeout_s=self.timeout_s)
        return _Pending(subject, tuple(samples), purpose, future)

    def _is_settled(self, subject: Subject, build: Build, samples: Sequence[Sample]) -> bool:
        """Whether nothing is left to find out about ``build`` on ``samples``."""
        if build.failure is not None:
            return True
        if build.loads and subject.optimizer is not None and build.facts is not None:
            allowed = self._interface(subject.passes)
            if align(self.model, build.facts, allowed).problem:
                return True
        return self._recall_runs(subject, build, samples) is not None

    def _finish(self, pending: _Pending) -> Trial:
        subject, samples = pending.subject, pending.samples
        if pending.future is not None:
            outcome = pending.future.result()
            refuse_misuse(_failure_in(outcome))
            if subject.optimizer is None:
                _refuse_killed(outcome.failure)
            self._count(pending.purpose, subject, outcome, samples)
            if _died_running(outcome) and len(samples) > 1 and not self._is_second(outcome):
                return self._one_by_one(pending)
            self._remember(subject, samples, outcome)
        build = self._recall_build(subject)
        assert build is not None
        runs = self._recall_runs(subject, build, samples) or {}
        return self._compose(subject, build, runs, samples)

    def _is_second(self, outcome: Outcome[Report]) -> bool:
        """Whether samples ran into the time limit before: which of them is known well enough."""
        if outcome.failure is None or outcome.failure.kind != "timeout":
            return False
        self._late += 1
        return self._late > 1

    def _one_by_one(self, pending: _Pending) -> Trial:
        """Which of several samples killed the worker: the build first, then each alone."""
        subject = pending.subject
        order = replace(self.order(subject, (), frozenset()), judge=None)
        outcome = self.submit(subject, judge_artifact, order).result()
        self._count(pending.purpose, subject, outcome, ())
        self._remember(subject, (), outcome)
        runs: dict[str, Outputs | Failure] = {}
        for sample in pending.samples:
            trial = self._finish(self._start(subject, (sample,), pending.purpose))
            runs.update(trial.runs)
            if any(isinstance(r, Failure) for r in trial.runs.values()):
                break
        build = self._recall_build(subject)
        assert build is not None
        return self._compose(subject, build, runs, pending.samples)

    def _compose(
        self,
        subject: Subject,
        build: Build,
        runs: Mapping[str, Outputs | Failure],
        samples: Sequence[Sample],
    ) -> Trial:
        alignment = None
        if subject.optimizer is not None and build.facts:
            allowed = self._interface(subject.passes)
            alignment = align(self.model, build.facts, allowed)
        ordered = {s.id: runs[s.id] for s in samples if s.id in runs}
        return Trial(subject.passes, build, alignment, ordered, subject.optimizer is not None)

    # --- memory ------------------------------------------------------------------------------

    def _recall_build(self, subject: Subject) -> Build | None:
        key = self._build_key(subject)
        if key not in self._builds:
            build = self.cache.read(key, _build_from_json)
            if build is None:
                return None
            self._learn(key, build)
        return self._builds[key]

    def _learn(self, key: str, build: Build) -> None:
        self._builds[key] = build
        if build.digest:
            self._by_digest[build.digest] = build

    def _recall_runs(
        self, subject: Subject, build: Build, samples: Sequence[Sample]
    ) -> dict[str, Outputs | Failure] | None:
        """Runs of all ``samples`` up to the first failure, or None if one is unknown."""
        runs: dict[str, Outputs | Failure] = {}
        if not build.canonical:
            return None
        for sample in samples:
            key = self._run_key(subject, build.canonical, sample)
            if key not in self._runs:
                run = self.cache.read(key, run_from_bytes)
                if run is None or not self._fits(run, build):
                    return None
                self._runs[key] = run
            runs[sample.id] = self._runs[key]
            if isinstance(self._runs[key], Failure):
                break
        return runs

    def _fits(self, run: Outputs | Failure, build: Build) -> bool:
        """Whether a kept run has the outputs of the model, or of what was built."""
        if isinstance(run, Failure):
            return True
        sides = [self.model.outputs, *([build.facts.outputs] if build.facts else [])]
        return any(_has_outputs(run, {o.name for o in side}) for side in sides)

    def _remember(
        self,
        subject: Subject,
        samples: Sequence[Sample],
        outcome: Outcome[Report],
    ) -> None:
        key = self._build_key(subject)
        build, runs = _read(outcome, samples, key)
        report = outcome.value
        if report is not None and report.known:
            # The same bytes as an artifact that is known, or other bytes that compute the same.
            twin = self._by_digest.get(build.digest) or next(
                b for b in self._by_digest.values() if b.canonical == build.canonical
            )
            build = replace(
                twin, digest=build.digest, touched=build.touched, facts=build.facts or twin.facts
            )
        # Of the original a refusal is a fact; a death may be anybody's.
        died = build.failure is not None and build.failure.kind != "error"
        chance = is_circumstantial(build.failure) or (died and subject.optimizer is None)
        self._learn(key, build)
        if not chance:
            self.cache.put(key, "build", _build_to_json(build))
        for sample in samples:
            run = runs.get(sample.id)
            if run is None or not build.canonical:
                continue
            run_key = self._run_key(subject, build.canonical, sample)
            self._runs[run_key] = run
            if not (isinstance(run, Failure) and is_circumstantial(run)):
                self.cache.put(run_key, "run", run_to_bytes(run))

    def _count(
        self,
        purpose: str,
        subject: Subject,
        outcome: Outcome[Report],
        samples: Sequence[Sample],
    ) -> None:
        report = outcome.value
        ran = len(report.outputs) if report else 0
        if report and report.failed_sample:
            ran += 1
        if outcome.failure and outcome.failure.stage == "run":
            ran += 1
        self.ledger.add(purpose, applications=int(subject.optimizer is not None), inferences=ran)


def _about(judge: Judge) -> tuple[object, ...]:
    """What a run depends on beside artifact and sample; hashable."""
    runtime = judge.runtime
    options = judge.options.model_dump_json()
    return CODE_VERSION, runtime.name, runtime.version(), options


@dataclass(frozen=True)
class _Pending:
    subject: Subject
    samples: tuple[Sample, ...]
    purpose: Purpose
    future: Future[Outcome[Report]] | None


_REFUSALS = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (
        ContractError,
        InfrastructureError,
        InputError,
        PluginError,
        Unsupported,
        UsageError,
    )
}
"""By full name: a foreign library may have an InputError of its own, which is a symptom."""


def refuse_misuse(failure: Failure | None) -> None:
    """What a plugin was not made for is no symptom, nor what is missing here, such as a GPU."""
    misuse = _REFUSALS.get(failure.error_type) if failure is not None else None
    if misuse is not None and failure is not None:
        raise misuse(failure.message)


def _failure_in(outcome: Outcome[Report]) -> Failure | None:
    """What went wrong in a trial, be it with the process or in it."""
    return outcome.failure or (outcome.value.failure if outcome.value is not None else None)


def _refuse_killed(failure: Failure | None) -> None:
    """Raise if the original was killed by somebody else: without it nothing can be judged."""
    if failure is not None and failure.kind == "killed":
        raise InfrastructureError(
            f"the original model could not be run: {failure.message}; find out who kills processes "
            "here (an operator, a memory watchdog, a batch system) and run again"
        )


def _has_outputs(run: Outputs, names: AbstractSet[str]) -> bool:
    """Whether ``run`` has all outputs ``names``, flattened as ``flatten`` does, and no others."""
    return run.keys() == names or {_OUTPUT.sub("", name) for name in run} == names


_OUTPUT = re.compile(r"(\[\d+\]|\.keys|\.length|\.is_none)+\Z")


def _died_running(outcome: Outcome[Report]) -> bool:
    return outcome.failure is not None and outcome.failure.stage in ("load", "run")


def is_circumstantial(failure: Failure | None) -> bool:
    """Whether a failure may be this machine's: not to be remembered beyond the session."""
    return failure is not None and failure.kind in ("timeout", "out-of-memory", "killed")


def is_late(trial: Trial) -> bool:
    """Whether some run of ``trial`` reached the time limit."""
    return any(isinstance(r, Failure) and r.kind == "timeout" for r in trial.runs.values())


def _read(
    outcome: Outcome[Report], samples: Sequence[Sample], build_key: str
) -> tuple[Build, dict[str, Outputs | Failure]]:
    """Split an outcome into what is true of the build and what of the runs."""
    report = outcome.value
    failure = outcome.failure or (report.failure if report else None)
    late = failure is not None and failure.stage in ("load", "run")
    if report is None:
        # The digest died with the worker; what was built stands for it.
        name = f"lost:{build_key}" if late else ""
        runs: dict[str, Outputs | Failure] = {}
        if late and failure is not None:
            runs = {s.id: failure for s in samples}
        return Build(name, name, None, None if late else failure), runs
    build = Build(
        report.digest,
        report.canonical,
        report.facts,
        None if late else failure,
        report.touched,
        bool(report.interface_problem),
    )
    runs = dict(report.outputs)
    if late and failure is not None:
        # A failed load fails every sample, a failed run its own.
        for sample in samples:
            if report.failed_sample in (None, sample.id):
                runs[sample.id] = failure
    return build, runs


# --- facts as bytes -------------------------------------------------------------------------------


_BUILD: TypeAdapter[Build] = TypeAdapter(Build)
_FAILURE: TypeAdapter[Failure] = TypeAdapter(Failure)


def _build_to_json(build: Build) -> bytes:
    return json.dumps(asdict(build)).encode()


def _build_from_json(data: bytes) -> Build:
    return _BUILD.validate_python(json.loads(data))


def _replay_to_bytes(
    build: Build, runs: Mapping[str, Outputs | Failure], samples: Sequence[Sample]
) -> bytes:
    # By position, not by id: the same feeds may come under another name.
    packed = {
        str(i): np.frombuffer(run_to_bytes(runs[s.id]), np.uint8)
        for i, s in enumerate(samples)
        if s.id in runs
    }
    return caching.dump_arrays(packed, {"build": _build_to_json(build).decode()})


def _replay_from_bytes(
    data: bytes, samples: Sequence[Sample]
) -> tuple[Build, dict[str, Outputs | Failure]]:
    packed, meta = caching.load_arrays(data)
    runs = {samples[int(i)].id: run_from_bytes(a.tobytes()) for i, a in packed.items()}
    return _build_from_json(meta["build"].encode()), runs


def run_to_bytes(run: Outputs | Failure) -> bytes:
    """A run as it is kept."""
    if isinstance(run, Failure):
        return caching.dump_arrays({}, {"failure": asdict(run)})
    return caching.dump_arrays(run, {"failure": None})


def run_from_bytes(data: bytes) -> Outputs | Failure:
    """What ``run_to_bytes`` wrote."""
    arrays, meta = caching.load_arrays(data)
    if meta["failure"] is not None:
        return _FAILURE.validate_python(meta["failure"])
    return arrays
